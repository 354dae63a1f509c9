"""How sure the choice of a candidate is, and whether it is better than the embedding.

Multiple comparisons with the best (Hsu, Multiple Comparisons, 1996, chapter 4): a candidate's loss against the best one
is at most the largest upper end of one-sided simultaneous 95 % bands of the differences of all others to it.

Differences grow with the gallery. Where a choice is for a larger gallery than the one that was searched, the logit of
the mean miss rate e is extrapolated along the logarithm of the number of classes, from a gallery with half of the
negatives through the one that was searched. A difference of logits is taken as the same in both, so that differences of
miss rates grow by e' (1 - e') / (e (1 - e)). There e' counts as 1/2 at most: a slope that leads beyond is hardly known,
and must not make the bound smaller.
benchmarks/verdicts.py measures how often the bounds hold.

A gain that is reported because it is significant is too high on average (the winner's curse). So the units are divided
into halves. The interval of each half's gain decides, and the gain is that of the halves whose other half decided: its
mean over the deciding halves is unbiased. With fewer than 20 units, and where neither half decides, all of them decide
and report, and the gain is called one by which it was decided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerprobe.statistics.bootstrap import differences, upper_ends
from layerprobe.statistics.choice import EQUAL, folds_of
from layerprobe.statistics.units import UnitSums
from layerprobe.values.choice import Advice, Gain, Verdict
from layerprobe.values.intervals import FEWEST_UNITS
from layerprobe.values.retrieval import FloatArray

_MOST_TIMES = 100  # of the units: more are as good as never


@dataclass(frozen=True)
class Judged:
    """How sure a choice among C candidates is.

    Args:
        verdict: significant: each paired 95 % interval of the chosen one's differences to the others lies above 0;
            conclusive: `max_loss` is at most `within`; else inconclusive.
        max_loss: upper 95 % bound of the chosen one's loss against the best in the gallery that the choice is for, a
            share; 0 if significant, None with fewer than 10 units.
        equivalent: indices of the candidates, the chosen one among them, whose `max_loss` is at most `within`.
        runner_up: index of the best of the others; None for a single candidate.
        lead: of the chosen one over the runner-up.
        units_needed: about how many units would make it conclusive; None if it is, for `within` = 0, and where it is
            more than 100 times the units.
    """

    verdict: Verdict
    max_loss: float | None
    equivalent: tuple[int, ...] = ()
    runner_up: int | None = None
    lead: Gain | None = None
    units_needed: int | None = None


def judge(cells: UnitSums, chosen: int, *, within: float, growth: float = 1.0, seed: int = 0) -> Judged:
    """How sure it is that the chosen one of C candidates is lower than the best by at most `within`.

    Args:
        cells: of C candidates' means over the same queries, without NaN. Candidates that rank every query alike are
            given once.
        chosen: its index, as `choice.pick` gives it.
        within: a share, not points.
        growth: of differences in the gallery that the choice is for; see `growth_of_differences`.
        seed: of the draws of units.
    """
    means = cells.means
    rivals = [other for other in range(len(means)) if other != chosen]
    if cells.units < FEWEST_UNITS:
        return Judged("inconclusive", None)
    if not rivals:
        return Judged("significant", 0.0, (chosen,))
    leads = gains(_against(cells, chosen, rivals, sign=-1), seed=seed)
    runner_up = max(range(len(rivals)), key=lambda index: means[rivals[index]])
    significant = all(lead.low is not None and lead.low > EQUAL for lead in leads)
    losses = _against(cells, chosen, rivals)
    ends = upper_ends(losses, seed=seed)
    max_loss = 0.0 if significant else growth * max(0.0, float(ends.max()))
    conclusive, allowed = max_loss <= within + EQUAL, within / growth + EQUAL
    near = [other for other in rivals if means.max() - means[other] <= allowed]
    equivalent = []
    for other in near:
        against = _against(cells, other, [rival for rival in range(len(means)) if rival != other])
        if upper_ends(against, seed=seed).max() <= allowed:
            equivalent.append(other)
    return Judged(
        "significant" if significant else "conclusive" if conclusive else "inconclusive",
        max_loss,
        tuple(sorted([*equivalent, *([chosen] if conclusive else [])])),
        rivals[runner_up],
        leads[runner_up],
        None if conclusive else _units_needed(cells.units, losses.means, ends, within / growth),
    )


def growth_of_differences(misses: float, among_half: float, classes: int, gallery_classes: int) -> float | None:
    """By how much differences of miss rates grow in a larger gallery, at least 1.

    Args:
        misses: the mean miss rate in the gallery that was searched, 0 to 1.
        among_half: the same with half of the negatives.
        classes: of the gallery that was searched.
        gallery_classes: of the gallery that the choice is for.

    Returns:
        None where that gallery is no larger, or no query misses among half of the negatives, or all do: then there is
        nothing to extrapolate from.
    """
    if not (0 < among_half <= misses < 1) or gallery_classes <= classes or classes < 2:
        return None
    doublings = math.log2((gallery_classes - 1) / (classes - 1))
    rise = doublings * (_logit(misses) - _logit(among_half))
    extrapolated = 1 / (1 + math.exp(-min(_logit(misses) + rise, max(_logit(misses), 0.0))))
    return max(1.0, extrapolated * (1 - extrapolated) / (misses * (1 - misses)))


def _logit(share: float) -> float:
    return math.log(share / (1 - share))


def above(cells: UnitSums, *, seed: int = 0) -> NDArray[np.bool_]:
    """(C,) whether each mean is above 0 by one-sided simultaneous 95 % bands; all are with fewer than 10 units."""
    if cells.units < FEWEST_UNITS:
        return np.ones(len(cells.sums), bool)
    is_above: NDArray[np.bool_] = upper_ends(UnitSums(-cells.sums, cells.counts), seed=seed) < 0
    return is_above


def _against(cells: UnitSums, reference: int, rivals: Sequence[int], sign: int = 1) -> UnitSums:
    """The differences of some candidates to another."""
    return UnitSums(sign * (cells.sums[list(rivals)] - cells.sums[reference]), cells.counts[list(rivals)])


def gains(cells: UnitSums, *, seed: int = 0) -> list[Gain]:
    """The differences with their intervals, of no width where a difference is the same in each of at least 10 units."""
    enough = cells.units >= FEWEST_UNITS
    return [
        Gain(x.value, x.value, x.value) if x.low is None and enough else Gain(x.value, x.low, x.high)
        for x in differences(cells, seed=seed)
    ]


def _units_needed(units: int, means: FloatArray, ends: FloatArray, within: float) -> int | None:
    """The units at which the widest band would end at `within`, as its half-width falls with their square root."""
    beyond = ends > within + EQUAL
    margin = within - means[beyond]
    if within <= 0 or not (margin > 0).all():
        return None
    needed = units * float((((ends - means)[beyond] / margin) ** 2).max())
    return None if needed > _MOST_TIMES * units else math.ceil(needed)


@dataclass(frozen=True)
class Advised:
    """Whether to switch, with the gain.

    Args:
        advice: either: the 95 % interval of all units lies within plus or minus `within`; else switch: that of a half
            lies above 0; keep: that of a half lies below 0; where neither half decides, that of all units does;
            inconclusive: they do not decide either, or the halves contradict each other.
        gain: on the halves whose other half decided; on all units if no half decided.
        units: that the gain is measured on.
        decided_elsewhere: whether these units did not decide; true where nothing was decided.
    """

    advice: Advice
    gain: Gain
    units: int
    decided_elsewhere: bool


def advise(cells: UnitSums, *, within: float, seed: int = 0) -> Advised:
    """Whether to switch to a candidate.

    Args:
        cells: of one difference, candidate - embedding.
        within: a share.
        seed: of the halves and of the draws of units.
    """
    there = np.flatnonzero(cells.counts[0] > 0)
    (of_all,) = gains(cells, seed=seed)
    if of_all.low is not None and of_all.high is not None and -within <= of_all.low and of_all.high <= within:
        return Advised("either", of_all, len(there), decided_elsewhere=False)
    if len(there) < 2 * FEWEST_UNITS:
        return Advised(_decision(of_all) or "inconclusive", of_all, len(there), decided_elsewhere=False)
    halves = folds_of(there, count=2, seed=seed)
    decisions = [_decision(gains(cells[:, there[halves == half]], seed=seed)[0]) for half in (0, 1)]
    distinct = {decision for decision in decisions if decision is not None}
    if not distinct:
        decision = _decision(of_all)
        return Advised(decision or "inconclusive", of_all, len(there), decided_elsewhere=decision is None)
    if len(distinct) > 1:
        return Advised("inconclusive", of_all, len(there), decided_elsewhere=False)
    reporting = there[np.isin(halves, [1 - half for half in (0, 1) if decisions[half] is not None])]
    return Advised(distinct.pop(), gains(cells[:, reporting], seed=seed)[0], len(reporting), decided_elsewhere=True)


def _decision(gain: Gain) -> Advice | None:
    """Switch or keep, by an interval that leaves out 0; else None."""
    if gain.low is None or gain.contains_zero:
        return None
    return "switch" if gain.low > 0 else "keep"
