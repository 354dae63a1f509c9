from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from layerprobe import store
from layerprobe.store.rows import FeatureKey, key_attributes
from layerprobe.system.errors import DataError
from layerprobe.values.layers import LayerKey
from tests.store.test_features import DIMS, KEY, ROWS, values, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "f.h5"
    write(path)
    return path


@pytest.mark.parametrize("ids", [(), tuple(str(9 * index) for index in range(700))])
def test_the_names_and_ids_of_the_classes_are_read_as_they_were(tmp_path: Path, ids: tuple[str, ...]) -> None:
    names = tuple(f"Citroën {index}" for index in range(700))
    rows = store.Rows(np.array([0, 699]), ["a", "b"], names, ids)
    columns = store.Columns({LayerKey("a", "max"): 1}, "cpu", 1)
    store.write_features(tmp_path / "f.h5", KEY, rows, columns, [{LayerKey("a", "max"): values(1, 1, 2)}])
    assert store.read_feature_head(tmp_path / "f.h5").class_names == names
    with h5py.File(tmp_path / "f.h5") as file:
        assert file["class_names"].fletcher32


def test_a_file_without_the_names_of_its_classes_is_whole(path: Path) -> None:
    assert store.read_feature_head(path).class_names == ()
    assert store.stored_layers(path, KEY) == set(DIMS)


def test_names_of_classes_that_are_no_texts_are_refused(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.create_dataset("class_names", data=np.arange(7), chunks=(7,), fletcher32=True)
    with pytest.raises(DataError, match="its labels, ids or classes are not those that layerprobe wrote"):
        _ = store.read_feature_head(path).rows


def test_labels_and_ids_are_read_in_the_order_of_the_rows(path: Path) -> None:
    labels, ids = store.read_feature_head(path).rows
    assert labels.dtype == np.int32
    assert labels.tolist() == ROWS.labels.tolist()
    assert ids == tuple(ROWS.ids)


@pytest.mark.parametrize("name", ["labels", "ids", "class_names", "class_ids"])
def test_rows_that_a_program_changed_are_refused_though_their_checksums_are_right(tmp_path: Path, name: str) -> None:
    path = tmp_path / "f.h5"
    rows = replace(ROWS, class_names=[f"c{i}" for i in range(7)], class_ids=[f"{i}" for i in range(7)])
    layer = LayerKey("a", "max")
    store.write_features(path, KEY, rows, store.Columns({layer: 2}, "cpu", 96), [{layer: values(1, 2)}])
    with h5py.File(path, "r+") as file:
        file[name][:] = file[name][:][::-1]
    with pytest.raises(DataError, match="its labels, ids or classes are not those that layerprobe wrote"):
        _ = store.read_feature_head(path).rows
    assert store.stored_layers(path, KEY) == set()
    assert store.stale_note(path, KEY) == "its labels, ids or classes are not those that layerprobe wrote"


def test_a_file_without_the_hash_of_its_rows_is_refused(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file.attrs["rows_sha256"]
    with pytest.raises(DataError, match="its labels, ids or classes are not those that layerprobe wrote"):
        _ = store.read_feature_head(path).rows
    assert store.stored_layers(path, KEY) == set()


def test_an_id_that_is_not_utf8_comes_back_as_it_was(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    columns = store.Columns({LayerKey("a", "max"): 1}, "cpu", 1)
    store.write_features(
        tmp_path / "f.h5", KEY, store.Rows(np.zeros(1, int), [name]), columns, [{LayerKey("a", "max"): values(1, 1, 1)}]
    )
    assert store.read_feature_head(tmp_path / "f.h5").rows[1] == (name,)


def test_an_absent_file_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"f\.h5: no such feature file\. Run layerprobe probe first\."):
        _ = store.read_feature_head(tmp_path / "f.h5").rows


def test_labels_and_ids_of_different_length_are_refused(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["labels"]
        file.create_dataset("labels", data=np.zeros(3, np.int32), chunks=(3,), fletcher32=True)
    with pytest.raises(DataError, match="labels and ids are not two lists of one length"):
        _ = store.read_feature_head(path).rows


def test_the_layers_of_a_file_are_listed(path: Path) -> None:
    assert set(store.read_feature_head(path).columns) == set(DIMS)


FEATURE_KEY = FeatureKey("netA", 3, "test", "a1", "{}", "b2")


def test_the_key_of_a_network_of_layerprobes_own_names_no_package() -> None:
    assert "network" not in key_attributes(FEATURE_KEY)
    assert key_attributes(replace(FEATURE_KEY, network="timm 1.0.15"))["network"] == "timm 1.0.15"
