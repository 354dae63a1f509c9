from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.metrics.precision import precision_and_ranks
from layerprobe.ranking import levels, ranks, retrieval
from layerprobe.ranking.ranks import positive_levels
from layerprobe.values.retrieval import Retrieval, SearchRules

Array = NDArray[np.float64]


class OnDisk:
    """An array that only slices can be read of, as an HDF5 data set."""

    def __init__(self, rows: NDArray[Any]) -> None:
        self.rows, self.shape, self.dtype = rows, rows.shape, rows.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        if not isinstance(rows, slice):
            raise TypeError("slices only")
        return self.rows[rows]


def by_loops(
    queries: Array, labels: Any, gallery: Array, gallery_labels: Any, own: Any, rules: SearchRules | None
) -> Iterator[tuple[Array, list[int], list[int]]]:
    """Of each query the positives' cosines, closest first, and the negatives above and through each, in float64."""
    listed = [] if rules is None or rules.positives is None else [tuple(pair) for pair in rules.positives.tolist()]
    ignored = [] if rules is None or rules.ignored is None else [tuple(pair) for pair in rules.ignored.tolist()]
    unit, items = (x / np.where((n := np.linalg.norm(x, axis=1, keepdims=True)) == 0, 1, n) for x in (queries, gallery))
    for i in range(len(queries)):
        positives: list[float] = []
        negatives: list[float] = []
        for j in range(len(gallery)):
            same = labels[i] == gallery_labels[j]
            grouped = False
            if rules is not None and rules.groups is not None:
                groups = rules.groups if rules.gallery_groups is None else rules.gallery_groups
                grouped = same and rules.groups[i] == groups[j]
            if own[i] == j or grouped or (i, j) in ignored:
                continue
            right = (i, j) in listed if listed else same
            (positives if right else negatives).append(float(unit[i] @ items[j]))
        positives = sorted(positives, reverse=True)
        yield (
            np.array(positives),
            [sum(n > p + 1e-12 for n in negatives) for p in positives],
            [sum(n >= p - 1e-12 for n in negatives) for p in positives],
        )


def counted(made: Retrieval) -> list[tuple[Array, list[int], list[int]]]:
    found = []
    for some, _ in positive_levels(made):
        for start, end in zip(some.starts[:-1].tolist(), some.starts[1:].tolist(), strict=True):
            rows = slice(start, end)
            found.append((some.similarities[rows].numpy(), some.above[rows].tolist(), some.through[rows].tolist()))
    return found


def assert_equal_to_loops(made: Retrieval, gallery: Array | None = None) -> None:
    queries = np.asarray(getattr(made.features, "rows", made.features), np.float64)
    items = queries if gallery is None else gallery
    expected = by_loops(queries, made.labels, items, made.searched_labels, made.own, made.rules)
    for (similarities, above, through), (wanted, wanted_above, wanted_through) in zip(
        counted(made), expected, strict=True
    ):
        np.testing.assert_allclose(similarities, wanted, rtol=0, atol=1e-14)
        assert (above, through) == (wanted_above, wanted_through)


def rows_of(count: int, seed: int = 0, dim: int = 5) -> tuple[Array, NDArray[np.int64]]:
    """Rows of which many are the same as one of another class, and some zero; a class of one row."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 6, count)
    labels[3] = 9
    rows = rng.normal(size=(6, dim))[labels % 6] + rng.normal(size=(count, dim))
    copies = rng.integers(0, count, (2, count // 3))
    rows[copies[0]] = rows[copies[1]]
    rows[:2] = 0
    return rows.astype(np.float32).astype(np.float64), labels


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tiles, strips and parts."""
    for name in ("_TILE", "_SYMMETRIC_TILE"):
        monkeypatch.setattr(levels, name, 24)
    monkeypatch.setattr(levels, "_STRIP", 4)
    monkeypatch.setattr(levels, "_BAND", 10)
    monkeypatch.setattr(levels, "_PAIRS_AT_ONCE", 50)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("threads", [1, 3])
def test_negatives_around_positives_are_those_of_a_loop_in_float64(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    features, labels = rows_of(90)
    assert_equal_to_loops(retrieval(features, labels))


@pytest.mark.usefixtures("small")
def test_parts_of_the_queries_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_LEVELS", 200)
    monkeypatch.setattr("layerprobe.ranking.vectors._BLOCK", 90 * 4)
    features, labels = rows_of(90)
    made = retrieval(features, labels)
    assert len(list(positive_levels(made))) > 5
    assert_equal_to_loops(made)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("memory", [None, 1])
def test_a_gallery_on_disk_is_counted_block_by_block(memory: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerprobe.ranking.items.BLOCK_ROWS", 32)
    (features, labels), (gallery, gallery_labels) = rows_of(40), rows_of(110, seed=1)
    names = [str(i) for i in range(40)]
    made = retrieval(
        OnDisk(features),
        labels,
        gallery=OnDisk(gallery),
        gallery_labels=gallery_labels,
        ids=names,
        gallery_ids=[*names[20:], *(f"item {i}" for i in range(90))],
    )
    assert_equal_to_loops(replace(made, memory=memory), gallery)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("listed", [False, True])
def test_rules_say_which_items_are_positives_and_negatives(listed: bool) -> None:
    (features, labels), (gallery, gallery_labels) = rows_of(30), rows_of(60, seed=1)
    rng = np.random.default_rng(2)
    pairs = np.unique(np.stack([rng.integers(0, 30, 80), rng.integers(0, 60, 80)], 1), axis=0)
    rules = SearchRules(
        groups=rng.integers(0, 3, 30),
        gallery_groups=rng.integers(0, 3, 60),
        ignored=pairs[::2],
        positives=pairs if listed else None,
    )
    assert_equal_to_loops(
        retrieval(features, labels, gallery=gallery, gallery_labels=gallery_labels, rules=rules), gallery
    )


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_ranks_of_the_same_sweep_are_those_of_a_search(similarity: Any) -> None:
    features, labels = rows_of(90)
    pairs = np.unique(np.random.default_rng(3).integers(0, 90, (150, 2)), axis=0)
    for rules in (None, SearchRules(groups=np.arange(90) % 4, ignored=pairs), SearchRules(positives=pairs)):
        made = retrieval(features, labels, similarity=similarity, rules=rules)
        _, ranks_of_sweep = precision_and_ranks(made)
        assert (made.ranks.tied_positives == 0).any()  # lone queries
        for name in ("closer", "closer_high", "tied_negatives", "tied_positives"):
            np.testing.assert_array_equal(getattr(ranks_of_sweep, name), getattr(made.ranks, name))
        assert ranks_of_sweep.zeros == made.ranks.zeros


@pytest.mark.usefixtures("small")
def test_lone_queries_before_others_of_a_band_have_no_levels() -> None:
    features, labels = rows_of(90)
    labels[:9] = np.arange(-9, 0)
    assert_equal_to_loops(retrieval(features, labels))


@pytest.mark.usefixtures("small")
def test_collapsed_rows_all_tie() -> None:
    features, labels = np.ones((40, 3)), np.arange(40) % 4
    for _, above, through in counted(retrieval(features, labels)):
        assert (above, through) == ([0] * 9, [30] * 9)


@pytest.mark.usefixtures("small")
def test_similarities_a_hair_apart_are_told_apart_in_float64() -> None:
    # steps of 1e-11, ten tie windows, which float32 does not tell from each other
    gallery = 1 - np.arange(200)[:, None] * 1e-11
    labels = np.random.default_rng(0).integers(0, 2, 200)
    made = retrieval(np.ones((1, 1)), [0], gallery=gallery, gallery_labels=labels, similarity="dot")
    ((_, above, through),) = counted(made)
    wanted = [int(labels[:place].sum()) for place in np.flatnonzero(labels == 0)]
    assert above == through == wanted


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(3))
def test_bits_tie_where_as_many_differ(seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes, labels = rng.integers(0, 256, (60, 2)).astype(np.uint8), rng.integers(0, 5, 60)
    bits = np.unpackbits(codes, axis=1)
    for i, (_, above, through) in enumerate(counted(retrieval(codes, labels, similarity="hamming"))):
        differ = (bits != bits[i]).sum(1)
        positives = np.sort(differ[(labels == labels[i]) & (np.arange(60) != i)])
        negatives = differ[labels != labels[i]]
        assert above == [int((negatives < d).sum()) for d in positives]
        assert through == [int((negatives <= d).sum()) for d in positives]
