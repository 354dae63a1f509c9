from __future__ import annotations

from pathlib import Path

import pytest

from layerprobe.data import market1501
from layerprobe.data.market1501 import load
from layerprobe.data.spec import Count
from layerprobe.data.splits import Dataset, require_retrieval
from layerprobe.system.errors import DataError
from tests.data import fabricated

SMALL = {"train": Count(8, 3), "test": Count(4, 3), "gallery": Count(13, 4)}
NAME = "Market-1501-v15.09.15"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    fabricated.market(tmp_path)
    return tmp_path


def small(root: Path) -> Dataset:
    return market1501._load(root, SMALL)


@pytest.mark.parametrize("place", [".", NAME, "market1501", f"market1501/{NAME}"])
def test_every_layout_gives_the_same_images(tmp_path: Path, place: str) -> None:
    fabricated.market(tmp_path / place)
    splits = small(tmp_path).splits
    assert splits["train"].ids[:2] == (
        "bounding_box_train/0002_c1s1_000051_00.jpg", "bounding_box_train/0002_c1s1_000151_01.jpg",
    )  # fmt: skip
    assert splits["gallery"].image(0).shape == (40, 40, 3)


def test_queries_are_searched_in_a_gallery_with_distractors_and_without_junk(copy: Path) -> None:
    dataset = require_retrieval(small(copy), source=copy)
    assert dataset.search_in == {"test": "gallery"}
    assert dataset.class_names == ("2", "7", "1500", "1", "3", "1501", "distractors")
    assert {name: split.labels.tolist() for name, split in dataset.splits.items()} == {
        "train": [0, 0, 0, 1, 1, 2, 2, 2],
        "test": [3, 3, 4, 5],
        "gallery": [6, 6, 6, 3, 3, 3, 3, 4, 4, 4, 5, 5, 5],
    }
    assert dataset.notes == ("3 junk images left out",)
    assert not [name for split in dataset.splits.values() for name in split.ids if "-1_" in name]


def test_the_camera_is_a_column_and_the_default_group(copy: Path) -> None:
    splits = small(copy).splits
    assert splits["test"].columns == {"camera": ("1", "2", "1", "3")}
    assert splits["gallery"].columns["camera"] == tuple("1161125144333")
    for split in splits.values():
        assert all(f"_c{camera}s" in name for camera, name in zip(split.columns["camera"], split.ids, strict=True))
    assert market1501.SPEC.defaults == {"group": "camera"}


def test_a_copy_of_another_size_is_refused_unless_it_is_asked_for(copy: Path) -> None:
    (copy / "query/0003_c1s1_000051_00.jpg").unlink()
    with pytest.raises(DataError, match="test has 3 images of 2 classes .*, expected 4 images of 3 classes"):
        small(copy)
    dataset = market1501._load(copy, SMALL, allow_partial=True)
    assert dataset.notes == ("partial: 3 of 4 test images of 2 of 3 classes", "3 junk images left out")


def test_the_published_sizes_are_expected(copy: Path) -> None:
    with pytest.raises(DataError) as caught:
        load(copy)
    for size in ("12,936 images of 751 classes", "3,368 images of 750 classes", "15,913 images of 751 classes"):
        assert f"expected {size}" in str(caught.value)


@pytest.mark.parametrize("name", ["person.jpg", "0002c1s1_000051_00.jpg", "x0002_c1s1_000051_00.jpg"])
def test_an_image_with_another_name_is_refused(copy: Path, name: str) -> None:
    (copy / "query" / name).write_bytes(b"")
    with pytest.raises(DataError, match=f"query/{name}: the name says neither person nor camera; expected one like"):
        small(copy)


def test_an_unknown_layout_says_the_known_ones(copy: Path) -> None:
    (copy / "query").rename(copy / "queries")
    with pytest.raises(DataError, match=f"not all of bounding_box_train, query, .* Expected ROOT/ or ROOT/{NAME}/"):
        load(copy)
    with pytest.raises(DataError, match="absent: no such folder. Expected ROOT/"):
        load(copy / "absent")
