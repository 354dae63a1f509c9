"""Which of a run's measured layers is the embedding, and which one comes before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from layerprobe.values.keys import NO_REDUCTION, RankedLayer, network_order
from layerprobe.values.pooling import NO_POOL
from layerprobe.values.records import RunRecord

# Of a layer that was measured with several pools, the first of these that it has stands for it, then the first in
# network order: the one that figures show.
_POOLS = (NO_POOL, "max")


@dataclass(frozen=True)
class LastTwo:
    """The embedding and the layer measured before it: a pair that is fixed before any number is seen.

    Args:
        adjacent: whether no layer of the network lies between them.
    """

    before: RankedLayer
    embedding: RankedLayer
    adjacent: bool


def embedding_among(record: RunRecord, measured: Iterable[RankedLayer]) -> RankedLayer | None:
    """The layer that the loss takes, as it is, with its pool.

    Returns:
        None where it was not measured so, or is not known, as the model was measured from Python.
    """
    if record.network is None:
        return None
    name, pool = record.network.embedding.layer, record.network.embedding.pool
    found = [ranked for ranked in _as_they_are(record, measured) if ranked.layer.layer == name]
    return _first_pool(found, (NO_POOL, pool, *_POOLS)) if found else None


def last_two(record: RunRecord, measured: Iterable[RankedLayer]) -> LastTwo | None:
    """The embedding and the layer before it, as they are; None where one of them was not measured."""
    measured = list(measured)
    embedding = embedding_among(record, measured)
    if embedding is None or record.network is None:
        return None
    others = [x for x in _as_they_are(record, measured) if x.layer.layer != embedding.layer.layer]
    if not others:
        return None
    last = others[-1].layer.layer
    before = _first_pool([ranked for ranked in others if ranked.layer.layer == last], _POOLS)
    return LastTwo(before, embedding, adjacent=last == record.network.before)


def _as_they_are(record: RunRecord, measured: Iterable[RankedLayer]) -> list[RankedLayer]:
    """Single layers without a reduction, in network order."""
    return [
        ranked
        for ranked in network_order(measured, record.layer_order)
        if (ranked.reduction, ranked.similarity) == (NO_REDUCTION, record.similarity) and "+" not in ranked.layer.layer
    ]


def _first_pool(layers: Sequence[RankedLayer], pools: Sequence[str]) -> RankedLayer:
    order = [*pools, *(ranked.layer.pool for ranked in layers)]
    return min(layers, key=lambda ranked: order.index(ranked.layer.pool))
