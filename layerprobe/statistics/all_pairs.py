"""Which of several means differ significantly, each compared with each, and groups of those that do not.

The groups are the compact letter display: two means share a letter exactly where they do not differ significantly.
Piepho, An algorithm for a letter-based representation of all-pairwise comparisons, Journal of Computational and
Graphical Statistics 13 (2004): insert and absorb.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations

from layerprobe.statistics.bootstrap import RESAMPLES_OF_DIFFERENCES, differences, holm
from layerprobe.statistics.choice import EQUAL
from layerprobe.statistics.units import UnitSums
from layerprobe.values.intervals import FEWEST_UNITS

SIGNIFICANT = 0.05
_DRAWS_OF_A_PAIR = 100  # at least: p is no smaller than 1 / draws, and Holm multiplies it by the number of pairs


def significant_pairs(cells: UnitSums, *, seed: int = 0) -> list[tuple[int, int]] | None:
    """The pairs of M means that differ significantly, by p of `bootstrap.differences`, corrected by Holm for all pairs.

    A difference that is the same in each unit, and is not 0, has the smallest p.

    Args:
        cells: of M means over the same queries.
        seed: of the draws of units.

    Returns:
        Pairs of places, the smaller one first; None with fewer than 10 units.
    """
    if cells.units < FEWEST_UNITS:
        return None
    pairs = list(combinations(range(len(cells.sums)), 2))
    if not pairs:
        return []
    minuends, subtrahends = (list(places) for places in zip(*pairs, strict=True))
    resamples = max(RESAMPLES_OF_DIFFERENCES, _DRAWS_OF_A_PAIR * len(pairs))
    apart = differences(cells[minuends].minus(cells[subtrahends]), resamples=resamples, seed=seed)
    p = [
        1 / (1 + resamples) if pair.p is None and abs(pair.value) > EQUAL else 1.0 if pair.p is None else pair.p
        for pair in apart
    ]
    corrected = holm(p)
    return [pair for pair, value in zip(pairs, corrected, strict=True) if value is not None and value < SIGNIFICANT]


def groups_of(count: int, different: Collection[tuple[int, int]]) -> list[tuple[int, ...]]:
    """The largest sets of means none of which differs significantly from another, in ascending order.

    Args:
        count: M of means.
        different: pairs of places of those that differ.

    Returns:
        Places, ascending. Each mean is in at least one group; two share a group exactly where they do not differ.
    """
    groups = {frozenset(range(count))} if count else set()
    for pair in different:
        both = set(pair)
        halves = {group - {place} for group in groups if both <= group for place in pair}
        groups = {group for group in groups if not both <= group}
        for half in sorted(halves, key=len, reverse=True):
            if not any(half <= group for group in groups):
                groups.add(half)
    return sorted(tuple(sorted(group)) for group in groups)
