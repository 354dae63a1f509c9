"""faiss indexes of features, and their files for other programs.

write_index(folder, features, ids, kind="ivfpq", training=others)   # folder/index.faiss and folder/index.json
load_index(folder).search(queries, 10)                              # similarities and ids
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.ranking.faiss_search import import_faiss
from layerprobe.ranking.items import BLOCK_ROWS, unlabelled_items
from layerprobe.ranking.vectors import form_of
from layerprobe.system.errors import DataError, LayerprobeError, NumericError
from layerprobe.system.files import require_file, require_replaceable, sha256, written_whole
from layerprobe.values.costs import KINDS, IndexKind
from layerprobe.values.retrieval import SIMILARITIES, Similarity

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.ranking.items import Table

SCHEMA = 1
INDEX_FILE, LISTING_FILE = "index.faiss", "index.json"

# What the index holds, and how a query must be made.
_VECTORS = {
    "cosine": "float32, divided by their length",
    "dot": "float32, as they are",
    "euclidean": "float32, as they are",
    "hamming": "uint8, 8 bits a byte as numpy.packbits orders them",
}
# Training vectors for each list: faiss's own minimum. With 4 for each codeword, more codewords of the same vectors find
# more of the nearest neighbours: of 1,360 drawn vectors of 64 numbers, with 340 others, 64 find 42 % and 8 find 26 %.
_PER_LIST, _PER_CODEWORD = 39, 4
_MOST_PARTS = 64
_SEED = 0
# Vectors that are added to an index at once: as many as faiss encodes at once.
_ADDED = 2**15


@dataclass(frozen=True, eq=False)
class Index:
    """A faiss index.

    Args:
        faiss: faiss's own object.
        parameters: chosen by the numbers of vectors and dimensions.
        ids: of the rows; empty if it was not written.
    """

    faiss: Any
    kind: IndexKind
    similarity: Similarity
    parameters: Mapping[str, int]
    ids: Sequence[str] = field(default=(), repr=False)

    def __len__(self) -> int:
        return int(self.faiss.ntotal)

    def search(self, queries: ArrayLike | Tensor, k: int) -> tuple[NDArray[Any], list[list[str]]]:
        """The nearest items of each query, as faiss finds them.

        Args:
            queries: (Q, D) features, prepared as those of the index were.
            k: at least 1.

        Returns:
            (Q, k) cosines, dot products, squared Euclidean distances or numbers of bits that differ; and the ids, fewer
            than k where ivfpq or hnsw finds fewer.

        Raises:
            NumericError: a row holds NaN or Inf.
            ValueError: other dimensions than the index has.
        """
        vectors = vectors_of(queries, self.similarity)
        if vectors.shape[1] * (8 if self.similarity == "hamming" else 1) != self.faiss.d:
            raise ValueError(f"queries of shape {vectors.shape} for an index of {self.faiss.d} dimensions")
        scores, rows = self.faiss.search(vectors, k)
        return scores, [[self.ids[row] for row in of_query if row >= 0] for of_query in rows.tolist()]


def build_index(
    features: ArrayLike | Tensor | Table,
    kind: IndexKind = "flat",
    *,
    similarity: Similarity = "cosine",
    training: ArrayLike | Tensor | None = None,
) -> Index:
    """Build an index, by one thread and with fixed seeds: equal features give equal bytes.

    - `flat`: every vector, compared with every query (IndexFlatIP, IndexFlatL2 or IndexBinaryFlat).
    - `ivfpq`: about 4 sqrt(N) lists, of which a query visits 1/16 and at least 16, and product quantisation of the
      residuals, in parts of about 4 dimensions, at most 64 of them (Jegou et al., TPAMI 2011; IndexIVFPQ). Of
      training vectors there are at least 39 for each list and 4 for each codeword; codewords are at most 256.
    - `hnsw`: a graph with 32 links a vector, 16 below 64 dimensions (Malkov & Yashunin, TPAMI 2020; IndexHNSWFlat).

    Args:
        features: (N, D), any real type; for hamming uint8 of packed bits, 8 dimensions a byte. On disk, they are read
            in blocks; the index holds them as float32, or ivfpq their codes, and hnsw takes all at once.
        similarity: cosine (inner product of unit vectors; a zero vector stays zero), dot, euclidean, or hamming, which
            only flat has.
        training: (M, D) features of other images, on which ivfpq is trained; nothing else needs them.

    Raises:
        DataError: ivfpq has fewer than 39 training vectors.
        EnvironmentFault: faiss cannot be imported.
        LayerprobeError: another kind than flat for hamming, or ivfpq without training vectors.
        NumericError: a row holds NaN, Inf or what float32 cannot hold; with the number of rows.
        ValueError: shapes or types that do not fit together, or an unknown similarity.
    """
    from threadpoolctl import threadpool_limits

    faiss = import_faiss()
    if similarity == "hamming" and kind != "flat":
        problem = f"an index {kind} holds float vectors, and binary codes are bits"
        raise LayerprobeError(problem, fix="Take flat, which compares bits, or a layer without binary")
    blocks, (count, dim) = _vector_blocks(features, similarity), np.shape(features)
    if similarity == "hamming":
        index = faiss.IndexBinaryFlat(8 * dim)
        for block in blocks:
            index.add(block)
        return Index(index, kind, similarity, {})
    metric = faiss.METRIC_L2 if similarity == "euclidean" else faiss.METRIC_INNER_PRODUCT
    parameters: Mapping[str, int] = {}
    # More threads build another graph each time.
    with threadpool_limits(1):
        if kind == "flat":
            index = faiss.IndexFlat(dim, metric)
        elif kind == "hnsw":
            parameters = _hnsw_parameters(dim)
            index = faiss.IndexHNSWFlat(dim, parameters["M"], metric)
            index.hnsw.efConstruction = parameters["efConstruction"]
            index.hnsw.efSearch = parameters["efSearch"]
        else:
            trained = _training(training, similarity, dim)
            parameters = ivfpq_parameters(count, dim, len(trained))
            index = _train_ivfpq(faiss, trained, metric, parameters)
        for block in [np.concatenate(list(blocks))] if kind == "hnsw" else blocks:  # a graph depends on what is added
            index.add(block)
    return Index(index, kind, similarity, parameters)


def ivfpq_parameters(count: int, dim: int, training: int) -> dict[str, int]:
    """The parameters of `ivfpq` for so many vectors, dimensions and training vectors."""
    lists = max(1, min(round(4 * math.sqrt(count)), training // _PER_LIST))
    target = min(dim / 4, _MOST_PARTS)
    divisors = [divisor for divisor in range(1, dim + 1) if dim % divisor == 0]
    parts = min(divisors, key=lambda divisor: abs(math.log(divisor / target)))
    bits = min(8, (training // _PER_CODEWORD).bit_length() - 1)
    return {"nlist": lists, "nprobe": min(lists, max(16, lists // 16)), "m": parts, "nbits": bits, "training": training}


def _hnsw_parameters(dim: int) -> dict[str, int]:
    return {"M": 16 if dim < 64 else 32, "efConstruction": 80, "efSearch": 128}


def _training(training: ArrayLike | Tensor | None, similarity: Similarity, dim: int) -> NDArray[Any]:
    """(M, D) float32."""
    if training is None:
        problem = "ivfpq has to be trained on other images than the indexed ones, and there are none"
        raise LayerprobeError(problem, fix="Take flat or hnsw, or give validation classes")
    vectors = vectors_of(training, similarity)
    if vectors.shape[1] != dim:
        raise ValueError(f"training vectors have {vectors.shape[1]} dimensions, features {dim}")
    if len(vectors) < _PER_LIST:
        problem = f"ivfpq has to be trained on {_PER_LIST} images or more, and there are {len(vectors)}"
        raise DataError(problem, fix="Take flat or hnsw, or give more images")
    return vectors


def _train_ivfpq(faiss: Any, training: NDArray[Any], metric: int, parameters: Mapping[str, int]) -> Any:
    # np: without polysemous training, which takes most of the time and no search here uses.
    name = "IVF{nlist},PQ{m}x{nbits}np".format(**parameters)
    index = faiss.index_factory(training.shape[1], name, metric)
    for clustering in (index.cp, index.pq.cp):
        clustering.seed = _SEED
        clustering.min_points_per_centroid = 1  # or faiss prints a warning
    index.train(training)
    index.nprobe = parameters["nprobe"]
    return index


def write_index(  # noqa: PLR0913 - the public signature
    folder: Path,
    features: ArrayLike | Tensor | Table,
    ids: Sequence[str],
    *,
    kind: IndexKind = "flat",
    similarity: Similarity = "cosine",
    training: ArrayLike | Tensor | None = None,
    facts: Mapping[str, Any] | None = None,
) -> tuple[Path, Path]:
    """Write an index as FOLDER/index.faiss, and a description of its rows as FOLDER/index.json.

    `load_index` reads both. Without layerprobe, a query has to be made as the vectors are: for cosine divided by its
    length. faiss keeps no rule for ties, and does not know which item the query is; `nearest_neighbours` does.

        index = faiss.read_index("index.faiss")  # read_index_binary for hamming
        ids = json.loads(Path("index.json").read_text(encoding="utf-8"))["ids"]
        D, I = index.search(queries, 10)
        [ids[i] for i in I[0]]

    D holds cosines or dot products, squared Euclidean distances or numbers of bits that differ. index.json has
    `schema`; `index`, the index's file name, and its `sha256`; `kind` and `parameters`; `rows` and `dimensions`;
    `similarity` and `vectors`, how the features were prepared; `facts`; and `ids`, one a row, in order. Both files are
    written before either takes its name.

    Args:
        folder: is made.
        features: see `build_index`, likewise the other arguments.
        ids: N different names.
        facts: where the features are from, as JSON has it.

    Returns:
        The two files.

    Raises:
        LayerprobeError: see `build_index`; or a link, folder, pipe, socket or device has one of the two names.
        OSError: a file cannot be written.
        ValueError: ids that do not fit the features; see `build_index`.
    """
    path, listing = folder / INDEX_FILE, folder / LISTING_FILE
    for file in (path, listing):
        require_replaceable(file)
    faiss, count = import_faiss(), len(features)  # type: ignore[arg-type] # whatever has rows has a length
    if len(ids) != count or len(set(ids)) != len(ids):
        raise ValueError(f"expected {count} different ids, got {len(ids)}, {len(set(ids))} of them different")
    index = build_index(features, kind, similarity=similarity, training=training)
    write = faiss.write_index_binary if similarity == "hamming" else faiss.write_index
    with written_whole(listing) as listing_aside, written_whole(path) as aside:
        # Written by Python: given a path, faiss does not notice a full disk.
        with aside.open("wb") as stream:
            write(index.faiss, faiss.PyCallbackIOWriter(stream.write))
        about = {
            "schema": SCHEMA,
            "index": path.name,
            "sha256": sha256(aside),
            "kind": kind,
            "parameters": dict(index.parameters),
            "rows": len(index),
            "dimensions": index.faiss.d,
            "similarity": similarity,
            "vectors": _VECTORS[similarity],
            "facts": dict(facts or {}),
            "ids": list(ids),
        }
        # As ASCII: a file's name need not be UTF-8.
        text = json.dumps(about, indent=1)
        listing_aside.write_text(f"{text}\n", encoding="utf-8", newline="\n")
    return path, listing


def load_index(folder: Path) -> Index:
    """Read an index that `write_index` wrote; faiss sees its bytes only if they are those that were written.

    Raises:
        DataError: a file is missing, damaged or another one; or the two do not belong together.
        EnvironmentFault: faiss cannot be imported.
    """
    faiss = import_faiss()
    path, listing = folder / INDEX_FILE, folder / LISTING_FILE
    about = _read_listing(listing)
    try:
        same = sha256(path) == about["sha256"]
    except OSError as error:
        raise DataError.unreadable(error, file=path) from error
    if not same:
        raise DataError(f"damaged, or not the index of {LISTING_FILE}: its SHA-256 differs", file=path, fix=_AGAIN)
    binary = about["similarity"] == "hamming"
    try:
        with path.open("rb") as stream:
            read = faiss.read_index_binary if binary else faiss.read_index
            index = read(faiss.PyCallbackIOReader(stream.read))
    except (RuntimeError, MemoryError) as error:
        raise DataError("not an index that faiss can read", file=path, fix=_AGAIN) from error
    classes = {"flat": "IndexBinaryFlat" if binary else "IndexFlat", "ivfpq": "IndexIVFPQ", "hnsw": "IndexHNSWFlat"}
    metric = faiss.METRIC_INNER_PRODUCT if about["similarity"] in ("cosine", "dot") else faiss.METRIC_L2
    if (
        not isinstance(index, getattr(faiss, classes[about["kind"]]))
        or (index.ntotal, index.d) != (about["rows"], about["dimensions"])
        or (not binary and index.metric_type != metric)
    ):
        problem = f"not the index of {LISTING_FILE}: kind, similarity, rows or dimensions differ"
        raise DataError(problem, file=path, fix=_AGAIN)
    return Index(index, about["kind"], about["similarity"], about["parameters"], tuple(about["ids"]))


_AGAIN = "Export it again"


def _read_listing(path: Path) -> dict[str, Any]:
    """index.json, with the fields that `load_index` needs."""
    try:
        require_file(path)
        about = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError.unreadable(error, file=path) from error
    except (ValueError, RecursionError) as error:
        raise DataError("not JSON", file=path, fix=_AGAIN) from error
    if not isinstance(about, dict) or about.get("schema") != SCHEMA:
        raise DataError("not the description of an index, or of another version", file=path, fix=_AGAIN)
    ids, parameters = about.get("ids"), about.get("parameters")
    if not (
        about.get("kind") in KINDS
        and about.get("similarity") in SIMILARITIES
        and all(type(about.get(name)) is int for name in ("rows", "dimensions"))
        and isinstance(about.get("sha256"), str)
        and isinstance(parameters, dict)
        and isinstance(ids, list)
        and all(isinstance(name, str) for name in ids)
    ):
        raise DataError("a field is missing or of another type", file=path, fix=_AGAIN)
    if len(ids) != about["rows"] or len(set(ids)) != len(ids):
        raise DataError(f"{len(ids):,} ids for {about['rows']:,} rows, or equal ones", file=path, fix=_AGAIN)
    return about


def vectors_of(features: ArrayLike | Tensor | Table, similarity: Similarity) -> NDArray[Any]:
    """(N, D) float32 or (N, ceil(D / 8)) uint8 as an index holds them, and as its queries must be.

    Raises:
        NumericError: a row holds NaN, Inf or what float32 cannot hold; with the number of rows.
        ValueError: another shape or type, or an unknown similarity.
    """
    return np.concatenate(list(_vector_blocks(features, similarity)))


def _vector_blocks(features: ArrayLike | Tensor | Table, similarity: Similarity) -> Iterator[NDArray[Any]]:
    """The rows of `vectors_of`, so many at a time as are added to an index at once."""
    items = unlabelled_items(features, "features", similarity)
    form, beyond = form_of(items, items, similarity), 0
    for start in range(0, len(items), _ADDED):
        parts = []
        for first in range(start, min(start + _ADDED, len(items)), BLOCK_ROWS):
            rows = items.take(slice(first, first + BLOCK_ROWS))
            if similarity != "hamming":
                rows = (form.vectors(rows) if similarity == "cosine" else rows).float()
                beyond += int((~rows.isfinite()).any(1).sum())
            parts.append(rows.cpu().numpy())
        yield np.concatenate(parts)
    if beyond:
        raise NumericError(f"{beyond} of {len(items)} feature rows leave the range of float32")
