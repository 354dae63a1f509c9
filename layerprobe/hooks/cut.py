"""How much of a network comes after a layer, and how much computing an image takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from math import prod

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from layerprobe.hooks.capture import Hook
from layerprobe.hooks.hooks import hook_modules, parts_by_path, prepare_images
from layerprobe.hooks.measuring import REFUSALS
from layerprobe.system.errors import RecipeError
from layerprobe.values.network_input import ImageSize, height_width

Calls = Mapping[tuple[str, int], tuple[frozenset[str], int]]  # module and call -> what had begun, operations so far


def shares_after(
    module: nn.Module, hooks: Sequence[Hook], image_size: ImageSize, channels: int = 3
) -> list[tuple[float, float | None]]:
    """The shares of the parameters and of the multiply-adds that come after each of some layers.

    One dry forward of a noise image tells. A module's own parameters come after a layer if the module, or for one that
    is never called the next above it that is, begins to run after the layer is done; so do those of what never runs.
    Multiply-adds are those of torch's counter: of convolutions and matrix products.

    Args:
        module: (B, C, H, W) -> (B, D).
        hooks: at least one.
        channels: C.

    Returns:
        Of each layer: parameters and multiply-adds, in [0, 1]; 0 where the network has none, None where torch's counter
        cannot count the multiply-adds.
    """
    image = _noise(module, image_size, channels)
    counter: FlopCounterMode | None = FlopCounterMode(display=False)
    try:
        before, begun = _forward(module, hooks, image, counter)
    except REFUSALS:  # such as of an operation that the counter does not take
        counter = None
        before, begun = _forward(module, hooks, image, counter)
    if absent := [hook.layer for hook in hooks if (hook.module, hook.call) not in before]:
        raise RecipeError(f"{absent[0]} does not run", fix="Choose another layer")
    parts = parts_by_path(module)
    counts = {
        path: sum(prod(parameter.shape) for parameter in submodule.parameters(recurse=False))
        for path, submodule in parts.items()
    }
    above = {}  # a module, or the next above it, that runs; its own path where none does
    for path in parts:
        ran = path
        while ran and ran not in begun:
            ran = ran.rpartition(".")[0]
        above[path] = ran if ran in begun and ran else path
    total, operations = sum(counts.values()), 0 if counter is None else counter.get_total_flops()
    shares: list[tuple[float, float | None]] = []
    for needed, operations_before in (before[hook.module, hook.call] for hook in hooks):
        num_kept = sum(count for path, count in counts.items() if above[path] in needed)
        parameters_after = 1 - num_kept / total if total else 0.0
        operations_after = 1 - operations_before / operations if operations else 0.0
        shares.append((parameters_after, None if counter is None else operations_after))
    return shares


def count_multiply_adds(module: nn.Module, image_size: ImageSize, channels: int = 3) -> int | None:
    """The multiply-adds of a whole forward of one image, of convolutions and matrix products, by torch's counter.

    Args:
        module: (B, C, H, W) -> (B, D).
        channels: C.

    Returns:
        None where the counter cannot count them.
    """
    counter = FlopCounterMode(display=False)
    try:
        _forward(module, (), _noise(module, image_size, channels), counter)
    except REFUSALS:
        return None
    return int(counter.get_total_flops()) // 2  # an operation each for the product and the sum


def _noise(module: nn.Module, image_size: ImageSize, channels: int) -> Tensor:
    """A noise image (1, C, H, W) as a network takes it."""
    shape = 1, channels, *height_width(image_size)
    return prepare_images(torch.randn(shape, generator=torch.Generator().manual_seed(0)), module)


def _forward(
    module: nn.Module, hooks: Sequence[Hook], image: Tensor, counter: FlopCounterMode | None
) -> tuple[Calls, set[str]]:
    """The calls of the hooks' modules in one forward, and all modules that ran."""
    calls: Counter[str] = Counter()
    begun: set[str] = set()
    before: dict[tuple[str, int], tuple[frozenset[str], int]] = {}

    def begin(path: str, _module: nn.Module, _inputs: object) -> None:
        begun.add(path)

    def end(path: str, _module: nn.Module, _inputs: object, _output: object) -> None:
        calls[path] += 1
        before[path, calls[path]] = frozenset(begun), 0 if counter is None else counter.get_total_flops()

    with ExitStack() as stack:
        stack.enter_context(hook_modules(module, {hook.module: partial(end, hook.module) for hook in hooks}))
        for path, submodule in parts_by_path(module).items():
            stack.callback(submodule.register_forward_pre_hook(partial(begin, path)).remove)
        # The counter also follows gradients, and fails at a view of a parameter, such as attention pooling's query.
        for learnt in [parameter for parameter in module.parameters() if parameter.requires_grad]:
            stack.callback(learnt.requires_grad_)
            learnt.requires_grad_(False)
        with torch.no_grad(), counter or nullcontext():
            module(image)
    return before, begun
