from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layerprobe.measure import redraw
from layerprobe.measure.analysis import Features
from layerprobe.measure.redraw import groups_of, left_out_values
from layerprobe.metrics.classification import WeightedVotes
from layerprobe.metrics.metric import Metric, QueryMetric
from layerprobe.metrics.precision import PrecisionAtPositives, ReciprocalRank
from layerprobe.ranking import recall_at_k, retrieval
from layerprobe.system.errors import DataError
from layerprobe.values.retrieval import Retrieval, SearchRules

NAMES = ("MAP@R", "R-precision", "mAP")
Array = NDArray[Any]


def some_features(count: int, classes: int, seed: int = 0) -> Features:
    rng = np.random.default_rng(seed)
    values = rng.integers(-2, 3, (count, 3)).astype(np.float32)  # with ties
    return Features(values, rng.integers(classes, size=count), [f"{seed}/{row}" for row in range(count)])


def measured(features: Features, rows: Array) -> list[float]:
    values = np.asarray(features.values)[rows]
    made = retrieval(values, features.labels[rows])
    found = {**PrecisionAtPositives()(made), **ReciprocalRank()(made)}
    return [recall_at_k(values, features.labels[rows], [2])[2], *(found[name] for name in (*NAMES, "MRR"))]


@pytest.mark.parametrize("on", [np.asarray, torch.from_numpy])
def test_metrics_without_a_class_are_those_of_the_other_classes(on: Any) -> None:
    made = some_features(40, 5)
    found = left_out_values(
        Features(on(made.values), made.labels, made.ids),
        None,
        made.labels,
        ks=[2],
        metrics=[(PrecisionAtPositives(), NAMES), (ReciprocalRank(), ["MRR"])],
    )
    assert list(found) == ["R@2", *NAMES, "MRR"]
    for unit in range(5):
        rest = made.labels != unit
        of_rest = [table[unit].sum() for table in found.values()]
        assert of_rest == pytest.approx(measured(made, rest), abs=1e-12)
        # What one class adds is the sum of its queries' values, over all queries that are left.
        assert all(table[unit, unit] == 0 for table in found.values())
    hits = PrecisionAtPositives().of_queries(retrieval(made.values[made.labels != 1], made.labels[made.labels != 1]))
    of_class = hits["mAP"][made.labels[made.labels != 1] == 3]
    assert found["mAP"][1, 3] == pytest.approx(of_class.sum() / (made.labels != 1).sum())


def test_a_gallery_loses_the_class_too() -> None:
    queries, gallery = some_features(15, 4), some_features(50, 6, seed=1)
    gallery = Features(gallery.values, gallery.labels, [*queries.ids[:5], *gallery.ids[5:]])
    rng = np.random.default_rng(2)
    rules = SearchRules(
        rng.integers(3, size=15), rng.integers(3, size=50), np.array([(0, 3), (7, 20), (7, 30), (14, 49)])
    )
    metrics: list[tuple[Metric, list[str]]] = [(PrecisionAtPositives(), ["mAP"]), (ReciprocalRank(), ["MRR"])]
    counted = left_out_values(queries, gallery, queries.labels, gallery.labels, ks=[1], metrics=metrics, rules=rules)

    class Again(QueryMetric):
        def of_queries(self, made: Retrieval) -> dict[str, Array]:
            return {"MRR": ReciprocalRank().of_queries(made)["MRR"], "R@1": made.ranks.hits(1)}

    computed = left_out_values(
        queries, gallery, queries.labels, gallery.labels, metrics=[(Again(), ["MRR", "R@1"])], rules=rules
    )
    for name in ("MRR", "R@1"):
        assert counted[name] == pytest.approx(computed[name], abs=1e-12)


def test_a_metric_may_leave_out_queries_and_be_no_mean() -> None:
    # Class 2 has one item; it is left out of the mean, and without it as many queries are.
    values = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1], [1, 1]], np.float32)
    made = Features(values, np.array([0, 0, 1, 1, 2]), list("abcde"))
    excluding: list[Any] = [(PrecisionAtPositives(lone="exclude"), ["mAP"]), (lambda given: {"size": 5.0}, ["size"])]
    found = left_out_values(made, None, made.labels, metrics=excluding)
    assert list(found) == ["mAP"]
    assert found["mAP"][2].tolist() == [1 / 2, 1 / 2, 0]
    with pytest.raises(DataError, match="1 of 5 queries"):
        left_out_values(made, None, made.labels, metrics=[(ReciprocalRank(lone="error"), ["MRR"])])


def test_a_metric_that_is_not_defined_without_a_unit_has_no_table() -> None:
    # kNN@11 needs more than 11 items: they are there, but not without a class.
    made = some_features(12, 3)
    given: list[Any] = [(WeightedVotes(11), ["kNN@11"]), (WeightedVotes(2), ["kNN@2"])]
    found = left_out_values(made, None, made.labels, metrics=given)
    assert list(found) == ["kNN@2"]
    rest = made.labels != 0
    expected = WeightedVotes(2)(retrieval(np.asarray(made.values)[rest], made.labels[rest]))["kNN@2"]
    assert found["kNN@2"][0].sum() == pytest.approx(expected)


def test_many_units_are_left_out_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redraw, "MOST_UNITS", 4)
    monkeypatch.setattr(redraw, "MOST_COMPUTED", 3)
    made = some_features(60, 10)
    found = left_out_values(made, None, made.labels, ks=[1], metrics=[(PrecisionAtPositives(), ["mAP"])])
    assert [len(table) for table in found.values()] == [4, 3]
    groups, _ = groups_of(made.labels, None, 4, seed=0)
    rest = groups != 2
    assert found["R@1"][2].sum() == pytest.approx(recall_at_k(made.values[rest], made.labels[rest], [1])[1])


def test_groups_are_of_whole_units_and_about_one_size() -> None:
    units = np.repeat(np.arange(100, 123), 2)
    groups, searched = groups_of(units, np.array([100, 122, 99, 130]), 5, seed=1)
    assert (groups[::2] == groups[1::2]).all()
    assert sorted(np.bincount(groups[::2]).tolist()) == [4, 4, 5, 5, 5]
    assert searched is not None
    assert searched.tolist() == [groups[0], groups[-1], -1, -1]
    assert (groups_of(units, None, 5, seed=2)[0] != groups).any()
    assert groups_of(units, None, 23, seed=0)[0].tolist() == (units - 100).tolist()


def test_lists_of_right_items_are_refused() -> None:
    made = some_features(10, 2)
    with pytest.raises(ValueError, match="lists of right items"):
        left_out_values(made, None, made.labels, rules=SearchRules(positives=np.array([[0, 1]])))
