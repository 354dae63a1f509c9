"""The requested layers and epoch of a plot."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.values.keys import RankedLayer, matching_layers
from layerprobe.values.scores import Score


def asked_layers(names: Sequence[str] | None, ranked_layers: Collection[RankedLayer]) -> list[RankedLayer] | None:
    """The layers that some names mean, in the order of the names, each once; None without names."""
    if names is None:
        return None
    return list(dict.fromkeys(ranked for name in names for ranked in _named(name, list(dict.fromkeys(ranked_layers)))))


def _named(name: str, ranked_layers: Sequence[RankedLayer]) -> list[RankedLayer]:
    if matches := matching_layers(name, ranked_layers):
        return matches
    layers = {row.layer for row in matching_layers(name.partition("/")[0], ranked_layers)}
    raise UnknownNameError("layer", name, [str(row) for row in ranked_layers if not layers or row.layer in layers])


def of_layers(scores: Sequence[Score], names: Sequence[str] | None) -> list[Score]:
    """The scores of the requested layers; all without names."""
    layers = asked_layers(names, [score.ranked for score in scores])
    return [score for score in scores if layers is None or score.ranked in layers]


def asked_epoch(scores: Sequence[Score], epoch: int | None) -> int:
    """The requested epoch; None: the last."""
    epochs = sorted({score.epoch for score in scores})
    if epoch not in (None, *epochs):
        raise RecipeError(f"no scores of epoch {epoch}", fix=f"Known: {', '.join(map(str, epochs))}")
    return epochs[-1] if epoch is None else epoch


def until_epoch(scores: Sequence[Score], epoch: int | None) -> list[Score]:
    """The scores up to an epoch; None means the last."""
    return [score for score in scores if epoch is None or score.epoch <= asked_epoch(scores, epoch)]
