"""torchvision: `torchvision:NAME[/WEIGHTS]`, such as `torchvision:vit_b_16/IMAGENET1K_V1`; no classifier."""

from __future__ import annotations

from collections import OrderedDict
from importlib import metadata
from typing import TYPE_CHECKING, Any

from layerprobe.sources.hub import NO_OWN_SIZE, OTHER_WEIGHTS, Foreign, first_line, quiet, unknown_model, url_file
from layerprobe.sources.source import Source, interpolation_note, take_off
from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.values.network_input import ImageSize, OwnInput, size_text

if TYPE_CHECKING:
    from torch import nn

_CLASSIFIERS = ("fc", "classifier", "heads", "head")
# Their published weights expect the pixels that the network converts itself, and have classifiers inside.
_CONVERTING = {"googlenet", "inception_v3"}
_AUXILIARY = ("AuxLogits.", "aux1.", "aux2.")
_FINAL_NORMS = ("encoder.ln", "norm", "features.norm5")


def _versions(name: str) -> dict[str, str]:  # noqa: ARG001 - the same of all models
    return {"torchvision": metadata.version("torchvision")}


def _parse_name(name: str) -> tuple[str, Any]:
    """The network's name and its published weights: the named ones, else the default; None if there are none."""
    from torchvision import models

    network, slash, tag = name.partition("/")
    networks = models.list_models(module=models)
    if network not in networks:
        raise unknown_model("torchvision:", name, networks, "torchvision.models.list_models()")
    published = models.get_model_weights(network)
    if slash:
        if tag not in published.__members__ or tag == "DEFAULT":
            raise UnknownNameError(f"weights of torchvision:{network}", tag, [weights.name for weights in published])
        return network, published[tag]
    return network, getattr(published, "DEFAULT", None)


def _own_input(name: str) -> OwnInput | None:
    _, weights = _parse_name(name)
    if weights is None:
        return None
    preset = weights.transforms()
    return OwnInput(
        size=preset.crop_size[0],
        resized=preset.resize_size[0],
        filter=preset.interpolation.value,
        mean=tuple(preset.mean),
        std=tuple(preset.std),
    )


def _model(name: str, *, pretrained: bool, image_size: ImageSize | None) -> Foreign:
    from torchvision import models
    from torchvision.models.vision_transformer import interpolate_embeddings

    from layerprobe.nets.checkpoint_files import read_checkpoint
    from layerprobe.nets.fitting import with_versions

    network, weights = _parse_name(name)
    full, own_input = f"torchvision:{name}", _own_input(name)
    if pretrained and weights is None:
        raise RecipeError(f"torchvision has no weights of {network}", fix=f"Use {OTHER_WEIGHTS}")
    options: dict[str, Any] = {"weights": None}
    if network in _CONVERTING:
        options |= {"transform_input": True, "aux_logits": False, "init_weights": True}
    notes = [f"{full}: {weights.name}"] if pretrained and "/" not in name else []
    own_size: ImageSize = own_input.size if own_input else NO_OWN_SIZE
    if takes_size := network.startswith("vit_"):
        options["image_size"] = image_size or own_size
        if not isinstance(options["image_size"], int):
            problem = f"{full} takes squares alone, not images of {size_text(options['image_size'])} px"
            raise RecipeError(problem, fix="Choose a size with --set data.image_size=N")
    try:
        with quiet():
            model = models.get_model(network, **options)
    except (RuntimeError, ValueError) as error:
        problem = f"{full} cannot be built for {size_text(image_size or own_size)} px: {first_line(error)}"
        raise RecipeError(problem, fix="Choose another size with --set data.image_size=N") from error
    if pretrained:
        tensors = dict(read_checkpoint(url_file(full, weights.url)).tensors)
        if takes_size and options["image_size"] != own_size:
            notes.append(interpolation_note(full, own_size, options["image_size"]))
            tensors = dict(interpolate_embeddings(options["image_size"], model.patch_size, OrderedDict(tensors)))
        tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith(_AUXILIARY)}
        model.load_state_dict(with_versions(tensors, model))
    classifier = _take_classifier_off(model)
    return Foreign(model, own_input, image_size, _FINAL_NORMS, notes=tuple(notes), classifier=classifier)


def _take_classifier_off(model: nn.Module) -> str:
    """Put nothing in the place of the layer that gives the classes, whose path is returned; what is before it stays."""
    from torch import nn

    path = next(path for path in _CLASSIFIERS if hasattr(model, path))
    linear = [
        name
        for name, submodule in model.get_submodule(path).named_modules(prefix=path)
        if isinstance(submodule, nn.Linear)
    ]
    # SqueezeNet's is a convolution, whose input is a map.
    layer_path, instead = (linear[-1], None) if linear else (path, nn.AdaptiveAvgPool2d(1))
    take_off(model, layer_path, instead)
    return layer_path


SOURCE = Source(prefix="torchvision:", model=_model, own_input=_own_input, versions=_versions)
