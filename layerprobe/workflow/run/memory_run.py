"""MemoryRun: a run that lies in memory; every verb reads it as it reads a run's folder."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.store.features import FeatureArray
from layerprobe.system.errors import DataError
from layerprobe.values.layers import LayerKey
from layerprobe.values.records import RunRecord
from layerprobe.values.retrieval import SearchRules
from layerprobe.values.scores import Score, in_network_order, no_scores
from layerprobe.workflow.run.runs import Run

EPOCH = 0  # its only one


@dataclass(frozen=True, eq=False)
class MemoryTables:
    """The features of a split, as an open feature file gives them.

    Args:
        values: layer -> (N, D).
    """

    head: store.FeatureHead
    values: Mapping[LayerKey, FeatureArray]

    @property
    def layers(self) -> tuple[LayerKey, ...]:
        """The layers in network order."""
        return tuple(self.values)

    def table(self, layer: LayerKey) -> FeatureArray:
        """As `read`: the rows of an array are read in slices, too."""
        return self.read(layer)

    def read(self, layer: LayerKey) -> FeatureArray:
        """The features of one layer, (N, D)."""
        if layer not in self.values:
            raise DataError(f"no features of {layer}", fix="Measure it again with this layer")
        return self.values[layer]


@dataclass(frozen=True, eq=False)
class MemoryRun(Run):
    """A run of one epoch in memory, without weights.

    Args:
        record: as run.json would have it.
        measured: as scores.csv would have them.
        features: by split.
        rank_files: by split.
        kept: the run in a folder that has all this, too, and keeps its choice; None without one.
        rules: by split, of those whose classes alone do not decide what is right.
        units: split -> (N,) the cluster of classes of each image, by split; empty without clusters.
    """

    record: RunRecord
    measured: Sequence[Score]
    features: Mapping[str, MemoryTables]
    rank_files: Mapping[str, store.RankFile]
    kept: Run | None = None
    rules: Mapping[str, SearchRules] = field(default_factory=dict)
    units: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def in_folder(self) -> Run | None:
        """The run in a folder, if any."""
        return self.kept

    def has_features(self, epoch: int, split: str) -> bool:
        """Whether a split has features."""
        return epoch == EPOCH and split in self.features

    def stored_features(self) -> set[tuple[int, str]]:
        """The epoch and its splits."""
        return {(EPOCH, split) for split in self.features}

    def has_ranks(self, epoch: int, split: str) -> bool:
        """Whether a split has ranks."""
        return epoch == EPOCH and split in self.rank_files

    def ranked_epochs(self, split: str) -> list[int]:
        """The epoch, if the split has ranks."""
        return [EPOCH] if split in self.rank_files else []

    def ranks(self, epoch: int, split: str) -> store.RankFile:
        """The ranks of a split."""
        if not self.has_ranks(epoch, split):
            raise DataError(f"{split} is not ranked", fix=f"Measure the {split} split, too")
        return self.rank_files[split]

    def feature_head(self, epoch: int, split: str) -> store.FeatureHead:
        """What the features of a split are."""
        return self._features(epoch, split).head

    def open_features(self, epoch: int, split: str) -> contextlib.AbstractContextManager[MemoryTables]:
        """The features of the layers of a split."""
        return contextlib.nullcontext(self._features(epoch, split))

    def _features(self, epoch: int, split: str) -> MemoryTables:
        if not self.has_features(epoch, split):
            raise DataError(f"no features of {split}", fix=f"Measure the {split} split, too")
        return self.features[split]

    def stored_rules(self, split: str) -> SearchRules | None:
        """What decides, beside the classes, which items are right for a split's images."""
        return self.rules.get(split)

    def stored_units(self, split: str) -> NDArray[np.int64] | None:
        """(N,) the cluster of each image of a split, if there are clusters."""
        return self.units.get(split)

    def command(self, *words: str) -> str:
        """A command on this run; what would be probed is measured in Python."""
        return "layerprobe.probe again, with what is missing" if words[0] == "probe" else super().command(*words)

    def exists(self) -> bool:
        """Always."""
        return True

    def read(self) -> RunRecord:
        """The record."""
        return self.record

    @property
    def has_scores(self) -> bool:
        """Whether anything was measured."""
        return bool(self.measured)

    def scores(self) -> list[Score]:
        """The scores in network order."""
        if not self.measured:
            raise no_scores(self.scores_file)
        return in_network_order(self.measured, self.record.layer_order)
