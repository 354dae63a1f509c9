from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layerprobe.measure.analysis import Features
from layerprobe.measure.selection_folds import FoldSearch, QueryValues
from layerprobe.post_processing.chain import Chain, parse_chain
from layerprobe.values.retrieval import SearchRules
from tests.workflow.centred import Centred

CPU = torch.device("cpu")
CENTRED = Chain("centred", (cast(Any, Centred()),))  # less the mean of what it is fitted on: changes every cosine
Array = NDArray[Any]


def some_features(count: int, classes: int, seed: int) -> Features:
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=count)
    centres = rng.normal(1, 1, (classes, 6))
    values = (centres[labels] + rng.normal(0, 1, (count, 6))).astype(np.float32)
    return Features(values, labels, [f"{seed}/{row}" for row in range(count)])


def nearest_hits(queries: Features, gallery: Features | None, mean: Array, out: Array) -> Array:
    """Whether each query's nearest item by cosine is of its class; `out` (Q, G) marks what is no result."""
    searched = queries if gallery is None else gallery
    units = []
    for features in (queries, searched):
        less = np.asarray(features.values, np.float64) - mean
        units.append(less / np.linalg.norm(less, axis=1, keepdims=True))
    nearest = np.where(out, -np.inf, units[0] @ units[1].T).argmax(1)
    hits: Array = (searched.labels[nearest] == queries.labels).astype(float)
    return hits


def mean_without(features: Features, marked: Array) -> Array:
    mean: Array = np.asarray(features.values, np.float64)[~marked].mean(0)
    return mean


def values_of(search: FoldSearch) -> QueryValues:
    return search.values(lambda fold: search.fit_without(CENTRED, fold, seed=0))


def within(folds: Array, searched: Array) -> Array:
    """(Q, G) which items are of another fold than the query."""
    found: Array = folds[:, None] != searched[None]
    return found


def test_each_fold_is_searched_in_itself_by_what_was_fitted_on_the_others() -> None:
    made = some_features(80, 10, 0)
    folds = made.labels % 2
    found = values_of(FoldSearch(made, None, folds, "cosine", CPU))
    out = np.eye(80, dtype=bool) | within(folds, folds)
    by_fold = [nearest_hits(made, None, mean_without(made, folds == fold), out) for fold in range(2)]
    assert found.values.tolist() == np.choose(folds, by_fold).tolist()
    whole = nearest_hits(made, None, mean_without(made, folds < 0), out)
    assert found.values.tolist() != whole.tolist()


def test_chance_is_that_of_the_folds_classes() -> None:
    made = some_features(80, 10, 0)
    folds = made.labels % 5
    found = values_of(FoldSearch(made, None, folds, "cosine", CPU))
    for fold in range(5):
        labels = made.labels[folds == fold]
        right = (labels[:, None] == labels).sum(1) - 1
        chance = (right / (len(labels) - 1)).mean()
        own = folds == fold
        assert (found.values[own] - found.above_chance[own]).tolist() == pytest.approx([chance] * own.sum())


def test_nothing_is_fitted_on_a_gallery_which_is_searched_by_fold() -> None:
    queries, gallery = some_features(40, 10, 1), some_features(90, 10, 1)
    others = [f"another {row}" for row in range(70)]
    gallery = Features(gallery.values, gallery.labels, [*queries.ids[:20], *others])
    own = np.arange(40)[:, None] == np.arange(90)
    own[20:] = False  # the gallery has only the first 20 ids
    folds = queries.labels % 5
    out = own | within(folds, gallery.labels % 5)
    found = values_of(FoldSearch(queries, gallery, folds, "cosine", CPU))
    by_fold = [nearest_hits(queries, gallery, mean_without(queries, folds == fold), out) for fold in range(5)]
    assert found.values.tolist() == np.choose(folds, by_fold).tolist()


def test_a_folds_queries_follow_the_rules_of_the_search() -> None:
    made = some_features(80, 10, 2)
    groups, folds = np.random.default_rng(3).integers(3, size=80), made.labels % 5
    ignored = np.array([[row, (7 * row + 1) % 80] for row in range(80)])
    rules = SearchRules(groups=groups, ignored=ignored)
    out = np.eye(80, dtype=bool) | ((groups[:, None] == groups) & (made.labels[:, None] == made.labels))
    out[ignored[:, 0], ignored[:, 1]] = True
    out |= within(folds, folds)
    found = values_of(FoldSearch(made, None, folds, "cosine", CPU, rules=rules))
    by_fold = [nearest_hits(made, None, mean_without(made, folds == fold), out) for fold in range(5)]
    assert found.values.tolist() == np.choose(folds, by_fold).tolist()


def test_without_post_processing_the_raw_features_are_searched() -> None:
    made = some_features(80, 10, 0)
    folds = made.labels % 5
    search = FoldSearch(made, None, folds, "cosine", CPU)
    found = search.values(lambda fold: search.fit_without(parse_chain("none"), fold, seed=0))
    out = np.eye(80, dtype=bool) | within(folds, folds)
    assert found.values.tolist() == nearest_hits(made, None, np.zeros(6), out).tolist()


def test_another_metric_is_that_of_the_folds_classes() -> None:
    made = some_features(40, 4, 0)
    folds = made.labels % 2
    values = FoldSearch(made, None, folds, "cosine", CPU, metric="MAP@R").values(lambda _: None).values
    features = np.asarray(made.values)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    for query in range(40):
        others = np.flatnonzero((folds == folds[query]) & (np.arange(40) != query))
        right = (made.labels[others] == made.labels[query])[np.argsort(-(unit[others] @ unit[query]), kind="stable")]
        count = right.sum()
        precision = np.cumsum(right)[:count] / np.arange(1, count + 1)
        assert values[query] == pytest.approx((precision * right[:count]).sum() / count)


@pytest.mark.parametrize("divided", [False, True])
def test_a_fold_finds_what_shares_a_label_in_it_or_in_the_gallery(divided: bool) -> None:
    queries = some_features(60, 12, 4)
    gallery = some_features(70, 12, 5) if divided else None
    if gallery is not None:  # no class of the gallery is one of the queries
        gallery = replace(gallery, labels=gallery.labels + 12)
    rng = np.random.default_rng(6)
    held = [set(rng.choice(7, 2, replace=False).tolist()) for _ in range(24)]
    pairs = np.array([(label, one) for label, own in enumerate(held) for one in own])
    folds, searched = queries.labels % 3, queries if gallery is None else gallery
    search = FoldSearch(queries, gallery, folds, "cosine", CPU, rules=SearchRules(label_sets=pairs))
    found = search.values(lambda fold: None)
    shares = np.array([[bool(held[a] & held[b]) for b in searched.labels] for a in queries.labels])
    units = [np.asarray(x.values, np.float64) for x in (queries, searched)]
    cosines = (units[0] @ units[1].T) / np.outer(*(np.linalg.norm(x, axis=1) for x in units))
    if gallery is None:
        there = (folds[:, None] == folds) & ~np.eye(60, dtype=bool)
    else:  # the items that are right for a query of the fold
        there = np.array([shares[folds == fold].any(0) for fold in folds])
    hits = [shares[row, np.where(there[row], cosines[row], -np.inf).argmax()] for row in range(60)]
    assert found.values.tolist() == [float(hit) for hit in hits]
    chance = (shares & there).sum(1) / there.sum(1)
    for fold in range(3):
        own = folds == fold
        assert (found.values - found.above_chance)[own] == pytest.approx(chance[own].mean())
