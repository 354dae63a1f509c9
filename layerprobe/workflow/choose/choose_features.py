"""choose: a user's own features of several layers -> which layer to ship."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from layerprobe.ranking.sampled_cosines import sampled_cosines
from layerprobe.statistics.choice import folds_of, greedy
from layerprobe.statistics.units import UnitSums, unit_sums
from layerprobe.system.memory import memory_faults_told
from layerprobe.system.progress import Listener
from layerprobe.system.threads import OfEach, in_threads
from layerprobe.values.choice import FOLDS, Choice
from layerprobe.values.keys import NO_REDUCTION, concatenated_key
from layerprobe.values.scores import Subject
from layerprobe.workflow.choose.candidate_set import CandidateSet
from layerprobe.workflow.choose.choose_time import counted, say_how_long
from layerprobe.workflow.choose.choosing import choose_among, require_points
from layerprobe.workflow.choose.given_features import GivenFeatures, given_features, read_given
from layerprobe.workflow.choose.measured_features import CandidateHits, measured, searches
from layerprobe.workflow.choose.row_splits import RowSplits, row_splits_of

Concatenation = tuple[tuple[int, ...], bool]  # indices of the layers, ascending; whether half-whitened


def choose(  # noqa: PLR0913 - the rows, their relation to the network, and the rule
    features: Mapping[str, Any],
    labels: Any,
    *,
    splits: Any = None,
    seen: bool = True,
    within: float = 1.0,
    seed: int = 0,
) -> Choice:
    """Choose the layer to ship from features of any origin, without looking at the classes that judge it.

    Candidates are each layer raw and half-whitened (`l2+whiten:D:0.5+l2`, where D is the minimum of 128, its dimensions
    and the rank of the features that it is fitted on), and concatenations of at most three layers, found greedily. The
    cheapest candidate is chosen that is at most `within` points of Recall@1 worse than the best, with 95 % confidence
    by the paired error over classes. Each image is searched among the others of its split, by cosine similarity.

    `splits` decide which rows are chosen on:

    - with validation rows, these; reductions are fitted on the train rows.
    - with train and test rows, the test rows, cross-fitted over 5 folds of classes: each fold scores what is chosen on
      the other four. Reductions are fitted on the train rows. Nothing is chosen on these, as a network that was trained
      on them has memorised them in its last layers.
    - with train and test rows and `seen=False`, the train rows, each fold of classes with a reduction that is fitted on
      the other four.
    - without splits, or with a single one, all rows, cross-fitted with reductions that are fitted on the other four
      folds. Every fold searches the whole gallery.

    A layer whose rows are all one vector, up to its length, is skipped with a note.

    >>> import numpy as np, layerprobe
    >>> rng, labels = np.random.default_rng(0), np.repeat(np.arange(30), 4)
    >>> classes = rng.normal(size=(30, 16))[labels]
    >>> noisy, clear = (classes + rng.normal(size=classes.shape) * noise for noise in (2, 0.3))
    >>> choice = layerprobe.choose({"early": noisy, "late": clear}, labels)
    >>> choice.ship.layer, choice.ship.bytes_per_image, choice.test.value
    ('late', 64, 1.0)

    Args:
        features: name of a layer -> (N, D) real numbers, an array or tensor each; in network order, as of layers of
            equal size the earlier one is cheaper.
        labels: (N,) integers or strings, the class of each row.
        splits: (N,) train, validation or test for each row; None for a single split. No class may be in two splits.
        seen: whether the network may have been trained on the train rows.
        within: how much worse than the best a cheaper candidate may be, in points of Recall@1, 0 to 100.
        seed: of folds, resamples and the sample on which concatenations are tried.

    Returns:
        What to ship, its Recall@1 on the classes that it was chosen on and on test, and how sure the choice is.

    Raises:
        DataError: no features, shapes or types that do not fit, fewer than 2 classes, a class in two splits, or every
            layer collapsed to one vector.
        NumericError: NaN or Inf.
        RecipeError: `within` is not from 0 to 100, or all are train rows that may have been seen.
        UnknownNameError: a split of another name.
    """
    return _chosen(given_features(features, labels, splits), within, seed, seen=seen)


def choose_file(path: Path, *, within: float = 1.0, seed: int = 0, listener: Listener | None = None) -> Choice:
    """Choose from a .npz or a feature file, as `choose` does with `seen=True`."""
    with memory_faults_told(path):
        return _chosen(read_given(path), within, seed, file=path, listener=listener)


def _chosen(  # noqa: PLR0913 - as `choose`, the file to be named, and who hears of progress
    given: GivenFeatures,
    within: float,
    seed: int,
    *,
    seen: bool = True,
    file: Path | None = None,
    listener: Listener | None = None,
) -> Choice:
    require_points(within)
    row_splits = row_splits_of(given, seed, seen, file).without_collapsed(file)
    score_notes = row_splits.score_notes()
    say_how_long(row_splits, listener)
    with in_threads() as of_each:
        layers = range(len(row_splits.given.features))
        each_layer = searches(row_splits, whitened=False) + searches(row_splits, whitened=True)
        with counted(listener, "ranking", len(layers) * each_layer) as advance:
            by_layer = of_each(lambda layer: measured(row_splits, [layer], advance=advance), layers)
        singles = [found for of_layer in by_layer for found in of_layer]
        by_fold = _concatenations(
            row_splits, singles, _candidate_set(row_splits, singles, score_notes, seed), of_each, seed
        )
        concatenations = list(dict.fromkeys(each for of_fold in by_fold.values() for each in of_fold))
        total = sum(searches(row_splits, whitened) for _, whitened in concatenations)
        # Concatenated layers are larger than each of them: their folds are computed at once, not several of them.
        with counted(listener, "ranking concatenated layers", total) as advance:
            further = [
                replace(found, only_without=frozenset(fold for fold in by_fold if each in by_fold[fold]))
                for each in concatenations
                for found in measured(row_splits, each[0], [each[1]], of_each, advance)
            ]
    candidate_set = _candidate_set(row_splits, [*singles, *further], score_notes, seed)
    return choose_among(candidate_set, row_splits.notes, within=within, seed=seed)


def _concatenations(
    row_splits: RowSplits, singles: Sequence[CandidateHits], candidate_set: CandidateSet, of_each: OfEach, seed: int
) -> dict[int | None, list[Concatenation]]:
    """Fold that is left out -> the layers that are concatenated; None: without none."""
    folds: list[int | None] = [None, *(np.unique(row_splits.folds).tolist() if row_splits.crossed else [])]
    given, layers = row_splits.given, list(row_splits.given.features)
    if len(layers) < 2:
        return {fold: [] for fold in folds}
    groups = None if given.groups is None else given.groups[row_splits.choosing]
    values = [values[row_splits.choosing] for values in given.features.values()]
    sample = sampled_cosines(values, row_splits.labels, groups, seed)

    def without(fold: int | None) -> list[Concatenation]:
        """Greedily, from the best single layer on the other folds, in its reduction."""
        best = singles[candidate_set.best(range(len(singles)), fold)]
        sampled = row_splits.folds[sample.queries] != fold

        def recall_of(members: tuple[int, ...]) -> float:
            possible = concatenated_key([layers[member] for member in members]) is not None and sampled.any()
            return float(sample.hits(members)[sampled].mean()) if possible else math.nan

        found = greedy(best.members, range(len(layers)), recall_of)
        return [(tuple(sorted(members)), best.candidate.ranked.reduction != NO_REDUCTION) for members in found]

    return dict(zip(folds, of_each(without, folds), strict=True))


def _candidate_set(
    row_splits: RowSplits, found: Sequence[CandidateHits], score_notes: Mapping[str, tuple[str, ...]], seed: int
) -> CandidateSet:
    """What was measured as candidates, those of some folds only last."""
    labels, test = row_splits.labels, row_splits.given.labels[row_splits.test]
    always = [each for each in found if each.found_without(None)]

    def without(fold: int) -> UnitSums:
        sums = unit_sums(np.stack([each.without(fold) for each in found]), labels)
        there = np.array([each.found_without(fold) for each in found])
        return UnitSums(np.where(there[:, None], sums.sums, np.nan), sums.counts)

    return CandidateSet(
        [each.candidate for each in found],
        row_splits.split,
        lambda candidate, split: Subject(
            "", "", None, candidate.epoch or 0, split, candidate.ranked, score_notes[split]
        ),
        unit_sums(np.stack([each.hits for each in always]), labels),
        unit_sums(np.stack([each.test for each in always]), test) if len(test) else None,
        folds_of(labels, seed=seed) if row_splits.crossed else None,
        {fold: without(fold) for fold in range(FOLDS)} if row_splits.crossed else {},
    )
