"""The embedding among a run's measured layers, and the layer before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from layerprobe.values.layers import NO_POOL, NO_REDUCTION, RankedLayer, network_order
from layerprobe.values.records import RunRecord

# The pools that represent a layer with several, in order of preference; then the first in network order.
_POOLS = (NO_POOL, "max")


@dataclass(frozen=True)
class LastTwo:
    """The embedding and the layer measured before it, chosen without looking at scores; `adjacent` in the network."""

    before: RankedLayer
    embedding: RankedLayer
    adjacent: bool


def embedding_among(record: RunRecord, measured: Iterable[RankedLayer]) -> RankedLayer | None:
    """The unreduced embedding; None if it was not measured, or is unknown for a model from Python."""
    if record.network is None:
        return None
    name, pool = record.network.embedding.layer, record.network.embedding.pool
    layers = [ranked for ranked in _unreduced(record, measured) if ranked.layer.layer == name]
    return _first_pool(layers, (NO_POOL, pool, *_POOLS)) if layers else None


def last_two(record: RunRecord, measured: Iterable[RankedLayer]) -> LastTwo | None:
    """The unreduced embedding and the layer before it; None if one of them was not measured."""
    measured = list(measured)
    embedding = embedding_among(record, measured)
    if embedding is None or record.network is None:
        return None
    unreduced = _unreduced(record, measured)  # a classifier may be measured after the embedding
    earlier = [x for x in unreduced[: unreduced.index(embedding)] if x.layer.layer != embedding.layer.layer]
    if not earlier:
        return None
    last_layer = earlier[-1].layer.layer
    before = _first_pool([ranked for ranked in earlier if ranked.layer.layer == last_layer], _POOLS)
    return LastTwo(before, embedding, adjacent=last_layer == record.network.before)


def _unreduced(record: RunRecord, measured: Iterable[RankedLayer]) -> list[RankedLayer]:
    """Single layers without a reduction, by the run's similarity, in network order."""
    return [
        ranked
        for ranked in network_order(measured, record.layer_order)
        if (ranked.reduction, ranked.similarity) == (NO_REDUCTION, record.similarity) and "+" not in ranked.layer.layer
    ]


def _first_pool(layers: Sequence[RankedLayer], pools: Sequence[str]) -> RankedLayer:
    order = [*pools, *(ranked.layer.pool for ranked in layers)]
    return min(layers, key=lambda ranked: order.index(ranked.layer.pool))
