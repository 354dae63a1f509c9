from __future__ import annotations

import math

import pytest

from layerprobe.losses.options import at_least_zero, parameter_rate, positive, rate, several_classes, share


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_what_is_not_positive_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=rf"^scale is {value}; it is a factor, a number above 0$"):
        positive("scale", value, "a factor")
    with pytest.raises(ValueError, match="a learning rate"):
        rate("proxy_learning_rate", value)


def test_no_rate_is_a_rate() -> None:
    assert rate("proxy_learning_rate", None) is None
    assert rate("proxy_learning_rate", 0.1) == 0.1


def test_a_factor_takes_the_place_of_the_default_rate() -> None:
    assert parameter_rate("proxy", 0.01, None, default=0.01) == (0.01, None)
    assert parameter_rate("proxy", 0.5, None, default=0.01) == (0.5, None)
    assert parameter_rate("proxy", 0.01, 3.0, default=0.01) == (None, 3.0)
    assert parameter_rate("proxy", None, 3.0, default=0.01) == (None, 3.0)


def test_a_factor_beside_another_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="^proxy_learning_rate is 0.5 and proxy_rate_factor is 3.0; both say how fast"):
        parameter_rate("proxy", 0.5, 3.0, default=0.01)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf])
def test_a_factor_that_is_not_positive_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=rf"^beta_rate_factor is {value}; "):
        parameter_rate("beta", 0.01, value, default=0.01)


@pytest.mark.parametrize("value", [-0.1, math.inf, math.nan])
def test_what_is_below_zero_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=rf"^margin is {value}; it is a distance, a number of at least 0$"):
        at_least_zero("margin", value, "a distance")
    assert at_least_zero("margin", 0, "a distance") == 0


@pytest.mark.parametrize("value", [-0.1, 1.0, math.nan])
def test_what_is_no_share_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=rf"^label_smoothing is {value}; it is a share, at least 0 and below 1$"):
        share("label_smoothing", value)


def test_one_class_cannot_be_told_apart() -> None:
    with pytest.raises(ValueError, match=r"^num_classes is 1; telling classes apart needs at least 2$"):
        several_classes(1)
