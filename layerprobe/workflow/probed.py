"""Probed: what a probe of a user's own model gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from layerprobe import registry
from layerprobe.cka import layer_cka
from layerprobe.errors import DataError, NumericError, RecipeError, UnknownNameError
from layerprobe.facts import DataFacts
from layerprobe.formats import Shown
from layerprobe.keys import LayerKey, find_layer
from layerprobe.retrieval import Ranks
from layerprobe.scores import Matrix, Score
from layerprobe.workflow.facts import epoch_tables, split_facts
from layerprobe.workflow.frames import score_frame
from layerprobe.workflow.plot import COMPARED, draw
from layerprobe.workflow.told_apart import Searched, alike_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

T = TypeVar("T")
Place = tuple[str, LayerKey]


class ByLayer(dict[tuple[str, str], T]):
    """Values by split and layer: `values["test", "blocks.5@avg"]`, or `"blocks.5"` where that has a single pool.

    Args:
        values: by split and layer.
        absent: those that have no value, and why.
    """

    def __init__(self, values: Mapping[Place, T], absent: Mapping[Place, str] | None = None) -> None:
        super().__init__({(split, str(layer)): value for (split, layer), value in values.items()})
        self._absent = dict(absent or {})

    def __missing__(self, place: tuple[str, str]) -> T:
        if not isinstance(place, tuple) or len(place) != 2:
            raise RecipeError(f"{place!r} is not a split and a layer", fix='Write ["test", "blocks.5@avg"]')
        split, layer = place
        known: list[Place] = [*((name, LayerKey.parse(text)) for name, text in self), *self._absent]
        if split not in dict(known):
            raise UnknownNameError("split", split, dict(known))
        key = find_layer(layer, [found for name, found in known if name == split])
        if reason := self._absent.get((split, key)):
            raise NumericError(f"{key} has none on {split}: {reason}")
        return self[split, str(key)]


@dataclass(frozen=True, eq=False)
class Probed:
    """How well the layers of a model tell classes apart.

    Args:
        name: what the model is called in scores, tables and plots.
        scores: every number, as in scores.csv; layers in execution order.
        ranks: `ranks["test", "blocks.5@avg"]` -> where each query's nearest item of its class stands.
        features: `features["test", "blocks.5@avg"]` -> float32 (N, D), in the order in which the images came.
        labels: split -> (N,) the loader's labels, in the same order.
        gallery: split -> the split that it is searched in, where that is another.
    """

    name: str
    scores: tuple[Score, ...]
    ranks: ByLayer[Ranks]
    features: ByLayer[NDArray[np.float32]]
    labels: Mapping[str, NDArray[np.int64]]
    gallery: Mapping[str, str]

    def table(self) -> Shown:
        """The scores as `layerprobe probe` shows them; `print` writes them as text, a notebook shows them as HTML."""
        return Shown(tuple(epoch_tables(self.scores, self._data(), self._searched)))

    def frame(self) -> DataFrame:
        """A row for each score, with the columns of scores.csv.

        Raises:
            EnvironmentFault: pandas is not installed.
        """
        return score_frame(self.scores)

    def plot(self, kind: str) -> Figure:
        """Draw a registered plot, such as `layers`, `train-vs-test` or `cka`.

        Raises:
            UnknownNameError: no such plot.
            LayerprobeError: scores that it cannot draw.
        """
        part = registry.load("plot", registry.PLOTS, kind)
        return draw(
            part,
            self.scores,
            data=lambda: {self.name: self._data()},
            alike=lambda scores, metric: alike_of(scores, metric, self._searched),
            matrices=self._matrices,
        ).figure

    def __repr__(self) -> str:
        layers = {score.layer_key for score in self.scores}
        splits = dict.fromkeys(score.split for score in self.scores)
        return f"Probed({self.name}: {len(layers)} layers on {' and '.join(splits)}, {len(self.scores)} scores)"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def _data(self) -> DataFacts:
        splits = dict.fromkeys(score.split for score in self.scores)
        searched = {split: self.labels[self.gallery[split]] for split in splits if split in self.gallery}
        facts = {split: split_facts(self.labels[split], searched.get(split)) for split in splits}
        return DataFacts("", facts, start="epoch 0")

    def _searched(self, _: int, split: str, cluster: str | None) -> Searched | None:
        if cluster is not None:
            return None  # its texts are not kept
        scored = dict.fromkeys(score.ranked_layer for score in self.scores if score.split == split)
        ranks = {
            layer: self.ranks[split, str(layer.layer)] for layer in scored if (split, str(layer.layer)) in self.ranks
        }
        return Searched(self.labels[split], ranks)

    def _matrices(self) -> list[Matrix]:
        layers = [LayerKey.parse(layer) for split, layer in self.features if split == COMPARED]
        if not layers:
            raise DataError(f"CKA compares features of the {COMPARED} split", fix=f"Probe a {COMPARED} split")
        return [layer_cka(layers, self._compared, run=self.name, split=COMPARED, epoch=0)]

    def _compared(self, layer: LayerKey) -> NDArray[np.float32]:
        return self.features[COMPARED, str(layer)]
