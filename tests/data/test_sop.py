from __future__ import annotations

from pathlib import Path

import pytest

from layerprobe.data import sop
from layerprobe.data.sop import load
from layerprobe.data.spec import Count
from layerprobe.data.splits import Dataset, manifest_sha256, require_retrieval
from layerprobe.system.errors import DataError
from tests.data import fabricated
from tests.data.fabricated import spread

SMALL = {"train": Count(12, 4, (3, 3)), "test": Count(12, 4, (3, 3))}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "Stanford_Online_Products"
    fabricated.sop(folder)
    return folder


def small(root: Path) -> Dataset:
    return sop._load(root, SMALL)


def test_the_set_is_found_from_itself_and_from_its_parent(copy: Path) -> None:
    one, other = small(copy), small(copy.parent)
    assert manifest_sha256(one.splits["test"], one.class_names) == manifest_sha256(
        other.splits["test"], other.class_names
    )


def test_the_files_are_the_split_and_keep_their_order(copy: Path) -> None:
    dataset = require_retrieval(small(copy), source=copy)
    assert dataset.class_names == ("1", "3", "57", "98", "101", "120", "160", "196")
    assert dataset.splits["train"].ids[:3] == tuple(f"chair_final/111081_{i}.JPG" for i in (3, 2, 1))
    assert dataset.splits["test"].labels.tolist() == [4] * 3 + [5] * 3 + [6] * 3 + [7] * 3


def test_an_image_is_the_one_its_label_names(copy: Path) -> None:
    dataset = small(copy)
    for split in dataset.splits.values():
        for i, label in enumerate(split.labels.tolist()):
            assert f"_final/11108{dataset.class_names[label]}_" in split.ids[i]
            assert split.image(i).shape == (40, 40, 3)


def test_the_lists_of_the_whole_set_give_the_published_splits(tmp_path: Path) -> None:
    sizes = spread(range(1, 11319), 59551, 2, 12) | spread(range(11319, 22635), 60502, 2, 12)
    fabricated.sop(tmp_path, sizes, tested_from=11319, images=False)
    found = sop._read_annotations(tmp_path).counts()
    assert {name: str(size) for name, size in found.items()} == {
        "train": "59,551 images of 11,318 classes (2-12 each)",
        "test": "60,502 images of 11,316 classes (2-12 each)",
    }
    assert found == sop._COUNTS


def test_the_public_loader_wants_the_whole_set(copy: Path) -> None:
    with pytest.raises(DataError, match=r"train has 12 images of 4 .*expected 59,551 images of 11,318 classes \(2-12"):
        load(copy)
    assert load(copy, allow_partial=True).notes == (
        "partial: 12 of 59,551 train images of 4 of 11,318 classes",
        "partial: 12 of 60,502 test images of 4 of 11,316 classes",
    )


def test_an_absent_second_list_is_named(copy: Path) -> None:
    (copy / "Ebay_test.txt").unlink()
    with pytest.raises(DataError, match="Ebay_test.txt: cannot be read"):
        small(copy)


def test_a_list_with_other_columns_is_refused(copy: Path) -> None:
    path = copy / "Ebay_train.txt"
    path.write_text(path.read_text().replace("image_id class_id", "class_id image_id"))
    with pytest.raises(
        DataError, match="_train.txt:1: the columns are 'class_id .*', expected 'image_id class_id super"
    ):
        small(copy)


def test_a_path_that_leaves_the_folder_is_refused(copy: Path) -> None:
    with (copy / "Ebay_train.txt").open("a") as stream:
        stream.write("13 98 1 /etc/passwd\n")
    with pytest.raises(DataError, match="a listed path leaves the data folder: '/etc/passwd'"):
        small(copy)


def test_a_lower_case_copy_is_missing_every_image(copy: Path) -> None:
    for path in copy.glob("*_final/1*.JPG"):
        path.rename(path.with_suffix(".jpeg"))
    with pytest.raises(DataError, match="24 of 24 listed images are missing: chair_final/111081_3.JPG, .* 19 more; tr"):
        small(copy)


def test_another_folder_is_told_the_layouts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no known layout: Ebay_train.txt is not there. Expected ROOT/ or ROOT/Stanf"):
        small(tmp_path)
