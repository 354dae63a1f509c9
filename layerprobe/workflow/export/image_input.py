"""How a run reads an image, as the steps that `example.py` repeats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layerprobe.data.resizing import Framing
from layerprobe.nets.net import Net
from layerprobe.recipe.recipe import Recipe
from layerprobe.values.network_input import OwnInput, height_width
from layerprobe.workflow.run import from_recipe


def image_shape(recipe: Recipe, net: Net) -> tuple[int, int, int]:
    """(H, W, C) of the images that a run's network takes."""
    return *height_width(recipe.data.image_size), net.channels


def image_input(recipe: Recipe, net: Net) -> Mapping[str, Any]:
    """`input` of export.json: the type of images, and each step from a file to them.

    Normalisation and inversion are inside the exported network.
    """
    height, width, channels = image_shape(recipe, net)
    scaled = from_recipe.scaled_input(recipe) if recipe.data.transform == "model" else None
    normalise = from_recipe.build_normalise(recipe, channels)
    return {
        "dtype": "uint8",
        "layout": "BHWC",
        "size": (height, width),
        "channels": channels,
        "exif_rotation": recipe.data.exif_rotation,
        "white": recipe.data.white,
        "steps": _steps(recipe, scaled, (height, width)),
        "filter": "bilinear" if scaled is None else scaled.filter,
        "resized_by": "torch" if scaled is None and recipe.data.resize == "fast" else "PIL",
        "invert": recipe.data.invert,
        "mean": normalise.mean,
        "std": normalise.std,
    }


def _steps(recipe: Recipe, scaled: OwnInput | None, size: tuple[int, int]) -> list[Mapping[str, Any]]:
    """Resizing to (height, width) or by the shorter side, and the crop at the centre."""
    transform = recipe.data.transform
    if scaled is not None:
        if scaled.resized is None:
            return [{"resize": size}]
        crop = {"crop": size, "start": "down" if scaled.crop_rounding == "down" else "to even"}
        if scaled.squeezed:
            return [{"resize": height_width(scaled.resized)}, crop]
        if not isinstance(scaled.resized, int):
            return [{"cover": scaled.resized}, crop]
        return [{"shorter_side": scaled.resized, "longer_side": "truncated"}, crop]
    if transform == "square":
        return [{"resize": size}]
    crop = {"crop": size, "start": "down"}
    if transform == "D1":
        return [{"shorter_side": size[0], "longer_side": "rounded"}, crop]
    side = Framing(transform, size[0]).side
    return [{"resize": (side, side)}, crop]
