"""A user's features, as arrays, with the class of each row -> one checked value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.post_processing.unfitted import unit
from layerprobe.ranking.left_out import find_divided_class
from layerprobe.system.errors import DataError, NotFiniteError, NumericError, UnknownNameError
from layerprobe.values.layers import LayerKey
from layerprobe.values.retrieval import SearchRules
from layerprobe.values.scores import SPLITS
from layerprobe.workflow.probe.identical_images import identical_rows, row_contents

LABELS, SPLIT, GROUP = ("labels", "split", "group")
_ROWS = 4096  # checked at once
_LARGEST = 1e150  # the squares of larger numbers, and of the inverse, leave float64
_POOLING = {  # dimensions -> how to make them two
    3: "Pool the tokens first, to one vector (D,) for each image, such as x.mean(1)",
    4: "Pool the maps first, to one vector (D,) for each image, such as x.mean((2, 3))",
}


@dataclass(frozen=True, eq=False)
class UserFeatures:
    """The features of one or more layers for the same N images.

    Args:
        features: layer -> (N, D), finite; in network order.
        labels: (N,) int64 class of each image.
        splits: (N,) train, validation or test; None for a single split.
        groups: (N,) int64 group of each image: images of one class and group are removed from each other's results.
            None: no groups.
        ids: the name of each image, such as its file; None: unknown.
        file: where they are from; None: from memory.
        epoch: None if unknown.
        contents: (N, 2) hash of each image; None: rows that are equal in all layers are of one image.
        clusters: (N,) the cluster of classes of each row; None: the units of intervals are the classes.
        class_names: of class 0, 1 ...; empty where labels are integers.
        cluster: what the clusters are called, such as `group`; None: the units of intervals are the classes.
    """

    features: Mapping[LayerKey, NDArray[Any]]
    labels: NDArray[np.int64]
    splits: NDArray[np.str_] | None = None
    groups: NDArray[np.int64] | None = None
    ids: tuple[str, ...] | None = None
    file: Path | None = None
    epoch: int | None = None
    notes: tuple[str, ...] = ()
    contents: NDArray[np.int64] | None = None
    clusters: NDArray[np.int64] | None = None
    class_names: tuple[str, ...] = ()
    cluster: str | None = None

    @property
    def units(self) -> NDArray[np.int64]:
        """(N,) the unit of each row that intervals leave out or resample: its cluster, else its class."""
        return self.labels if self.clusters is None else self.clusters

    def rows_of(self, split: str) -> NDArray[np.intp]:
        """The rows of a split, ascending."""
        return np.flatnonzero(self.splits == split) if self.splits is not None else np.arange(0)

    def count_lone(self, rows: NDArray[np.intp]) -> int:
        """The number of lone queries among some rows: without another one of their class to find."""
        _, class_numbers, counts = np.unique(self.labels[rows], return_inverse=True, return_counts=True)
        not_searched = np.ones_like(class_numbers)
        if self.groups is not None:
            pairs = np.stack([class_numbers, self.groups[rows]])
            _, pair, together = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
            not_searched = together[pair.ravel()]
        count = int((counts[class_numbers] == not_searched).sum())
        if count == len(rows):
            message = f"none of {count:,} rows has another row of its class to find"
            why = ": every class has one row" if (counts == 1).all() else ": all rows of a class are of one group"
            raise DataError(f"{message}{why}", file=self.file, fix="Give two rows or more of a class; check the labels")
        return count

    def find_identical(self, rows: NDArray[np.intp], folds: NDArray[np.int64] | None = None) -> NDArray[np.bool_]:
        """(Q,) whether some rows have an identical image among those that they are searched in.

        Args:
            folds: (Q,) the fold that each row is searched in; None: among all of them.
        """
        every_row = row_contents(*self.features.values()) if self.contents is None else self.contents
        contents = every_row[rows] if folds is None else np.column_stack([every_row[rows], folds])
        rules = None if self.groups is None else SearchRules(groups=self.groups[rows])
        return identical_rows(contents, self.labels[rows], rules)


def check_features(  # noqa: PLR0913 - the arrays and their file
    features: Mapping[str, Any],
    labels: Any,
    splits: Any = None,
    groups: Any = None,
    *,
    ids: Any = None,
    clusters: Any = None,
    file: Path | None = None,
) -> UserFeatures:
    """Check features in memory.

    Args:
        features: name of a layer -> (N, D) real numbers, in network order.
        labels: (N,) integers or strings, the class of each row.
        splits: (N,) strings; None for a single split.
        groups: (N,) integers or strings; each empty string is a group of its own. None for no groups.
        ids: (N,) strings, the name of each row; None for none.
        clusters: (N,) integers or strings, the cluster of classes of each row; each empty string is one of its own.
            None: classes are the units of intervals.
    """
    if not isinstance(features, Mapping) or not features:
        message = "no array of features" if isinstance(features, Mapping) else "features is not a mapping"
        raise DataError(message, file=file, fix="Give an array (N, D) for each layer, by its name")
    classes = _check_column(labels, LABELS, file)
    texts = None if splits is None else _check_column(splits, SPLIT, file)
    groups = None if groups is None else _check_column(groups, GROUP, file)
    clusters = None if clusters is None else _check_column(clusters, "clusters", file)
    names = None if ids is None else _check_column(ids, "ids", file)
    for name, values in ((SPLIT, texts), (GROUP, groups), ("clusters", clusters), ("ids", names)):
        if values is not None and len(values) != len(classes):
            raise _build_length_error(name, len(values), len(classes), file)
    checked = {}
    for name, values in features.items():
        checked[LayerKey(str(name), "none")] = _check_table(values, str(name), len(classes), names, file)
    class_names, numbers = np.unique(classes, return_inverse=True)
    user_features = UserFeatures(
        checked,
        numbers.astype(np.int64),
        None if texts is None else _check_split_names(texts, file),
        None if groups is None else _number_groups(groups),
        None if names is None else tuple(map(str, names.tolist())),
        file,
        clusters=None if clusters is None else _number_groups(clusters),
        class_names=tuple(class_names.tolist()) if class_names.dtype.kind == "U" else (),
        cluster=None if clusters is None else "clusters",
    )
    _require_classes(user_features, classes, file)
    return user_features


def _check_column(values: Any, name: str, file: Path | None) -> NDArray[Any]:
    """(N,) integers or strings, of (N,) or (N, 1)."""
    array = _convert_to_array(values, name, file)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or not len(array):
        fix = "Give one value for each row"
        fix += ", such as labels.argmax(1) of one-hot labels" if name == LABELS and array.ndim == 2 else ""
        raise DataError(f"{name} has shape {array.shape}, not (N,)", file=file, fix=fix)
    if array.dtype.kind == "f":
        array = _convert_to_integers(array, name, file)
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array.tolist()):
        array = array.astype(str)
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "surrogateescape")
    if array.dtype.kind not in "iubU" or (name == SPLIT and array.dtype.kind != "U"):
        expected = "strings" if name == SPLIT else "integers or strings"
        raise DataError(f"{name} holds {array.dtype}", file=file, fix=f"Give {expected}, one for each row")
    return array


def _convert_to_integers(values: NDArray[np.floating], name: str, file: Path | None) -> NDArray[np.int64]:
    """(N,) floats as integers, if they are exact: above the limit, neighbouring integers are one float."""
    limit = 2.0 ** min(np.finfo(values.dtype).nmant + 1, 63)
    for row in np.flatnonzero(~((np.abs(values) < limit) & (values == np.trunc(values))))[:1]:
        most = f"{limit:,.0f} (below it {values.dtype} is exact)"
        message = f"{name}[{row}] is {values[row]:g}, not an integer below {most}"
        raise DataError(message, file=file, fix="Give integers or strings, one for each row")
    return values.astype(np.int64)


def _check_table(values: Any, name: str, count: int, ids: NDArray[Any] | None, file: Path | None) -> NDArray[Any]:
    """(N, D) finite real numbers."""
    array = _convert_to_array(values, f"array {name}", file)
    if array.ndim != 2 or 0 in array.shape:
        fix = _POOLING.get(array.ndim, "Give an array (N, D) for each layer, and leave out what is none")
        raise DataError(f"array {name} has shape {array.shape}, not (N, D)", file=file, fix=fix)
    if len(array) != count:
        raise _build_length_error(f"array {name}", len(array), count, file)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        message = f"array {name} holds {array.dtype}"
        raise DataError(message, file=file, fix="Give real numbers of at most 64 bits, such as float32")
    blocks = (np.isfinite(array[start : start + _ROWS]).all(1) for start in range(0, count, _ROWS))
    bad = np.flatnonzero(~np.concatenate(list(blocks)))
    if len(bad):
        first_row = f"row {bad[0]}" + ("" if ids is None else f" ({ids[bad[0]]})")
        message = f"array {name}: {NotFiniteError(len(bad), count).message}, first in {first_row}"
        raise NumericError(message, file=file, fix="Remove the array, or compute these rows again")
    largest = max(abs(float(array.max())), abs(float(array.min())))
    if largest and not 1 / _LARGEST < largest < _LARGEST:
        message = f"array {name}: the largest number is {largest:.0e}, whose square leaves the range of float64"
        raise NumericError(message, file=file, fix="Divide the array by that")
    # torch takes neither other byte orders nor negative strides.
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))


def are_one_vector(values: NDArray[Any], rows: NDArray[np.intp]) -> bool:
    """Whether some rows have one direction, and so equal cosines, up to rounding; zero vectors are one, too."""
    rounding = 4 * float(np.finfo(values.dtype if values.dtype.kind == "f" else np.float64).eps)
    blocks = (values[rows[start : start + _ROWS]].astype(np.float64) for start in range(0, len(rows), _ROWS))
    direction = unit(torch.from_numpy(values[rows[:1]].astype(np.float64)))
    return all(unit(torch.from_numpy(block)).isclose(direction, rtol=rounding, atol=0).all() for block in blocks)


def _convert_to_array(values: Any, name: str, file: Path | None) -> NDArray[Any]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values  # which numpy has not
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:  # a sparse tensor, lists of several lengths
        raise DataError(f"{name} is no array of numbers or texts", file=file, fix="Give a dense array") from error


def _build_length_error(name: str, rows: int, count: int, file: Path | None) -> DataError:
    message = f"{name} has {rows:,} rows and labels {count:,}"
    return DataError(message, file=file, fix="Give one label for each row, and as many rows of each array")


def _check_split_names(texts: NDArray[np.str_], file: Path | None) -> NDArray[np.str_]:
    for name in np.unique(texts).tolist():
        if name not in SPLITS:
            raise UnknownNameError("split", name, SPLITS, file=file)
    return texts


def _number_groups(groups: NDArray[Any]) -> NDArray[np.int64]:
    """(N,) a number for each group, and for every empty string."""
    _, numbers = np.unique(groups, return_inverse=True)
    unnamed = groups == "" if groups.dtype.kind == "U" else np.zeros(len(groups), bool)
    return np.where(unnamed, -1 - np.arange(len(groups)), numbers.astype(np.int64))


def _require_classes(user_features: UserFeatures, classes: NDArray[Any], file: Path | None) -> None:
    """Check that every split has 2 classes and that no class is in two splits or clusters."""
    texts = np.full(len(classes), "") if user_features.splits is None else user_features.splits
    seen: dict[int, str] = {}
    for name in np.unique(texts).tolist():
        split_classes = np.unique(user_features.labels[texts == name]).tolist()
        if len(split_classes) < 2:
            where = f"the {name} rows have" if name else "labels have"
            raise DataError(f"{where} 1 class; Recall@1 needs 2", file=file, fix="Give rows of 2 classes or more")
        for label in split_classes:
            other = seen.setdefault(label, name)
            if other != name:
                called = classes[np.flatnonzero(user_features.labels == label)[0]]
                message = f"class {called} is in {other} and {name}, but no class may be in two splits"
                raise DataError(message, file=file, fix="Put all rows of a class into one split, or give no splits")
    divided = find_divided_class(user_features.labels, user_features.units)
    if divided is not None:
        called = classes[np.flatnonzero(user_features.labels == divided)[0]]
        raise DataError(f"rows of class {called} are of several clusters", file=file, fix="Give one to all its rows")
