from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from layerprobe import store
from layerprobe.system import memory
from layerprobe.system.errors import DataError, EnvironmentFault, LayerprobeError, NumericError, RecipeError
from layerprobe.values.layers import LayerKey
from layerprobe.workflow.choose.feature_files import read_user_features
from layerprobe.workflow.choose.user_features import UserFeatures

LABELS = np.array([0, 0, 1, 1])
GOOD = np.arange(12, dtype=np.float32).reshape(4, 3)


def saved(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "f.npz", **arrays)
    return folder / "f.npz"


@pytest.mark.parametrize(
    ("arrays", "message", "kind"),
    [
        ({"a": GOOD}, "no array `labels`: it has a \\(4, 3\\). Save the class", DataError),
        ({"labels": LABELS}, "no array of features. Give an array", DataError),
        ({"a": GOOD[:3], "labels": LABELS}, "array a has 3 rows and labels 4. Give one label", DataError),
        ({"a": GOOD, "labels": LABELS, "split": np.array(["test"])}, "split has 1 rows and labels 4", DataError),
        (
            {"a": GOOD * np.nan, "labels": LABELS},
            "a: 4 of 4 feature rows hold NaN or Inf, first in row 0. Remove the array",
            NumericError,
        ),
        ({"a": GOOD, "labels": LABELS * 0}, "labels have 1 class; Recall@1 needs 2. Give rows of 2", DataError),
        ({"a": GOOD.astype(object), "labels": LABELS}, "array a holds Python objects, which are not read", DataError),
        ({"a": GOOD[..., None], "labels": LABELS}, r"shape \(4, 3, 1\), not \(N, D\). Pool the tokens", DataError),
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
        read_user_features(path)
    assert str(path) in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 truncated", b"\x80\x04\x95 a pickle"])
def test_what_is_no_npz_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f.npz").write_bytes(content)
    with pytest.raises(DataError, match="not a readable .npz file: truncated, damaged or another format"):
        read_user_features(tmp_path / "f.npz")


def test_other_suffixes_and_absent_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="features are read from .npz, .npy, .pt"):
        read_user_features(tmp_path / "f.csv")
    with pytest.raises(DataError, match="no such file"):
        read_user_features(tmp_path / "f.npz")


def test_a_feature_file_gives_its_layers_with_their_pools(tmp_path: Path) -> None:
    layers = [LayerKey("conv10", "max"), LayerKey("conv2", "max"), LayerKey("conv2", "avg")]
    key = store.FeatureKey("run", 7, "test", "sha", "none", "sha")
    columns = store.Columns(dict.fromkeys(layers, 3), "cpu", 4)
    rows = store.Rows(LABELS, ["a", "b", "c", "d"])
    store.write_features(tmp_path / "f.h5", key, rows, columns, [dict.fromkeys(layers, GOOD)])
    given = read_user_features(tmp_path / "f.h5")
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
        read_user_features(path)


def test_an_array_whose_header_claims_more_than_it_has_takes_no_memory(tmp_path: Path) -> None:
    header = io.BytesIO()
    claimed = {"shape": (4, 10**11), "fortran_order": False, "descr": "<f4"}
    np.lib.format.write_array_header_1_0(header, claimed)
    path = saved(tmp_path, labels=LABELS)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("a.npy", header.getvalue() + bytes(64))
    with pytest.raises(DataError, match=r"f\.npz: array a cannot be read"):
        read_user_features(path)


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
        read_user_features(path)


RNG = np.random.default_rng(0)
DEEP, EARLY = RNG.normal(size=(4, 3)).astype(np.float32), RNG.normal(size=(4, 2)).astype(np.float32)
IDS = ["c/3.jpg", "c/2.jpg", "a/1.jpg", "a/0.jpg"]


def of_npz(folder: Path) -> UserFeatures:
    np.savez(folder / "f.npz", early=EARLY, deep=DEEP, labels=LABELS, filenames=np.array(IDS))
    return read_user_features(folder / "f.npz")


def of_h5(folder: Path) -> UserFeatures:
    with h5py.File(folder / "f.h5", "w", track_order=True) as file:
        file["early"], file["deep"], file["labels"] = EARLY, DEEP, LABELS[:, None]
        file["image_names"] = np.array(IDS, h5py.string_dtype())
    return read_user_features(folder / "f.h5")


def of_a_compressed_group(folder: Path) -> UserFeatures:
    with h5py.File(folder / "f.hdf5", "w") as file:
        group = file.create_group("features", track_order=True)
        for name, values in (("early", EARLY), ("deep", DEEP)):
            group.create_dataset(name, data=values, compression="gzip")
        file["labels"] = np.array([b"cat", b"cat", b"dog", b"dog"])
        file["epoch"] = 7
        file["paths"] = np.array(IDS, "S")
    return read_user_features(folder / "f.hdf5")


def of_pt(folder: Path) -> UserFeatures:
    tensors = {"early": torch.from_numpy(EARLY), "deep": torch.from_numpy(DEEP), "labels": torch.from_numpy(LABELS)}
    torch.save({**tensors, "paths": IDS, "model": "resnet50"}, folder / "f.pt")
    return read_user_features(folder / "f.pt")


def of_a_nested_pth(folder: Path) -> UserFeatures:
    """numpy's arrays in a dict, and the labels beside it."""
    torch.save({"features": {"early": EARLY, "deep": DEEP}, "y": LABELS.tolist(), "ids": IDS}, folder / "f.pth")
    return read_user_features(folder / "f.pth")


def of_npy(folder: Path) -> UserFeatures:
    np.save(folder / "early.npy", EARLY)
    np.save(folder / "deep.npy", DEEP)
    (folder / "labels.txt").write_text("\ufeffcat\r\ncat\r\ndog\r\ndog\r\n", encoding="utf-8", newline="")
    return read_user_features(folder / "early.npy", folder / "deep.npy", labels=folder / "labels.txt")


@pytest.mark.parametrize("read", [of_npz, of_h5, of_a_compressed_group, of_pt, of_a_nested_pth, of_npy])
def test_all_formats_give_the_same_features(read: Callable[[Path], UserFeatures], tmp_path: Path) -> None:
    given = read(tmp_path)
    assert [str(layer) for layer in given.features] == ["early", "deep"]
    for layer, values in zip(given.features.values(), (EARLY, DEEP), strict=True):
        np.testing.assert_array_equal(layer, values)
    assert given.labels.tolist() == [0, 0, 1, 1]
    assert given.ids == (None if read is of_npy else tuple(IDS))
    assert read is not of_npy or given.file == tmp_path  # that of several files


def test_a_plain_tensor_is_one_layer(tmp_path: Path) -> None:
    torch.save(torch.from_numpy(DEEP), tmp_path / "layer4.pt")
    np.save(tmp_path / "y.npy", LABELS[:, None])
    given = read_user_features(tmp_path / "layer4.pt", labels=tmp_path / "y.npy")
    assert ([str(layer) for layer in given.features], given.labels.tolist()) == (["layer4"], [0, 0, 1, 1])


def test_bfloat16_is_read_as_float32(tmp_path: Path) -> None:
    torch.save({"deep": torch.from_numpy(DEEP).bfloat16(), "labels": torch.from_numpy(LABELS)}, tmp_path / "f.pt")
    (values,) = read_user_features(tmp_path / "f.pt").features.values()
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, DEEP, rtol=2**-8)  # 8 bits of a significand, the first implied


def test_layers_of_a_file_that_HDF5_sorts_are_in_natural_order(tmp_path: Path) -> None:  # noqa: N802 - its name
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for name in ("block10", "block9", "block11"):
            file[name] = DEEP
        file["labels"] = LABELS
    given = read_user_features(tmp_path / "f.h5")
    assert [str(layer) for layer in given.features] == ["block9", "block10", "block11"]
    assert given.notes == ("layers are in the order of their names",)


def linked(file: h5py.File) -> None:
    file["deep"] = h5py.SoftLink("/labels")


def linked_out(file: h5py.File) -> None:
    file["deep"] = h5py.ExternalLink("other.h5", "deep")


def stored_outside(file: h5py.File) -> None:
    file.create_dataset("deep", DEEP.shape, "f4", external="deep.raw")


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout(DEEP.shape, "f4")
    layout[:] = h5py.VirtualSource("other.h5", "deep", DEEP.shape)
    file.create_virtual_dataset("deep", layout)


def group_of_each_image(file: h5py.File) -> None:
    for row, name in enumerate(IDS):
        file[f"db/{name}/descriptor"] = DEEP[row]


def without_labels(file: h5py.File) -> None:
    del file["labels"]
    file["features"], file["image_names"] = DEEP, np.array(IDS, "S")


def of_records(file: h5py.File) -> None:
    file["deep"] = np.zeros(4, [("x", "f4"), ("y", "f4")])


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (linked, "deep is a link or a type, which is not read"),
        (linked_out, "deep is a link or a type, which is not read"),
        (stored_outside, "deep is stored in another file, which is not read"),
        (virtual, "deep is stored in another file, which is not read"),
        (group_of_each_image, "db/a is a group in a group"),
        (without_labels, r"no array `labels`: it has features \(4, 3\), image_names \(4,\)\. .* by --labels"),
        (of_records, r"array deep has shape \(4,\), not \(N, D\)"),
    ],
)
def test_what_is_ambiguous_or_outside_of_an_h5_file_is_told(
    write: Callable[[h5py.File], None], message: str, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["deep"] = DEEP
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["labels"] = LABELS
        write(file)
    with pytest.raises(DataError, match=message) as told:
        read_user_features(tmp_path / "f.h5")
    assert "elete" not in told.value.message + told.value.fix


@pytest.mark.parametrize("content", [b"", b"\x89HDF\r\n\x1a\n truncated", b"text"])
@pytest.mark.parametrize("name", ["f.h5", "f.hdf5", "f.pt", "f.npy", "f.npz"])
def test_nobody_is_told_to_delete_a_damaged_file(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "labels.txt").write_text("a\nb\n", encoding="utf-8")
    with pytest.raises(DataError, match="cannot be read|not a readable") as told:
        read_user_features(tmp_path / name, labels=tmp_path / "labels.txt")
    assert "numpy.savez" in told.value.fix
    assert "elete" not in told.value.message + told.value.fix


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("touched"),)


def test_no_code_of_a_torch_file_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"deep": torch.from_numpy(DEEP), "labels": Harmful()}, "f.pt")
    with pytest.raises(DataError, match=r"f\.pt: holds Python objects \(.*\), which are not read: they could run code"):
        read_user_features(Path("f.pt"))
    assert not Path("touched").exists()


def test_an_expanded_tensor_that_claims_more_than_fits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"deep": torch.zeros(4, 1).expand(4, 2**23), "labels": torch.from_numpy(LABELS)}, tmp_path / "f.pt")
    monkeypatch.setattr(memory, "free_memory", lambda: 100_000_000)
    with pytest.raises(EnvironmentFault, match=r"f\.pt: needs 134 MB of memory, 100 MB are free"):
        read_user_features(tmp_path / "f.pt")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"a": IDS, "b": IDS}, "several arrays of text: a, b. Call the one that names the rows `ids`"),
        ({"splits": ["train", "train", "test", "test"]}, "splits has the names of splits. Call it `split`"),
        ({"camera": LABELS}, r"array camera has shape \(4,\), not \(N, D\).* leave out what is none"),
    ],
)
def test_arrays_of_no_clear_role_are_told(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read_user_features(saved(tmp_path, a1=GOOD, labels=LABELS, **more))


def test_texts_of_N_rows_are_ids_and_others_are_left_out(tmp_path: Path) -> None:  # noqa: N802 - a size
    path = saved(tmp_path, a=GOOD, labels=LABELS, filenames=IDS, breed=["x"] * 4, class_names=["cat", "dog"])
    given = read_user_features(path)
    assert (given.ids, given.notes) == (tuple(IDS), ("left out: class_names",))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_called_so(tmp_path: Path) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    for content in ({"deep": nested, "labels": torch.from_numpy(LABELS)}, {"layers": {"deep": nested}}, nested):
        torch.save(content, tmp_path / "f.pt")
        with pytest.raises(DataError, match=r"f\.pt: holds a nested tensor, whose rows differ in length"):
            read_user_features(tmp_path / "f.pt")


@pytest.mark.parametrize(("factor", "largest"), [(1e200, "2e\\+200"), (1e-200, "2e-200")])
def test_numbers_whose_squares_leave_float64_are_not_called_collapsed(
    tmp_path: Path, factor: float, largest: str
) -> None:
    path = saved(tmp_path, a=factor * np.array([[1, 0], [1.1, 0], [0, 1], [-2, 1]]), labels=LABELS)
    with pytest.raises(NumericError, match=f"array a: the largest number is {largest}, whose square leaves the range"):
        read_user_features(path)


def test_a_row_that_is_not_finite_is_named(tmp_path: Path) -> None:
    broken = np.where(np.arange(4)[:, None] == 2, np.inf, GOOD)
    path = saved(tmp_path, a=broken, labels=LABELS, filenames=IDS)
    with pytest.raises(NumericError, match=r"array a: 1 of 4 feature rows hold NaN or Inf, first in row 2 \(a/1.jpg\)"):
        read_user_features(path)


def test_a_number_a_row_of_another_name_is_not_taken_for_labels(tmp_path: Path) -> None:
    assert read_user_features(saved(tmp_path, a=GOOD, target=LABELS)).notes == ("labels are `target`",)
    for arrays in ({"camera": LABELS}, {"y": LABELS, "target": LABELS}, {"y": np.eye(4)}):
        with pytest.raises(DataError, match="no array `labels`"):
            read_user_features(saved(tmp_path, a=GOOD, **arrays))


def test_one_hot_labels_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"labels has shape \(4, 2\), not \(N,\)\. .* labels\.argmax\(1\)"):
        read_user_features(saved(tmp_path, a=GOOD, labels=np.eye(2)[LABELS]))


@pytest.mark.parametrize(
    ("files", "content", "message"),
    [
        (["f.npz"], "a\na\nb\nb\n", r"f\.npz: it has labels of its own\. Leave out --labels"),
        (["early.npy"], "a\na\n\nb\n", r"labels\.txt:3: no label\. Write one label a line"),
        (["early.npy"], "a\na\nb\n", r"array early has 4 rows and labels 3"),
        (["early.npy", "f.npz"], "a\na\nb\nb\n", r"early\.npy and 1 more\. Name one file, or a \.npy for each layer"),
        (["early.npy", "more/early.npy"], "a\na\nb\nb\n", "two files have one name"),
    ],
)
def test_labels_that_do_not_fit_are_told(files: list[str], content: str, message: str, tmp_path: Path) -> None:
    of_npz(tmp_path)
    of_npy(tmp_path)
    (tmp_path / "more").mkdir()
    np.save(tmp_path / "more" / "early.npy", EARLY)
    (tmp_path / "labels.txt").write_text(content, encoding="utf-8")
    with pytest.raises(LayerprobeError, match=message):
        read_user_features(*(tmp_path / file for file in files), labels=tmp_path / "labels.txt")


def test_an_array_or_the_folders_in_the_names_of_classes_are_the_units(tmp_path: Path) -> None:
    names = ["x/a", "x/a", "x/b", "y/c"]
    path = saved(tmp_path, a=GOOD, labels=names, family=[7, 7, 7, 5], group=["p", "p", "q", ""], ids=[*"abcd"])
    by_family = read_user_features(path, cluster="family")
    assert by_family.units.tolist() == [1, 1, 1, 0]
    assert (by_family.ids, list(map(str, by_family.features))) == (("a", "b", "c", "d"), ["a"])
    path = saved(tmp_path, a=GOOD, labels=names, group=["p", "p", "q", ""])
    by_group = read_user_features(path, cluster="group")
    assert by_group.groups is not None
    assert by_group.units.tolist() == by_group.groups.tolist()
    assert read_user_features(path, cluster="parent").units.tolist() == [0, 0, 0, 1]
    assert read_user_features(path).units.tolist() == [0, 0, 1, 2]


def test_the_folders_are_known_of_a_feature_file_and_of_labels_beside_an_array(tmp_path: Path) -> None:
    layer = LayerKey("fc6", "none")
    key, columns = store.FeatureKey("run", 5, "test", "w", "resize", "m"), store.Columns({layer: 3}, "cpu", 4)
    rows = store.Rows(np.array([3, 3, 0, 1]), [*"abcd"], ("x/a", "x/b", "z", "y/c"))
    store.write_features(tmp_path / "f.h5", key, rows, columns, [{layer: GOOD}])
    assert read_user_features(tmp_path / "f.h5", cluster="parent").units.tolist() == [0, 0, 1, 1]
    assert read_user_features(tmp_path / "f.h5").class_names == ("x/a", "x/b", "y/c")
    np.save(tmp_path / "a.npy", GOOD)
    (tmp_path / "labels.txt").write_text("x/a\nx/b\ny/c\ny/c\n", encoding="utf-8")
    found = read_user_features(tmp_path / "a.npy", labels=tmp_path / "labels.txt", cluster="parent")
    assert found.units.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("labels", "cluster", "message"),
    [
        (LABELS, "famly", "unknown array in --cluster: 'famly'. Did you mean 'family'"),
        (LABELS, "a", "unknown array in --cluster: 'a'"),
        (LABELS, "parent", "no class has a folder above its own. Leave --cluster out, or name a column: family"),
        (LABELS, "family", "clusters has 3 rows and labels 4"),
    ],
)
def test_what_is_no_column_is_no_cluster(tmp_path: Path, labels: Any, cluster: str, message: str) -> None:
    family = ["p", "p", "q", "q"][: 3 if "3 rows" in message else 4]
    with pytest.raises(LayerprobeError, match=re.escape(message)):
        read_user_features(saved(tmp_path, a=GOOD, labels=labels, family=family), cluster=cluster)
