"""Whether a candidate is better than the embedding, and by how much on units that did not decide it.

A gain that is reported because it is significant is too high on average (the winner's curse). So the units are divided
into halves. The interval of each half's gain decides, and the gain is that of the halves whose other half decided: its
mean over the deciding halves is unbiased. With fewer than 20 units, and where neither half decides, all of them decide
and report, and the gain is called one by which it was decided.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerprobe.statistics.bootstrap import differences
from layerprobe.statistics.choice import folds_of
from layerprobe.statistics.units import UnitSums
from layerprobe.statistics.verdict import with_ends
from layerprobe.values.choice import Advice
from layerprobe.values.intervals import FEWEST_UNITS, Difference


@dataclass(frozen=True)
class Advised:
    """Whether to switch, with the gain.

    Args:
        advice: either: the 95 % interval of all units lies within plus or minus `within`; else switch: that of a half
            lies above 0; keep: that of a half lies below 0; where neither half decides, that of all units does;
            unknown: they do not decide either, or the halves contradict each other.
        gain: on the halves whose other half decided; on all units if no half decided.
        units: that the gain is measured on.
        decided_elsewhere: whether these units did not decide; true where nothing was decided.
    """

    advice: Advice
    gain: Difference
    units: int
    decided_elsewhere: bool


def advise(gains: UnitSums, *, within: float, seed: int = 0) -> Advised:
    """Whether to switch to a candidate.

    Args:
        gains: of one difference, candidate - embedding.
        within: a share.
        seed: of the halves and of the draws of units.
    """
    there = np.flatnonzero(gains.counts[0] > 0)
    of_all = _gain(gains, there, seed)
    if of_all.interval is not None and -within <= of_all.interval.low and of_all.interval.high <= within:
        return Advised("either", of_all, len(there), decided_elsewhere=False)
    if len(there) < 2 * FEWEST_UNITS:
        return Advised(_decision(of_all) or "unknown", of_all, len(there), decided_elsewhere=False)
    halves = folds_of(there, count=2, seed=seed)
    decisions = [_decision(_gain(gains, there[halves == half], seed)) for half in (0, 1)]
    distinct = {decision for decision in decisions if decision is not None}
    if not distinct:
        decision = _decision(of_all)
        return Advised(decision or "unknown", of_all, len(there), decided_elsewhere=decision is None)
    if len(distinct) > 1:
        return Advised("unknown", of_all, len(there), decided_elsewhere=False)
    reporting = there[np.isin(halves, [1 - half for half in (0, 1) if decisions[half] is not None])]
    return Advised(distinct.pop(), _gain(gains, reporting, seed), len(reporting), decided_elsewhere=True)


def _gain(gains: UnitSums, units: NDArray[np.intp], seed: int) -> Difference:
    subset = UnitSums(gains.sums[:, units], gains.counts[:, units])
    return with_ends(differences(subset, seed=seed)[0], subset.units)


def _decision(gain: Difference) -> Advice | None:
    """Switch or keep, by an interval that leaves out 0; else None."""
    interval = gain.interval
    if interval is None or interval.low <= 0 <= interval.high:
        return None
    return "switch" if interval.low > 0 else "keep"
