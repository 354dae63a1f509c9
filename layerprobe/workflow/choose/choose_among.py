"""Candidates that compete on the same queries -> a `Choice` and whether to switch to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from layerprobe.post_processing.chain import parse_chain
from layerprobe.statistics.choice import EQUAL, cross_fit, folds_of, optimism, pick, resample_choice
from layerprobe.statistics.units import UnitSums, intervals, stack_means
from layerprobe.statistics.verdict import Judged, above, advise, gains, growth_of_differences, judge
from layerprobe.system.errors import DataError, NumericError
from layerprobe.values.choice import (
    Certainty,
    Choice,
    Embedding,
    ImageCost,
    LabelGain,
    SelectedLayer,
    TruncationSavings,
    UnitValues,
)
from layerprobe.values.facts import WITHIN_FOLDS, chosen_on_text
from layerprobe.values.intervals import FEWEST_UNITS, IntervalKind, SamplingUnits
from layerprobe.values.layers import NO_POST_PROCESSING, RankedLayer, layer_names
from layerprobe.values.scores import Score, Subject
from layerprobe.workflow.choose.request import WITHIN


@dataclass(frozen=True, eq=False)
class Candidate:
    """A layer at an epoch, with its pool, post-processing and similarity, and its mean values by class.

    Args:
        subject: what is scored of it on the classes that are chosen on. Its notes are those of all its scores there,
            but that it is searched within folds.
        dim: numbers, or bits, of an image's vector.
        position: of the layer in the network.
        selection: (1, U) values on the classes that are chosen on; of post-processing that is fitted on them, out of
            fold. None only of an embedding that is not measured there.
        above_chance: (1, U) Recall@1 over that of a random ranking; None likewise.
        among_half: their mean in a gallery with half of the negatives; NaN where that is unknown.
        identity: candidates of one identity rank every query alike.
        test: (1, U') values on the test classes, those of `selection` if cross-fitted; None without test classes.
        test_notes: as the notes of `subject`, on test.
        whole_gallery: (1, U') of an embedding, the values in the gallery of all test classes, where `test` is searched
            within folds; else None.
        cut: what comes after the layer in the network; None if unknown.
        trainings: over which the values are means.
    """

    subject: Subject
    dim: int
    position: int
    selection: UnitSums | None
    above_chance: UnitSums | None
    among_half: float
    identity: Hashable
    test: UnitSums | None
    test_notes: tuple[str, ...] = ()
    whole_gallery: UnitSums | None = None
    cut: TruncationSavings | None = None
    trainings: int = 1

    @property
    def run(self) -> str:
        """The run's name; the experiment's of several trainings."""
        return self.subject.run

    @property
    def key(self) -> tuple[int, RankedLayer]:
        """Epoch and layer."""
        return self.subject.epoch, self.subject.ranked

    @property
    def needs_labels(self) -> bool:
        """Whether its map is fitted with classes."""
        return parse_chain(self.subject.ranked.post_processing).needs_labels

    @property
    def steps(self) -> int:
        """The number of post-processing in its chain."""
        post_processing = self.subject.ranked.post_processing
        return 0 if post_processing == NO_POST_PROCESSING else post_processing.count("+") + 1

    @property
    def cost(self) -> tuple[int, int, int, int]:
        """A lower one is cheaper: bytes an image, then position, then length of the chain, then epoch."""
        return (self.layer.bytes_per_image, self.position, self.steps, self.subject.epoch)

    @property
    def layer(self) -> SelectedLayer:
        """The layer as in a `Choice`."""
        epoch, ranked = self.key
        size = parse_chain(ranked.post_processing).bytes_per_image(self.dim)
        return SelectedLayer(ranked.layer.layer, ranked.layer.pool, ranked.post_processing, epoch, self.dim, size)

    @property
    def image_cost(self) -> ImageCost:
        """What an image costs with it."""
        operations = None if self.cut is None else self.cut.operations
        return ImageCost(self.layer.bytes_per_image, None if operations is None else 1 - operations)

    @property
    def is_finite(self) -> bool:
        """Whether it has valid numbers on the classes that are chosen on."""
        return all(x is not None and np.isfinite(x.sums).all() for x in (self.selection, self.above_chance))


@dataclass(frozen=True, eq=False)
class Candidates:
    """C candidates that compete on the same queries.

    Args:
        competing: C.
        split: whose classes are chosen on: validation; train where the network has not seen them; test if cross-fitted.
        classes: of the gallery that is searched on the classes that are chosen on.
        gallery_classes: of the gallery that the choice is for: that of test.
        compared: those that do not compete, and with which the preferred one is compared.
        embeddings: run -> its embedding without post-processing at the last measured epoch, be it competing or not;
            empty if that is unknown or not measured on test.
        folds: (U,) fold of each class; None unless cross-fitted.
        cluster: whose values are the units; None for the classes.
        within_folds: whether each fold of the classes that are chosen on is searched in itself.
        average_precisions: of some candidates, (C', U) on the classes that are chosen on, where they can be measured:
            they decide between near means. None without them.
        permuted: of a candidate, (1, U') its values on the test classes by a map that is fitted with permuted classes;
            None where they cannot be measured.
        labelled_classes: with which maps are fitted.
        budget: bytes an image that competing candidates have at most; None for any number.
        metric: of the values.
    """

    competing: Sequence[Candidate]
    split: str
    classes: int
    gallery_classes: int
    compared: Sequence[Candidate] = ()
    embeddings: Mapping[str, Candidate] = field(default_factory=dict)
    folds: NDArray[np.int64] | None = None
    cluster: str | None = None
    within_folds: bool = False
    average_precisions: Callable[[Sequence[Candidate]], UnitSums | None] | None = None
    permuted: Callable[[Candidate], UnitSums | None] | None = None
    labelled_classes: int = 0
    budget: int | None = None
    metric: str = "R@1"

    @cached_property
    def selection(self) -> UnitSums:
        """(C, U) the values on the classes that are chosen on."""
        return stack_means([x.selection for x in self.competing if x.selection is not None])

    @cached_property
    def test(self) -> UnitSums | None:
        """(C, U') the values on the test classes, cross-fitted or not; None without any."""
        tests = [x.test for x in self.competing if x.test is not None]
        return stack_means(tests) if tests else None

    @property
    def costs(self) -> list[tuple[int, ...]]:
        """The cost of each candidate."""
        return [candidate.cost for candidate in self.competing]

    @property
    def raw(self) -> list[bool]:
        """Whether each candidate is a layer without post-processing."""
        return [candidate.steps == 0 for candidate in self.competing]

    @property
    def growth(self) -> float | None:
        """By how much differences grow from the gallery that is searched to that which the choice is for, if larger."""
        among_half = np.array([candidate.among_half for candidate in self.competing])
        there = np.isfinite(among_half)
        if not there.any():
            return None
        misses, among_half_misses = (1 - float(means[there].mean()) for means in (self.selection.means, among_half))
        return growth_of_differences(misses, among_half_misses, self.classes, self.gallery_classes)

    def finer(self, places: Sequence[int]) -> UnitSums | None:
        """The measure that decides between near means, of some candidates; None where it is not known."""
        return self.average_precisions and self.average_precisions([self.competing[place] for place in places])

    def names(self, candidates: Sequence[Candidate], among: Sequence[Candidate] = ()) -> list[str]:
        """`pool5.2@max`, or `netA#16:pool5.2@max` if those `among` which they are chosen differ in run or epoch.

        Args:
            among: empty for all, those that are only compared, too.
        """
        every = among or [*self.competing, *self.compared]
        names = layer_names(candidate.subject.ranked for candidate in candidates)
        if len({(candidate.run, candidate.subject.epoch) for candidate in every}) == 1:
            return names
        return [f"{x.run}#{x.subject.epoch}:{name}" for x, name in zip(candidates, names, strict=True)]

    def score(
        self,
        candidate: Candidate,
        split: str,
        values: UnitSums | None,
        notes: tuple[str, ...] = (),
        *,
        whole_gallery: bool = False,
    ) -> Score:
        """The score of a candidate, with its interval; its n is that of its queries, or of several trainings.

        Args:
            values: (1, U); None where it is not measured.
            whole_gallery: whether they are of the whole gallery where those of `selection` are within folds.
        """
        subject, trainings = candidate.subject, candidate.trainings
        if split != self.split:
            subject = replace(subject, split=split, notes=candidate.test_notes)
        elif self.within_folds and not whole_gallery:
            subject = replace(subject, notes=(*subject.notes, WITHIN_FOLDS))
        count = trainings if trainings > 1 else 0 if values is None else round(float(values.counts.sum()))
        if values is None:
            return subject.score(self.metric, None, count, [*notes, "not measured"])
        if not np.isfinite(values.sums).all():
            return subject.score(self.metric, None, count, [*notes, "NaN"])
        (interval,), units = intervals(values), None
        if interval is not None or values.units < FEWEST_UNITS:
            units = SamplingUnits(IntervalKind(cluster=self.cluster), values.units)
        return subject.score(self.metric, float(values.means[0]), count, notes, interval=interval, units=units)


BEST_ON_TEST = "best on test: chosen by looking"
_MOST_NAMES = 4  # candidates that a note names


def choose_among(candidates: Candidates, notes: Sequence[str] = (), *, within: float = WITHIN, seed: int = 0) -> Choice:
    """Choose a candidate, decide between it and the embedding, and score on test what is selected.

    Args:
        within: points of the metric that do not matter.

    Raises:
        DataError: no candidate is above chance.
        NumericError: no candidate has a valid number.
    """
    eligible, skipped = _select_eligible(candidates, seed)
    selection, costs, raw, growth = eligible.selection, eligible.costs, eligible.raw, eligible.growth
    index = pick(selection, costs, raw, eligible.finer)
    judge_by = partial(judge, within=within / 100, growth=growth or 1.0, seed=seed)
    judged, means, names = judge_by(selection, index), selection.means, candidates.names(eligible.competing)
    layer, post_processing = _judge_layer(eligible, index, judge_by)
    expected_loss, shares = resample_choice(selection, costs, raw, seed=seed)
    preferred = eligible.competing[index]
    kept = _kept_embedding(candidates, preferred.run) if judged.max_loss is None else None
    preferred = kept or preferred
    choice = Choice(
        run=preferred.run,
        selected=preferred.layer,
        preferred=preferred.layer,
        chosen=candidates.score(preferred, candidates.split, preferred.selection),
        cost=preferred.image_cost,
        preferred_cost=preferred.image_cost,
        verdict=judged.verdict,
        max_loss=None if judged.max_loss is None else 100 * judged.max_loss,
        expected_loss=None if judged.max_loss is None else 100 * (growth or 1.0) * expected_loss,
        layer=layer,
        post_processing=post_processing,
        runner_up=None if judged.runner_up is None else names[judged.runner_up],
        lead=judged.lead,
        ties=int((means >= means[index] - EQUAL).sum()) - 1 if means[index] >= means.max() - EQUAL else 0,
        equivalent=tuple(names[other] for other in sorted(judged.equivalent, key=costs.__getitem__)),
        candidates=len(eligible.competing),
        classes=selection.units,
        gallery_classes=candidates.classes if growth is None else candidates.gallery_classes,
        extrapolated=growth is not None,
        classes_needed=judged.units_needed,
        shares={names[other]: float(shares[other]) for other in np.argsort(-shares, kind="stable") if shares[other]},
        within_folds=candidates.within_folds and candidates.split == "test",
        budget=candidates.budget,
        within=within,
        units="classes" if candidates.cluster is None else "clusters",
        notes=tuple(dict.fromkeys(notes)),
        details=tuple(skipped),
        cut=preferred.cut,
    )
    scored = replace(eligible, folds=None) if kept else eligible  # an embedding that is kept is no choice of the folds
    choice = _score_on_test(choice, candidates, scored, preferred, seed)
    return replace(choice, labels=_gain_by_labels(eligible, index, seed)) if preferred.needs_labels else choice


def _kept_embedding(candidates: Candidates, run: str) -> Candidate | None:
    """The embedding of a run, which is kept where too few classes tell candidates apart; None where it cannot be."""
    embedding = candidates.embeddings.get(run)
    if embedding is None or embedding.test is None:
        return None
    is_over = candidates.budget is not None and embedding.layer.bytes_per_image > candidates.budget
    return None if is_over else embedding


def _gain_by_labels(eligible: Candidates, index: int, seed: int) -> LabelGain | None:
    """What the classes gain that the map of the preferred candidate is fitted with; None without other candidates."""
    unlabelled = [candidate for candidate in eligible.competing if not candidate.needs_labels]
    if not unlabelled:
        return None
    preferred, others = eligible.competing[index], replace(eligible, competing=unlabelled)
    other = unlabelled[pick(others.selection, others.costs, others.raw, others.finer)]
    label_gain = LabelGain(eligible.labelled_classes, other.layer)
    values, other_values = preferred.test, other.test
    if values is None or other_values is None:
        return label_gain
    permuted = None if eligible.permuted is None else eligible.permuted(preferred)
    if eligible.folds is not None:
        (_, values), (_, other_values) = (_cross_fit(part, eligible.folds) for part in (eligible, others))
    (gain,) = gains(values.minus(other_values), seed=seed)
    of_permuted = None if permuted is None else gains(permuted.minus(other_values), seed=seed)[0]
    return replace(label_gain, gain=gain, permuted=of_permuted)


def _score_on_test(
    choice: Choice, candidates: Candidates, eligible: Candidates, preferred: Candidate, seed: int
) -> Choice:
    """The choice with scores on test, and what is selected by the advice on the embedding; itself without test classes.

    Args:
        preferred: if cross-fitted, each fold is scored by the choice on the others.
    """
    on_test = eligible.test
    values, crossed = preferred.test, tuple[str, ...]()
    if on_test is None or values is None:
        return choice
    notes = choice.notes
    if eligible.folds is not None:
        fold_places, values = _cross_fit(eligible, eligible.folds)
        crossed = (f"cross-fitted, {len(fold_places)} folds",)
        notes = (*crossed, *_note_disagreement(fold_places, candidates.names(eligible.competing)), *notes)
    preferred_test = candidates.score(preferred, "test", values, crossed)
    selected, test = preferred, preferred_test
    choice = _compare_with_embedding(choice, candidates, preferred, values, seed)
    if choice.embedding is not None and not choice.is_over_budget(choice.embedding.layer):
        is_cheaper = choice.preferred.bytes_per_image < choice.embedding.layer.bytes_per_image
        if choice.advice in ("keep", "inconclusive") or (choice.advice == "either" and not is_cheaper):
            selected, test = candidates.embeddings[preferred.run], choice.embedding.test
    best_place = pick(on_test, eligible.costs, eligible.raw)
    best = candidates.score(eligible.competing[best_place], "test", on_test[[best_place]], (BEST_ON_TEST,))
    value = test.value if selected in eligible.competing and not crossed else None
    return replace(
        choice,
        selected=selected.layer,
        chosen=candidates.score(selected, candidates.split, selected.selection, crossed),
        test=test,
        preferred_test=preferred_test,
        test_values=_by_unit(values) if preferred_test.value is not None else None,
        cost=selected.image_cost,
        test_classes=on_test.units,
        best_on_test=best,
        regret=None if value is None or best.value is None else best.value - value,
        optimism=optimism(on_test, folds_of(range(on_test.sums.shape[1]), seed=seed)),
        notes=notes,
        cut=selected.cut,
    )


def _by_unit(values: UnitSums) -> UnitValues:
    """The values (1, U) of a mean as a choice keeps them."""
    return UnitValues(tuple(values.sums[0].tolist()), tuple(values.counts[0].tolist()))


def _select_eligible(candidates: Candidates, seed: int) -> tuple[Candidates, list[str]]:
    """The distinct candidates above chance with valid numbers, and notes on the others."""
    valid = [candidate for candidate in candidates.competing if candidate.is_finite]
    if not valid:
        raise NumericError("no candidate has a valid number", fix="Probe layers and epochs whose features are finite")
    notes = []
    if invalid := len(candidates.competing) - len(valid):
        notes.append(f"skipped: {invalid:,} of the candidates without a valid number")
    split, names = chosen_on_text(candidates.split), candidates.names(valid, candidates.competing)
    is_above = above(stack_means([x.above_chance for x in valid if x.above_chance is not None]), seed=seed).tolist()
    if not any(is_above):
        units = replace(candidates, competing=valid).selection.units
        classes = f"{units} {split.removesuffix(' classes')} classes"
        message = f"no layer is above chance on the {classes}: {list_names(names)}"
        raise DataError(message, fix="Check the labels, or measure another model")
    if not all(is_above):
        at_chance = [name for name, better in zip(names, is_above, strict=True) if not better]
        notes.append(f"skipped: not above chance on {split}: {list_names(at_chance)}")
        valid = [candidate for candidate, better in zip(valid, is_above, strict=True) if better]
    distinct = _find_distinct(candidates, valid)
    if duplicates := [candidate for candidate in valid if candidate not in distinct]:
        duplicate_names = [
            name
            for candidate, name in zip(valid, candidates.names(valid, candidates.competing), strict=True)
            if candidate in duplicates
        ]
        verb = "ranks" if len(duplicates) == 1 else "rank"
        notes.append(f"counted once: {list_names(duplicate_names)} {verb} every query like another candidate")
    return replace(candidates, competing=distinct), notes


def _find_distinct(candidates: Candidates, valid: Sequence[Candidate]) -> list[Candidate]:
    """One candidate of each identity: the embedding, else post-processing of it, else the cheapest."""
    embeddings = list(candidates.embeddings.values())
    layers = {(embedding.run, embedding.subject.ranked.layer) for embedding in embeddings}

    def order(candidate: Candidate) -> tuple[bool, bool, tuple[int, ...]]:
        is_post_processed_embedding = (candidate.run, candidate.subject.ranked.layer) in layers
        return candidate not in embeddings, not is_post_processed_embedding, candidate.cost

    distinct: dict[Hashable, Candidate] = {}
    for candidate in sorted(valid, key=order):
        distinct.setdefault(candidate.identity, candidate)
    return [candidate for candidate in valid if distinct[candidate.identity] is candidate]


def _judge_layer(
    eligible: Candidates, index: int, judge_by: Callable[[UnitSums, int], Judged]
) -> tuple[Certainty, Certainty | None]:
    """How sure a layer is, by its own best post-processing, and how sure its post-processing is; None for a single one.

    A layer is that of a run, whatever its epoch and pool.
    """
    cells = eligible.selection
    layers = [(candidate.run, candidate.subject.ranked.layer.layer) for candidate in eligible.competing]
    of_layer = [other for other, layer in enumerate(layers) if layer == layers[index]]
    best = max(of_layer, key=cells.means.__getitem__)

    def certainty(places: list[int], index: int, others: int) -> Certainty:
        judged = judge_by(cells[places], places.index(index))
        max_loss = None if judged.max_loss is None else 100 * judged.max_loss
        return Certainty(judged.verdict, max_loss, others, judged.lead)

    rivals = [other for other, layer in enumerate(layers) if layer != layers[index]]
    post_processing = certainty(of_layer, index, len(of_layer) - 1) if len(of_layer) > 1 else None
    return certainty([best, *rivals], best, len(set(layers)) - 1), post_processing


def _cross_fit(eligible: Candidates, folds: NDArray[np.int64]) -> tuple[tuple[int, ...], UnitSums]:
    """The candidate that the other folds choose for each fold, and (1, U) the values of each fold by its candidate."""
    costs, raw = eligible.costs, eligible.raw

    def choose(other_folds: UnitSums, fold: int) -> int:
        def finer_there(places: Sequence[int]) -> UnitSums | None:
            sums = eligible.finer(places)
            return None if sums is None else sums[:, folds != fold]

        return pick(other_folds, costs, raw, finer_there)

    return cross_fit(eligible.selection, folds, choose)


def _compare_with_embedding(
    choice: Choice, candidates: Candidates, preferred: Candidate, values: UnitSums, seed: int
) -> Choice:
    """The choice with the embedding, whether to switch from it, and the gain; itself where that is not known.

    Args:
        values: (1, U') of the preferred candidate on test; of the procedure if cross-fitted.
    """
    embedding = candidates.embeddings.get(preferred.run)
    if embedding is None or embedding.test is None:
        return choice
    advised = advise(values.minus(embedding.test), within=choice.within / 100, seed=seed)
    if choice.max_loss is None:  # too few classes to choose on
        advised = replace(advised, advice="inconclusive")
    elif preferred.layer == embedding.layer:
        advised = replace(advised, advice="keep")
    compared = Embedding(
        embedding.layer, candidates.score(embedding, "test", embedding.test), cost=embedding.image_cost
    )
    if embedding.whole_gallery is not None:
        score = candidates.score(embedding, "test", embedding.whole_gallery, whole_gallery=True)
        compared = replace(compared, whole_gallery=score)
    counterpart = _find_counterpart(candidates, preferred, embedding)
    # Values of several candidates, chosen by the folds, are not compared with those of one.
    is_of_one = preferred.test is not None and np.array_equal(values.sums, preferred.test.sums, equal_nan=True)
    if counterpart is not None and counterpart.test is not None and is_of_one:
        (gain,) = gains(values.minus(counterpart.test), seed=seed)
        compared = replace(compared, alike=candidates.score(counterpart, "test", counterpart.test), gain=gain)
    return replace(
        choice,
        embedding=compared,
        gain=advised.gain,
        gain_classes=advised.units,
        gain_elsewhere=advised.decided_elsewhere,
        advice=advised.advice,
    )


def _find_counterpart(candidates: Candidates, preferred: Candidate, embedding: Candidate) -> Candidate | None:
    """The embedding at the preferred epoch and post-processing, where it is another candidate than both."""
    (epoch, ranked), layer = preferred.key, embedding.subject.ranked.layer
    if ranked.layer == layer:
        return None
    every = [*candidates.competing, *candidates.compared]
    # That of as many dimensions comes first.
    for candidate in sorted(every, key=lambda other: abs(other.dim - preferred.dim)):
        other = candidate.subject.ranked
        if (
            (candidate.run, candidate.subject.epoch, other.layer) == (preferred.run, epoch, layer)
            and _strip_dimensions(other.post_processing) == _strip_dimensions(ranked.post_processing)
            and candidate.key != embedding.key
        ):
            return candidate
    return None


def _strip_dimensions(post_processing: str) -> str:
    """`l2+whiten:128:0.5+l2` -> `l2+whiten:0.5+l2`: partial whitening leaves a small layer fewer dimensions."""
    return re.sub(r"(pca|whiten|lda|random|first):\d+", r"\1", post_processing)


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
