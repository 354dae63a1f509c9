"""What a result belongs to: a layer with its pool, and a ranking of it."""

from __future__ import annotations

from dataclasses import dataclass

NO_REDUCTION = "none"


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
