"""How much of a network comes after a layer: of its parameters, and of the multiply-adds of an image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from math import prod

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from layerprobe.system.errors import RecipeError
from layerprobe.taps.capture import Tap
from layerprobe.taps.hooks import hooked, parts_by_path, prepared
from layerprobe.values.image_size import ImageSize, height_width


def shares_after(
    module: nn.Module, taps: Sequence[Tap], image_size: ImageSize, channels: int = 3
) -> list[tuple[float, float]]:
    """The shares of the parameters and of the multiply-adds that come after each of some layers.

    One dry forward of a noise image tells. A module's own parameters come after a layer if the module, or for one that
    is never called the next above it that is, begins to run after the layer is done; so do those of what never runs.
    Multiply-adds are those of torch's counter: of convolutions and matrix products.

    Args:
        module: (B, C, H, W) -> (B, D).
        taps: at least one.
        channels: C.

    Returns:
        Of each layer: parameters and multiply-adds, in [0, 1]; 0 where the network has none.
    """
    calls: Counter[str] = Counter()
    begun: set[str] = set()
    before: dict[tuple[str, int], tuple[frozenset[str], int]] = {}

    def begin(path: str, _module: nn.Module, _inputs: object) -> None:
        begun.add(path)

    def end(path: str, _module: nn.Module, _inputs: object, _output: object) -> None:
        calls[path] += 1
        before[path, calls[path]] = frozenset(begun), counter.get_total_flops()

    parts = parts_by_path(module)
    counter = FlopCounterMode(display=False)
    with ExitStack() as stack:
        stack.enter_context(hooked(module, {tap.module: partial(end, tap.module) for tap in taps}))
        for path, part in parts.items():
            stack.callback(part.register_forward_pre_hook(partial(begin, path)).remove)
        shape = 1, channels, *height_width(image_size)
        image = prepared(torch.randn(shape, generator=torch.Generator().manual_seed(0)), module)
        with torch.no_grad(), counter:
            module(image)
    if absent := [tap.layer for tap in taps if (tap.module, tap.call) not in before]:
        raise RecipeError(f"{absent[0]} does not run", fix="Choose another layer")
    counts = {path: sum(prod(own.shape) for own in part.parameters(recurse=False)) for path, part in parts.items()}
    above, total = {path: _called(path, begun) for path in parts}, sum(counts.values())
    found = []
    for needed, operations in (before[tap.module, tap.call] for tap in taps):
        kept = sum(count for path, count in counts.items() if above[path] in needed)
        found.append((_rest(kept, total), _rest(operations, counter.get_total_flops())))
    return found


def _called(path: str, begun: set[str]) -> str:
    """A module, or the next above it, that runs; its own path where none does."""
    above = path
    while above and above not in begun:
        above = above.rpartition(".")[0]
    return above if above in begun and above else path


def _rest(kept: int, total: int) -> float:
    return 1 - kept / total if total else 0.0
