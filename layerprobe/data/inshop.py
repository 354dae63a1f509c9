"""In-Shop Clothes Retrieval of DeepFashion: photographs of 7,982 pieces of clothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from layerprobe.data import listed
from layerprobe.data.listed import Annotations, Count, Listed
from layerprobe.data.splits import Dataset
from layerprobe.errors import DataError

DEFAULTS: Mapping[str, object] = listed.DEFAULTS

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
    "Expected one of ROOT/Eval/list_eval_partition.txt with ROOT/Img/img/, ROOT/list_eval_partition.txt with ROOT/img/,"
    f" either in ROOT/{_HOME}/, img_highres/ instead of img/"
)


def load(root: Path, *, allow_partial: bool = False) -> Dataset:
    """The clothes of the In-Shop benchmark (DeepFashion, Liu et al., CVPR 2016), in the list's order.

    The queries are the split `test`, which is searched in the split `gallery`; an item of the training split may have
    one image. Ids are relative to the folder that img/ or img_highres/ lies in; of both, img/ is taken, unless it
    holds none of the images. A class is called by its item id. Bounding boxes are not used. Nothing is written.

    Args:
        root: the folder of Eval/ and Img/, or of list_eval_partition.txt, or the one that holds the benchmark.
        allow_partial: go on where images are missing, or the list has other rows than it says; `notes` says how many.

    Raises:
        DataError: none of the layouts, a bad list or one with other rows than it says, or images missing.
    """
    return _load(root, _COUNTS, allow_partial=allow_partial)


def _load(root: Path, counts: Mapping[str, Count], *, allow_partial: bool = False) -> Dataset:
    annotations, path = _annotated(root), _folder(root) / _LIST
    stated, rows = _stated_rows(path), sum(map(len, annotations.splits.values()))
    problem = f"{rows:,} rows where its first line says {stated:,}"
    if stated != rows and not allow_partial:
        raise DataError(
            problem,
            file=path,
            fix="Get the file again, or go on with what is there by --set data.allow_partial=true",
        )
    dataset = listed.dataset_of(annotations, counts, allow_partial=allow_partial)
    notes = () if stated == rows else (f"{_LIST}: {problem}",)
    return replace(dataset, search_in={"test": "gallery"}, notes=(*dataset.notes, *notes))


def _folder(root: Path) -> Path:
    """Where the list lies."""
    return listed.find_folder(root, _PLACES, _LIST, expected=_LAYOUT)


def _stated_rows(path: Path) -> int:
    """How many rows the list says that it has."""
    with path.open(encoding="utf-8-sig") as stream:
        text = stream.readline().strip()
    if not text.isdecimal():
        raise DataError(f"a bad line: {text[:99]!a}", file=f"{path}:1", fix="Expected the number of rows")
    return int(text)


def _annotated(root: Path) -> Annotations:
    folder = _folder(root)
    columns: Mapping[str, Callable[[str], str]] = {"image_name": str, "item_id": str, "evaluation_status": _split}
    rows = listed.read_rows(folder / _LIST, columns, above=2)
    base = folder.parent if folder.name == "Eval" else folder
    images = _images(base, [name.removeprefix("img/") for name, _, _ in rows])
    splits: dict[str, list[Listed]] = {name: [] for name in _STATUSES.values()}
    for name, item, split in rows:
        # The list says img/ whichever of the two folders lies there.
        splits[split].append((f"{images.name}/{name.removeprefix('img/')}", item))
    return Annotations(images.parent, splits, {})


def _images(base: Path, names: Sequence[str]) -> Path:
    """The first folder with an image of the list, else the first there is."""
    places = [base / place for place in _IMAGES if (base / place).is_dir()]
    # os.path: a listed path may be one that pathlib raises at.
    held = (place for place in places if any(os.path.isfile(place / name) for name in names))  # noqa: PTH113
    return next(held, places[0] if places else base / "img")


def _split(status: str) -> str:
    if status not in _STATUSES:
        raise ValueError
    return _STATUSES[status]
