"""Names, colours and markers of reductions, such as PCA to 128 dimensions, in figures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.colors import to_rgb

from layerprobe.plots.figure import Style
from layerprobe.values.keys import NO_REDUCTION
from layerprobe.values.spoken_names import spoken_reduction
from layerprobe.values.views import Reductions, Sized

MANY = 3  # with at least so many equal dimensions, lines are drawn over them
UNREDUCED = "unreduced"
# Okabe and Ito's, distinct for every kind of colour blindness; the markers tell them apart without colour.
_COLOURS = (("#0072b2", "s"), ("#d55e00", "^"), ("#009e73", "v"), ("#cc79a7", "P"), ("#e69f00", "X"), ("#56b4e9", "<"))
_RAW = Style(to_rgb("0.35"), "o")


@dataclass(frozen=True)
class Reducer:
    """A chain of reductions and a similarity, whatever the number of dimensions.

    Args:
        chain: with D in place of the number of dimensions, `none` for unreduced layers.
    """

    chain: str
    similarity: str


def reducer_of(sized: Sized) -> Reducer:
    """The reducer of a layer: of `l2+pca:128+l2`, which leaves 128 dimensions, `l2+pca:D+l2`."""
    chain = sized.score.ranked.reduction
    if sized.equal:
        chain = re.sub(rf"(?<=[a-z]):{sized.dim}(?![0-9])", ":D", chain)
    return Reducer(chain, sized.score.ranked.similarity)


def reducer_names(reductions: Sequence[Reductions]) -> dict[Reducer, str]:
    """Reducer -> its name, such as PCA or half-whitened; the chain where two would have the same name.

    `none` is first, the others are sorted by chain, so that a reducer has the same colour in most figures.
    """
    drawn_reducers = {
        reducer_of(sized) for run_reductions in reductions for sized in run_reductions.values if _is_drawn(sized)
    }
    reducers = sorted(
        drawn_reducers, key=lambda reducer: (reducer.chain != NO_REDUCTION, reducer.chain, reducer.similarity)
    )
    names = {reducer: _name(reducer.chain) for reducer in reducers}
    for reducer, name in list(names.items()):
        namesakes = [other for other in reducers if _name(other.chain) == name]
        parts = [reducer.chain if len({other.chain for other in namesakes}) > 1 else name]
        parts += [reducer.similarity] if len({other.similarity for other in namesakes}) > 1 else []
        names[reducer] = ", ".join(parts)
    return names


def _is_drawn(sized: Sized) -> bool:
    return sized.equal or sized.score.ranked.reduction == NO_REDUCTION


def _name(chain: str) -> str:
    if chain == NO_REDUCTION:
        return UNREDUCED
    return spoken_reduction(chain)


def reducer_styles(names: Mapping[Reducer, str]) -> dict[Reducer, Style]:
    """A colour and a marker for each reducer; unreduced layers are grey."""
    reduced = [reducer for reducer in names if reducer.chain != NO_REDUCTION]
    styles = {reducer: _COLOURS[i % len(_COLOURS)] for i, reducer in enumerate(reduced)}
    return {
        reducer: Style(to_rgb(styles[reducer][0]), styles[reducer][1]) if reducer in styles else _RAW
        for reducer in names
    }
