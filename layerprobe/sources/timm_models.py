"""timm: `timm:NAME`, such as `timm:vit_small_patch14_dinov2.lvd142m`; the classifier is removed."""

from __future__ import annotations

import contextlib
import inspect
import io
import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from unittest import mock

from layerprobe.sources.hub import (
    OTHER_WEIGHTS,
    Foreign,
    first_line,
    hub_file,
    import_package,
    quiet,
    unknown_model,
    url_file,
    version,
)
from layerprobe.sources.source import Source, interpolation_note
from layerprobe.system.errors import RecipeError
from layerprobe.values.network_input import ImageSize, OwnInput, as_size, size_text

if TYPE_CHECKING:
    from torch import Tensor, nn

_FILES = ("model.safetensors", "pytorch_model.bin")
_NESTED = ("state_dict", "model")  # keys of files under which the tensors may lie
_FILTERS = ("nearest", "bilinear", "bicubic", "lanczos")
# Modules that follow the last block, of transformers.
_FINAL_NORMS = ("norm", "fc_norm")
# What timm raises of a size that a model does not take.
_REFUSALS = (RuntimeError, AssertionError, ValueError, TypeError)


def _versions(name: str) -> dict[str, str]:  # noqa: ARG001 - the same of all models
    return version("timm", "timm")


def _configuration(name: str) -> Any:
    """Timm's description of a model, by its name with or without a tag."""
    timm = import_package("timm", "timm")
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture) or ":" in name or "/" in name:
        raise unknown_model("timm:", name, timm.list_models(), "timm.list_models()")
    try:
        configuration = timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        tags = timm.list_models(f"{architecture}.*", pretrained=True)
        raise RecipeError(
            f"timm:{name}: timm has no weights {tag!r} of {architecture}", fix=f"Known: {', '.join(tags) or 'none'}"
        ) from error
    return configuration or timm.models.PretrainedCfg()


def _own_input(name: str) -> OwnInput | None:
    configuration = _configuration(name).to_dict()
    data = import_package("timm.data", "timm").resolve_data_config(pretrained_cfg=configuration)
    channels, *sides = data["input_size"]
    size, crop_share = as_size(*sides), data["crop_pct"]
    squeezed = data["crop_mode"] == "squash"
    if channels not in (1, 3) or not channels == len(data["mean"]) == len(data["std"]):
        return None
    if data["interpolation"] not in _FILTERS:
        return None
    if data["crop_mode"] == "border" or crop_share > 1:  # the image is padded
        return None
    return OwnInput(
        size=size,
        resized=None if squeezed and crop_share == 1 else as_size(*(math.floor(side / crop_share) for side in sides)),
        squeezed=squeezed and crop_share != 1,
        kept=None if squeezed and crop_share == 1 else crop_share,
        filter=data["interpolation"],
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
    )


def _model(name: str, *, pretrained: bool, image_size: ImageSize | None) -> Foreign:
    timm, configuration, own_input = import_package("timm", "timm"), _configuration(name), _own_input(name)
    options: dict[str, Any] = {"num_classes": 0}
    # timm's version decides which weights a name without a tag means.
    notes = (f"timm:{name}: {configuration.tag}",) if "." not in name and configuration.tag else ()
    own_size = as_size(*configuration.input_size[1:])
    if image_size not in (None, own_size) and configuration.fixed_input_size:
        options["img_size"] = image_size
        notes = (*notes, interpolation_note(f"timm:{name}", own_size, image_size or own_size))
    if pretrained:
        options |= {"pretrained": True, "pretrained_cfg_overlay": _weights(name, configuration)}
    try:
        with quiet():
            model = timm.create_model(name, **options)
    except _REFUSALS as error:
        size = f" of {size_text(image_size or own_size)} px" if "img_size" in options else ""
        raise RecipeError(
            f"timm:{name} cannot be built{size}: {first_line(error)}",
            fix="Choose another size with --set data.image_size=N" if size else "Choose another model or other weights",
        ) from error
    model.pretrained_cfg.pop("state_dict", None)  # a second copy of all weights
    prefix = getattr(model, "num_prefix_tokens", None)
    return Foreign(
        module=model,
        own_input=own_input,
        image_size=image_size,
        final_norms=_FINAL_NORMS,
        prefix_tokens=prefix if isinstance(prefix, int) else None,
        notes=notes if pretrained else (),
        classifier=_classifier(configuration),
        convert=partial(_convert, name.partition(".")[0], model),
    )


def _convert(architecture: str, model: nn.Module, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Tensors by the names of a model's author -> by timm's, as its own filter of these weights has them."""
    convert = _filter(architecture)
    if convert is None:
        return {}
    arguments = (dict(tensors), model)[: len(inspect.signature(convert).parameters)]  # some take the tensors alone
    try:
        with quiet(), contextlib.redirect_stdout(io.StringIO()):  # some filters print
            return dict(convert(*arguments))
    except (*_REFUSALS, LookupError, AttributeError):  # of other tensors than those of this family
        return {}


@cache
def _filter(architecture: str) -> Callable[..., Any] | None:
    """The filter that timm hands to the function that loads weights, and keeps nowhere; None where there is none."""
    import torch

    timm, load_options = import_package("timm", "timm"), {}
    builder = import_package("timm.models._builder", "timm")
    instead = mock.patch.object(builder, "load_pretrained", lambda *_, **options: load_options.update(options))
    with instead, quiet(), torch.device("meta"), torch.random.fork_rng(devices=[]):
        timm.create_model(architecture, pretrained=True, num_classes=0)
    return load_options.get("filter_fn")


def _classifier(configuration: Any) -> str:
    """The path of the classifier that a model's weights come with; empty where they have none, as of DINOv2."""
    classifier = configuration.classifier if configuration.num_classes else ""
    return classifier if isinstance(classifier, str) else " and ".join(classifier or ())


def _weights(name: str, configuration: Any) -> dict[str, Any]:
    """The weights of a model as timm takes them, fetched where they are not in the local cache."""
    full = f"timm:{name}"
    if configuration.hf_hub_id:
        names = (configuration.hf_hub_filename,) if configuration.hf_hub_filename else _FILES
        path = hub_file(full, configuration.hf_hub_id, names)
    elif configuration.url:
        path = url_file(full, configuration.url)
    else:
        raise RecipeError(f"timm has no weights of {name}", fix=f"Name a model with a tag, or use {OTHER_WEIGHTS}")
    if path.suffix == ".npz":
        return {"file": str(path), "custom_load": True}
    if path.suffix == ".safetensors":
        return {"file": str(path)}
    from layerprobe.nets.checkpoint_files import read_checkpoint

    # Not every version of timm refuses the code in a file.
    tensors = read_checkpoint(path).tensors
    outer = {key.partition(".")[0] for key in tensors}
    nested = next((f"{key}." for key in _NESTED if outer == {key}), "")
    return {"state_dict": {key.removeprefix(nested): tensor for key, tensor in tensors.items()}}


SOURCE = Source(prefix="timm:", model=_model, own_input=_own_input, versions=_versions)
