"""What a data set should hold, from its folders or lists alone, where its loader refuses it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from layerprobe.data import folder, listed, table, torchvision_sets
from layerprobe.data.image_files import Files, require_inside
from layerprobe.data.splits import Dataset, Split
from layerprobe.registry import DATASETS

_Members = Mapping[str, Sequence[tuple[str, object]]]  # split -> name and class of each image


def every_listed(name: str, options: Mapping[str, Any]) -> Dataset | None:
    """Every image that a data set names, there or not, for a report on what is wrong with it.

    Nothing is counted or required, so that one fault does not hide the others; not fit for training.

    Args:
        name: of the data set.
        options: what its loader takes, `root` among them where it needs one.

    Returns:
        The data set; None where this one can only be read by its loader.

    Raises:
        DataError: its folder cannot be walked, its lists cannot be read, or a path leaves the data folder.
    """
    if name == "folder":
        return _folder(options["root"])
    if name == "csv":
        return _table(options["root"])
    if name == "torchvision":
        return torchvision_sets.unchecked(**options)
    module = importlib.import_module(DATASETS[name].partition(":")[0])
    return _annotated(module._annotated, options["root"]) if hasattr(module, "_annotated") else None


def _folder(root: Path) -> Dataset:
    classes = folder._classes(root)
    names = sorted(classes)
    half = len(names) // 2
    parts = {"train": names[:half], "test": names[half:]}
    members = {
        split: [(file, name) for name in part for file in sorted(classes[name])] for split, part in parts.items()
    }
    return _dataset(root, members, {})


def _table(root: Path) -> Dataset:
    rows = table._rows(root)
    members = {name: [row for row in rows if row.split == name] for name in ("train", "validation", "test")}
    search_in = {}
    if not all(row.is_query and row.is_gallery for row in members["test"]):
        members["gallery"] = [row for row in members["test"] if row.is_gallery]
        members["test"] = [row for row in members["test"] if row.is_query]
        search_in = {"test": "gallery"}
    named = {name: [(row.path, row.label) for row in found] for name, found in members.items() if found}
    return _dataset(root.parent, named, search_in)


def _annotated(read: Callable[..., listed.Annotations], root: Path) -> Dataset:
    takes = inspect.signature(read).parameters
    annotations = read(root, "retrieval") if "protocol" in takes else read(root)
    require_inside(annotations.folder, [name for split in annotations.splits.values() for name, _ in split])
    search_in = {"test": "gallery"} if "gallery" in annotations.splits else {}
    return _dataset(annotations.folder, annotations.splits, search_in, annotations.class_names)


def _dataset(
    root: Path, members: _Members, search_in: Mapping[str, str], class_names: Mapping[listed.ClassId, str] | None = None
) -> Dataset:
    numbers = {name: number for number, name in enumerate(_in_order(members.values()))}
    splits = {}
    for name, split in members.items():
        once = dict(split)  # a name that is listed twice is one image
        labels = np.array([numbers[class_id] for class_id in once.values()], np.int64)
        splits[name] = Split(name, labels, tuple(once), Files(root, tuple(once)))
    called = class_names or {}
    return Dataset(splits, tuple(called.get(name, str(name)) for name in numbers), search_in)  # type: ignore[call-overload] # ids are int or str


def _in_order(splits: Iterable[Sequence[tuple[str, object]]]) -> dict[object, None]:
    return {class_id: None for split in splits for _, class_id in split}
