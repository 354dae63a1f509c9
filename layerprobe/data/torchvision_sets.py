"""The data set `torchvision`: torchvision's classification sets, divided into training and test classes."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import pickle
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.annotation_files import mark_classification
from layerprobe.data.image_files import Files, fingerprint, leaves_folder, missing_message, sizes_of, stamps_of
from layerprobe.data.spec import DatasetSpec
from layerprobe.data.splits import ArrayImages, Dataset, Split, distinct_names
from layerprobe.data.subsets import count_train_classes, divide_classes, require_no_class_chosen
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError

# Beside torch's weights, which are in hub/.
_CACHE = os.environ.get("TORCH_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "torch")


@dataclass(frozen=True)
class OfficialSet:
    """A set of torchvision.

    Args:
        splits: the official splits, all of which are joined, with torchvision's arguments for each.
    """

    classes: int
    splits: Mapping[str, Mapping[str, object]]


_TRAIN_TEST = {"train": {"train": True}, "test": {"train": False}}
_BACKGROUND = {"background": {"background": True}, "evaluation": {"background": False}}


def _split_options(*names: str) -> dict[str, dict[str, object]]:
    return {name: {"split": name} for name in names}


SETS: Mapping[str, OfficialSet] = {
    "CIFAR10": OfficialSet(10, _TRAIN_TEST),
    "CIFAR100": OfficialSet(100, _TRAIN_TEST),
    "Caltech101": OfficialSet(101, {"all": {}}),
    "Country211": OfficialSet(211, _split_options("train", "valid", "test")),
    "DTD": OfficialSet(47, _split_options("train", "val", "test")),
    "EuroSAT": OfficialSet(10, {"all": {}}),
    "FGVCAircraft": OfficialSet(100, _split_options("trainval", "test")),
    "FashionMNIST": OfficialSet(10, _TRAIN_TEST),
    "Flowers102": OfficialSet(102, _split_options("train", "val", "test")),
    "Food101": OfficialSet(101, _split_options("train", "test")),
    "Imagenette": OfficialSet(10, _split_options("train", "val")),
    "KMNIST": OfficialSet(10, _TRAIN_TEST),
    "MNIST": OfficialSet(10, _TRAIN_TEST),
    "Omniglot": OfficialSet(1623, _BACKGROUND),
    "OxfordIIITPet": OfficialSet(37, _split_options("trainval", "test")),
    "SUN397": OfficialSet(397, {"all": {}}),
}
# What torchvision raises where a set's own files are not as it expects, besides OSError.
_BAD_FILES = (RuntimeError, ValueError, KeyError, IndexError, TypeError, EOFError, pickle.UnpicklingError)


@dataclass(frozen=True, eq=False)
class _OfficialSplit:
    """An official split, of files or of arrays."""

    name: str
    classes: Sequence[str]
    labels: Sequence[int]
    paths: Sequence[str] | None  # None where it has arrays
    pixels: NDArray[np.uint8] | None  # (N, H, W, 3), or grey (N, H, W); None where it has files


def load(  # noqa: PLR0913 - its keys of [data]
    root: Path,
    *,
    set: str = "",
    train_classes: int | None = None,
    class_seed: int | None = None,
    protocol: Literal["retrieval", "classification"] = "retrieval",
    download: bool = False,
) -> Dataset:
    """A set of torchvision, with different classes for training and testing.

    All official splits are joined. The classes have torchvision's order; the first half is for training, the rest for
    testing. (Omniglot's order in torchvision is the disk's; here its background classes come first, by name, then its
    evaluation classes.) Within a class, images are sorted by id: the path below the root, or SET/SPLIT/INDEX where the
    set has no image files. torchvision checks the set's archives or lists as it always does. Nothing is written unless
    download is true.

    Args:
        set: a name of SETS, such as CIFAR100.
        train_classes: how many of the classes are for training, the rest being for testing; 0: all are for testing,
            and there is no split `train`; None: the first half, C // 2.
        class_seed: shuffles the classes before the first are taken for training; None: they keep their order.
        protocol: "classification" trains on the first official split and tests on the last, with every class in both.
    """
    classes = {"train_classes": train_classes, "class_seed": class_seed}
    dataset = load_unchecked(root, set=set, **classes, protocol=protocol, download=download)
    names = [name for split in dataset.splits.values() if isinstance(split.image, Files) for name in split.ids]
    if absent := [name for name, size in zip(names, sizes_of(root, names), strict=True) if size is None]:
        raise DataError(missing_message(absent, len(names)), file=root, fix="Get the set again")
    splits = {}
    for name, split in dataset.splits.items():
        if isinstance(split.image, ArrayImages):
            of_split = hashlib.sha256(split.image.pixels.data).hexdigest()
        else:
            of_split = fingerprint(stamps_of(root, split.ids)[:, 0].tolist())
        splits[name] = replace(split, fingerprint=of_split)
    return replace(dataset, splits=splits)


def load_unchecked(  # noqa: PLR0913 - its keys of [data]
    root: Path,
    *,
    set: str = "",
    train_classes: int | None = None,
    class_seed: int | None = None,
    protocol: Literal["retrieval", "classification"] = "retrieval",
    download: bool = False,
) -> Dataset:
    """As `load`, but image files may be missing."""
    if set not in SETS:
        raise UnknownNameError("set of torchvision", set, SETS)
    official = _official_splits(root, set, download=download)
    # By name: a class may be absent from some splits, or stand elsewhere in their order.
    names = list(dict.fromkeys(name for split in official for name in split.classes))
    numbers = {name: number for number, name in enumerate(names)}
    labels = np.array([numbers[split.classes[label]] for split in official for label in split.labels], np.int64)
    occurring, labels = np.unique(labels, return_inverse=True)
    ids = [name for split in official for name in _ids(split, root, set)]
    order = np.array(sorted(range(len(ids)), key=lambda i: (labels[i], ids[i])), np.intp)
    arrays = [split.pixels for split in official if split.pixels is not None]
    pixels = np.concatenate(arrays) if arrays else None
    if protocol == "classification":
        require_no_class_chosen(train_classes=train_classes, class_seed=class_seed)
        origin = np.repeat(np.arange(len(official)), [len(split.labels) for split in official])
        sides = [origin == 0, origin == len(official) - 1]
        if len(official) == 1 or not np.isin(labels[sides[1]], labels[sides[0]]).all():
            problem = f"data.protocol = classification: {set} has no official split with every class on both sides"
            raise RecipeError(problem, fix="Leave it out")
    else:
        count = count_train_classes(len(occurring), train_classes, set)
        sides = [np.isin(labels, side) for side in divide_classes(len(occurring), count, class_seed)]
    splits = {}
    for name, is_member in zip(("train", "test"), sides, strict=True):
        if not is_member.any():
            continue
        members = order[is_member[order]]
        chosen = tuple(ids[i] for i in members.tolist())
        image = Files(root, chosen) if pixels is None else ArrayImages(pixels[members])
        splits[name] = Split(name, labels[members], chosen, image)
    dataset = Dataset(splits, tuple(names[number] for number in occurring.tolist()))
    return mark_classification(dataset) if protocol == "classification" else dataset


def _ids(split: _OfficialSplit, root: Path, set: str) -> list[str]:
    if split.paths is None:
        # Padded with zeros, so that ids sort like the images.
        return [f"{set}/{split.name}/{index:06}" for index in range(len(split.labels))]
    ids = []
    for path in split.paths:
        relative = os.path.relpath(path, root).replace(os.sep, "/")
        if leaves_folder(relative):
            raise DataError(f"a listed path leaves the data folder: {relative!a}", file=root, fix="Get the set again")
        ids.append(relative)
    return ids


def _official_splits(root: Path, set: str, *, download: bool) -> list[_OfficialSplit]:
    from torchvision import datasets

    kind = getattr(datasets, set)
    # `str` as the loader gives paths instead of images, so that no image is read here.
    loader: dict[str, Any] = {"loader": str} if "loader" in inspect.signature(kind).parameters else {}
    absent = DataError(
        f"torchvision's {set} is not there, or not whole",
        file=root,
        fix="Name its folder by --data torchvision:SET:ROOT, or get it by --set data.download=true",
    )
    # torchvision would create Caltech101's folder before it finds it empty.
    if not download and not (root / "caltech101" if set == "Caltech101" else root).is_dir():
        raise absent
    try:
        # torchvision prints; stdout is for results.
        with contextlib.redirect_stdout(sys.stderr):
            return [
                _official_split(name, kind(root, download=download, **arguments, **loader), set)
                for name, arguments in SETS[set].splits.items()
            ]
    except (OSError, *_BAD_FILES) as error:
        reason = " ".join(str(error).split())
        if download:
            raise DataError(
                f"torchvision could not get {set} ({reason})", file=root, fix="Try again, or download it by hand"
            ) from error
        if "download=True" in reason or isinstance(error, FileNotFoundError):
            raise absent from error
        raise DataError(
            f"torchvision's {set} cannot be read ({type(error).__name__}: {reason})", file=root, fix="Get it again"
        ) from error


def _official_split(name: str, torch_set: Any, set: str) -> _OfficialSplit:
    """An official split, from torchvision's data set."""
    if hasattr(torch_set, "data"):
        # MNIST has tensors, CIFAR a view whose channels are not last in memory.
        labels, pixels = np.asarray(torch_set.targets).tolist(), np.ascontiguousarray(torch_set.data)
        return _OfficialSplit(name, _names(torch_set.classes), labels, None, pixels)
    if set == "OxfordIIITPet":
        return _OfficialSplit(
            name, _names(torch_set.classes), torch_set._labels, [str(path) for path in torch_set._images], None
        )
    if set == "Caltech101":
        folder = Path(torch_set.root, "101_ObjectCategories")
        members = zip(torch_set.index, torch_set.y, strict=True)
        paths = [str(folder / torch_set.categories[label] / f"image_{index:04}.jpg") for index, label in members]
        return _OfficialSplit(name, torch_set.categories, torch_set.y, paths, None)
    files = [torch_set[index] for index in range(len(torch_set))]
    paths = [path for path, _ in files]
    if set == "Omniglot":
        characters = ["/".join(Path(path).parts[-3:-1]) for path in paths]
        places = {character: number for number, character in enumerate(sorted({*characters}))}
        return _OfficialSplit(name, list(places), [places[character] for character in characters], paths, None)
    return _OfficialSplit(name, _names(torch_set.classes), [label for _, label in files], paths, None)


def _names(classes: Iterable[str | tuple[str, ...]]) -> tuple[str, ...]:
    """One name for each class; Imagenette has several for each, of which the first is taken."""
    return distinct_names(dict(enumerate(name if isinstance(name, str) else name[0] for name in classes)))


SPEC = DatasetSpec(
    load=load,
    unchecked=load_unchecked,
    defaults={"root": str(Path(_CACHE).expanduser().absolute() / "datasets")},
    argument="SET[:ROOT]",
    holds="torchvision's sets (classes): " + ", ".join(f"{name} ({found.classes:,})" for name, found in SETS.items()),
    layout="ROOT/ as torchvision keeps the set, beside torch's weights unless given; --set data.download=true gets it;"
    " the first half of the classes trains, the rest tests",
    where="https://docs.pytorch.org/vision/stable/datasets.html",
)
