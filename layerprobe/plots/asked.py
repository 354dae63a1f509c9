"""The requested layers and epoch of a plot."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.values.keys import RankedLayer, named
from layerprobe.values.scores import Score


def match_layers(names: Sequence[str] | None, ranked_layers: Collection[RankedLayer]) -> list[RankedLayer] | None:
    """The layers that some names mean, in the order of the names, each once; None without names."""
    if names is None:
        return None
    distinct = list(dict.fromkeys(ranked_layers))
    return list(dict.fromkeys(ranked for name in names for ranked in _match_layer(name, distinct)))


def _match_layer(name: str, ranked_layers: Sequence[RankedLayer]) -> list[RankedLayer]:
    if matches := named(name, ranked_layers):
        return matches
    layers = {row.layer for row in named(name.partition("/")[0], ranked_layers)}
    raise UnknownNameError("layer", name, [str(row) for row in ranked_layers if not layers or row.layer in layers])


def scores_of_layers(scores: Sequence[Score], names: Sequence[str] | None) -> list[Score]:
    """The scores of the requested layers; all without names."""
    layers = match_layers(names, [score.ranked for score in scores])
    return [score for score in scores if layers is None or score.ranked in layers]


def resolve_epoch(scores: Sequence[Score], epoch: int | None) -> int:
    """The requested epoch; None: the last."""
    epochs = sorted({score.epoch for score in scores})
    if epoch not in (None, *epochs):
        raise RecipeError(f"no scores of epoch {epoch}", fix=f"Known: {', '.join(map(str, epochs))}")
    return epochs[-1] if epoch is None else epoch


def scores_until_epoch(scores: Sequence[Score], epoch: int | None) -> list[Score]:
    """The scores up to an epoch; None means the last."""
    return [score for score in scores if epoch is None or score.epoch <= resolve_epoch(scores, epoch)]
