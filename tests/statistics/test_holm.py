from __future__ import annotations

import pytest

from layerprobe.statistics.holm import holm


def test_a_case_by_hand() -> None:
    # In order: .005 x 4 = .02, .01 x 3 = .03, .03 x 2 = .06, .04 x 1 = .04, which is raised to .06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_nothing_exceeds_one() -> None:
    assert holm([0.6, 0.9]) == [1, 1]


def test_a_comparison_without_p_does_not_count() -> None:
    assert holm([None, 0.02, 0.03]) == [None, 0.04, 0.04]


def test_a_single_comparison_stays() -> None:
    assert holm([0.03]) == [0.03]
    assert holm([]) == []


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
def test_what_is_no_p_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"p must lie in \[0, 1\]"):
        holm([0.5, wrong])
