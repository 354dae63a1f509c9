"""Forward hooks: find a network's layers by name, and pool their output during a forward."""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerprobe.errors import RecipeError, UnknownNameError
from layerprobe.keys import LayerKey
from layerprobe.pooling import NO_POOL, POOLS, gem


class NamedLayers(Protocol):
    """A network whose layers have names."""

    @property
    def module(self) -> nn.Module:
        """(B, 3, H, W) -> (B, D)."""

    @property
    def layers(self) -> Mapping[str, str]:
        """Name of a layer -> path of its module, in execution order."""


@dataclass(frozen=True)
class Tap:
    """Where features are taken: a layer's output, and how it is pooled.

    Args:
        layer: the paper's name, else the module path; with `#i` if the module is called several times.
        module: its path.
        call: number of the call of the module in a forward, from 1.
        pool: max, avg, gem or grid:s for a map (B, C, H, W); none for a vector (B, D).
        dim: length of an image's feature vector.
    """

    layer: str
    module: str
    call: int
    pool: str
    dim: int

    @property
    def key(self) -> LayerKey:
        """The layer with its pool."""
        return LayerKey(self.layer, self.pool)


@dataclass(frozen=True)
class LayerInfo:
    """A named layer of a network."""

    name: str
    module: str  # its path
    dim: int  # length of the feature vector after max or avg pooling
    kind: str  # map or vector
    calls: int  # of the module in a forward


@dataclass(frozen=True)
class _Call:
    """One call of a module in a forward."""

    order: int  # place among the calls of all modules
    shape: tuple[int, ...] | None  # of the output without the batch; None if it is no tensor
    structure: str  # the output as text


_Calls = Mapping[str, list[_Call]]  # by module path


def list_layers(net: NamedLayers, image_size: int) -> list[LayerInfo]:
    """The network's named layers in execution order, found by one forward that changes nothing.

    Raises:
        RecipeError: the network does not take images of that size, or a layer's output is no map or vector.
    """
    calls = _dry_forward(net.module, image_size)
    found = []
    for name, path in net.layers.items():
        last = _require_calls(name, calls.get(path, []))[-1]
        shape = _require_shape(name, last)
        kind = "map" if len(shape) == 3 else "vector"
        found.append((last.order, LayerInfo(name, path, shape[0], kind, len(calls[path]))))
    return [info for _, info in sorted(found, key=lambda pair: pair[0])]


def resolve_taps(
    expressions: Sequence[str], net: NamedLayers, *, pools: Sequence[str] = ("max",), image_size: int
) -> list[Tap]:
    """Layer expressions -> taps in execution order, each once.

    Args:
        expressions: `NAME[#i][@pool]`; NAME is a layer's name, a glob over those names, or a module path; `#i` is the
            i-th call of a module, from 1.
        net: the network.
        pools: for expressions without a pool: max, avg, gem (cube root of the mean cube) or grid:s (s x s adaptive
            maxima, C * s * s numbers). A vector has one tap, with the pool `none`, whatever is asked.
        image_size: side of the square images in pixels, which decides the maps' sizes.

    Raises:
        UnknownNameError: no such layer, module or pool, with the near miss.
        RecipeError: a module that never runs; one that runs several times, without `#i`; output that cannot be pooled.
    """
    calls = _dry_forward(net.module, image_size)
    names = {path: name for name, path in net.layers.items()}
    found: dict[tuple[int, str], Tap] = {}
    for expression in expressions:
        layer, _, pool = expression.partition("@")
        target, _, number = layer.partition("#")
        for path in _paths(target, net, calls):
            name = names.get(path, path)
            call = _choose_call(name, calls[path], number)
            shape = _require_shape(name, calls[path][call - 1])
            name = name if len(calls[path]) == 1 else f"{name}#{call}"
            for kind in [pool] if pool else pools:
                _require_pool(kind)
                kind = NO_POOL if len(shape) == 1 else kind
                tap = Tap(name, path, call, kind, _pooled_dim(name, shape, kind))
                found.setdefault((calls[path][call - 1].order, kind), tap)
    return [tap for _, tap in sorted(found.items(), key=lambda item: item[0][0])]


def execution_order(names: Iterable[str], net: NamedLayers, image_size: int) -> list[str]:
    """Sort layers by the order in which the network runs them; names that it does not have are left out.

    Args:
        names: layers' names, or module paths, with `#i` where a module is called several times.
        net: the network.
        image_size: side of the square images in pixels.
    """
    calls = _dry_forward(net.module, image_size)
    found = {}
    for name in names:
        target, _, number = name.partition("#")
        called = calls.get(net.layers.get(target, target), [])
        place = int(number) if number.isdecimal() else 1
        if 1 <= place <= len(called):
            found[name] = called[place - 1].order
    return sorted(found, key=found.__getitem__)


@contextlib.contextmanager
def tapped(module: nn.Module, taps: Sequence[Tap]) -> Iterator[Callable[[Tensor], dict[LayerKey, Tensor]]]:
    """Hooks on a module that take features for as long as the block lasts.

    The hook pools a map and copies a vector at once, as the next module may overwrite it in place. In the block the
    module is in evaluation mode and runs in inference mode. Afterwards, also after an error, every hook is removed and
    every submodule has its own mode again. Parameters, statistics, gradients and random generators do not change.

    Args:
        module: not compiled and not wrapped for several devices, where hooks would see nothing or a part.
        taps: of this module.

    Yields:
        A function: images -> {tap.key: (B, dim) float32 on the module's device}, pooled in the module's own type. It
        raises ValueError if a tap's module did not run.
    """
    features: dict[LayerKey, Tensor] = {}
    called: dict[str, int] = defaultdict(int)
    wanted: dict[str, list[Tap]] = defaultdict(list)
    for tap in taps:
        wanted[tap.module].append(tap)

    def hook(path: str, _module: nn.Module, _inputs: object, output: Tensor) -> None:
        called[path] += 1
        for tap in wanted[path]:
            if tap.call == called[path]:
                features[tap.key] = _pooled(output, tap.pool)

    def features_of(images: Tensor) -> dict[LayerKey, Tensor]:
        features.clear()
        called.clear()
        with torch.inference_mode():
            module(images)
        for tap in taps:
            if tap.key not in features:
                raise ValueError(f"{tap.module} was called {called[tap.module]} times, {tap.key} needs {tap.call}")
        return {tap.key: features[tap.key] for tap in taps}

    with _hooked(module, {path: partial(hook, path) for path in wanted}):
        yield features_of


@contextlib.contextmanager
def _hooked(module: nn.Module, hooks: Mapping[str, Callable[..., None]]) -> Iterator[None]:
    """Evaluation mode and a hook on each module path; at the end hooks are removed and all modes restored."""
    modes = [(part, part.training) for part in module.modules()]
    with contextlib.ExitStack() as stack:
        for path, hook in hooks.items():
            stack.callback(module.get_submodule(path).register_forward_hook(hook).remove)
        # One by one, as train() on the whole module would also put frozen batch normalisation into training mode.
        for part, training in modes:
            stack.callback(setattr, part, "training", training)
        module.eval()
        yield


def _pooled(output: Tensor, pool: str) -> Tensor:
    """Pool a layer's output to (B, dim) float32 that shares no memory with it."""
    if pool == NO_POOL:
        return output.to(torch.float32, copy=True)
    if pool == "max":
        return output.amax((2, 3)).float()
    if pool == "avg":
        return output.mean((2, 3)).float()
    if pool == "gem":
        # In float32, as cubes of ordinary activations overflow float16.
        return gem(output.float())
    return F.adaptive_max_pool2d(output, _grid_side(pool)).flatten(1).float()


def _pooled_dim(name: str, shape: tuple[int, ...], pool: str) -> int:
    """Length of the feature vector that pooling makes of an output of this shape, given without the batch."""
    if len(shape) == 1:
        return shape[0]
    if pool == NO_POOL:
        raise RecipeError(f"{name} is a map {shape} and needs a pool", fix="Choose max, avg, gem or grid:s")
    if not pool.startswith("grid:"):
        return shape[0]
    side = _grid_side(pool)
    if side > min(shape[1:]):
        raise RecipeError(f"{name}@{pool}: the map is {shape[1]} x {shape[2]}", fix="Choose a smaller grid, or max")
    return shape[0] * side**2


def _grid_side(pool: str) -> int:
    return int(pool.removeprefix("grid:"))


def _require_pool(pool: str) -> None:
    if pool not in (*POOLS, NO_POOL) and not re.fullmatch("grid:[1-9][0-9]*", pool):
        raise UnknownNameError("pool", pool, (*POOLS, "grid:s"))


def _paths(target: str, net: NamedLayers, calls: _Calls) -> list[str]:
    """The module paths that a name, glob or path names."""
    if target in net.layers:
        return [net.layers[target]]
    if target in calls:
        return [target]
    globbed = [path for name, path in net.layers.items() if fnmatch.fnmatchcase(name, target)]
    if not globbed:
        near = difflib.get_close_matches(target, list(calls), n=1)
        raise UnknownNameError("layer", target, [*net.layers, *(path for path in near if path not in net.layers)])
    return globbed


def _choose_call(name: str, calls: list[_Call], number: str) -> int:
    """The call that `#number` names, or the only one."""
    _require_calls(name, calls)
    if not number and len(calls) == 1:
        return 1
    listed = ", ".join(f"#{i} {call.structure}" for i, call in enumerate(calls, start=1))
    if not number:
        raise RecipeError(f"{name} is called {len(calls)} times: {listed}", fix=f"Choose one, like {name}#1")
    if number not in map(str, range(1, len(calls) + 1)):
        raise RecipeError(f"{name}#{number}: there is no such call", fix=f"Known: {listed}")
    return int(number)


def _require_calls(name: str, calls: list[_Call]) -> list[_Call]:
    if not calls:
        raise RecipeError(f"{name} does not run in evaluation", fix="Choose another layer")
    return calls


def _require_shape(name: str, call: _Call) -> tuple[int, ...]:
    if call.shape is None or len(call.shape) not in (1, 3):
        what = f"the output of {name} is {call.structure}, neither a map (C, H, W) nor a vector (D,)"
        raise RecipeError(what, fix="Choose a module inside or after it")
    return call.shape


def _dry_forward(module: nn.Module, image_size: int) -> _Calls:
    """Every submodule's calls in one forward of a black image; an empty list for one that did not run."""
    calls: dict[str, list[_Call]] = {path: [] for path, _ in module.named_modules() if path}
    ended = 0

    def hook(path: str, _module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal ended
        shape = tuple(output.shape[1:]) if isinstance(output, Tensor) else None
        calls[path].append(_Call(ended, shape, _structure(output)))
        ended += 1

    parameter = next(module.parameters())
    image = torch.zeros(1, 3, image_size, image_size, device=parameter.device, dtype=parameter.dtype)
    with _hooked(module, {path: partial(hook, path) for path in calls}), torch.inference_mode():
        try:
            module(image)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise RecipeError(
                f"the network does not take images of {image_size} px: {reason}",
                fix="Choose another size with --set data.image_size=N",
            ) from error
    return calls


def _structure(output: object) -> str:
    """A module's output as text: `(512, 7, 7)`, `tuple of (64, 8, 8), None`."""
    if isinstance(output, Tensor):
        return str(tuple(output.shape[1:]))
    if isinstance(output, Mapping):
        return f"{type(output).__name__} of {', '.join(f'{key}: {_structure(part)}' for key, part in output.items())}"
    if isinstance(output, tuple | list):
        return f"{type(output).__name__} of {', '.join(map(_structure, output))}"
    return "None" if output is None else type(output).__name__
