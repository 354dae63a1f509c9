"""Source: a library of models, or a user's file, whose models become Nets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from layerprobe.sources.hub import Foreign
from layerprobe.values.network_input import ImageSize, OwnInput, size_text

if TYPE_CHECKING:
    from torch import nn

    from layerprobe.nets.net import Net


def _no_files(name: str) -> dict[str, str]:  # noqa: ARG001 - the same of all models
    return {}


@dataclass(frozen=True)
class Source:
    """One of `registry.SOURCES`.

    Args:
        prefix: its name there, as `timm:`.
        model: builds a model by name, with its library's weights (`pretrained=True`) or untrained, for images of
            another size than its own where `image_size` is not None.
        own_input: name -> the images that the model was trained on; None where they are not known. Loads no weights.
        versions: name -> the packages that the model comes from, each with its version; imports nothing.
        files: name -> the user's own files that the model is built from, each with a hash of its content.
    """

    prefix: str
    model: Callable[..., Foreign]
    own_input: Callable[[str], OwnInput | None]
    versions: Callable[[str], Mapping[str, str]]
    files: Callable[[str], Mapping[str, str]] = _no_files

    def origin(self, name: str) -> dict[str, str]:
        """All that a model's features depend on beside its weights: packages and files."""
        return {**self.versions(name), **self.files(name)}

    @property
    def build(self) -> Callable[..., Net]:
        """`sources.building.build` of this source: the name of a model and the keys of a recipe's [net] -> its Net."""
        from layerprobe.sources.building import build  # torch: only what builds a model waits for it

        return partial(build, self.prefix, self.model, self.origin)


def interpolation_note(name: str, own_size: ImageSize, size: ImageSize) -> str:
    """The note on a model with position embeddings that takes images of another size than its own."""
    own_text, other = size_text(own_size), size_text(size)
    return f"{name} is made for {own_text} px: its position embeddings are interpolated to {other} px"


def take_off(model: nn.Module, path: str, instead: nn.Module | None = None) -> None:
    """Put a module in the place of a classifier; None: one that gives what it takes."""
    from torch import nn

    parent, _, child = path.rpartition(".")
    setattr(model.get_submodule(parent), child, instead or nn.Identity())
