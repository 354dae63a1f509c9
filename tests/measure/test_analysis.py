from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from layerprobe.measure.analysis import (
    Features,
    prepare_retrieval,
    query_values,
    rank,
    score_metric,
    score_thinned,
    search_sha256,
)
from layerprobe.metrics.classification import Prototypes, WeightedVotes
from layerprobe.metrics.geometry import Alignment
from layerprobe.metrics.metric import Metric
from layerprobe.metrics.precision import PrecisionAtPositives, ReciprocalRank
from layerprobe.system.errors import DataError
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.retrieval import Ranks, SearchRules
from layerprobe.values.scores import Subject

QUERIES = Features(np.array([[1.0, 0.0], [0.0, 1.0]], np.float32), np.array([0, 1]), ("a", "b"))
GALLERY = Features(np.array([[1, 0.1], [1, 0.2], [0.1, 1]], np.float32), np.array([0, 0, 1]), ("c", "d", "e"))
PAIRS = np.array([[0, 0], [0, 2], [1, 1]])


def test_without_rules_the_hash_is_that_of_rows_and_classes() -> None:
    told = b"lone queries count as misses" + b"\0\0" + np.array([0, 1]).tobytes() + b"a\0b"
    told += b"\0\0" + np.array([0, 0, 1]).tobytes() + b"c\0d\0e"
    for rules in (None, SearchRules()):
        assert search_sha256(QUERIES, GALLERY, rules) == hashlib.sha256(told).hexdigest()


def test_every_rule_changes_the_hash_and_the_order_of_a_list_does_not() -> None:
    rules = [
        None,
        SearchRules(groups=np.array([0, 1])),
        SearchRules(groups=np.array([0, 0])),
        SearchRules(groups=np.array([0, 1]), gallery_groups=np.array([0, 1, 0])),
        SearchRules(ignored=PAIRS),
        SearchRules(positives=PAIRS),
        SearchRules(positives=PAIRS[:2]),
        SearchRules(positives=PAIRS[:0]),
    ]
    assert len({search_sha256(QUERIES, GALLERY, one) for one in rules}) == len(rules)
    assert search_sha256(QUERIES, None, rules[4]) == search_sha256(QUERIES, None, SearchRules(ignored=PAIRS[::-1]))


def test_ranks_and_metrics_follow_the_rules() -> None:
    # By class both queries find their own first. With the list the first query's right item is c or e: c is taken out,
    # and e comes after d. The second query's is c, the third.
    rules = SearchRules(ignored=np.array([[0, 0]]), positives=np.array([[0, 0], [0, 2], [1, 0]]))
    ranks = rank(QUERIES, GALLERY, rules=rules)
    assert ranks.closer.tolist() == [1, 2]
    given = prepare_retrieval(QUERIES, GALLERY, "cosine", rank(QUERIES, GALLERY, ks=(1,), rules=rules), rules)
    assert ReciprocalRank()(given)["MRR"] == (1 / 2 + 1 / 3) / 2
    assert PrecisionAtPositives()(given)["mAP"] == (1 / 2 + 1 / 3) / 2


@pytest.mark.parametrize(("metric", "held"), [(WeightedVotes(1), 80), (Prototypes(1), 80), (Alignment(), 32)])
def test_what_holds_more_than_a_search_may_take_has_no_value(metric: Metric, held: int) -> None:
    ranked = RankedLayer(LayerKey("fc6", "none"), "none", "cosine")
    ranks, subject = rank(QUERIES, GALLERY), Subject("a", "a", 0, 1, "test", ranked)
    scored = [
        score_metric(metric, ("x",), prepare_retrieval(QUERIES, GALLERY, "cosine", ranks, memory=memory), subject)
        for memory in (held - 1, held)
    ]
    assert scored[0].scores[0].notes == ("it holds all features, 0 MB, and --memory is 0 MB",)
    assert not any("memory" in note for score in scored[1].scores for note in score.notes)


def test_the_values_of_queries_are_hits_or_what_is_stored() -> None:
    ranks = Ranks(*np.array([[0, 1, 2], [0, 1, 2], [0, 0, 0], [1, 1, 1]], np.int32))
    stored = {"mAP": np.array([1.0, 0.5, np.nan])}
    assert query_values(ranks, {}, "R@2").tolist() == [1, 1, 0]
    assert query_values(ranks, stored, "mAP") is stored["mAP"]
    with pytest.raises(DataError, match="no MRR of each query is stored"):
        query_values(ranks, stored, "MRR")


def test_ranks_that_are_open_at_a_k_have_no_hits_there() -> None:
    ranks = Ranks(*np.array([[0, 1], [0, 5], [0, 0], [1, 1]], np.int32))
    with pytest.raises(DataError, match="not exact for K = 4"):
        query_values(ranks, {}, "R@4")


def test_recall_in_a_smaller_gallery_says_which_queries_count_as_misses() -> None:
    closer = np.array([0, 3], np.int32)
    ranks = Ranks(closer, closer, np.zeros(2, np.int32), np.array([1, 0], np.int32))
    subject = Subject("run", "e", 0, 0, "test", RankedLayer(LayerKey("fc6", "none"), "none", "cosine"))
    items = np.array([1, 0]), np.array([2, 3])
    (score,) = score_thinned(ranks, subject, [1], 2, items).scores
    assert (score.value, score.notes) == (0.5, ("thinned by image", "1 lone queries count as misses"))


class OnDisk:
    """Rows of which only slices are read."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows, self.shape, self.dtype = rows, rows.shape, rows.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice) -> np.ndarray:
        assert isinstance(rows, slice)
        return self.rows[rows]


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, OnDisk], ids=["array", "tensor", "table"])
def test_some_features_are_those_of_their_rows_wherever_they_lie(kind: Callable[[np.ndarray], Any]) -> None:
    values = np.arange(20_000, dtype=np.float32).reshape(10_000, 2)
    labels, ids = np.arange(10_000), [str(row) for row in range(10_000)]
    rows = np.array([0, 7, 4095, 4096, 9_999])  # none of the rows from 8,192 to 9,998
    some = Features(kind(values), labels, ids).of_rows(rows)
    assert np.asarray(some.values).tolist() == values[rows].tolist()
    assert (some.labels.tolist(), list(some.ids)) == (rows.tolist(), [str(row) for row in rows.tolist()])
