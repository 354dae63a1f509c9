"""The layers that a plot is asked for, in words: `LAYER[@pool][/reduction]`, or a glob."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Sequence

from layerprobe.system.errors import UnknownNameError
from layerprobe.values.keys import NO_REDUCTION, RankedLayer, is_named


def asked_layers(names: Sequence[str] | None, known: Collection[RankedLayer]) -> list[RankedLayer] | None:
    """The layers that were asked for, in the order of the words, each once.

    Without `/reduction` a name means the layer as it is, and all its reductions where it is measured only so.

    Args:
        names: None where none was asked for.

    Returns:
        None without names.
    """
    if names is None:
        return None
    return list(dict.fromkeys(ranked for name in names for ranked in _named(name, list(dict.fromkeys(known)))))


def _named(name: str, known: Sequence[RankedLayer]) -> list[RankedLayer]:
    layer, slash, reduction = name.partition("/")
    matching = [ranked for ranked in known if _is_layer(ranked, layer)]
    found = [ranked for ranked in matching if not slash or fnmatch.fnmatchcase(ranked.reduction, reduction)]
    if not found:
        raise UnknownNameError("layer", name, _meant(matching) or _names(known))
    raw = [ranked for ranked in found if ranked.reduction == NO_REDUCTION]
    return found if slash or not raw else raw


def _names(known: Sequence[RankedLayer]) -> list[str]:
    """The layers by their names; those with several pools by these, too."""
    pools: dict[str, dict[str, None]] = {}
    for ranked in known:
        pools.setdefault(ranked.layer.layer, {})[str(ranked.layer)] = None
    return [text for name, keys in pools.items() for text in (name, *(keys if len(keys) > 1 else ()))]


def _meant(layers: Sequence[RankedLayer]) -> list[str]:
    """What there is of the layers before the slash."""
    ways = [
        (ranked.layer.layer, "" if ranked.reduction == NO_REDUCTION else f"/{ranked.reduction}") for ranked in layers
    ]
    return list(dict.fromkeys(name + way for name, way in ways))


def _is_layer(ranked: RankedLayer, text: str) -> bool:
    if any(sign in text for sign in "*?["):
        return any(fnmatch.fnmatchcase(name, text) for name in (str(ranked.layer), ranked.layer.layer))
    return is_named(ranked.layer, text)
