"""Batches of images and labels from PyTorch's loaders, validated while they are read."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from layerprobe.system.arguments import require_type, wrong_type
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.system.wording import first_named

T = TypeVar("T")
# Iterates over items with a progress bar of this description.
Track = Callable[[Iterable[T], str], Iterable[T]]
ImageShape = tuple[int, int, int]  # channels, height, width
BatchOf = Callable[[Any], tuple[Any, Any]]  # what a loader gives -> (images, labels)

BATCH_SIZE = 64  # of a loader that does not say
_ALIASES = {"val": "validation"}
_IMAGES = ("pixel_values", "image", "images")  # keys of a batch that is a dict
_LABELS = ("labels", "label", "targets")
_MOST = 4  # parts of a batch that is a tuple
_READ_BY = "give batch=, a function of what the loader gives that returns (images, labels)"


@dataclass(frozen=True, eq=False)
class Batch:
    """Images with their labels.

    Args:
        images: floats (B, C, H, W), preprocessed for the network.
        labels: (B,) int64, or texts.
    """

    images: Tensor
    labels: NDArray[Any]


def named_loaders(splits: object, known: Sequence[str]) -> dict[str, Iterable[Any]]:
    """The loader of each split, in the order of the known splits; a Dataset gets one."""
    if not isinstance(splits, Mapping):
        raise wrong_type("splits", splits, 'loaders by the names of their splits, such as {"test": loader}')
    for name in splits:
        require_type("the name of a split", name, str, "text")
        if name not in (*known, *_ALIASES):
            raise UnknownNameError("split", name, known)
    given = {_ALIASES.get(name, name): loader for name, loader in splits.items()}
    if len(given) < len(splits):
        raise RecipeError("val and validation are the same split", fix="Give one of them")
    return {name: _loader(given[name], name) for name in known if name in given}


def as_loader(given: object) -> Any:
    """A loader of a Dataset, in its order; anything else as it is."""
    if isinstance(given, Dataset) and not isinstance(given, IterableDataset):
        return DataLoader(given, BATCH_SIZE)
    return given


def _loader(given: object, split: str) -> Iterable[Any]:
    if isinstance(given, Tensor | np.ndarray | str | Mapping | type) or not isinstance(given, Iterable | Dataset):
        expected = "a DataLoader, a Dataset, or batches of (images, labels)"
        raise wrong_type(f"the {split} loader", given, expected)
    loader: Iterable[Any] = as_loader(given)
    return loader


def read_batches(
    loader: Iterable[Any],
    split: str,
    shape: ImageShape | None = None,
    *,
    batch: BatchOf | None = None,
    note: Callable[[str], object] | None = None,
) -> Iterator[Batch]:
    """The batches of a loader, in one pass.

    Args:
        shape: required of all images; None for that of the first.
        batch: reads what the loader gives; None for tuples of images, labels and at most two further parts, and dicts
            with one of the usual keys for each.
        note: takes a line on parts that are ignored, at each batch.
    """
    kind = None
    for item in loader:
        given, stated = _parts(item, split, note) if batch is None else _read_by(batch, item)
        images = require_images(given, f"the {split} loader", shape)
        labels = _labels(stated, len(images), split)
        if kind not in (None, labels.dtype.kind):
            raise DataError(f"labels of the {split} loader are numbers and texts", fix="Give either")
        kind, shape = labels.dtype.kind, image_shape(images)
        yield Batch(images, labels)
    if kind is None:
        raise DataError(f"the {split} loader gives no batch", fix="Give it images")


def _read_by(batch: BatchOf, item: object) -> tuple[Any, Any]:
    pair: Any = batch(item)
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError(f"batch must return (images, labels), not {_described(pair)}")
    return pair[0], pair[1]


def _parts(item: object, split: str, note: Callable[[str], object] | None) -> tuple[Any, Any]:
    """The images and labels of a tuple or dict."""
    if isinstance(item, Mapping):
        fix = f"Let it have one for the images and one for the labels, or {_READ_BY}"
        images, labels = (_value(item, f"the {split} loader", keys, fix) for keys in (_IMAGES, _LABELS))
        return images, labels
    if not isinstance(item, tuple | list) or not 2 <= len(item) <= _MOST:
        what = f"a batch of the {split} loader is {_described(item)}"
        raise DataError(what, fix=f"Let the loader give (images, labels), or {_READ_BY}")
    images, labels, *others = item
    if others and note is not None:
        note(f"of each batch of {len(item)} parts the first two are read as images and labels, the others are ignored")
    return images, labels


def _value(item: Mapping[Any, Any], source: str, keys: Sequence[str], fix: str) -> Any:
    """The value of the one key that a dict has of some."""
    present = [key for key in keys if key in item]
    if len(present) == 1:
        return item[present[0]]
    problem = f"there is none of {', '.join(keys)}" if not present else f"{present[0]} or {present[1]}?"
    raise DataError(f"a batch of {source} is a dict of {first_named([str(key) for key in item])}: {problem}", fix=fix)


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


def _labels(labels: object, count: int, split: str) -> NDArray[Any]:
    """(B,) int64, or texts."""
    values = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if values.dtype.kind in "OU" and values.shape == (count,) and all(isinstance(x, str) for x in labels):  # type: ignore[attr-defined] # of one axis
        return values.astype(np.str_)
    if values.dtype.kind not in "iu" or values.shape != (count,):
        raise DataError(
            f"labels of the {split} loader are {values.dtype} {values.shape} for {count} images",
            fix=f"Give a whole number or a text for each image, its class; or {_READ_BY}",
        )
    if values.max() > np.iinfo(np.int64).max:
        raise DataError(
            f"labels of the {split} loader hold {values.max()} for {count} images",
            fix="Give whole numbers of 64 bits with a sign, such as int64",
        )
    return values.astype(np.int64)


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


def in_batches(images: object, batch_size: int) -> Iterator[Tensor]:
    """The images of one tensor, of a Dataset, or of batches with or without labels, in batches."""
    if isinstance(images, np.ndarray | str | Mapping | type) or not isinstance(images, Iterable | Dataset):
        raise wrong_type("images", images, "floats (N, C, H, W), a DataLoader, a Dataset, or batches")
    shape = None
    for item in images.split(batch_size) if isinstance(images, Tensor) else as_loader(images):
        batch = item[0] if isinstance(item, tuple | list) and item else item
        if isinstance(item, Mapping):
            batch = _value(item, "`images`", _IMAGES, "Let it have one for the images")
        found = require_images(batch, "`images`", shape)
        shape = image_shape(found)
        yield found
    if shape is None:
        raise DataError("`images` gives no batch", fix="Give it images")
