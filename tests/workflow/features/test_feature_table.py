from __future__ import annotations

import csv
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from layerprobe.workflow.features.feature_table import FeatureTable, LayerColumns, encode_table

VECTORS = np.array([[0.1, -2], [3, 1e-9]], np.float32)
CODES = np.array([[255], [1]], np.uint8)
FC6 = LayerColumns("fc6", VECTORS, 2, ["b", None], np.array([True, False]))
BITS = LayerColumns("c1@max/binary", CODES, 8, ["b", "a"], np.array([False, False]))
TEXTS = {"id": ["a", "b"], "path": ["/x/a.png", ""], "label": ["café", "-1"]}


def table(*layers: LayerColumns) -> FeatureTable:
    return FeatureTable(3, TEXTS["id"], TEXTS["path"], TEXTS["label"], layers)


def test_parquet_has_the_columns_of_each_layer() -> None:
    read = pq.read_table(io.BytesIO(encode_table(table(FC6, BITS), "parquet")))
    assert read.schema.field("vector/fc6").type == pa.list_(pa.float32(), 2)
    assert read.schema.field("vector/c1@max/binary").type == pa.list_(pa.uint8(), 1)
    assert read.to_pydict() == {
        **TEXTS,
        "vector/fc6": VECTORS.tolist(),
        "nearest/fc6": ["b", None],
        "right/fc6": [True, False],
        "vector/c1@max/binary": CODES.tolist(),
        "nearest/c1@max/binary": ["b", "a"],
        "right/c1@max/binary": [False, False],
    }


def test_npz_has_an_array_of_each_column_and_needs_no_pickle() -> None:
    with np.load(io.BytesIO(encode_table(table(FC6, BITS), "npz")), allow_pickle=False) as read:
        assert {name: read[name].tolist() for name in TEXTS} == TEXTS
        assert np.array_equal(read["vector/fc6"], VECTORS)
        assert read["vector/fc6"].dtype == np.float32
        assert read["nearest/fc6"].tolist() == ["b", ""]
        assert read["right/fc6"].tolist() == [True, False]
        assert np.array_equal(read["vector/c1@max/binary"], CODES)


def test_csv_has_a_column_of_each_number_and_gives_it_back() -> None:
    rows = list(csv.DictReader(io.StringIO(encode_table(table(FC6), "csv").decode())))
    assert [row["label"] for row in rows] == TEXTS["label"]
    assert [row["nearest/fc6"] for row in rows] == ["b", ""]
    assert [row["right/fc6"] for row in rows] == ["True", "False"]
    numbers = [[float(row[f"vector/fc6/{dimension}"]) for dimension in range(2)] for row in rows]
    assert np.array_equal(np.array(numbers, np.float32), VECTORS)
