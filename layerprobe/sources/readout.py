"""Readout: output of a foreign model -> one vector per image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from layerprobe.nets.net import Net
from layerprobe.system.errors import RecipeError
from layerprobe.system.memory import memory_faults_told
from layerprobe.taps.hooks import hook_modules, parts_by_path, prepare_images
from layerprobe.taps.layouts import Layout, Unclear, structure, tensor_at, tensor_part
from layerprobe.taps.measuring import REFUSALS, measure_layers
from layerprobe.values.network_input import ImageSize, height_width, images_text

_IMAGES = 2  # of a dry forward


@dataclass(frozen=True)
class Output:
    """What a model gives, as dry forwards showed it.

    Args:
        final_norm: path of the norm after the last block, if the model has one.
        channels: of the images that the model takes.
    """

    layout: Layout
    final_norm: str | None
    channels: int


def measure_output(  # noqa: PLR0913 - what a source knows of a model
    name: str,
    model: nn.Module,
    image_size: ImageSize,
    *,
    channels: Sequence[int] = (3, 1),
    final_norms: Sequence[str],
    prefix_tokens: int | None,
) -> Output:
    """The output of a model; the forwards do not change it.

    Args:
        model: images (B, C, H, W) -> any output.
        channels: C that are tried in this order; the first that the model takes counts.
        prefix_tokens: tokens before the patches as the model says; None where it says nothing.
    """
    parts, ran = parts_by_path(model), set[str]()
    norms = [path for path in final_norms if not isinstance(parts.get(path), nn.Identity | None)]

    def hook(path: str, *_: object) -> None:
        ran.add(path)

    with hook_modules(model, {path: partial(hook, path) for path in norms}), torch.inference_mode():
        before = torch.get_rng_state()
        refused: dict[int, Exception] = {}
        for taken_channels in channels:
            try:
                with memory_faults_told():
                    value = model(
                        prepare_images(torch.zeros(_IMAGES, taken_channels, *height_width(image_size)), model)
                    )
                break
            except REFUSALS as error:
                refused[taken_channels] = error
        else:
            raise _refusal(name, image_size, refused) from refused[channels[0]]
    if not torch.equal(torch.get_rng_state(), before):
        raise RecipeError(
            f"{name} draws random numbers for every image, also in evaluation, so that its features are never the same",
            fix="Give a model without, such as the encoder of a masked autoencoder that masks nothing",
        )
    tensor_path = tensor_part(value)
    final = next((path for path in norms if path in ran), None)
    if (
        tensor_path is not None
        and tensor_at(value, tensor_path).ndim == 2
        and len(tensor_at(value, tensor_path)) == _IMAGES
    ):
        return Output(
            Layout("vector", tensor_path, 0, 1, tuple(tensor_at(value, tensor_path).shape[1:])), final, taken_channels
        )
    net = Net(model, {}, 0, frozenset(), channels=taken_channels, prefix_tokens=prefix_tokens)
    layout = measure_layers(net, image_size).calls[""][-1].layout
    if isinstance(layout, Unclear):
        raise RecipeError(
            f"the output of {name} is {structure(value)}: {layout.reason}",
            fix="Give a model whose output is a vector, a map or tokens, such as one of your own by python:",
        )
    return Output(layout, final, taken_channels)


def _refusal(name: str, image_size: ImageSize, refused: Mapping[int, Exception]) -> RecipeError:
    """The error of a model that takes no images, with its reason for each number of channels."""
    reasons = {
        str(error).strip().partition("\n")[0] or type(error).__name__: f"of {channels} channel{'s' * (channels != 1)}"
        for channels, error in refused.items()
    }
    why = "; ".join(f"{channels}: {reason}" for reason, channels in reasons.items())
    return RecipeError(
        f"{name} does not take {images_text(image_size)}: {why if len(reasons) > 1 else next(iter(reasons))}",
        fix="Choose another size with --set data.image_size=N or [H,W], or measure a model of neither 3 channels nor 1"
        " from Python",
    )


class Readout(nn.Module):
    """What a model gives -> (B, D).

    Args:
        pool: `avg` or `max` of a map or of the patches of tokens; None for the mean of a map, for the class token of
            tokens, and where there is none for the mean of their patches. A vector has none.
    """

    def __init__(self, name: str, layout: Layout, pool: str | None) -> None:
        super().__init__()
        if layout.kind == "vector" and pool is not None:
            problem = f'[net]: pool = "{pool}": the output of {name} is a vector, which has none'
            raise RecipeError(problem, fix="Leave net.pool out")
        if pool == "gem":
            problem = f'[net]: pool = "gem" needs values of 0 and above, which {name} does not promise'
            raise RecipeError(problem, fix="Set avg or max")
        self.layout = layout
        self.pool = pool or ("cls" if layout.class_token else "avg")

    @property
    def dim(self) -> int:
        """D."""
        return self.layout.dim

    def forward(self, output: object) -> Tensor:
        """What the model gives -> (B, D)."""
        values = self.layout.arranged(tensor_at(output, self.layout.part))
        if self.layout.kind == "vector":
            return values
        if self.pool == "cls":
            return values[:, 0]
        maps = self.layout.patches(values)
        return maps.amax((2, 3)) if self.pool == "max" else maps.mean((2, 3))

    def extra_repr(self) -> str:
        """What is read, for print(module)."""
        return f"{self.layout}, {'as it is' if self.layout.kind == 'vector' else self.pool}"
