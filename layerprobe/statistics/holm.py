"""Holm's correction of p for several comparisons."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Correct p of several comparisons, so that any is falsely below 0.05 in at most 5 % of the cases.

    Holm (1979): the i-th smallest of m is multiplied by m - i + 1, and is at least the one before it. It needs no
    independence.

    Args:
        p: each in [0, 1]; None for a comparison without p, which does not count as one.

    Returns:
        In the order of `p`, at most 1; None where `p` has it.

    Raises:
        ValueError: a p that is not in [0, 1].
    """
    if not all(value is None or 0 <= value <= 1 for value in p):
        raise ValueError(f"p must lie in [0, 1], got {list(p)}")
    ordered = sorted((value, index) for index, value in enumerate(p) if value is not None)
    corrected: list[float | None] = [None] * len(p)
    least = 0.0
    for rank, (value, index) in enumerate(ordered):
        least = max(least, min(1.0, (len(ordered) - rank) * value))
        corrected[index] = least
    return corrected
