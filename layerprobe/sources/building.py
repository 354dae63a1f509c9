"""A model of a source, with a readout of one vector per image and a head -> Net."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from layerprobe.hooks.hooks import hook_modules, parts_by_path, prepare_images
from layerprobe.hooks.layouts import Layout, Unclear, structure, tensor_at, tensor_part
from layerprobe.hooks.measuring import REFUSALS, measure_layers
from layerprobe.nets.assembly import Head
from layerprobe.nets.blocks import block_names, part_names
from layerprobe.nets.checkpoint_files import FileWeights
from layerprobe.nets.conversion import fit_or_convert
from layerprobe.nets.fitting import TargetNetwork, shapes, unused_note, with_versions
from layerprobe.nets.net import Net
from layerprobe.sources.hub import NO_OWN_SIZE, Foreign
from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.system.memory import memory_faults_told
from layerprobe.values.layers import OUTPUT
from layerprobe.values.network_input import ImageSize, height_width, images_text

_IMAGES = 2  # of a dry forward


@dataclass(frozen=True)
class ModelOutput:
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
) -> ModelOutput:
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

    refused: dict[int, Exception] = {}
    with hook_modules(model, {path: partial(hook, path) for path in norms}), torch.inference_mode():
        before = torch.get_rng_state()
        for taken_channels in channels:
            images = torch.zeros(_IMAGES, taken_channels, *height_width(image_size))
            try:
                with memory_faults_told():
                    value = model(prepare_images(images, model))
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
    shape = () if tensor_path is None else tuple(tensor_at(value, tensor_path).shape)
    if tensor_path is not None and len(shape) == 2 and shape[0] == _IMAGES:
        return ModelOutput(Layout("vector", tensor_path, 0, 1, shape[1:]), final, taken_channels)
    net = Net(model, {}, 0, frozenset(), channels=taken_channels, prefix_tokens=prefix_tokens)
    layout = measure_layers(net, image_size).calls[""][-1].layout
    if isinstance(layout, Unclear):
        raise RecipeError(
            f"the output of {name} is {structure(value)}: {layout.reason}",
            fix="Give a model whose output is a vector, a map or tokens, such as one of your own by python:",
        )
    return ModelOutput(layout, final, taken_channels)


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


_MODEL, _READOUT = "model", "readout"


def build(  # noqa: PLR0913 - the keys of a recipe's [net]
    prefix: str,
    make: Callable[..., Foreign],
    origin: Callable[[str], Mapping[str, str]],
    name: str,
    *,
    fc: Sequence[int] = (),
    pool: str | None = None,
    norm: Literal["none", "layer", "batch"] = "none",
    dropout: float = 0.0,
    fc_bias: bool = True,
    fc_norm: Literal["none", "layer", "batch"] = "none",
    fc_dropout: float = 0.0,
    weights: FileWeights | Mapping[str, Tensor] | Literal["model"] | None = None,
    from_scratch: Sequence[str] = (),
    seed: int = 0,
    image_size: ImageSize | None = None,
) -> Net:
    """The model without its classifier, its output as a vector, and a head.

    Args:
        prefix: as `make` and `origin`, the `prefix`, `model` and `origin` of the source.
        fc: outputs of fc6, fc7 ..., with a ReLU between two; with none the embedding is the model's output.
        pool: `max` or `avg`, where the model's output is a map or tokens; None: the mean of a map, the class token,
            else the mean of the tokens. A vector has none.
        norm: as `dropout`, `fc_bias`, `fc_norm` and `fc_dropout` in `nets.assembly.Backbone.build`.
        weights: what `read_checkpoint` read, or names -> tensors, with the whole model under one prefix; "model":
            the library's own; None: everything is drawn.
        from_scratch: fully connected layers that start from their initialisation.
        seed: of drawn parameters; the global generators are not touched.
        image_size: of the images that will come; None for the model's own.

    Returns:
        Its layers are the model's blocks and `output`, its output; then those of the head.

    Raises:
        LayerprobeError: of the library's package, the name, the weights, the head or the size.
    """
    full = f"{prefix}{name}"
    fc_names = [f"fc{number}" for number in range(6, 6 + len(fc))]
    if unknown := [layer for layer in from_scratch if layer not in fc_names]:
        raise UnknownNameError("fully connected layer to train from scratch", unknown[0], fc_names)
    anew = tuple(f"{layer}." for layer in from_scratch)
    head = Head(fc, "avg", norm, dropout, fc_bias, fc_norm, fc_dropout)
    with _drawn_from(seed):
        foreign = make(name, pretrained=weights == "model", image_size=image_size)
        model = foreign.module.cpu().float()
        size = foreign.image_size or (foreign.own_input.size if foreign.own_input else NO_OWN_SIZE)
        output = measure_output(
            full,
            model,
            size,
            channels=(1, 3) if foreign.own_input and foreign.own_input.channels == 1 else (3, 1),
            final_norms=foreign.final_norms,
            prefix_tokens=foreign.prefix_tokens,
        )
        readout = Readout(full, output.layout, pool)
        new = head.children(readout.dim)
    del new["pool5"]  # the readout stands in its place
    module = nn.Sequential(OrderedDict({_MODEL: model, _READOUT: readout, **new}))
    loaded, notes = {key for key in shapes(module) if key.startswith(f"{_MODEL}.")}, foreign.notes
    if foreign.classifier:
        notes = (
            *notes,
            f"{OUTPUT} is the input of the model's classifier ({foreign.classifier}), which is left out",
        )
    if weights is None:
        loaded = set()
    elif weights != "model":
        network_shapes = shapes(module)
        weights_fit = fit_or_convert(
            weights, TargetNetwork(full, network_shapes, network_shapes.keys() - loaded, root=_MODEL), foreign.convert
        )
        tensors = {key: tensor for key, tensor in weights_fit.tensors.items() if not key.startswith(anew)}
        module.load_state_dict(with_versions(tensors, module), strict=False)
        loaded, notes = set(tensors), (*notes, *weights_fit.notes, *unused_note(network_shapes, weights_fit.left, anew))
    blocks = block_names(model)
    return Net(
        module=module,
        layers={
            **{block: f"{_MODEL}.{block}" for block in blocks},
            OUTPUT: _MODEL,
            **{name: name for name in head.layers},
        },
        embedding_dim=fc[-1] if fc else readout.dim,
        new_parameters=frozenset(name for name, _ in module.named_parameters() if name not in loaded),
        notes=notes,
        parts={submodule: f"{_MODEL}.{submodule}" for submodule in part_names(model, blocks)},
        root=_MODEL,
        image_size=size,
        channels=output.channels,
        own_input=foreign.own_input,
        final_norm=None if output.final_norm is None else f"{_MODEL}.{output.final_norm}",
        prefix_tokens=foreign.prefix_tokens,
        own_pool=True,
        versions=origin(name),
        files=foreign.files,
        own_weights=partial(_own_weights, make, name, image_size, seed),
        convert=foreign.convert,
    )


@contextlib.contextmanager
def _drawn_from(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _own_weights(
    make: Callable[..., Foreign], name: str, image_size: ImageSize | None, seed: int
) -> Mapping[str, Tensor]:
    with _drawn_from(seed):
        return make(name, pretrained=True, image_size=image_size).module.cpu().float().state_dict()
