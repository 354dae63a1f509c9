from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from layerprobe.data.splits import IN_GALLERY, Dataset, Split
from layerprobe.system.errors import DataError
from layerprobe.values.retrieval import SearchRules
from layerprobe.workflow.probe import measures
from layerprobe.workflow.probe.measures import check_right_items, require_right_items, why_no_right_item


def no_image(_: int) -> np.ndarray:
    raise AssertionError("no image is read")


def dataset(test: Sequence[str], gallery: Sequence[str] = (), *, rules: SearchRules | None = None) -> Dataset:
    """Images of classes by their names, searched in themselves or in a gallery."""
    names = tuple(sorted({*test, *gallery}))
    splits = {
        name: Split(name, np.array([names.index(x) for x in of]), tuple(f"{name}{i}" for i in range(len(of))), no_image)
        for name, of in (("test", test), ("gallery", gallery))
        if of
    }
    return Dataset(
        splits,
        names,
        IN_GALLERY if gallery else {},
        search_rules={} if rules is None else {"test": rules},
        search_notes={} if rules is None else {"test": ("group: house",)},
    )


def test_one_query_with_a_right_item_is_enough() -> None:
    assert why_no_right_item(dataset(["a", "b", "b", "c"]), "test") == ""
    require_right_items(dataset(["a", "b", "b", "c"]), ["test"])


def test_classes_of_one_image_are_told() -> None:
    with pytest.raises(DataError, match="each of the 3 classes has one image, such as 'ant' and 'bee'"):
        require_right_items(dataset(["cat", "bee", "ant"]), ["test"])


@pytest.mark.parametrize(
    ("queries", "gallery", "difference"),
    [
        (["Ant", "Bee"], ["bee", "cow"], "case, such as 'Bee' and 'bee'"),
        (["00", "07"], ["0", "8"], "leading zeros, such as '00' and '0'"),
        (["7", "12"], ["12.0", "3.0"], "a trailing .0, such as '12' and '12.0'"),
        (["red fox", "owl"], ["redfox", "elk"], "spaces, such as 'red fox' and 'redfox'"),
        (["K\u00e4fer", "owl"], ["Ka\u0308fer", "elk"], "Unicode composition, such as 'Käfer'"),
    ],
)
def test_labels_in_another_spelling_are_told_with_the_difference(
    queries: list[str], gallery: list[str], difference: str
) -> None:
    why = why_no_right_item(dataset(queries, gallery), "test")
    shown = " and ".join(map(repr, sorted(queries)))
    assert f"labels of the queries ({shown})" in why
    assert f"are equal but for {difference}" in why


def test_disjoint_classes_are_named_on_both_sides() -> None:
    why = why_no_right_item(dataset(["q1", "q2", "q3"], ["g1", "g2"]), "test")
    assert why.endswith("labels of the queries ('q1' and 'q2') and of the gallery ('g1' and 'g2') share none")


def test_groups_that_take_every_right_item_out_are_named() -> None:
    rules = SearchRules(groups=np.array([4, 4, 7, 7]))
    why = why_no_right_item(dataset(["a", "a", "b", "b"], rules=rules), "test")
    assert why.endswith("group: house takes every right item out, such as all 1 of class 'a'")
    other = SearchRules(groups=np.array([4, 5, 7, 7]))
    assert why_no_right_item(dataset(["a", "a", "b", "b"], rules=other), "test") == ""


def test_a_query_that_is_alone_of_its_class_in_the_gallery_finds_nothing() -> None:
    of = dataset(["a", "b"], ["a", "b"])
    queries = of.splits["test"]
    same = Dataset(
        {"test": queries, "gallery": Split("gallery", queries.labels, queries.ids, no_image)}, ("a", "b"), IN_GALLERY
    )
    assert why_no_right_item(of, "test") == ""
    assert why_no_right_item(same, "test").endswith(
        "the gallery has of each class the query alone, such as of 'a' and 'b'"
    )


def test_listed_pairs_of_another_split_are_told() -> None:
    rules = SearchRules(positives=np.zeros((0, 2), np.int64))
    assert "none of the listed pairs is of test images" in why_no_right_item(dataset(["a", "a"], rules=rules), "test")


def test_shared_labels_are_right_items_and_need_no_count_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = dataset(["a|b", "b|c", "d|e"])
    pairs = np.array([[0, 0], [0, 1], [1, 1], [1, 2], [2, 3], [2, 4]])
    rules = {"test": SearchRules(label_sets=pairs)}
    shared = replace(sets, label_sets=pairs, search_rules=rules)
    apart = pairs.copy()
    apart[2, 1] = 5  # b of the second set is another label
    alone = replace(sets, label_sets=apart, search_rules={"test": SearchRules(label_sets=apart)})
    assert "each of the 3 classes has one image" in why_no_right_item(alone, "test")
    monkeypatch.setattr(measures, "count_items", lambda *_: pytest.fail("pairs are counted"))
    assert why_no_right_item(shared, "test") == ""


def test_training_images_without_a_right_item_are_told_and_no_error() -> None:
    both = dataset(["a", "a", "b"], ["c", "d"])
    trained = replace(both, splits={"test": both.splits["test"], "train": both.splits["gallery"]}, search_in={})
    (line,) = check_right_items(trained)
    assert line.startswith("no query of train has a right item to find: each of the 2 classes has one image")
    alone = replace(trained, splits={"train": trained.splits["train"]})
    with pytest.raises(DataError, match="no query of train"):
        check_right_items(alone)
