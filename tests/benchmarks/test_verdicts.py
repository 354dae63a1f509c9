from __future__ import annotations

import numpy as np
import pytest

from benchmarks.verdicts import Cell, row


@pytest.mark.parametrize("effects", ["normal", "t3"])
def test_two_candidates_differ_by_the_paired_standard_deviation(effects: str) -> None:
    hits = Cell(20, effects, 0.08, "equal").drawn(np.full(2, 0.5), 200_000, np.random.default_rng(0))
    # Rounding to one of 20 queries adds at most half a query's share, 2.5 points; rates beyond 0 and 1 take some away.
    assert np.std((hits[0] - hits[1]) / 20) == pytest.approx(0.08, abs=0.01)


def test_one_that_is_much_better_is_conclusive_in_a_small_table() -> None:
    wrong, conclusive, significant, covered, *_ = row(Cell(200, "normal", 0.05, "one by 5"), 3)
    assert (wrong, conclusive, significant, covered) == (0, 1, 1, 1)
