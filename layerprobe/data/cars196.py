"""The data set `cars196`: photographs of cars of 196 makes, models and years."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from layerprobe.data import annotation_files
from layerprobe.data.annotation_files import Annotations, Member
from layerprobe.data.images import is_image_name
from layerprobe.data.spec import Count, DatasetSpec
from layerprobe.data.splits import Dataset
from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file

Protocol = Literal["retrieval", "classification"]
_LAST_TRAIN_CLASS = 98
_COUNTS: Mapping[Protocol, Mapping[str, Count]] = {
    "retrieval": {"train": Count(8054, 98, (59, 97)), "test": Count(8131, 98, (48, 136))},
    "classification": {"train": Count(8144, 196), "test": Count(8041, 196)},
}
_LAYOUT = (
    "ROOT/ with cars_annos.mat and car_ims/; or devkit/, cars_test_annos_withlabels.mat, cars_train/ and cars_test/; or"
    " names.csv, anno_train.csv, anno_test.csv and car_data/; or the folders 1/ to 196/"
)
_AGAIN = "Get the file again"


@dataclass(frozen=True)
class _Car:
    name: str
    class_id: int
    in_train: bool | None  # in the official split; None where the layout does not have it


_Read = tuple[Path, list[_Car], Mapping[Any, str]]  # folder of the images, images, class id -> name


def load(root: Path, *, allow_partial: bool = False, protocol: Protocol = "retrieval") -> Dataset:
    """The cars of Cars196 (Krause et al. 2013), in the order of the annotations.

    Four layouts are known: cars_annos.mat with car_ims/; the devkit with cars_train/ and cars_test/; folders with the
    names of the classes, which names.csv numbers; and folders 1 to 196, whose classes are called by their numbers. Ids
    are relative to the folder that holds the folders of images. Bounding boxes are not used. Nothing is written.

    Args:
        protocol: "retrieval" trains on the classes 1 to 98 and tests on 99 to 196, as the papers do; "classification"
            takes the official split, in which every class is on both sides; the numbered folders do not have it.
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
    try:
        folder, cars, class_names = _reader(root)(root)
    except OSError as error:
        raise DataError.unreadable(error, file=error.filename or root) from error
    splits: dict[str, list[Member]] = {"train": [], "test": []}
    for car in cars:
        in_train = car.in_train if protocol == "classification" else car.class_id <= last_train_class
        if in_train is None:
            raise DataError(
                "folders named by number have no official split",
                file=root,
                fix="Use another layout for data.protocol = classification",
            )
        splits["train" if in_train else "test"].append((car.name, car.class_id))
    return Annotations(folder, splits, class_names)


def _reader(root: Path) -> Callable[[Path], _Read]:
    if not root.is_dir():
        raise DataError("not a folder" if root.exists() else "no such folder", file=root, fix=f"Expected {_LAYOUT}")
    if (root / "cars_annos.mat").is_file() and (root / "car_ims").is_dir():
        return _one_folder
    if (root / "devkit").is_dir():
        return _devkit
    if (root / "names.csv").is_file():
        return _read_named_folders
    if _numbers(root):
        return _read_numbered_folders
    raise DataError("no known layout", file=root, fix=f"Expected {_LAYOUT}")


def _one_folder(root: Path) -> _Read:
    path = root / "cars_annos.mat"
    rows = _records(path, "annotations", ("relative_im_path", "class", "test"))
    return root, [_Car(str(name), int(number), not tested) for name, number, tested in rows], _names(path)


def _devkit(root: Path) -> _Read:
    devkit = root / "devkit"
    tested = next((f for f in (root, devkit) if (f / "cars_test_annos_withlabels.mat").is_file()), None)
    if tested is None:
        raise DataError(
            "cars_test_annos_withlabels.mat is missing, and cars_test_annos.mat holds no classes",
            file=root,
            fix="Put it there or into devkit/",
        )
    cars = []
    for folder, path in (
        ("cars_train", devkit / "cars_train_annos.mat"),
        ("cars_test", tested / "cars_test_annos_withlabels.mat"),
    ):
        rows = _records(path, "annotations", ("fname", "class"))
        cars += [_Car(f"{folder}/{name}", int(number), folder == "cars_train") for name, number in rows]
    return root, cars, _names(devkit / "cars_meta.mat")


def _read_named_folders(root: Path) -> _Read:
    folder = next((root / p for p in ("car_data/car_data", "car_data") if (root / p / "train").is_dir()), root)
    names = {number: cells[0] for number, cells in _cells(root / "names.csv", 1)}
    cars = []
    for split in ("train", "test"):
        path = root / f"anno_{split}.csv"
        for line, (file, *_, number) in _cells(path, 6):
            if not number.isdecimal() or int(number) not in names:
                raise DataError(f"class {number!a} is not in names.csv", file=f"{path}:{line}", fix=_AGAIN)
            # One class has a slash in its name; its folder cannot have one.
            name = f"{split}/{names[int(number)].replace('/', '-')}/{file}"
            cars.append(_Car(name, int(number), split == "train"))
    return folder, cars, names


def _read_numbered_folders(root: Path) -> _Read:
    cars = [
        _Car(f"{folder.name}/{path.name}", number, None)
        for number, folder in _numbers(root)
        for path in sorted(folder.iterdir())
        if is_image_name(path.name)
    ]
    return root, cars, {}


def _numbers(root: Path) -> list[tuple[int, Path]]:
    """The folders that are named by a number, in the order of the numbers: 10 comes after 9."""
    return sorted((int(path.name), path) for path in root.iterdir() if path.name.isdecimal() and path.is_dir())


def _cells(path: Path, columns: int) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of a csv file without a header; blank lines are skipped."""
    try:
        require_file(path)
        with path.open(encoding="utf-8-sig", newline="") as stream:
            for line, cells in enumerate(csv.reader(stream), start=1):
                if not "".join(cells).strip():
                    continue
                if len(cells) != columns:
                    raise DataError(
                        f"a line of {len(cells)} cells, expected {columns}", file=f"{path}:{line}", fix=_AGAIN
                    )
                yield line, cells
    except OSError as error:
        raise DataError.unreadable(error, file=path) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"not a csv file ({error})", file=path, fix=_AGAIN) from error


def _records(path: Path, name: str, fields: Sequence[str]) -> list[tuple[Any, ...]]:
    """Some fields of each element of a struct array in which every value is an array of one element."""
    rows = _variable(path, name)
    try:
        # item() gives Python's own numbers: the classes are stored as uint8.
        return [tuple(np.ravel(row[field])[0].item() for field in fields) for row in rows]
    except (ValueError, IndexError, TypeError) as error:
        problem = f"{name} does not have {', '.join(fields)} for each image"
        raise DataError(problem, file=path, fix=_AGAIN) from error


def _names(path: Path) -> Mapping[Any, str]:
    return {number: str(np.ravel(cell)[0]) for number, cell in enumerate(_variable(path, "class_names"), start=1)}


def _variable(path: Path, name: str) -> Any:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        require_file(path)
        with path.open("rb") as stream:
            return loadmat(stream, variable_names=[name])[name].ravel()
    except FileNotFoundError as error:
        raise DataError("no such file", file=path, fix="Complete the copy") from error
    except OSError as error:
        if error.strerror:
            raise DataError.unreadable(error, file=path) from error
        # scipy's own error where a file ends too early.
        raise DataError(f"truncated or broken ({error})", file=path, fix=_AGAIN) from error
    except KeyError as error:
        raise DataError(f"holds no {name}", file=path, fix=_AGAIN) from error
    except (MatReadError, ValueError, TypeError, IndexError, NotImplementedError, zlib.error) as error:
        raise DataError(f"not a MATLAB file that can be read ({error})", file=path, fix=_AGAIN) from error


SPEC = DatasetSpec(
    load=load,
    unchecked=annotation_files.unchecked_loader(_read_annotations),
    defaults=annotation_files.DEFAULTS,
    holds="Cars196, cars",
    layout=_LAYOUT,
    where="https://ai.stanford.edu/~jkrause/cars/car_dataset.html (its downloads are gone; see pytorch/vision#7545)",
    counts=_COUNTS["retrieval"],
)
