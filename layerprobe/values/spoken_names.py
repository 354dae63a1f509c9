"""Names of layers and their post-processing for people: `blocks.5.0, half-whitened to 128`.

Expressions, such as `blocks.5.0@avg/l2+whiten:128:0.5+l2`, stand only where they are typed.
"""

from __future__ import annotations

import re

from layerprobe.values.keys import NO_REDUCTION, RankedLayer
from layerprobe.values.pooling import NO_POOL

_ON_GALLERY = "@gallery"
_POWERS = {"0": "PCA", "0.5": "half-whitened", "1": "whitened"}
_WORDS = {"l2": "", "pca": "PCA", "random": "random projection", "binary": "binary codes"}


def spoken_name(ranked: RankedLayer, *, pool: bool = False) -> str:
    """`blocks.5.0, half-whitened to 128`; `blocks.5.0` without post-processing.

    Args:
        pool: whether the pool is named: `blocks.5.0 (avg)`, but for vectors.
    """
    layer = ranked.layer
    name = f"{layer.layer} ({layer.pool})" if pool and layer.pool != NO_POOL else layer.layer
    if ranked.reduction == NO_REDUCTION:
        return name
    return f"{name}, {spoken_reduction(ranked.reduction, dimensions=True)}"


def spoken_reduction(chain: str, *, dimensions: bool = False) -> str:
    """`half-whitened`, or `half-whitened to 128`; the chain itself where nothing else says what it does."""
    words = [word for step in chain.removesuffix(_ON_GALLERY).split("+") if (word := _word(step, dimensions))]
    return ", ".join(words + ["fitted on the gallery"] * chain.endswith(_ON_GALLERY)) or chain


def _word(step: str, dimensions: bool) -> str:
    name, _, argument = step.partition(":")
    power = argument.rpartition(":")[2]
    word = _POWERS.get(power, f"whitened by {power}") if name == "whiten" else _WORDS.get(name, step)
    size = re.match(r"[0-9]+", argument)
    return f"{word} to {size[0]}" if word and dimensions and size and word != step else word
