"""From the hits of candidates by classes to a `Choice`: which one to ship, how sure that is, and how good it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from layerprobe.statistics.bootstrap import intervals
from layerprobe.statistics.choice import CrossFitted, folds_of, optimism, pick, shares
from layerprobe.statistics.units import UnitSums
from layerprobe.values.choice import SETTLED_SHARE, Candidate, Choice, Ship, candidate_names
from layerprobe.values.intervals import FEWEST_UNITS, IntervalKind
from layerprobe.values.scores import Score, Subject

BEST_ON_TEST = "best on test: chosen by looking"
SubjectOf = Callable[[Candidate, str], Subject]  # candidate and split -> what is scored


@dataclass(frozen=True, eq=False)
class ChoiceEvidence:
    """What a choice among C candidates is made on and judged by.

    Args:
        split: which classes are chosen on: validation; train where they were not seen; test where it is cross-fitted.
        choosing: (C, U) hits on these classes; of cross-fitting, each fold by what was fitted without it.
        test: (C, U') hits on the test classes, in the same order. None if there are none, and of cross-fitting,
            where `choosing` is of them.
        crossed: of cross-fitting, what the choice on the other folds gives on each fold: told as the figure on test.
            Its places are those of the C candidates; what only a fold has found comes after them.
    """

    split: str
    choosing: UnitSums
    test: UnitSums | None = None
    crossed: CrossFitted | None = None
    metric: str = "R@1"
    kind: IntervalKind = field(default_factory=IntervalKind)
    notes: tuple[str, ...] = ()

    @property
    def folds(self) -> tuple[str, ...]:
        """`cross-fitted, 5 folds`, where it is."""
        return () if self.crossed is None else (f"cross-fitted, {len(self.crossed.places)} folds",)


def made_choice(
    candidates: Sequence[Candidate],
    evidence: ChoiceEvidence,
    subject_of: SubjectOf,
    *,
    within: float = 1.0,
    seed: int = 0,
) -> Choice:
    """Choose one of C candidates, and say how good it is on test.

    Args:
        subject_of: candidate and split -> what is scored, with what every score of it has to say. The run of the choice
            is that of the chosen one.
        within: how much worse than the best a cheaper candidate may be, in points.

    Returns:
        `cut` is left None.
    """
    choosing, crossed = evidence.choosing, evidence.crossed
    test = evidence.test if crossed is None else choosing
    costs = [candidate.cost for candidate in candidates]
    picked = pick(choosing, costs, within=within / 100)
    stable = shares(choosing, costs, within=within / 100, seed=seed)

    def scored(place: int, split: str, row: UnitSums, own: tuple[str, ...]) -> Score:
        return _score(subject_of(candidates[place], split), evidence, row, own, seed)

    chosen = scored(picked.place, evidence.split, _row(choosing, picked.place), evidence.folds)
    names = candidate_names(candidates, chosen.run)
    on_test = best = None
    if test is not None:
        row = _row(test, picked.place) if crossed is None else crossed.cells
        on_test = scored(picked.place, "test", row, evidence.folds)
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
        notes=(*_how(evidence, within), *evidence.folds, *_agreeing(crossed, picked.place), *evidence.notes),
    )


def _agreeing(crossed: CrossFitted | None, place: int) -> tuple[str, ...]:
    """How many folds choose what is shipped, where not all do: the figure on test is then not of that alone."""
    if crossed is None or set(crossed.places) == {place}:
        return ()
    same, count = crossed.places.count(place), len(crossed.places)
    return (f"{same} of {count} folds choose the same: the figure on test is of what each of them chose",)


def _row(cells: UnitSums, place: int) -> UnitSums:
    return UnitSums(cells.sums[[place]], cells.counts[[place]])


def _score(subject: Subject, evidence: ChoiceEvidence, row: UnitSums, notes: tuple[str, ...], seed: int) -> Score:
    """The score of a single mean, with its interval."""
    count = round(float(row.counts.sum()))
    if not np.isfinite(row.sums).all():
        return subject.score(evidence.metric, None, count, [*notes, "NaN"])
    (interval,) = intervals(row, seed=seed)
    said = evidence.kind.notes_on(row.units) if interval is not None or row.units < FEWEST_UNITS else ()
    return subject.score(evidence.metric, float(row.means[0]), count, [*notes, *said], interval)


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


def _how(evidence: ChoiceEvidence, within: float) -> tuple[str, ...]:
    """How it was chosen, in a line each."""
    cells, units_text = evidence.choosing, evidence.kind.units_text
    count = len(cells.sums)
    invalid = count - int(np.isfinite(cells.sums).all(1).sum())
    among = f"{count:,} candidate{'' if count == 1 else 's'}"
    lines = [f"chosen on {evidence.split}: {units_text(cells.units)}, {among}"]
    if invalid:
        lines.append(f"left out, without a valid number: {invalid:,} of the candidates")
    if cells.units < FEWEST_UNITS:
        lines.append(f"not settled: with fewer than {FEWEST_UNITS} {units_text()} the best mean is chosen")
    else:
        points = f"{within:g} point{'' if within == 1 else 's'}"
        lines.append(f"the cheapest at most {points} worse than the best with 95 %, by the paired error")
    return tuple(lines)
