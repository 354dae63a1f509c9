"""Outputs of modules: a tensor, or several parts of which one is tapped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

from layerprobe.taps.layouts import Part, part_name

if TYPE_CHECKING:
    from torch import Tensor

# In outputs of several parts, these come first: what their libraries call the image's embedding or last layer.
_PARTS = ("image_embeds", "image_features", "pooler_output", "last_hidden_state")


def tensor_part(output: object) -> Part | None:
    """The path of the tapped tensor in an output: the part with a known name, else the first; None: no tensor."""
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
        return {field.name: getattr(output, field.name) for field in fields(output)}
    return {}
