"""threshold: pairs of a layer -> thresholds at false accept rates, and their rates on unseen classes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.measure.analysis import Features
from layerprobe.measure.pair_thresholds import (
    Accepted,
    AcceptedCounts,
    PairCounts,
    Units,
    count_accepted,
    locate,
    require_pairs,
)
from layerprobe.post_processing.chain import parse_chain
from layerprobe.post_processing.post_processing import NotApplicableError
from layerprobe.ranking.all_pairs import AllPairs, all_pairs
from layerprobe.statistics.pair_rates import pairs_of_units, rate_intervals
from layerprobe.statistics.units import UnitSums, effective_number, intervals
from layerprobe.system.computing import with_float64
from layerprobe.system.errors import DataError, NotFiniteError, NumericError, RecipeError
from layerprobe.system.progress import Listener
from layerprobe.tables.tables import TextTable
from layerprobe.values.choice import FOLDS
from layerprobe.values.facts import PAIRS_WITHIN_FOLDS, chosen_on_text, split_header
from layerprobe.values.intervals import FEWEST_UNITS, Interval, IntervalKind, SamplingUnits
from layerprobe.values.layers import RankedLayer
from layerprobe.values.thresholds import MeasuredThresholds, PairedSplit, Rate, Threshold
from layerprobe.workflow.choose.candidates import whole_units
from layerprobe.workflow.choose.choose_features import choose_file
from layerprobe.workflow.choose.choose_once import choice_to_take
from layerprobe.workflow.choose.features_run import (
    ranked_of_rows,
    require_one_map,
    rows_by_split,
    run_of_features,
)
from layerprobe.workflow.choose.user_features import UserFeatures
from layerprobe.workflow.probe.chains import FITTED_ON
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.memory_run import EPOCH
from layerprobe.workflow.run.references import (
    find_layers_of,
    open_ranked_split,
    parse_reference,
    require_any_right_item,
)
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import seen_train_error, split_to_choose_on
from layerprobe.workflow.run.stored_choice import taken_text
from layerprobe.workflow.run.units import folders_note, folders_note_of_run, require_whole_classes, units_of_run
from layerprobe.workflow.threshold.request import ThresholdRequest

_MOST = 0.8  # of the impostor pairs
_DIVIDED = 4  # classes, of which two set a threshold and two measure it
_PER_FOLD = 2  # classes, or clusters of them, so that there are impostor pairs
_SEED = 0
_MEASURES = {
    "cosine": "the cosine",
    "dot": "the dot product",
    "euclidean": "minus the Euclidean distance",
    "hamming": "minus the number of bits that differ",
}


def threshold(run: Run, request: ThresholdRequest, listener: Listener) -> MeasuredThresholds:
    """Set thresholds at false accept rates, and measure them on the unseen test classes.

    The layer is of the last epoch; without one it is that of the stored choice where this holds, else the one that
    `choose` selects at the last epoch.

    Raises:
        UnknownNameError: no such column of clusters.
        RecipeError: see `split_to_set_on`; clusters that divide a class; a layer that names several, or has no single
            features.
        DataError: features that are gone, or a split without genuine or impostor pairs.
        NumericError: NaN or Inf.
    """
    cluster = request.cluster
    units = None if cluster is None else _read_clusters(run, cluster)
    if request.layer is None:
        ranked, epoch = _choose_layer(run, listener)
        split = split_to_set_on(run, epoch)
    else:
        split = split_to_set_on(run)
        ranked, epoch = _find_layer(run, split, request.layer)
    device = with_float64(from_recipe.choose_device("auto"))
    fitted_on = FITTED_ON if FITTED_ON in run.read().manifests else split
    searches = {
        name: StoredSearch(run, epoch, name, device, fitted_on, memory=request.memory) for name in (split, "test")
    }
    setting_units = whole_units(run, split, *run.feature_head(epoch, split).rows, cluster)
    folders = folders_note_of_run(run, epoch, "test") if cluster is None else None
    with contextlib.ExitStack() as stack:  # features on disk stay open
        setting, notes = pairs_to_set_on(searches[split], ranked, setting_units, stack)
        testing = layer_pairs(searches["test"], ranked, stack)
        pairs = LayerPairs(run.name, epoch, ranked, split, setting, testing, notes, cluster, units, folders)
        return measure_thresholds(pairs, request.rates, listener)


def threshold_of_features(features: UserFeatures, request: ThresholdRequest, listener: Listener) -> MeasuredThresholds:
    """Set thresholds on the validation rows, and measure them on the test rows.

    Without `splits`, a random half of the classes, or of their clusters, sets the thresholds, and the other half
    measures them. The layer is LAYER[/post-processing]; without one it is the one that `choose` selects.

    Raises:
        DataError: there are no rows to set a threshold on but those of test, or a split without genuine or impostor
            pairs.
        RecipeError: a layer that is not one map.
    """
    halved = features.splits is None
    if halved:
        features = split_in_halves(features)
        units = IntervalKind(cluster=features.cluster).units_text()
        listener.say(f"no `split`: thresholds are set on a random half of the {units}, and measured on the other half")
    run, rows = run_of_features(features, seen=True, seed=_SEED), rows_by_split(features)
    split = split_to_choose_on(run, run.record, [EPOCH])
    if split == "test" or "test" not in rows:
        message = "no rows to set a threshold on but those of test" if len(features.rows_of("test")) else "no test rows"
        fix = "Call rows of classes that the network has not seen `validation`, and others of them `test`"
        raise DataError(message, file=features.file, fix=fix)
    layer = request.layer
    if layer is None:
        layer = choose_file(features, seed=_SEED, listener=listener).selected.name
        on_half = " on that half; on all classes it may select another" if halved else ""
        listener.say(f"layer {layer}, as layerprobe choose selects{on_half}")
    ranked = ranked_of_rows(features, layer)
    fitted_on = FITTED_ON if FITTED_ON in rows else split
    searches = {name: StoredSearch(run, EPOCH, name, torch.device("cpu"), fitted_on) for name in (split, "test")}
    setting, notes = pairs_to_set_on(searches[split], ranked, features.units[rows[split]])
    testing = layer_pairs(searches["test"], ranked)
    clusters, folders = None, None
    if features.cluster is not None:
        clusters = (features.units[rows["test"]],) * 2
    elif features.class_names:
        folders = folders_note(features.class_names[x] for x in np.unique(features.labels[rows["test"]]).tolist())
    file = "features" if features.file is None else features.file.name
    pairs = LayerPairs(
        file, features.epoch, ranked, split, setting, testing, notes, features.cluster, clusters, folders
    )
    return measure_thresholds(pairs, request.rates, listener)


@dataclass(frozen=True, eq=False)
class LayerPairs:
    """The pairs of images whose similarities by a layer are compared with thresholds.

    Args:
        run: its name, or that of the file of features.
        epoch: None: unknown.
        split: that thresholds are set on.
        setting: its pairs.
        testing: those of test.
        setting_notes: on `setting`.
        cluster: the column whose texts are the units of intervals; None: units are classes.
        units: of the test queries and of the items that they are paired with; None: their classes.
        folders: a note on classes of test that lie in folders.
    """

    run: str
    epoch: int | None
    ranked: RankedLayer
    split: str
    setting: AllPairs
    testing: AllPairs
    setting_notes: tuple[str, ...] = ()
    cluster: str | None = None
    units: tuple[Units, Units] | None = None
    folders: str | None = None


def measure_thresholds(pairs: LayerPairs, rates: Sequence[float], listener: Listener) -> MeasuredThresholds:
    """Set thresholds on the pairs of one split, and measure them on those of test.

    Raises:
        DataError: a split without genuine or impostor pairs.
    """
    setting, testing, rates = pairs.setting, pairs.testing, sorted(rates)
    with listener.task(f"threshold {pairs.ranked}", 3, "counts of all pairs") as task:
        located = locate(setting, rates)
        task.advance()
        counts, similarities = located.counts, located.thresholds
        set_at = count_accepted(setting, similarities)
        task.advance()
        testing_counts = AcceptedCounts(testing, similarities, pairs.units)
        tested = locate(testing, (), testing_counts.count).counts
        test_at = testing_counts.accepted()
        task.advance()
    set_on, test = _count_split(pairs.split, setting, counts), _count_split("test", testing, tested)
    # A false accept depends on both of its units, a true one on the query's.
    classes = None if pairs.cluster is None else test.classes
    false_intervals = rate_intervals(test_at.impostor, test_at.impostor_pairs, classes=classes)
    genuine = test_at.genuine.astype(np.float64)
    true_intervals = intervals(UnitSums(genuine, np.tile(test_at.genuine_pairs.astype(np.float64), (len(genuine), 1))))
    rows = [
        Threshold(rate, setting.in_user_units(similarity), *accept_rates)
        for rate, similarity, *accept_rates in zip(
            rates,
            similarities,
            _accept_rates(set_at.impostor.sum((1, 2)), set_at.impostor_pairs),
            _accept_rates(set_at.genuine.sum(1), set_at.genuine_pairs),
            _accept_rates(test_at.impostor.sum((1, 2)), test_at.impostor_pairs, false_intervals),
            _accept_rates(test_at.genuine.sum(1), test_at.genuine_pairs, true_intervals),
            strict=True,
        )
    ]
    notes, kind = list(pairs.setting_notes), IntervalKind(cluster=pairs.cluster)
    if collapsed := [chosen_on_text(x.split) for x, y in ((set_on, counts), (test, tested)) if y.collapsed]:
        notes.append(f"all similarities are equal to 1e-6 on {' and '.join(collapsed)}: it has collapsed")
    units = test.classes if pairs.units is None else len(np.unique(pairs.units[0]))
    notes += [*_rate_notes(rows, set_on), *SamplingUnits(kind, units).remarks, *_unequal_note(test_at, kind)]
    notes += [] if pairs.folders is None else [pairs.folders]
    return MeasuredThresholds(
        pairs.run, pairs.epoch, pairs.ranked, set_on, test, tuple(rows), tuple(notes), pairs.cluster
    )


def _accept_rates(
    accepted: NDArray[np.int64], pairs: NDArray[np.int64], rate_ends: Sequence[Interval | None] | None = None
) -> list[Rate]:
    """The rate at each threshold.

    Args:
        accepted: (T,) accepted pairs.
        pairs: all pairs, by unit.
        rate_ends: T intervals, if any.
    """
    total, ends = int(pairs.sum()), rate_ends or [None] * len(accepted)
    return [
        Rate(count / total, count, total)
        if interval is None
        else Rate(count / total, count, total, interval.low, interval.high)
        for count, interval in zip(accepted.tolist(), ends, strict=True)
    ]


def layer_pairs(search: StoredSearch, ranked: RankedLayer, stack: contextlib.ExitStack | None = None) -> AllPairs:
    """The pairs of a split's images by a layer, as its search compares them.

    Args:
        stack: closes what features are read from where they stay on disk; None: they are read into memory.

    Raises:
        DataError: its features are gone or have changed, or the search rules.
        NumericError: NaN or Inf.
    """
    search.require_stored(ranked)
    features = search.features(ranked) if stack is None else stack.enter_context(search.opened(ranked))
    return _pairs_of(search, ranked, *features)


def _pairs_of(
    search: StoredSearch, ranked: RankedLayer, queries: Features, gallery: Features | None = None
) -> AllPairs:
    try:
        return all_pairs(
            queries.values,
            queries.labels,
            gallery=None if gallery is None else gallery.values,
            gallery_labels=None if gallery is None else gallery.labels,
            similarity=ranked.similarity,  # type: ignore[arg-type] # text from a file, checked there
            ids=None if gallery is None else queries.ids,
            gallery_ids=None if gallery is None else gallery.ids,
            rules=search.rules,
            memory=search.memory,
        )
    except NotFiniteError as error:
        message = f"{ranked} has no threshold on {search.split}: {error.message}"
        raise NumericError(message, fix="Choose a layer whose features are finite") from error


def pairs_to_set_on(
    search: StoredSearch,
    ranked: RankedLayer,
    units: NDArray[np.int64],
    stack: contextlib.ExitStack | None = None,
) -> tuple[AllPairs, tuple[str, ...]]:
    """The pairs of a split's images that thresholds of a layer are set on, with notes.

    Similarities of classes that post-processing is fitted on are distributed otherwise than those of new classes. Then
    they are the pairs within folds, by fits on the other folds; all pairs where that cannot be done.

    Args:
        units: (Q,) that the folds divide, each a class or several.
        stack: as of `layer_pairs`.

    Raises:
        DataError: as of `layer_pairs`.
        NumericError: likewise.
    """
    if search.fitted_on != search.split or not parse_chain(ranked.post_processing).fits_on_train:
        return layer_pairs(search, ranked, stack), ()
    if len(np.unique(units)) >= _PER_FOLD * FOLDS:
        search.require_stored(ranked)
        with contextlib.suppress(NotApplicableError):  # the other folds may have too low a rank
            features, folds = search.out_of_fold(ranked, int(search.run.read().seed), units=units)
            note = f"{chosen_on_text(search.split)}: {PAIRS_WITHIN_FOLDS}"
            return replace(_pairs_of(search, ranked, features), folds=folds), (note,)
    note = f"{ranked.post_processing} was fitted on the selection classes themselves, so their rates flatter it"
    return layer_pairs(search, ranked, stack), (note,)


def split_to_set_on(run: Run, epoch: int | None = None) -> str:
    """The split that thresholds of an epoch are set on: one of classes that the network has not seen.

    Args:
        epoch: None: the last.

    Raises:
        RecipeError: the network has seen its training classes, and none are held out.
        DataError: there are no classes but those of test, or none of test.
    """
    record = run.read()
    split = split_to_choose_on(run, record, [record.epochs_done if epoch is None else epoch])
    if split == "test" and "train" in record.manifests:
        raise seen_train_error(run, record, "and there are no others to set a threshold on but those of test")
    if split == "test" or "test" not in record.manifests:
        message = "no classes to set a threshold on but those of test" if split == "test" else "no test classes"
        fix = "Give two splits: validation to set the threshold on, test to measure it"
        raise DataError(f"{run.name} has {message}", file=run.folder, fix=fix)
    return split


def _read_clusters(run: Run, cluster: str) -> tuple[Units, Units]:
    """The clusters of the test queries of the last epoch, and of the items that they are paired with."""
    ranked_split = open_ranked_split(run, None, "test")
    epoch, stored = ranked_split.epoch, ranked_split.stored
    images: dict[str, tuple[NDArray[np.integer], Sequence[str]]] = {"test": (stored.labels, stored.ids)}
    gallery = "test" if run.ranks(epoch, "test").searched_itself else "gallery"
    searched = run.feature_head(epoch, gallery).rows
    if searched[1] != stored.ids:
        images["gallery"] = searched
    units = units_of_run(run, images, cluster)
    labels = np.concatenate([image_labels for image_labels, _ in images.values()])
    require_whole_classes(
        labels, np.concatenate(list(units.values())), cluster, run.feature_head(epoch, "test").class_names
    )
    return units["test"], units.get("gallery", units["test"])


def _choose_layer(run: Run, listener: Listener) -> tuple[RankedLayer, int]:
    """The layer of the stored choice and its epoch; without one those that `choose` selects at the last epoch."""
    choice, why = choice_to_take(run, listener, lambda: split_to_set_on(run))
    listener.say(taken_text(run, choice, why))
    require_one_map(choice.chosen.ranked)
    return choice.chosen.ranked, choice.chosen.epoch


def _find_layer(run: Run, split: str, text: str) -> tuple[RankedLayer, int]:
    """The layer that a text names, measured on both splits, and the last epoch."""
    reference = parse_reference(text, bare="layer")
    opened = [require_any_right_item(open_ranked_split(run, None, name)) for name in (split, "test")]
    if reference.run not in (None, run.name) or reference.epoch not in (None, opened[0].epoch):
        message = f"--layer {text}: thresholds are of {run.name}#{opened[0].epoch}"
        raise RecipeError(message, fix="Name the run before --layer, and a layer of its last epoch")
    layers, _ = find_layers_of([(ranked_split, reference) for ranked_split in opened])
    if len(layers) > 1:
        names = ", ".join(map(str, layers))
        raise RecipeError(f"--layer {text} names several layers", fix=f"Choose one of {names}")
    require_one_map(layers[0])
    return layers[0], opened[0].epoch


def _count_split(split: str, pairs: AllPairs, counts: PairCounts) -> PairedSplit:
    genuine, impostor = int(counts.genuine.sum()), int(counts.impostor.sum())
    try:
        require_pairs(genuine, impostor)
    except DataError as error:
        raise DataError(f"{chosen_on_text(split)}: {error.message}", fix=error.fix) from error
    labels = pairs.queries.labels
    size = None if pairs.itself else len(pairs.gallery)
    return PairedSplit(split, len(labels), len(np.unique(labels)), size, genuine, impostor, counts.equal_error_rate())


def split_in_halves(features: UserFeatures) -> UserFeatures:
    """The rows with a random half of the classes, or of their clusters, as validation, and the other as test."""
    units = np.random.default_rng(_SEED).permutation(np.unique(features.units))
    if len(units) < _DIVIDED:
        kind = IntervalKind(cluster=features.cluster)
        message = f"{kind.units_text(len(units))}; 2 to set a threshold and 2 to measure it are needed"
        raise DataError(message, file=features.file, fix=f"Give rows of {kind.units_text(_DIVIDED)} or more")
    chosen = np.isin(features.units, units[: len(units) // 2])
    return replace(features, splits=np.where(chosen, "validation", "test"))


def _unequal_note(accepted: Accepted, kind: IntervalKind) -> list[str]:
    """A note where units of unequal size count as fewer than 10 of equal size."""
    of_unit = pairs_of_units(accepted.impostor_pairs)
    units = int((of_unit > 0).sum())
    effective = [float(effective_number(pairs.astype(np.float64))) for pairs in (of_unit, accepted.genuine_pairs)]
    if units < FEWEST_UNITS or min(effective) >= FEWEST_UNITS:
        return []
    smallest_first = np.argsort(of_unit, kind="stable")
    # Pairs of the smallest units alone, of one unit more in each place.
    alone = accepted.impostor_pairs[np.ix_(smallest_first, smallest_first)].cumsum(0).cumsum(1).diagonal()
    shares = 1 - np.r_[0, alone][::-1] / accepted.impostor_pairs.sum()  # of pairs with one of the largest 0, 1, 2 ...
    largest = int((shares >= _MOST).argmax())
    count_as = " (FAR) and ".join(f"{number:.0f}" for number in effective)
    return [
        f"{kind.units_text(units)} count as {count_as} (TAR) of equal size:"
        f" {largest} of them {'is' if largest == 1 else 'are'} in {100 * shares[largest]:.0f} % of the impostor pairs"
    ]


def _rate_notes(rows: Sequence[Threshold], set_on: PairedSplit) -> list[str]:
    """Notes on rates at which the threshold accepts no pair."""
    notes = []
    name = chosen_on_text(set_on.split)
    if unreachable := [row.asked for row in rows if row.asked * set_on.impostor < 1]:
        texts = ", ".join(f"{100 * rate:g} %" for rate in unreachable)
        needed = math.ceil(1 / min(unreachable))
        notes.append(
            f"{texts}: less than 1 of the {set_on.impostor:,} impostor pairs of {name}, so the threshold is above them"
            f" all; {needed:,} pairs would be needed"
        )
    if tied := [f"{100 * row.asked:g} %" for row in rows if not row.set_far.accepted and row.asked not in unreachable]:
        notes.append(
            f"{', '.join(tied)}: more of the impostor pairs of {name} tie for the most similar, so the threshold is"
            " above them all"
        )
    return notes


def threshold_table(thresholds: MeasuredThresholds) -> TextTable:
    """A row for each false accept rate: the threshold, and the rates on the classes it was set on and on test."""
    header = split_header(chosen_on_text(thresholds.set_on.split), [])
    rows = [
        (
            f"{100 * row.asked:g}",
            f"{row.similarity:.6g}",
            *(_format_percent(rate.value) for rate in (row.set_far, row.set_tar, row.far, row.tar)),
        )
        for row in thresholds.thresholds
    ]
    numbers = range(4, 6)
    rates = [(row.far, row.tar) for row in thresholds.thresholds]
    ends = {column: tuple(_format_ends(pair[column - 4]) for pair in rates) for column in numbers}
    measure = _MEASURES[thresholds.ranked.similarity]
    units = IntervalKind(cluster=thresholds.cluster).units_text()
    intervals = f" [95 % over {units}]" if any(map(any, ends.values())) else ""
    return TextTable(
        ("asked\nFAR", "threshold", f"{header}\nFAR", f"{header}\nTAR", "test\nFAR", "test\nTAR"),
        tuple(rows),
        numbers=frozenset(range(6)),
        heading=(
            f"{thresholds.name}: accept if {measure} is at least the threshold",
            f"false and true accept rates (FAR, TAR) in %{intervals}",
        ),
        notes=(
            *(_pairs_text(split) for split in (thresholds.set_on, thresholds.test)),
            _transfer_text(thresholds),
            *(["; ".join(thresholds.notes)] if thresholds.notes else []),
        ),
        intervals={column: texts for column, texts in ends.items() if any(texts)},
    )


def _format_percent(value: float) -> str:
    return f"{100 * value:.1f}" if value >= 0.1 else f"{100 * value:.3g}"


def _format_ends(rate: Rate) -> tuple[str, str] | None:
    return None if rate.low is None or rate.high is None else (_format_percent(rate.low), _format_percent(rate.high))


def _pairs_text(split: PairedSplit) -> str:
    """`test: 6,334 genuine and 2,582,616 impostor pairs of 350 classes, EER 16.2 %`."""
    size = f"{split.classes:,} classes" if split.gallery is None else f"{split.images:,} x {split.gallery:,} images"
    return (
        f"{chosen_on_text(split.split)}: {split.genuine:,} genuine and {split.impostor:,} impostor pairs of {size},"
        f" EER {_format_percent(split.equal_error_rate)} %"
    )


def _transfer_text(thresholds: MeasuredThresholds) -> str:
    """Whether the false accept rates where thresholds are set lie in the intervals on test."""
    rows = [row for row in thresholds.thresholds if row.set_far.accepted]
    with_intervals = [
        (row, row.far.low, row.far.high) for row in rows if row.far.low is not None and row.far.high is not None
    ]
    if not with_intervals:
        return "whether the thresholds hold on other classes is inconclusive"
    name = chosen_on_text(thresholds.set_on.split)
    # Of the rate where it is set: where similarities tie, that is well below the asked one.
    apart = [
        f"{row.far.value / row.set_far.value:.2g} times that of {name} at {100 * row.asked:g} %"
        for row, low, high in with_intervals
        if not low <= row.set_far.value <= high
    ]
    if apart:
        return f"not transferred: FAR on test is {', '.join(apart)}"
    return f"the FAR of {name} lies in the interval on test; other kinds of images may differ"
