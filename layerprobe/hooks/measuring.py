"""Dry forwards: which modules run, in which order, their outputs, and the model's final pool; kept as JSON."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

from layerprobe.hooks.hooks import hook_modules, parts_by_path, plain_path, prepare_images
from layerprobe.hooks.layouts import (
    Layout,
    Model,
    Part,
    Seen,
    Shape,
    Unclear,
    find_layouts,
    structure,
    tensor_at,
    tensor_part,
)
from layerprobe.system.errors import DataError, EnvironmentFault, RecipeError
from layerprobe.system.memory import memory_faults_told
from layerprobe.values.network_input import ImageSize, as_size, height_width, images_text

if TYPE_CHECKING:
    from torch import Tensor, nn

_MOST_PREFIX_TOKENS = 8
_RELATIVE, _ABSOLUTE = 1e-4, 1e-5


@dataclass(eq=False)
class FinalPool:
    """Sees the tensors of a forward in their order, of modules without parts.

    Args:
        found: cls, avg or max; None for another pool, or none.
    """

    found: str | None = None
    _last: Tensor | None = None

    def see(self, value: object) -> None:
        """A module's input or output: a later map or sequence of tokens starts anew, as in squeeze and excitation."""
        import torch
        from torch import Tensor

        if not isinstance(value, Tensor) or not value.is_floating_point() or value.ndim < 2:
            return
        if value.ndim in (3, 4) and value[0].numel() > max(value.shape[1], value.shape[-1]):
            self._last, self.found = value, None
        elif self._last is not None and self.found is None and len(value) == len(self._last):
            vector = value.flatten(1).float()
            # A ReLU may be a function, which no hook sees.
            for maps in (self._last.float(), self._last.float().clamp(min=0)):
                for name, pooled in _pool_maps(maps):
                    if pooled.shape == vector.shape and torch.allclose(pooled, vector, _RELATIVE, _ABSOLUTE):
                        self.found = name
                        return


def _pool_maps(maps: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Each pool of maps, channels first or last, or of tokens (B, T, D) with up to 8 before the patches."""
    if maps.ndim == 3:
        yield "cls", maps[:, 0]
        for prefix in range(min(_MOST_PREFIX_TOKENS, maps.shape[1] - 1) + 1):
            yield "avg", maps[:, prefix:].mean(1)
            yield "max", maps[:, prefix:].amax(1)
        return
    for axes in ((2, 3), (1, 2)):
        yield "avg", maps.mean(axes)
        yield "max", maps.amax(axes)


# What models raise on images that they do not take.
REFUSALS = (
    RuntimeError, AssertionError, AttributeError, TypeError, ValueError, LookupError, ArithmeticError,
)  # fmt: skip
# Models whose tokens come window by window: which of the image they are, their number does not tell.
_IN_WINDOWS = ("Hiera", "HieraModel")
_SMALL = 64  # pixels of the shorter side, of which twice as many cost little


class NamedLayers(Protocol):
    """A network whose layers have names; `layerprobe.nets.net.Net` says what each field is."""

    @property
    def module(self) -> nn.Module:
        """(B, C, H, W) -> (B, D)."""

    @property
    def channels(self) -> int:
        """C of the images."""

    @property
    def layers(self) -> Mapping[str, str]:
        """Name of a layer -> path of its module, in execution order."""

    @property
    def parts(self) -> Mapping[str, str]:
        """Name of a part of a layer -> path of its module."""

    @property
    def root(self) -> str:
        """Path below which module paths lie that a user writes."""

    @property
    def final_norm(self) -> str | None:
        """Path of the norm after the last block."""

    @property
    def classifier(self) -> str | None:
        """Path of the classifier whose input stands for the model's output."""

    @property
    def own_pool(self) -> bool:
        """Whether layers are pooled by default as the model pools."""

    @property
    def prefix_tokens(self) -> int | None:
        """How many tokens the model says it has before the patches."""


@dataclass(frozen=True)
class Call:
    """One call of a module in a forward.

    Args:
        shape: of its tensor, with a batch of 2; empty where there is none.
        negative: whether any of its values was below 0.
    """

    order: int
    structure: str
    shape: Shape
    layout: Layout | Unclear
    negative: bool


@dataclass(frozen=True, eq=False)
class Measured:
    """A network, and what its dry forwards showed.

    Args:
        calls: module path -> its calls in a forward, in their order; empty for a module that did not run.
        final_pool: by which the model makes a vector of its last map or tokens; None for another, or none.
        pools: by default, of the layers that can have them; empty: max for maps, cls and avg for tokens.
    """

    net: NamedLayers
    calls: Mapping[str, Sequence[Call]]
    final_pool: str | None = None
    pools: tuple[str, ...] = ()

    def unknown_pool(self, pools: Sequence[str] | None) -> list[str]:
        """A line where layers are pooled by avg as the model makes a vector in an unknown way, and nobody said how."""
        if pools or self.pools != ("avg",) or self.final_pool is not None:
            return []
        layouts = [call.layout for call in self.calls.get(self.net.root, ())]
        if not any(isinstance(layout, Layout) and layout.kind == "vector" for layout in layouts):
            return []
        return ["how the model pools its last map is not known (not cls, avg or max): layers are pooled by avg"]


@dataclass(frozen=True)
class _Output:
    """What one call of a module gave in one forward."""

    path: str
    number: int  # of the call of this module, from 1
    structure: str
    part: Part | None
    shape: Shape
    negative: bool


def measure_layers(net: NamedLayers, image_size: ImageSize) -> Measured:
    """Run noise images through a network, without changing it, and infer the layout of every output.

    Two and three images show the axis of images, and two of another size, where the network takes them, the axes of
    channels.
    """
    module = net.module
    try:
        with memory_faults_told():
            final_pool = FinalPool()
            two, three = _see(net, 2, image_size, final_pool, []), _see(net, 3, image_size, None, [])
    except REFUSALS as error:
        line = str(error).strip().partition("\n")[0]
        kind = "" if type(error) is RuntimeError and line else type(error).__name__
        reason = ": ".join(text for text in (kind, line) if text)
        if "DataLoader worker" in line:  # torch raises it wherever the main process is when a worker dies
            raise EnvironmentFault("a data worker was killed (memory?)", fix="Use fewer workers") from error
        if "device meta" in line or "meta tensor" in line:
            problem = f"the network has a tensor on the device meta, which holds no numbers: {line}"
            raise DataError(problem, fix="Build it on the CPU, and load its weights") from error
        raise RecipeError(
            f"the network does not take {images_text(image_size, net.channels)}: {reason}",
            fix="Choose another size with --set data.image_size=N or [H,W]",
        ) from error
    # Of a map of one place every pool is the same: then a larger one may tell.
    unknown = FinalPool() if final_pool.found is None else None
    other_size, other = _at_another_size(net, image_size, unknown)
    own_pool = final_pool.found or (unknown.found if unknown else None)
    if [output.shape for output in other] == [output.shape for output in two]:
        # The network makes one size of all images itself, so that another size tells nothing.
        other_size, other = None, []
    in_rows = not any(type(submodule).__name__ in _IN_WINDOWS for submodule in module.modules())
    model = Model(image_size, other_size, net.prefix_tokens, _has_class_token(module), in_rows)
    pools = (own_pool or "avg",) if net.own_pool else ()
    return Measured(net, _calls(module, two, [three, other], model), own_pool, pools)


def _calls(
    module: nn.Module, outputs: Sequence[_Output], further: Sequence[Sequence[_Output]], model: Model
) -> dict[str, list[Call]]:
    """The calls of each module, from the outputs with two images, and further ones: with three, and at another size."""
    parts, runs = parts_by_path(module), Counter(output.path for output in outputs)
    shapes: list[dict[tuple[str, int, Part | None], Shape]] = []  # of the modules that ran as often as with two images
    for further_outputs in further:
        runs_there = Counter(output.path for output in further_outputs)
        same = [output for output in further_outputs if runs_there[output.path] == runs[output.path]]
        shapes.append({(output.path, output.number, output.part): output.shape for output in same})
    three, other = shapes
    clear: dict[int, Seen] = {}
    layouts: dict[int, Layout | Unclear] = {}
    for index, output in enumerate(outputs):
        key = (output.path, output.number, output.part)
        if output.part is None:
            layouts[index] = Unclear("there is no tensor in it")
        elif key not in three:
            layouts[index] = Unclear("what it is, or how often its module runs, depends on the number of images")
        else:
            normed = _normalises_last(parts[output.path])
            clear[index] = Seen(output.part, output.shape, three[key], other.get(key), normed)
    layouts.update(zip(clear, find_layouts([*clear.values()], model), strict=True))
    calls: dict[str, list[Call]] = {path: [] for path in parts}
    for index, output in enumerate(outputs):
        calls[output.path].append(Call(index, output.structure, output.shape, layouts[index], output.negative))
    return calls


def _at_another_size(
    net: NamedLayers, image_size: ImageSize, final_pool: FinalPool | None
) -> tuple[ImageSize | None, list[_Output]]:
    """Another size that the network takes, and its outputs there."""
    sides = height_width(image_size)
    if min(sides) <= _SMALL:
        # Half of it may be one patch, which position embeddings broadcast to as many tokens as ever.
        sizes = [tuple(2 * side for side in sides)]
    else:
        # Half the size costs least; the others are whole numbers of patches where half is not.
        sizes = [
            tuple(side // 2 for side in sides),
            *(tuple(round(side / 2 / step) * step for side in sides) for step in (32, 28, 16)),
        ]
    seen: list[_Output] = []
    for height, width in dict.fromkeys(sizes):
        other, seen = as_size(height, width), []
        with contextlib.suppress(*REFUSALS):
            return other, _see(net, 2, other, final_pool, seen)
    if isinstance(image_size, int):
        return None, []
    if final_pool is not None:
        final_pool.found = None
    return other, seen  # what ran before the network refused the last size: tells the axes of maps that are no squares


def _see(
    net: NamedLayers, count: int, image_size: ImageSize, final_pool: FinalPool | None, outputs: list[_Output]
) -> list[_Output]:
    """What every call of every module gives, in one forward of noise images, in the order in which the calls end."""
    import torch

    module = net.module
    called: Counter[str] = Counter()

    def hook(path: str, submodule: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        called[path] += 1
        if final_pool is not None and next(submodule.children(), None) is None:
            final_pool.see(inputs[0] if inputs else None)
            final_pool.see(output)
        tensor_path = tensor_part(output)
        shape: Shape = ()
        negative = False
        if tensor_path is not None:
            tensor = tensor_at(output, tensor_path)
            shape = tuple(tensor.shape)
            # Once in three forwards, as it costs as much as a layer; faster than a minimum.
            negative = count == 2 and tensor.is_floating_point() and bool((tensor < 0).any())
        outputs.append(_Output(path, called[path], structure(output), tensor_path, shape, negative))

    shape = count, net.channels, *height_width(image_size)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with hook_modules(module, {path: partial(hook, path) for path in parts_by_path(module)}), torch.inference_mode():
        module(prepare_images(noise, module))
    return outputs


def _normalises_last(module: nn.Module) -> bool:
    """Whether a module normalises over its input's last axis, which then has the channels."""
    from torch import nn

    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return len(module.normalized_shape) == 1
    return type(module).__name__.lower().endswith(("layernorm", "rmsnorm"))


def _has_class_token(module: nn.Module) -> bool:
    """Whether tokens before the patches begin with a class token, by the names of the model's own tensors.

    A model with registers alone has none. Where no name tells, the first token is one.
    """
    names = [name.rpartition(".")[2] for name in module.state_dict()]
    return any("cls" in name or "class" in name for name in names) or not any("reg" in name for name in names)


@dataclass(frozen=True, eq=False)
class _RecordedLayers:
    """The file's content: `Measured`, with the facts of `NamedLayers`. Its module is built when it is asked for."""

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
    build: Any = None  # () -> the module; not in the file

    @cached_property
    def module(self) -> nn.Module:
        """(B, C, H, W) -> (B, D)."""
        module: nn.Module = self.build()
        return module


def forwards_as_json(measured: Measured, made_from: Mapping[str, str]) -> str:
    """What `recorded_forwards` reads.

    Args:
        made_from: all that decides what the forwards show.
    """
    from pydantic import TypeAdapter  # slow to import

    net = measured.net
    content = _RecordedLayers(
        dict(made_from), net.channels, dict(net.layers), dict(net.parts), net.root, net.final_norm, net.classifier,
        net.own_pool, net.prefix_tokens, {path: tuple(of_path) for path, of_path in measured.calls.items()},
        measured.final_pool, measured.pools,
    )  # fmt: skip
    return TypeAdapter(_RecordedLayers).dump_json(content, exclude={"build"}).decode()


def recorded_forwards(text: bytes, made_from: Mapping[str, str], build: Callable[[], nn.Module]) -> Measured | None:
    """What the dry forwards of a network showed; None if they were made from something else, or are unreadable.

    Args:
        build: builds the network, for the few questions that only its modules answer.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        recorded = TypeAdapter(_RecordedLayers).validate_json(text)
    except ValidationError:
        return None
    if recorded.made_from != made_from:
        return None
    return Measured(replace(recorded, build=build), recorded.calls, recorded.final_pool, recorded.pools)


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
