"""torchvision's classification sets, split into classes to train on and classes to test on."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import pickle
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.folder import DEFAULTS as FOLDER_DEFAULTS
from layerprobe.data.image_files import Files, file_sizes, leaves_folder, missing, sizes_of
from layerprobe.data.splits import Dataset, Image, Split
from layerprobe.errors import DataError, RecipeError, UnknownNameError

# Beside the weights, which torch keeps in hub/.
_CACHE = os.environ.get("TORCH_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "torch")
DEFAULTS: Mapping[str, object] = {**FOLDER_DEFAULTS, "root": str(Path(_CACHE).expanduser().absolute() / "datasets")}

_TRAIN_TEST = {"train": {"train": True}, "test": {"train": False}}


def _named(*names: str) -> dict[str, dict[str, object]]:
    return {name: {"split": name} for name in names}


# Set -> the official splits, all of which are joined, and torchvision's arguments for each.
SETS: Mapping[str, Mapping[str, Mapping[str, object]]] = {
    "CIFAR10": _TRAIN_TEST,
    "CIFAR100": _TRAIN_TEST,
    "Caltech101": {"all": {}},
    "Country211": _named("train", "valid", "test"),
    "DTD": _named("train", "val", "test"),
    "EuroSAT": {"all": {}},
    "FGVCAircraft": _named("trainval", "test"),
    "FashionMNIST": _TRAIN_TEST,
    "Flowers102": _named("train", "val", "test"),
    "Food101": _named("train", "test"),
    "Imagenette": _named("train", "val"),
    "KMNIST": _TRAIN_TEST,
    "MNIST": _TRAIN_TEST,
    "Omniglot": {"background": {"background": True}, "evaluation": {"background": False}},
    "OxfordIIITPet": _named("trainval", "test"),
    "SUN397": {"all": {}},
}
# What torchvision raises where a set's own files are not as it expects, beside OSError.
_BAD_FILES = (RuntimeError, ValueError, KeyError, IndexError, TypeError, EOFError, pickle.UnpicklingError)


@dataclass(frozen=True, eq=False)
class _Part:
    """An official split: of files or of arrays."""

    name: str
    classes: Sequence[str]
    labels: Sequence[int]
    paths: Sequence[str] | None
    pixels: NDArray[np.uint8] | None  # (N, H, W, 3), or grey (N, H, W)


@dataclass(frozen=True, eq=False)
class _Pixels:
    """Images that a set keeps in arrays."""

    pixels: NDArray[np.uint8]  # (N, H, W, 3), or grey (N, H, W)

    def __call__(self, index: int) -> Image:
        """The index-th image."""
        image = self.pixels[index]
        return image if image.ndim == 3 else np.repeat(image[:, :, None], 3, axis=2)


def load(root: Path, *, set: str = "", train_classes: int | None = None, download: bool = False) -> Dataset:
    """A set of torchvision's as a zero-shot retrieval set.

    All official splits are joined. The classes have torchvision's order (Omniglot's, whose order there is the disk's,
    the background's by name, then the evaluation's); the first half is trained on, the rest tested. Within a class
    images are sorted by id: the path below the root, or SET/SPLIT/INDEX where the set has no image files. torchvision
    checks the set's archives or lists as it does for everyone; nothing is written unless download is true.

    Args:
        root: the folder that torchvision knows as the set's root.
        set: a name of SETS, such as CIFAR100.
        train_classes: so many of the classes are trained on, the rest tested; None: the first half, C // 2.
        download: get the set where it is not there.

    Raises:
        UnknownNameError: no such set, or none named.
        DataError: the set is not there or not whole, cannot be got, or images are missing (all are counted, five
            named).
        RecipeError: train_classes leaves fewer than 2 classes on a side.
    """
    dataset = unchecked(root, set=set, train_classes=train_classes, download=download)
    _require_files(root, dataset)
    return replace(dataset, splits={name: _fingerprinted(split) for name, split in dataset.splits.items()})


def unchecked(root: Path, *, set: str = "", train_classes: int | None = None, download: bool = False) -> Dataset:
    """As `load`, without a look whether the images are there."""
    if set not in SETS:
        raise UnknownNameError("set of torchvision", set, SETS)
    parts = _official(root, set, download=download)
    # A class that some parts lack, or have elsewhere in their order, is the one of that name.
    numbers = {name: number for number, name in enumerate(dict.fromkeys(n for part in parts for n in part.classes))}
    labels = np.array([numbers[part.classes[label]] for part in parts for label in part.labels], np.int64)
    occurring, labels = np.unique(labels, return_inverse=True)
    count = _train_classes(len(occurring), train_classes, set)
    ids = [name for part in parts for name in _ids(part, root, set)]
    order = np.array(sorted(range(len(ids)), key=lambda i: (labels[i], ids[i])), np.intp)
    arrays = [part.pixels for part in parts if part.pixels is not None]
    pixels = np.concatenate(arrays) if arrays else None
    splits = {}
    for name, is_member in (("train", labels < count), ("test", labels >= count)):
        members = order[is_member[order]]
        chosen = tuple(ids[i] for i in members.tolist())
        image = Files(root, chosen) if pixels is None else _Pixels(pixels[members])
        splits[name] = Split(name, labels[members], chosen, image)
    names = list(numbers)
    return Dataset(splits, tuple(names[number] for number in occurring.tolist()))


def _train_classes(classes: int, asked: int | None, set: str) -> int:
    count = classes // 2 if asked is None else asked
    if classes < 4:
        raise DataError(f"{set} has {classes} classes here; 2 to train and 2 to test are needed")
    if not 2 <= count <= classes - 2:
        raise RecipeError(
            f"data.train_classes = {count}: of {set}'s {classes} classes, at least 2 must train and 2 test",
            fix=f"Give a number from 2 to {classes - 2}",
        )
    return count


def _require_files(root: Path, dataset: Dataset) -> None:
    names = [name for split in dataset.splits.values() if isinstance(split.image, Files) for name in split.ids]
    absent = [name for name, size in zip(names, sizes_of(root, names), strict=True) if size is None]
    if absent:
        raise DataError(missing(absent, len(names)), file=root, fix="Get the set again")


def _fingerprinted(split: Split) -> Split:
    if isinstance(split.image, Files):
        return replace(split, fingerprint=file_sizes(split.image.root, split.ids))
    pixels = split.image.pixels  # type: ignore[attr-defined] # the other kind
    return replace(split, fingerprint=hashlib.sha256(pixels.data).hexdigest())


def _ids(part: _Part, root: Path, set: str) -> list[str]:
    if part.paths is None:
        # Padded: an id's order is the image's.
        return [f"{set}/{part.name}/{index:06}" for index in range(len(part.labels))]
    ids = []
    for path in part.paths:
        relative = os.path.relpath(path, root).replace(os.sep, "/")
        if leaves_folder(relative):
            raise DataError(f"a listed path leaves the data folder: {relative!a}", file=root, fix="Get the set again")
        ids.append(relative)
    return ids


def _official(root: Path, set: str, *, download: bool) -> list[_Part]:
    from torchvision import datasets

    kind = getattr(datasets, set)
    # What is given to the loader is the path: no image is read here.
    loader: dict[str, Any] = {"loader": str} if "loader" in inspect.signature(kind).parameters else {}
    absent = DataError(
        f"torchvision's {set} is not there, or not whole",
        file=root,
        fix="Name its folder by --data torchvision:SET:ROOT, or get it by --set data.download=true",
    )
    # torchvision would make Caltech101's folder only to find that it is empty.
    if not download and not (root / "caltech101" if set == "Caltech101" else root).is_dir():
        raise absent
    try:
        # stdout is for results.
        with contextlib.redirect_stdout(sys.stderr):
            return [
                _part(name, kind(root, download=download, **arguments, **loader), set)
                for name, arguments in SETS[set].items()
            ]
    except (OSError, *_BAD_FILES) as error:
        reason = " ".join(str(error).split())
        if download:
            raise DataError(
                f"torchvision could not get {set} ({reason})", file=root, fix="Try again, or get it by hand"
            ) from error
        if "download=True" in reason or isinstance(error, FileNotFoundError):
            raise absent from error
        raise DataError(
            f"torchvision's {set} cannot be read ({type(error).__name__}: {reason})", file=root, fix="Get it again"
        ) from error


def _part(name: str, part: Any, set: str) -> _Part:
    """An official split as torchvision has read it."""
    if hasattr(part, "data"):
        # MNIST's are tensors, CIFAR's a view with the channels elsewhere.
        labels, pixels = np.asarray(part.targets).tolist(), np.ascontiguousarray(part.data)
        return _Part(name, _different(part.classes), labels, None, pixels)
    if set == "OxfordIIITPet":
        return _Part(name, _different(part.classes), part._labels, [str(path) for path in part._images], None)
    if set == "Caltech101":
        folder = Path(part.root, "101_ObjectCategories")
        members = zip(part.index, part.y, strict=True)
        paths = [str(folder / part.categories[label] / f"image_{index:04}.jpg") for index, label in members]
        return _Part(name, part.categories, part.y, paths, None)
    files = [part[index] for index in range(len(part))]
    paths = [path for path, _ in files]
    if set == "Omniglot":
        characters = ["/".join(Path(path).parts[-3:-1]) for path in paths]
        places = {character: place for place, character in enumerate(sorted({*characters}))}
        return _Part(name, list(places), [places[character] for character in characters], paths, None)
    return _Part(name, _different(part.classes), [label for _, label in files], paths, None)


def _different(classes: Iterable[str | tuple[str, ...]]) -> list[str]:
    """One name for each class, followed by its number where two have the same; Imagenette's have several each."""
    names = [name if isinstance(name, str) else name[0] for name in classes]
    times = Counter(names)
    return [name if times[name] == 1 else f"{name} ({number})" for number, name in enumerate(names)]
