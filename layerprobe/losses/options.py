"""Checks of a loss's options; each gives the value back."""

from __future__ import annotations

import math


def positive(name: str, value: float, meaning: str) -> float:
    """The value; ValueError unless it is a finite number above 0."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} is {value}; it is {meaning}, a number above 0")
    return float(value)


def at_least_zero(name: str, value: float, meaning: str) -> float:
    """The value; ValueError unless it is a finite number of at least 0."""
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{name} is {value}; it is {meaning}, a number of at least 0")
    return float(value)


def share(name: str, value: float) -> float:
    """The value; ValueError unless it is in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} is {value}; it is a share, at least 0 and below 1")
    return float(value)


def rate(name: str, value: float | None) -> float | None:
    """The value; ValueError unless it is None or a finite number above 0."""
    return None if value is None else positive(name, value, "a learning rate")


def parameter_rate(
    prefix: str, learning_rate: float | None, rate_factor: float | None, *, default: float
) -> tuple[float | None, float | None]:
    """The learning rate of a loss's own parameters, absolute or as a multiple of the network's: one of the two is None.

    Args:
        prefix: what the options `PREFIX_learning_rate` and `PREFIX_rate_factor` begin with.
        learning_rate: the first option; None for that of the network's new layers.
        rate_factor: the second; None: not given.
        default: of the first option. A factor replaces it.

    Raises:
        ValueError: one of them is not a finite number above 0, or both are given.
    """
    rate(f"{prefix}_learning_rate", learning_rate)
    if rate_factor is None:
        return learning_rate, None
    positive(f"{prefix}_rate_factor", rate_factor, "a multiple of the learning rate")
    if learning_rate not in (None, default):
        both = f"{prefix}_learning_rate is {learning_rate} and {prefix}_rate_factor is {rate_factor}"
        raise ValueError(f"{both}; both say how fast it trains, keep one")
    return None, rate_factor


def several_classes(num_classes: int) -> int:
    """The value; ValueError for a single class, since a loss needs another class."""
    if num_classes < 2:
        raise ValueError(f"num_classes is {num_classes}; telling classes apart needs at least 2")
    return num_classes
