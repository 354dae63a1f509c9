"""Candidates that compete on the same queries -> a `Choice` and whether to switch to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.statistics.bootstrap import differences
from layerprobe.statistics.choice import (
    EQUAL,
    CrossFitted,
    Finer,
    Picked,
    cross_fit,
    folds_of,
    optimism,
    pick,
    resample_choice,
)
from layerprobe.statistics.units import UnitSums, intervals
from layerprobe.statistics.verdict import Judged, above, advise, growth_of_differences, judge, with_ends
from layerprobe.system.errors import DataError, NumericError
from layerprobe.values.choice import Advice, Candidate, Certainty, Choice, Embedding, Gain, Price, candidate_names
from layerprobe.values.facts import WITHIN_FOLDS, chosen_on_text
from layerprobe.values.intervals import FEWEST_UNITS, IntervalKind, SamplingUnits
from layerprobe.values.retrieval import FloatArray
from layerprobe.values.scores import Score, Subject
from layerprobe.workflow.choose.request import WITHIN

SubjectOf = Callable[[Candidate, str], Subject]  # candidate and split -> what is scored


@dataclass(frozen=True, eq=False)
class Baseline:
    """The embedding of a run, without a reduction, at the last measured epoch.

    Args:
        test: (1, U') its values on the test classes.
        whole_gallery: (1, U') the same in the gallery of all test classes, where `test` is searched within folds; else
            None.
    """

    candidate: Candidate
    test: UnitSums
    whole_gallery: UnitSums | None = None


@dataclass(frozen=True, eq=False)
class CandidateSet:
    """C candidates.

    Args:
        split: whose classes are chosen on: validation; train where the network has not seen them; test if cross-fitted.
        subject_of: the notes of a subject are those of all its scores, but that it is searched within folds.
        choosing: (C, U) values on these classes; of a reduction that is fitted on them, out of fold.
        above_chance: (C, U) Recall@1 over that of a random ranking.
        identities: C; candidates of one identity rank every query alike.
        among_half: (C,) their means in a gallery with half of the negatives; NaN where that is unknown.
        classes: of the gallery that is searched on the classes that are chosen on.
        gallery_classes: of the gallery that the choice is for: that of test.
        test: (C, U') values on the test classes; None without test classes, and if cross-fitted.
        folds: (U,) fold of each class; None unless cross-fitted.
        baselines: run, as in `Candidate` -> its embedding; empty if that is unknown or not measured.
        only_compared: the places of those that are no candidates, and only compared.
        cluster: whose values are the units; None for the classes.
        within_folds: whether each fold of the classes that are chosen on is searched in itself.
        finer: the measure that decides between near means, on the classes that are chosen on; None without one.
    """

    candidates: Sequence[Candidate]
    split: str
    subject_of: SubjectOf
    choosing: UnitSums
    above_chance: UnitSums
    identities: Sequence[Hashable]
    among_half: FloatArray
    classes: int
    gallery_classes: int
    test: UnitSums | None = None
    folds: NDArray[np.int64] | None = None
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    only_compared: frozenset[int] = frozenset()
    cluster: str | None = None
    within_folds: bool = False
    finer: Finer | None = None

    def subject(self, candidate: Candidate, split: str, *, whole_gallery: bool = False) -> Subject:
        """What is scored of a candidate; `whole_gallery` of one that is not searched within folds."""
        subject = self.subject_of(candidate, split)
        if not self.within_folds or whole_gallery or split != self.split:
            return subject
        return replace(subject, notes=(*subject.notes, WITHIN_FOLDS))

    @property
    def costs(self) -> list[tuple[int, ...]]:
        """The cost of each candidate."""
        return [candidate.cost for candidate in self.candidates]

    @property
    def raw(self) -> list[bool]:
        """Whether each candidate is a layer without post-processing."""
        return [candidate.steps == 0 for candidate in self.candidates]

    @property
    def growth(self) -> float | None:
        """By how much differences grow from the gallery that is searched to that which the choice is for, if larger."""
        there = np.isfinite(self.among_half)
        if not there.any():
            return None
        misses, among_half = (1 - float(means[there].mean()) for means in (self.choosing.means, self.among_half))
        return growth_of_differences(misses, among_half, self.classes, self.gallery_classes)

    @property
    def on_test(self) -> UnitSums | None:
        """(C, U') the values on the test classes, cross-fitted or not."""
        return self.choosing if self.folds is not None else self.test

    def find_at_chance(self, seed: int) -> list[int]:
        """The candidates whose recall is not above chance, by simultaneous one-sided 95 % bands."""
        valid = np.flatnonzero(np.isfinite(self.above_chance.sums).all(1))
        if not len(valid):
            return []
        better = above(_take_rows(self.above_chance, valid.tolist()), seed=seed)
        return [position for position, is_better in zip(valid.tolist(), better, strict=True) if not is_better]

    def find_distinct(self) -> list[int]:
        """One candidate of each identity: the embedding, else a reduction of it, else the cheapest."""
        embeddings = {baseline.candidate for baseline in self.baselines.values()}
        layers = {(candidate.run, candidate.ranked.layer) for candidate in embeddings}

        def order(position: int) -> tuple[bool, bool, tuple[int, ...]]:
            candidate = self.candidates[position]
            is_reduction = (candidate.run, candidate.ranked.layer) in layers
            return candidate not in embeddings, not is_reduction, candidate.cost

        positions: dict[Hashable, int] = {}
        for position in sorted(range(len(self.candidates)), key=order):
            positions.setdefault(self.identities[position], position)
        return sorted(positions.values())

    def select(self, positions: Sequence[int]) -> CandidateSet:
        """Some of the candidates."""
        selected, finer = list(positions), self.finer or (lambda _: None)
        return replace(
            self,
            candidates=[self.candidates[position] for position in selected],
            choosing=_take_rows(self.choosing, selected),
            above_chance=_take_rows(self.above_chance, selected),
            identities=[self.identities[position] for position in selected],
            among_half=self.among_half[selected],
            test=None if self.test is None else _take_rows(self.test, selected),
            only_compared=frozenset(new for new, position in enumerate(selected) if position in self.only_compared),
            finer=None if self.finer is None else lambda subset: finer([selected[position] for position in subset]),
        )

    def cross_fit_choice(self) -> CrossFitted | None:
        """The result of choosing on the other folds; None unless cross-fitted."""
        if self.folds is None:
            return None

        def choose(other_folds: UnitSums, fold: int) -> int:
            return pick(other_folds, self.costs, self.raw, self._finer_without(fold)).place

        return cross_fit(self.choosing, self.folds, choose)

    def _finer_without(self, fold: int) -> Finer | None:
        """The finer measure on the units of the other folds."""
        finer, folds = self.finer, self.folds
        if finer is None or folds is None:
            return None

        def measure_outside(positions: Sequence[int]) -> UnitSums | None:
            sums, outside = finer(positions), folds != fold
            return None if sums is None else UnitSums(sums.sums[:, outside], sums.counts[:, outside])

        return measure_outside


def _take_rows(sums: UnitSums, positions: Sequence[int]) -> UnitSums:
    return UnitSums(sums.sums[list(positions)], sums.counts[list(positions)])


BEST_ON_TEST = "best on test: chosen by looking"
_MOST_NAMES = 4  # candidates that a note names


def choose_among(
    candidate_set: CandidateSet,
    notes: Sequence[str] = (),
    *,
    metric: str = "R@1",
    within: float = WITHIN,
    seed: int = 0,
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
    eligible, skipped = _select_eligible(candidate_set, seed)
    kind = IntervalKind(cluster=candidate_set.cluster)
    choosing, share = eligible.choosing, within / 100
    picked = pick(choosing, eligible.costs, eligible.raw, eligible.finer)
    extrapolated = eligible.growth
    growth = 1.0 if extrapolated is None else extrapolated
    preferred = eligible.candidates[picked.place]
    verdicts = _Verdicts(eligible, picked, share, growth, seed)
    has_enough_classes = verdicts.of_all.at_most is not None
    resampled = resample_choice(choosing, eligible.costs, eligible.raw, seed=seed)
    crossed = eligible.cross_fit_choice()
    folds = () if crossed is None else (f"cross-fitted, {len(crossed.places)} folds",)
    test = None if eligible.on_test is None else _take_row(eligible.on_test, picked.place)
    row = test if crossed is None else crossed.cells
    comparison = _compare_with_embedding(
        candidate_set, preferred, row, metric, share, seed=seed, has_enough_classes=has_enough_classes
    )
    kept_embedding = comparison.kept_embedding
    selected = preferred if kept_embedding is None else kept_embedding.candidate

    def score_candidate(candidate: Candidate, split: str, row: UnitSums | None, score_notes: tuple[str, ...]) -> Score:
        return _score(eligible.subject(candidate, split), metric, row, score_notes, kind)

    is_eligible = selected in eligible.candidates
    position = candidate_set.candidates.index(selected) if selected in candidate_set.candidates else None
    chosen = score_candidate(
        selected, candidate_set.split, None if position is None else _take_row(candidate_set.choosing, position), folds
    )
    preferred_test = None if row is None else score_candidate(preferred, "test", row, folds)
    on_test = preferred_test if kept_embedding is None else score_candidate(selected, "test", kept_embedding.test, ())
    best = _score_best_on_test(eligible, score_candidate)
    names = candidate_names(eligible.candidates, chosen.run, candidate_set.candidates)
    of_test = eligible.on_test
    return Choice(
        run=chosen.run,
        ship=selected.ship,
        preferred=preferred.ship,
        chosen=chosen,
        test=on_test,
        preferred_test=preferred_test,
        embedding=comparison.embedding,
        gain=comparison.gain,
        gain_classes=comparison.units,
        gain_elsewhere=comparison.elsewhere,
        price=Price(selected.bytes_per_image, None),
        preferred_price=Price(preferred.bytes_per_image, None),
        advice=comparison.advice,
        **verdicts.choice_fields(candidate_set, chosen.run),
        expected_loss=100 * growth * resampled.expected_loss if has_enough_classes else None,
        candidates=len(eligible.candidates),
        classes=choosing.units,
        test_classes=None if of_test is None else of_test.units,
        gallery_classes=candidate_set.classes if extrapolated is None else candidate_set.gallery_classes,
        extrapolated=extrapolated is not None,
        best_on_test=best,
        regret=None if crossed is not None or not is_eligible else _compute_regret(on_test, best),
        optimism=None if of_test is None else optimism(of_test, folds_of(range(of_test.sums.shape[1]), seed=seed)),
        shares=_sort_shares(dict(zip(names, resampled.shares.tolist(), strict=True))),
        within=within,
        units="classes" if candidate_set.cluster is None else "clusters",
        within_folds=candidate_set.within_folds and candidate_set.split == "test",
        notes=(*folds, *_note_disagreement(crossed, names), *dict.fromkeys(notes)),
        details=tuple(skipped),
    )


@dataclass(frozen=True, eq=False)
class _Verdicts:
    """How sure a choice is: of all candidates, of the layer, and of the layer's post-processing."""

    candidate_set: CandidateSet
    picked: Picked
    within: float
    growth: float
    seed: int

    @cached_property
    def of_all(self) -> Judged:
        """The picked candidate among all."""
        return self._judge(list(range(len(self.candidate_set.candidates))), self.picked)

    def choice_fields(self, candidate_set: CandidateSet, run: str) -> dict[str, Any]:
        """The fields of a `Choice` that say how sure it is."""
        judged, candidates = self.of_all, self.candidate_set.candidates
        names, costs = candidate_names(candidates, run, candidate_set.candidates), self.candidate_set.costs
        cheapest_first = sorted(judged.equivalent, key=costs.__getitem__)
        lead = judged.lead
        position, same_layer, means = self.picked.place, self._find_same_layer(), self.candidate_set.choosing.means
        best = max(same_layer, key=means.__getitem__)
        other_layers = [other for other in range(len(candidates)) if other not in same_layer]
        return {
            "verdict": judged.verdict,
            "at_most": None if judged.at_most is None else 100 * judged.at_most,
            "runner_up": None if judged.runner_up is None else names[judged.runner_up],
            "lead": None if lead is None else Gain(lead.value, lead.low, lead.high),
            "ties": int((self.candidate_set.choosing.means >= means[position] - EQUAL).sum()) - 1
            if means[position] >= means.max() - EQUAL
            else 0,
            "equivalent": tuple(names[position] for position in cheapest_first),
            "classes_needed": judged.units_needed,
            "layer": self._judge_among(
                [best, *other_layers], best, len({_layer_of(candidates[other]) for other in other_layers})
            ),
            "post_processing": self._judge_among(same_layer, position, len(same_layer) - 1)
            if len(same_layer) > 1
            else None,
        }

    def _find_same_layer(self) -> list[int]:
        layer = _layer_of(self.candidate_set.candidates[self.picked.place])
        return [
            position
            for position, candidate in enumerate(self.candidate_set.candidates)
            if _layer_of(candidate) == layer
        ]

    def _judge_among(self, positions: list[int], position: int, alternatives: int) -> Certainty:
        means = self.candidate_set.choosing.means[positions]
        judged = self._judge(positions, Picked(positions.index(position), int(means.argmax())))
        lead = None if judged.lead is None else Gain(judged.lead.value, judged.lead.low, judged.lead.high)
        return Certainty(judged.verdict, None if judged.at_most is None else 100 * judged.at_most, alternatives, lead)

    def _judge(self, positions: list[int], picked: Picked) -> Judged:
        cells = self.candidate_set.select(positions).choosing
        return judge(cells, picked, within=self.within, growth=self.growth, seed=self.seed)


def _layer_of(candidate: Candidate) -> tuple[str, str]:
    """The run and the layer, whatever its epoch, pool and reduction."""
    return candidate.run, candidate.ranked.layer.layer


def _score_best_on_test(
    candidate_set: CandidateSet, score_candidate: Callable[[Candidate, str, UnitSums, tuple[str, ...]], Score]
) -> Score | None:
    test = candidate_set.on_test
    if test is None:
        return None
    position = pick(test, candidate_set.costs, candidate_set.raw).best
    return score_candidate(candidate_set.candidates[position], "test", _take_row(test, position), (BEST_ON_TEST,))


def _select_eligible(candidate_set: CandidateSet, seed: int) -> tuple[CandidateSet, list[str]]:
    """The distinct candidates above chance with valid numbers, and notes on the others."""
    candidate_set = candidate_set.select(
        [position for position in range(len(candidate_set.candidates)) if position not in candidate_set.only_compared]
    )
    finite = np.isfinite(candidate_set.choosing.sums).all(1) & np.isfinite(candidate_set.above_chance.sums).all(1)
    if not finite.any():
        raise NumericError("no candidate has a valid number", fix="Probe layers and epochs whose features are finite")
    notes = []
    if invalid := int((~finite).sum()):
        notes.append(f"skipped: {invalid:,} of the candidates without a valid number")
    valid = candidate_set.select(np.flatnonzero(finite).tolist())
    at_chance, run = valid.find_at_chance(seed), valid.subject_of(valid.candidates[0], valid.split).run
    names = candidate_names(valid.candidates, run, candidate_set.candidates)
    if len(at_chance) == len(valid.candidates):
        split = chosen_on_text(valid.split).removesuffix(" classes")
        message = f"no layer is above chance on the {valid.choosing.units} {split} classes: {_list_names(names)}"
        raise DataError(message, fix="Check the labels, or measure another model")
    if at_chance:
        skipped = _list_names([names[position] for position in at_chance])
        notes.append(f"skipped: not above chance on {chosen_on_text(valid.split)}: {skipped}")
    valid = valid.select([position for position in range(len(names)) if position not in at_chance])
    distinct = valid.find_distinct()
    if duplicates := len(valid.candidates) - len(distinct):
        names = candidate_names(valid.candidates, run, candidate_set.candidates)
        duplicate_names = [name for position, name in enumerate(names) if position not in distinct]
        verb = "ranks" if duplicates == 1 else "rank"
        notes.append(f"counted once: {_list_names(duplicate_names)} {verb} every query like another candidate")
    return valid.select(distinct), notes


@dataclass(frozen=True, eq=False)
class _EmbeddingComparison:
    """A candidate compared with the embedding on test.

    Args:
        kept_embedding: the embedding if it is selected, else None.
        units: that the gain is measured on.
        elsewhere: whether these did not decide.
    """

    kept_embedding: Baseline | None = None
    embedding: Embedding | None = None
    advice: Advice = "unknown"
    gain: Gain | None = None
    units: int | None = None
    elsewhere: bool = False


def _compare_with_embedding(  # noqa: PLR0913 - the candidates, their values and the rule
    candidate_set: CandidateSet,
    preferred: Candidate,
    row: UnitSums | None,
    metric: str,
    within: float,
    *,
    seed: int,
    has_enough_classes: bool,
) -> _EmbeddingComparison:
    """The advice, the gain and the embedding; where it cannot be told, the embedding is kept.

    Args:
        row: of the preferred candidate on test; of the procedure if cross-fitted.
        within: a share.
        has_enough_classes: whether there are enough classes to choose on.
    """
    baseline = candidate_set.baselines.get(preferred.run)
    if baseline is None or row is None:
        return _EmbeddingComparison()
    embedding = _score_embedding(candidate_set, preferred, baseline, row, metric, seed)
    advised = advise(row.minus(baseline.test), within=within, seed=seed)
    advice, is_embedding = advised.advice, preferred.ship == baseline.candidate.ship
    if is_embedding:
        advice = "keep"
    elif not has_enough_classes:
        advice = "unknown"
    cheaper = preferred.bytes_per_image < baseline.candidate.bytes_per_image
    keeps = is_embedding or advice in ("keep", "unknown") or (advice == "either" and not cheaper)
    gain = Gain(advised.gain.value, advised.gain.low, advised.gain.high)
    kept_embedding = baseline if keeps else None
    return _EmbeddingComparison(kept_embedding, embedding, advice, gain, advised.units, advised.decided_elsewhere)


def _score_embedding(  # noqa: PLR0913 - the candidates and their values
    candidate_set: CandidateSet, preferred: Candidate, baseline: Baseline, row: UnitSums, metric: str, seed: int
) -> Embedding:
    """The embedding, and as it is at the preferred epoch and post-processing."""
    kind = IntervalKind(cluster=candidate_set.cluster)
    subject = candidate_set.subject(baseline.candidate, "test")
    score, whole_gallery = _score(subject, metric, baseline.test, (), kind), None
    if baseline.whole_gallery is not None:
        whole_subject = candidate_set.subject(baseline.candidate, "test", whole_gallery=True)
        whole_gallery = _score(whole_subject, metric, baseline.whole_gallery, (), kind)
    counterpart = _find_counterpart(candidate_set, preferred, baseline)
    if counterpart is None or candidate_set.on_test is None:
        return Embedding(baseline.candidate.ship, score, whole_gallery=whole_gallery)
    test = _take_row(candidate_set.on_test, counterpart)
    counterpart_score = _score(
        candidate_set.subject(candidate_set.candidates[counterpart], "test"), metric, test, (), kind
    )
    gain = _measure_difference(row, test, seed)
    return Embedding(baseline.candidate.ship, score, counterpart_score, gain, whole_gallery=whole_gallery)


def _find_counterpart(candidate_set: CandidateSet, shipped: Candidate, baseline: Baseline) -> int | None:
    """The embedding at the shipped epoch and post-processing; None if it is the baseline, or what is shipped."""
    layer = baseline.candidate.ranked.layer
    if shipped.ranked.layer == layer:
        return None
    for position, candidate in enumerate(candidate_set.candidates):
        same_run = (candidate.run, candidate.epoch) == (shipped.run, shipped.epoch)
        same = _strip_dimensions(candidate.ranked.reduction) == _strip_dimensions(shipped.ranked.reduction)
        is_baseline = (candidate.epoch, candidate.ranked) == (baseline.candidate.epoch, baseline.candidate.ranked)
        if same_run and same and candidate.ranked.layer == layer and not is_baseline:
            return position
    return None


def _strip_dimensions(reduction: str) -> str:
    """`l2+whiten:128:0.5+l2` -> `l2+whiten:0.5+l2`: half-whitening leaves a small layer fewer dimensions."""
    return re.sub(r"(pca|whiten|random):\d+", r"\1", reduction)


def _measure_difference(row: UnitSums, embedding_row: UnitSums, seed: int) -> Gain:
    (difference,) = differences(row.minus(embedding_row), seed=seed)
    difference = with_ends(difference, row.units)
    return Gain(difference.value, difference.low, difference.high)


def _note_disagreement(cross_fitted: CrossFitted | None, names: Sequence[str]) -> tuple[str, ...]:
    if cross_fitted is None or len(set(cross_fitted.places)) == 1:
        return ()
    counts = {names[position]: cross_fitted.places.count(position) for position in sorted(set(cross_fitted.places))}
    chosen = ", ".join(f"{name} in {count}" for name, count in counts.items())
    return (f"the folds choose {chosen}: the value and the gain on test are of the procedure, not of one candidate",)


def _take_row(sums: UnitSums, position: int) -> UnitSums:
    return UnitSums(sums.sums[[position]], sums.counts[[position]])


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


def _compute_regret(test: Score | None, best: Score | None) -> float | None:
    if test is None or best is None or test.value is None or best.value is None:
        return None
    return best.value - test.value


def _sort_shares(shares: Mapping[str, float]) -> dict[str, float]:
    return {name: share for name, share in sorted(shares.items(), key=lambda pair: -pair[1]) if share > 0}


def _list_names(names: Sequence[str]) -> str:
    suffix = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + suffix
