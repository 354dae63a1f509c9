"""A table of features as the content of a .parquet, .npz or .csv file.

The columns are `id`, `path` and `label`, and for each layer `vector/LAYER`, `nearest/LAYER` and `right/LAYER`; in a csv
file, for each number of the layer `vector/LAYER/0` and so on.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.system.errors import DataError


@dataclass(frozen=True, eq=False)
class LayerColumns:
    """A layer of N images.

    Args:
        vectors: (N, D) as they are searched: float32, or (N, ceil(D / 8)) uint8 of packed bits.
        dim: D.
        nearest: id of the nearest item; None where the search rules leave none.
        right: (N,) whether it is right.
    """

    name: str
    vectors: NDArray[Any]
    dim: int
    nearest: Sequence[str | None]
    right: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Layers of the N images of a split.

    Args:
        paths: absolute; empty where an image is no file below the root of the data.
        labels: the name of each image's class.
    """

    epoch: int
    ids: Sequence[str]
    paths: Sequence[str]
    labels: Sequence[str]
    layers: Sequence[LayerColumns]


def require_parquet_texts(texts: Iterable[str]) -> None:
    """Check that texts can stand in a parquet file: names in tar files, and of folders, may not be UTF-8."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            problem = f"{text!a} is not UTF-8, as every text of a parquet file must be"
            raise DataError(problem, fix="Write .npz or .csv") from error


def encode_table(table: FeatureTable, form: str) -> bytes:
    """A table as parquet, npz or csv.

    Args:
        table: for csv, of one layer.
    """
    return {"parquet": _parquet, "npz": _npz, "csv": _csv}[form](table)


def _parquet(table: FeatureTable) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet

    columns = {"id": pa.array(table.ids), "path": pa.array(table.paths), "label": pa.array(table.labels)}
    for layer in table.layers:
        numbers = pa.array(np.ascontiguousarray(layer.vectors).ravel())
        columns[f"vector/{layer.name}"] = pa.FixedSizeListArray.from_arrays(numbers, layer.vectors.shape[1])
        columns[f"nearest/{layer.name}"] = pa.array(layer.nearest, pa.string())
        columns[f"right/{layer.name}"] = pa.array(layer.right)
    content = io.BytesIO()
    pyarrow.parquet.write_table(pa.table(columns), content)
    return content.getvalue()


def _npz(table: FeatureTable) -> bytes:
    arrays: dict[str, Any] = {"id": np.array(table.ids), "path": np.array(table.paths), "label": np.array(table.labels)}
    for layer in table.layers:
        arrays[f"vector/{layer.name}"] = layer.vectors
        arrays[f"nearest/{layer.name}"] = np.array([name or "" for name in layer.nearest])
        arrays[f"right/{layer.name}"] = layer.right
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def _csv(table: FeatureTable) -> bytes:
    (layer,) = table.layers
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    numbers = [f"vector/{layer.name}/{dimension}" for dimension in range(layer.vectors.shape[1])]
    writer.writerow(["id", "path", "label", f"nearest/{layer.name}", f"right/{layer.name}", *numbers])
    rows = zip(table.ids, table.paths, table.labels, layer.nearest, layer.right.tolist(), layer.vectors, strict=True)
    for *texts, vector in rows:
        writer.writerow([*texts, *vector.astype(str).tolist()])  # the fewest digits that give the number back
    return content.getvalue().encode(errors="surrogateescape")
