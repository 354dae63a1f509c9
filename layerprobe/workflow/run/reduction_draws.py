"""Reductions of several random draws, such as `random:64x5`: each draw is ranked, and scores are their means."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from layerprobe.reductions.chain import parse_chain
from layerprobe.values.layers import RankedLayer


def draws_of(ranked: RankedLayer) -> tuple[RankedLayer, ...]:
    """The ranked layers of a reduction of several draws; for any other, the layer itself."""
    return tuple(replace(ranked, reduction=text) for text in parse_chain(ranked.reduction).members())


def ranked_as(ranked: RankedLayer, layers: Collection[RankedLayer]) -> tuple[RankedLayer, ...]:
    """The known layers whose mean a layer is: itself, or all its draws; empty if one is missing."""
    if ranked in layers:
        return (ranked,)
    draws = draws_of(ranked)
    return draws if all(draw in layers for draw in draws) else ()


def mean_of_queries(
    layers: Sequence[RankedLayer], value_of: Callable[[RankedLayer], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """(Q,) each query's value of a metric, averaged over the layers that `ranked_as` returned."""
    mean: NDArray[np.float64] = np.mean([value_of(layer) for layer in layers], axis=0)
    return mean
