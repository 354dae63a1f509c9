"""Batches of images and labels from PyTorch's loaders, validated while they are read."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.system.errors import DataError

T = TypeVar("T")
# Iterates over items with a progress bar of this description.
Track = Callable[[Iterable[T], str], Iterable[T]]
ImageShape = tuple[int, int, int]  # channels, height, width


@dataclass(frozen=True, eq=False)
class Batch:
    """Images with their labels.

    Args:
        images: floats (B, C, H, W), preprocessed for the network.
        labels: (B,)
    """

    images: Tensor
    labels: NDArray[np.int64]


def read_batches(loader: Iterable[Any], split: str, shape: ImageShape | None = None) -> Iterator[Batch]:
    """The batches of a loader of (images, labels), in one pass.

    Args:
        shape: required of all images; None for that of the first.
    """
    read = False
    for item in loader:
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(
                f"a batch of the {split} loader is {_described(item)}",
                fix="Let the loader give (images, labels), for example by a collate_fn",
            )
        images = require_images(item[0], f"the {split} loader", shape)
        read, shape = True, image_shape(images)
        yield Batch(images, _labels(item[1], len(images), split))
    if not read:
        raise DataError(f"the {split} loader gives no batch", fix="Give it images")


def image_shape(images: Tensor) -> ImageShape:
    """(C, H, W) of a batch."""
    channels, height, width = images.shape[1:]
    return channels, height, width


def require_images(images: object, source: str, shape: ImageShape | None = None) -> Tensor:
    """The images themselves, if they are floats (B, C, H, W).

    Args:
        shape: required (C, H, W); None for any.
    """
    fix = "Give floats (B, C, H, W), of one size and normalised as the model takes them"
    if not isinstance(images, Tensor) or images.ndim != 4 or not images.numel():
        raise DataError(f"images of {source} are {_described(images)}", fix=fix)
    if not images.is_floating_point():
        raise DataError(f"images of {source} are {images.dtype}".replace("torch.", ""), fix=fix)
    if shape not in (None, image_shape(images)):
        raise DataError(f"images of {source} are {image_shape(images)} after others of {shape}", fix=fix)
    return images


def _labels(labels: object, count: int, split: str) -> NDArray[np.int64]:
    found = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if found.dtype.kind not in "iu" or found.shape != (count,):
        raise DataError(
            f"labels of the {split} loader are {found.dtype} {found.shape} for {count} images",
            fix="Give a whole number for each image, its class",
        )
    if found.max() > np.iinfo(np.int64).max:
        raise DataError(
            f"labels of the {split} loader hold {found.max()} for {count} images",
            fix="Give whole numbers of 64 bits with a sign, such as int64",
        )
    return found.astype(np.int64)


def _described(value: object) -> str:
    """`a dict`, `a list of 3`, `float32 (8, 1, 28, 28)`."""
    if isinstance(value, Tensor | np.ndarray):
        kind = "" if isinstance(value, Tensor) else "a numpy array, "
        return f"{kind}{value.dtype} {tuple(value.shape)}".replace("torch.", "")
    many = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"a {type(value).__name__}{many}"


@contextlib.contextmanager
def progress() -> Iterator[Track[Any]]:
    """Progress bars within the block, in a terminal or notebook only."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    # rich draws in a notebook by ipywidgets, and warns where it is absent.
    widgets = console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
    shown = widgets or (console.is_terminal and not console.is_jupyter)
    with Progress(console=console, transient=True, disable=not shown) as bars:
        yield lambda items, name: bars.track(items, _length(items), description=name)


def _length(items: Iterable[Any]) -> int | None:
    try:
        return len(items)  # type: ignore[arg-type] # a loader of an iterable data set has a length that raises TypeError
    except TypeError:
        return None


def in_batches(images: Tensor | Iterable[Any], batch_size: int) -> Iterator[Tensor]:
    """The images of one tensor, or of batches with or without labels, in batches."""
    shape = None
    for item in images.split(batch_size) if isinstance(images, Tensor) else images:
        batch = item[0] if isinstance(item, tuple | list) and item else item
        found = require_images(batch, "`images`", shape)
        shape = image_shape(found)
        yield found
    if shape is None:
        raise DataError("`images` gives no batch", fix="Give it images")
