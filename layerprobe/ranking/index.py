"""Export features as a faiss index for other programs, with the ids of its rows in a second file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.ranking.faiss_search import import_faiss
from layerprobe.ranking.vectors import comparable, tensor_of
from layerprobe.system.errors import NumericError
from layerprobe.system.files import require_replaceable, sha256, written_whole
from layerprobe.values.retrieval import Similarity

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = 1

# What the index holds, and how a query must be made.
_VECTORS = {
    "cosine": "float32, divided by their length",
    "dot": "float32, as they are",
    "euclidean": "float32, as they are",
    "hamming": "uint8, 8 bits a byte as numpy.packbits orders them",
}


def export_index(
    path: Path,
    features: ArrayLike | Tensor,
    ids: Sequence[str],
    *,
    similarity: Similarity = "cosine",
    facts: Mapping[str, Any] | None = None,
) -> tuple[Path, Path]:
    """Write features as an exact faiss index, and a description of its rows as PATH.json.

    A query has to be made as the vectors are: for cosine divided by its length. faiss compares in float32, keeps no
    rule for ties, and does not know which item the query is; `nearest_neighbours` does.

        index = faiss.read_index("fc6.faiss")  # read_index_binary for hamming
        ids = json.loads(Path("fc6.faiss.json").read_text(encoding="utf-8"))["ids"]
        D, I = index.search(queries, 10)
        [ids[i] for i in I[0]]

    D holds cosines or dot products (IndexFlatIP), squared Euclidean distances (IndexFlatL2) or numbers of bits that
    differ (IndexBinaryFlat). PATH.json has `schema`; `index`, the index's file name, and its `sha256`; `count` and
    `dimensions`; `similarity` and `vectors`, how the features were prepared; `facts`; and `ids`, one a row, in order.
    Both files are written before either takes its name.

    Args:
        path: of the index, such as `fc6.faiss`; its folder is made.
        features: (N, D), any real type; for hamming uint8 of packed bits, 8 dimensions a byte.
        ids: N different names.
        similarity: cosine (a zero vector stays zero), dot, euclidean or hamming.
        facts: where the features are from, as JSON has it.

    Returns:
        The two files.

    Raises:
        EnvironmentFault: faiss cannot be imported.
        LayerprobeError: a link, folder, pipe, socket or device has one of the two names.
        NumericError: a row holds NaN, Inf or what float32 cannot hold; with the number of rows.
        OSError: a file cannot be written.
        ValueError: shapes, types or ids that do not fit together, or an unknown similarity.
    """
    listing = path.with_name(f"{path.name}.json")
    for file in (path, listing):
        require_replaceable(file)
    faiss = import_faiss()
    vectors = _vectors(features, similarity)
    if len(ids) != len(vectors) or len(set(ids)) != len(ids):
        raise ValueError(f"expected {len(vectors)} different ids, got {len(ids)}, {len(set(ids))} of them different")
    dimensions = vectors.shape[1] * (8 if similarity == "hamming" else 1)
    kind = {"hamming": faiss.IndexBinaryFlat, "euclidean": faiss.IndexFlatL2}.get(similarity, faiss.IndexFlatIP)
    index = kind(dimensions)
    index.add(vectors)
    write = faiss.write_index_binary if similarity == "hamming" else faiss.write_index
    with written_whole(listing) as listing_aside, written_whole(path) as aside:
        # Written by Python: given a path, faiss does not notice a full disk.
        with aside.open("wb") as stream:
            write(index, faiss.PyCallbackIOWriter(stream.write))
        about = {
            "schema": SCHEMA,
            "index": path.name,
            "sha256": sha256(aside),
            "count": len(vectors),
            "dimensions": dimensions,
            "similarity": similarity,
            "vectors": _VECTORS[similarity],
            "facts": dict(facts or {}),
            "ids": list(ids),
        }
        # As ASCII: a file's name need not be UTF-8.
        text = json.dumps(about, indent=1)
        listing_aside.write_text(f"{text}\n", encoding="utf-8", newline="\n")
    return path, listing


def _vectors(features: ArrayLike | Tensor, similarity: Similarity) -> NDArray[Any]:
    """(N, D) float32 or (N, ceil(D / 8)) uint8 as the index holds them."""
    rows = tensor_of(features)
    prepared = comparable(rows, similarity=similarity)
    if similarity == "hamming":
        return np.ascontiguousarray(rows.cpu().numpy())
    vectors = (prepared.gallery if similarity == "cosine" else rows).float()
    beyond = int((~vectors.isfinite()).any(1).sum())
    if beyond:
        raise NumericError(f"{beyond} of {len(vectors)} feature rows leave the range of float32")
    return np.ascontiguousarray(vectors.cpu().numpy())
