"""Which of a run's measured layers is the embedding, and which one comes before it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layerprobe.nets.head import Head
from layerprobe.recipe.recipe import Recipe, recorded_recipe
from layerprobe.registry import is_source
from layerprobe.values.keys import NO_REDUCTION, OUTPUT, RankedLayer, network_order
from layerprobe.values.pooling import NO_POOL
from layerprobe.values.records import FROM_PYTHON, NETWORK
from layerprobe.values.sections import Network
from layerprobe.workflow.run.from_recipe import build_net
from layerprobe.workflow.run.runs import Run

# Of a layer that was measured with several pools, the first of these that it has stands for it, then the first in
# network order: the one that figures show.
_POOLS = (NO_POOL, "max")


@dataclass(frozen=True)
class NetworkEnd:
    """The last layers of a run's network by name, whether or not they were measured.

    Args:
        before: the layer before it; None where only building the network would tell.
        pool: how the network pools a map at its end; None where it gives a vector.
    """

    embedding: str
    before: str | None
    pool: str | None


@dataclass(frozen=True)
class LastTwo:
    """The embedding and the layer measured before it: a pair that is fixed before any number is seen.

    Args:
        adjacent: whether no layer of the network is known to lie between them.
    """

    before: RankedLayer
    embedding: RankedLayer
    adjacent: bool


def network_end(run: Run, record: Mapping[str, Any]) -> NetworkEnd | None:
    """The end of a run's network, as run.json has it; one of our own that it does not have is built to tell.

    Returns:
        None where the model is not known, as it was measured from Python, or has no second layer.
    """
    if record.get(FROM_PYTHON):
        return None
    if (known := record.get(NETWORK)) is not None:
        layer, pool = known["embedding"]
        *_, before = (None, *itertools.takewhile(lambda name: name != layer, known["layers"]))
        return NetworkEnd(layer, before, pool)
    recipe = recorded_recipe(record, run.record_file)
    if is_source(recipe.net.name):
        return _foreign_end(recipe.net)
    return _own_end(recipe)


def _foreign_end(net: Network) -> NetworkEnd:
    """What the loss takes is the model's output, or the last layer of the head that a recipe puts on it."""
    head = Head(net.fc, "avg", **net.options())
    *_, before, embedding = (None, OUTPUT, *head.layers)
    return NetworkEnd(embedding, before, None if head.layers else net.pool)


def _own_end(recipe: Recipe) -> NetworkEnd | None:
    *_, before, embedding = (None, None, *build_net(recipe).layers)
    return None if embedding is None else NetworkEnd(embedding, before, recipe.net.pool)


def embedding_among(
    end: NetworkEnd, measured: Iterable[RankedLayer], similarity: str, layer_order: Sequence[str]
) -> RankedLayer | None:
    """The embedding as it is; None where it was not measured so."""
    found = [x for x in _as_they_are(measured, similarity, layer_order) if x.layer.layer == end.embedding]
    return _first_pool(found, (NO_POOL, end.pool, *_POOLS)) if found else None


def last_two(
    end: NetworkEnd, measured: Iterable[RankedLayer], similarity: str, layer_order: Sequence[str]
) -> LastTwo | None:
    """The embedding and the layer before it, as they are; None where one of them was not measured."""
    measured = list(measured)
    embedding = embedding_among(end, measured, similarity, layer_order)
    others = [x for x in _as_they_are(measured, similarity, layer_order) if x.layer.layer != end.embedding]
    if embedding is None or not others:
        return None
    last = others[-1].layer.layer
    before = _first_pool([ranked for ranked in others if ranked.layer.layer == last], _POOLS)
    return LastTwo(before, embedding, adjacent=last == end.before)


def _as_they_are(measured: Iterable[RankedLayer], similarity: str, layer_order: Sequence[str]) -> list[RankedLayer]:
    """Single layers without a reduction, in network order."""
    return [
        ranked
        for ranked in network_order(measured, layer_order)
        if (ranked.reduction, ranked.similarity) == (NO_REDUCTION, similarity) and "+" not in ranked.layer.layer
    ]


def _first_pool(layers: Sequence[RankedLayer], pools: Sequence[str | None]) -> RankedLayer:
    order = [*pools, *(ranked.layer.pool for ranked in layers)]
    return min(layers, key=lambda ranked: order.index(ranked.layer.pool))
