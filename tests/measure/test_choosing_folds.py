from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.measure.analysis import Features
from layerprobe.measure.choosing_folds import Refitting, out_of_fold, refitted
from layerprobe.reductions.chain import Chain
from layerprobe.values.retrieval import SearchRules
from tests.workflow.a_reduction import Centred

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


def test_each_query_is_ranked_by_what_was_fitted_on_the_other_folds() -> None:
    made = some_features(80, 10, 0)
    folds = made.labels % 5
    found = out_of_fold(Refitting(made, None, folds, "cosine", CPU), CENTRED)
    by_fold = [nearest_hits(made, None, mean_without(made, folds == fold), np.eye(80, dtype=bool)) for fold in range(5)]
    assert found.tolist() == np.choose(folds, by_fold).tolist()
    whole = nearest_hits(made, None, mean_without(made, folds < 0), np.eye(80, dtype=bool))
    assert found.tolist() != whole.tolist()


def test_all_queries_are_ranked_by_what_was_fitted_without_one_fold() -> None:
    made = some_features(80, 10, 0)
    folds = made.labels % 5
    found = refitted(Refitting(made, None, folds, "cosine", CPU), CENTRED, 3)
    expected = nearest_hits(made, None, mean_without(made, folds == 3), np.eye(80, dtype=bool))
    assert found.tolist() == expected.tolist()


def test_nothing_is_fitted_on_a_gallery() -> None:
    queries, gallery = some_features(40, 10, 1), some_features(90, 10, 1)
    others = [f"another {row}" for row in range(70)]
    gallery = Features(gallery.values, gallery.labels, [*queries.ids[:20], *others])
    own = np.arange(40)[:, None] == np.arange(90)
    own[20:] = False  # the gallery has only the first 20 ids
    folds = queries.labels % 5
    found = out_of_fold(Refitting(queries, gallery, folds, "cosine", CPU), CENTRED)
    by_fold = [nearest_hits(queries, gallery, mean_without(queries, folds == fold), own) for fold in range(5)]
    assert found.tolist() == np.choose(folds, by_fold).tolist()


def test_a_folds_queries_follow_the_rules_of_the_search() -> None:
    made = some_features(80, 10, 2)
    groups, folds = np.random.default_rng(3).integers(3, size=80), made.labels % 5
    ignored = np.array([[row, (7 * row + 1) % 80] for row in range(80)])
    rules = SearchRules(groups=groups, ignored=ignored)
    out = np.eye(80, dtype=bool) | ((groups[:, None] == groups) & (made.labels[:, None] == made.labels))
    out[ignored[:, 0], ignored[:, 1]] = True
    found = out_of_fold(Refitting(made, None, folds, "cosine", CPU, rules=rules), CENTRED)
    by_fold = [nearest_hits(made, None, mean_without(made, folds == fold), out) for fold in range(5)]
    assert found.tolist() == np.choose(folds, by_fold).tolist()
