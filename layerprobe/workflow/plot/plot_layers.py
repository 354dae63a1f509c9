"""The layers that a plot is asked for by name or glob."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from layerprobe.system.errors import UnknownNameError
from layerprobe.values.keys import RankedLayer, named


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
    if found := named(name, known):
        return found
    layers = {row.layer for row in named(name.partition("/")[0], known)}
    raise UnknownNameError("layer", name, [str(row) for row in known if not layers or row.layer in layers])
