"""Batches of PyTorch's loaders, validated while they are read, and hashes of model and images."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from layerprobe.measure.extraction import BATCH_SIZE
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError, require_type, wrong_type
from layerprobe.system.wording import first_named

EPOCH, SEED = 0, 0  # in scores: nothing is trained, and post-processing draws from this seed


@dataclass(frozen=True)
class ProbeInputs:
    """What a probe measures: a model, and the images of each split.

    Args:
        weights_sha256: hash of the module; empty where nothing is stored.
        images: split -> hash of each image and its label, in the loader's order; none where nothing is stored.
    """

    model: str
    weights_sha256: str
    images: Mapping[str, tuple[str, ...]]

    @property
    def sha256(self) -> str:
        """Hash of all of it, whatever the order of the images."""
        parts = (f"{split} {self.contents(split)}" for split in self.images)
        return hashlib.sha256("\0".join([self.model, self.weights_sha256, *parts]).encode()).hexdigest()

    def contents(self, split: str) -> str:
        """Hash of a split's images, whatever their order; empty where nothing is stored."""
        return (
            "" if not self.images[split] else hashlib.sha256("".join(sorted(self.images[split])).encode()).hexdigest()
        )

    def in_order(self, split: str) -> str:
        """Hash of a split's images in the loader's order, which is that of the features."""
        return hashlib.sha256("".join(self.images[split]).encode()).hexdigest()

    @property
    def run_name(self) -> str:
        """The name of the run, `ResNet-1a2b3c`."""
        return f"{folder_name(self.model)}-{self.sha256[:6]}"

    @property
    def experiment(self) -> str:
        """As in scores; empty where nothing is stored."""
        return self.sha256[:12] if self.weights_sha256 else ""


def folder_name(model: str) -> str:
    """A model's name with the characters that the name of a run may have."""
    return re.sub("[^A-Za-z0-9._-]+", "-", model).lstrip("._-") or "model"


def image_digests(images: Tensor, labels: NDArray[Any]) -> list[str]:
    """A hash of each image and its label."""
    rows = images.detach().cpu().contiguous().view(torch.uint8).flatten(1).numpy()
    return [
        f"{hashlib.blake2b(row.data, digest_size=16).hexdigest()} {label}\n"
        for row, label in zip(rows, labels.tolist(), strict=True)
    ]


def weights_sha256(module: nn.Module) -> str:
    """Hash of a module's `repr`, parameters and buffers.

    The `repr` belongs to it, as an activation or a stride changes features and has no parameter. Models that differ
    only in the code of a `forward` have the same hash.
    """
    # A part may print an object's address.
    digest = hashlib.sha256(re.sub(r" at 0x[0-9a-fA-F]+", "", repr(module)).encode())
    for name, value in module.state_dict().items():
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\0".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


T = TypeVar("T")
# Iterates over items with a progress bar of this description.
Track = Callable[[Iterable[T], str], Iterable[T]]
ImageShape = tuple[int, int, int]  # channels, height, width
BatchOf = Callable[[Any], tuple[Any, Any]]  # what a loader gives -> (images, labels)

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


def require_loaders(splits: object, split_names: Sequence[str]) -> dict[str, Iterable[Any]]:
    """The loader of each split, in the order of the known splits; a Dataset gets one."""
    if not isinstance(splits, Mapping):
        raise wrong_type("splits", splits, 'loaders by the names of their splits, such as {"test": loader}')
    for name in splits:
        require_type("the name of a split", name, str, "text")
        if name not in (*split_names, *_ALIASES):
            raise UnknownNameError("split", name, split_names)
    loaders = {_ALIASES.get(name, name): loader for name, loader in splits.items()}
    if len(loaders) < len(splits):
        raise RecipeError("val and validation are the same split", fix="Give one of them")
    return {name: _require_loader(loaders[name], name) for name in split_names if name in loaders}


def as_loader(images: object) -> Any:
    """A loader of a Dataset, in its order; anything else as it is."""
    if isinstance(images, Dataset) and not isinstance(images, IterableDataset):
        return DataLoader(images, BATCH_SIZE)
    return images


def _require_loader(batches: object, split: str) -> Iterable[Any]:
    if isinstance(batches, Tensor | np.ndarray | str | Mapping | type) or not isinstance(batches, Iterable | Dataset):
        expected = "a DataLoader, a Dataset, or batches of (images, labels)"
        raise wrong_type(f"the {split} loader", batches, expected)
    loader: Iterable[Any] = as_loader(batches)
    return loader


def read_batches(  # noqa: PLR0913 - a loader, how it is read, and what is shown
    loader: Iterable[Any],
    split: str,
    shape: ImageShape | None = None,
    *,
    batch: BatchOf | None = None,
    note: Callable[[str], object] | None = None,
    track: Track[Any] | None = None,
) -> Iterator[Batch]:
    """The batches of a loader, in one pass.

    Args:
        shape: required of all images; None for that of the first.
        batch: reads what the loader gives; None for tuples of images, labels and at most two further parts, and dicts
            with one of the usual keys for each.
        note: takes a line on parts that are ignored, at each batch.
        track: shows the progress.
    """
    label_kind = None
    for item in all_batches(loader, f"the {split} loader", track and track(loader, f"extracting {split}")):
        image_values, label_values = _read_parts(item, split, note) if batch is None else _read_by(batch, item)
        images = require_images(image_values, f"the {split} loader", shape)
        labels = _require_labels(label_values, len(images), split)
        if label_kind not in (None, labels.dtype.kind):
            raise DataError(f"labels of the {split} loader are numbers and texts", fix="Give either")
        label_kind, shape = labels.dtype.kind, image_shape(images)
        yield Batch(images, labels)
    if label_kind is None:
        raise DataError(f"the {split} loader gives no batch", fix="Give it images")


def all_batches(loader: Iterable[T], source: str, tracked: Iterable[T] | None = None) -> Iterator[T]:
    """What a loader gives; DataError where that is less than its length says.

    A StopIteration in the code of a data set, also in a data worker, ends the loop over a loader without an error.

    Args:
        tracked: the same, with a progress bar.
    """
    count = 0
    for item in loader if tracked is None else tracked:
        count += 1
        yield item
    # Where workers divide a stream among them, torch's length of it is an estimate.
    length = 0 if isinstance(getattr(loader, "dataset", None), IterableDataset) else _count_items(loader) or 0
    if count < length:
        problem = f"{source} ended after {count:,} of its {length:,} batches"
        raise DataError(problem, fix="Its data set may raise StopIteration; let len() be the number of batches")


def _read_by(batch: BatchOf, item: object) -> tuple[Any, Any]:
    pair: Any = batch(item)
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError(f"batch must return (images, labels), not {_describe(pair)}")
    return pair[0], pair[1]


def _read_parts(item: object, split: str, note: Callable[[str], object] | None) -> tuple[Any, Any]:
    """The images and labels of a tuple or dict."""
    if isinstance(item, Mapping):
        fix = f"Let it have one for the images and one for the labels, or {_READ_BY}"
        images, labels = (_find_value(item, f"the {split} loader", keys, fix) for keys in (_IMAGES, _LABELS))
        return images, labels
    if not isinstance(item, tuple | list) or not 2 <= len(item) <= _MOST:
        problem = f"a batch of the {split} loader is {_describe(item)}"
        raise DataError(problem, fix=f"Let the loader give (images, labels), or {_READ_BY}")
    images, labels, *ignored = item
    if ignored and note is not None:
        note(f"of each batch of {len(item)} parts the first two are read as images and labels, the others are ignored")
    return images, labels


def _find_value(item: Mapping[Any, Any], source: str, keys: Sequence[str], fix: str) -> Any:
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
        raise DataError(f"images of {source} are {_describe(images)}", fix=fix)
    if not images.is_floating_point():
        raise DataError(f"images of {source} are {images.dtype}".replace("torch.", ""), fix=fix)
    if shape not in (None, image_shape(images)):
        raise DataError(f"images of {source} are {image_shape(images)} after others of {shape}", fix=fix)
    return images


def _require_labels(labels: object, count: int, split: str) -> NDArray[Any]:
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


def _describe(value: object) -> str:
    """`a dict`, `a list of 3`, `float32 (8, 1, 28, 28)`."""
    if isinstance(value, Tensor | np.ndarray):
        library = "" if isinstance(value, Tensor) else "a numpy array, "
        return f"{library}{value.dtype} {tuple(value.shape)}".replace("torch.", "")
    length = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"a {type(value).__name__}{length}"


@contextlib.contextmanager
def progress() -> Iterator[Track[Any]]:
    """Progress bars within the block, in a terminal or notebook only."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    # rich draws in a notebook by ipywidgets, and warns where it is absent.
    widgets = console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
    interactive = widgets or (console.is_terminal and not console.is_jupyter)
    with Progress(console=console, transient=True, disable=not interactive) as bars:
        yield lambda items, name: bars.track(items, _count_items(items), description=name)


def _count_items(items: Iterable[Any]) -> int | None:
    try:
        return len(items)  # type: ignore[arg-type] # a loader of an iterable data set has a length that raises TypeError
    except TypeError:
        return None


def read_images(images: object, batch_size: int) -> Iterator[Tensor]:
    """The images of one tensor, of a Dataset, or of batches with or without labels, in batches."""
    if isinstance(images, np.ndarray | str | Mapping | type) or not isinstance(images, Iterable | Dataset):
        raise wrong_type("images", images, "floats (N, C, H, W), a DataLoader, a Dataset, or batches")
    shape = None
    batches = images.split(batch_size) if isinstance(images, Tensor) else as_loader(images)
    for item in all_batches(batches, "`images`"):
        candidate = item[0] if isinstance(item, tuple | list) and item else item
        if isinstance(item, Mapping):
            candidate = _find_value(item, "`images`", _IMAGES, "Let it have one for the images")
        batch = require_images(candidate, "`images`", shape)
        shape = image_shape(batch)
        yield batch
    if shape is None:
        raise DataError("`images` gives no batch", fix="Give it images")
