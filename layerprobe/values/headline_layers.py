"""The few layers of a figure that would be unreadable with all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from layerprobe.values.keys import RankedLayer


def headline_layers(
    layers: Sequence[RankedLayer], validation: Mapping[RankedLayer, float], embedding: RankedLayer | None
) -> list[RankedLayer]:
    """The first layer, the middle one, the one before the embedding, the embedding, and the best on validation.

    `A+B` is chosen only as the best. A layer with several pools, reductions or similarities is represented by the
    first of them, the embedding by itself.

    Args:
        layers: in network order.
        embedding: None if unknown or not measured: the last layer is used.

    Returns:
        At most five of them, in network order, each once.
    """
    single = _single(layers, embedding)
    chosen = {*single[:1], *single[(len(single) - 1) // 2 :][:1], *last_two_layers(layers, embedding)}
    measured = [ranked for ranked in layers if ranked in validation]
    if measured:
        chosen.add(max(measured, key=validation.__getitem__))
    return [ranked for ranked in dict.fromkeys(layers) if ranked in chosen]


def last_two_layers(layers: Sequence[RankedLayer], embedding: RankedLayer | None) -> list[RankedLayer]:
    """The layer before the embedding, if any, and the embedding, as in `headline_layers`."""
    single = _single(layers, embedding)
    names = [ranked.layer.layer for ranked in single]
    end = len(single)
    if embedding is not None and embedding.layer.layer in names:
        end = names.index(embedding.layer.layer) + 1
    return single[max(end - 2, 0) : end]


def _single(layers: Sequence[RankedLayer], embedding: RankedLayer | None) -> list[RankedLayer]:
    """One ranking of each layer, without `A+B`."""
    first_rankings: dict[str, RankedLayer] = {}
    for ranked in layers:
        if "+" not in ranked.layer.layer:
            first_rankings.setdefault(ranked.layer.layer, ranked)
    if embedding is not None and embedding in layers:
        first_rankings[embedding.layer.layer] = embedding
    return list(first_rankings.values())
