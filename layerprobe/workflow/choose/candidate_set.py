"""Candidates that compete on the same queries, with their values by class: of runs, of a model or of arrays alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from layerprobe.statistics.choice import CrossFitted, Finer, cross_fit, pick
from layerprobe.statistics.units import UnitSums
from layerprobe.statistics.verdict import above, growth_of_differences
from layerprobe.values.choice import Candidate
from layerprobe.values.facts import WITHIN_FOLDS
from layerprobe.values.retrieval import FloatArray
from layerprobe.values.scores import Subject

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
