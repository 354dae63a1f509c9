from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from layerprobe.data import cub200
from layerprobe.data.cub200 import load
from layerprobe.data.image_files import fingerprint, stamps_of
from layerprobe.data.spec import Count
from layerprobe.data.splits import Dataset, manifest_sha256, require_retrieval
from layerprobe.system.errors import DataError
from tests.data import fabricated
from tests.data.fabricated import spread

SMALL = {"train": Count(12, 4, (3, 3)), "test": Count(12, 4, (3, 3))}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "CUB_200_2011"
    fabricated.cub(folder)
    return folder


def small(root: Path) -> Dataset:
    return cub200._load(root, SMALL)


@pytest.mark.parametrize("place", [".", "CUB_200_2011", "CUB_200_2011/CUB_200_2011"])
def test_the_set_is_found_wherever_it_lies_and_is_the_same(tmp_path: Path, place: str) -> None:
    fabricated.cub(tmp_path / "a" / place)
    fabricated.cub(tmp_path / "b")
    one, other = small(tmp_path / "a"), small(tmp_path / "b")
    for name in ("train", "test"):
        assert manifest_sha256(one.splits[name], one.class_names) == manifest_sha256(
            other.splits[name], other.class_names
        )


def test_a_classes_id_decides_its_split_and_not_the_official_flag(copy: Path) -> None:
    dataset = require_retrieval(small(copy), source=copy)
    names = [f"{c:03}.Bird_{c}" for c in fabricated.IDS]
    assert dataset.class_names == tuple(names)
    assert dataset.splits["train"].labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert dataset.splits["test"].labels.tolist() == [4] * 3 + [5] * 3 + [6] * 3 + [7] * 3
    assert dataset.notes == ()


def test_images_keep_the_lists_order_and_spelling(copy: Path) -> None:
    train = small(copy).splits["train"]
    assert train.ids[:3] == tuple(f"images/001.Bird_1/Bird_{name}" for name in ("99.jpg", "98.JPG", "97.jpg"))


def test_an_image_is_the_one_its_label_names(copy: Path) -> None:
    dataset = small(copy)
    for split in dataset.splits.values():
        for i, label in enumerate(split.labels.tolist()):
            assert split.ids[i].split("/")[1] == dataset.class_names[label]
            assert split.image(i).shape == (40, 40, 3)


def test_the_last_training_class_may_be_another(copy: Path) -> None:
    dataset = cub200._load(copy, {"train": Count(6, 2), "test": Count(18, 6)}, last_train_class=3)
    assert [split.num_classes for split in dataset.splits.values()] == [2, 6]


def test_the_classification_protocol_takes_the_official_split_and_says_so(copy: Path) -> None:
    counts = {"train": Count(8, 8), "test": Count(16, 8)}
    dataset = require_retrieval(cub200._load(copy, counts, protocol="classification"), source=copy)
    assert dataset.splits["train"].labels.tolist() == list(range(8))
    assert {name.split("_")[-1] for name in dataset.splits["train"].ids} == {"99.jpg"}
    assert dataset.notes == ("classification protocol: the official split, all 8 classes on both sides",)


def test_the_lists_of_the_whole_set_give_the_published_splits(tmp_path: Path) -> None:
    sizes = spread(range(1, 101), 5864, 41, 60) | spread(range(101, 201), 5924, 49, 60)
    fabricated.cub(tmp_path, sizes, train=5994, images=False)
    for protocol, expected in cub200._COUNTS.items():
        found = cub200._read_annotations(tmp_path, protocol).counts()
        assert {name: (c.images, c.classes) for name, c in found.items()} == {
            name: (c.images, c.classes) for name, c in expected.items()
        }
    retrieval = cub200._read_annotations(tmp_path, "retrieval").counts()
    assert {name: str(size) for name, size in retrieval.items()} == {
        "train": "5,864 images of 100 classes (41-60 each)",
        "test": "5,924 images of 100 classes (49-60 each)",
    }


def test_missing_images_and_every_splits_numbers_are_told_at_once(copy: Path) -> None:
    for path in [*sorted(copy.glob("images/101*/B*")), *sorted(copy.glob("images/120*/B*"))]:
        path.unlink()
    with pytest.raises(DataError) as caught:
        small(copy)
    named = ", ".join(f"images/101.Bird_101/Bird_{i}.jpg" for i in (99, 98, 97))
    assert str(caught.value) == (
        f"{copy}: 6 of 24 listed images are missing: {named}, images/120.Bird_120/Bird_99.jpg,"
        " images/120.Bird_120/Bird_98.jpg and 1 more; train has 12 images of 4 classes (3-3 each), expected 12 images"
        " of 4 classes (3-3 each); test has 6 images of 2 classes (3-3 each), expected 12 images of 4 classes (3-3"
        " each). Complete the copy, or use the partial copy by --set data.allow_partial=true."
    )


def test_a_partial_copy_goes_on_when_told_and_says_what_is_there(copy: Path) -> None:
    (copy / "images/101.Bird_101/Bird_98.jpg").unlink()
    dataset = cub200._load(copy, SMALL, allow_partial=True)
    assert dataset.notes == ("partial: 11 of 12 test images",)
    assert "images/101.Bird_101/Bird_98.jpg" not in dataset.splits["test"].ids
    assert len(dataset.splits["test"]) == 11


def test_the_public_loader_wants_the_whole_set(copy: Path) -> None:
    with pytest.raises(DataError, match=r"test has 12 images of 4 .*expected 5,924 images of 100 classes \(49-60 each"):
        load(copy)
    notes = load(copy, allow_partial=True).notes
    assert notes[1] == "partial: 12 of 5,924 test images of 4 of 100 classes"


def test_the_fingerprint_is_of_the_files_sizes(copy: Path) -> None:
    train = small(copy).splits["train"]
    assert train.fingerprint == fingerprint(stamps_of(copy, train.ids)[:, 0].tolist())


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("images.txt", "25", "images.txt:25: 1 cells in '25', expected <image_id> <path>"),
        ("images.txt", "x y.jpg", "images.txt:25: image_id is 'x', expected a whole number"),
        ("images.txt", "25 new.jpg", "image_class_labels.txt: image 25 of images.txt is not in it"),
        (
            "image_class_labels.txt",
            "25 1 2",
            "labels.txt:25: 3 cells in '25 1 2', expected <image_id> <class_",
        ),
        ("images.txt", "24 ../../etc/passwd", "a listed path leaves the data folder: 'images/../../etc/passwd'"),
        ("images.txt", "24 a\\b.jpg", "a listed path leaves the data folder"),
        ("images.txt", "24 a\0.jpg", "a listed path leaves the data folder"),
        ("images.txt", "24 far/b.jpg", "a link takes 'images/far' out of the data folder"),
        ("images.txt", "24 001.Bird_1/Bird_99.jpg", "1 images are listed twice: images/001.Bird_1/Bird_99.jpg"),
    ],
)
def test_bad_lists_are_refused(copy: Path, name: str, line: str, message: str) -> None:
    (copy / "images/far").symlink_to(copy.parent)
    kept = [row for row in (copy / name).read_text().splitlines() if row.split()[0] != line.split()[0]]
    (copy / name).write_text("\n".join([*kept, line, ""]))
    with pytest.raises(DataError) as caught:
        small(copy)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["images.txt", "image_class_labels.txt"])
def test_an_id_that_is_there_twice_is_refused(copy: Path, name: str) -> None:
    rows = (copy / name).read_text()
    (copy / name).write_text(rows + rows.splitlines()[3] + "\n")
    with pytest.raises(DataError, match=f"{name}: image_id .* is there twice"):
        small(copy)


def test_an_official_flag_is_0_or_1(copy: Path) -> None:
    (copy / "train_test_split.txt").write_text("1 2\n")
    with pytest.raises(DataError, match="train_test_split.txt:1: is_train is '2', expected 0 or 1. Get the file again"):
        cub200._load(copy, SMALL, protocol="classification")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda root: None,
            "no such folder. Expected ROOT/, ROOT/CUB_200_2011/ or ROOT/CUB",
        ),
        (lambda root: root.touch(), "not a folder. Expected ROOT/"),
        (lambda root: root.mkdir(), "no known layout: images.txt is not there. Expected ROOT/"),
        (lambda root: fabricated.write_lines(root / "images.txt", []), "image_class_labels.txt: cannot be read"),
    ],
)
def test_what_is_no_copy_is_told_the_layouts(tmp_path: Path, make: Callable[[Path], None], message: str) -> None:
    make(tmp_path / "x")
    with pytest.raises(DataError) as caught:
        small(tmp_path / "x")
    assert message in str(caught.value)


def test_nothing_is_written(copy: Path) -> None:
    before = sorted(copy.rglob("*"))
    small(copy).splits["train"].image(0)
    assert sorted(copy.rglob("*")) == before
