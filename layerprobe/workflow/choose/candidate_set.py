"""Candidates that compete on the same queries, with their hits by class: of runs, of a model or of arrays alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from layerprobe.statistics.choice import CrossFitted, cross_fitted, pick
from layerprobe.statistics.units import UnitSums
from layerprobe.values.choice import Candidate
from layerprobe.values.scores import Subject

SubjectOf = Callable[[Candidate, str], Subject]  # candidate and split -> what is scored


@dataclass(frozen=True, eq=False)
class CandidateSet:
    """C candidates, and in a cross-fitted choice those that only some folds have found.

    Args:
        candidates: the C candidates, then those of some folds only.
        split: whose classes are chosen on: validation; train where the network has not seen them; test if cross-fitted.
        subject_of: the notes of a subject are those of all its scores.
        choosing: (C, U) hits on these classes; if cross-fitted, each fold's by fits without that fold.
        test: (C, U') hits on the test classes; None without test classes, and if cross-fitted.
        folds: (U,) fold of each class; None unless cross-fitted.
        by_fold: fold -> (all candidates, U) hits by fits without that fold, NaN for candidates not found without it.
            Empty if `choosing` holds for every fold.
    """

    candidates: Sequence[Candidate]
    split: str
    subject_of: SubjectOf
    choosing: UnitSums
    test: UnitSums | None = None
    folds: NDArray[np.int64] | None = None
    by_fold: Mapping[int, UnitSums] = field(default_factory=dict)

    def costs(self, sums: UnitSums) -> list[tuple[int, ...]]:
        """The cost of each candidate that `sums` has a row of."""
        return [candidate.cost for candidate in self.candidates[: len(sums.sums)]]

    def without(self, fold: int | None) -> UnitSums:
        """Hits by fits without a fold, on all classes."""
        return self.choosing if fold is None else self.by_fold.get(fold, self.choosing)

    def best(self, among: Sequence[int], fold: int | None = None) -> int:
        """The place of the candidate with the highest mean among some, on the classes of the other folds."""
        sums = self.without(fold)
        kept = slice(None) if fold is None else np.flatnonzero(self.folds != fold)
        part = UnitSums(sums.sums[among][:, kept], sums.counts[among][:, kept])
        costs = self.costs(sums)
        return among[pick(part, [costs[place] for place in among], within=0.0).best]

    def cross_fitted(self, within: float) -> CrossFitted | None:
        """What choosing on the other folds gives on each fold; None unless cross-fitted.

        Args:
            within: a share, not points.
        """
        if self.folds is None:
            return None
        return cross_fitted(self.without, self.folds, lambda sums: pick(sums, self.costs(sums), within=within).place)
