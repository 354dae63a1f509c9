"""Forward hooks: find a network's layers by name, and pool their output during a forward.

Layer expressions and globs, forward hooks, pooling, layouts (map, tokens, vector) inferred from dry forwards, which a
run keeps as JSON, a model's classifier and final pool, concatenated layers, multiply-adds, cutting the forward, which
layers need certain weights.

Types and words: `Hook`, `NamedLayers`, `Call`, `Layout`, `Measured`, `Unclear`, `FinalPool`, `Concatenated`;
normed(...), patches, class token.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerprobe.hooks.capture import (
        Hook,
        capture_layers,
        find_classifier,
        is_computed,
        outlying_tokens,
        without_classifier,
    )
    from layerprobe.hooks.expressions import (
        Concatenated,
        Layer,
        LayerInfo,
        execution_order,
        find_hooks,
        find_layers,
        list_layers,
        member_hooks,
        resolve_hooks,
        skipped_pool_lines,
    )
    from layerprobe.hooks.measuring import (
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
    "Hook",
    "Layer",
    "LayerInfo",
    "Measured",
    "NamedLayers",
    "capture_layers",
    "execution_order",
    "find_classifier",
    "find_hooks",
    "find_layers",
    "first_use",
    "forwards_as_json",
    "is_computed",
    "keep_calls_without",
    "list_layers",
    "measure_layers",
    "member_hooks",
    "outlying_tokens",
    "recorded_forwards",
    "resolve_hooks",
    "skipped_pool_lines",
    "without_classifier",
]


def __getattr__(name: str) -> Any:
    # On first use, so that a list of names needs no torch.
    for module in ("measuring", "capture", "expressions") if name in __all__ else ():  # each imports those before it
        if hasattr(part := import_module(f"{__name__}.{module}"), name):
            return getattr(part, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
