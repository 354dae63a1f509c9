"""A model of a source, with a readout and a head -> Net."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from layerprobe.nets.blocks import block_names, part_names
from layerprobe.nets.checkpoint_files import FileWeights
from layerprobe.nets.conversion import fit_or_convert
from layerprobe.nets.fitting import TargetNetwork, shapes, unused_note, with_versions
from layerprobe.nets.head import Head
from layerprobe.nets.net import Net
from layerprobe.sources.foreign import NO_OWN_SIZE, Foreign
from layerprobe.sources.readout import Readout, measure_output
from layerprobe.system.errors import UnknownNameError
from layerprobe.values.layers import OUTPUT
from layerprobe.values.network_input import ImageSize

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
    anew = _anew(from_scratch, len(fc))
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


def _anew(names: Sequence[str], layers: int) -> tuple[str, ...]:
    layer_names = [f"fc{number}" for number in range(6, 6 + layers)]
    for name in names:
        if name not in layer_names:
            raise UnknownNameError("fully connected layer to train from scratch", name, layer_names)
    return tuple(f"{name}." for name in names)
