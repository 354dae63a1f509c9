from __future__ import annotations

import numpy as np
import pytest

from layerprobe.workflow.study.selection import Curve, Selected, regret, select


def test_the_highest_share_of_validation_is_selected() -> None:
    assert select([Curve((0.1, 0.3)), Curve((0.2, 0.5, 0.4)), Curve((0.45,))]) == Selected(2, 2, 0.5)


def test_of_equal_shares_the_earliest_trial_and_epoch_are_selected() -> None:
    assert select([Curve((0.1, 0.5, 0.5)), Curve((0.5,))]) == Selected(1, 2, 0.5)


def test_a_trial_that_diverged_or_has_no_value_is_the_worst() -> None:
    assert select([Curve(), Curve((None, 0.0)), Curve((None,))]) == Selected(2, 2, 0.0)
    assert select([Curve(), Curve((None, None))]) is None


def test_the_regret_is_what_selecting_on_test_would_have_gained() -> None:
    # validation selects trial 1 at epoch 2, which has 0.5 on test; trial 2 has 0.75 there
    curves = [Curve((0.1, 0.6), (0.25, 0.5)), Curve((0.4, 0.3), (None, 0.75)), Curve()]
    selected = select(curves)
    assert selected == Selected(1, 2, 0.6)
    assert regret(curves, selected) == 0.25


def test_without_values_on_test_there_is_no_regret() -> None:
    assert regret([Curve((0.1,))], Selected(1, 1, 0.1)) is None
    assert regret([Curve((0.1,), (None,))], Selected(1, 1, 0.1)) is None


@pytest.mark.parametrize("seed", range(20))
def test_a_regret_is_never_negative_and_equals_plain_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    validation, test = np.round(rng.random((2, 5, 4)), 1)
    best, reached, highest = -1.0, 0.0, 0.0
    for trial in range(5):
        for epoch in range(4):
            highest = max(highest, test[trial, epoch])
            if validation[trial, epoch] > best:
                best, reached = validation[trial, epoch], test[trial, epoch]
    curves = [Curve(tuple(values), tuple(others)) for values, others in zip(validation, test, strict=True)]
    selected = select(curves)
    assert selected is not None
    assert selected.validation == best
    assert regret(curves, selected) == highest - reached
