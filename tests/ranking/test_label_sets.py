"""Several labels an image: every number equals two loops, one pair at a time, where a shared label makes a pair."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layerprobe import nearest_neighbours, recall_at_k
from layerprobe.metrics.precision import precision_of_queries, reciprocal_ranks
from layerprobe.metrics.recall import chance_recall, positives_and_negatives
from layerprobe.ranking import nearest_positive_ranks, relevance, retrieval, search
from layerprobe.ranking.left_out import left_out_recall
from layerprobe.ranking.search import Search
from layerprobe.values.retrieval import SIMILARITIES, Ranks, SearchRules, Similarity
from tests.ranking.conftest import counts, window
from tests.ranking.test_relevance import Case, case, expected, judged, truth
from tests.ranking.test_search import Table


def with_labels(seed: int, similarity: Similarity, most: int = 14, **keywords: Any) -> Case:
    """A search whose classes are sets of up to three of four labels; some sets are alike, some share with none."""
    made, rng = case(seed, similarity, most, **keywords), np.random.default_rng([seed, 1])
    classes = np.unique(np.concatenate([made.labels, made.gallery_labels]))
    sets = [rng.choice(4, rng.integers(1, 4), replace=False) * 3 - 5 for _ in classes]
    pairs = [(label, one) for label, held in zip(classes, sets, strict=True) for one in held]
    return replace(made, rules=replace(made.rules, label_sets=rng.permutation(np.array(pairs))))


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_counts_equal_a_loop_over_pairs(similarity: Similarity) -> None:
    for seed in range(150):
        made = with_labels(seed, similarity)
        found = nearest_positive_ranks(made.features, made.labels, **made.keywords())
        assert counts(found) == truth(made), seed


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_disk_and_small_blocks_give_the_counts_of_a_loop(
    similarity: Similarity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "CELLS", 100)
    monkeypatch.setattr(relevance, "_CELLS", 100)
    for seed in range(1000, 1005):
        made = with_labels(seed, similarity, 70)
        keywords, wanted = made.keywords(), truth(made)
        assert counts(nearest_positive_ranks(made.features, made.labels, **keywords)) == wanted, seed
        by_parts = nearest_positive_ranks(made.features, made.labels, memory=1, **keywords)
        assert counts(by_parts) == wanted, seed
        on_disk = keywords if made.gallery is None else keywords | {"gallery": Table(made.gallery)}
        assert counts(nearest_positive_ranks(Table(made.features), made.labels, **on_disk)) == wanted, seed


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_map_r_precision_and_mrr_equal_their_definitions(similarity: Similarity) -> None:
    for seed in range(2000, 2030):
        made = with_labels(seed, similarity, 10)
        taken = retrieval(made.features, made.labels, **made.keywords())
        values, _ = precision_of_queries(taken)
        found = [values["MAP@R"], values["R-precision"], values["mAP"], reciprocal_ranks(taken.ranks)]
        wanted = [
            expected(left, window(query, made.searched, similarity))
            for query, left in zip(made.features, judged(made), strict=True)
        ]
        np.testing.assert_allclose(np.array(found).T, wanted, rtol=0, atol=1e-12, err_msg=str(seed))


def test_chance_is_the_mean_share_of_right_items() -> None:
    for seed in range(4000, 4100):
        made = with_labels(seed, "cosine")
        keywords = made.keywords()
        names = {name: keywords.get(name) for name in ("ids", "gallery_ids")}
        gallery = None if made.gallery is None else made.gallery_labels
        found = positives_and_negatives(made.labels, gallery, rules=made.rules, **names)
        kinds = [[right for _, right, _ in left] for left in judged(made)]
        assert found[0].tolist() == [kind.count(True) for kind in kinds], seed
        assert found[1].tolist() == [kind.count(False) for kind in kinds], seed
        if len(made.searched) > 1:
            chance = np.mean([kind.count(True) / max(1, len(kind)) for kind in kinds])
            assert chance_recall(made.labels, 1, gallery, rules=made.rules, **names) == pytest.approx(chance)


def test_neighbours_leave_out_items_that_share_a_label_and_the_group() -> None:
    for seed in range(3000, 3040):
        made = with_labels(seed, "cosine")
        keywords = made.keywords() | {"labels": made.labels}
        k = len(made.searched) - 1
        found = nearest_neighbours(made.features, k, backend="torch", **keywords)
        for left, indices in zip(judged(made), found.indices.tolist(), strict=True):
            there = {place for _, _, place in left}
            assert {place for place in indices if place >= 0} == there or len(there) > k, seed


# --- worked by hand

LINE = np.array([[1.0], [2.0], [4.0], [8.0], [16.0]])
# Classes a, b, a|b, c: rows a, b, a|b, c, b.
ROWS = np.array([0, 1, 2, 3, 1])
SETS = np.array([[0, 0], [1, 1], [2, 0], [2, 1], [3, 2]])


def test_an_item_is_right_if_it_shares_a_label() -> None:
    # From a at 1: b is closer than a|b at 4. From b at 2: a is closer than a|b, by 1 to 2. From a|b at 4: b at 2 is
    # nearest. c shares none and is lone. From b at 16: c at 8 is closer than a|b at 4.
    found = nearest_positive_ranks(LINE, ROWS, similarity="euclidean", rules=SearchRules(label_sets=SETS))
    assert counts(found) == [(1, 0, 1), (1, 0, 1), (0, 0, 1), (4, 0, 0), (1, 0, 1)]
    assert recall_at_k(LINE, ROWS, [1, 2], similarity="euclidean", rules=SearchRules(label_sets=SETS)) == {
        1: 0.2, 2: 0.8,
    }  # fmt: skip


def test_classes_that_share_no_label_are_searched_as_without_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(60, 4)), rng.integers(0, 6, 60)
    wanted = nearest_positive_ranks(features, labels)
    rules = SearchRules(label_sets=np.array([(label, one) for label in range(6) for one in (9 - label, 20 + label)]))
    monkeypatch.delattr(Search, "_counts_of_pairs")
    assert counts(nearest_positive_ranks(features, labels, rules=rules)) == counts(wanted)


def test_two_classes_of_one_and_the_same_label_are_one() -> None:
    rng = np.random.default_rng(1)
    features, labels = rng.normal(size=(40, 4)), rng.integers(0, 6, 40)
    rules = SearchRules(label_sets=np.array([(label, label // 2) for label in range(6)]))
    assert counts(nearest_positive_ranks(features, labels, rules=rules)) == counts(
        nearest_positive_ranks(features, labels // 2)
    )


def test_a_list_of_right_items_is_not_overruled() -> None:
    listed = SearchRules(positives=np.array([[0, 3], [3, 0]]))
    wanted = counts(nearest_positive_ranks(LINE, ROWS, similarity="euclidean", rules=listed))
    both = replace(listed, label_sets=SETS)
    assert counts(nearest_positive_ranks(LINE, ROWS, similarity="euclidean", rules=both)) == wanted


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (SETS[:-1], "label_sets: class 3 has no label"),
        (SETS[:, 0], r"label_sets: expected integers of shape \(5, 2\)"),
        (SETS + 0.5, "label_sets: expected integers"),
    ],
)
def test_sets_that_do_not_fit_are_refused(pairs: NDArray[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nearest_positive_ranks(LINE, ROWS, rules=SearchRules(label_sets=pairs))


def test_classes_that_share_labels_cannot_be_left_out() -> None:
    with pytest.raises(ValueError, match="share a label"):
        left_out_recall(LINE, ROWS, ROWS, rules=SearchRules(label_sets=SETS))


@pytest.mark.gpu
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_a_gpu_gives_the_same_counts(similarity: Similarity) -> None:
    for seed in range(5000, 5020):
        made = with_labels(seed, similarity)
        keywords, features = made.keywords(), torch.from_numpy(made.features).cuda()
        if made.gallery is not None:
            keywords |= {"gallery": torch.from_numpy(made.gallery).cuda()}
        found: Ranks = nearest_positive_ranks(features, made.labels, **keywords)
        assert counts(found) == truth(made), seed
