"""The requested layers and epoch of a plot."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.values.keys import RankedLayer, named
from layerprobe.values.scores import Score


def asked_layers(names: Sequence[str] | None, known: Collection[RankedLayer]) -> list[RankedLayer] | None:
    """The layers that some names mean, in the order of the names, each once; None without names."""
    if names is None:
        return None
    return list(dict.fromkeys(ranked for name in names for ranked in _named(name, list(dict.fromkeys(known)))))


def _named(name: str, known: Sequence[RankedLayer]) -> list[RankedLayer]:
    if found := named(name, known):
        return found
    layers = {row.layer for row in named(name.partition("/")[0], known)}
    raise UnknownNameError("layer", name, [str(row) for row in known if not layers or row.layer in layers])


def of_layers(scores: Sequence[Score], names: Sequence[str] | None) -> list[Score]:
    """The scores of the requested layers; all without names."""
    asked = asked_layers(names, [score.ranked for score in scores])
    return [score for score in scores if asked is None or score.ranked in asked]


def asked_epoch(scores: Sequence[Score], epoch: int | None) -> int:
    """The requested epoch; None: the last."""
    known = sorted({score.epoch for score in scores})
    if epoch not in (None, *known):
        raise RecipeError(f"no scores of epoch {epoch}", fix=f"Known: {', '.join(map(str, known))}")
    return known[-1] if epoch is None else epoch


def until_epoch(scores: Sequence[Score], epoch: int | None) -> list[Score]:
    """The scores up to an epoch; None means the last."""
    return [score for score in scores if epoch is None or score.epoch <= asked_epoch(scores, epoch)]
