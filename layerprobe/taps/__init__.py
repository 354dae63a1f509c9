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

_MODULES = {
    "Concatenated": "expressions",
    "Layer": "expressions",
    "LayerInfo": "expressions",
    "Measured": "measuring",
    "NamedLayers": "measuring",
    "Tap": "capture",
    "keep_calls_without": "measuring",
    "execution_order": "expressions",
    "member_taps": "expressions",
    "find_classifier": "capture",
    "find_layers": "expressions",
    "find_taps": "expressions",
    "first_use": "measuring",
    "forwards_as_json": "measuring",
    "is_computed": "capture",
    "list_layers": "expressions",
    "measure_layers": "measuring",
    "outlying_tokens": "capture",
    "skipped_pool_lines": "expressions",
    "recorded_forwards": "measuring",
    "resolve_taps": "expressions",
    "tap_module": "capture",
    "without_classifier": "capture",
}


def __getattr__(name: str) -> Any:
    # On first use, so that a list of names needs no torch.
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
