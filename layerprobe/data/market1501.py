"""The data set `market1501`, Market-1501: people photographed by six cameras in front of a supermarket."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from layerprobe.data import annotation_files
from layerprobe.data.annotation_files import Annotations, Member
from layerprobe.data.images import is_image_name
from layerprobe.data.spec import Count, DatasetSpec
from layerprobe.data.splits import IN_GALLERY, ClassId, Dataset
from layerprobe.system.errors import DataError

# The gallery's folder has 19,732 images; 3,819 of them are junk. 750 people and the distractors are left.
_COUNTS = {"train": Count(12936, 751), "test": Count(3368, 750), "gallery": Count(15913, 751)}
_FOLDERS = {"train": "bounding_box_train", "test": "query", "gallery": "bounding_box_test"}
_NAME = "Market-1501-v15.09.15"
_PLACES = (".", _NAME, "market1501", f"market1501/{_NAME}")
_LAYOUT = f"ROOT/ or ROOT/{_NAME}/ with bounding_box_train/, query/ and bounding_box_test/"
_IMAGE = re.compile(r"(-1|\d+)_c(\d+)s\d+_\d+_\d+\.")
_JUNK, _DISTRACTOR = -1, 0


def load(root: Path, *, allow_partial: bool = False) -> Dataset:
    """The people of Market-1501 (Zheng et al., ICCV 2015), in the order of the files' names.

    A name such as `0002_c1s1_000451_03.jpg` says which person the image shows and which camera took it; the latter is
    the column `camera`. The queries are the split `test`, which is searched in the split `gallery`. Images of the
    person -1 are junk, neither right nor wrong for any query: they are excluded, and `notes` says how many. Those of
    the person 0 are distractors, wrong for every query: they stay in the gallery, as a class that no query has.

    By `data.group = "camera"`, the default here, images of a query's person that its own camera took are taken out of
    its results, as the benchmark does.

    Args:
        root: Market-1501-v15.09.15, or the folder that holds it.
    """
    return _load(root, _COUNTS, allow_partial=allow_partial)


def _load(root: Path, counts: Mapping[str, Count], *, allow_partial: bool = False) -> Dataset:
    listed, junk = _list_images(root)
    dataset = annotation_files.dataset_of(listed, counts, allow_partial=allow_partial)
    return replace(dataset, notes=(*dataset.notes, f"{junk:,} junk images left out")) if junk else dataset


def _read_annotations(root: Path) -> Annotations:
    return _list_images(root)[0]


def _list_images(root: Path) -> tuple[Annotations, int]:
    """What the names of the files say, and the number of junk images."""
    folder, junk = _folder(root), 0
    splits: dict[str, list[Member]] = {}
    cameras: dict[str, str] = {}
    for split, subfolder in _FOLDERS.items():
        splits[split] = []
        for name in sorted(path.name for path in (folder / subfolder).iterdir()):
            if not is_image_name(name):
                continue  # such as Thumbs.db, which the published archive has
            person, camera = _read(folder / subfolder, name)
            if person == _JUNK:
                junk += 1
            else:
                splits[split].append((f"{subfolder}/{name}", person))
                cameras[f"{subfolder}/{name}"] = camera
    names: Mapping[ClassId, str] = {_DISTRACTOR: "distractors"}
    return Annotations(folder, splits, names, search_in=IN_GALLERY, columns={"camera": cameras}), junk


def _folder(root: Path) -> Path:
    """The folder of the three folders."""
    if not root.is_dir():
        raise DataError("not a folder" if root.exists() else "no such folder", file=root, fix=f"Expected {_LAYOUT}")
    for subfolder in _PLACES:
        if all((root / subfolder / name).is_dir() for name in _FOLDERS.values()):
            return root / subfolder
    raise DataError(
        f"no known layout: not all of {', '.join(_FOLDERS.values())} are there", file=root, fix=f"Expected {_LAYOUT}"
    )


def _read(folder: Path, name: str) -> tuple[int, str]:
    """Person and camera of an image."""
    match = _IMAGE.match(name)
    if match is None:
        problem = "the name says neither person nor camera; expected one like 0002_c1s1_000451_03.jpg"
        raise DataError(problem, file=folder / name, fix="Remove it, or get the folder again")
    return int(match[1]), match[2]


SPEC = DatasetSpec(
    load=load,
    unchecked=annotation_files.unchecked_loader(_read_annotations),
    defaults={"group": "camera"},
    holds="Market-1501, people seen by six cameras",
    layout=_LAYOUT,
    where="https://zheng-lab.cecs.anu.edu.au/Project/project_reid.html",
    counts=_COUNTS,
)
