"""open_run, a run's stored scores and features for Python, and the features of a layer in a file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.measure.extraction import SideBySide
from layerprobe.ranking.items import Table
from layerprobe.store import FeatureHead
from layerprobe.store.features import FeatureArray
from layerprobe.system.errors import BusyError, DataError, EnvironmentFault
from layerprobe.values.layers import LayerKey, concatenated_layers, find_layer, members_of
from layerprobe.values.scores import COLUMNS, Score
from layerprobe.workflow.run.runs import Run

if TYPE_CHECKING:
    from pandas import DataFrame

_ROWS = 512  # compared at once


@contextlib.contextmanager
def open_layer(run: Run, epoch: int, split: str, layer: LayerKey) -> Iterator[Table]:
    """Open the features of a layer to read slices."""
    with run.open_features(epoch, split) as file:
        yield table_of(file, layer)


def read_layer(run: Run, epoch: int, split: str, layer: LayerKey) -> FeatureArray:
    """The features of a layer, float32 (N, D)."""
    with run.open_features(epoch, split) as file:
        return values_of(file, layer)


def table_of(file: store.LayerTables, layer: LayerKey) -> Table:
    """The features of a layer in an open file, to read slices."""
    tables = [file.table(member) for member in _members(file, layer)]
    return tables[0] if len(tables) == 1 else SideBySide(tables)


def values_of(file: store.LayerTables, layer: LayerKey) -> FeatureArray:
    """The features of a layer in an open file, float32 (N, D)."""
    members = _members(file, layer)
    if len(members) == 1:
        return file.read(members[0])
    features: FeatureArray = table_of(file, layer)[:]
    return features


def _members(file: store.LayerTables, layer: LayerKey) -> tuple[LayerKey, ...]:
    return members_of(layer, file.layers) or (layer,)  # the store refuses one that is absent


def equal_layers(run: Run, epoch: int, split: str, layer: str) -> frozenset[LayerKey]:
    """The stored layers that are another one by a second name; empty where no features can be read."""
    with contextlib.suppress(DataError, BusyError):
        dims = run.feature_head(epoch, split).dims
        same_dims = {dim for key, dim in dims.items() if key.layer == layer}
        candidates = [key for key, dim in dims.items() if key.layer != layer and dim in same_dims]
        if candidates:  # else the features need not be opened
            with run.open_features(epoch, split) as file:
                tables = [file.table(key) for key in dims if key.layer == layer]
                return frozenset(key for key in candidates if any(_are_equal(file.table(key), x) for x in tables))
    return frozenset()


def _are_equal(table: Table, other_table: Table) -> bool:
    chunks = (slice(start, start + _ROWS) for start in range(0, len(table), _ROWS))
    return table.shape == other_table.shape and all(np.array_equal(table[rows], other_table[rows]) for rows in chunks)


@dataclass(frozen=True)
class OpenedRun:
    """A run whose results can be read; nothing is written or computed."""

    run: Run

    def scores(self) -> DataFrame:
        """Every score of the run, a row each, with the columns of scores.csv.

        Raises:
            DataError: no scores are stored.
            EnvironmentFault: pandas is not installed.
        """
        return score_frame(self.run.scores())

    def features(self, *, epoch: int, split: str, layer: str) -> NDArray[np.float32]:
        """Stored features of a layer, a row for each image, in the order of `labels` and `ids`.

        Args:
            epoch: 0 = before any step.
            split: train, validation, test or gallery.
            layer: `pool5.3@avg`, or `pool5.3` if it is stored with a single pool; `pool5.2+pool5.3` for both
                concatenated, each L2-normalised.

        Returns:
            float32 (N, D)

        Raises:
            DataError: no features of that epoch and split are stored.
            UnknownNameError: the layer is not stored.
            RecipeError: the layer is stored with several pools, and none is given.
        """
        stored = list(self._head(epoch, split).columns)
        concatenated = concatenated_layers(layer, stored, self.run.read().layer_order)
        return read_layer(self.run, epoch, split, find_layer(layer, [*stored, *concatenated]))

    def labels(self, *, epoch: int, split: str) -> NDArray[np.int32]:
        """(N,) class of each image, as an index of the data set's classes."""
        return self._head(epoch, split).labels

    def ids(self, *, epoch: int, split: str) -> tuple[str, ...]:
        """Names of the N images; of files, the path relative to the data's root."""
        return self._head(epoch, split).ids

    def __repr__(self) -> str:
        return f"OpenedRun({str(self.run.folder)!r}; features of {_listed(self._stored()) or 'no epoch'})"

    def _stored(self) -> list[tuple[str, int]]:
        """Splits and epochs with stored features."""
        return sorted((split, epoch) for epoch, split in self.run.stored_features())

    def _head(self, epoch: int, split: str) -> FeatureHead:
        stored = self._stored()
        if (split, epoch) not in stored:
            raise DataError(
                f"no features of {split} at epoch {epoch} are stored",
                file=self.run.folder,
                fix=f"Stored: {_listed(stored)}" if stored else f"Run {self.run.command('probe')} first",
            )
        return self.run.feature_head(epoch, split)


def _listed(stored: Iterable[tuple[str, int]]) -> str:
    """`test at 0, 15; train at 15`."""
    epochs: dict[str, list[str]] = {}
    for split, epoch in stored:
        epochs.setdefault(split, []).append(str(epoch))
    return "; ".join(f"{split} at {', '.join(numbers)}" for split, numbers in epochs.items())


def open_run(path: str | Path) -> OpenedRun:
    """Open a run's folder to read its scores and features.

    >>> import torch, layerprobe
    >>> labels = torch.tensor([0, 0, 1, 1])
    >>> colours = torch.eye(3)[labels].reshape(4, 3, 1, 1).expand(-1, -1, 8, 8)
    >>> model, splits = torch.nn.Conv2d(3, 4, 3), {"test": [(colours, labels)]}
    >>> result = layerprobe.probe(model, splits, ks=[1], cache="cache")
    >>> run = layerprobe.open_run(f"cache/{result.name}")
    >>> run.scores()[["layer", "split", "metric", "value"]].values.tolist()
    [['output', 'test', 'R@1', 1.0]]
    >>> run.features(epoch=0, split="test", layer="output@avg").shape
    (4, 4)

    Args:
        path: folder of the run, such as cache/netA.

    Raises:
        DataError: the folder is not a run, or contains a link.
    """
    run = Run(Path(path))
    run.read()
    run.require_no_links()
    return OpenedRun(run)


def score_frame(scores: Sequence[Score]) -> DataFrame:
    """A row for each score, with the columns of scores.csv."""
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise EnvironmentFault(
            "a data frame needs pandas, which is not installed", fix="Install it: pip install pandas"
        ) from error
    return DataFrame([score.as_json() for score in scores], columns=list(COLUMNS))
