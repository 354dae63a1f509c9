"""The few layers that a figure shows first, where all of them would be a tangle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from layerprobe.values.keys import RankedLayer


def headline_layers(layers: Sequence[RankedLayer], validation: Mapping[RankedLayer, float]) -> list[RankedLayer]:
    """The first layer, the middle one, the one before the embedding, the embedding, and the best on validation.

    The embedding is the last layer that is no `A+B`. Of a layer with several pools, reductions or similarities the
    first one stands for it.

    Returns:
        At most five of them, in network order, each once.
    """
    first: dict[str, RankedLayer] = {}
    for ranked in layers:
        if "+" not in ranked.layer.layer:
            first.setdefault(ranked.layer.layer, ranked)
    single = list(first.values())
    chosen = {*single[:1], *single[-2:], *single[(len(single) - 1) // 2 :][:1]}
    measured = [ranked for ranked in layers if ranked in validation]
    if measured:
        chosen.add(max(measured, key=validation.__getitem__))
    return [ranked for ranked in dict.fromkeys(layers) if ranked in chosen]
