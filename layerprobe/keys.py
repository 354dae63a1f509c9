"""What a result belongs to: a layer with its pool, and a ranking of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from layerprobe.errors import RecipeError, UnknownNameError
from layerprobe.pooling import POOLS, TOKEN_POOLS

NO_REDUCTION = "none"

# What vectors can be searched by; packed bits are by hamming alone.
VectorSimilarity = Literal["cosine", "euclidean", "dot"]
VECTOR_SIMILARITIES: tuple[VectorSimilarity, ...] = get_args(VectorSimilarity)


@dataclass(frozen=True, order=True)
class LayerKey:
    """A layer's output, pooled: one table of features. As text, in files and for people, `pool5.3@max`.

    Args:
        layer: the layer's name, with `#i` where its module is called several times.
        pool: max, avg, gem or grid:s; none for a layer that gives vectors.
    """

    layer: str
    pool: str

    def __str__(self) -> str:
        return f"{self.layer}@{self.pool}"

    @classmethod
    def parse(cls, text: str) -> LayerKey:
        """The key that `str` gave.

        Raises:
            ValueError: text without a layer, an `@` and a pool.
        """
        layer, at, pool = text.rpartition("@")
        if not (layer and at and pool):
            raise ValueError(f"{text!r} is not a layer and its pool, like 'pool5.3@max'")
        return cls(layer, pool)


def find_layer(text: str, known: Collection[LayerKey]) -> LayerKey:
    """The one of some layers that `pool5.3@avg` names, or `pool5.3` where it is there with a single pool.

    Raises:
        UnknownNameError: none of them; with the near miss.
        RecipeError: a name without a pool, where there are several.
    """
    found = [key for key in known if text in (str(key), key.layer)]
    if not found:
        raise UnknownNameError("layer", text, map(str, known))
    if len(found) > 1:
        raise RecipeError(f"{text} has several pools", fix=f"Choose one of {', '.join(map(str, found))}")
    return found[0]


@dataclass(frozen=True, order=True)
class RankedLayer:
    """A layer as it is searched: its features, what is done to them, and how they are compared.

    Args:
        layer: whose features.
        reduction: none, or the chain of reductions.
        similarity: cosine, dot, euclidean or hamming.
    """

    layer: LayerKey
    reduction: str
    similarity: str


def network_order(rankings: Iterable[RankedLayer], layer_order: Sequence[str]) -> list[RankedLayer]:
    """Each of some rankings once: by layer as the network runs them, then by pool, reduction and similarity.

    The pools max, avg, gem, cls and cls+avg come first, in this order, and `none` before any reduction; further pools,
    reductions and similarities follow their names, `pca:8` before `pca:64`. `A+B` follows the last of its layers.

    Args:
        rankings: of one network.
        layer_order: the layers' names as the network runs them. Other layers follow these as they are found.
    """
    found = list(dict.fromkeys(rankings))
    known = set(layer_order)
    names = dict.fromkeys([*layer_order, *(ranked.layer.layer for ranked in found)])
    order = {name: place for place, name in enumerate(names)}

    def place(ranked: RankedLayer) -> tuple[object, ...]:
        layer, pool = ranked.layer.layer, ranked.layer.pool
        members = [name for name in layer.split("+") if name in known] or [layer]
        return (
            sorted((order[name] for name in members), reverse=True),
            [*POOLS, *TOKEN_POOLS, pool].index(pool),
            _natural(pool),
            ranked.reduction != NO_REDUCTION,
            _natural(ranked.reduction),
            ranked.similarity,
        )

    return sorted(found, key=place)


def _natural(text: str) -> list[str | int]:
    return [int(part) if i % 2 else part for i, part in enumerate(re.split("([0-9]+)", text))]
