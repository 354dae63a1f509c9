from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from layerprobe.data.annotation_files import (
    Annotations,
    Member,
    dataset_of,
    every_image,
    read_rows,
    unchecked_loader,
    whole_number,
)  # fmt: skip
from layerprobe.data.spec import Count
from layerprobe.data.splits import ClassId, Dataset
from layerprobe.system.errors import DataError
from tests.data.fabricated import write_image

COLUMNS: Mapping[str, Callable[[str], Any]] = {"number": whole_number, "name": str}


def small(folder: Path, train: list[Member], test: list[Member], **names: str) -> Dataset:
    """All listed images, whatever the counts."""
    for name, _ in [*train, *test]:
        if not (folder / name).exists():
            write_image(folder / name, 1, 0)
    annotations = Annotations(folder, {"train": train, "test": test}, dict[ClassId, str](names.items()))
    return dataset_of(annotations, annotations.counts(), allow_partial=False)


@pytest.mark.parametrize(
    "text",
    [
        b"1 a\n2 b\n",
        b"\xef\xbb\xbf1 a\n2 b\n",
        b"1 a\r\n2 b\r\n",
        b"1   a  \n\n2\tb",
        b"1 a\n2 b\n\n",
    ],
    ids=["plain", "byte order mark", "CRLF", "padded", "blank line"],
)
def test_spellings_of_the_same_rows(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "x.txt").write_bytes(text)
    assert read_rows(tmp_path / "x.txt", COLUMNS) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"1 a\n\n2\n", "x.txt:3: 1 cells in '2', expected <number> <name>. Get the file again"),
        (b"1 a\n\xff b\n", "x.txt: not UTF-8. Get the file again"),
        (b"1 a\x00b c\n", r"x.txt:1: 3 cells in '1 a\x00b c'"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "x.txt").write_bytes(text)
    with pytest.raises(DataError) as caught:
        read_rows(tmp_path / "x.txt", COLUMNS)
    assert message in str(caught.value)


@pytest.mark.parametrize(("cells", "message"), [("x a", "number is 'x', expected a whole number"), ("1.5 a", "'1.5'")])
def test_a_bad_cell_is_named_with_what_is_expected(tmp_path: Path, cells: str, message: str) -> None:
    (tmp_path / "x.txt").write_text(f"1 a\n{cells}\n")
    with pytest.raises(DataError, match=f"x.txt:2: .*{message}"):
        read_rows(tmp_path / "x.txt", COLUMNS)


def test_a_file_that_ends_before_its_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(DataError, match="x.txt:2: the columns are '', expected 'number name'. Get the file again"):
        read_rows(tmp_path / "x.txt", COLUMNS, above=2)


def test_training_classes_are_the_first_numbers_though_their_ids_are_the_last(tmp_path: Path) -> None:
    dataset = small(tmp_path, [("a.jpg", 10), ("b.jpg", 9)], [("c.jpg", 2), ("d.jpg", 1)])
    assert dataset.class_names == dataset.class_ids == ("9", "10", "1", "2")
    assert dataset.splits["train"].labels.tolist() == [1, 0]
    assert dataset.splits["test"].labels.tolist() == [3, 2]


def test_classes_with_one_name_are_told_apart_by_their_ids(tmp_path: Path) -> None:
    dataset = small(tmp_path, [("a.jpg", "x"), ("b.jpg", "y")], [("c.jpg", "z"), ("d.jpg", "w")], x="A", y="B", z="A")
    assert dataset.class_names == ("A (x)", "B", "w", "A (z)")
    assert dataset.class_ids == ("x", "y", "w", "z")


def test_a_link_to_a_file_is_followed_and_a_folder_is_no_image(tmp_path: Path) -> None:
    write_image(tmp_path / "far.jpg", 1, 0)
    folder = tmp_path / "set"
    (folder / "b.jpg").mkdir(parents=True)
    (folder / "a.jpg").symlink_to(tmp_path / "far.jpg")
    (folder / "dangling.jpg").symlink_to(tmp_path / "gone.jpg")
    train: list[Member] = [("a.jpg", 1), ("b.jpg", 2), ("dangling.jpg", 3)]
    annotations = Annotations(folder, {"train": train}, {})
    with pytest.raises(DataError, match="2 of 3 listed images are missing: b.jpg, dangling.jpg; train has"):
        dataset_of(annotations, annotations.counts(), allow_partial=False)
    assert dataset_of(annotations, annotations.counts(), allow_partial=True).splits["train"].ids == ("a.jpg",)


def test_a_split_of_which_nothing_is_there_is_empty(tmp_path: Path) -> None:
    annotations = Annotations(tmp_path, {"train": [("a.jpg", 1)]}, {})
    dataset = dataset_of(annotations, {"train": Count(1, 1)}, allow_partial=True)
    assert dataset.splits["train"].labels.shape == (0,)
    assert dataset.notes == ("partial: 0 of 1 train images of 0 of 1 classes",)


def test_equal_sums_with_other_sizes_of_classes_are_not_the_set(tmp_path: Path) -> None:
    train: list[Member] = [("a.jpg", 1), ("b.jpg", 1), ("c.jpg", 1), ("d.jpg", 2)]
    for name, _ in train:
        write_image(tmp_path / name, 1, 0)
    annotations = Annotations(tmp_path, {"train": train}, {})
    with pytest.raises(DataError, match=r"train has 4 images of 2 classes \(1-3 each\), expected 4 .* \(2-2 each\)"):
        dataset_of(annotations, {"train": Count(4, 2, (2, 2))}, allow_partial=False)


def test_the_search_rule_of_the_lists_is_the_data_sets(tmp_path: Path) -> None:
    splits: dict[str, list[Member]] = {"test": [("a.jpg", 1)], "gallery": [("b.jpg", 1)]}
    annotations = Annotations(tmp_path, splits, search_in={"test": "gallery"})
    assert every_image(annotations).search_in == {"test": "gallery"}
    assert dataset_of(annotations, {}, allow_partial=True).search_in == {"test": "gallery"}


def test_an_image_that_is_listed_twice_is_one(tmp_path: Path) -> None:
    annotations = Annotations(tmp_path, {"train": [("a.jpg", 1), ("b.jpg", 2), ("a.jpg", 1)]})
    assert every_image(annotations).splits["train"].ids == ("a.jpg", "b.jpg")


def test_listed_paths_that_leave_the_folder_are_refused_even_unchecked(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="leaves the data folder"):
        unchecked_loader(lambda root: Annotations(root, {"train": [("../secret.jpg", 1)]}))(tmp_path)
