"""Groups, ignored pairs and listed positives: every number equals two loops, one pair at a time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layerprobe import nearest_neighbours, recall_at_k
from layerprobe.metrics.precision import precision_of_queries, reciprocal_ranks
from layerprobe.metrics.recall import chance_recall
from layerprobe.ranking import nearest_positive_ranks, neighbours, retrieval
from layerprobe.ranking import positives as module
from layerprobe.system.errors import NumericError
from layerprobe.values.retrieval import SIMILARITIES, Ranks, SearchRules, Similarity
from tests.ranking.conftest import Array, Labels, alike, counts, window
from tests.ranking.test_search import Table, choose_ways, small_tiles

KINDS = ("random", "small whole numbers", "duplicated", "collapsed", "zero rows")


@dataclass(frozen=True, eq=False)
class Case:
    """A search; `gallery` None for the queries among themselves, `own` the item that each query is."""

    features: NDArray[Any]
    labels: Labels
    gallery: NDArray[Any] | None
    gallery_labels: Labels
    own: list[int]
    similarity: Similarity
    rules: SearchRules

    @property
    def searched(self) -> NDArray[Any]:
        return self.features if self.gallery is None else self.gallery

    def keywords(self) -> dict[str, Any]:
        found: dict[str, Any] = {"similarity": self.similarity, "rules": self.rules}
        if self.gallery is None:
            return found
        found |= {"gallery": self.gallery, "gallery_labels": self.gallery_labels}
        if max(self.own) >= 0:
            names = [f"item {j}" for j in range(len(self.gallery))]
            ids = [names[j] if j >= 0 else f"query {i}" for i, j in enumerate(self.own)]
            found |= {"ids": ids, "gallery_ids": names}
        return found


def features_of(rng: np.random.Generator, n: int, d: int, similarity: Similarity) -> NDArray[Any]:
    kind = rng.choice(KINDS)
    if similarity == "hamming":
        return rng.integers(0, 256 if kind == "random" else 4, (n, 1 + d // 8)).astype(np.uint8)
    if kind == "small whole numbers":
        return rng.integers(-1, 2, (n, d)).astype(float)
    features: Array = rng.normal(size=(n, d))
    if kind == "duplicated":
        return features[rng.integers(max(1, n // 3), size=n)]
    if kind == "collapsed":
        return np.ones((n, d))
    if kind == "zero rows":
        features[rng.random(n) < 0.4] = 0
    return features


def pairs_of(rng: np.random.Generator, queries: int, items: int) -> Labels:
    chosen = np.argwhere(rng.random((queries, items)) < rng.choice([0.02, 0.2, 0.7]))
    return rng.permutation(chosen)


def case(seed: int, similarity: Similarity, most: int = 14, *, among_themselves: bool = False) -> Case:
    rng = np.random.default_rng(seed)
    n, g, d = int(rng.integers(2, most)), int(rng.integers(2, most)), int(rng.integers(1, 5))
    classes, groups = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    itself, named = among_themselves | bool(rng.integers(2)), bool(rng.integers(2))
    g = n if itself else g
    features = features_of(rng, n + g, d, similarity)
    labels, cameras = rng.integers(classes, size=n + g) * 5 - 7, rng.integers(groups, size=n + g)
    own = [int(j) for j in rng.permutation(np.arange(-max(n, 3), g))[:n]] if named else [-1] * n
    kept = rng.integers(0, 2, 3).astype(bool)
    rules = SearchRules(
        groups=cameras[:n] if kept[0] else None,
        gallery_groups=None if itself or not kept[0] else cameras[n:],
        ignored=pairs_of(rng, n, g) if kept[1] else None,
        positives=pairs_of(rng, n, g) if kept[2] else None,
    )
    return Case(
        features[:n],
        labels[:n],
        None if itself else features[n:],
        labels[:n] if itself else labels[n:],
        list(range(n)) if itself else [max(j, -1) for j in own],
        similarity,
        rules,
    )


def judged(made: Case) -> list[list[tuple[float, bool, int]]]:
    """Similarity, whether it is right, and place of every item that is not taken out, for each query."""
    rules, found = made.rules, []
    ignored, positives = (set(map(tuple, () if part is None else part)) for part in (rules.ignored, rules.positives))
    held = None if rules.label_sets is None else [*map(tuple, rules.label_sets.tolist())]
    groups = rules.groups
    gallery_groups = groups if made.gallery is None else rules.gallery_groups
    for i, query in enumerate(made.features):
        left = []
        for j, item in enumerate(made.searched):
            same = bool(made.labels[i] == made.gallery_labels[j])
            if held is not None:
                one, other = (
                    {label for c, label in held if c == at[k]} for at, k in ((made.labels, i), (made.gallery_labels, j))
                )
                same = bool(one & other)
            grouped = groups is not None and gallery_groups is not None and same and groups[i] == gallery_groups[j]
            if j == made.own[i] or grouped or (i, j) in ignored:
                continue
            right = same if rules.positives is None else (i, j) in positives
            left.append((alike(query, item, made.similarity), right, j))
        found.append(left)
    return found


def truth(made: Case) -> list[tuple[int, int, int]]:
    found = []
    for query, left in zip(made.features, judged(made), strict=True):
        wrong = [value for value, right, _ in left if not right]
        nearest = max((value for value, right, _ in left if right), default=None)
        if nearest is None:
            found.append((len(wrong), 0, 0))
            continue
        width = window(query, made.searched, made.similarity)
        tied = [right for value, right, _ in left if abs(value - nearest) <= width]
        found.append((sum(value > nearest + width for value in wrong), tied.count(False), tied.count(True)))
    return found


def check_counts(seeds: range, similarity: Similarity) -> None:
    for seed in seeds:
        made = case(seed, similarity)
        found = nearest_positive_ranks(made.features, made.labels, **made.keywords())
        assert counts(found) == truth(made), seed


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_counts_equal_a_loop_over_pairs(similarity: Similarity) -> None:
    check_counts(range(300), similarity)


@pytest.mark.slow
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_counts_equal_a_loop_over_pairs_in_many_cases(similarity: Similarity) -> None:
    check_counts(range(10_000, 15_000), similarity)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_disk_parts_and_tiles_give_the_counts_of_a_loop(
    similarity: Similarity, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_tiles(monkeypatch)
    monkeypatch.setattr(module, "BLOCK_ROWS", 16)
    monkeypatch.setattr(module, "_PAIRS_TOGETHER", 50)
    for seed in range(1000, 1005):
        made = case(seed, similarity, 70)
        keywords, wanted = made.keywords(), truth(made)
        assert counts(nearest_positive_ranks(made.features, made.labels, **keywords)) == wanted, seed
        by_parts = nearest_positive_ranks(made.features, made.labels, memory=1, **keywords)
        assert counts(by_parts) == wanted, seed
        on_disk = keywords if made.gallery is None else keywords | {"gallery": Table(made.gallery)}
        assert counts(nearest_positive_ranks(Table(made.features), made.labels, **on_disk)) == wanted, seed


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_open_intervals_hold_the_counts_of_a_loop(similarity: Similarity, monkeypatch: pytest.MonkeyPatch) -> None:
    small_tiles(monkeypatch)
    choose_ways(monkeypatch, lambda way: not way.exactly)
    ks, open_ = (1, 3), 0
    for seed in range(6000, 6010):
        made = case(seed, similarity, 70, among_themselves=True)
        keywords, wanted = made.keywords(), truth(made)
        some = nearest_positive_ranks(made.features, made.labels, resolve=ks, **keywords)
        closer, tied_negatives, tied_positives = np.array(wanted, np.int32).T
        exact = Ranks(closer, closer, tied_negatives, tied_positives)
        assert [some.recall(k) for k in ks] == [exact.recall(k) for k in ks], seed
        high = np.where(some.open(), closer + tied_negatives, closer)
        assert ((some.closer >= 0) & (some.closer <= closer) & (high <= some.closer_high)).all(), seed
        open_ += int(some.open().sum())
        known = nearest_positive_ranks(made.features, made.labels, previous_ranks=some, resolve="all", **keywords)
        assert counts(known) == wanted, seed
    assert open_ > 5


def expected(left: list[tuple[float, bool, int]], width: float) -> list[float]:
    """MAP@R, R-precision, mAP and MRR of one query: the mean over every order of each group of ties."""
    left = sorted(left, reverse=True)
    r = sum(right for _, right, _ in left)
    totals, reciprocal, start, hits = np.zeros(3), 0.0, 0, 0
    while start < len(left) and r:
        tied = [right for value, right, _ in left[start:] if value >= left[start][0] - width]
        orders = list(itertools.combinations(range(start + 1, start + 1 + len(tied)), sum(tied)))
        for places in orders:
            for found, place in enumerate(places, hits + 1):
                precision, early = found / place, place <= r
                totals += np.array([precision * early, early, precision]) / r / len(orders)
            reciprocal += 1 / places[0] / len(orders) if places and not hits else 0
        start, hits = start + len(tied), hits + sum(tied)
    return [*totals, reciprocal]


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_map_r_precision_and_mrr_equal_their_definitions(similarity: Similarity) -> None:
    for seed in range(2000, 2060):
        made = case(seed, similarity, 10)
        taken = retrieval(made.features, made.labels, **made.keywords())
        values, _ = precision_of_queries(taken)
        found = [values["MAP@R"], values["R-precision"], values["mAP"], reciprocal_ranks(taken.ranks)]
        wanted = [
            expected(left, window(query, made.searched, similarity))
            for query, left in zip(made.features, judged(made), strict=True)
        ]
        np.testing.assert_allclose(np.array(found).T, wanted, rtol=0, atol=1e-12, err_msg=str(seed))


@pytest.mark.gpu
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_a_gpu_gives_the_same_counts_and_neighbours(similarity: Similarity) -> None:
    for seed in range(5000, 5020):
        made = case(seed, similarity)
        keywords, features = made.keywords(), torch.from_numpy(made.features).cuda()
        if made.gallery is not None:
            keywords |= {"gallery": torch.from_numpy(made.gallery).cuda()}
        assert counts(nearest_positive_ranks(features, made.labels, **keywords)) == truth(made), seed
        found = nearest_neighbours(features, 1, backend="torch", labels=made.labels, **keywords)
        on_cpu = nearest_neighbours(made.features, 1, backend="torch", labels=made.labels, **made.keywords())
        assert (found.indices == on_cpu.indices).all(), seed


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_neighbours_are_never_taken_out(
    similarity: Similarity, backend: Literal["torch", "faiss"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "BLOCK_ROWS", 7)
    for seed in range(3000, 3040):
        monkeypatch.setattr(neighbours, "_SPARE", seed % 3)
        made = case(seed, similarity)
        k = 1 + seed % (len(made.searched) - 1)
        keywords = made.keywords() | {"labels": made.labels}
        found = nearest_neighbours(made.features, k, backend=backend, **keywords)
        for query, left, indices, similarities in zip(
            made.features, judged(made), found.indices.tolist(), found.similarities, strict=True
        ):
            near, width = {j: value for value, _, j in left}, window(query, made.searched, similarity)
            order: list[int] = []
            while len(order) < len(near):
                best = max(value for j, value in near.items() if j not in order)
                order += [j for j, value in near.items() if value >= best - width and j not in order]
            assert indices == [*order, *[-1] * k][:k], seed
            assert np.isneginf(similarities).tolist() == [j == -1 for j in indices]


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_chance_is_what_collapsed_features_score(similarity: Similarity) -> None:
    for seed in range(4000, 4030):
        made = case(seed, similarity)
        keywords = made.keywords()
        for name in ("ids", "gallery_ids"):
            keywords.pop(name, None)
        same = np.zeros((len(made.labels), 1), np.uint8), np.zeros((len(made.searched), 1), np.uint8)
        keywords |= {} if made.gallery is None else {"gallery": same[1]}
        if len(made.searched) > 1:
            found = recall_at_k(same[0], made.labels, [1], **keywords)[1]
            searched = None if made.gallery is None else made.gallery_labels
            assert chance_recall(made.labels, 1, searched, rules=made.rules) == pytest.approx(found, abs=1e-12)


def market(seed: int) -> tuple[Array, Labels, Labels, Array, Labels, Labels]:
    """Queries and gallery of 12 people in 4 cameras, half of the gallery distractors of person 0."""
    rng = np.random.default_rng(seed)
    people, cameras = rng.integers(1, 13, 30), rng.integers(1, 5, 30)
    searched, seen = np.append(rng.integers(1, 13, 60), np.zeros(60, int)), rng.integers(1, 5, 120)
    centres = rng.normal(size=(13, 8))
    return (
        centres[people] + rng.normal(size=(30, 8)),
        people,
        cameras,
        centres[searched] + rng.normal(size=(120, 8)),
        searched,
        seen,
    )


def test_market1501_takes_out_junk_and_the_same_person_in_the_same_camera() -> None:
    # Zheng et al., Scalable Person Re-identification: A Benchmark, ICCV 2015: images of the query's person in its
    # camera and badly cut ones (junk) are taken out of the ranking, distractors stay.
    for seed in range(8):
        features, people, cameras, gallery, searched, seen = market(seed)
        junk = np.flatnonzero(np.random.default_rng(seed).random(120) < 0.2)
        ignored = np.array([(i, j) for i in range(30) for j in junk])
        rules = SearchRules(groups=cameras, gallery_groups=seen, ignored=ignored)
        made = retrieval(features, people, gallery=gallery, gallery_labels=searched, rules=rules)
        first: list[bool] = []
        average: list[float] = []
        for query, person, camera in zip(features, people, cameras, strict=True):
            near = gallery @ query / np.linalg.norm(gallery, axis=1)
            order = [j for j in np.argsort(-near) if j not in junk and (searched[j] != person or seen[j] != camera)]
            right = searched[order] == person
            places = np.flatnonzero(right) + 1
            first.append(bool(right[0]))
            average.append(float(np.mean(np.arange(1, len(places) + 1) / places)) if len(places) else 0)
        assert made.ranks.recall(1) == pytest.approx(np.mean(first), abs=1e-12)
        np.testing.assert_allclose(precision_of_queries(made)[0]["mAP"], np.array(average), rtol=0, atol=1e-12)


# --- worked by hand


LINE = np.array([[1.0], [2.0], [3.0], [5.0], [8.0]])
SAME = np.zeros(5, np.int64)


def on_a_line(rules: SearchRules, labels: Any = (0, 0, 0, 1, 1)) -> list[tuple[int, int, int]]:
    return counts(nearest_positive_ranks(LINE, np.array(labels), similarity="euclidean", rules=rules))


def test_items_of_ones_class_and_group_are_neither_right_nor_wrong() -> None:
    # From 1 the items 2 and 3 are of its class, 2 of its group too: 3 is its nearest positive. From 3 both others of
    # its class are of the other group: 2 is nearest. 5 and 8 share class and group and are lone, with three wrong.
    assert on_a_line(SearchRules(groups=np.array([0, 0, 1, 0, 0]))) == [
        (0, 0, 1), (0, 0, 1), (0, 0, 1), (3, 0, 0), (3, 0, 0),
    ]  # fmt: skip


def test_an_item_of_another_class_is_not_taken_out_for_its_group() -> None:
    # From 2: 1 and 3 are equally near, one of its group and another class. With 1 ignored nothing ties.
    groups = np.zeros(5, int)
    assert on_a_line(SearchRules(groups=groups), [0, 1, 2, 3, 4]) == [(4, 0, 0)] * 5
    assert on_a_line(SearchRules(), [0, 1, 1, 3, 4])[1] == (0, 1, 1)
    assert on_a_line(SearchRules(ignored=np.array([[1, 0]])), [0, 1, 1, 3, 4])[1] == (0, 0, 1)


def test_listed_items_are_right_whatever_their_class() -> None:
    # From 1 only 5 is right: 2 and 3 of its class come before. From 8 nothing is right.
    found = on_a_line(SearchRules(positives=np.array([[0, 3], [1, 0], [1, 2]])))
    assert (found[0], found[1], found[4]) == ((2, 0, 1), (0, 0, 2), (4, 0, 0))


def test_what_is_taken_out_is_not_right_where_it_is_listed() -> None:
    pair, itself = np.array([[0, 3], [0, 1]]), np.array([[0, 0], [0, 3]])
    assert on_a_line(SearchRules(positives=pair, ignored=pair[1:]))[0] == (1, 0, 1)
    assert on_a_line(SearchRules(positives=pair, groups=np.zeros(5, int)))[0] == (0, 0, 1)
    assert on_a_line(SearchRules(positives=itself))[0] == (2, 0, 1)


def test_a_nan_is_told_with_rules_too() -> None:
    with pytest.raises(NumericError, match="1 of 5"):
        nearest_positive_ranks(LINE * [[1], [1], [np.nan], [1], [1]], [0] * 5, rules=SearchRules(groups=SAME))


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (SearchRules(groups=np.zeros(4, int)), r"groups: expected integers of shape \(5,\), got int64 of \(4,\)"),
        (SearchRules(groups=np.zeros(5)), "groups: expected integers"),  # type: ignore[arg-type] # the point
        (SearchRules(gallery_groups=np.zeros(5, int)), "gallery_groups need groups and a gallery"),
        (SearchRules(ignored=np.zeros((2, 3), int)), r"ignored: expected integers of shape \(2, 2\)"),
        (SearchRules(ignored=np.array([[0, 1], [5, 1]])), "ignored, row 1: query 5 is not one of 5, counted from 0"),
        (SearchRules(positives=np.array([[0, -1]])), "positives, row 0: item -1 is not one of 5"),
        (SearchRules(positives=np.array([[3, 1], [0, 2], [3, 1]])), "row 2: query 3 and item 1 stand in row 0, too"),
    ],
)
def test_rules_that_do_not_fit_are_told(rules: SearchRules, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        on_a_line(rules)


def test_groups_need_those_of_the_gallery_and_for_neighbours_the_classes() -> None:
    rules = SearchRules(groups=np.zeros(5, int))
    with pytest.raises(ValueError, match="groups need gallery_groups where a gallery is searched"):
        nearest_positive_ranks(LINE, [0] * 5, gallery=LINE, gallery_labels=[0] * 5, rules=rules)
    with pytest.raises(ValueError, match="features needs labels"):
        nearest_neighbours(LINE, 1, rules=rules)
