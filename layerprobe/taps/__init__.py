"""Forward hooks: find a network's layers by name, and pool their output during a forward.

Layer expressions and globs, forward hooks, pooling, layouts (map, tokens, vector) inferred from dry forwards, which a
run keeps as JSON, a model's classifier and final pool, concatenated layers, multiply-adds, cutting the forward, which
layers need certain weights.

Types and words: `Tap`, `NamedLayers`, `Call`, `Layout`, `Measured`, `Unclear`, `FinalPool`, `Concatenated`;
normed(...), patches, class token.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerprobe.taps.capture import (
        Tap,
        find_classifier,
        is_computed,
        outlying_tokens,
        tap_module,
        without_classifier,
    )
    from layerprobe.taps.expressions import (
        Concatenated,
        Layer,
        LayerInfo,
        execution_order,
        find_layers,
        find_taps,
        list_layers,
        member_taps,
        resolve_taps,
        skipped_pool_lines,
    )
    from layerprobe.taps.measuring import (
        Measured,
        NamedLayers,
        first_use,
        forwards_as_json,
        keep_calls_without,
        measure_layers,
        recorded_forwards,
    )

__all__ = [
    "Concatenated",
    "Layer",
    "LayerInfo",
    "Measured",
    "NamedLayers",
    "Tap",
    "execution_order",
    "find_classifier",
    "find_layers",
    "find_taps",
    "first_use",
    "forwards_as_json",
    "is_computed",
    "keep_calls_without",
    "list_layers",
    "measure_layers",
    "member_taps",
    "outlying_tokens",
    "recorded_forwards",
    "resolve_taps",
    "skipped_pool_lines",
    "tap_module",
    "without_classifier",
]


def __getattr__(name: str) -> Any:
    # On first use, so that a list of names needs no torch.
    for module in ("measuring", "capture", "expressions") if name in __all__ else ():  # each imports those before it
        if hasattr(part := import_module(f"{__name__}.{module}"), name):
            return getattr(part, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
