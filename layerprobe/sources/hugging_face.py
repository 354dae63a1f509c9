"""Hugging Face: `hf:ORG/NAME` or `hf:FOLDER`; of a model of images and texts, the part that sees images."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import PIL.Image
import torch
from torch import Tensor, nn

from layerprobe.sources.hub import (
    Foreign,
    absent,
    first_line,
    import_package,
    quiet,
    require_named,
    require_outside_runs,
    unreachable,
    version,
)
from layerprobe.sources.source import Source, interpolation_note
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.system.files import sha256
from layerprobe.system.naming import NamedFile, keep_named, named_before, user_named
from layerprobe.values.network_input import Filter, ImageSize, OwnInput, as_size, height_width

_Found = TypeVar("_Found")
_FILTERS: dict[int, Filter] = {
    0: "nearest",
    1: "lanczos",
    2: "bilinear",
    3: "bicubic",
    4: "box",
    5: "hamming",
}  # PIL's numbers
_NAMED_FILTERS = {name: number for number, name in _FILTERS.items()}  # as torchvision names them
_FINAL_NORMS = (
    "layernorm", "norm", "post_layernorm", "vision_model.post_layernorm", "vision_model.vision_model.post_layernorm",
    "encoder.layernorm", "encoder.norm",
)  # fmt: skip
# What processors raise that take more than an image, or give something else than pixels.
_OTHER_CALLS = (ValueError, TypeError, KeyError, IndexError, RuntimeError, ImportError)
_GREY_LEVELS = 1.0  # mean difference to ours; torch's rounding of a bicubic filter on noise is below half of it
_FILES = ("config.json", "*.safetensors", "*.bin")  # of a folder: its settings, and its weights in either format
_MANY = 3  # missing tensors named in an error
# Steps of a processor that are not those of an OwnInput; where it says that it takes one, its input is not known.
_OTHER_STEPS = ("do_pad", "do_thumbnail", "do_align_long_axis", "do_flip_channel_order", "rescale_offset")


def _versions(name: str) -> dict[str, str]:  # noqa: ARG001 - the same of all models
    return version("transformers", "hf")


def _files(name: str) -> dict[str, str]:
    folder = Path(name).expanduser()
    files = sorted(path for glob in _FILES for path in folder.glob(glob)) if folder.is_dir() else []
    listed = "".join(f"{path.name} {sha256(path)}\n" for path in files)
    return {folder.resolve().name: hashlib.sha256(listed.encode()).hexdigest()[:12]} if files else {}


class VisionTower(nn.Module):
    """The part of a model of images and texts that sees images, and its projection into their common space.

    Args:
        vision_model: images -> an output with `pooler_output`.
    """

    def __init__(self, vision_model: nn.Module, visual_projection: nn.Module) -> None:
        super().__init__()
        self.vision_model, self.visual_projection = vision_model, visual_projection

    def forward(self, pixel_values: Tensor, **options: Any) -> Tensor:
        """(B, 3, H, W) -> (B, D)."""
        projected: Tensor = self.visual_projection(self.vision_model(pixel_values, **options).pooler_output)
        return projected


def _require_named_folder(name: str, folder: Path) -> None:
    """Check that the user names a folder, or has named it with the same settings: these may have others fetched."""
    settings = {str(path): sha256(path) for path in sorted(folder.glob("*.json"))}
    require_outside_runs(folder / "config.json")
    if user_named(f"hf:{name}"):
        keep_named(NamedFile(str(folder), "", settings))
    elif all(entry.modules != settings for entry in named_before(folder, "")):
        raise RecipeError(
            f"hf:{name} is a folder that you have not named", fix=f"Name it by --model {shlex.quote(f'hf:{folder}')}"
        )


def _load(name: str, content: str, load: Callable[..., _Found]) -> _Found:
    """What transformers makes of a folder, or of a repository in the local cache, fetched where it is not there."""
    folder = Path(name).expanduser()
    where = str(folder) if folder.is_dir() else name
    if folder.is_dir():
        _require_named_folder(name, folder.resolve())
    options: dict[str, Any] = {"trust_remote_code": False}
    try:
        with _silent():
            return load(where, local_files_only=True, **options)
    except OSError as error:
        if folder.is_dir():
            raise DataError(
                f"has not {content}: {first_line(error)}", file=folder, fix="Give another folder"
            ) from error
        if "/" not in name or name.count("/") > 1 or name.startswith((".", "/", "~")):
            raise DataError("no such folder", file=name, fix="Give an existing folder, or ORG/NAME") from error
        require_named(f"hf:{name}", content, name)
        reason = unreachable()
        if not reason:
            try:
                with _silent():
                    return load(where, local_files_only=False, **options)
            except (OSError, ValueError, RuntimeError) as other:
                reason = first_line(other)
        raise absent(f"hf:{name}", content, name, reason) from error
    except (ValueError, KeyError, ImportError, RuntimeError) as error:
        raise RecipeError(
            f"hf:{name} cannot be loaded: {first_line(error)}",
            fix="Give a model that transformers knows without code of the model's own, or wrap it by python:",
        ) from error


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without what transformers logs, and its progress bars."""
    logging = import_package("transformers.utils.logging", "hf")
    had_progress_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with quiet():
            yield
    finally:
        if had_progress_bars:
            logging.enable_progress_bar()


def _own_input(name: str) -> OwnInput | None:
    transformers = import_package("transformers", "hf")
    _load(name, "config.json", transformers.AutoConfig.from_pretrained)
    try:
        processor = _load(name, "preprocessor_config.json", transformers.AutoImageProcessor.from_pretrained)
    except (DataError, RecipeError):
        return None  # a folder of the model alone
    own_input = _as_input(processor)
    return own_input if own_input is not None and _is_confirmed(processor, own_input) else None


def _is_confirmed(processor: Any, own_input: OwnInput) -> bool:
    """Whether a processor makes of two images what its settings say: some kinds do something else besides.

    LeViT's resizes to 256/224 of the size that it states, EfficientNet's normalises twice, others turn RGB into BGR.
    """
    side, rng = max(height_width(own_input.resized or own_input.size)), np.random.default_rng(0)
    mean, std = (torch.tensor(channels)[:, None, None] for channels in (own_input.mean, own_input.std))
    for height, width in ((2 * side + 1, side + side // 3), (side + side // 3, 2 * side + 1)):
        image = PIL.Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
        try:
            with _silent():
                (theirs,) = processor(image, return_tensors="pt")["pixel_values"]
        except _OTHER_CALLS:
            return False
        ours = torch.from_numpy(np.array(own_input.framed(image))).permute(2, 0, 1)
        if theirs.shape != ours.shape or ((theirs * std + mean) * 255 - ours).abs().mean() > _GREY_LEVELS:
            return False
    return True


def _as_input(processor: Any) -> OwnInput | None:
    """The input that a processor of images makes; None where its steps are others than those of an OwnInput."""

    def setting(key: str) -> Any:
        return getattr(processor, key, None)

    scale = setting("rescale_factor")
    if any(setting(step) for step in _OTHER_STEPS) or not (setting("do_resize") and setting("do_rescale")):
        return None
    if scale is None or abs(scale * 255 - 1) > 1e-6 or setting("resample") is None:
        return None
    sizes = {key: value for key, value in dict(setting("size") or {}).items() if value}
    crop = dict(setting("crop_size") or {}) if setting("do_center_crop") else {}
    crop = {key: value for key, value in crop.items() if value}
    resized = _resize_sizes(sizes, setting("crop_pct"))
    if resized is None or set(crop) not in (set(), {"height", "width"}):
        return None
    side, squeezed, cropped = resized
    size = as_size(crop["height"], crop["width"]) if crop else cropped
    if size is None or any(
        crop_side > resized_side for crop_side, resized_side in zip(height_width(size), height_width(side), strict=True)
    ):
        return None  # the crop would be padded, or images have no one size
    mean, std = ((0.0,) * 3, (1.0,) * 3)
    if setting("do_normalize"):
        mean, std = (tuple(setting(key)) for key in ("image_mean", "image_std"))
    if len(mean) != 3 or len(std) != 3:
        return None
    exact = squeezed and size == side
    resample = setting("resample")
    resample = getattr(resample, "value", resample)  # of an enumeration
    number = _NAMED_FILTERS.get(resample, resample)
    if number not in _FILTERS:
        return None
    return OwnInput(
        size=size,
        resized=None if exact else side,
        filter=_FILTERS[number],
        mean=mean,
        std=std,
        crop_rounding="down",
        squeezed=squeezed and not exact,
        kept=None if squeezed else setting("crop_pct"),
    )


def _resize_sizes(sizes: dict[str, int], crop_share: float | None) -> tuple[ImageSize, bool, ImageSize | None] | None:
    """The size after resizing, whether the image is squeezed to it, and the size that the resizing itself crops to."""
    if set(sizes) == {"height", "width"}:
        squeezed_to = as_size(sizes["height"], sizes["width"])
        return squeezed_to, True, squeezed_to
    if set(sizes) != {"shortest_edge"}:
        return None
    side = sizes["shortest_edge"]
    if crop_share is None:
        return side, False, None
    return (side, True, side) if side >= 384 else (int(side / crop_share), False, side)


def _model(name: str, *, pretrained: bool, image_size: ImageSize | None) -> Foreign:
    transformers = import_package("transformers", "hf")
    config = _load(name, "config.json", transformers.AutoConfig.from_pretrained)
    with torch.device("meta"):
        kind = type(_load(name, "config.json", lambda *_, **__: transformers.AutoModel.from_config(config)))
    # A pooler is often absent from the file, and would be drawn at random.
    options = {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(kind).parameters else {}
    if pretrained:
        model, loading_info = _load(
            name, "its weights", partial(kind.from_pretrained, config=config, output_loading_info=True, **options)
        )
        if loading_info["missing_keys"]:
            missing = sorted(loading_info["missing_keys"])
            suffix = f" and {len(missing) - _MANY} more" if len(missing) > _MANY else ""
            raise DataError(
                f"hf:{name}: its weights have not {', '.join(missing[:_MANY])}{suffix}, which would be drawn at random",
                fix="Give a model whose file is complete",
            )
    else:
        with _silent():
            model = kind(config, **options)
    seeing = _vision_model(name, model, config, image_size, pretrained=pretrained)
    return replace(seeing, convert=partial(_convert, kind, config, options))


def _convert(kind: Any, config: Any, options: dict[str, Any], tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Tensors by the names in files of a model -> those that transformers makes of them, by the names of its module."""
    config = copy.deepcopy(config)
    config.dtype = torch.float32  # of the model, which else is rounded as its own weights were
    try:
        with _silent(), torch.random.fork_rng(devices=[]):
            model, loading_info = kind.from_pretrained(
                None, config=config, state_dict=dict(tensors), output_loading_info=True, ignore_mismatched_sizes=True,
                **options,
            )  # fmt: skip
    except (ValueError, LookupError, RuntimeError, TypeError):  # of other tensors than those of this kind
        return {}
    drawn = {*loading_info["missing_keys"], *(key for key, *_ in loading_info["mismatched_keys"])}
    of_model = {key: tensor for key, tensor in model.state_dict().items() if key not in drawn}
    nothing = torch.empty(0)  # a tensor without a place counts by its name
    unexpected = {
        key.removeprefix(f"{kind.base_model_prefix}."): key for key in sorted(loading_info["unexpected_keys"])
    }
    return {**{short: tensors.get(key, nothing) for short, key in unexpected.items()}, **of_model}


def _vision_model(name: str, model: Any, config: Any, image_size: ImageSize | None, *, pretrained: bool) -> Foreign:
    """The part of a model that sees images, taking images of a size."""
    if isinstance(getattr(model, "vision_model", None), nn.Module):
        config = getattr(config, "vision_config", config)
        projection = getattr(model, "visual_projection", None)
        model = VisionTower(model.vision_model, projection) if projection is not None else model.vision_model
    parameters = inspect.signature(getattr(model, "vision_model", model).forward).parameters
    if next(iter(parameters)) != "pixel_values":
        raise RecipeError(
            f"hf:{name} takes {', '.join(list(parameters)[:1])}, not images", fix="Give a model that takes pixel_values"
        )
    own_input, notes = _own_input(name), []
    stated = getattr(config, "image_size", None)
    own_size = as_size(*stated) if isinstance(stated, list | tuple) and len(stated) == 2 else stated
    own_size = own_size if isinstance(own_size, int | tuple) else None
    positions = any("position_embedding" in key for key, _ in model.named_parameters())
    if own_size is not None and image_size not in (None, own_size):
        if "interpolate_pos_encoding" in parameters:
            model.register_forward_pre_hook(_interpolate, with_kwargs=True)
        if positions and pretrained:
            notes.append(interpolation_note(f"hf:{name}", own_size, image_size or own_size))
    return Foreign(model, own_input, image_size or own_size, _FINAL_NORMS, notes=tuple(notes))


def _interpolate(_module: nn.Module, images: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return images, {**options, "interpolate_pos_encoding": True}


SOURCE = Source(prefix="hf:", model=_model, own_input=_own_input, versions=_versions, files=_files)
