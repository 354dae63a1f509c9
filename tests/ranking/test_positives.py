from __future__ import annotations

import numpy as np
import pytest

from layerprobe.ranking import nearest_positive_ranks, positives
from tests.ranking.conftest import counts, exponential_labels, loop, make


@pytest.mark.parametrize(
    ("steps", "rounded"), [(1, [1, 2, 4, 4, 8, 8, 16, 32, 64]), (4, [1, 2, 3, 4, 5, 8, 10, 20, 48])]
)
def test_sizes_are_rounded_up_to_steps_of_each_doubling(steps: int, rounded: list[int]) -> None:
    assert positives._rounded_up(np.array([1, 2, 3, 4, 5, 8, 9, 17, 41]), steps).tolist() == rounded


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("queries", [0, 40])
def test_padded_classes_give_the_counts_of_a_loop(steps: int, queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU pads to powers of two, a CPU in finer steps."""
    rounded_up = positives._rounded_up
    monkeypatch.setattr(positives, "_rounded_up", lambda sizes, _: rounded_up(sizes, steps))
    rng = np.random.default_rng(0)
    labels = exponential_labels(rng, 120, 8)
    features = make("duplicated", rng, labels, 4)
    if not queries:
        found, own = nearest_positive_ranks(features, labels), list(range(120))
        assert counts(found) == loop(features, labels, features, labels, own, "cosine")
        return
    some = features[:queries], labels[:queries], features[queries:], labels[queries:]
    found = nearest_positive_ranks(some[0], some[1], gallery=some[2], gallery_labels=some[3])
    assert counts(found) == loop(*some, [-1] * queries, "cosine")
