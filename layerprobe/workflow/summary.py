"""summary: the stored ranks of a run -> recall, gap and the epochs that matter, for each of its layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import BusyError, DataError
from layerprobe.facts import DataFacts
from layerprobe.intervals import IntervalKind
from layerprobe.keys import RankedLayer
from layerprobe.recipe import recorded_recipe
from layerprobe.runs import Run
from layerprobe.scores import SPLITS, Score
from layerprobe.statistics.draws import Terms, common_terms, draws, terms_in, times_drawn
from layerprobe.store import StoredRanks, read_index, read_stored_ranks
from layerprobe.summary.cells import Cells, Faults, Place, SplitCells, faults_of
from layerprobe.summary.layers import RunSummary, layer_summaries
from layerprobe.workflow.facts import data_facts
from layerprobe.workflow.parts import load_dataset
from layerprobe.workflow.units import units_of

Images = tuple[NDArray[np.integer], tuple[str, ...]]  # (Q,) classes and names of a split's queries


def stored_summary(run: Run, cluster: str | None = None) -> RunSummary:
    """The summary of what is stored of a run; nothing is drawn, ranked or written.

    Args:
        run: it was probed.
        cluster: the column whose texts are the units of resampling; None for the classes.

    Raises:
        DataError: no ranks are stored, or, with a cluster, the data set is not as it was.
        LayerprobeError: of the cluster, as for `units_of`.
    """
    scores = run.scores()
    measured = _measured(scores)
    images = {split: found for split in SPLITS if (found := _images(run, split, measured.get(split, {}))) is not None}
    if not images:
        raise DataError("no ranks are stored", file=run.folder, fix=f"Run layerprobe probe {run.name}")
    data, units = data_facts(run, scores), _units(run, images, cluster)
    terms = _stored_terms(scores)
    seed: int = run.read()["seed"]
    notes: list[str] = []
    splits: dict[str, SplitCells] = {}
    for split, found in images.items():
        weights = None if terms is None else _weights(found[0], terms, seed, split)
        reading = _Reading(run, split, found, units[split], terms, weights)
        splits[split], left_out = reading.cells(measured[split])
        notes += left_out
    if terms is None:
        terms, splits = _on_equal_terms_already(splits, images, data)
    known = {ranked for cells in splits.values() for ranked, _ in cells.faults}
    layers = [ranked for ranked in dict.fromkeys(score.ranked_layer for score in scores) if ranked in known]
    return RunSummary(
        run.name,
        IntervalKind(cluster=cluster),
        DataFacts(data.name, {split: data.splits[split] for split in splits}, data.start),
        {split: len(cells.units) for split, cells in splits.items()},
        terms,
        tuple(layer_summaries(layers, splits, from_start=data.starts_training)),
        tuple(notes),
    )


def _measured(scores: Sequence[Score]) -> dict[str, dict[int, set[RankedLayer]]]:
    """Split -> epoch, the last one first -> the layers that have scores: ranks of others hold no longer."""
    found: dict[str, dict[int, set[RankedLayer]]] = {}
    for score in sorted(scores, key=lambda score: -score.epoch):
        found.setdefault(score.split, {}).setdefault(score.epoch, set()).add(score.ranked_layer)
    return found


def _images(run: Run, split: str, epochs: Mapping[int, object]) -> Images | None:
    """The queries of a split, as its last readable rank file has them; None without one."""
    for epoch in epochs:
        try:
            return read_index(run.rank_file(epoch, split), holds="labels")
        except (DataError, BusyError):  # `_Reading.cells` tells it, or nothing is stored
            continue
    return None


def _units(run: Run, images: Mapping[str, Images], cluster: str | None) -> dict[str, NDArray[np.int64]]:
    """Split -> (Q,) units of its queries, numbered alike in all splits."""
    if cluster is None:
        return {split: labels.astype(np.int64) for split, (labels, _) in images.items()}
    dataset = load_dataset(recorded_recipe(run.read(), run.record_file))
    labels = np.concatenate([labels for labels, _ in images.values()])
    units = units_of(dataset, [name for _, ids in images.values() for name in ids], labels, cluster)
    ends = np.cumsum([len(labels) for labels, _ in images.values()])[:-1]
    return dict(zip(images, np.split(units, ends), strict=True))


def _stored_terms(scores: Sequence[Score]) -> Terms | None:
    """The equal terms that most scores are on; None where none is on any."""
    names = Counter(score.metric for score in scores)
    found = {terms: names[terms.name()] for terms in map(terms_in, names) if terms and terms.name() in names}
    return max(found, key=lambda terms: found[terms]) if found else None


def _weights(labels: NDArray[np.integer], terms: Terms, seed: int, split: str) -> NDArray[np.float64] | None:
    """(Q,) in how many draws each query was; None where the split cannot meet the terms."""
    try:
        drawn = draws(labels, terms, seed=seed, split=split)
    except ValueError:
        return None
    return times_drawn(drawn, len(labels)).astype(np.float64)


def _on_equal_terms_already(
    splits: Mapping[str, SplitCells], images: Mapping[str, Images], data: DataFacts
) -> tuple[Terms | None, dict[str, SplitCells]]:
    """Recalls that need no draws: every split has as many classes, and each class as many images."""
    terms = common_terms({split: labels for split, (labels, _) in images.items()})
    exact = terms and all(
        data.splits[split].gallery is None and len(labels) == terms.classes * terms.images
        for split, (labels, _) in images.items()
    )
    if not exact or len(splits) == 1:
        return None, dict(splits)
    return terms, {split: replace(cells, equal=cells.raw) for split, cells in splits.items()}


@dataclass(frozen=True, eq=False)
class _Reading:
    """What of a split is read: the rank files of its queries."""

    run: Run
    split: str
    images: Images
    units: NDArray[np.int64]  # (Q,)
    terms: Terms | None
    weights: NDArray[np.float64] | None  # (Q,) of the queries on these terms

    def cells(self, epochs: Mapping[int, set[RankedLayer]]) -> tuple[SplitCells, list[str]]:
        """What is stored of the layers of each epoch, and a line for each epoch that is left out."""
        raw, equal, notes = Cells(), Cells(), []
        faults: dict[Place, Faults] = {}
        for epoch, layers in epochs.items():
            try:
                stored = read_stored_ranks(self.run.rank_file(epoch, self.split))
            except (DataError, BusyError):
                notes.append(f"{self.split}, epoch {epoch}: left out, as its ranks cannot be read; probe it again")
                continue
            if stored.ids != self.images[1] or not np.array_equal(stored.labels, self.images[0]):
                notes.append(f"{self.split}, epoch {epoch}: left out, as it has other images than the last one")
                continue
            found = {ranked: fault for ranked, fault in _faults(stored).items() if ranked in layers}
            faults |= {(ranked, epoch): fault for ranked, fault in found.items()}
            valid = [ranked for ranked, fault in found.items() if not fault.invalid]
            raw = raw.with_epoch(epoch, {ranked: stored.ranks[ranked].hits(1) for ranked in valid}, self.units)
            equal = equal.with_epoch(epoch, self._equal(stored, valid), self.units, self.weights)
        return SplitCells(raw, equal, faults, frozenset(np.unique(self.units).tolist())), notes

    def _equal(self, stored: StoredRanks, layers: Sequence[RankedLayer]) -> dict[RankedLayer, NDArray[np.float64]]:
        """Layer -> (Q,) what its queries add on equal terms, as far as that is stored."""
        if self.terms is None or self.weights is None:
            return {}
        found = {ranked: stored.values[ranked].get(self.terms.name()) for ranked in layers}
        return {ranked: values for ranked, values in found.items() if values is not None}


def _faults(stored: StoredRanks) -> dict[RankedLayer, Faults]:
    """What a reader must know of each layer that is stored."""
    return {
        **{ranked: faults_of(ranks) for ranked, ranks in stored.ranks.items()},
        **{ranked: Faults(invalid=reason) for ranked, reason in stored.invalid.items()},
    }
