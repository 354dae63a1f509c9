"""A `CandidateSet` -> a `Choice`: the candidate to ship, its uncertainty and its test score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from layerprobe.statistics.bootstrap import intervals
from layerprobe.statistics.choice import CrossFitted, folds_of, optimism, pick, shares
from layerprobe.statistics.units import UnitSums
from layerprobe.system.errors import RecipeError
from layerprobe.values.choice import SETTLED_SHARE, Candidate, Choice, Ship, candidate_names
from layerprobe.values.intervals import FEWEST_UNITS, IntervalKind
from layerprobe.values.scores import Score, Subject
from layerprobe.workflow.choose.candidate_set import CandidateSet

BEST_ON_TEST = "best on test: chosen by looking"
_METRIC, _KIND = "R@1", IntervalKind()


def require_points(within: float) -> None:
    """Check how much worse than the best a cheaper candidate may be."""
    if not 0 <= within <= 100:
        raise RecipeError(f"within {within:g}: not a number of points from 0 to 100", fix="Leave it out for 1")


def choose_among(
    candidate_set: CandidateSet, notes: Sequence[str] = (), *, within: float = 1.0, seed: int = 0
) -> Choice:
    """Choose a candidate, and score it on test.

    Args:
        within: how much worse than the best a cheaper candidate may be, in points.

    Returns:
        `cut` is None.
    """
    choosing, crossed = candidate_set.choosing, candidate_set.cross_fitted(within / 100)
    candidates, costs = candidate_set.candidates[: len(choosing.sums)], candidate_set.costs(choosing)
    test = candidate_set.test if crossed is None else choosing
    folds = () if crossed is None else (f"cross-fitted, {len(crossed.places)} folds",)
    picked = pick(choosing, costs, within=within / 100)
    stable = shares(choosing, costs, within=within / 100, seed=seed)

    def scored(place: int, split: str, row: UnitSums, own: tuple[str, ...]) -> Score:
        return _score(candidate_set.subject_of(candidates[place], split), row, own, seed)

    chosen = scored(picked.place, candidate_set.split, _row(choosing, picked.place), folds)
    names = candidate_names(candidates, chosen.run)
    on_test = best = None
    if test is not None:
        row = _row(test, picked.place) if crossed is None else crossed.cells
        on_test = scored(picked.place, "test", row, folds)
        place = pick(test, costs, within=0.0).best
        best = scored(place, "test", _row(test, place), (BEST_ON_TEST,))
    return Choice(
        run=chosen.run,
        chosen=chosen,
        test=on_test,
        best_on_test=best,
        ship=_ship(candidates[picked.place]),
        regret=_regret(on_test, best),
        optimism=None if test is None else optimism(test, folds_of(range(test.sums.shape[1]), seed=seed)),
        shares=_largest_first(dict(zip(names, stable.tolist(), strict=True))),
        settled=choosing.units >= FEWEST_UNITS and bool(stable[picked.place] >= SETTLED_SHARE),
        equivalent=tuple(names[place] for place in picked.equivalent[1:]),
        within=within,
        notes=(*_rule_notes(candidate_set, within), *folds, *_agreement(crossed, picked.place), *dict.fromkeys(notes)),
    )


def _agreement(crossed: CrossFitted | None, place: int) -> tuple[str, ...]:
    """How many folds choose what is shipped, unless all do: the value on test is not of that candidate alone."""
    if crossed is None or set(crossed.places) == {place}:
        return ()
    same, count = crossed.places.count(place), len(crossed.places)
    return (f"{same} of {count} folds choose the same: the value on test is that of what each of them chose",)


def _row(sums: UnitSums, place: int) -> UnitSums:
    return UnitSums(sums.sums[[place]], sums.counts[[place]])


def _score(subject: Subject, row: UnitSums, notes: tuple[str, ...], seed: int) -> Score:
    """The score of a single mean, with its interval."""
    count = round(float(row.counts.sum()))
    if not np.isfinite(row.sums).all():
        return subject.score(_METRIC, None, count, [*notes, "NaN"])
    (interval,) = intervals(row, seed=seed)
    said = _KIND.notes_on(row.units) if interval is not None or row.units < FEWEST_UNITS else ()
    return subject.score(_METRIC, float(row.means[0]), count, [*notes, *said], interval)


def _regret(test: Score | None, best: Score | None) -> float | None:
    if test is None or best is None or test.value is None or best.value is None:
        return None
    return best.value - test.value


def _ship(candidate: Candidate) -> Ship:
    ranked = candidate.ranked
    return Ship(
        layer=ranked.layer.layer,
        pool=ranked.layer.pool,
        reduction=ranked.reduction,
        epoch=candidate.epoch,
        dim=candidate.dim,
        bytes_per_image=candidate.bytes_per_image,
    )


def _largest_first(found: Mapping[str, float]) -> dict[str, float]:
    return {name: share for name, share in sorted(found.items(), key=lambda pair: -pair[1]) if share > 0}


def _rule_notes(candidate_set: CandidateSet, within: float) -> tuple[str, ...]:
    """The rule, the number of classes and of candidates."""
    sums = candidate_set.choosing
    count = len(sums.sums)
    invalid = count - int(np.isfinite(sums.sums).all(1).sum())
    among = f"{count:,} candidate{'' if count == 1 else 's'}"
    lines = [f"chosen on {candidate_set.split}: {_KIND.units_text(sums.units)}, {among}"]
    if invalid:
        lines.append(f"skipped: {invalid:,} of the candidates without a valid number")
    if sums.units < FEWEST_UNITS:
        lines.append(f"not settled: fewer than {FEWEST_UNITS} {_KIND.units_text()}, so the highest mean is chosen")
    else:
        points = f"{within:g} point{'' if within == 1 else 's'}"
        lines.append(f"rule: the cheapest at most {points} worse than the best, with 95 % confidence (paired)")
    return tuple(lines)
