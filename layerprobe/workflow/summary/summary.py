"""summary: recall, gap and best epochs of each layer, also in galleries of one size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from layerprobe.measure.analysis import ItemCounts, search_sha256
from layerprobe.metrics.recall import positives_and_negatives, thinned_hits
from layerprobe.store import RankFile
from layerprobe.summary.cells import Cells, Faults, LayerEpoch, SplitCells, faults_of
from layerprobe.summary.layers import (
    RunSummary,
    end_values,
    indistinguishable_layers,
    layer_summaries,
    raw_layers,
)
from layerprobe.summary.post_processed import post_processed_sections
from layerprobe.system.errors import BusyError, DataError, RecipeError, UnknownNameError
from layerprobe.values.best import best_layer, last_agreements
from layerprobe.values.facts import assumed_lines
from layerprobe.values.intervals import IntervalKind
from layerprobe.values.layers import NO_POOL, RankedLayer
from layerprobe.values.retrieval import Ranks
from layerprobe.values.scores import SEEN, SPLITS, UNSEEN, Recall, Score, recall_of
from layerprobe.workflow.run.facts import data_facts
from layerprobe.workflow.run.metric_values import metric_flags, metric_values
from layerprobe.workflow.run.references import RankedSplit, mean_of_queries, open_ranked_split
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.stored_choice import selected_line
from layerprobe.workflow.run.units import units_of_run
from layerprobe.workflow.summary.post_processed import dimension_hint, processed_layers, processings_of
from layerprobe.workflow.summary.request import SummaryRequest

NO_GALLERIES = "no gap in galleries of one size"
_RECALL = "R@1"
_LACKING = "layers and epochs whose {metric} is not stored are skipped"
_UNREADABLE = (DataError, BusyError, RecipeError, UnknownNameError)  # of ranks, in `open_ranked_split`
_DEFAULTS = SummaryRequest()


def stored_summary(run: Run, request: SummaryRequest = _DEFAULTS) -> RunSummary:
    """The summary of a run's stored ranks; nothing is ranked or written."""
    scores, record, metric = run.scores(), run.read(), request.metric
    if metric != _RECALL and not any(score.metric == metric for score in scores):
        fix = f"Run {run.command('probe', *metric_flags(metric))}"
        raise DataError(f"no scores of {metric}", file=run.scores_file, fix=fix)
    scored = _layers_with_scores(scores)
    last_splits = {split: x for split in SPLITS if (x := _open_last(run, split, scored.get(split, {}))) is not None}
    if not last_splits:
        raise DataError("no ranks are stored", file=run.folder, fix=f"Run {run.command('probe')}")
    images = {split: (x.stored.labels, x.stored.ids) for split, x in last_splits.items()}
    units = units_of_run(run, images, request.cluster)
    files = {split: run.ranks(x.epoch, split) for split, x in last_splits.items()}
    thinning, not_thinned = thinning_of(files, metric, from_python=record.from_python)
    splits: dict[str, SplitCells] = {}
    notes: list[str] = []
    for split, ranked_split in last_splits.items():
        thinned = thinning if thinning and thinning.split == split else None
        splits[split], skipped = _read_cells(ranked_split, scored[split], units[split], metric, thinned)
        notes += skipped
    measured = {ranked for cells in splits.values() for ranked, _ in cells.faults}
    if not measured:
        raise DataError("; ".join(notes), file=run.folder, fix=f"Run {run.command('probe')}")
    layers = [ranked for ranked in dict.fromkeys(score.ranked for score in scores) if ranked in measured]
    data = data_facts(run, scores)
    data = replace(data, splits={split: data.splits[split] for split in splits})
    data = data if metric == _RECALL else data.without_chance()
    notes += [*not_thinned, *(_thinned_lines(run, thinning, splits) if thinning else [])]
    rows = tuple(layer_summaries(layers, splits, from_start=data.starts_training))
    raw, processings = {split: cells.raw for split, cells in splits.items()}, processings_of(layers)
    summary = RunSummary(
        run.name,
        IntervalKind(cluster=request.cluster),
        data,
        units={split: len(cells.units) for split, cells in splits.items()},
        layers=rows,
        indistinguishable=indistinguishable_layers(raw_layers(rows), splits, data),
        notes=(*assumed_lines(data), *dict.fromkeys(notes)),
        sections=post_processed_sections(layers, processings, raw),
        processed=processed_layers(run, layers, processings, raw),
        label_free=last_agreements(scores),
        metric=metric,
        gap_metric=str(thinning.metric) if thinning and splits[thinning.split].thinned.rows else metric,
    )
    return replace(summary, notes=(*summary.notes, *_hints(run, summary, splits)))


def _layers_with_scores(scores: Sequence[Score]) -> dict[str, dict[int, set[RankedLayer]]]:
    """Split -> epoch, descending -> the layers with scores: ranks of other layers are stale."""
    layers_by_epoch: dict[str, dict[int, set[RankedLayer]]] = {}
    for score in sorted(scores, key=lambda score: -score.epoch):
        layers_by_epoch.setdefault(score.split, {}).setdefault(score.epoch, set()).add(score.ranked)
    return layers_by_epoch


def _open_last(run: Run, split: str, epochs: Iterable[int]) -> RankedSplit | None:
    """The ranks of a split at the first of some epochs that has any readable ones; None without one."""
    for epoch in epochs:
        try:
            return open_ranked_split(run, epoch, split)
        except _UNREADABLE:  # noted by `_read_cells`, or nothing is stored
            continue
    return None


def _read_cells(
    last_split: RankedSplit,
    layers_by_epoch: Mapping[int, set[RankedLayer]],
    units: NDArray[np.int64],
    metric: str,
    thinning: Thinning | None,
) -> tuple[SplitCells, list[str]]:
    """The stored values of a split's layers at each epoch, and a line for each skipped epoch.

    Args:
        last_split: has the images that other epochs must have, too.
        units: (Q,) of these.
        thinning: of this split; None where its gallery is not thinned.
    """
    raw, thinned, notes = Cells(), Cells(), []
    faults: dict[LayerEpoch, Faults] = {}
    for epoch, layers in layers_by_epoch.items():
        where = f"{last_split.split}, epoch {epoch}"
        try:
            ranked_split = open_ranked_split(last_split.run, epoch, last_split.split)
        except _UNREADABLE:
            notes.append(f"{where}: skipped, its ranks cannot be read; probe it again")
            continue
        stored = ranked_split.stored
        if stored.ids != last_split.stored.ids or not np.array_equal(stored.labels, last_split.stored.labels):
            notes.append(f"{where}: skipped, it has other images than the last one")
            continue
        ranked_layers = [ranked for ranked in sorted(layers) if ranked_split.ranked_as(ranked)]
        if missing := sorted({str(ranked.layer) for ranked in layers.difference(ranked_layers)}):
            notes.append(f"{where}: {', '.join(missing)} skipped, as their ranks are not stored; probe them again")
        values: dict[RankedLayer, NDArray[np.float64]] = {}
        ranks: dict[RankedLayer, Ranks | str] = {**stored.ranks, **stored.invalid}
        for ranked in ranked_layers:
            fault = faults_of([ranks[draw] for draw in ranked_split.ranked_as(ranked)])
            try:
                if not fault.invalid:
                    values[ranked] = metric_values(ranked_split, ranked, metric)
            except DataError:
                notes.append(_LACKING.format(metric=metric))
                continue
            faults[ranked, epoch] = fault
        raw = raw.with_epoch(epoch, values, units)
        if thinning is not None:
            thinned = thinned.with_epoch(epoch, thinning.hits(ranked_split, values), units)
    return SplitCells(raw, thinned, faults, frozenset(np.unique(units).tolist())), notes


def _thinned_lines(run: Run, thinning: Thinning, splits: Mapping[str, SplitCells]) -> list[str]:
    """A line on the galleries of the gaps, and one with the command for ranks that are exact only up to a K."""
    thinned = splits[thinning.split].thinned
    lines = [thinning.note] if any(key in splits[thinning.other].raw for key in thinned.rows) else []
    inexact_keys = [key for key in splits[thinning.split].raw.rows if key not in thinned]
    if inexact_keys:
        epochs = ",".join(map(str, sorted({epoch for _, epoch in inexact_keys})))
        layers = ",".join(dict.fromkeys(str(ranked.layer) for ranked, _ in inexact_keys))
        flags = ("--epochs", epochs, "--splits", thinning.split, "--layers", layers)
        command = run.command("probe", *flags, "--gallery-size", str(thinning.metric.gallery))
        remedy = "" if run.read().from_python else f"; {command} makes them exact"
        lines.append(
            f"{NO_GALLERIES} at epoch {epochs}: the ranks of {thinning.split} are exact only up to a K{remedy}"
        )
    return lines


def _hints(run: Run, summary: RunSummary, splits: Mapping[str, SplitCells]) -> list[str]:
    """Lines on what the layers of a summary do not share, and on the stored choice."""
    notes = []
    if {SEEN, UNSEEN} <= splits.keys() and splits[SEEN].units & splits[UNSEEN].units:
        notes.append(f"no interval of a gap: {SEEN} and {UNSEEN} share {summary.kind.units_text()}")
    layers = [row.ranked for row in summary.layers]
    last_epoch = max(epoch for cells in splits.values() for _, epoch in cells.faults)
    notes += dimension_hint(run, layers, last_epoch, splits)
    best = best_layer(end_values(summary.main, summary.data))
    if best is not None and (line := selected_line(run, "*", summary.main[best.place].ranked, last_epoch)):
        notes.append(line)
    pools = dict.fromkeys(ranked.layer.pool for ranked in layers if ranked.layer.pool != NO_POOL)
    if len(pools) > 1:
        notes.append(f"layers differ in pool ({', '.join(pools)}): compare those of one pool")
    return notes


@dataclass(frozen=True, eq=False)
class Thinning:
    """The split with more items, and how its gallery is thinned to the size of the other's.

    Args:
        other: the other split.
        metric: Recall@K with the number of items that a query searches then.
        items: (Q,) right and wrong items of each query in the whole gallery.
        note: what is compared.
    """

    split: str
    other: str
    metric: Recall
    items: ItemCounts
    note: str

    def hits(self, ranked_split: RankedSplit, layers: Iterable[RankedLayer]) -> dict[RankedLayer, NDArray[np.float64]]:
        """Layer -> (Q,) each query's chance of a hit in the thinned gallery, where the ranks are exact for every K."""
        ranks, k, size = ranked_split.stored.ranks, self.metric.k, self.metric.gallery or 0
        draws = {ranked: ranked_split.ranked_as(ranked) for ranked in layers}
        return {
            ranked: mean_of_queries(members, lambda draw: thinned_hits(ranks[draw], k, size, *self.items))
            for ranked, members in draws.items()
            if not any(ranks[draw].open().any() for draw in members)
        }


def thinning_of(
    files: Mapping[str, RankFile], metric: str, *, from_python: bool
) -> tuple[Thinning | None, tuple[str, ...]]:
    """How train and test are brought to one size of gallery.

    Returns:
        None where they have one, or cannot be brought to one, with a line that says why.
    """
    recall, pair = recall_of(metric), {split: files[split] for split in (SEEN, UNSEEN) if split in files}
    if len(pair) < 2 or (recall and recall.gallery):
        return None, ()
    for name, file in pair.items():
        if not file.searched_itself:
            return None, (f"{NO_GALLERIES}: {name} is searched in a gallery of its own",)
        # Runs from Python have no rules, and other class numbers in the file.
        if not from_python and file.search_sha256 != search_sha256(file.stored, None):
            rules = "groups, lists, sets of labels or drawn queries"
            return None, (f"{NO_GALLERIES}: {rules} decide what an image of {name} may find",)
    smaller, larger = sorted(pair, key=lambda name: len(pair[name].stored.ids))
    size = len(pair[smaller].stored.ids) - 1
    if len(pair[larger].stored.ids) - 1 == size:
        return None, ()
    if recall is None:
        return None, (f"{NO_GALLERIES}: only Recall@K can be thinned",)
    items = positives_and_negatives(pair[larger].stored.labels)
    most = int(items[0].max())
    if most + recall.k > size:
        searches = f"a query of {smaller} searches {size:,} items"
        return None, (f"{NO_GALLERIES}: {searches}, and one of {larger} keeps {most:,} right ones",)
    thinned = Recall(recall.k, size)
    return Thinning(larger, smaller, thinned, items, _note(pair, larger, smaller, thinned)), ()


def _note(files: Mapping[str, RankFile], larger: str, smaller: str, thinned: Recall) -> str:
    by_image = f"thinned by image to {thinned.gallery:,} items, as many as a query of {smaller} searches"
    classes = {split: len(np.unique(files[split].stored.labels)) for split in (SEEN, UNSEEN)}
    counts = ", ".join(f"{split} {count:,}" for split, count in classes.items())
    differ = f"; the number of classes still differs ({counts})" if len(set(classes.values())) > 1 else ""
    return f"{thinned}: the gallery of {larger} is {by_image}{differ}"
