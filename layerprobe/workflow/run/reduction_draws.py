"""Layers whose scores are means over several draws, as those of `random:64x5` are: the draws that are ranked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from layerprobe.reductions.chain import parse_chain
from layerprobe.values.keys import RankedLayer


def draws_of(ranked: RankedLayer) -> tuple[RankedLayer, ...]:
    """The layers that are ranked in the place of one whose reduction stands for several draws; else itself."""
    return tuple(replace(ranked, reduction=text) for text in parse_chain(ranked.reduction).members())


def ranked_as(ranked: RankedLayer, known: Collection[RankedLayer]) -> tuple[RankedLayer, ...]:
    """The layers among some that a layer is the mean of: itself, or all its draws; none where one is not there."""
    if ranked in known:
        return (ranked,)
    draws = draws_of(ranked)
    return draws if all(draw in known for draw in draws) else ()


def mean_of_queries(
    layers: Sequence[RankedLayer], value_of: Callable[[RankedLayer], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """(Q,) what each query adds to a metric of a layer.

    Args:
        layers: what `ranked_as` gave of it; at least one.
    """
    found: NDArray[np.float64] = np.mean([value_of(layer) for layer in layers], axis=0)
    return found
