from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerprobe.data.image_files import Files
from layerprobe.data.search_rules import Searching, read_searching, with_search_rules
from layerprobe.data.splits import Dataset, Image, Split
from layerprobe.data.subsets import with_share, with_validation
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError


def black(index: int) -> Image:
    return np.zeros((2, 2, 3), np.uint8)


def split(name: str, labels: str, cameras: str, first: str) -> Split:
    """An image for each letter of `labels`, its class; each letter of `cameras` is a camera, a blank is none."""
    ids = tuple(f"{first}/{i}" for i in range(len(labels)))
    numbers = np.array(["abcdef".index(label) for label in labels], np.int64)
    texts = tuple(camera.strip() for camera in cameras)
    return Split(name, numbers, ids, black, columns={"camera": texts, "number": ids})


@pytest.fixture
def dataset() -> Dataset:
    splits = (
        split("train", "aabb", "1112", "t"), split("test", "cde", "12 ", "q"), split("gallery", "ccdde", "213 1", "g")
    )  # fmt: skip
    return Dataset({s.name: s for s in splits}, tuple("abcdef"), {"test": "gallery"})


def of_files(root: Path, queries: tuple[str, ...], items: tuple[str, ...]) -> Dataset:
    """Queries and a gallery of files below a folder."""
    named = {"test": queries, "gallery": items}
    splits = {name: Split(name, np.zeros(len(ids), np.int64), ids, Files(root, ids)) for name, ids in named.items()}
    return Dataset(splits, ("a",), {"test": "gallery"})


def read(
    dataset: Dataset, *, group: str | None = None, positives: Path | None = None, ignore: Path | None = None
) -> Searching:
    right, ignored = (str(file) if file else None for file in (positives, ignore))
    return read_searching(dataset, group=group, positives=right, ignore=ignored)


def pairs(folder: Path, *rows: str, name: str = "pairs.csv", head: str = "query,item\n") -> Path:
    file = folder / name
    file.write_text(head + "".join(f"{row}\n" for row in rows))
    return file


def test_without_keys_there_are_no_rules(dataset: Dataset) -> None:
    found = with_search_rules(dataset, read_searching(dataset, group="", positives="", ignore=""))
    assert (found.search_rules, found.search_notes) == ({}, {})


def test_equal_texts_are_one_group_on_both_sides(dataset: Dataset) -> None:
    found = with_search_rules(dataset, read(dataset, group="camera"))
    assert found.search_notes == {"train": ("group: camera",), "test": ("group: camera",)}
    rules = found.search_rules["test"]
    assert rules.groups is not None
    assert rules.gallery_groups is not None
    same = rules.groups[:, None] == rules.gallery_groups
    queries, gallery = (dataset.splits[name].columns["camera"] for name in ("test", "gallery"))
    assert same.tolist() == [[bool(q) and q == g for g in gallery] for q in queries]
    itself = found.search_rules["train"]
    assert itself.gallery_groups is None
    assert itself.groups is not None
    assert len(set(itself.groups[:3])) == 1 != len(set(itself.groups))


def test_images_without_a_group_share_none(dataset: Dataset) -> None:
    blank = split("test", "ccd", "   ", "q")
    found = with_search_rules(Dataset({"test": blank}, tuple("abcdef")), Searching("camera"))
    groups = found.search_rules["test"].groups
    assert groups is not None
    assert len(set(groups.tolist())) == 3


def test_an_unknown_column_names_the_known_ones(dataset: Dataset) -> None:
    with pytest.raises(
        UnknownNameError, match="column in data.group: 'camra'. Did you mean 'camera'. Known: camera, n"
    ):
        read(dataset, group="camra")
    bare = replace(dataset, splits={name: replace(s, columns={}) for name, s in dataset.splits.items()})
    with pytest.raises(RecipeError, match="data.group = 'camera': nothing is known of these images but their classes"):
        read(bare, group="camera")


def test_lists_are_rows_of_the_queries_and_of_what_they_are_searched_in(dataset: Dataset, tmp_path: Path) -> None:
    positives = pairs(tmp_path, "q/0,g/4", "q/2,g/0", "q/0,g/4", "./q/2,g//1", name="easy.csv")
    ignore = pairs(tmp_path, "q/1, g/3 ", "t/0,t/2", "", name="junk.csv", head="\ufeffquery,item\n")
    found = with_search_rules(dataset, read(dataset, positives=positives, ignore=ignore))
    test, train = found.search_rules["test"], found.search_rules["train"]
    assert test.positives is not None
    assert test.positives.tolist() == [[0, 4], [2, 0], [2, 1]]
    assert test.ignored is not None
    assert test.ignored.tolist() == [[1, 3]]
    assert train.ignored is not None
    assert train.ignored.tolist() == [[0, 2]]
    assert (train.positives, train.groups, test.groups) == (None, None, None)
    assert found.search_notes == {"train": ("ignore: junk.csv",), "test": ("positives: easy.csv", "ignore: junk.csv")}


@pytest.mark.parametrize(
    "text",
    [
        "query,item\n{root}/q/0.png,g\\1.png\n",
        "Query;Item\nq\\0.png;{root}\\g\\1.png\n",
        "query\titem\r\n.\\q/0.png\tg//1.png\r\n",
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_lists_are_read_as_tables_are(tmp_path: Path, text: str, encoding: str) -> None:
    dataset = of_files(tmp_path, ("q/0.png",), ("g/0.png", "g/1.png"))
    (tmp_path / "list.csv").write_bytes(text.format(root=tmp_path).encode(encoding))
    rules = with_search_rules(dataset, read(dataset, positives=tmp_path / "list.csv")).search_rules["test"]
    assert rules.positives is not None
    assert rules.positives.tolist() == [[0, 1]]


def test_a_list_may_compose_names_otherwise_and_names_boxes(tmp_path: Path) -> None:
    composed, parted = (unicodedata.normalize(form, "q/\u00e9.png") for form in ("NFC", "NFD"))
    dataset = of_files(tmp_path, (parted,), ("g/0.png#0-0-4-5", "g/0.png#4-0-8-5"))
    positives = pairs(tmp_path, f"{composed},g/0.png#4-0-8-5")
    rules = with_search_rules(dataset, read(dataset, positives=positives)).search_rules["test"]
    assert rules.positives is not None
    assert rules.positives.tolist() == [[0, 1]]
    with pytest.raises(DataError, match="item 'g/0.png' is not among the gallery images.*such as 'g/0.png#0-0-4-5'"):
        read(dataset, positives=pairs(tmp_path, f"{parted},g/0.png"))


def test_pairs_of_images_that_are_left_out_are_left_out(dataset: Dataset, tmp_path: Path) -> None:
    train = split("train", "aaaabbbbeeeeffff", "1" * 16, "t")
    whole = replace(dataset, splits={**dataset.splits, "train": train})
    rows = [f"t/{i},t/{j}" for i in range(16) for j in range(16) if i != j]
    searching = read(whole, ignore=pairs(tmp_path, *rows))
    some = with_search_rules(with_share(with_validation(whole, 0.5), 0.5, seed=0), searching)
    for name in ("train", "validation"):
        ids, rules = some.splits[name].ids, some.search_rules[name]
        assert rules.ignored is not None
        named = {(ids[query], ids[item]) for query, item in rules.ignored}
        assert named == {(one, other) for one in ids for other in ids if one != other}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("q/9,g/0", r"pairs.csv:3: query 'q/9' is no image that is searched for. Write an image's id, such as 't/0'"),
        ("g/0,g/1", r"pairs.csv:3: query 'g/0' is no image that is searched for"),
        ("q/0,q/1", r"pairs.csv:3: item 'q/1' is not among the gallery images, in which test is searched. .*'g/0', or"),
        ("t/0,g/1", r"pairs.csv:3: item 'g/1' is not among the train images"),
        ("q/0", r"pairs.csv:3: 'q/0' is not a query and an item. Expected the columns query,item"),
        ("q/0,g/0,1", r"pairs.csv:3: 'q/0,g/0,1' is not a query and an item"),
        ("q/0,", r"pairs.csv:3: 'q/0,' is not a query and an item"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(dataset: Dataset, tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(dataset, positives=pairs(tmp_path, "q/0,g/0", row))


def test_a_query_of_two_splits_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    twice = replace(dataset, splits={**dataset.splits, "train": split("train", "aabb", "1112", "q")})
    with pytest.raises(DataError, match=r"pairs.csv:2: query 'q/0' is in train and test"):
        read(twice, ignore=pairs(tmp_path, "q/0,g/0"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "pairs.csv:1: the first line is ''. Expected the columns query,item"),
        (b"item,query\n", "pairs.csv:1: the first line is 'item,query'. Expected the columns query,item"),
        (b"query,item\nq/0,\xe4\n", "pairs.csv:2: not UTF-8"),
        (b'query,item\nq/0,"' + b"x" * 200_000, "pairs.csv:.*: field larger than field limit"),
    ],
)
def test_another_file_is_refused(dataset: Dataset, tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "pairs.csv").write_bytes(text)
    with pytest.raises(DataError, match=message):
        read(dataset, ignore=tmp_path / "pairs.csv")


def test_a_list_without_a_right_item_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    empty = pairs(tmp_path)
    with pytest.raises(DataError, match=r"pairs.csv: no right item is listed. List some"):
        read(dataset, positives=empty)
    assert with_search_rules(dataset, read(dataset, ignore=empty)).search_rules == {}


def test_an_absent_file_is_named(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="absent.csv: cannot be read"):
        read(dataset, ignore=tmp_path / "absent.csv")


def test_sets_of_labels_are_a_rule_of_every_search(dataset: Dataset) -> None:
    pairs = np.array([[label, label // 2] for label in range(6)])
    found = with_search_rules(replace(dataset, label_sets=pairs), read(dataset, group="camera"))
    assert {name: rules.label_sets is pairs for name, rules in found.search_rules.items()} == {
        "train": True, "test": True,
    }  # fmt: skip
    note = "several labels: right if one is shared, and classes, the units of intervals, are sets of labels"
    assert found.search_notes["test"] == ("group: camera", note)
    alone = with_search_rules(replace(dataset, label_sets=pairs), Searching())
    assert alone.search_notes["test"] == (note,)
