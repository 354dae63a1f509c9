"""A `CandidateSet` -> a `Choice`: the preferred candidate, how sure that is, and whether to switch to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from layerprobe.statistics.advice import advise
from layerprobe.statistics.bootstrap import differences
from layerprobe.statistics.choice import EQUAL, CrossFitted, Picked, folds_of, optimism, pick, resample_choice
from layerprobe.statistics.means import intervals
from layerprobe.statistics.units import UnitSums
from layerprobe.statistics.verdict import Judged, judge, with_ends
from layerprobe.system.errors import DataError, NumericError
from layerprobe.values.choice import Advice, Candidate, Certainty, Choice, Embedding, Gain, Price, candidate_names
from layerprobe.values.facts import chosen_on_text
from layerprobe.values.intervals import FEWEST_UNITS, IntervalKind, SamplingUnits
from layerprobe.values.scores import Score, Subject
from layerprobe.workflow.choose.candidate_set import Baseline, CandidateSet

BEST_ON_TEST = "best on test: chosen by looking"
_NAMED = 4  # candidates that a note names


def choose_among(
    given: CandidateSet, notes: Sequence[str] = (), *, metric: str = "R@1", within: float = 1.0, seed: int = 0
) -> Choice:
    """Choose a candidate, decide between it and the embedding, and score on test what is selected.

    Args:
        metric: of the values.
        within: points of the metric that do not matter.

    Returns:
        `cut` is None.

    Raises:
        DataError: no candidate is above chance.
        NumericError: no candidate has a valid number.
    """
    candidate_set, skipped = _eligible(given, seed)
    kind = IntervalKind(cluster=given.cluster)
    choosing, share = candidate_set.choosing, within / 100
    picked = pick(choosing, candidate_set.costs, candidate_set.raw, candidate_set.finer)
    extrapolated = candidate_set.growth
    growth = 1.0 if extrapolated is None else extrapolated
    preferred = candidate_set.candidates[picked.place]
    certain = _Certainties(candidate_set, picked, share, growth, seed)
    known = certain.of_all.at_most is not None
    again = resample_choice(choosing, candidate_set.costs, candidate_set.raw, seed=seed)
    crossed = candidate_set.cross_fitted()
    folds = () if crossed is None else (f"cross-fitted, {len(crossed.places)} folds",)
    test = None if candidate_set.on_test is None else _row(candidate_set.on_test, picked.place)
    row = test if crossed is None else crossed.cells
    compared = _compared(given, preferred, row, metric, share, seed=seed, known=known)
    kept, selected = compared.kept, preferred if compared.kept is None else compared.kept.candidate

    def scored(candidate: Candidate, split: str, row: UnitSums | None, own: tuple[str, ...]) -> Score:
        return _score(candidate_set.subject(candidate, split), metric, row, own, kind)

    among = selected in candidate_set.candidates
    place = given.candidates.index(selected) if selected in given.candidates else None
    chosen = scored(selected, given.split, None if place is None else _row(given.choosing, place), folds)
    preferred_test = None if row is None else scored(preferred, "test", row, folds)
    on_test = preferred_test if kept is None else scored(selected, "test", kept.test, ())
    best = _best_on_test(candidate_set, scored)
    names = candidate_names(candidate_set.candidates, chosen.run, given.candidates)
    of_test = candidate_set.on_test
    return Choice(
        run=chosen.run,
        ship=selected.ship,
        preferred=preferred.ship,
        chosen=chosen,
        test=on_test,
        preferred_test=preferred_test,
        embedding=compared.embedding,
        gain=compared.gain,
        gain_classes=compared.units,
        gain_elsewhere=compared.elsewhere,
        price=Price(selected.bytes_per_image, None),
        preferred_price=Price(preferred.bytes_per_image, None),
        advice=compared.advice,
        **certain.values(given, chosen.run),
        expected_loss=100 * growth * again.expected_loss if known else None,
        candidates=len(candidate_set.candidates),
        classes=choosing.units,
        test_classes=None if of_test is None else of_test.units,
        gallery_classes=given.classes if extrapolated is None else given.gallery_classes,
        extrapolated=extrapolated is not None,
        best_on_test=best,
        regret=None if crossed is not None or not among else _regret(on_test, best),
        optimism=None if of_test is None else optimism(of_test, folds_of(range(of_test.sums.shape[1]), seed=seed)),
        shares=_largest_first(dict(zip(names, again.shares.tolist(), strict=True))),
        within=within,
        units="classes" if given.cluster is None else "clusters",
        within_folds=given.within_folds and given.split == "test",
        notes=(*folds, *_agreement(crossed, names), *dict.fromkeys(notes)),
        details=tuple(skipped),
    )


@dataclass(frozen=True, eq=False)
class _Certainties:
    """How sure a choice is: of all candidates, of the layer, and of the layer's post-processing."""

    candidate_set: CandidateSet
    picked: Picked
    within: float
    growth: float
    seed: int

    @cached_property
    def of_all(self) -> Judged:
        """The picked candidate among all."""
        return self._judged(list(range(len(self.candidate_set.candidates))), self.picked)

    def values(self, given: CandidateSet, run: str) -> dict[str, Any]:
        """The fields of a `Choice` that say how sure it is."""
        judged, candidates = self.of_all, self.candidate_set.candidates
        names, costs = candidate_names(candidates, run, given.candidates), self.candidate_set.costs
        cheapest_first = sorted(judged.equivalent, key=costs.__getitem__)
        lead = judged.lead
        place, alike, means = self.picked.place, self._of_its_layer(), self.candidate_set.choosing.means
        best = max(alike, key=means.__getitem__)
        others = [other for other in range(len(candidates)) if other not in alike]
        return {
            "verdict": judged.verdict,
            "at_most": None if judged.at_most is None else 100 * judged.at_most,
            "runner_up": None if judged.runner_up is None else names[judged.runner_up],
            "lead": None if lead is None else Gain(lead.value, lead.low, lead.high),
            "ties": int((self.candidate_set.choosing.means >= means[place] - EQUAL).sum()) - 1
            if means[place] >= means.max() - EQUAL
            else 0,
            "equivalent": tuple(names[place] for place in cheapest_first),
            "classes_needed": judged.units_needed,
            "layer": self._certainty([best, *others], best, len({_layer_of(candidates[other]) for other in others})),
            "post_processing": self._certainty(alike, place, len(alike) - 1) if len(alike) > 1 else None,
        }

    def _of_its_layer(self) -> list[int]:
        layer = _layer_of(self.candidate_set.candidates[self.picked.place])
        return [place for place, one in enumerate(self.candidate_set.candidates) if _layer_of(one) == layer]

    def _certainty(self, places: list[int], place: int, others: int) -> Certainty:
        means = self.candidate_set.choosing.means[places]
        judged = self._judged(places, Picked(places.index(place), int(means.argmax())))
        lead = None if judged.lead is None else Gain(judged.lead.value, judged.lead.low, judged.lead.high)
        return Certainty(judged.verdict, None if judged.at_most is None else 100 * judged.at_most, others, lead)

    def _judged(self, places: list[int], picked: Picked) -> Judged:
        cells = self.candidate_set.only(places).choosing
        return judge(cells, picked, within=self.within, growth=self.growth, seed=self.seed)


def _layer_of(candidate: Candidate) -> tuple[str, str]:
    """The run and the layer, whatever its epoch, pool and reduction."""
    return candidate.run, candidate.ranked.layer.layer


def _best_on_test(
    candidate_set: CandidateSet, scored: Callable[[Candidate, str, UnitSums, tuple[str, ...]], Score]
) -> Score | None:
    test = candidate_set.on_test
    if test is None:
        return None
    place = pick(test, candidate_set.costs, candidate_set.raw).best
    return scored(candidate_set.candidates[place], "test", _row(test, place), (BEST_ON_TEST,))


def _eligible(given: CandidateSet, seed: int) -> tuple[CandidateSet, list[str]]:
    """The distinct candidates above chance with valid numbers, and notes on the others."""
    given = given.only([place for place in range(len(given.candidates)) if place not in given.only_compared])
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


@dataclass(frozen=True, eq=False)
class _Compared:
    """A candidate compared with the embedding on test.

    Args:
        kept: the embedding if it is selected, else None.
        units: that the gain is measured on.
        elsewhere: whether these did not decide.
    """

    kept: Baseline | None = None
    embedding: Embedding | None = None
    advice: Advice = "unknown"
    gain: Gain | None = None
    units: int | None = None
    elsewhere: bool = False


def _compared(  # noqa: PLR0913 - the candidates, their values and the rule
    given: CandidateSet,
    preferred: Candidate,
    row: UnitSums | None,
    metric: str,
    within: float,
    *,
    seed: int,
    known: bool,
) -> _Compared:
    """The advice, the gain and the embedding; where it cannot be told, the embedding is kept.

    Args:
        row: of the preferred candidate on test; of the procedure if cross-fitted.
        within: a share.
        known: whether there are enough classes to choose on.
    """
    baseline = given.baselines.get(preferred.run)
    if baseline is None or row is None:
        return _Compared()
    embedding = _embedding(given, preferred, baseline, row, metric, seed)
    advised = advise(row.minus(baseline.test), within=within, seed=seed)
    advice, is_embedding = advised.advice, preferred.ship == baseline.candidate.ship
    if is_embedding:
        advice = "keep"
    elif not known:
        advice = "unknown"
    cheaper = preferred.bytes_per_image < baseline.candidate.bytes_per_image
    keeps = is_embedding or advice in ("keep", "unknown") or (advice == "either" and not cheaper)
    gain = Gain(advised.gain.value, advised.gain.low, advised.gain.high)
    kept = baseline if keeps else None
    return _Compared(kept, embedding, advice, gain, advised.units, advised.decided_elsewhere)


def _embedding(  # noqa: PLR0913 - the candidates and their values
    given: CandidateSet, preferred: Candidate, baseline: Baseline, row: UnitSums, metric: str, seed: int
) -> Embedding:
    """The embedding, and as it is at the preferred epoch and post-processing."""
    kind = IntervalKind(cluster=given.cluster)
    subject = given.subject(baseline.candidate, "test")
    score, whole = _score(subject, metric, baseline.test, (), kind), None
    if baseline.whole_gallery is not None:
        subject_of_whole = given.subject(baseline.candidate, "test", whole_gallery=True)
        whole = _score(subject_of_whole, metric, baseline.whole_gallery, (), kind)
    alike = _alike(given, preferred, baseline)
    if alike is None or given.on_test is None:
        return Embedding(baseline.candidate.ship, score, whole_gallery=whole)
    test = _row(given.on_test, alike)
    of_alike = _score(given.subject(given.candidates[alike], "test"), metric, test, (), kind)
    gain = _difference(row, test, seed)
    return Embedding(baseline.candidate.ship, score, of_alike, gain, whole_gallery=whole)


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


def _agreement(crossed: CrossFitted | None, names: Sequence[str]) -> tuple[str, ...]:
    """What the folds choose, where they disagree."""
    if crossed is None or len(set(crossed.places)) == 1:
        return ()
    counts = {names[place]: crossed.places.count(place) for place in sorted(set(crossed.places))}
    chosen = ", ".join(f"{name} in {count}" for name, count in counts.items())
    return (f"the folds choose {chosen}: the value and the gain on test are of the procedure, not of one candidate",)


def _row(sums: UnitSums, place: int) -> UnitSums:
    return UnitSums(sums.sums[[place]], sums.counts[[place]])


def _score(subject: Subject, metric: str, row: UnitSums | None, notes: tuple[str, ...], kind: IntervalKind) -> Score:
    """The score of a single mean, with its interval."""
    if row is None:
        return subject.score(metric, None, 0, [*notes, "not measured"])
    count = round(float(row.counts.sum()))
    if not np.isfinite(row.sums).all():
        return subject.score(metric, None, count, [*notes, "NaN"])
    (interval,) = intervals(row)
    units = SamplingUnits(kind, row.units) if interval is not None or row.units < FEWEST_UNITS else None
    return subject.score(metric, float(row.means[0]), count, notes, interval=interval, units=units)


def _regret(test: Score | None, best: Score | None) -> float | None:
    if test is None or best is None or test.value is None or best.value is None:
        return None
    return best.value - test.value


def _largest_first(found: Mapping[str, float]) -> dict[str, float]:
    return {name: share for name, share in sorted(found.items(), key=lambda pair: -pair[1]) if share > 0}


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
