"""summary: recall, gap and best epochs of each layer, also in galleries of one size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from layerprobe.measure.analysis import ItemCounts, search_sha256
from layerprobe.metrics.recall import positives_and_negatives, thinned_hits
from layerprobe.store import StoredRanks
from layerprobe.summary.cells import Cells, Faults, LayerEpoch, SplitCells
from layerprobe.summary.layers import (
    SEEN,
    UNSEEN,
    LayerSummary,
    RunSummary,
    end_values,
    indistinguishable_layers,
    layer_summaries,
    unreduced,
)
from layerprobe.summary.reduced import reduced_sections
from layerprobe.system.errors import BusyError, DataError
from layerprobe.values.best import best_layer, last_agreements
from layerprobe.values.facts import DataFacts, assumed_lines
from layerprobe.values.intervals import IntervalKind
from layerprobe.values.layers import NO_POOL, RankedLayer
from layerprobe.values.scores import SPLITS, Recall, Score, recall_of
from layerprobe.workflow.run.facts import data_facts
from layerprobe.workflow.run.metric_values import metric_flags, metric_values, require_mean_over_queries
from layerprobe.workflow.run.references import mean_of_queries, open_ranked_split, ranked_as
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.stored_choice import selected_line
from layerprobe.workflow.run.units import units_of_run
from layerprobe.workflow.summary.reduced import (
    dimension_hint,
    faults_in,
    hits_of,
    processed_layers,
    processings_of,
)

NO_GALLERIES = "no gap in galleries of one size"


@dataclass(frozen=True, eq=False)
class SplitItems:
    """The images of a split as they were ranked.

    Args:
        labels: (Q,) their classes.
        ids: their Q names.
        itself: whether they are searched among themselves.
        search_sha256: hash of what decides which items each query may find.
    """

    labels: NDArray[np.int64]
    ids: tuple[str, ...]
    itself: bool
    search_sha256: str


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

    def hits(self, stored: StoredRanks, ranked: RankedLayer) -> NDArray[np.float64] | None:
        """(Q,) each query's chance of a hit in the thinned gallery; None where the ranks are exact only up to a K."""
        members = ranked_as(ranked, stored.ranks)
        if any(stored.ranks[member].open().any() for member in members):
            return None
        k, size = self.metric.k, self.metric.gallery or 0
        return mean_of_queries(members, lambda member: thinned_hits(stored.ranks[member], k, size, *self.items))


def thinning_of(
    splits: Mapping[str, SplitItems], metric: str, *, from_python: bool
) -> tuple[Thinning | None, tuple[str, ...]]:
    """How train and test are brought to one size of gallery.

    Returns:
        None where they have one, or cannot be brought to one, with a line that says why.
    """
    recall, pair = recall_of(metric), {split: splits[split] for split in (SEEN, UNSEEN) if split in splits}
    if len(pair) < 2 or (recall and recall.gallery):
        return None, ()
    for name, images in pair.items():
        if not images.itself:
            return None, (f"{NO_GALLERIES}: {name} is searched in a gallery of its own",)
        # Runs from Python have no rules, and other class numbers in the file.
        if not from_python and images.search_sha256 != search_sha256(images, None):
            return None, (f"{NO_GALLERIES}: groups, lists or sets of labels decide what an image of {name} may find",)
    smaller, larger = sorted(pair, key=lambda name: len(pair[name].ids))
    size = len(pair[smaller].ids) - 1
    if len(pair[larger].ids) - 1 == size:
        return None, ()
    if recall is None:
        return None, (f"{NO_GALLERIES}: only Recall@K can be thinned",)
    items = positives_and_negatives(pair[larger].labels)
    most = int(items[0].max())
    if most + recall.k > size:
        searches = f"a query of {smaller} searches {size:,} items"
        return None, (f"{NO_GALLERIES}: {searches}, and one of {larger} keeps {most:,} right ones",)
    thinned = Recall(recall.k, size)
    return Thinning(larger, smaller, thinned, items, _note(pair, larger, smaller, thinned)), ()


def _note(splits: Mapping[str, SplitItems], larger: str, smaller: str, thinned: Recall) -> str:
    by_image = f"thinned by image to {thinned.gallery:,} items, as many as a query of {smaller} searches"
    classes = {split: len(np.unique(splits[split].labels)) for split in (SEEN, UNSEEN)}
    counts = ", ".join(f"{split} {count:,}" for split, count in classes.items())
    differ = f"; the number of classes still differs ({counts})" if len(set(classes.values())) > 1 else ""
    return f"{thinned}: the gallery of {larger} is {by_image}{differ}"


_RECALL = "R@1"
_LACKING = "layers and epochs whose {metric} is not stored are skipped"


def stored_summary(run: Run, cluster: str | None = None, metric: str = _RECALL) -> RunSummary:
    """The summary of a run's stored ranks; nothing is ranked or written.

    Args:
        cluster: the column whose texts are the units of resampling; None for the classes.
        metric: R@1, or another stored mean over queries.
    """
    require_mean_over_queries(metric)
    return _read_values(run, cluster, metric).summary()


@dataclass(frozen=True, eq=False)
class _StoredValues:
    """The stored values of a run.

    Args:
        data: only splits with ranks.
    """

    run: Run
    kind: IntervalKind
    data: DataFacts
    layers: Sequence[RankedLayer]
    splits: Mapping[str, SplitCells]
    notes: tuple[str, ...]
    scores: Sequence[Score]
    metric: str
    gap_metric: str

    def summary(self) -> RunSummary:
        """The run's summary."""
        splits, notes = self.splits, list(self.notes)
        if {SEEN, UNSEEN} <= splits.keys() and splits[SEEN].units & splits[UNSEEN].units:
            name = IntervalKind(cluster=self.kind.cluster).units_text()
            notes.append(f"no interval of a gap: {SEEN} and {UNSEEN} share {name}")
        rows = layer_summaries(self.layers, splits, from_start=self.data.starts_training)
        raw, processings = {split: cells.raw for split, cells in splits.items()}, processings_of(self.layers)
        last_epoch = max(epoch for cells in splits.values() for _, epoch in cells.faults)
        notes += dimension_hint(self.run, self.layers, last_epoch, splits)
        notes += self._selected_lines(unreduced(rows), last_epoch)
        pools = dict.fromkeys(ranked.layer.pool for ranked in self.layers if ranked.layer.pool != NO_POOL)
        if len(pools) > 1:
            notes.append(f"layers differ in pool ({', '.join(pools)}): compare those of one pool")
        return RunSummary(
            self.run.name,
            self.kind,
            self.data,
            {split: len(cells.units) for split, cells in splits.items()},
            tuple(rows),
            indistinguishable_layers(unreduced(rows), splits, self.data),
            (*assumed_lines(self.data), *notes),
            reduced_sections(self.layers, processings, raw),
            processed_layers(self.run, self.layers, processings, raw),
            last_agreements(self.scores),
            self.metric,
            self.gap_metric,
        )

    def _selected_lines(self, rows: Sequence[LayerSummary], epoch: int) -> list[str]:
        """Why the table marks another layer than the stored choice, if it does."""
        best = best_layer(end_values(rows, self.data))
        line = "" if best is None else selected_line(self.run, "*", rows[best.place].ranked, epoch)
        return [line] if line else []


def _read_values(run: Run, cluster: str | None, metric: str) -> _StoredValues:
    scores = run.scores()
    if metric != _RECALL and not any(score.metric == metric for score in scores):
        fix = f"Run {run.command('probe', *metric_flags(metric))}"
        raise DataError(f"no scores of {metric}", file=run.scores_file, fix=fix)
    measured = _layers_with_scores(scores)
    images = {
        split: items for split in SPLITS if (items := _read_items(run, split, measured.get(split, {}))) is not None
    }
    if not images:
        raise DataError("no ranks are stored", file=run.folder, fix=f"Run {run.command('probe')}")
    data = data_facts(run, scores)
    units = units_of_run(run, {split: (items.labels, items.ids) for split, items in images.items()}, cluster)
    thinning, reasons = thinning_of(images, metric, from_python=run.read().from_python)
    notes: list[str] = []
    splits: dict[str, SplitCells] = {}
    for split, items in images.items():
        splits[split], left_out = _RankReader(run, split, items, units[split], thinning, metric).cells(measured[split])
        notes += left_out
    measured_layers = {ranked for cells in splits.values() for ranked, _ in cells.faults}
    if not measured_layers:
        raise DataError("; ".join(notes), file=run.folder, fix=f"Run {run.command('probe')}")
    layers = [ranked for ranked in dict.fromkeys(score.ranked for score in scores) if ranked in measured_layers]
    facts = replace(data, splits={split: data.splits[split] for split in splits})
    if metric != _RECALL:
        facts = facts.without_chance()
    thinned = splits[thinning.split].thinned if thinning else None
    gap_metric = str(thinning.metric) if thinning and thinned else metric
    notes += [*reasons, *(_thinned_lines(run, thinning, splits) if thinning else [])]
    kind = IntervalKind(cluster=cluster)
    return _StoredValues(run, kind, facts, layers, splits, tuple(dict.fromkeys(notes)), scores, metric, gap_metric)


def _thinned_lines(run: Run, thinning: Thinning, splits: Mapping[str, SplitCells]) -> list[str]:
    """A line on the galleries of the gaps, and one with the command for ranks that are exact only up to a K."""
    thinned = splits[thinning.split].thinned or Cells()
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


def _layers_with_scores(scores: Sequence[Score]) -> dict[str, dict[int, set[RankedLayer]]]:
    """Split -> epoch, descending -> the layers with scores: ranks of other layers are stale."""
    layers_by_epoch: dict[str, dict[int, set[RankedLayer]]] = {}
    for score in sorted(scores, key=lambda score: -score.epoch):
        layers_by_epoch.setdefault(score.split, {}).setdefault(score.epoch, set()).add(score.ranked)
    return layers_by_epoch


def _read_items(run: Run, split: str, epochs: Mapping[int, object]) -> SplitItems | None:
    """The queries of a split in its last readable rank file; None without one."""
    for epoch in epochs:
        try:
            ranks = run.ranks(epoch, split)
            labels, ids = ranks.rows
        except (DataError, BusyError):  # noted by `_RankReader.cells`, or nothing is stored
            continue
        return SplitItems(labels.astype(np.int64), ids, ranks.searched_itself, ranks.search_sha256)
    return None


@dataclass(frozen=True, eq=False)
class _RankReader:
    """Reads the rank files of a split's queries."""

    run: Run
    split: str
    images: SplitItems
    units: NDArray[np.int64]  # (Q,)
    thinning: Thinning | None
    metric: str

    def cells(self, epochs: Mapping[int, set[RankedLayer]]) -> tuple[SplitCells, list[str]]:
        """The stored ranks of the layers of each epoch, and a line for each skipped epoch."""
        raw, thinned, notes = Cells(), Cells(), []
        faults: dict[LayerEpoch, Faults] = {}
        for epoch, layers in epochs.items():
            try:
                stored = self.run.ranks(epoch, self.split).stored
            except (DataError, BusyError):
                notes.append(f"{self.split}, epoch {epoch}: skipped, its ranks cannot be read; probe it again")
                continue
            if stored.ids != self.images.ids or not np.array_equal(stored.labels, self.images.labels):
                notes.append(f"{self.split}, epoch {epoch}: skipped, it has other images than the last one")
                continue
            faults_by_layer = faults_in(stored, layers)
            if missing_names := sorted({str(ranked.layer) for ranked in layers - faults_by_layer.keys()}):
                reason = "as their ranks are not stored; probe them again"
                notes.append(f"{self.split}, epoch {epoch}: {', '.join(missing_names)} skipped, {reason}")
            valid = [ranked for ranked, fault in faults_by_layer.items() if not fault.invalid]
            values, lacking_notes = self._values(epoch, stored, valid)
            notes += lacking_notes
            faults |= {(x, epoch): fault for x, fault in faults_by_layer.items() if fault.invalid or x in values}
            raw = raw.with_epoch(epoch, values, self.units)
            thinned = thinned.with_epoch(epoch, self._thinned_hits(stored, values), self.units)
        units = frozenset(np.unique(self.units).tolist())
        return SplitCells(raw, thinned if thinned.rows else None, faults, units), notes

    def _values(
        self, epoch: int, stored: StoredRanks, layers: Sequence[RankedLayer]
    ) -> tuple[dict[RankedLayer, NDArray[np.float64]], list[str]]:
        """Layer -> (Q,) contributions of its queries; and a line if some are not stored."""
        if self.metric == _RECALL:
            return {ranked: hits_of(stored, ranked) for ranked in layers}, []
        ranked_split, values, missing = open_ranked_split(self.run, epoch, self.split), {}, 0
        for ranked in layers:
            try:
                values[ranked] = metric_values(ranked_split, ranked, self.metric)
            except DataError:
                missing += 1
        return values, [_LACKING.format(metric=self.metric)] * bool(missing)

    def _thinned_hits(
        self, stored: StoredRanks, layers: Iterable[RankedLayer]
    ) -> dict[RankedLayer, NDArray[np.float64]]:
        """Layer -> (Q,) chances of its queries in the thinned gallery, where the ranks are exact."""
        if self.thinning is None or self.thinning.split != self.split:
            return {}
        hits = {ranked: self.thinning.hits(stored, ranked) for ranked in layers}
        return {ranked: values for ranked, values in hits.items() if values is not None}
