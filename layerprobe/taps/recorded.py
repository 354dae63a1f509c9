"""What dry forwards showed of a network, as JSON: with it, layers are named without building the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from layerprobe.taps.measuring import Call, Measured

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class _Forwards:
    """The file's content: `Measured`, with the facts of `NamedLayers`."""

    made_from: dict[str, str]
    channels: int
    layers: dict[str, str]
    parts: dict[str, str]
    root: str
    final_norm: str | None
    classifier: str | None
    own_pool: bool
    prefix_tokens: int | None
    calls: dict[str, tuple[Call, ...]]
    final_pool: str | None
    pools: tuple[str, ...]


_NAMED = ("channels", "layers", "parts", "root", "final_norm", "classifier", "own_pool", "prefix_tokens")


@dataclass(frozen=True, eq=False)
class _RecordedLayers:
    """A network whose layers have names; it is built when its module is asked for."""

    build: Callable[[], nn.Module]
    channels: int
    layers: Mapping[str, str]
    parts: Mapping[str, str]
    root: str
    final_norm: str | None
    classifier: str | None
    own_pool: bool
    prefix_tokens: int | None

    @cached_property
    def module(self) -> nn.Module:
        """(B, C, H, W) -> (B, D)."""
        return self.build()


def forwards_as_json(measured: Measured, made_from: Mapping[str, str]) -> str:
    """What `recorded_forwards` reads.

    Args:
        made_from: all that decides what the forwards show.
    """
    facts = {name: getattr(measured.net, name) for name in _NAMED}
    calls = {path: tuple(of_path) for path, of_path in measured.calls.items()}
    content = _Forwards(dict(made_from), **facts, calls=calls, final_pool=measured.final_pool, pools=measured.pools)
    return TypeAdapter(_Forwards).dump_json(content).decode()


def recorded_forwards(text: bytes, made_from: Mapping[str, str], build: Callable[[], nn.Module]) -> Measured | None:
    """What the dry forwards of a network showed; None if they were made from something else, or are unreadable.

    Args:
        build: builds the network, for the few questions that only its modules answer.
    """
    try:
        forwards = TypeAdapter(_Forwards).validate_json(text)
    except ValidationError:
        return None
    if forwards.made_from != made_from:
        return None
    net = _RecordedLayers(build, *(getattr(forwards, name) for name in _NAMED))
    return Measured(net, forwards.calls, forwards.final_pool, forwards.pools)
