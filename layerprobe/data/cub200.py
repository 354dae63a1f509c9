"""The data set `cub200`, CUB-200-2011: photographs of birds of 200 species."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from layerprobe.data import annotation_files
from layerprobe.data.annotation_files import Annotations, Member, whole_number
from layerprobe.data.spec import Count, DatasetSpec
from layerprobe.data.splits import Dataset
from layerprobe.system.errors import DataError

Protocol = Literal["retrieval", "classification"]
_LAST_TRAIN_CLASS = 100
_COUNTS: Mapping[Protocol, Mapping[str, Count]] = {
    "retrieval": {"train": Count(5864, 100, (41, 60)), "test": Count(5924, 100, (49, 60))},
    "classification": {"train": Count(5994, 200), "test": Count(5794, 200)},
}
_PLACES = (".", "CUB_200_2011", "CUB_200_2011/CUB_200_2011")
_LAYOUT = (
    "ROOT/, ROOT/CUB_200_2011/ or ROOT/CUB_200_2011/CUB_200_2011/ with images.txt, image_class_labels.txt, classes.txt"
    " and images/"
)


def load(root: Path, *, allow_partial: bool = False, protocol: Protocol = "retrieval") -> Dataset:
    """The birds of CUB-200-2011 (Wah et al. 2011), in the order of images.txt.

    Ids are relative to the folder of images.txt, wherever below the root that is. Classes are called as in classes.txt
    (`001.Black_footed_Albatross`). Bounding boxes are not used. Nothing is written.

    Args:
        root: CUB_200_2011, or the folder that holds it.
        protocol: "retrieval" trains on the classes 1 to 100 and tests on 101 to 200, as the papers do; "classification"
            takes the official split of train_test_split.txt, in which every class is on both sides.
    """
    return _load(root, _COUNTS[protocol], allow_partial=allow_partial, protocol=protocol)


def _load(
    root: Path,
    counts: Mapping[str, Count],
    *,
    last_train_class: int = _LAST_TRAIN_CLASS,
    allow_partial: bool = False,
    protocol: Protocol = "retrieval",
) -> Dataset:
    annotations = _read_annotations(root, protocol, last_train_class)
    dataset = annotation_files.dataset_of(annotations, counts, allow_partial=allow_partial)
    return annotation_files.mark_classification(dataset) if protocol == "classification" else dataset


def _read_annotations(
    root: Path, protocol: Protocol = "retrieval", last_train_class: int = _LAST_TRAIN_CLASS
) -> Annotations:
    folder = annotation_files.find_folder(root, _PLACES, "images.txt", layout=_LAYOUT)
    paths = _by_id(folder / "images.txt", {"image_id": whole_number, "path": str})
    labels = folder / "image_class_labels.txt"
    class_ids = _by_id(labels, {"image_id": whole_number, "class_id": whole_number}, required_ids=paths)
    if protocol == "classification":
        flags = {"image_id": whole_number, "is_train": _flag}
        in_train = _by_id(folder / "train_test_split.txt", flags, required_ids=paths)
    else:
        in_train = {image_id: class_id <= last_train_class for image_id, class_id in class_ids.items()}
    splits: dict[str, list[Member]] = {"train": [], "test": []}
    for image_id, path in paths.items():
        splits["train" if in_train[image_id] else "test"].append((f"images/{path}", class_ids[image_id]))
    return Annotations(folder, splits, _by_id(folder / "classes.txt", {"class_id": whole_number, "name": str}))


def _by_id(
    path: Path, columns: Mapping[str, Callable[[str], Any]], *, required_ids: Iterable[int] = ()
) -> dict[Any, Any]:
    """The second column by the first, which has to hold at least some given ids."""
    rows: dict[Any, Any] = {}
    for key, value in annotation_files.read_rows(path, columns):
        if key in rows:
            raise DataError(f"{next(iter(columns))} {key} is there twice", file=path, fix="Get the file again")
        rows[key] = value
    if absent := set(required_ids) - set(rows):
        raise DataError(f"image {min(absent)} of images.txt is not in it", file=path, fix="Get the file again")
    return rows


def _flag(cell: str) -> bool:
    if cell not in ("0", "1"):
        raise ValueError("0 or 1")
    return cell == "1"


SPEC = DatasetSpec(
    load=load,
    unchecked=annotation_files.unchecked_loader(_read_annotations),
    defaults=annotation_files.DEFAULTS,
    holds="CUB-200-2011, birds",
    layout=_LAYOUT,
    where="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    counts=_COUNTS["retrieval"],
)
