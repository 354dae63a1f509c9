"""Which layers are computed before a network needs certain tensors."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from layerprobe.taps.capture import Tap
from layerprobe.taps.hooks import plain_path
from layerprobe.taps.measuring import Measured


def first_use(measured: Measured, tensor: str) -> int:
    """The order of the first call to end in the module that a tensor belongs to, or in the next above it that runs.

    What ended before it did not depend on the tensor.

    Args:
        tensor: its name in the network's `state_dict`.
    """
    path = plain_path(tensor.rpartition(".")[0])
    while path and not measured.calls.get(path):
        path = path.rpartition(".")[0]
    inside = [of_path for name, of_path in measured.calls.items() if not path or f"{name}.".startswith(f"{path}.")]
    return min(call.order for of_path in inside for call in of_path)


def keep_calls_without(measured: Measured, tensors: Collection[str]) -> Measured:
    """The calls that end before any of some tensors may be used; all without such tensors."""
    if not tensors:
        return measured
    end = min(first_use(measured, tensor) for tensor in tensors)
    calls = {path: [call for call in of_path if call.order < end] for path, of_path in measured.calls.items()}
    return replace(measured, calls=calls)


def is_computed(tap: Tap, measured: Measured) -> bool:
    """Whether the call of a tap, and of the norm that it is given to, is among those of a network."""
    called = len(measured.calls.get(tap.module, ())) >= tap.call
    return called and (tap.norm is None or bool(measured.calls.get(tap.norm)))
