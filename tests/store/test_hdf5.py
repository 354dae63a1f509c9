from __future__ import annotations

from pathlib import Path

import h5py
import pytest

from layerprobe import store
from layerprobe.system.errors import DataError


def test_a_file_of_another_program_in_a_runs_folder_is_not_to_be_deleted(tmp_path: Path) -> None:
    path = tmp_path / "my cache" / "netA" / "features" / "epoch-0001.test.h5"
    path.parent.mkdir(parents=True)
    with h5py.File(path, "w") as file:
        file["features"] = [[1.0]]
    with pytest.raises(DataError) as told:
        _ = store.read_feature_head(path).rows
    command = f"layerprobe probe netA --cache '{tmp_path}/my cache'"
    assert told.value.fix == f"Move it away; {command} computes the features again"


def test_a_schema_of_another_program_makes_no_feature_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.attrs["schema"] = 1
    assert not store.is_feature_file(tmp_path / "f.h5")


def test_numbers_texts_and_one_group_are_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["group/b"], file["a"], file["count"] = [[1, 2]], ["x"], 3
    found = store.read_arrays(tmp_path / "f.h5")
    assert list(found) == ["a", "count", "group"]
    assert found["a"].tolist() == ["x"]  # type: ignore[union-attr] # no group
    assert {name: values.tolist() for name, values in found["group"].items()} == {"b": [[1, 2]]}  # type: ignore[union-attr]
