"""Source: a library of models, or a user's file, whose models become Nets."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from layerprobe.nets.blocks import block_names, part_names
from layerprobe.nets.checkpoint_files import FileWeights
from layerprobe.nets.fitting import TargetNetwork, fit, shapes, unused, with_versions
from layerprobe.nets.head import Head
from layerprobe.nets.net import Net
from layerprobe.sources.readout import Readout, measured_output
from layerprobe.system.errors import UnknownNameError
from layerprobe.values.image_size import ImageSize, size_text
from layerprobe.values.keys import OUTPUT
from layerprobe.values.own_input import OwnInput

_MODEL, _READOUT = "model", "readout"
NO_OWN_SIZE = 224  # of a model that does not state its input


@dataclass(frozen=True, eq=False)
class Foreign:
    """A model as its library builds it.

    Args:
        module: images (B, C, H, W) -> the model's output without classifier.
        image_size: of the images that it was built for; None for its own.
        final_norms: paths of modules that may be the norm after its last block; the first that is one counts.
        prefix_tokens: how many tokens before the patches it says it has, if it says so.
        classifier: path at which the model had one, whose input its output now is; empty where it had none.
        files: of a user's own code, path from the file's folder -> SHA-256 of all that was imported from there; the
            file itself under the empty path.
    """

    module: nn.Module
    own_input: OwnInput | None = None
    image_size: ImageSize | None = None
    final_norms: tuple[str, ...] = ()
    prefix_tokens: int | None = None
    notes: tuple[str, ...] = ()
    classifier: str = ""
    files: Mapping[str, str] = field(default_factory=dict)


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

    def build(  # noqa: PLR0913 - the keys of a recipe's [net]
        self,
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
        full = f"{self.prefix}{name}"
        anew = _anew(from_scratch, len(fc))
        head = Head(fc, "avg", norm, dropout, fc_bias, fc_norm, fc_dropout)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            foreign = self.model(name, pretrained=weights == "model", image_size=image_size)
            model = foreign.module.cpu().float()
            size = foreign.image_size or (foreign.own_input.size if foreign.own_input else NO_OWN_SIZE)
            output = measured_output(
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
            own = shapes(module)
            found = fit(weights, TargetNetwork(full, own, own.keys() - loaded, root=_MODEL))
            tensors = {key: tensor for key, tensor in found.tensors.items() if not key.startswith(anew)}
            module.load_state_dict(with_versions(tensors, module), strict=False)
            loaded, notes = set(tensors), (*notes, *found.notes, *unused(own, found.left, anew))
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
            parts={part: f"{_MODEL}.{part}" for part in part_names(model, blocks)},
            root=_MODEL,
            image_size=size,
            channels=output.channels,
            own_input=foreign.own_input,
            final_norm=None if output.final_norm is None else f"{_MODEL}.{output.final_norm}",
            prefix_tokens=foreign.prefix_tokens,
            own_pool=True,
            versions=self.origin(name),
            files=foreign.files,
        )


def interpolated(name: str, own_size: ImageSize, size: ImageSize) -> str:
    """The note on a model with position embeddings that takes images of another size than its own."""
    own, other = size_text(own_size), size_text(size)
    return f"{name} is made for {own} px: its position embeddings are interpolated to {other} px"


def take_off(model: nn.Module, path: str, instead: nn.Module | None = None) -> None:
    """Put a module in the place of a classifier; None: one that gives what it takes."""
    parent, _, child = path.rpartition(".")
    setattr(model.get_submodule(parent), child, instead or nn.Identity())


def _anew(names: Sequence[str], layers: int) -> tuple[str, ...]:
    known = [f"fc{number}" for number in range(6, 6 + layers)]
    for name in names:
        if name not in known:
            raise UnknownNameError("fully connected layer to train from scratch", name, known)
    return tuple(f"{name}." for name in names)
