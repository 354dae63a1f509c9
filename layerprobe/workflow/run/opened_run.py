"""open_run: a run's stored scores and features, for Python."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from layerprobe.store import FeatureHead
from layerprobe.system.errors import DataError, EnvironmentFault
from layerprobe.values.layers import concatenated_layers, find_layer
from layerprobe.values.scores import COLUMNS, Score
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.stored_layers import read_layer

if TYPE_CHECKING:
    from pandas import DataFrame

_FEATURE_FILE = re.compile(r"epoch-(\d+)\.(\w+)\.h5")


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
        return self._head(epoch, split).rows[0]

    def ids(self, *, epoch: int, split: str) -> tuple[str, ...]:
        """Names of the N images; of files, the path relative to the data's root."""
        return self._head(epoch, split).rows[1]

    def __repr__(self) -> str:
        return f"OpenedRun({str(self.run.folder)!r}; features of {_listed(self._stored()) or 'no epoch'})"

    def _stored(self) -> list[tuple[str, int]]:
        """Splits and epochs with stored features."""
        matches = (_FEATURE_FILE.fullmatch(path.name) for path in self.run.feature_file(0, "test").parent.glob("*.h5"))
        return sorted((match[2], int(match[1])) for match in matches if match)

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
    >>> result = layerprobe.probe(torch.nn.Conv2d(3, 4, 3), {"test": [(colours, labels)]}, ks=[1], cache="cache")
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
