"""summary: recall, gap and best epochs of each layer of a run, from its stored ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from layerprobe.statistics.draws import draws, times_drawn
from layerprobe.store import StoredRanks
from layerprobe.summary.cells import Cells, Faults, LayerEpoch, SplitCells
from layerprobe.summary.layers import (
    LayerSummary,
    RunSummary,
    alike_layers,
    best_epoch,
    end_values,
    layer_summaries,
    unreduced,
)
from layerprobe.summary.reduced import reduced_sections
from layerprobe.system.errors import BusyError, DataError
from layerprobe.system.progress import Listener
from layerprobe.values.best import best_layer
from layerprobe.values.epochs import named_epochs
from layerprobe.values.facts import DataFacts, assumed_lines
from layerprobe.values.intervals import IntervalKind
from layerprobe.values.keys import NO_REDUCTION, RankedLayer
from layerprobe.values.label_free import last_agreements
from layerprobe.values.metric_names import Terms
from layerprobe.values.pooling import NO_POOL
from layerprobe.values.scores import SPLITS, Score
from layerprobe.workflow.run.facts import data_facts
from layerprobe.workflow.run.metric_values import metric_flags, metric_values, require_mean_over_queries
from layerprobe.workflow.run.references import open_ranked_split
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.starred import selected_line
from layerprobe.workflow.run.stored_terms import Offered, offered_terms
from layerprobe.workflow.run.units import units_of_run
from layerprobe.workflow.summary.equal_terms import equal_terms
from layerprobe.workflow.summary.reduced import (
    dimension_hint,
    faults_in,
    hits_of,
    processed_layers,
    processings_of,
    values_of,
)

_RECALL = "R@1"
_LACKING = "layers and epochs whose {metric} is not stored are skipped"
_NO_TERMS = "equal terms are drawn for R@1 alone"
Images = tuple[NDArray[np.integer], tuple[str, ...]]  # (Q,) classes and names of a split's queries


@dataclass(frozen=True)
class SummaryRequest:
    """A call of `layerprobe summary`.

    Args:
        epochs: for which missing draws on equal terms are made: all, or last, best and numbers, separated by commas.
            Epoch 0 is included.
        cluster: the column whose texts are the units of resampling; None for the classes.
        metric: R@1, or another stored mean over queries, which has no equal terms.
    """

    epochs: str = "last,best"
    cluster: str | None = None
    device: str = "auto"
    metric: str = "R@1"


def summarise(run: Run, request: SummaryRequest, listener: Listener) -> RunSummary:
    """The summary of a run, after missing draws on equal terms were made and stored."""
    require_mean_over_queries(request.metric)
    stored = _read(run, request.cluster, request.metric)
    epochs = _epochs_to_draw(request.epochs, stored)
    if not stored.lacks(epochs):
        return stored.summary()
    kind = IntervalKind(cluster=request.cluster)
    made = equal_terms(run, epochs, listener, device=request.device, kind=kind, units=lambda split: stored.units[split])
    found = _read(run, request.cluster, request.metric).summary()
    return replace(found, notes=tuple(dict.fromkeys([*found.notes, *made.reasons])))


def stored_summary(run: Run, cluster: str | None = None) -> RunSummary:
    """The summary of a run's stored ranks; nothing is drawn, ranked or written."""
    return _read(run, cluster).summary()


@dataclass(frozen=True, eq=False)
class _Stored:
    """The stored values of a run.

    Args:
        data: only splits with ranks.
        units: split -> (Q,) the units of its queries.
    """

    run: Run
    kind: IntervalKind
    data: DataFacts
    layers: Sequence[RankedLayer]
    splits: Mapping[str, SplitCells]
    units: Mapping[str, NDArray[np.int64]]
    offered: Offered
    notes: tuple[str, ...]
    scores: Sequence[Score]
    metric: str = _RECALL

    def lacks(self, epochs: Collection[int]) -> bool:
        """Whether a layer has no score on equal terms, or one with another kind of interval, at some of the epochs."""
        if self.offered.terms is None:
            return False
        scored = {
            (score.split, score.ranked, score.epoch)
            for score in self.scores
            if score.metric == self.offered.terms.name() and (score.interval is None or score.kind == self.kind)
        }
        drawn = ((split, self.splits[split]) for split in self.offered.splits)
        return any(
            place[1] in epochs and (place not in cells.equal or (split, *place) not in scored)
            for split, cells in drawn
            for place in cells.raw.rows
        )

    def summary(self) -> RunSummary:
        """The run's summary."""
        splits, terms, notes = self._on_equal_terms(), self.offered.terms, list(self.notes)
        if {"train", "test"} <= splits.keys():
            notes += self.offered.reasons
            if splits["train"].units & splits["test"].units:
                name = IntervalKind(cluster=self.kind.cluster).units_text()
                notes.append(f"no interval of a gap: train and test share {name}")
        if not any(cells.equal.rows for cells in splits.values()):
            if terms:
                notes.append(f"raw: all classes and images; {self.run.command('summary')} draws equal terms")
            terms = None
        rows = layer_summaries(self.layers, splits, from_start=self.data.starts_training)
        raw, processings = {split: cells.raw for split, cells in splits.items()}, processings_of(self.layers)
        last = max(epoch for cells in splits.values() for _, epoch in cells.faults)
        notes += dimension_hint(self.run, self.layers, last, splits)
        notes += self._selected_lines(unreduced(rows), last)
        pools = dict.fromkeys(ranked.layer.pool for ranked in self.layers if ranked.layer.pool != NO_POOL)
        if len(pools) > 1:
            notes.append(f"layers differ in pool ({', '.join(pools)}): compare those of one pool")
        return RunSummary(
            self.run.name,
            self.kind,
            self.data,
            {split: len(cells.units) for split, cells in splits.items()},
            terms,
            tuple(rows),
            alike_layers(unreduced(rows), splits, self.data),
            (*assumed_lines(self.data), *notes),
            reduced_sections(self.layers, processings, raw),
            processed_layers(self.run, self.layers, processings, raw),
            last_agreements(self.scores),
            self.metric,
        )

    def _selected_lines(self, rows: Sequence[LayerSummary], last: int) -> list[str]:
        """Why the table marks another layer than the stored choice, if it does."""
        best = best_layer(end_values(rows, self.data))
        line = "" if best is None else selected_line(self.run, "*", rows[best.place].ranked, last)
        return [line] if line else []

    def _on_equal_terms(self) -> Mapping[str, SplitCells]:
        """The splits; where all have the size of the equal terms, their recalls need no draws."""
        terms, offered = self.offered.terms, self.offered.splits
        size = terms.classes * terms.images if terms else 0
        if set(offered) != set(self.splits) or any(len(items.ids) != size for items in offered.values()):
            return self.splits
        return {split: replace(cells, equal=cells.raw) for split, cells in self.splits.items()}


def _read(run: Run, cluster: str | None, metric: str = _RECALL) -> _Stored:
    scores = run.scores()
    if metric != _RECALL and not any(score.metric == metric for score in scores):
        fix = f"Run {run.command('probe', *metric_flags(metric))}"
        raise DataError(f"no scores of {metric}", file=run.scores_file, fix=fix)
    measured = _measured(scores)
    images = {split: found for split in SPLITS if (found := _images(run, split, measured.get(split, {}))) is not None}
    if not images:
        raise DataError("no ranks are stored", file=run.folder, fix=f"Run {run.command('probe')}")
    data, units = data_facts(run, scores), units_of_run(run, images, cluster)
    offered = _offered(run, images) if metric == _RECALL else Offered(None, reasons=(_NO_TERMS,))
    seed: int = run.read().seed
    notes: list[str] = []
    splits: dict[str, SplitCells] = {}
    for split, found in images.items():
        weights = _weights(found[0], offered, seed, split)
        reading = _Reading(run, split, found, units[split], offered.terms, weights, metric)
        splits[split], left_out = reading.cells(measured[split])
        notes += left_out
    known = {ranked for cells in splits.values() for ranked, _ in cells.faults}
    if not known:
        raise DataError("; ".join(notes), file=run.folder, fix=f"Run {run.command('probe')}")
    layers = [ranked for ranked in dict.fromkeys(score.ranked for score in scores) if ranked in known]
    facts = replace(data, splits={split: data.splits[split] for split in splits})
    if metric != _RECALL:
        facts = facts.without_chance()
    kind = IntervalKind(cluster=cluster)
    return _Stored(run, kind, facts, layers, splits, units, offered, tuple(dict.fromkeys(notes)), scores, metric)


def _epochs_to_draw(text: str, stored: _Stored) -> list[int]:
    """The named epochs, and epoch 0 where gaps are compared with its gap."""
    known = sorted({epoch for cells in stored.splits.values() for _, epoch in cells.faults})
    words = {"all": lambda: known, "last": lambda: known[-1:], "best": lambda: _best_epoch(stored)}
    found = named_epochs(text, words, known, stored.run.name)
    return sorted({*found, *({0} & {*known} if stored.data.starts_training else ())})


def _best_epoch(stored: _Stored) -> set[int]:
    """The best epoch of the best layer at the end, on the split of the choice; empty without one."""
    layers = [ranked for ranked in stored.layers if ranked.reduction == NO_REDUCTION] or stored.layers
    chosen_on = stored.data.chosen_on(ranked.reduction for ranked in layers)
    splits = {split: stored.splits[split].raw for split in chosen_on if split in stored.splits}
    ends = {ranked: max([0, *(max(cells.epochs(ranked), default=0) for cells in splits.values())]) for ranked in layers}
    best = best_layer({split: [cells.mean((r, ends[r])) for r in layers] for split, cells in splits.items()})
    epoch = best_epoch(splits[best.split], layers[best.place]) if best else None
    return set() if epoch is None else {epoch}


def _measured(scores: Sequence[Score]) -> dict[str, dict[int, set[RankedLayer]]]:
    """Split -> epoch, descending -> the layers with scores: ranks of other layers are stale."""
    found: dict[str, dict[int, set[RankedLayer]]] = {}
    for score in sorted(scores, key=lambda score: -score.epoch):
        found.setdefault(score.split, {}).setdefault(score.epoch, set()).add(score.ranked)
    return found


def _images(run: Run, split: str, epochs: Mapping[int, object]) -> Images | None:
    """The queries of a split in its last readable rank file; None without one."""
    for epoch in epochs:
        try:
            return run.ranks(epoch, split).rows
        except (DataError, BusyError):  # noted by `_Reading.cells`, or nothing is stored
            continue
    return None


def _offered(run: Run, images: Mapping[str, Images]) -> Offered:
    """The equal terms of these queries; none if the newest ranks are of other queries."""
    offered = offered_terms(run)
    others = [split for split, items in offered.splits.items() if split not in images or items.ids != images[split][1]]
    if not others:
        return offered
    return Offered(None, reasons=(f"no equal terms: there are newer ranks of other images ({', '.join(others)})",))


def _weights(labels: NDArray[np.integer], offered: Offered, seed: int, split: str) -> NDArray[np.float64] | None:
    """(Q,) number of draws that include each query; None where a split is not drawn from."""
    if offered.terms is None or split not in offered.splits:
        return None
    return times_drawn(draws(labels, offered.terms, seed=seed, split=split), len(labels)).astype(np.float64)


@dataclass(frozen=True, eq=False)
class _Reading:
    """Reads the rank files of a split's queries."""

    run: Run
    split: str
    images: Images
    units: NDArray[np.int64]  # (Q,)
    terms: Terms | None
    weights: NDArray[np.float64] | None  # (Q,) of the queries on these terms
    metric: str = _RECALL

    def cells(self, epochs: Mapping[int, set[RankedLayer]]) -> tuple[SplitCells, list[str]]:
        """The stored ranks of the layers of each epoch, and a line for each skipped epoch."""
        raw, equal, notes = Cells(), Cells(), []
        faults: dict[LayerEpoch, Faults] = {}
        for epoch, layers in epochs.items():
            try:
                stored = self.run.ranks(epoch, self.split).stored
            except (DataError, BusyError):
                notes.append(f"{self.split}, epoch {epoch}: skipped, its ranks cannot be read; probe it again")
                continue
            if stored.ids != self.images[1] or not np.array_equal(stored.labels, self.images[0]):
                notes.append(f"{self.split}, epoch {epoch}: skipped, it has other images than the last one")
                continue
            found = faults_in(stored, layers)
            if lost := sorted({str(ranked.layer) for ranked in layers - found.keys()}):
                why = "as their ranks are not stored; probe them again"
                notes.append(f"{self.split}, epoch {epoch}: {', '.join(lost)} skipped, {why}")
            valid = [ranked for ranked, fault in found.items() if not fault.invalid]
            values, lacking = self._values(epoch, stored, valid)
            notes += lacking
            faults |= {(x, epoch): fault for x, fault in found.items() if fault.invalid or x in values}
            raw = raw.with_epoch(epoch, values, self.units)
            equal = equal.with_epoch(epoch, self._equal(stored, valid), self.units, self.weights)
        return SplitCells(raw, equal, faults, frozenset(np.unique(self.units).tolist())), notes

    def _values(
        self, epoch: int, stored: StoredRanks, layers: Sequence[RankedLayer]
    ) -> tuple[dict[RankedLayer, NDArray[np.float64]], list[str]]:
        """Layer -> (Q,) contributions of its queries; and a line if some are not stored."""
        if self.metric == _RECALL:
            return {ranked: hits_of(stored, ranked) for ranked in layers}, []
        place, found, missing = open_ranked_split(self.run, epoch, self.split), {}, 0
        for ranked in layers:
            try:
                found[ranked] = metric_values(place, ranked, self.metric)
            except DataError:
                missing += 1
        return found, [_LACKING.format(metric=self.metric)] * bool(missing)

    def _equal(self, stored: StoredRanks, layers: Sequence[RankedLayer]) -> dict[RankedLayer, NDArray[np.float64]]:
        """Layer -> (Q,) contributions of its queries on equal terms, where stored."""
        if self.terms is None or self.weights is None:
            return {}
        found = {ranked: values_of(stored, ranked, self.terms.name()) for ranked in layers}
        return {ranked: values for ranked, values in found.items() if values is not None}
