"""The data set `inshop`, In-Shop Clothes Retrieval of DeepFashion: photographs of 7,982 pieces of clothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from layerprobe.data import annotation_files
from layerprobe.data.annotation_files import Annotations, Member
from layerprobe.data.spec import Count, DatasetSpec
from layerprobe.data.splits import IN_GALLERY, Dataset
from layerprobe.system.errors import DataError

_COUNTS = {
    "train": Count(25882, 3997, (1, 162)),
    "test": Count(14218, 3985, (1, 66)),
    "gallery": Count(12612, 3985, (1, 65)),
}
_STATUSES = {"train": "train", "query": "test", "gallery": "gallery"}
_LIST = "list_eval_partition.txt"
_HOME = "In-shop Clothes Retrieval Benchmark"
_PLACES = (".", "Eval", _HOME, f"{_HOME}/Eval")
# The papers use the images of 256 x 256, which lie in img.
_IMAGES = ("Img/img", "img", "Img/img_highres", "img_highres")
_LAYOUT = (
    f"ROOT/ with Eval/{_LIST} and Img/img/, or {_LIST} and img/; either may lie in ROOT/{_HOME}/, and img_highres/ may"
    " stand in for img/"
)


def load(root: Path, *, allow_partial: bool = False) -> Dataset:
    """The clothes of the In-Shop benchmark (DeepFashion, Liu et al., CVPR 2016), in the list's order.

    The queries are the split `test`, which is searched in the split `gallery`. An item of the training split may have
    a single image. Ids are relative to the folder that holds img/ or img_highres/; if both are there, img/ is taken,
    unless it holds none of the images. A class is called by its item id. Bounding boxes are not used. Nothing is
    written.
    """
    return _load(root, _COUNTS, allow_partial=allow_partial)


def _load(root: Path, counts: Mapping[str, Count], *, allow_partial: bool = False) -> Dataset:
    annotations, path = _read_annotations(root), _folder(root) / _LIST
    stated, rows = _stated_rows(path), len(annotations.names)
    problem = f"{rows:,} rows where its first line says {stated:,}"
    if stated != rows and not allow_partial:
        raise DataError(
            problem,
            file=path,
            fix="Get the file again, or use the partial copy by --set data.allow_partial=true",
        )
    dataset = annotation_files.dataset_of(annotations, counts, allow_partial=allow_partial)
    return dataset if stated == rows else replace(dataset, notes=(*dataset.notes, f"{_LIST}: {problem}"))


def _folder(root: Path) -> Path:
    """The folder of the list."""
    return annotation_files.find_folder(root, _PLACES, _LIST, layout=_LAYOUT)


def _stated_rows(path: Path) -> int:
    """The number of rows that the list's first line states."""
    with path.open(encoding="utf-8-sig") as stream:
        text = stream.readline().strip()
    if not text.isdecimal():
        problem = f"the first line is {text[:99]!a}, expected the number of rows"
        raise DataError(problem, file=f"{path}:1", fix="Get the file again")
    return int(text)


def _read_annotations(root: Path) -> Annotations:
    folder = _folder(root)
    columns: Mapping[str, Callable[[str], str]] = {"image_name": str, "item_id": str, "evaluation_status": _split}
    rows = annotation_files.read_rows(folder / _LIST, columns, above=2)
    base = folder.parent if folder.name == "Eval" else folder
    images = _images(base, [name.removeprefix("img/") for name, _, _ in rows])
    splits: dict[str, list[Member]] = {name: [] for name in _STATUSES.values()}
    for name, item, split in rows:
        # The list says img/ for either folder.
        splits[split].append((f"{images.name}/{name.removeprefix('img/')}", item))
    return Annotations(images.parent, splits, search_in=IN_GALLERY)


def _images(base: Path, names: Sequence[str]) -> Path:
    """The first folder that holds an image of the list, else the first that exists."""
    places = [base / subfolder for subfolder in _IMAGES if (base / subfolder).is_dir()]
    # os.path: pathlib raises an error for some of the paths that a list may hold.
    held = (subfolder for subfolder in places if any(os.path.isfile(subfolder / name) for name in names))  # noqa: PTH113
    return next(held, places[0] if places else base / "img")


def _split(status: str) -> str:
    if status not in _STATUSES:
        raise ValueError("train, query or gallery")
    return _STATUSES[status]


SPEC = DatasetSpec(
    load=load,
    unchecked=annotation_files.unchecked_loader(_read_annotations),
    defaults=annotation_files.DEFAULTS,
    holds="In-Shop Clothes Retrieval of DeepFashion",
    layout=_LAYOUT,
    where="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    counts=_COUNTS,
)
