"""open_clip: `open_clip:ARCH/TAG`, such as `open_clip:ViT-B-32/laion2b_s34b_b79k`; the part that sees images."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from torch import nn

from layerprobe.sources.hub import (
    OTHER_WEIGHTS,
    Foreign,
    absent,
    first_line,
    hub_file,
    import_package,
    quiet,
    require_named,
    unknown_model,
    unreachable,
    version,
)
from layerprobe.sources.source import Source, interpolation_note
from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.values.network_input import ImageSize, OwnInput, as_size, size_text

_FINAL_NORMS = ("ln_post", "trunk.norm", "trunk.fc_norm")
# The smallest text model that can be built: only the part that sees images is wanted.
_NO_TEXT = {"context_length": 2, "vocab_size": 2, "width": 8, "heads": 1, "layers": 1}
_REFUSALS = (RuntimeError, AssertionError, ValueError, TypeError, OSError)


def _versions(name: str) -> dict[str, str]:
    versions = version("open_clip_torch", "open_clip")
    # Some architectures are timm's.
    return versions | version("timm", "timm") if "timm_model_name" in _parse_name(name)[1]["vision_cfg"] else versions


def _parse_name(name: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The architecture's name, its configuration, and open_clip's description of the weights; empty without a tag."""
    open_clip = import_package("open_clip", "open_clip")
    architecture, slash, tag = name.partition("/")
    if architecture not in open_clip.list_models():
        raise unknown_model("open_clip:", name, open_clip.list_models(), "open_clip.list_models()")
    configuration = deepcopy(open_clip.get_model_config(architecture))
    if not slash:
        return architecture, configuration, {}
    weights = open_clip.get_pretrained_cfg(architecture, tag)
    if not weights:
        tags = open_clip.list_pretrained_tags_by_model(architecture)
        raise UnknownNameError(f"weights of open_clip:{architecture}", tag, tags)
    return architecture, configuration, weights


def _own_input(name: str) -> OwnInput | None:
    _, configuration, weights = _parse_name(name)
    transform = import_package("open_clip.transform", "open_clip")
    steps = transform.merge_preprocess_dict(transform.PreprocessCfg(), weights)
    stated = configuration["vision_cfg"].get("image_size", steps["size"])
    if steps["resize_mode"] == "longest":
        return None
    size = _size(stated)
    return OwnInput(
        size=size,
        resized=None if steps["resize_mode"] == "squash" else size,
        filter="bilinear" if steps["interpolation"] == "bilinear" else "bicubic",
        mean=_channels(steps["mean"]),
        std=_channels(steps["std"]),
    )


def _size(stated: int | Sequence[int]) -> ImageSize:
    return stated if isinstance(stated, int) else as_size(*stated)


def _channels(value: Any) -> tuple[float, float, float]:
    red, green, blue = value if isinstance(value, list | tuple) else (value,) * 3
    return red, green, blue


def _model(name: str, *, pretrained: bool, image_size: ImageSize | None) -> Foreign:
    open_clip = import_package("open_clip", "open_clip")
    architecture, configuration, weights = _parse_name(name)
    full, own_input = f"open_clip:{name}", _own_input(name)
    if pretrained and not weights:
        tags = open_clip.list_pretrained_tags_by_model(architecture)
        raise RecipeError(
            f"{full} names no weights", fix=f"Give {full}/TAG, or use {OTHER_WEIGHTS}. Known: {', '.join(tags)}"
        )
    file = _weights(full, weights) if pretrained else None
    # Weights that were trained with QuickGELU compute something else with GELU.
    quick = bool(configuration.get("quick_gelu") or weights.get("quick_gelu"))
    own_size = _size(configuration["vision_cfg"].get("image_size", 224))
    size = image_size or own_size
    try:
        with quiet():
            if file is None:
                model = _build_untrained(configuration, size, quick=quick)
            else:
                model = open_clip.create_model(
                    architecture, pretrained=str(file), force_quick_gelu=quick, force_image_size=size
                ).visual
    except _REFUSALS as error:
        raise RecipeError(
            f"{full} cannot be built for {size_text(size)} px: {first_line(error)}",
            fix="Choose another size with --set data.image_size=N, or another model",
        ) from error
    notes = (interpolation_note(full, own_size, size),) if pretrained and size != own_size else ()
    return Foreign(model, own_input, size, _FINAL_NORMS, notes=notes)


def _build_untrained(configuration: dict[str, Any], size: ImageSize, *, quick: bool) -> nn.Module:
    vision = {**configuration["vision_cfg"], "image_size": size, "timm_model_pretrained": False}
    model = import_package("open_clip", "open_clip").CLIP(
        configuration["embed_dim"], vision_cfg=vision, text_cfg=_NO_TEXT, quick_gelu=quick
    )
    visual: nn.Module = model.visual
    if "timm_model_name" in vision and size != _size(configuration["vision_cfg"].get("image_size", 224)):
        visual.set_input_size(size)  # type: ignore[operator] # a method of open_clip's TimmModel
    return visual


def _weights(full: str, weights: dict[str, Any]) -> Path:
    """The file of a model's weights, fetched where it is not in the local cache."""
    open_clip = import_package("open_clip", "open_clip")
    if "file" in weights:
        return Path(weights["file"])
    if weights.get("hf_hub"):
        repository, _, file = weights["hf_hub"].rpartition("/")
        default = "open_clip_pytorch_model.bin"
        safe = "open_clip_model.safetensors" if not file else f"{Path(file).stem}.safetensors"
        return hub_file(full, repository, dict.fromkeys((safe, file or default)))
    url, cache = weights["url"], Path("~/.cache/clip").expanduser()
    path = cache / Path(url).name
    if not path.exists():
        require_named(full, path.name, url)
        if reason := unreachable(url):
            raise absent(full, path.name, url, reason, cache)
    try:
        with quiet():
            return Path(open_clip.download_pretrained(weights))
    except (OSError, RuntimeError) as error:
        raise absent(full, path.name, url, first_line(error), cache) from error


SOURCE = Source(prefix="open_clip:", model=_model, own_input=_own_input, versions=_versions)
