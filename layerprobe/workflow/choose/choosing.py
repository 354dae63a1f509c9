"""Candidates that compete on the same queries -> a `Choice` and whether to switch to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from layerprobe.statistics.choice import EQUAL, Finer, cross_fit, folds_of, optimism, pick, resample_choice
from layerprobe.statistics.units import UnitSums, intervals
from layerprobe.statistics.verdict import Advised, Judged, above, advise, gains, growth_of_differences, judge
from layerprobe.system.errors import DataError, NumericError
from layerprobe.values.choice import Candidate, Certainty, Choice, Embedding, Price, candidate_names
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
        metric: of the values.
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
    metric: str = "R@1"

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

    def select(self, positions: Sequence[int]) -> CandidateSet:
        """Some of the candidates."""
        selected, finer = list(positions), self.finer or (lambda _: None)
        return replace(
            self,
            candidates=[self.candidates[position] for position in selected],
            choosing=self.choosing[selected],
            above_chance=self.above_chance[selected],
            identities=[self.identities[position] for position in selected],
            among_half=self.among_half[selected],
            test=None if self.test is None else self.test[selected],
            only_compared=frozenset(new for new, position in enumerate(selected) if position in self.only_compared),
            finer=None if self.finer is None else lambda subset: finer([selected[position] for position in subset]),
        )

    def score(
        self,
        candidate: Candidate,
        split: str,
        row: UnitSums | None,
        notes: tuple[str, ...] = (),
        *,
        whole_gallery: bool = False,
    ) -> Score:
        """The score of a candidate, with its interval.

        Args:
            row: (1, U) its values; None where it is not measured.
            whole_gallery: whether they are of the whole gallery where those of `choosing` are within folds.
        """
        subject = self.subject_of(candidate, split)
        if self.within_folds and split == self.split and not whole_gallery:
            subject = replace(subject, notes=(*subject.notes, WITHIN_FOLDS))
        if row is None:
            return subject.score(self.metric, None, 0, [*notes, "not measured"])
        count = round(float(row.counts.sum()))
        if not np.isfinite(row.sums).all():
            return subject.score(self.metric, None, count, [*notes, "NaN"])
        (interval,), units = intervals(row), None
        if interval is not None or row.units < FEWEST_UNITS:
            units = SamplingUnits(IntervalKind(cluster=self.cluster), row.units)
        return subject.score(self.metric, float(row.means[0]), count, notes, interval=interval, units=units)


BEST_ON_TEST = "best on test: chosen by looking"
_MOST_NAMES = 4  # candidates that a note names


def choose_among(
    candidate_set: CandidateSet, notes: Sequence[str] = (), *, within: float = WITHIN, seed: int = 0
) -> Choice:
    """Choose a candidate, decide between it and the embedding, and score on test what is selected.

    Args:
        within: points of the metric that do not matter.

    Returns:
        `cut` is None.

    Raises:
        DataError: no candidate is above chance.
        NumericError: no candidate has a valid number.
    """
    eligible, skipped = _select_eligible(candidate_set, seed)
    candidates, choosing, on_test = eligible.candidates, eligible.choosing, eligible.on_test
    costs, raw, means, growth = eligible.costs, eligible.raw, choosing.means, eligible.growth
    judge_by = partial(judge, within=within / 100, growth=growth or 1.0, seed=seed)

    index = pick(choosing, costs, raw, eligible.finer)
    preferred, judged = candidates[index], judge_by(choosing, index)
    layer, post_processing = _judge_layer(eligible, index, judge_by)
    expected_loss, shares = resample_choice(choosing, costs, raw, seed=seed)

    # On test; if cross-fitted, each fold by the choice on the others.
    fold_places: tuple[int, ...] = ()
    row = None if on_test is None else on_test[[index]]
    if eligible.folds is not None:
        fold_places, row = _cross_fit(eligible, eligible.folds)
    crossed = (f"cross-fitted, {len(fold_places)} folds",) if fold_places else ()
    preferred_test = None if row is None else candidate_set.score(preferred, "test", row, crossed)
    embedding, advised, baseline = _compare_with_embedding(
        candidate_set, preferred, row, within=within / 100, seed=seed, enough=judged.at_most is not None
    )
    selected, test = preferred, preferred_test
    if baseline is not None:
        selected, test = baseline.candidate, candidate_set.score(baseline.candidate, "test", baseline.test)
    position = candidate_set.candidates.index(selected) if selected in candidate_set.candidates else None
    chosen_row = None if position is None else candidate_set.choosing[[position]]
    chosen = candidate_set.score(selected, candidate_set.split, chosen_row, crossed)
    best = regret = None
    if on_test is not None:
        best_place = pick(on_test, costs, raw)
        best = candidate_set.score(candidates[best_place], "test", on_test[[best_place]], (BEST_ON_TEST,))
        value = test.value if test is not None and selected in candidates and not crossed else None
        regret = None if value is None or best.value is None else best.value - value
    names = candidate_names(candidates, chosen.run, candidate_set.candidates)
    return Choice(
        run=chosen.run,
        ship=selected.ship,
        preferred=preferred.ship,
        chosen=chosen,
        test=test,
        preferred_test=preferred_test,
        embedding=embedding,
        gain=None if advised is None else advised.gain,
        gain_classes=None if advised is None else advised.units,
        gain_elsewhere=advised is not None and advised.decided_elsewhere,
        price=Price(selected.bytes_per_image, None),
        preferred_price=Price(preferred.bytes_per_image, None),
        advice="unknown" if advised is None else advised.advice,
        verdict=judged.verdict,
        at_most=None if judged.at_most is None else 100 * judged.at_most,
        expected_loss=None if judged.at_most is None else 100 * (growth or 1.0) * expected_loss,
        layer=layer,
        post_processing=post_processing,
        runner_up=None if judged.runner_up is None else names[judged.runner_up],
        lead=judged.lead,
        ties=int((means >= means[index] - EQUAL).sum()) - 1 if means[index] >= means.max() - EQUAL else 0,
        equivalent=tuple(names[other] for other in sorted(judged.equivalent, key=costs.__getitem__)),
        candidates=len(candidates),
        classes=choosing.units,
        test_classes=None if on_test is None else on_test.units,
        gallery_classes=candidate_set.classes if growth is None else candidate_set.gallery_classes,
        extrapolated=growth is not None,
        classes_needed=judged.units_needed,
        best_on_test=best,
        regret=regret,
        optimism=None if on_test is None else optimism(on_test, folds_of(range(on_test.sums.shape[1]), seed=seed)),
        shares={
            names[other]: float(shares[other]) for other in np.argsort(-shares, kind="stable") if shares[other] > 0
        },
        within_folds=candidate_set.within_folds and candidate_set.split == "test",
        within=within,
        units="classes" if candidate_set.cluster is None else "clusters",
        notes=(*crossed, *_note_disagreement(fold_places, names), *dict.fromkeys(notes)),
        details=tuple(skipped),
    )


def _select_eligible(candidate_set: CandidateSet, seed: int) -> tuple[CandidateSet, list[str]]:
    """The distinct candidates above chance with valid numbers, and notes on the others."""
    competing = [index for index in range(len(candidate_set.candidates)) if index not in candidate_set.only_compared]
    both = np.hstack([candidate_set.choosing.sums, candidate_set.above_chance.sums])
    with_numbers = set(np.flatnonzero(np.isfinite(both).all(1)).tolist())
    valid = [index for index in competing if index in with_numbers]
    if not valid:
        raise NumericError("no candidate has a valid number", fix="Probe layers and epochs whose features are finite")
    notes = []
    if invalid := len(competing) - len(valid):
        notes.append(f"skipped: {invalid:,} of the candidates without a valid number")

    def names_of(places: Sequence[int]) -> list[str]:
        candidates, every = ([candidate_set.candidates[index] for index in some] for some in (places, competing))
        return candidate_names(candidates, candidate_set.subject_of(every[0], candidate_set.split).run, every)

    split, names = chosen_on_text(candidate_set.split), names_of(valid)
    is_above = above(candidate_set.above_chance[valid], seed=seed).tolist()
    if not any(is_above):
        classes = f"{candidate_set.choosing[valid].units} {split.removesuffix(' classes')} classes"
        message = f"no layer is above chance on the {classes}: {list_names(names)}"
        raise DataError(message, fix="Check the labels, or measure another model")
    if not all(is_above):
        at_chance = [name for name, better in zip(names, is_above, strict=True) if not better]
        notes.append(f"skipped: not above chance on {split}: {list_names(at_chance)}")
        valid = [index for index, better in zip(valid, is_above, strict=True) if better]
    distinct = _find_distinct(candidate_set, valid)
    if duplicates := len(valid) - len(distinct):
        duplicate_names = [name for index, name in zip(valid, names_of(valid), strict=True) if index not in distinct]
        verb = "ranks" if duplicates == 1 else "rank"
        notes.append(f"counted once: {list_names(duplicate_names)} {verb} every query like another candidate")
    return candidate_set.select(distinct), notes


def _find_distinct(candidate_set: CandidateSet, places: Sequence[int]) -> list[int]:
    """One candidate of each identity: the embedding, else a reduction of it, else the cheapest."""
    embeddings = {baseline.candidate for baseline in candidate_set.baselines.values()}
    layers = {(candidate.run, candidate.ranked.layer) for candidate in embeddings}

    def order(index: int) -> tuple[bool, bool, tuple[int, ...]]:
        candidate = candidate_set.candidates[index]
        return candidate not in embeddings, (candidate.run, candidate.ranked.layer) not in layers, candidate.cost

    distinct: dict[Hashable, int] = {}
    for index in sorted(places, key=order):
        distinct.setdefault(candidate_set.identities[index], index)
    return sorted(distinct.values())


def _judge_layer(
    candidate_set: CandidateSet, index: int, judge_by: Callable[[UnitSums, int], Judged]
) -> tuple[Certainty, Certainty | None]:
    """How sure a layer is, by its own best post-processing, and how sure its post-processing is; None for a single one.

    A layer is that of a run, whatever its epoch and pool.
    """
    cells = candidate_set.choosing
    layers = [(candidate.run, candidate.ranked.layer.layer) for candidate in candidate_set.candidates]
    of_layer = [other for other, layer in enumerate(layers) if layer == layers[index]]
    best = max(of_layer, key=cells.means.__getitem__)

    def certainty(places: list[int], index: int, others: int) -> Certainty:
        judged = judge_by(cells[places], places.index(index))
        at_most = None if judged.at_most is None else 100 * judged.at_most
        return Certainty(judged.verdict, at_most, others, judged.lead)

    rivals = [other for other, layer in enumerate(layers) if layer != layers[index]]
    post_processing = certainty(of_layer, index, len(of_layer) - 1) if len(of_layer) > 1 else None
    return certainty([best, *rivals], best, len(set(layers)) - 1), post_processing


def _cross_fit(candidate_set: CandidateSet, folds: NDArray[np.int64]) -> tuple[tuple[int, ...], UnitSums]:
    """The candidate that the other folds choose for each fold, and (1, U) the values of each fold by its candidate."""
    costs, raw, finer = candidate_set.costs, candidate_set.raw, candidate_set.finer

    def choose(other_folds: UnitSums, fold: int) -> int:
        def finer_there(places: Sequence[int]) -> UnitSums | None:
            sums = None if finer is None else finer(places)
            return None if sums is None else sums[:, folds != fold]

        return pick(other_folds, costs, raw, finer_there)

    return cross_fit(candidate_set.choosing, folds, choose)


def _compare_with_embedding(  # noqa: PLR0913 - the values and the rule
    candidate_set: CandidateSet,
    preferred: Candidate,
    row: UnitSums | None,
    *,
    within: float,
    seed: int,
    enough: bool,
) -> tuple[Embedding | None, Advised | None, Baseline | None]:
    """The embedding, whether to switch from it, and itself where it is kept; None without one, or test classes.

    Args:
        row: (1, U') the preferred candidate on test; of the procedure if cross-fitted.
        within: a share.
        enough: whether there are enough classes to choose on.
    """
    baseline = candidate_set.baselines.get(preferred.run)
    if baseline is None or row is None:
        return None, None, None
    advised = advise(row.minus(baseline.test), within=within, seed=seed)
    if preferred.ship == baseline.candidate.ship:
        advised = replace(advised, advice="keep")
    elif not enough:
        advised = replace(advised, advice="unknown")
    is_cheaper = preferred.bytes_per_image < baseline.candidate.bytes_per_image
    keeps = advised.advice in ("keep", "unknown") or (advised.advice == "either" and not is_cheaper)
    return _score_embedding(candidate_set, preferred, baseline, row, seed), advised, baseline if keeps else None


def _score_embedding(
    candidate_set: CandidateSet, preferred: Candidate, baseline: Baseline, row: UnitSums, seed: int
) -> Embedding:
    """The embedding, and as it is at the preferred epoch and post-processing.

    Args:
        row: (1, U) the values of the preferred candidate on test.
    """
    current, whole_gallery = baseline.candidate, None
    score = candidate_set.score(current, "test", baseline.test)
    if baseline.whole_gallery is not None:
        whole_gallery = candidate_set.score(current, "test", baseline.whole_gallery, whole_gallery=True)
    embedding = Embedding(current.ship, score, whole_gallery=whole_gallery)
    if preferred.ranked.layer == current.ranked.layer or candidate_set.on_test is None:
        return embedding
    reduction = _strip_dimensions(preferred.ranked.reduction)
    for index, candidate in enumerate(candidate_set.candidates):
        if (
            (candidate.run, candidate.epoch) == (preferred.run, preferred.epoch)
            and candidate.ranked.layer == current.ranked.layer
            and _strip_dimensions(candidate.ranked.reduction) == reduction
            and (candidate.epoch, candidate.ranked) != (current.epoch, current.ranked)
        ):
            test = candidate_set.on_test[[index]]
            (gain,) = gains(row.minus(test), seed=seed)
            return replace(embedding, alike=candidate_set.score(candidate, "test", test), gain=gain)
    return embedding


def _strip_dimensions(reduction: str) -> str:
    """`l2+whiten:128:0.5+l2` -> `l2+whiten:0.5+l2`: half-whitening leaves a small layer fewer dimensions."""
    return re.sub(r"(pca|whiten|random):\d+", r"\1", reduction)


def _note_disagreement(places: Sequence[int], names: Sequence[str]) -> tuple[str, ...]:
    """The note on folds that choose different candidates."""
    if len(set(places)) <= 1:
        return ()
    chosen = ", ".join(f"{names[index]} in {places.count(index)}" for index in sorted(set(places)))
    return (f"the folds choose {chosen}: the value and the gain on test are of the procedure, not of one candidate",)


def list_names(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    suffix = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + suffix
