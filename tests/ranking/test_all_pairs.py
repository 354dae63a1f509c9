from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from layerprobe.ranking.all_pairs import AllPairs, Tile, all_pairs
from layerprobe.values.retrieval import SearchRules

ROWS = np.random.default_rng(0).normal(size=(9, 3))
LABELS = np.array([0, 0, 0, 1, 1, 1, 2, 2, 3])


def kinds(pairs: AllPairs) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """The genuine and the impostor pairs."""
    found: tuple[set[tuple[int, int]], set[tuple[int, int]]] = (set(), set())

    def add(tile: Tile) -> None:
        width = len(tile.columns)
        impostor = np.flatnonzero(tile.products > -np.inf)
        assert len(impostor) == tile.impostors
        for places, of in zip((tile.genuine, impostor), found, strict=True):
            of |= {(int(tile.rows[place // width]), int(tile.columns[place % width])) for place in places}

    pairs.sweep(add)
    return found


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerprobe.ranking.items.BLOCK_ROWS", 4)


def test_among_themselves_every_two_images_are_one_pair() -> None:
    genuine, impostor = kinds(all_pairs(ROWS, LABELS))
    assert genuine == {(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5), (6, 7)}
    assert genuine | impostor == {(i, j) for i in range(9) for j in range(i + 1, 9)}
    assert not genuine & impostor


def test_with_a_gallery_every_query_is_paired_with_every_item_but_itself() -> None:
    names = [str(i) for i in range(9)]
    pairs = all_pairs(ROWS[:2], LABELS[:2], gallery=ROWS, gallery_labels=LABELS, ids=names[:2], gallery_ids=names)
    genuine, impostor = kinds(pairs)
    assert genuine == {(0, 1), (0, 2), (1, 0), (1, 2)}
    assert impostor == {(i, j) for i in range(2) for j in range(3, 9)}


def test_lists_and_groups_hold_for_a_pair_in_either_order() -> None:
    rules = SearchRules(
        groups=np.array([0, 0, 1, 0, 1, 2, 0, 1, 0]),
        ignored=np.array([[8, 0], [1, 8]]),
        positives=np.array([[5, 0], [3, 4], [7, 6]]),
    )
    genuine, impostor = kinds(all_pairs(ROWS, LABELS, rules=rules))
    assert genuine == {(0, 5), (3, 4), (6, 7)}
    # 0 and 1 are of one class and group; (0, 8) and (1, 8) are ignored
    every = {(i, j) for i in range(9) for j in range(i + 1, 9)}
    assert impostor == every - genuine - {(0, 1), (0, 8), (1, 8)}


def test_images_that_share_a_label_are_genuine_pairs() -> None:
    # classes 0 and 3 share the label 7; 1 and 2 share 8, and 2 has 9 too
    rules = SearchRules(label_sets=np.array([[0, 7], [1, 8], [2, 9], [2, 8], [3, 7]]))
    genuine, impostor = kinds(all_pairs(ROWS, LABELS, rules=rules))
    sets = [0, 0, 0, 1, 1, 1, 1, 1, 0]
    assert genuine == {(i, j) for i in range(9) for j in range(i + 1, 9) if sets[i] == sets[j]}
    assert impostor == {(i, j) for i in range(9) for j in range(i + 1, 9) if sets[i] != sets[j]}


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
def test_similarities_have_the_scale_of_the_features(similarity: str) -> None:
    rows = ROWS * 1000
    pairs = all_pairs(rows, LABELS, similarity=similarity)  # type: ignore[arg-type] # text
    firsts: list[float] = []
    pairs.sweep(lambda tile: firsts.append(float(tile.exact(np.array([1]))[0])))
    expected = rows[0] @ rows[1] if similarity == "dot" else -np.linalg.norm(rows[0] - rows[1])
    assert pairs.in_user_units(firsts[0]) == pytest.approx(expected)


def test_images_of_two_folds_are_no_pair() -> None:
    folds = np.array([0, 0, 1, 0, 1, 2, 2, 2, 1])
    genuine, impostor = kinds(replace(all_pairs(ROWS, LABELS), folds=folds))
    assert genuine == {(0, 1), (6, 7)}
    assert impostor == {(0, 3), (1, 3), (2, 4), (2, 8), (4, 8), (5, 6), (5, 7)}
