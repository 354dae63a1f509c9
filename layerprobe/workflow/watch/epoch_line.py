"""The line of an epoch: recall and gap of the last layer, when its gap opened, and the best layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from layerprobe.store import RankEntry
from layerprobe.summary.cells import Cells, Faults, SplitCells
from layerprobe.summary.layers import layer_summaries
from layerprobe.values.best import best_layer, tied_text
from layerprobe.values.layers import RankedLayer
from layerprobe.values.scores import Score
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.summary.reduced import hits_of


@dataclass(frozen=True, eq=False)
class LayerEpochs:
    """Recall@1 of a layer at the epochs so far.

    Args:
        units: split -> (Q,) classes of its queries.
        cells: split -> its recalls.
    """

    ranked: RankedLayer
    units: Mapping[str, NDArray[np.int64]]
    cells: Mapping[str, Cells] = field(default_factory=dict)

    def with_epoch(self, epoch: int, entries: Mapping[str, RankEntry]) -> LayerEpochs:
        """These epochs and a further one."""
        hits = {split: entry.ranks.hits(1) for split, entry in entries.items() if entry.ranks is not None}
        return self._with(epoch, hits)

    def with_stored(self, run: Run, epoch: int) -> LayerEpochs:
        """These epochs and one that a run has stored."""
        stored = {split: run.ranks(epoch, split).stored for split in self.units}
        hits = {split: hits_of(ranks, self.ranked) for split, ranks in stored.items() if self.ranked in ranks.ranks}
        return self._with(epoch, hits)

    def _with(self, epoch: int, hits: Mapping[str, NDArray[np.float64]]) -> LayerEpochs:
        new = {
            split: self.cells.get(split, Cells()).with_epoch(epoch, {self.ranked: values}, self.units[split])
            for split, values in hits.items()
        }
        return LayerEpochs(self.ranked, self.units, {**self.cells, **new})

    def text(self, epoch: int) -> str:
        """`fc1 train 81.2 %, test 40.1 %, gap +41.1 (opens at epoch 1)`."""
        splits = {
            split: SplitCells(cells, None, dict.fromkeys(cells.rows, Faults()), frozenset(self.units[split].tolist()))
            for split, cells in self.cells.items()
            if (self.ranked, epoch) in cells
        }
        if not splits:
            return f"{self.ranked} has no value"
        (row,) = layer_summaries([self.ranked], splits, from_start=True)
        values = {split: level.value for split, level in row.levels.items()}
        parts = [f"{split} {100 * value:.1f} %" for split, value in values.items() if value is not None]
        if row.gap:
            parts.append(f"gap {100 * row.gap.value:+.1f}")
        opens = f" (opens at epoch {row.opening.epoch})" if row.opening and row.opening.epoch is not None else ""
        return f"{self.ranked} {', '.join(parts)}{opens}"


def best_words(scores: Sequence[Score], metric: str, shown_layer: RankedLayer) -> str:
    """`; best on test: conv2@max 55.0 %`; empty where that layer is shown already."""
    values: dict[str, dict[RankedLayer, float | None]] = {}
    for score in scores:
        if score.metric == metric:
            values.setdefault(score.split, {})[score.ranked] = score.value
    test_values = {split: list(by_layer.values()) for split, by_layer in values.items() if split != "train"}
    best = best_layer(test_values)
    if best is None:
        return ""
    ranked, value = list(values[best.split].items())[best.place]
    tied = f", {tied_text(best.equals)}" if best.equals > 1 else ""
    return (
        "" if ranked == shown_layer or value is None else f"; best on {best.split}: {ranked} {100 * value:.1f} %{tied}"
    )
