"""What explains a similarity: maps over the pixels of two images, and how far they can be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerprobe.values.facts import DataFacts, weights_or_epoch
from layerprobe.values.layers import RankedLayer
from layerprobe.values.views import FoundItem, Item


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's rank correlation of a map with that of the network with random weights, in [-1, 1].

    Args:
        signed: of the maps; None where one of them is constant.
        absolute: of their absolute values; None likewise.
    """

    signed: float | None
    absolute: float | None


@dataclass(frozen=True, eq=False)
class Attribution:
    """What the pixels of one image contribute to its similarity to another, whose features are fixed.

    Args:
        pixels: (H, W) float32 integrated gradients, summed over the channels.
        difference: similarity of the image less that of the baseline, which `pixels` sum to.
        error: |sum of the pixels - difference| / |difference|; inf for a difference of 0 that is missed.
        steps: number of gradients that the integral was approximated by.
        places: (h, w) float32 Grad-CAM at the places of a map; None where the layer has no map before it.
        random_pixels: of `pixels`; None where there is no network with random weights.
        random_places: of `places`; None likewise.
    """

    pixels: NDArray[np.float32]
    difference: float
    error: float
    steps: int
    places: NDArray[np.float32] | None = None
    random_pixels: RankCorrelation | None = None
    random_places: RankCorrelation | None = None


@dataclass(frozen=True, eq=False)
class Explanation:
    """Which pixels of a query and of a neighbour make them similar at a layer.

    Args:
        similarity: of the two images.
        places_of: the layer whose map Grad-CAM shows; None where there is none.
        notes: what is missing, and why.
    """

    ranked: RankedLayer
    similarity: float
    query: Attribution
    neighbour: Attribution
    places_of: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def sides(self) -> Iterator[tuple[str, Attribution]]:
        """`query` and `neighbour`, each with its attribution."""
        return iter((("query", self.query), ("neighbour", self.neighbour)))


@dataclass(frozen=True, eq=False)
class ExplainedNeighbour:
    """The item nearest to a query by a layer.

    Args:
        image: the network's input before normalisation, uint8 (H, W, C).
    """

    found: FoundItem
    image: NDArray[np.uint8]
    explanation: Explanation


@dataclass(frozen=True, eq=False)
class ExplainedQuery:
    """A query of a run, and its nearest item by each of some layers.

    Args:
        image: as in `ExplainedNeighbour`.
        neighbours: at least one; in the order of the layers.
        notes: how the query was chosen, the baseline, and caveats.
        weights: as in `DataFacts`.
    """

    run: str
    epoch: int
    split: str
    query: Item
    image: NDArray[np.uint8]
    neighbours: tuple[ExplainedNeighbour, ...]
    notes: tuple[str, ...] = ()
    weights: str = DataFacts.weights

    @property
    def when(self) -> str:
        """`epoch 20`, or `weights of own.pth`."""
        return weights_or_epoch(self.weights, self.epoch)
