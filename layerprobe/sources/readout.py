"""Readout: what a model from elsewhere gives -> one vector an image."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from layerprobe.errors import RecipeError

# Parts of an output that are the model's embedding, the first that is there.
_EMBEDDINGS = ("image_embeds", "pooler_output", "x_norm_clstoken", "last_hidden_state")
_IMAGES = 2  # of the dry forward
# What a model raises where images of a size do not suit it.
_REFUSALS = (RuntimeError, AssertionError, ValueError, TypeError, IndexError)


@dataclass(frozen=True, eq=False)
class Output:
    """What a model gave in a dry forward.

    Args:
        value: as it gave it, of two images.
        image_size: side of the images.
        final_norm: path of the norm after its last block, if it has one.
    """

    value: object
    image_size: int
    final_norm: str | None


def measured_output(name: str, model: nn.Module, image_size: int, final_norms: Sequence[str]) -> Output:
    """What a model gives for black images; every module is left in the mode in which it was.

    Args:
        name: of the model, for the error.
        model: on the CPU, in float32.
        image_size: side of the images.
        final_norms: paths of modules that may be the final norm; one that is absent, passes its input on, or does not
            run, is none.

    Raises:
        RecipeError: the model does not take images of this size.
    """
    ran: list[str] = []

    def hook(path: str, *_: object) -> None:
        ran.append(path)

    modes = [(part, part.training) for part in model.modules()]
    with contextlib.ExitStack() as stack:
        for path in final_norms:
            with contextlib.suppress(AttributeError):
                norm = model.get_submodule(path)
                if not isinstance(norm, nn.Identity):
                    stack.callback(norm.register_forward_hook(partial(hook, path)).remove)
        for part, training in modes:
            stack.callback(setattr, part, "training", training)
        model.eval()
        try:
            with torch.inference_mode():
                value = model(torch.zeros(_IMAGES, 3, image_size, image_size))
        except _REFUSALS as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise RecipeError(
                f"{name} does not take images of {image_size} px: {reason}",
                fix="Choose another size with --set data.image_size=N",
            ) from error
    return Output(value, image_size, next((path for path in final_norms if path in ran), None))


class Readout(nn.Module):
    """What a model gives -> (B, D).

    Args:
        part: keys that lead to the tensor in the model's output; none where the output is the tensor.
        kind: what the tensor is: `vector` (B, D), `class token` or `tokens` (B, T, D), `map` (B, C, H, W) or `map,
            channels last` (B, H, W, C).
        pool: `avg` or `max` over the positions of tokens or of a map.
        prefix: tokens before the patches.
        dim: D.
    """

    def __init__(self, part: tuple[str | int, ...], kind: str, pool: str, prefix: int, dim: int) -> None:
        super().__init__()
        self.part, self.kind, self.pool, self.prefix, self.dim = part, kind, pool, prefix, dim

    @classmethod
    def of(cls, name: str, output: Output, pool: str | None, prefix: int | None) -> Readout:
        """The readout of a model.

        Args:
            name: of the model, for errors.
            output: of a dry forward.
            pool: as a recipe states it; None for what the field does.
            prefix: tokens before the patches as the model says; None where it says nothing.

        Raises:
            RecipeError: an output that cannot be read, or a pool that it does not take.
        """
        part = _part(output.value)
        found = _taken(output.value, part or ())
        if part is None or not isinstance(found, Tensor) or len(found) != _IMAGES or found.ndim not in (2, 3, 4):
            raise RecipeError(
                f"the output of {name} is {_structure(output.value)} of {_IMAGES} images, neither vectors, tokens nor"
                " maps",
                fix="Give a model that makes one of them of images, by python:FILE.py:FUNCTION",
            )
        if pool == "gem":
            raise RecipeError(
                '[net]: pool = "gem" is for maps that cannot be negative; this is not known of a model from elsewhere',
                fix="Set avg or max",
            )
        shape = tuple(found.shape[1:])
        if len(shape) == 1 and pool is not None:
            fix = "Leave net.pool out"
            raise RecipeError(f'[net]: pool = "{pool}": the output of {name} is a vector, which has none', fix=fix)
        if len(shape) == 1:
            return cls(part, "vector", "none", 0, shape[0])
        if len(shape) == 2:
            first = shape[0] - math.isqrt(shape[0]) ** 2 if prefix is None else prefix
            kind = "class token" if first and pool is None else "tokens"
            return cls(part, kind, pool or "avg", first, shape[1])
        channels_last = _is_channels_last(name, shape)
        return cls(
            part, "map, channels last" if channels_last else "map", pool or "avg", 0, shape[-1 if channels_last else 0]
        )

    def forward(self, output: object) -> Tensor:
        """What the model gives -> (B, D)."""
        found = _taken(output, self.part)
        if not isinstance(found, Tensor):
            raise TypeError(f"no tensor at {self.part} of a {type(output).__name__}")
        if self.kind == "vector":
            return found
        if self.kind == "class token":
            return found[:, 0]
        if self.kind == "tokens":
            found = found[:, self.prefix :]
        axes = {"tokens": (1,), "map": (2, 3), "map, channels last": (1, 2)}[self.kind]
        return found.amax(axes) if self.pool == "max" else found.mean(axes)

    def extra_repr(self) -> str:
        """What is read, for print(module)."""
        return f"{'.'.join(map(str, self.part)) or 'output'}: {self.kind}"


def _is_channels_last(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a map has its channels last, where its sizes tell: a map is a square of less than all of them.

    Raises:
        RecipeError: its sizes do not tell.
    """
    first, second, third = shape
    if (second == third) == (first == second):
        raise RecipeError(
            f"the output of {name} is a map of {first} x {second} x {third}: which of them are the channels cannot be"
            " told",
            fix="Choose another image size with --set data.image_size=N",
        )
    return first == second


def _part(value: object) -> tuple[str | int, ...] | None:
    """The keys that lead to the embedding in a model's output; None where there is no tensor."""
    if isinstance(value, Tensor):
        return ()
    keys: Sequence[str | int] = ()
    if isinstance(value, Mapping):
        keys = [*(key for key in _EMBEDDINGS if value.get(key) is not None), *value]
    elif dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        keys = [*(name for name in _EMBEDDINGS if getattr(value, name, None) is not None), *names]
    elif isinstance(value, tuple | list):
        keys = range(len(value))
    for key in keys:
        rest = _part(_taken(value, (key,)))
        if rest is not None:
            return (key, *rest)
    return None


def _taken(value: object, part: tuple[str | int, ...]) -> object:
    for key in part:
        value = value[key] if isinstance(value, Mapping | tuple | list) else getattr(value, str(key))  # type: ignore[index] # a key of such a value
    return value


def _structure(value: object) -> str:
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    if isinstance(value, Mapping):
        return f"{type(value).__name__} of {', '.join(f'{key}: {_structure(part)}' for key, part in value.items())}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {', '.join(map(_structure, value))}"
    return type(value).__name__
