"""threshold: pairs of a run's layer -> thresholds at false accept rates, and their rates on test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.measure.pair_thresholds import (
    Accepted,
    PairCounts,
    Units,
    count_accepted,
    count_pairs,
    require_pairs,
    thresholds_at,
)
from layerprobe.ranking.all_pairs import AllPairs, all_pairs
from layerprobe.reductions.chain import parse_chain
from layerprobe.statistics.pair_rates import pairs_of_units, rate_intervals
from layerprobe.statistics.units import UnitSums, effective_number, intervals
from layerprobe.system.errors import DataError, NotFiniteError, NumericError, RecipeError
from layerprobe.system.progress import Listener
from layerprobe.values.facts import chosen_on_text
from layerprobe.values.intervals import FEWEST_UNITS, Interval, IntervalKind, SamplingUnits
from layerprobe.values.layers import NO_REDUCTION, RankedLayer
from layerprobe.values.thresholds import MeasuredThresholds, PairedSplit, Rate, Threshold, require_rates
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.features_run import require_one_map
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.references import (
    find_layers_of,
    open_ranked_split,
    parse_reference,
    require_any_right_item,
)
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import seen_train_error, split_to_choose_on
from layerprobe.workflow.run.stored_choice import stored_choice, taken_text
from layerprobe.workflow.run.units import folders_note_of_run, require_whole_classes, units_of_run


def layer_pairs(search: StoredSearch, ranked: RankedLayer) -> AllPairs:
    """The pairs of a split's images by a layer, as its search compares them.

    Raises:
        DataError: its features are gone or have changed, or the search rules.
        NumericError: NaN or Inf.
    """
    # A reduction that is not ranked is fitted anew, on the features that the layer itself was ranked by.
    is_ranked = ranked in search.run.ranks(search.epoch, search.split).stored.ranks
    search.require_stored(ranked if is_ranked else replace(ranked, reduction=NO_REDUCTION))
    queries, gallery = search.features(ranked)
    try:
        return all_pairs(
            torch.as_tensor(queries.values),
            queries.labels,
            gallery=None if gallery is None else torch.as_tensor(gallery.values),
            gallery_labels=None if gallery is None else gallery.labels,
            similarity=ranked.similarity,  # type: ignore[arg-type] # text from a file, checked there
            ids=None if gallery is None else queries.ids,
            gallery_ids=None if gallery is None else gallery.ids,
            rules=search.rules,
        )
    except NotFiniteError as error:
        message = f"{ranked} has no threshold on {search.split}: {error.message}"
        raise NumericError(message, fix="Choose a layer whose features are finite") from error


_MOST = 0.8  # of the impostor pairs


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


def threshold(
    run: Run, layer: str | None, rates: Sequence[float], listener: Listener, *, cluster: str | None = None
) -> MeasuredThresholds:
    """Set thresholds at false accept rates, and measure them on the unseen test classes.

    Args:
        layer: LAYER[@pool][/reduction] of the last epoch; None: the stored choice where that holds, else the one that
            `choose` selects at the last epoch.
        rates: each between 0 and 1.
        cluster: the column whose texts are the units of intervals, or `parent`; None: units are classes.

    Raises:
        UnknownNameError: no such column.
        RecipeError: see `split_to_set_on`; clusters that divide a class; a rate out of range; a layer that names
            several, or has no single features.
        DataError: features that are gone, or a split without genuine or impostor pairs.
        NumericError: NaN or Inf.
    """
    require_rates(tuple(rates))
    units = None if cluster is None else _read_clusters(run, cluster)
    if layer is None:
        ranked, epoch = _choose_layer(run, listener)
        split = split_to_set_on(run, epoch)
    else:
        split = split_to_set_on(run)
        ranked, epoch = _find_layer(run, split, layer)
    device = from_recipe.choose_device("auto")
    setting, testing = (layer_pairs(StoredSearch(run, epoch, name, device), ranked) for name in (split, "test"))
    fitted_on_it = split == "train" and parse_chain(ranked.reduction).fits_on_train
    notes = tuple(filter(None, [folders_note_of_run(run, epoch, "test")] if cluster is None else []))
    subject = ThresholdsOf(run.name, epoch, ranked, split, fitted_on_it, cluster, units, notes)
    return measure_thresholds(subject, setting, testing, rates, listener)


@dataclass(frozen=True, eq=False)
class ThresholdsOf:
    """Whose thresholds are measured.

    Args:
        run: its name, or that of the file of features.
        epoch: None: unknown.
        split: that they are set on.
        fitted_on_it: whether the reduction was fitted on the classes of this split.
        cluster: the column whose texts are the units of intervals; None: units are classes.
        units: of the test queries and of the items that they are paired with; None: their classes.
        notes: on the classes.
    """

    run: str
    epoch: int | None
    ranked: RankedLayer
    split: str
    fitted_on_it: bool
    cluster: str | None = None
    units: tuple[Units, Units] | None = None
    notes: tuple[str, ...] = ()


def measure_thresholds(
    subject: ThresholdsOf, setting: AllPairs, testing: AllPairs, rates: Sequence[float], listener: Listener
) -> MeasuredThresholds:
    """Set thresholds on the pairs of one split, and measure them on those of test.

    Raises:
        DataError: a split without genuine or impostor pairs.
    """
    ranked, split = subject.ranked, subject.split
    with listener.task(f"threshold {ranked}", 5, "passes over all pairs") as task:
        counts = count_pairs(setting)
        task.advance()
        similarities = thresholds_at(setting, counts, sorted(rates))
        task.advance()
        set_at = count_accepted(setting, similarities)
        task.advance()
        tested = count_pairs(testing)
        task.advance()
        test_at = count_accepted(testing, similarities, units=subject.units)
        task.advance()
    splits = _count_split(split, setting, counts), _count_split("test", testing, tested)
    kind, classes = IntervalKind(cluster=subject.cluster), splits[1].classes
    intervals_on_test = _intervals_of(test_at, None if subject.cluster is None else classes)
    set_rates, test_rates = _rates(set_at), _rates(test_at, intervals_on_test)
    rows = [
        Threshold(rate, setting.in_user_units(similarity), *set_row, *test_row)
        for rate, similarity, set_row, test_row in zip(sorted(rates), similarities, set_rates, test_rates, strict=True)
    ]
    notes = [*_fitted_note(subject), *_count_notes(counts, tested, splits), *_rate_notes(rows, splits[0])]
    units = classes if subject.units is None else len(np.unique(subject.units[0]))
    notes += [*SamplingUnits(kind, units).remarks, *_unequal_note(test_at, kind), *subject.notes]
    return MeasuredThresholds(subject.run, subject.epoch, ranked, *splits, tuple(rows), tuple(notes), subject.cluster)


def _read_clusters(run: Run, cluster: str) -> tuple[Units, Units]:
    """The clusters of the test queries of the last epoch, and of the items that they are paired with."""
    ranked_split = open_ranked_split(run, None, "test")
    epoch, stored = ranked_split.epoch, ranked_split.stored
    images: dict[str, tuple[NDArray[np.integer], Sequence[str]]] = {"test": (stored.labels, stored.ids)}
    gallery = "test" if run.ranks(epoch, "test").searched_itself else "gallery"
    if gallery != "test":
        images[gallery] = run.feature_head(epoch, gallery).rows
    units = units_of_run(run, images, cluster)
    labels = np.concatenate([image_labels for image_labels, _ in images.values()])
    require_whole_classes(
        labels, np.concatenate(list(units.values())), cluster, run.feature_head(epoch, "test").class_names
    )
    return units["test"], units[gallery]


def _choose_layer(run: Run, listener: Listener) -> tuple[RankedLayer, int]:
    """The layer of the stored choice and its epoch; without one those that `choose` selects at the last epoch."""
    stored = stored_choice(run, listener.say)
    if stored is not None:
        choice, why = stored.choice, "the stored choice"
    else:
        split_to_set_on(run)  # fails before the work, not after it
        choice = choose_runs([run], ChooseRequest(epochs="last"), listener)
        why = f"as {run.command('choose', '--epochs', 'last')} says; it is not stored"
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


Ends = Sequence[Interval | None]  # of a rate at each threshold


def _intervals_of(accepted: Accepted, classes: int | None) -> tuple[Ends, Ends]:
    """The intervals of the false and of the true accept rates.

    Args:
        classes: number of classes, where units are clusters of them.
    """
    sums = np.tile(accepted.genuine_pairs.astype(np.float64), (len(accepted.genuine), 1))
    false = rate_intervals(accepted.impostor, accepted.impostor_pairs, classes=classes)
    return false, intervals(UnitSums(accepted.genuine.astype(np.float64), sums))


def _rates(accepted: Accepted, ends: tuple[Ends, Ends] | None = None) -> list[tuple[Rate, Rate]]:
    """The false and the true accept rate at each threshold, with their intervals, if any."""
    none: Ends = [None] * len(accepted.genuine)
    ends = ends or (none, none)
    pairs = int(accepted.impostor_pairs.sum()), int(accepted.genuine_pairs.sum())
    counts = zip(accepted.impostor.sum((1, 2)).tolist(), accepted.genuine.sum(1).tolist(), strict=True)
    return [(_rate(far, pairs[0], ends[0][i]), _rate(tar, pairs[1], ends[1][i])) for i, (far, tar) in enumerate(counts)]


def _rate(count: int, pairs: int, interval: Interval | None) -> Rate:
    rate = Rate(count / pairs, count, pairs)
    return rate if interval is None else replace(rate, low=interval.low, high=interval.high)


def _fitted_note(subject: ThresholdsOf) -> list[str]:
    """A note where the reduction was fitted on the classes that the threshold is set on."""
    if not subject.fitted_on_it:
        return []
    return [f"{subject.ranked.reduction} was fitted on the choosing classes themselves, so their rates flatter it"]


def _count_notes(counts: PairCounts, tested: PairCounts, splits: tuple[PairedSplit, PairedSplit]) -> list[str]:
    pairs = zip(splits, (counts, tested), strict=True)
    collapsed = [chosen_on_text(split.split) for split, split_counts in pairs if split_counts.collapsed]
    return [f"all similarities are equal to 1e-6 on {' and '.join(collapsed)}: it has collapsed"] if collapsed else []


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
        texts = ", ".join(f"{rate:g}" for rate in unreachable)
        needed = math.ceil(1 / min(unreachable))
        notes.append(
            f"{texts}: less than 1 of the {set_on.impostor:,} impostor pairs of {name}, so the threshold is above them"
            f" all; {needed:,} pairs would be needed"
        )
    if tied := [f"{row.asked:g}" for row in rows if not row.set_far.accepted and row.asked not in unreachable]:
        notes.append(
            f"{', '.join(tied)}: more of the impostor pairs of {name} tie for the most similar, so the threshold is"
            " above them all"
        )
    return notes
