"""choose: a user's own features of several layers -> which layer to ship."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from layerprobe.statistics.choice import Finer, folds_of
from layerprobe.statistics.units import UnitSums, stack_means, unit_sums
from layerprobe.system.arguments import names_of, require_type
from layerprobe.system.errors import DataError, UnknownNameError
from layerprobe.system.memory import memory_faults_told
from layerprobe.system.progress import Listener
from layerprobe.system.threads import in_threads
from layerprobe.values.choice import FOLDS, Choice
from layerprobe.values.facts import chosen_on_text, identical_text
from layerprobe.values.indexes import IndexKind
from layerprobe.values.keys import NO_REDUCTION, LayerKey, RankedLayer, named
from layerprobe.values.metric_names import is_recall
from layerprobe.values.scores import Subject
from layerprobe.values.spoken_names import spoken_name
from layerprobe.workflow.choose.candidate_set import Baseline, CandidateSet
from layerprobe.workflow.choose.choose_time import counted, say_how_long
from layerprobe.workflow.choose.choosing import choose_among
from layerprobe.workflow.choose.given_features import GivenFeatures, given_features
from layerprobe.workflow.choose.indexed_layer import indexes_of_rows, require_test_classes
from layerprobe.workflow.choose.measured_features import SIMILARITY, Measured, measured, searched_whole, searches
from layerprobe.workflow.choose.request import NEAR_METRIC, require_points
from layerprobe.workflow.choose.row_splits import RowSplits, row_splits_of
from layerprobe.workflow.run.facts import identical_facts
from layerprobe.workflow.run.metric_values import require_mean_over_queries
from layerprobe.workflow.run.units import folders_note


@runtime_checkable
class HasFeatures(Protocol):
    """The result of `layerprobe.probe`."""

    def given(self) -> GivenFeatures:
        """Its features, labels and splits."""


def choose(  # noqa: PLR0913 - the rows, their relation to the network, and the rule
    features: Mapping[str, Any] | HasFeatures,
    labels: Any = None,
    *,
    splits: Any = None,
    clusters: Any = None,
    seen: bool = True,
    within: float = 1.0,
    metric: str = "R@1",
    layers: str | Sequence[str] = (),
    seed: int = 0,
) -> Choice:
    """Choose the layer to ship from features of any origin, without looking at the classes that judge it.

    Candidates are each layer raw and half-whitened (`l2+whiten:D:0.5+l2`, where D is the minimum of 128, its dimensions
    and the rank of the features that it is fitted on). The best mean is preferred; within half of a standard error of
    it MAP@R decides. The verdicts say how sure that is. Each image is searched among the others of its
    split, by cosine similarity. The last layer is taken as the embedding that is used today; it is selected where it
    cannot be told whether to switch from it.

    `splits` decide which rows are chosen on:

    - with validation rows, these; reductions are fitted on the train rows.
    - with train and test rows, the test rows, cross-fitted over 5 folds of classes: each fold scores what is chosen on
      the other four. Reductions are fitted on the train rows. Nothing is chosen on these, as a network that was trained
      on them has memorised them in its last layers.
    - with train and test rows and `seen=False`, the train rows.
    - without splits, or with a single one, all rows, cross-fitted.

    Where there are no other train rows to fit on, each fold of classes is searched in itself, with reductions that are
    fitted on the other four. A layer whose rows are all one vector, up to its length, and one whose Recall@1 is not
    above chance are skipped with a note.

    >>> import numpy as np, layerprobe
    >>> rng, labels = np.random.default_rng(0), np.repeat(np.arange(30), 4)
    >>> classes = rng.normal(size=(30, 16))[labels]
    >>> noisy, clear = (classes + rng.normal(size=classes.shape) * noise for noise in (2, 0.3))
    >>> choice = layerprobe.choose({"early": noisy, "late": clear}, labels)
    >>> choice.ship.layer, choice.ship.bytes_per_image, choice.test.value
    ('late', 64, 1.0)

    Args:
        features: name of a layer -> (N, D) real numbers, an array or tensor each; in network order, as of layers of
            equal size the earlier one is cheaper. Or the result of `layerprobe.probe`, with its labels and splits.
        labels: (N,) integers or strings, the class of each row; not of a result.
        splits: (N,) train, validation or test for each row; None for a single split. No class may be in two splits.
        clusters: (N,) integers or strings, the cluster of classes of each row: the units of intervals and folds, where
            classes of a cluster are alike. None for the classes.
        seen: whether the network may have been trained on the train rows.
        within: points of the metric that do not matter, 0 to 100.
        metric: that decides: R@K, or another mean over queries such as MAP@R.
        layers: the candidates, as names or globs; empty for all.
        seed: of folds and resamples.

    Returns:
        What to ship, its gain over the embedding on test, and how sure the choice is; `print` shows the command's text.

    Raises:
        DataError: no features, shapes or types that do not fit, fewer than 2 classes, a class in two splits, or every
            layer collapsed to one vector or at chance.
        NumericError: NaN or Inf.
        RecipeError: `within` is not from 0 to 100, all are train rows that may have been seen, or the metric is not a
            mean over queries.
        UnknownNameError: a split, metric or layer of another name.
        TypeError: an argument of another type.
    """
    require_type("metric", metric, str, "a name")
    require_type("within", within, Real, "a number of points")
    require_type("seed", seed, Integral, "a whole number")
    of_rows = None if clusters is None else "clusters"
    how = _How(within, metric, seed, tuple(filter(None, names_of("layers", layers))), cluster=of_rows)
    if not isinstance(features, HasFeatures):
        require_type("features", features, Mapping, "(N, D) arrays by the names of layers, or a result of probe")
        return _chosen(given_features(features, labels, splits, clusters=clusters), how, seen=seen)
    if labels is not None or splits is not None or clusters is not None:
        raise DataError("a result of probe has labels and splits of its own", fix="Give the result alone")
    return _chosen(features.given(), how, seen=seen)


def choose_file(  # noqa: PLR0913 - as `choose`
    given: GivenFeatures,
    *,
    seen: bool = True,
    within: float = 1.0,
    metric: str = "R@1",
    layers: Sequence[str] = (),
    indexes: tuple[IndexKind, ...] = (),
    seed: int = 0,
    listener: Listener | None = None,
) -> Choice:
    """Choose among the features of a file, as `choose` does.

    Args:
        given: as `read_given` reads it.
        layers: the candidates, as names or globs; empty for all.
        indexes: kinds of indexes of the chosen layer that are compared with the exact search.
    """
    cluster = None if given.clusters is None else given.cluster or "clusters"
    how = _How(within, metric, seed, tuple(layers), indexes, cluster)
    with memory_faults_told(given.file):
        return _chosen(given, how, seen=seen, file=given.file, listener=listener)


@dataclass(frozen=True)
class _How:
    """The rule of a choice."""

    within: float
    metric: str
    seed: int
    layers: tuple[str, ...] = ()
    indexes: tuple[IndexKind, ...] = ()
    cluster: str | None = None

    def __post_init__(self) -> None:
        require_points(self.within)
        require_mean_over_queries(self.metric)


def _requested(given: GivenFeatures, layers: Sequence[str], file: Path | None) -> set[LayerKey]:
    """The layers that are candidates."""
    known = {RankedLayer(layer, NO_REDUCTION, SIMILARITY): layer for layer in given.features}
    found = set() if layers else set(known.values())
    for text in layers:
        meant = {known[ranked] for ranked in named(text, known)}
        if not meant:
            raise UnknownNameError("layer", text, [str(ranked) for ranked in known], file=file)
        found |= meant
    return found


def _chosen(
    given: GivenFeatures,
    how: _How,
    *,
    seen: bool = True,
    file: Path | None = None,
    listener: Listener | None = None,
) -> Choice:
    row_splits = row_splits_of(given, how.seed, seen, file).without_collapsed(file)
    require_test_classes(row_splits if row_splits.crossed or len(row_splits.test) else None, how.indexes)
    say_how_long(row_splits, listener)
    requested = _requested(row_splits.given, how.layers, file)
    notes = list(row_splits.notes)
    if how.cluster is None and (note := folders_note(map(str, given.class_names))):
        notes.append(note)
    with in_threads() as of_each:
        layers = range(len(row_splits.given.features))
        with counted(listener, "ranking", 2 * len(layers) * searches(row_splits)) as advance:
            by_layer = of_each(lambda layer: measured(row_splits, layer, metric=how.metric, advance=advance), layers)
        candidates = [each for of_layer in by_layer for each in of_layer]
    candidate_set = _candidate_set(row_splits, candidates, requested, how)
    if is_recall(how.metric):
        candidate_set = replace(candidate_set, finer=_average_precisions(row_splits, candidates))
    choice = choose_among(candidate_set, notes, metric=how.metric, within=how.within, seed=how.seed)
    notes = [*choice.notes, *_identical(row_splits, candidates, choice)]
    choice = replace(choice, notes=tuple(notes), basis=row_splits.basis)
    if not how.indexes:
        return choice
    return replace(choice, indexes=indexes_of_rows(row_splits, choice, how.indexes, how.seed))


def _identical(row_splits: RowSplits, candidates: Sequence[Measured], choice: Choice) -> list[str]:
    """The notes on identical images among the rows that are chosen on and tested on, with their effect."""
    chosen = next(each for each in candidates if each.candidate.ranked == choice.chosen.ranked)
    folds = None if row_splits.fitted_on is not None else row_splits.folds
    parts = [(row_splits.split, row_splits.choosing, chosen.choosing, folds)]
    if chosen.test is not None:
        parts.append(("test", row_splits.test, chosen.test, None))
    notes = []
    for split, rows, values, in_folds in parts:
        identical = row_splits.given.identical(rows, in_folds)
        layer, metric = spoken_name(chosen.candidate.ranked), choice.chosen.metric
        layer = layer if in_folds is None else f"{layer}, in fifths of the classes,"
        if facts := identical_facts(layer, values.values, identical, metric=metric):
            named = facts if row_splits.given.contents is not None else replace(facts, item="row")
            notes.append(f"{chosen_on_text(split)}: {identical_text(named, len(rows))}")
    return notes


def _average_precisions(row_splits: RowSplits, candidates: Sequence[Measured]) -> Finer:
    """MAP@R of candidates by unit; of each that is asked for, once."""
    sums: dict[int, UnitSums] = {}

    def finer(places: Sequence[int]) -> UnitSums:
        for place in places:
            if place not in sums:
                candidate = candidates[place]
                whitened = candidate.candidate.ranked.reduction != NO_REDUCTION
                (again,) = measured(row_splits, candidate.member, [whitened], metric=NEAR_METRIC)
                sums[place] = unit_sums(again.choosing.values, row_splits.units)
        return stack_means([sums[place] for place in places])

    return finer


def _mean(hits: NDArray[np.float64] | None) -> float:
    return math.nan if hits is None else float(np.nanmean(hits))


def _candidate_set(
    row_splits: RowSplits,
    candidates: Sequence[Measured],
    requested: Collection[LayerKey],
    how: _How,
) -> CandidateSet:
    units, labels, score_notes = row_splits.units, row_splits.labels, row_splits.score_notes()
    test, test_units = row_splits.given.labels[row_splits.test], row_splits.given.units[row_splits.test]
    values = unit_sums(np.stack([each.choosing.values for each in candidates]), units)
    on_test = [each.test.values for each in candidates if each.test is not None]
    tested = unit_sums(np.stack(on_test), test_units) if on_test else None
    last = max(each.member for each in candidates)
    place = next(
        place
        for place, each in enumerate(candidates)
        if each.member == last and each.candidate.ranked.reduction == NO_REDUCTION
    )
    of_test = values if row_splits.crossed else tested
    baselines = {}
    if of_test is not None:
        row = UnitSums(of_test.sums[[place]], of_test.counts[[place]])
        within_folds = row_splits.crossed and row_splits.fitted_on is None
        whole = searched_whole(row_splits, last, how.metric) if within_folds else None
        in_whole = None if whole is None else unit_sums(whole.values[None], units)
        baselines[""] = Baseline(candidates[place].candidate, row, in_whole)
    return CandidateSet(
        [each.candidate for each in candidates],
        row_splits.split,
        lambda candidate, split: Subject(
            "", "", None, candidate.epoch or 0, split, candidate.ranked, score_notes[split]
        ),
        values,
        unit_sums(np.stack([each.choosing.above_chance for each in candidates]), units),
        [each.identity for each in candidates],
        np.array([_mean(each.choosing.among_half) for each in candidates]),
        len(np.unique(labels)) // (1 if row_splits.fitted_on is not None else FOLDS),
        len(np.unique(test if len(test) else labels)),
        tested,
        folds_of(units, seed=how.seed) if row_splits.crossed else None,
        baselines,
        frozenset(place for place, each in enumerate(candidates) if each.candidate.ranked.layer not in requested),
        cluster=how.cluster,
        within_folds=row_splits.fitted_on is None,
    )
