"""Readout: output of a foreign model -> one vector per image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from layerprobe.nets.net import Net
from layerprobe.system.errors import RecipeError
from layerprobe.system.memory import memory_faults_told
from layerprobe.taps.hooks import hooked, parts_by_path, prepared
from layerprobe.taps.layouts import Layout, Unclear
from layerprobe.taps.measuring import REFUSALS, measure_layers
from layerprobe.taps.outputs import structure, taken, tensor_part

_IMAGES = 2  # of a dry forward


@dataclass(frozen=True)
class Output:
    """What a model gives, as dry forwards showed it.

    Args:
        final_norm: path of the norm after the last block, if the model has one.
    """

    layout: Layout
    final_norm: str | None


def measured_output(
    name: str, model: nn.Module, image_size: int, *, final_norms: Sequence[str], prefix_tokens: int | None
) -> Output:
    """The output of a model; the forwards do not change it.

    Args:
        model: images (B, 3, H, W) -> any output.
        prefix_tokens: tokens before the patches as the model says; None where it says nothing.
    """
    parts, ran = parts_by_path(model), set[str]()
    norms = [path for path in final_norms if not isinstance(parts.get(path), nn.Identity | None)]

    def hook(path: str, *_: object) -> None:
        ran.add(path)

    with hooked(model, {path: partial(hook, path) for path in norms}), torch.inference_mode():
        before = torch.get_rng_state()
        try:
            with memory_faults_told():
                value = model(prepared(torch.zeros(_IMAGES, 3, image_size, image_size), model))
        except REFUSALS as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise RecipeError(
                f"{name} does not take images of {image_size} px: {reason}",
                fix="Choose another size with --set data.image_size=N",
            ) from error
    if not torch.equal(torch.get_rng_state(), before):
        raise RecipeError(
            f"{name} draws random numbers for every image, also in evaluation, so that its features are never the same",
            fix="Give a model without, such as the encoder of a masked autoencoder that masks nothing",
        )
    part = tensor_part(value)
    final = next((path for path in norms if path in ran), None)
    if part is not None and taken(value, part).ndim == 2 and len(taken(value, part)) == _IMAGES:
        return Output(Layout("vector", part, 0, 1, tuple(taken(value, part).shape[1:])), final)
    net = Net(model, {}, 0, frozenset(), prefix_tokens=prefix_tokens)
    layout = measure_layers(net, image_size).calls[""][-1].layout
    if isinstance(layout, Unclear):
        raise RecipeError(
            f"the output of {name} is {structure(value)}: {layout.reason}",
            fix="Give a model whose output is a vector, a map or tokens, such as one of your own by python:",
        )
    return Output(layout, final)


class Readout(nn.Module):
    """What a model gives -> (B, D).

    Args:
        pool: `avg` or `max` of a map or of the patches of tokens; None for the mean of a map, for the class token of
            tokens, and where there is none for the mean of their patches. A vector has none.
    """

    def __init__(self, name: str, layout: Layout, pool: str | None) -> None:
        super().__init__()
        if layout.kind == "vector" and pool is not None:
            what = f'[net]: pool = "{pool}": the output of {name} is a vector, which has none'
            raise RecipeError(what, fix="Leave net.pool out")
        if pool == "gem":
            what = f'[net]: pool = "gem" needs values of 0 and above, which {name} does not promise'
            raise RecipeError(what, fix="Set avg or max")
        self.layout = layout
        self.pool = pool or ("cls" if layout.class_token else "avg")

    @property
    def dim(self) -> int:
        """D."""
        return self.layout.dim

    def forward(self, output: object) -> Tensor:
        """What the model gives -> (B, D)."""
        values = self.layout.arranged(taken(output, self.layout.part))
        if self.layout.kind == "vector":
            return values
        if self.pool == "cls":
            return values[:, 0]
        maps = self.layout.patches(values)
        return maps.amax((2, 3)) if self.pool == "max" else maps.mean((2, 3))

    def extra_repr(self) -> str:
        """What is read, for print(module)."""
        return f"{self.layout}, {'as it is' if self.layout.kind == 'vector' else self.pool}"
