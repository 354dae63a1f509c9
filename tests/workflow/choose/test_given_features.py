from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from layerprobe import store
from layerprobe.system import memory
from layerprobe.system.errors import DataError, EnvironmentFault, LayerprobeError, NumericError, RecipeError
from layerprobe.values.keys import LayerKey
from layerprobe.workflow.choose.given_features import given_features, read_given

LABELS = np.array([0, 0, 1, 1])
GOOD = np.arange(12, dtype=np.float32).reshape(4, 3)


def saved(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "f.npz", **arrays)
    return folder / "f.npz"


@pytest.mark.parametrize(
    ("arrays", "message", "kind"),
    [
        ({"a": GOOD}, "no array `labels`: it has a. Save the class", DataError),
        ({"labels": LABELS}, "no array of features. Give an array", DataError),
        ({"a": GOOD[:3], "labels": LABELS}, "array a has 3 rows and labels 4. Give one label", DataError),
        ({"a": GOOD, "labels": LABELS, "split": np.array(["test"])}, "split has 1 rows and labels 4", DataError),
        (
            {"a": GOOD * np.nan, "labels": LABELS},
            "a: 4 of 4 feature rows hold NaN or Inf. Remove the array",
            NumericError,
        ),
        ({"a": GOOD, "labels": LABELS * 0}, "labels have 1 class; Recall@1 needs 2. Give rows of 2", DataError),
        ({"a": GOOD.astype(object), "labels": LABELS}, "array a holds Python objects, which are not read", DataError),
        ({"a": GOOD[..., None], "labels": LABELS}, r"shape \(4, 3, 1\), not \(N, D\). Pool maps", DataError),
        ({"a": GOOD.astype(str), "labels": LABELS}, "array a holds <U.*. Give real numbers", DataError),
        ({"a": GOOD, "labels": LABELS + 0.5}, r"labels\[0\] is 0.5, .* Give integers or strings", DataError),
        ({"a": GOOD, "labels": LABELS * 1e20}, r"labels\[2\] is 1e\+20, not an integer", DataError),
        ({"a": GOOD, "labels": [0, 0, 1, np.inf]}, r"labels\[3\] is inf, not an integer", DataError),
        ({"a": GOOD, "labels": [0, np.nan, 1, 1]}, r"labels\[1\] is nan, not an integer", DataError),
        ({"a": GOOD, "labels": LABELS * 1j}, "labels holds complex128. Give integers or strings", DataError),
        ({"a": GOOD, "labels": LABELS, "group": LABELS * np.nan}, r"group\[0\] is nan, not an integer", DataError),
        ({"a": GOOD, "labels": LABELS, "split": ["tset"] * 4}, "Did you mean 'test'", LayerprobeError),
        (
            {"a": GOOD, "labels": [0, 1, 0, 1], "split": ["test", "test", "train", "train"]},
            "class 0 is in test and train, but no class may be in two splits. Put all rows",
            DataError,
        ),
        (
            {"a": GOOD, "labels": [0, 1, 2, 2], "split": ["test", "test", "train", "train"]},
            "the train rows have 1 class",
            DataError,
        ),
    ],
)
def test_a_bad_file_is_told_in_one_line(
    tmp_path: Path, arrays: dict[str, Any], message: str, kind: type[Exception]
) -> None:
    path = saved(tmp_path, **arrays)
    with pytest.raises(kind, match=message) as told:
        read_given(path)
    assert str(path) in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 truncated", b"\x80\x04\x95 a pickle"])
def test_what_is_no_npz_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f.npz").write_bytes(content)
    with pytest.raises(DataError, match="not a readable .npz file: truncated, damaged or another format"):
        read_given(tmp_path / "f.npz")


def test_other_suffixes_and_absent_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="features are read from .npz and .h5"):
        read_given(tmp_path / "f.csv")
    with pytest.raises(DataError, match="no such file"):
        read_given(tmp_path / "f.npz")


def test_numbers_that_a_float_cannot_tell_apart_are_no_labels() -> None:
    # float64 has every whole number up to 2**53, float32 up to 2**24: the next one becomes that
    for kind, most in ((np.float64, 2**53), (np.float32, 2**24)):
        whole = np.array([0, 0, most - 1, most - 1], kind)
        assert given_features({"a": GOOD}, whole).labels.tolist() == [0, 0, 1, 1]
        with pytest.raises(DataError, match=r"labels\[2\] is .*, not an integer below"):
            given_features({"a": GOOD}, np.array([0, 0, most, most + 1], kind))


def test_whole_numbers_of_64_bits_stay_apart_as_labels() -> None:
    labels = np.array([0, 2**63, 2**64 - 1, 2**64 - 1], np.uint64)
    assert given_features({"a": GOOD}, labels).labels.tolist() == [0, 1, 2, 2]


def test_an_empty_group_is_shared_with_none() -> None:
    given = given_features({"a": GOOD}, LABELS, groups=["x", "", "", "x"])
    assert given.groups is not None
    assert given.groups[0] == given.groups[3]
    assert len(set(given.groups.tolist())) == 3


def test_tensors_are_taken_as_arrays_are() -> None:
    given = given_features({"a": torch.from_numpy(GOOD).requires_grad_()}, torch.from_numpy(LABELS))
    assert given.features[LayerKey("a", "none")].tolist() == GOOD.tolist()


def test_a_feature_file_gives_its_layers_with_their_pools(tmp_path: Path) -> None:
    layers = [LayerKey("conv10", "max"), LayerKey("conv2", "max"), LayerKey("conv2", "avg")]
    key = store.FeatureKey("run", 7, "test", "sha", "none", "sha")
    columns = store.Columns(dict.fromkeys(layers, 3), "cpu", 4)
    rows = store.Rows(LABELS, ["a", "b", "c", "d"])
    store.write_features(tmp_path / "f.h5", key, rows, columns, [dict.fromkeys(layers, GOOD)])
    given = read_given(tmp_path / "f.h5")
    assert given.epoch == 7
    assert list(given.features) == [LayerKey("conv2", "avg"), LayerKey("conv2", "max"), LayerKey("conv10", "max")]
    assert given.labels.tolist() == LABELS.tolist()


def test_an_npz_that_claims_more_than_fits_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.npz"
    np.savez_compressed(path, labels=LABELS, a=np.zeros((4, 2**23), np.float32))
    assert path.stat().st_size < 2**18
    monkeypatch.setattr(memory, "free_memory", lambda: 100_000_000)
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(EnvironmentFault, match=r"f\.npz: needs 134 MB of memory, 100 MB are free"):
        read_given(path)


def test_an_array_whose_header_claims_more_than_it_has_takes_no_memory(tmp_path: Path) -> None:
    header = io.BytesIO()
    claimed = {"shape": (4, 10**11), "fortran_order": False, "descr": "<f4"}
    np.lib.format.write_array_header_1_0(header, claimed)
    path = saved(tmp_path, labels=LABELS)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("a.npy", header.getvalue() + bytes(64))
    with pytest.raises(DataError, match=r"f\.npz: array a cannot be read"):
        read_given(path)


def test_a_feature_file_that_claims_more_than_fits_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.h5"
    key = store.FeatureKey("demo", 4, "test", weights_sha256="abc", transform="", manifest_sha256="def")
    layers = {LayerKey(name, "max"): 2**21 for name in ("a", "b")}  # each fits, both do not
    columns = store.Columns(layers, "cpu", 4)
    store.write_features(
        path,
        key,
        store.Rows(LABELS, list("abcd")),
        columns,
        [{k: np.ones((4, d), np.float32) for k, d in layers.items()}],
    )
    monkeypatch.setattr(memory, "free_memory", lambda: 50_000_000)
    monkeypatch.setattr(store, "read_features", lambda *_: pytest.fail("read"))
    with pytest.raises(EnvironmentFault, match=r"f\.h5: needs 67 MB of memory, 50 MB are free"):
        read_given(path)
