"""The measure of the rule that chooses, on few sets."""

import numpy as np
import pytest

from benchmarks.choice_rule import drawn, simulated, simulated_optimism


@pytest.mark.parametrize("kind", ["even", "few", "sizes"])
def test_the_cheap_candidate_is_worse_by_about_what_is_allowed(kind: str) -> None:
    cells = drawn(kind, 100_000, 0.7, 0.03, np.random.default_rng(0))
    assert cells.means[1] - cells.means[0] == pytest.approx(0.03, abs=0.01)
    assert (cells.sums <= cells.counts).all()


def test_the_rows_have_a_figure_for_each_column() -> None:
    assert len(simulated("few", 10, 0.7, 0.03, 2).split()) == 6
    assert len(simulated_optimism(10, 0.01, 2).split()) == 4
