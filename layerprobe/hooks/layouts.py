"""Outputs of modules: the part that is hooked, and the meaning of each axis, from dry forwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from math import isqrt, prod
from typing import TYPE_CHECKING, Literal

from layerprobe.values.network_input import ImageSize, height_width

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["map", "tokens", "vector"]
Shape = tuple[int, ...]
Part = tuple[str | int, ...]  # the way from a module's output to a tensor in it

_MOST_PREFIX_TOKENS = 8  # that are believed where the model does not say how many: more may stand after the patches
_GRID = 4  # a square of tokens of fewer a side is also a smaller square with prefix tokens


@dataclass(frozen=True)
class Layout:
    """How an output is read.

    Args:
        part: where the tensor is in the output; empty where the output is the tensor.
        shape: of one image: (C, H, W), (T, D) or (D,), whatever the order of the axes.
        in_rows: whether the patches of tokens come row by row, so that they are a map.
        oblong: (H, W) of the patches of tokens where these are no square.
    """

    kind: Kind
    part: Part = ()
    batch: int = 0
    channels: int = 1
    shape: Shape = ()
    prefix: int = 0
    class_token: bool = False
    in_rows: bool = True
    oblong: Shape = ()

    @property
    def dim(self) -> int:
        """Number of channels."""
        return self.shape[-1] if self.kind == "tokens" else self.shape[0]

    @property
    def grid(self) -> Shape:
        """(H, W) of a map or of the patches of tokens."""
        if self.kind == "map":
            return self.shape[1:]
        return self.oblong or (isqrt(self.shape[0] - self.prefix),) * 2

    def arranged(self, tensor: Tensor) -> Tensor:
        """The output's tensor with its axes in one order: map (B, C, H, W), tokens (B, T, D), vector (B, D); a view."""
        leading_axes = self.batch, self.channels
        other_axes = [axis for axis in range(tensor.ndim) if axis not in leading_axes]
        axes = [*leading_axes, *other_axes] if self.kind == "map" else [self.batch, *other_axes, self.channels]
        # Most outputs are in order: an operation less for each of their layers, in whose time a GPU would wait.
        if axes != sorted(axes):
            tensor = tensor.permute(axes)
        return tensor.flatten(1) if self.kind == "vector" else tensor

    def patches(self, tensor: Tensor) -> Tensor:
        """What `arranged` gave of a map or of tokens -> the map (B, C, H, W), without the prefix tokens."""
        if self.kind == "map":
            return tensor
        patches = tensor[:, self.prefix :].transpose(1, 2)
        return patches.reshape(*patches.shape[:2], *self.grid)

    @property
    def size(self) -> str:
        """`8x8` of a map, `197 tokens`; empty for a vector."""
        if self.kind == "tokens":
            return f"{self.shape[0]} tokens"
        return "" if self.kind == "vector" else "x".join(map(str, self.grid))

    def __str__(self) -> str:
        before = f", {self.prefix} before the patches" if self.prefix else ""
        where = f" of {part_name(self.part)}" if self.part else ""
        return f"{self.kind} {self.shape}{before}{where}"


@dataclass(frozen=True)
class Unclear:
    """Why an output cannot be read."""

    reason: str


@dataclass(frozen=True)
class Seen:
    """The shapes of a tensor in dry forwards, with the batch.

    Args:
        part: where it is in the module's output.
        other: with two of another size; None where there was no such forward.
        normed: whether its last axis has channels for certain, as its module normalises over that axis.
    """

    part: Part
    two: Shape
    three: Shape
    other: Shape | None = None
    normed: bool = False

    def __str__(self) -> str:
        other = "" if self.other is None else f" and {self.other} at another size"
        return f"{self.two} with 2 images, {self.three} with 3{other}"


@dataclass(frozen=True)
class Model:
    """What the outputs of one model share.

    Args:
        other: the other size; None where the model took none.
        prefix_tokens: how many the model says it has; None where it says nothing.
        class_token: whether the first of its prefix tokens, if it has any, is a class token.
    """

    size: ImageSize
    other: ImageSize | None = None
    prefix_tokens: int | None = None
    class_token: bool = True
    in_rows: bool = True

    @cached_property
    def oblong(self) -> Mapping[Shape, frozenset[Shape]]:
        """Grid (H, W) of the patches of an image that is no square -> the grids of the other size, for any stride."""
        grids: dict[Shape, set[Shape]] = {}
        if isinstance(self.size, int):
            return {}
        for stride in range(1, max(self.size) + 1):
            for padded in (0, stride - 1):
                grid, other = (
                    tuple((side + padded) // stride for side in height_width(size))
                    for size in (self.size, self.size if self.other is None else self.other)
                )
                if min(grid) > 0:
                    grids.setdefault(grid, set()).add(other)
        return {grid: frozenset(other_grids) for grid, other_grids in grids.items()}

    def may_be_map(self, rows: int, columns: int) -> bool:
        """Whether two axes may be the height and width of a map; a model may make a square of any image."""
        return rows == columns or (rows, columns) in self.oblong


def find_layouts(seen: Sequence[Seen], model: Model) -> list[Layout | Unclear]:
    """The layout of each output of a model, or the reason why it is unknown."""
    counts = _token_counts(seen, model)
    return [_layout(output, model, counts) for output in seen]


def _layout(seen: Seen, model: Model, counts: _TokenCounts) -> Layout | Unclear:
    batch = _batch_axis(seen)
    if isinstance(batch, Unclear):
        return batch
    item_shape, other = _without(seen.two, batch), None if seen.other is None else _without(seen.other, batch)
    if other is not None and len(other) != len(item_shape):
        return Unclear(f"its number of axes changes with the image size: {seen}")
    if len(item_shape) == 3:
        axis = _map_channels(item_shape, other, counts, model)
    elif len(item_shape) == 2:
        axis = _token_channels(item_shape, other, counts)
    elif len(item_shape) == 1:
        axis = 0
    else:
        return Unclear(f"neither a map, tokens nor a vector: {seen}")
    if isinstance(axis, Unclear):
        return Unclear(f"{axis.reason}: {seen}")
    channels = axis if axis < batch else axis + 1
    space = _without(item_shape, axis)
    if len(item_shape) == 3:
        return Layout("map", seen.part, batch, channels, (item_shape[axis], *space))
    if len(item_shape) == 1 or (space == (1,) and other in (None, item_shape)):
        return Layout("vector", seen.part, batch, channels, (item_shape[axis],))
    other_tokens = None if other is None else other[1 - axis]
    oblong: Shape = ()
    if isinstance(model.size, int):
        prefix = _prefix(space[0], other_tokens, model, counts)
    else:
        prefix, oblong = _oblong(space[0], other_tokens, model, counts)
    if isinstance(prefix, Unclear):
        return Unclear(f"{prefix.reason}: {seen}")
    class_token, shape = prefix > 0 and model.class_token, (*space, item_shape[axis])
    return Layout("tokens", seen.part, batch, channels, shape, prefix, class_token, model.in_rows, oblong)


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])


def _batch_axis(seen: Seen) -> int | Unclear:
    """The axis that grows by one for each image."""
    two, three = seen.two, seen.three
    grown = [i for i in range(len(two)) if two[i] != three[i]] if len(two) == len(three) else []
    if len(grown) != 1:
        return Unclear(f"no one axis grows with the number of images: {seen}")
    (axis,) = grown
    if (two[axis], three[axis]) == (2, 3):
        return axis
    if 3 * two[axis] == 2 * three[axis]:
        return Unclear(f"axis {axis} has {two[axis] // 2} rows an image, such as its windows: {seen}")
    return Unclear(f"axis {axis} does not grow by one for each image: {seen}")


@dataclass(frozen=True)
class _TokenCounts:
    """Numbers of tokens that are known for certain.

    Args:
        flattened: the places of a map, and its channels: tokens of this shape are that map, flattened.
        normed: tokens, and their channels, which a norm of these channels tells apart.
        maps: what may be the height and width of a map, of all outputs of four axes.
        squares: places of those that have as many rows as columns.
    """

    paired: set[tuple[int, int]] = field(default_factory=set)
    alone: set[int] = field(default_factory=set)
    flattened: set[Shape] = field(default_factory=set)
    normed: set[Shape] = field(default_factory=set)
    maps: set[Shape] = field(default_factory=set)
    squares: set[int] = field(default_factory=set)


def _token_counts(seen: Iterable[Seen], model: Model) -> _TokenCounts:
    counts = _TokenCounts()
    for output in seen:
        if len(output.two) == 4:
            counts.maps.update((output.two[1:3], output.two[2:4]))
            if output.two[2] == output.two[3]:
                counts.squares.add(output.two[2] ** 2)
        batch = _batch_axis(output)
        if isinstance(batch, Unclear):
            if len(output.two) == 2 and 3 * output.two[0] == 2 * output.three[0] and output.two[1] == output.three[1]:
                counts.alone.add(output.two[0] // 2)  # tokens of all images in one axis, as a BatchNorm1d takes them
            continue
        item_shape = _without(output.two, batch)
        if len(item_shape) == 3 and model.may_be_map(*item_shape[1:]) and len(set(item_shape)) > 1:
            counts.flattened.add((item_shape[1] * item_shape[2], item_shape[0]))
        if len(item_shape) != 2:
            continue
        other = () if output.other is None else _without(output.other, batch)
        changed = [pair for pair in zip(item_shape, other, strict=False) if pair[0] != pair[1]]
        if len(changed) == 1:
            counts.paired.add(changed[0])
            counts.alone.add(changed[0][0])
        if output.normed and batch < len(item_shape):
            counts.alone.add(item_shape[0])
            counts.normed.add(item_shape)
    return counts


def _map_channels(item_shape: Shape, other: Shape | None, counts: _TokenCounts, model: Model) -> int | Unclear:
    """The axis of channels of a map's three: the one that another image size leaves."""
    if other is not None and other != item_shape:
        changed = [i for i in range(3) if item_shape[i] != other[i]]
        if model.oblong and len(changed) == 1 and (item_shape[changed[0]], other[changed[0]]) not in counts.paired:
            changed += [i for i in range(3) if item_shape[i] == 1]  # a map of one row at both sizes
        if len(changed) != 2:
            return Unclear("not two of its axes change with the image size, as those of a map do")
        if all((item_shape[i], other[i]) in counts.paired for i in changed):
            return Unclear("two of its axes are as long as the tokens, as those of attention weights are")
        (channels,) = {0, 1, 2} - set(changed)
        return channels
    for channels in (0, 2):
        rows, columns = _without(item_shape, channels)
        # Attention weights have as many rows and columns as there are tokens; a map's places may be tokens elsewhere.
        is_map = rows not in counts.alone or (rows * columns, item_shape[channels]) in counts.normed
        if model.may_be_map(rows, columns) and len(set(item_shape)) > 1 and is_map:
            return channels
    return Unclear("cannot determine the axes of a map from one image size")


def _token_channels(item_shape: Shape, other: Shape | None, counts: _TokenCounts) -> int | Unclear:
    """The axis of channels of two: the one that another image size leaves."""
    if other is not None and other != item_shape:
        if item_shape[0] != other[0] and item_shape[1] != other[1]:
            return Unclear("both of its axes change with the image size")
        return 0 if item_shape[0] == other[0] else 1
    if (item_shape[0] == 1) != (item_shape[1] == 1):
        return 1 if item_shape[0] == 1 else 0
    if other is not None:
        return Unclear("neither of its axes changes with the image size, as that of tokens does")
    counted = [count in counts.alone for count in item_shape]
    flattened = [shape in counts.flattened for shape in (item_shape, item_shape[::-1])]
    for on_axis_0, on_axis_1 in (counted, flattened):
        if on_axis_0 != on_axis_1:
            return 1 if on_axis_0 else 0
    return Unclear("cannot determine the axis of tokens from one image size")


def _prefix(tokens: int, other: int | None, model: Model, counts: _TokenCounts) -> int | Unclear:
    """How many tokens stand before those of a square of patches."""
    if other is not None and model.other is not None:
        prefixes = [p for p in range(min(tokens, other)) if _are_grids(tokens - p, other - p, model)]
        if len(prefixes) == 1 and prefixes[0] > _MOST_PREFIX_TOKENS and prefixes[0] != model.prefix_tokens:
            return Unclear(f"cannot determine whether {prefixes[0]} of its tokens all precede the patches")
        if len(prefixes) == 1:
            return prefixes[0]
        return Unclear(f"{tokens} and {other} tokens are no square of patches with tokens before it")
    side, stated_prefix = isqrt(tokens), model.prefix_tokens
    prefix = tokens - side**2
    if stated_prefix == prefix:
        return prefix
    if stated_prefix is not None and (side < _GRID or _is_square(tokens - stated_prefix)):
        return Unclear(
            f"{tokens} tokens are a square and {prefix} before it, but {stated_prefix} by what the model says"
        )
    doubtful = stated_prefix is None and side < _GRID and side**2 not in counts.squares
    if doubtful or prefix > _MOST_PREFIX_TOKENS:
        return Unclear(f"cannot determine how many of {tokens} tokens precede the patches")
    return prefix


def _oblong(tokens: int, other: int | None, model: Model, counts: _TokenCounts) -> tuple[int | Unclear, Shape]:
    """How many tokens stand before those of patches that are no square, and their grid: that of a map, if any."""
    most = range(_MOST_PREFIX_TOKENS + 1) if model.prefix_tokens is None else (model.prefix_tokens,)
    candidates = [
        (tokens - prod(grid), grid)
        for grid, other_grids in model.oblong.items()
        if tokens - prod(grid) in most and (other is None or other - tokens + prod(grid) in map(prod, other_grids))
    ]
    candidates = [candidate for candidate in candidates if candidate[1] in counts.maps] or candidates
    if len(candidates) == 1:
        return candidates[0]
    return Unclear(f"cannot determine the height and width of the patches of {tokens} tokens"), ()


def _is_square(number: int) -> bool:
    return number > 0 and isqrt(number) ** 2 == number


def _are_grids(patches: int, other_patches: int, model: Model) -> bool:
    """Whether two numbers of patches are squares whose sides are to each other as the sizes, to one patch."""
    if not (_is_square(patches) and _is_square(other_patches)):
        return False
    sizes = [max(height_width(size)) for size in (model.size, model.other or model.size)]
    return abs(isqrt(patches) * sizes[1] - isqrt(other_patches) * sizes[0]) <= max(sizes)


def part_name(tensor_path: Part) -> str:
    """As text: `last_hidden_state`, `[0]`."""
    return "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in tensor_path).removeprefix(".")


# In outputs of several parts, these come first: what their libraries call the image's embedding or last layer.
_PARTS = ("image_embeds", "image_features", "pooler_output", "last_hidden_state")


def tensor_part(output: object) -> Part | None:
    """The path of the hooked tensor in an output: the part with a known name, else the first; None: no tensor."""
    from torch import Tensor

    if isinstance(output, Tensor):
        return ()
    parts = _parts(output)
    preferred = [name for name in _PARTS if parts.get(name) is not None]
    for name in [*preferred[:1], *list(parts)[:1]]:
        inner = tensor_part(parts[name])
        if inner is not None:
            return (name, *inner)
    return None


def tensor_at(output: object, tensor_path: Part) -> Tensor:
    """The tensor at a part of an output."""
    from torch import Tensor

    for name in tensor_path:
        output = _parts(output).get(name)
    if not isinstance(output, Tensor):
        raise ValueError(f"no tensor at {part_name(tensor_path) or 'its place'}, but {type(output).__name__}")
    return output


def structure(output: object) -> str:
    """An output as text, without the batch: `(512, 7, 7)`, `tuple of (64, 8, 8), None`."""
    from torch import Tensor

    if isinstance(output, Tensor):
        return str(tuple(output.shape[1:]))
    parts = _parts(output)
    texts = [
        structure(element) if isinstance(name, int) else f"{name}: {structure(element)}"
        for name, element in parts.items()
    ]
    if texts:
        return f"{type(output).__name__} of {', '.join(texts)}"
    return "None" if output is None else type(output).__name__


def _parts(output: object) -> Mapping[str | int, object]:
    if isinstance(output, Mapping):
        return output
    if isinstance(output, tuple | list):
        return dict(enumerate(output))
    if is_dataclass(output) and not isinstance(output, type):
        return {item.name: getattr(output, item.name) for item in fields(output)}
    return {}
