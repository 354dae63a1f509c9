"""The similarity of an image to fixed features, as a differentiable function of its pixels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from layerprobe.reductions.reduction import Reduce
from layerprobe.reductions.unfitted import unit
from layerprobe.taps import Layer, member_taps, tap_module
from layerprobe.values.layers import RankedLayer

Embed = Callable[[Tensor], Tensor]  # images (B, C, H, W) -> (B, D) float64
Score = Callable[[Tensor], Tensor]  # images (B, C, H, W) -> (B,) float64


@dataclass(frozen=True, eq=False)
class ScoredLayer:
    """A layer's features and their similarity.

    Args:
        ranked: its name; the similarity is cosine, dot or euclidean.
        reduce: the reduction, differentiable; None for none.
    """

    layer: Layer
    ranked: RankedLayer
    reduce: Reduce | None = None

    @contextlib.contextmanager
    def embedding(self, module: nn.Module) -> Iterator[Embed]:
        """The pooled and reduced features of images, for as long as the block lasts; see `taps.tap_module`."""
        taps = member_taps([self.layer])
        with _out_of_place(module), tap_module(module, taps, differentiable=True) as features_of:

            def embed(images: Tensor) -> Tensor:
                features = features_of(images)
                parts = [features[tap.key].double() for tap in taps]
                joined = parts[0] if len(parts) == 1 else torch.cat([unit(block) for block in parts], 1)
                return joined if self.reduce is None else self.reduce(joined)

            yield embed

    def score(self, embed: Embed, other: Tensor) -> Score:
        """The similarity of images to the features (1, D) of another image."""
        return lambda images: similarities(embed(images), other, self.ranked.similarity)


def similarities(features: Tensor, other: Tensor, similarity: str) -> Tensor:
    """As the search has them: the cosine, 0 with a zero vector; the dot product; minus the distance.

    Args:
        features: (B, D).
        other: (1, D).

    Returns:
        (B,)
    """
    if similarity == "euclidean":
        distances: Tensor = torch.linalg.vector_norm(features - other, dim=1)
        return -distances
    if similarity == "cosine":
        features, other = unit(features), unit(other)
    return (features * other).sum(1)


@contextlib.contextmanager
def _out_of_place(module: nn.Module) -> Iterator[None]:
    """Modules such as nn.ReLU(inplace=True) give new tensors in the block: the map before them keeps its values."""
    changed = [submodule for submodule in module.modules() if getattr(submodule, "inplace", False) is True]
    try:
        for submodule in changed:
            submodule.inplace = False  # type: ignore[assignment] # a plain attribute
        yield
    finally:
        for submodule in changed:
            submodule.inplace = True  # type: ignore[assignment] # likewise
