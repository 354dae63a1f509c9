"""A `CandidateSet` -> a `Choice`: the candidate to ship, how sure it is, and its gain over the embedding."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from layerprobe.statistics.bootstrap import differences
from layerprobe.statistics.choice import CrossFitted, Resampled, folds_of, optimism, pick, resampled
from layerprobe.statistics.means import intervals
from layerprobe.statistics.units import UnitSums, stacked
from layerprobe.statistics.verdict import judge, with_ends
from layerprobe.system.errors import DataError, NumericError
from layerprobe.values.choice import Advice, Candidate, Choice, Embedding, Gain, Price, candidate_names
from layerprobe.values.facts import chosen_on_text
from layerprobe.values.intervals import FEWEST_UNITS, IntervalKind
from layerprobe.values.scores import Score, Subject
from layerprobe.workflow.choose.candidate_set import Baseline, CandidateSet

BEST_ON_TEST = "best on test: chosen by looking"
_KIND = IntervalKind()
_NAMED = 4  # candidates that a note names


def choose_among(
    given: CandidateSet, notes: Sequence[str] = (), *, metric: str = "R@1", within: float = 1.0, seed: int = 0
) -> Choice:
    """Choose a candidate, and score it on test.

    Args:
        metric: of the values.
        within: how much worse than the best the shipped candidate may be, in points.

    Returns:
        `cut` is None.

    Raises:
        DataError: no candidate is above chance.
        NumericError: no candidate has a valid number.
    """
    searched, skipped = _eligible(given, seed)
    candidate_set = searched.only(searched.found_on_all())
    choosing, costs, share = candidate_set.choosing, candidate_set.costs, within / 100
    picked = pick(choosing, costs, within=share)
    judged = judge(choosing, picked, within=share, seed=seed)
    known = judged.at_most is not None
    pool, again = _resampled(searched, share, seed)
    crossed, test = searched.cross_fitted(share), candidate_set.on_test
    shipped = candidate_set.candidates[picked.place]
    folds = () if crossed is None else (f"cross-fitted, {len(crossed.places)} folds",)

    def scored(place: int, split: str, row: UnitSums, own: tuple[str, ...]) -> Score:
        return _score(candidate_set.subject_of(candidate_set.candidates[place], split), metric, row, own)

    chosen = scored(picked.place, candidate_set.split, _row(choosing, picked.place), folds)
    names, of_searched, of_pool = (
        candidate_names(each, chosen.run, given.candidates)
        for each in (candidate_set.candidates, searched.candidates, pool)
    )
    on_test = best = shipped_test = None
    if test is not None:
        shipped_test = _row(test, picked.place) if crossed is None else crossed.cells
        on_test = scored(picked.place, "test", shipped_test, folds)
        place = pick(test, costs, within=0.0).best
        best = scored(place, "test", _row(test, place), (BEST_ON_TEST,))
    embedding, gain = _gain(given, shipped, shipped_test, metric, seed)
    cheapest_first = sorted(judged.equivalent, key=costs.__getitem__)
    lead = judged.lead
    return Choice(
        run=chosen.run,
        ship=shipped.ship,
        chosen=chosen,
        test=on_test,
        embedding=embedding,
        gain=gain,
        price=Price(shipped.bytes_per_image, None),
        advice=_advice(shipped, embedding, gain, share, known=known),
        verdict=judged.verdict,
        at_most=None if judged.at_most is None else 100 * judged.at_most,
        expected_loss=100 * again.expected_loss if known else None,
        runner_up=None if judged.runner_up is None else names[judged.runner_up],
        lead=None if lead is None else Gain(lead.value, lead.low, lead.high),
        equivalent=tuple(names[place] for place in cheapest_first),
        candidates=len(names),
        classes=choosing.units,
        classes_needed=judged.units_needed,
        best_on_test=best,
        regret=None if crossed is not None else _regret(on_test, best),
        optimism=None if test is None else optimism(test, folds_of(range(test.sums.shape[1]), seed=seed)),
        shares=_largest_first(dict(zip(of_pool, again.shares.tolist(), strict=True))),
        within=within,
        notes=(*skipped, *folds, *_agreement(crossed, of_searched), *dict.fromkeys(notes)),
    )


def _eligible(given: CandidateSet, seed: int) -> tuple[CandidateSet, list[str]]:
    """The distinct candidates above chance with valid numbers, and notes on the others."""
    given = given.only([place for place in range(len(given.candidates)) if given.found.get(place, {None})])
    finite = np.isfinite(given.choosing.sums).all(1) & np.isfinite(given.above_chance.sums).all(1)
    if not finite.any():
        raise NumericError("no candidate has a valid number", fix="Probe layers and epochs whose features are finite")
    notes = []
    if invalid := int((~finite).sum()):
        notes.append(f"skipped: {invalid:,} of the candidates without a valid number")
    valid = given.only(np.flatnonzero(finite).tolist())
    low, run = valid.at_chance(seed), valid.subject_of(valid.candidates[0], valid.split).run
    names = candidate_names(valid.candidates, run, given.candidates)
    if len(low) == len(valid.candidates):
        split = chosen_on_text(valid.split).removesuffix(" classes")
        what = f"no layer is above chance on the {valid.choosing.units} {split} classes: {_named(names)}"
        raise DataError(what, fix="Check the labels, or measure another model")
    if low:
        notes.append(
            f"skipped: not above chance on {chosen_on_text(valid.split)}: {_named([names[place] for place in low])}"
        )
    valid = valid.only([place for place in range(len(names)) if place not in low])
    distinct = valid.distinct()
    if alike := len(valid.candidates) - len(distinct):
        names = candidate_names(valid.candidates, run, given.candidates)
        same = [name for place, name in enumerate(names) if place not in distinct]
        verb = "ranks" if alike == 1 else "rank"
        notes.append(f"counted once: {_named(same)} {verb} every query like another candidate")
    return valid.only(distinct), notes


def _resampled(searched: CandidateSet, within: float, seed: int) -> tuple[Sequence[Candidate], Resampled]:
    """The choice on resamples, with the search for sets repeated in each; and the candidates that its shares are of."""
    tried = searched.tried
    if tried is None:
        return searched.candidates, resampled(searched.choosing, searched.costs, within=within, seed=seed)
    singles = searched.only([place for place in range(len(searched.candidates)) if place not in searched.found])
    pool, count = [*singles.candidates, *tried.candidates], len(singles.candidates)

    def found(weights: NDArray[np.float64]) -> NDArray[np.bool_]:
        there = np.arange(len(pool)) < count
        there[[count + place for place in tried.search(weights)]] = True
        return there

    cells, costs = stacked([singles.choosing, tried.cells]), [candidate.cost for candidate in pool]
    return pool, resampled(cells, costs, within=within, found=found, seed=seed)


def _gain(
    candidate_set: CandidateSet, shipped: Candidate, row: UnitSums | None, metric: str, seed: int
) -> tuple[Embedding | None, Gain | None]:
    """The embedding, and the gain of what is shipped over it; both None without test classes."""
    baseline = candidate_set.baselines.get(shipped.run)
    if baseline is None or row is None:
        return None, None
    subject_of = candidate_set.subject_of
    score = _score(subject_of(baseline.candidate, "test"), metric, baseline.test, ())
    alike = _alike(candidate_set, shipped, baseline)
    if alike is None or candidate_set.on_test is None:
        return Embedding(baseline.candidate.ship, score), _difference(row, baseline.test, seed)
    test = _row(candidate_set.on_test, alike)
    embedding = Embedding(
        baseline.candidate.ship,
        score,
        _score(subject_of(candidate_set.candidates[alike], "test"), metric, test, ()),
        _difference(row, test, seed),
    )
    return embedding, _difference(row, baseline.test, seed)


def _alike(candidate_set: CandidateSet, shipped: Candidate, baseline: Baseline) -> int | None:
    """The embedding at the shipped epoch and post-processing; None if it is the baseline, or what is shipped."""
    layer = baseline.candidate.ranked.layer
    if shipped.ranked.layer == layer:
        return None
    for place, candidate in enumerate(candidate_set.candidates):
        same_run = (candidate.run, candidate.epoch) == (shipped.run, shipped.epoch)
        same = _without_dimensions(candidate.ranked.reduction) == _without_dimensions(shipped.ranked.reduction)
        is_baseline = (candidate.epoch, candidate.ranked) == (baseline.candidate.epoch, baseline.candidate.ranked)
        if same_run and same and candidate.ranked.layer == layer and not is_baseline:
            return place
    return None


def _without_dimensions(reduction: str) -> str:
    """`l2+whiten:128:0.5+l2` -> `l2+whiten:0.5+l2`: half-whitening leaves a small layer fewer dimensions."""
    return re.sub(r"(pca|whiten|random):\d+", r"\1", reduction)


def _difference(first: UnitSums, second: UnitSums, seed: int) -> Gain:
    (found,) = differences(first.minus(second), seed=seed)
    found = with_ends(found, first.units)
    return Gain(found.value, found.low, found.high)


def _advice(
    shipped: Candidate, embedding: Embedding | None, gain: Gain | None, within: float, *, known: bool
) -> Advice:
    """The first that holds; unknown with fewer than 10 classes that are chosen on.

    Args:
        within: a share.
    """
    if not known or embedding is None or gain is None:
        return "unknown"
    if shipped.ship == embedding.layer:
        return "keep"
    if gain.low is None or gain.high is None:
        return "unknown"
    if -within <= gain.low and gain.high <= within:
        return "either"
    if gain.high < 0:
        return "keep"
    return "switch" if gain.low > 0 else "unknown"


def _agreement(crossed: CrossFitted | None, names: Sequence[str]) -> tuple[str, ...]:
    """What the folds choose, where they disagree."""
    if crossed is None or len(set(crossed.places)) == 1:
        return ()
    counts = {names[place]: crossed.places.count(place) for place in sorted(set(crossed.places))}
    chosen = ", ".join(f"{name} in {count}" for name, count in counts.items())
    return (f"the folds choose {chosen}: the value and the gain on test are of the procedure, not of one candidate",)


def _row(sums: UnitSums, place: int) -> UnitSums:
    return UnitSums(sums.sums[[place]], sums.counts[[place]])


def _score(subject: Subject, metric: str, row: UnitSums, notes: tuple[str, ...]) -> Score:
    """The score of a single mean, with its interval."""
    count = round(float(row.counts.sum()))
    if not np.isfinite(row.sums).all():
        return subject.score(metric, None, count, [*notes, "NaN"])
    (interval,) = intervals(row)
    said = _KIND.notes_on(row.units) if interval is not None or row.units < FEWEST_UNITS else ()
    return subject.score(metric, float(row.means[0]), count, [*notes, *said], interval)


def _regret(test: Score | None, best: Score | None) -> float | None:
    if test is None or best is None or test.value is None or best.value is None:
        return None
    return best.value - test.value


def _largest_first(found: Mapping[str, float]) -> dict[str, float]:
    return {name: share for name, share in sorted(found.items(), key=lambda pair: -pair[1]) if share > 0}


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
