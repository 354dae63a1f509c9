from __future__ import annotations

import numpy as np
import pytest

from layerprobe.measure import nearest as module
from layerprobe.measure.analysis import Features
from layerprobe.measure.nearest import nearest_items
from layerprobe.system.errors import DataError
from layerprobe.values.retrieval import SearchRules


def on_circle(degrees: list[float], labels: list[int], prefix: str = "i") -> Features:
    angles = np.radians(degrees)
    values = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    return Features(values, np.array(labels), [f"{prefix}{row}" for row in range(len(labels))])


# images at 0, 10, 15 and 90 degrees, classes 0 0 1 1: their nearest are at 10, 15, 10 and 15
SPLIT = on_circle([0, 10, 15, 90], [0, 0, 1, 1])


def test_an_image_is_not_its_own_neighbour() -> None:
    rows, similarities, right = nearest_items(SPLIT, None, "cosine", 1, None)
    assert rows.tolist() == [[1], [2], [1], [2]]
    assert np.allclose(similarities[:, 0], np.cos(np.radians([10, 5, 5, 75])))
    assert right.tolist() == [[True], [False], [False], [True]]


def test_queries_are_searched_for_in_a_gallery() -> None:
    queries = on_circle([1, 80], [0, 0], prefix="q")
    rows, _, right = nearest_items(queries, SPLIT, "cosine", 1, None)
    assert (rows.tolist(), right.tolist()) == ([[0], [3]], [[True], [False]])


def test_a_single_searched_item_is_refused_with_what_is_needed() -> None:
    one = on_circle([0], [0])
    for queries, gallery in ((one, None), (on_circle([1, 80], [0, 0], prefix="q"), one)):
        with pytest.raises(DataError, match="one item is searched.*Give at least two images"):
            nearest_items(queries, gallery, "cosine", 1, None)


def test_a_query_that_the_rules_leave_nothing_has_no_neighbour_and_none_is_right() -> None:
    split = on_circle([0, 10, 15], [0, 0, 0])
    rows, _, right = nearest_items(split, None, "cosine", 1, SearchRules(groups=np.array([0, 0, 0])))
    assert (rows.tolist(), right.tolist()) == ([[-1]] * 3, [[False]] * 3)


def test_blocks_of_queries_give_what_one_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    split = Features(rng.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 4, [str(row) for row in range(40)])
    whole = nearest_items(split, None, "euclidean", 3, None)
    monkeypatch.setattr(module, "BLOCK_ROWS", 7)
    in_blocks = nearest_items(split, None, "euclidean", 3, None)
    assert all(np.array_equal(*pair) for pair in zip(whole, in_blocks, strict=True))


def test_a_gallery_of_the_queries_gives_what_the_queries_give() -> None:
    alone, among = (nearest_items(SPLIT, gallery, "cosine", 2, None) for gallery in (None, SPLIT))
    assert all(np.array_equal(*pair) for pair in zip(alone, among, strict=True))
