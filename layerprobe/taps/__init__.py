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
    from layerprobe.taps.capture import Tap, outlying_tokens, tap_module
    from layerprobe.taps.classifier import find_classifier, without_classifier
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
    from layerprobe.taps.measuring import Measured, NamedLayers, measure_layers
    from layerprobe.taps.recorded import forwards_as_json, recorded_forwards
    from layerprobe.taps.sufficient import first_use, is_computed, keep_calls_without

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
    "keep_calls_without": "sufficient",
    "execution_order": "expressions",
    "member_taps": "expressions",
    "find_classifier": "classifier",
    "find_layers": "expressions",
    "find_taps": "expressions",
    "first_use": "sufficient",
    "forwards_as_json": "recorded",
    "is_computed": "sufficient",
    "list_layers": "expressions",
    "measure_layers": "measuring",
    "outlying_tokens": "capture",
    "skipped_pool_lines": "expressions",
    "recorded_forwards": "recorded",
    "resolve_taps": "expressions",
    "tap_module": "capture",
    "without_classifier": "classifier",
}


def __getattr__(name: str) -> Any:
    # On first use, so that a list of names needs no torch.
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
