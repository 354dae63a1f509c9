from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerprobe.values.facts import DataFacts
from layerprobe.values.intervals import Interval, SamplingUnits
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.retrieval import Ranks
from layerprobe.values.scores import Score
from layerprobe.workflow.run.facts import find_indistinguishable
from layerprobe.workflow.run.runs import Run
from tests.records import recorded
from tests.scores import CLASSES, CLUSTERS, with_layer
from tests.workflow.rank_files import FC6, POOL5, RECORD, ranks_of, stored

DATA = DataFacts("", {})
CONV = RankedLayer(LayerKey("conv", "max"), "none", "cosine")


def hits(*missed: int) -> list[float]:
    return [float(query not in missed) for query in range(24)]


# Of 12 classes with 2 queries each: pool5 misses one query, fc6 two others, conv all but one.
ENTRIES = {CONV: ranks_of(hits(*range(23))), POOL5: ranks_of(hits(0)), FC6: ranks_of(hits(3, 8))}


def sure(scores: list[Score], units: SamplingUnits = CLASSES) -> list[Score]:
    return [replace(score, interval=Interval(0.0, 1.0), units=units) for score in scores]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path / "one")
    run.write(recorded(RECORD))
    return run


def test_the_layer_that_hits_nearly_the_same_queries_is_not_told_apart(run: Run) -> None:
    scores = sure(stored(run, 5, "test", ENTRIES))
    assert find_indistinguishable(run, scores, "R@1", DATA) == (FC6,)


def test_the_split_on_which_the_best_is_chosen_counts(run: Run) -> None:
    labels = np.repeat(np.arange(12), 2)
    chosen = {CONV: ENTRIES[POOL5], POOL5: ENTRIES[FC6], FC6: ENTRIES[CONV]}
    scores = sure(stored(run, 5, "test", ENTRIES)) + sure(stored(run, 5, "validation", chosen, labels=labels))
    assert find_indistinguishable(run, scores, "R@1", DATA) == (POOL5,)
    # without a validation value of conv the best is chosen on test
    assert find_indistinguishable(run, scores[:3] + scores[4:], "R@1", DATA) == (FC6,)


def test_it_is_chosen_on_training_classes_only_if_they_are_unseen(run: Run) -> None:
    chosen = {CONV: ENTRIES[POOL5], POOL5: ENTRIES[FC6], FC6: ENTRIES[CONV]}
    scores = sure(stored(run, 5, "test", ENTRIES)) + sure(
        stored(run, 5, "train", chosen, labels=np.repeat(np.arange(12), 2))
    )
    assert find_indistinguishable(run, scores, "R@1", replace(DATA, seen=False)) == (POOL5,)
    assert find_indistinguishable(run, scores, "R@1", DATA) == (FC6,)


def test_a_layer_without_a_value_takes_no_part(run: Run) -> None:
    scores = sure(stored(run, 5, "test", {**ENTRIES, FC6: "NaN (3 rows)"}))
    assert find_indistinguishable(run, scores, "R@1", DATA) == ()


def test_a_mean_of_draws_is_told_apart_by_the_means_of_its_queries(run: Run) -> None:
    draws = {
        replace(FC6, post_processing=name): ranks_of(hits(miss)) for name, miss in (("random:2", 3), ("random:2:1", 8))
    }
    scores = sure(stored(run, 5, "test", {CONV: ENTRIES[CONV], POOL5: ENTRIES[POOL5], **draws}))
    # each draw hits 23 of 24, like pool5
    mean = with_layer(scores[2], post_processing="random:2x2")
    assert find_indistinguishable(run, [*scores[:2], mean], "R@1", DATA) == (
        replace(FC6, post_processing="random:2x2"),
    )


def test_nothing_is_said_without_the_ranks_of_a_draw(run: Run) -> None:
    draws: dict[RankedLayer, Ranks | str] = {
        replace(FC6, post_processing="random:2"): ranks_of(hits(3)),
        replace(FC6, post_processing="random:2:1"): "NaN (3 rows)",
    }
    scores = sure(stored(run, 5, "test", {POOL5: ENTRIES[POOL5], **draws}))
    for post_processing in ("random:2x2", "random:2x3"):  # of an invalid draw, and of one that is not stored
        mean = with_layer(scores[1], post_processing=post_processing)
        assert find_indistinguishable(run, [scores[0], mean], "R@1", DATA) is None


@pytest.mark.parametrize("gone", [True, False])
def test_nothing_is_said_without_the_ranks_or_by_those_of_other_scores(run: Run, gone: bool) -> None:
    scores = sure(stored(run, 5, "test", ENTRIES))
    if gone:
        run.rank_file(5, "test").unlink()
    else:
        stored(run, 5, "test", {**ENTRIES, FC6: ranks_of(hits(3))})
    assert find_indistinguishable(run, scores, "R@1", DATA) is None


def test_nothing_is_said_of_scores_that_have_no_intervals_or_some_of_another_kind(run: Run) -> None:
    scores = stored(run, 5, "test", ENTRIES)
    assert find_indistinguishable(run, scores, "R@1", DATA) is None
    assert find_indistinguishable(run, [*sure(scores[:1]), *sure(scores[1:], CLUSTERS)], "R@1", DATA) is None


def test_nothing_is_said_of_a_k_for_which_the_ranks_are_not_exact(run: Run) -> None:
    scores = [replace(score, metric="R@2", value=1.0) for score in sure(stored(run, 5, "test", ENTRIES))]
    rough = {layer: replace(ranks, closer_high=9 * ranks.closer) for layer, ranks in ENTRIES.items()}
    stored(run, 5, "test", rough)
    assert find_indistinguishable(run, scores, "R@2", DATA) is None
