from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from layerprobe.data import cars196
from layerprobe.data.cars196 import load
from layerprobe.data.spec import Count
from layerprobe.data.splits import Dataset, Split, require_retrieval
from layerprobe.system.errors import DataError
from tests.data import fabricated
from tests.data.fabricated import cars_devkit, cars_named, cars_numbered, cars_one_folder, spread

SMALL = {"train": Count(12, 4, (3, 3)), "test": Count(12, 4, (3, 3))}
OFFICIAL = {"train": Count(8, 8, (1, 1)), "test": Count(16, 8, (2, 2))}
NAMED = (
    "Make 196 Coupe", "Make 194 Coupe", fabricated.SLASH, "Make 99 Coupe",
    "Make 96 Coupe", "Twin 2012 (120)", "Twin 2012 (160)", "Make 1 Coupe",
)  # fmt: skip
WITH_NAMES = [cars_one_folder, cars_devkit, cars_named]
Maker = Callable[[Path], None]


def small(root: Path) -> Dataset:
    return cars196._load(root, SMALL)


def colours(split: Split) -> list[int]:
    """The class id whose colour each image has: the one it was drawn with."""
    drawn = {c: np.random.default_rng(c).integers(0, 256, 3) for c in fabricated.IDS}
    means = [split.image(i).mean((0, 1)) for i in range(len(split))]
    grey = np.array([0.299, 0.587, 0.114])
    found = []
    for mean in means:
        by_distance = {
            c: abs(mean - (np.full(3, colour @ grey) if np.ptp(mean) < 1 else colour)).sum()
            for c, colour in drawn.items()
        }
        found.append(min(by_distance, key=lambda c: float(by_distance[c])))
    return found


@pytest.mark.parametrize("make", [*WITH_NAMES, cars_numbered])
def test_a_classes_id_decides_its_split_in_every_layout(tmp_path: Path, make: Maker) -> None:
    make(tmp_path)
    dataset = require_retrieval(small(tmp_path), source=tmp_path)
    names = tuple(map(str, fabricated.IDS)) if make is cars_numbered else NAMED
    assert dataset.class_names == names
    assert dataset.class_ids == tuple(map(str, fabricated.IDS))
    for split in dataset.splits.values():
        assert [fabricated.IDS[label] for label in split.labels.tolist()] == colours(split)
    assert dataset.notes == ()


@pytest.mark.parametrize("make", WITH_NAMES)
def test_the_classification_protocol_takes_the_official_split(tmp_path: Path, make: Maker) -> None:
    make(tmp_path)
    dataset = require_retrieval(cars196._load(tmp_path, OFFICIAL, protocol="classification"), source=tmp_path)
    assert sorted(dataset.splits["train"].labels.tolist()) == list(range(8))
    for split in dataset.splits.values():
        assert [fabricated.IDS[label] for label in split.labels.tolist()] == colours(split)
    assert dataset.notes == ("classification protocol: the official split, all 8 classes on both sides",)


def test_numbered_folders_have_no_official_split(tmp_path: Path) -> None:
    cars_numbered(tmp_path)
    with pytest.raises(DataError, match="folders named by number have no official split. Use another layout for data"):
        load(tmp_path, protocol="classification")


def test_the_last_training_class_may_be_another(tmp_path: Path) -> None:
    cars_numbered(tmp_path)
    dataset = cars196._load(tmp_path, {"train": Count(6, 2), "test": Count(18, 6)}, last_train_class=3)
    assert [split.num_classes for split in dataset.splits.values()] == [2, 6]


@pytest.mark.parametrize("make", WITH_NAMES)
def test_the_annotations_of_the_whole_set_give_the_published_splits(tmp_path: Path, make: Callable[..., None]) -> None:
    sizes = spread(range(1, 99), 8054, 59, 97) | spread(range(99, 197), 8131, 48, 136)
    make(tmp_path, sizes, train=8144, images=False)
    found = cars196._read_annotations(tmp_path, "retrieval").counts()
    assert {name: str(size) for name, size in found.items()} == {
        "train": "8,054 images of 98 classes (59-97 each)",
        "test": "8,131 images of 98 classes (48-136 each)",
    }
    assert found == cars196._COUNTS["retrieval"]
    flagged = cars196._read_annotations(tmp_path, "classification").counts()
    assert [(c.images, c.classes) for c in flagged.values()] == [(8144, 196), (8041, 196)]
    assert [str(c) for c in cars196._COUNTS["classification"].values()] == [
        "8,144 images of 196 classes", "8,041 images of 196 classes",
    ]  # fmt: skip


def test_of_196_numbered_folders_the_first_98_numbers_train(tmp_path: Path) -> None:
    for number in range(1, 197):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "x.jpg").touch()
    splits = cars196._read_annotations(tmp_path, "retrieval").splits
    assert [class_id for _, class_id in splits["train"]] == list(range(1, 99))


def test_hidden_and_other_files_in_numbered_folders_are_ignored(tmp_path: Path) -> None:
    cars_numbered(tmp_path)
    for name in ("._x.jpg", "Thumbs.db", ".DS_Store", "notes.txt"):
        (tmp_path / "1" / name).touch()
    assert small(tmp_path).splits["train"].ids[:3] == ("1/007.jpg", "1/008.JPG", "1/009.jpg")


def test_equal_names_in_the_devkits_folders_are_different_images(tmp_path: Path) -> None:
    cars_devkit(tmp_path)
    dataset = cars196._load(tmp_path, OFFICIAL, protocol="classification")
    assert dataset.splits["train"].ids[0] == "cars_train/00001.jpg"
    assert dataset.splits["test"].ids[0] == "cars_test/00001.jpg"


def test_the_devkits_test_classes_may_lie_in_it(tmp_path: Path) -> None:
    cars_devkit(tmp_path, labels="devkit")
    assert len(small(tmp_path).splits["test"]) == 12


def test_a_devkit_without_test_classes_says_which_file_has_them(tmp_path: Path) -> None:
    cars_devkit(tmp_path)
    (tmp_path / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(DataError, match="cars_test_annos_withlabels.mat is missing, and cars_test_annos.mat holds no"):
        small(tmp_path)


@pytest.mark.parametrize("line", ["", "  "])
@pytest.mark.parametrize("name", ["names.csv", "anno_train.csv", "anno_test.csv"])
def test_a_blank_last_line_is_no_row(tmp_path: Path, name: str, line: str) -> None:
    cars_named(tmp_path)
    with (tmp_path / name).open("a") as stream:
        stream.write(f"{line}\n")
    assert small(tmp_path).class_names == NAMED


@pytest.mark.parametrize("place", ["car_data/car_data", "car_data", "."])
def test_folders_of_names_may_be_nested(tmp_path: Path, place: str) -> None:
    cars_named(tmp_path, place=place)
    dataset = small(tmp_path)
    assert dataset.splits["train"].ids[0].split("/")[0] in ("train", "test")
    slashed = [name for name in dataset.splits["train"].ids if "Ram C-V Cargo Van Minivan 2012" in name]
    assert len(slashed) == 3


def test_a_list_without_the_folder_of_its_images_is_no_layout(tmp_path: Path) -> None:
    cars_one_folder(tmp_path)
    (tmp_path / "car_ims").rename(tmp_path / "cars")
    with pytest.raises(DataError, match="no known layout. Expected ROOT/ with cars_annos.mat and car_ims/; or dev"):
        small(tmp_path)


@pytest.mark.parametrize("make", [cars_one_folder, cars_numbered])
def test_the_public_loader_wants_the_whole_set(tmp_path: Path, make: Maker) -> None:
    make(tmp_path)
    with pytest.raises(DataError, match=r"train has 12 images of 4 .*expected 8,054 images of 98 classes \(59-97 each"):
        load(tmp_path)
    assert load(tmp_path, allow_partial=True).notes[1] == "partial: 12 of 8,131 test images of 4 of 98 classes"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<html>", "cars_annos.mat: not a MATLAB file that can be read"),
        ("", "cars_annos.mat: not a MATLAB file that can be read"),
        ("other", "cars_annos.mat: holds no annotations"),
        ("fields", "cars_annos.mat: annotations does not have relative_im_path, class, test for each image"),
        ("empty", "cars_annos.mat: annotations does not have relative_im_path, class, test for each image"),
    ],
)
def test_a_bad_matlab_file_is_told(tmp_path: Path, text: str, message: str) -> None:
    from scipy.io import savemat

    cars_one_folder(tmp_path)
    variables = {
        "other": {"x": 1},
        "fields": {"annotations": {"fname": "x"}},
        "empty": {"annotations": {"relative_im_path": np.empty((0, 0)), "class": 1, "test": 1}},
    }
    if text in variables:
        savemat(tmp_path / "cars_annos.mat", variables[text])
    else:
        (tmp_path / "cars_annos.mat").write_text(text)
    with pytest.raises(DataError) as caught:
        small(tmp_path)
    assert message in str(caught.value)


def test_a_matlab_file_cut_short_is_told(tmp_path: Path) -> None:
    cars_one_folder(tmp_path)
    content = (tmp_path / "cars_annos.mat").read_bytes()
    for length in (*range(256), *range(256, len(content), 997)):
        (tmp_path / "cars_annos.mat").write_bytes(content[:length])
        with pytest.raises(DataError) as caught:
            small(tmp_path)
        kinds = "not a MATLAB|holds no|annotations has not|truncated or broken"
        assert re.search(rf"cars_annos.mat: ({kinds}).* Get the file again\.$", str(caught.value))


def test_a_matlab_file_that_ends_within_its_table_is_truncated(tmp_path: Path) -> None:
    cars_one_folder(tmp_path)
    path = tmp_path / "cars_annos.mat"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"cars_annos.mat: truncated or broken \(could not .*\. Get the file again\.$"):
        small(tmp_path)


@pytest.mark.parametrize("name", ["cars_meta.mat", "cars_train_annos.mat"])
def test_a_matlab_file_that_the_devkit_lacks_is_named(tmp_path: Path, name: str) -> None:
    cars_devkit(tmp_path)
    (tmp_path / "devkit" / name).unlink()
    with pytest.raises(DataError, match=rf"devkit/{name}: no such file\. Complete the copy\.$"):
        small(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("00001.jpg,1,2,3,4,197", "anno_test.csv:17: class '197' is not in names.csv"),
        ("00001.jpg,1,2,3,4,x", "anno_test.csv:17: class 'x' is not in names.csv"),
        ("00001.jpg,1,2,3,4", "anno_test.csv:17: a line of 5 cells, expected 6"),
        ("../../x.jpg,1,2,3,4,1", "a listed path leaves the data folder: 'test/Make 196 Coupe/../../x.jpg'"),
        ("new.jpg,1,2,3,4,1", "1 of 25 listed images are missing: test/Make 196 Coupe/new.jpg"),
    ],
)
def test_bad_rows_are_refused(tmp_path: Path, line: str, message: str) -> None:
    cars_named(tmp_path)
    with (tmp_path / "anno_test.csv").open("a") as stream:
        stream.write(f"{line}\n")
    with pytest.raises(DataError) as caught:
        small(tmp_path)
    assert message in str(caught.value)


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="the file system refuses such names itself")
def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    cars_numbered(tmp_path)
    (tmp_path / "1" / "009.jpg").rename(os.fsdecode(os.fsencode(tmp_path) + b"/1/\xff.jpg"))
    with pytest.raises(DataError, match=r"a file name that is not UTF-8: '1/\\udcff.jpg'. Rename it"):
        small(tmp_path)


def test_names_with_umlauts_are_kept(tmp_path: Path) -> None:
    cars_numbered(tmp_path)
    (tmp_path / "1" / "009.jpg").rename(tmp_path / "1" / "ä.jpg")
    assert "1/ä.jpg" in small(tmp_path).splits["train"].ids


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cars_numbered(tmp_path)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(DataError, match="cannot be read .Permission denied"):
        small(tmp_path)


def test_an_absent_root_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="x: no such folder. Expected ROOT/ with cars_annos.mat"):
        load(tmp_path / "x")
