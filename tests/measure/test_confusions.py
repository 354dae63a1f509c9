from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from layerprobe.measure.confusions import NearestItem


def nearest(labels: ArrayLike, rows: ArrayLike, hits: ArrayLike, right_items: ArrayLike) -> NearestItem:
    """Of queries that are searched among themselves."""
    names = np.array(labels)
    return NearestItem(np.array(hits, float), np.array(rows), np.array(right_items), names, names)


def test_a_confusion_is_of_images_that_have_a_right_item() -> None:
    # class 5 has one image, and image 2 ties a right with a wrong item
    found = nearest([3, 3, 3, 4, 4, 5], [3, 3, 0, 0, 3, 0], [0, 0, 0.5, 0, 1, 0], [2, 2, 2, 1, 1, 0])
    assert {pair: rows.tolist() for pair, rows in found.confusions().items()} == {(3, 4): [0, 1], (4, 3): [3]}


def test_an_image_without_any_item_is_in_no_confusion() -> None:
    assert nearest([0, 0, 1], [-1, 0, 0], [0, 1, 0], [1, 1, 0]).confusions() == {}


def test_without_a_wrong_item_there_is_no_confusion() -> None:
    assert nearest([0, 0], [1, 0], [1, 1], [1, 1]).confusions() == {}
    assert nearest([0, 0], [1, 0], [1, 1], [1, 1]).two_names() == []


def test_a_class_divided_at_random_is_two_names() -> None:
    # four images under each of two names: of 7 others 4 have the other name, so 16/7 of 4 are expected to find it
    found = nearest([0] * 4 + [1] * 4, [4, 5, 1, 1, 0, 1, 5, 5], [0, 0, 1, 1] * 2, [3] * 8)
    assert found.two_names() == [(0, 1)]


def test_classes_that_find_each_other_less_often_are_two() -> None:
    # 1 of 4 is below half of 16/7
    found = nearest([0] * 4 + [1] * 4, [4, 2, 1, 1, 0, 1, 5, 5], [0, 1, 1, 1, 0, 0, 1, 1], [3] * 8)
    assert found.two_names() == []


def test_classes_that_also_find_a_third_one_are_two() -> None:
    labels = [0] * 4 + [1] * 4 + [2] * 2
    found = nearest(labels, [4, 5, 8, 1, 0, 1, 5, 5, 9, 8], [0, 0, 0, 1, 0, 0, 1, 1, 1, 1], [3] * 8 + [1] * 2)
    assert found.two_names() == []


def test_one_picture_under_two_names_is_found() -> None:
    found = nearest([0, 0, 1, 1], [2, 3, 0, 1], [0] * 4, [1] * 4)
    assert found.two_names() == [(0, 1)]
