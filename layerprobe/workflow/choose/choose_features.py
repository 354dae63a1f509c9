"""choose: a user's own features of several layers -> which layer to ship."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.measure.choosing_folds import FLATTERED
from layerprobe.ranking.sampled_cosines import sampled_cosines
from layerprobe.statistics.choice import folds_of, greedy
from layerprobe.statistics.units import UnitSums, unit_sums
from layerprobe.system.errors import DataError, RecipeError
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
from layerprobe.workflow.choose.measured_features import CandidateHits, RowSplits, measured, searches

Joint = tuple[tuple[int, ...], bool]  # places of the layers, ascending; whether half-whitened


def choose(  # noqa: PLR0913 - the rows, what they are to the network, and what is asked of the choice
    features: Mapping[str, Any],
    labels: Any,
    *,
    splits: Any = None,
    seen: bool = True,
    within: float = 1.0,
    seed: int = 0,
) -> Choice:
    """Choose the layer to ship from features of any origin, without looking at the classes that judge it.

    Candidates are each layer as it is, half-whitened (`l2+whiten:D:0.5+l2`, D = 128 or what is less of its dimensions
    and the rank of the features that it is fitted on), and at most three layers side by side that are found greedily.
    The one chosen is the cheapest that is at most `within` points of Recall@1 worse than the best with 95 %, by the
    paired error over classes; by cosine, each image searched among the others of its split.

    What the choice is made on follows from `splits`:

    - with validation rows, on these; reductions are fitted on the train rows.
    - with train and test rows, on the test rows, cross-fitted over 5 folds of classes: each fold judges what is chosen
      on the other four. Reductions are fitted on the train rows. Nothing is chosen on these: the last layers of a
      network that was trained on them know them by heart.
    - with train and test rows and `seen=False`, on the train rows, each fifth of the classes with a reduction that was
      fitted on the others.
    - without splits, or with a single one, cross-fitted as well, with reductions that are fitted on the other four
      folds. The gallery is whole in every fold.

    A layer whose rows are all one vector, up to its length, is left out, and a note names it.

    >>> import numpy as np, layerprobe
    >>> rng, labels = np.random.default_rng(0), np.repeat(np.arange(30), 4)
    >>> classes = rng.normal(size=(30, 16))[labels]
    >>> noisy, clear = (classes + rng.normal(size=classes.shape) * noise for noise in (2, 0.3))
    >>> choice = layerprobe.choose({"early": noisy, "late": clear}, labels)
    >>> choice.ship.layer, choice.ship.bytes_per_image, choice.test.value
    ('late', 64, 1.0)

    Args:
        features: name of a layer -> (N, D) real numbers, an array or tensor each; in the order of the network, as of
            equally large layers the earlier one is cheaper.
        labels: (N,) whole numbers or texts, the class of each row.
        splits: (N,) train, validation or test for each row; None for one split. No class is in two splits.
        seen: whether the network may have been trained on the train rows.
        within: how many points worse than the best a cheaper candidate may be, at least 0.
        seed: of folds, resamples and the sample on which layers are joined.

    Returns:
        What to ship, its Recall@1 where it was chosen and on test, and how sure the choice is.

    Raises:
        DataError: no features, shapes or types that do not fit, fewer than 2 classes, a class in two splits, or no
            layer that has more than one vector.
        NumericError: NaN or Inf.
        RecipeError: `within` is below 0, or all rows are of train and may have been seen.
        UnknownNameError: a split of another name.
    """
    return _chosen(given_features(features, labels, splits), within, seed, seen=seen)


def choose_file(path: Path, *, within: float = 1.0, seed: int = 0, listener: Listener | None = None) -> Choice:
    """Choose from the features in a file, as `choose` does where the network may have seen the train rows.

    Args:
        path: a .npz or a feature file, as `read_given` takes it.
        within: see `choose`.
        seed: see `choose`.
        listener: hears of progress.

    Raises:
        LayerprobeError: see `read_given` and `choose`.
    """
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
    row_splits, notes = _terms(given, seed, seen, file)
    row_splits, left_out = _without_collapsed(row_splits, file)
    given = row_splits.given
    said = {"test": _said(given, row_splits.test), row_splits.split: _said(given, row_splits.choosing)}
    say_how_long(row_splits, listener)
    with in_threads() as of_each:
        places = range(len(given.features))
        each_layer = searches(row_splits, whitened=False) + searches(row_splits, whitened=True)
        with counted(listener, "ranking", len(places) * each_layer) as told:
            layers = of_each(lambda place: measured(row_splits, [place], told=told), places)
        singles = [found for layer in layers for found in layer]
        joints = _joints(row_splits, singles, _candidate_set(row_splits, singles, said, seed), of_each, seed)
        every = list(dict.fromkeys(joint for of_fold in joints.values() for joint in of_fold))
        total = sum(searches(row_splits, whitened) for _, whitened in every)
        # A set of layers is larger than each of them: its folds are computed at once, not several sets.
        with counted(listener, "ranking layers side by side", total) as told:
            found = [
                replace(each, only_without=frozenset(fold for fold in joints if joint in joints[fold]))
                for joint in every
                for each in measured(row_splits, joint[0], [joint[1]], of_each, told)
            ]
    candidate_set = _candidate_set(row_splits, [*singles, *found], said, seed)
    return choose_among(candidate_set, (*notes, *left_out), within=within, seed=seed)


def _said(given: GivenFeatures, rows: NDArray[np.intp]) -> tuple[str, ...]:
    """What every score of some rows says."""
    lone = given.lone(rows) if len(rows) else 0
    return (*given.notes, f"{lone:,} lone queries count as misses") if lone else given.notes


def _without_collapsed(row_splits: RowSplits, file: Path | None) -> tuple[RowSplits, tuple[str, ...]]:
    """Only the layers in which the rows that are chosen on differ, and what is to be said of the others."""
    collapsed = row_splits.given.collapsed(row_splits.choosing)
    if not collapsed:
        return row_splits, ()
    names = ", ".join(str(layer) for layer in collapsed)
    kept = {layer: values for layer, values in row_splits.given.features.items() if layer not in collapsed}
    if not kept:
        what = f"all rows are one vector in every layer: {names}"
        raise DataError(what, file=file, fix="Give features that differ between images")
    note = f"left out, as all rows are one vector by the cosine: {names}"
    return replace(row_splits, given=replace(row_splits.given, features=kept)), (note,)


def _terms(given: GivenFeatures, seed: int, seen: bool, file: Path | None) -> tuple[RowSplits, tuple[str, ...]]:
    """On which rows the choice is made, and what is to be said of that."""
    rows = {name: given.rows_of(name) for name in ("train", "validation", "test")}
    held = [name for name, found in rows.items() if len(found)]
    none = np.arange(0)
    if held == ["train"] and seen:
        fix = "Give test rows of classes that it has not seen; if it has seen none of these, leave the splits out"
        raise RecipeError("all rows are of train, and the network may have been trained on them", file=file, fix=fix)
    if len(held) < 2:
        everything, folds = np.arange(len(given.labels)), _folds(given.labels, seed)
        said: tuple[str, ...] = (
            "each fold of classes is judged by what was chosen and fitted on the others, in the whole gallery",
            FLATTERED,
        )
        return RowSplits(given, "test", everything, None, none, folds, True), said
    if len(rows["validation"]):
        fitted_on = rows["train"] if len(rows["train"]) else None
        folds = _folds(given.labels[rows["validation"]], seed)
        if fitted_on is not None:
            said = ("half-whitening is fitted on train",)
        else:
            said = ("half-whitening is fitted on the other folds of the validation classes", FLATTERED)
        return RowSplits(given, "validation", rows["validation"], fitted_on, rows["test"], folds, False), said
    if seen:
        said = (
            "each fold of classes is judged by what was chosen on the others, in the whole gallery",
            "half-whitening is fitted on train, which does not choose: the network may have been trained on it",
        )
        folds = _folds(given.labels[rows["test"]], seed)
        return RowSplits(given, "test", rows["test"], rows["train"], none, folds, True), said
    folds = _folds(given.labels[rows["train"]], seed)
    said = (
        "seen=False: the network was not trained on the train rows; if it was, this picks the worst layer",
        "half-whitening is fitted on the other folds of the training classes",
        FLATTERED,
    )
    return RowSplits(given, "train", rows["train"], None, rows["test"], folds, False), said


def _folds(labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """(Q,) the fold of each row's class."""
    _, places = np.unique(labels, return_inverse=True)
    found: NDArray[np.int64] = folds_of(labels, seed=seed)[places]
    return found


def _joints(
    row_splits: RowSplits, singles: Sequence[CandidateHits], candidate_set: CandidateSet, of_each: OfEach, seed: int
) -> dict[int | None, list[Joint]]:
    """The layers that are put side by side where a fold is left out; None: where none is."""
    folds: list[int | None] = [None, *(np.unique(row_splits.folds).tolist() if row_splits.crossed else [])]
    given, labels = row_splits.given, row_splits.labels
    layers = list(given.features)
    if len(layers) < 2:
        return {fold: [] for fold in folds}
    groups = None if given.groups is None else given.groups[row_splits.choosing]
    sample = sampled_cosines([values[row_splits.choosing] for values in given.features.values()], labels, groups, seed)

    def without(fold: int | None) -> list[Joint]:
        """Greedily, from the best single layer on the other folds, in its reduction."""
        best = singles[candidate_set.best(range(len(singles)), fold)]
        sampled = row_splits.folds[sample.queries] != fold

        def value_of(members: tuple[int, ...]) -> float:
            possible = concatenated_key([layers[place] for place in members]) is not None and sampled.any()
            return float(sample.hits(members)[sampled].mean()) if possible else math.nan

        sets = greedy(best.members, range(len(layers)), value_of)
        return [(tuple(sorted(members)), best.candidate.ranked.reduction != NO_REDUCTION) for members in sets]

    return dict(zip(folds, of_each(without, folds), strict=True))


def _candidate_set(
    row_splits: RowSplits, found: Sequence[CandidateHits], said: Mapping[str, tuple[str, ...]], seed: int
) -> CandidateSet:
    """What was measured as candidates; those of some folds only come last.

    Args:
        said: split -> the notes of its scores.
    """
    labels = row_splits.labels
    always = [each for each in found if each.found_without(None)]

    def without(fold: int) -> UnitSums:
        every = unit_sums(np.stack([each.without(fold) for each in found]), labels)
        there = np.array([each.found_without(fold) for each in found])
        return UnitSums(np.where(there[:, None], every.sums, np.nan), every.counts)

    test = row_splits.given.labels[row_splits.test]
    return CandidateSet(
        [each.candidate for each in found],
        row_splits.split,
        lambda candidate, split: Subject("", "", None, candidate.epoch or 0, split, candidate.ranked, said[split]),
        unit_sums(np.stack([each.hits for each in always]), labels),
        unit_sums(np.stack([each.test for each in always]), test) if len(test) else None,
        folds_of(labels, seed=seed) if row_splits.crossed else None,
        {fold: without(fold) for fold in range(FOLDS)} if row_splits.crossed else {},
    )
