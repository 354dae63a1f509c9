from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import ArrayLike

from layerprobe.statistics.units import UnitSums
from layerprobe.values.choice import Candidate
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Subject
from layerprobe.workflow.choose.candidate_set import CandidateSet


def candidate_set(means: list[float], among_half: ArrayLike, *, gallery_classes: int = 78) -> CandidateSet:
    """Candidates whose means are those of each of 20 classes, the first without post-processing."""
    cells = UnitSums(np.repeat(20 * np.array(means)[:, None], 20, 1), np.full((len(means), 20), 20.0))
    candidates = [
        Candidate(1, RankedLayer(LayerKey("c1", "max"), "l2+pca:8" if place else "none", "cosine"), 8, 1)
        for place in range(len(means))
    ]

    def subject_of(candidate: Candidate, split: str) -> Subject:
        return Subject("a", "e", 0, candidate.epoch or 0, split, candidate.ranked)

    identities = list(range(len(means)))
    return CandidateSet(
        candidates, "validation", subject_of, cells, cells, identities, np.array(among_half), 20, gallery_classes
    )


def test_differences_grow_as_the_mean_miss_rate_of_all_candidates_does() -> None:
    # 15 % of misses, and 12 % among half of the negatives: the odds rise by (15 / 85) / (12 / 88) for each of the
    # log2(77 / 19) doublings from 19 other classes to 77.
    odds = 15 / 85 * ((15 / 85) / (12 / 88)) ** np.log2(77 / 19)
    misses = odds / (1 + odds)
    grown = candidate_set([0.9, 0.8], [0.92, 0.84])
    assert grown.growth == pytest.approx(misses * (1 - misses) / (0.15 * 0.85))
    assert candidate_set([0.9, 0.8], [0.92, 0.84], gallery_classes=20).growth is None


def test_candidates_of_unknown_recall_among_half_say_nothing_of_the_growth() -> None:
    known = candidate_set([0.9], [0.92]).growth
    assert known is not None
    assert candidate_set([0.9, 0.1], [0.92, np.nan]).growth == known > 1


def test_nothing_grows_by_a_metric_that_has_no_recall_among_half() -> None:
    assert candidate_set([0.9, 0.8], [np.nan, np.nan]).growth is None


def test_some_of_the_candidates_keep_their_recall_among_half() -> None:
    both = candidate_set([0.9, 0.8], [0.92, 0.83])
    assert both.select([1]).among_half.tolist() == [0.83]
    assert both.select([1]).growth == candidate_set([0.8], [0.83]).growth


def test_a_layer_without_post_processing_is_raw() -> None:
    assert candidate_set([0.9, 0.8], [0.92, 0.83]).raw == [True, False]
