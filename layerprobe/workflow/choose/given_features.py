"""A user's features, as arrays or in a file, with the class of each row -> one checked value."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.reductions.l2 import unit
from layerprobe.system.errors import DataError, NotFiniteError, NumericError, RecipeError, UnknownNameError
from layerprobe.system.files import require_file
from layerprobe.system.memory import memory_faults_told, require_memory
from layerprobe.values.keys import LayerKey
from layerprobe.values.scores import SPLITS

LABELS, SPLIT, GROUP = _OWN = ("labels", "split", "group")
NPZ, H5 = SUFFIXES = (".npz", ".h5")
_ROWS = 4096  # checked at once


@dataclass(frozen=True, eq=False)
class GivenFeatures:
    """The features of one or more layers for the same N images.

    Args:
        features: layer -> (N, D), finite; in network order.
        labels: (N,) int64 class of each image.
        splits: (N,) train, validation or test; None for a single split.
        groups: (N,) int64 group of each image: images of one class and group are removed from each other's results.
            None: no groups.
        epoch: None if unknown.
    """

    features: Mapping[LayerKey, NDArray[Any]]
    labels: NDArray[np.int64]
    splits: NDArray[np.str_] | None = None
    groups: NDArray[np.int64] | None = None
    epoch: int | None = None
    notes: tuple[str, ...] = ()

    def rows_of(self, split: str) -> NDArray[np.intp]:
        """The rows of a split, ascending."""
        return np.flatnonzero(self.splits == split) if self.splits is not None else np.arange(0)

    def lone(self, rows: NDArray[np.intp]) -> int:
        """The number of lone queries among some rows: without another one of their class to find."""
        _, place, found = np.unique(self.labels[rows], return_inverse=True, return_counts=True)
        taken_out = np.ones_like(place)
        if self.groups is not None:
            pairs = np.stack([place, self.groups[rows]])
            _, pair, together = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
            taken_out = together[pair.ravel()]
        count = int((found[place] == taken_out).sum())
        if count == len(rows):
            what = f"none of {count:,} rows has another row of its class to find"
            raise DataError(what, fix="Give two rows or more of a class; check labels, and group if there is one")
        return count

    def collapsed(self, rows: NDArray[np.intp]) -> list[LayerKey]:
        """The layers in which some rows are all one vector or multiples of it, which have equal cosines."""
        return [layer for layer, values in self.features.items() if _are_one_vector(values, rows)]


def given_features(
    features: Mapping[str, Any], labels: Any, splits: Any = None, groups: Any = None, *, file: Path | None = None
) -> GivenFeatures:
    """Check features in memory.

    Args:
        features: name of a layer -> (N, D) real numbers, in network order.
        labels: (N,) integers or strings, the class of each row.
        splits: (N,) strings; None for a single split.
        groups: (N,) integers or strings; each empty string is a group of its own. None for no groups.
    """
    if not isinstance(features, Mapping) or not features:
        what = "no array of features" if isinstance(features, Mapping) else "features is not a mapping"
        raise DataError(what, file=file, fix="Give an array (N, D) for each layer, by its name")
    classes = _one_a_row(labels, LABELS, file)
    texts = None if splits is None else _one_a_row(splits, SPLIT, file)
    groups = None if groups is None else _one_a_row(groups, GROUP, file)
    for name, values in ((SPLIT, texts), (GROUP, groups)):
        if values is not None and len(values) != len(classes):
            raise _unlike(name, len(values), len(classes), file)
    checked = {}
    for name, values in features.items():
        checked[LayerKey(str(name), "none")] = _table(values, str(name), len(classes), file)
    _, numbers = np.unique(classes, return_inverse=True)
    given = GivenFeatures(
        checked,
        numbers.astype(np.int64),
        None if texts is None else _split_names(texts, file),
        None if groups is None else _group_numbers(groups),
    )
    _require_classes(given, classes, file)
    return given


def read_given(path: Path) -> GivenFeatures:
    """Read features from a file.

    Args:
        path: a .npz with `labels` (N,), optionally `split` and `group`, and an array (N, D) for each layer; or a .h5
            feature file that layerprobe wrote.
    """
    if path.suffix not in SUFFIXES:
        raise RecipeError("features are read from .npz and .h5", file=path, fix="Save them by numpy.savez")
    try:
        require_file(path)
    except FileNotFoundError as error:
        raise DataError("no such file", file=path, fix="Check the path") from error
    except OSError as error:
        raise DataError.unreadable(error, file=path) from error
    return _read_npz(path) if path.suffix == NPZ else _read_h5(path)


def _read_npz(path: Path) -> GivenFeatures:
    arrays = _arrays(path)
    if LABELS not in arrays:
        held = f"it has {', '.join(arrays)}" if arrays else "it has no array"
        raise DataError(f"no array `labels`: {held}", file=path, fix="Save the class of each row, labels (N,), with it")
    features = {name: values for name, values in arrays.items() if name not in _OWN}
    return given_features(features, arrays[LABELS], arrays.get(SPLIT), arrays.get(GROUP), file=path)


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of a .npz file in its order, without unpickling anything."""
    fix = "Save it by numpy.savez(PATH, labels=labels, NAME=features)"
    found: dict[str, NDArray[Any]] = {}
    name = ""
    try:
        with zipfile.ZipFile(path) as archive:  # np.load reads other formats, too
            for entry in archive.infolist():
                name = entry.filename.removesuffix(".npy")
                _require_claim(archive, entry)
            require_memory(sum(entry.file_size for entry in archive.infolist()), path)
        with memory_faults_told(path), np.load(path, allow_pickle=False) as stored:
            for name in stored.files:
                found[name] = stored[name]
    except PermissionError as error:
        raise DataError.unreadable(error, file=path) from error
    except (OSError, EOFError, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        raise DataError("not a readable .npz file: truncated, damaged or another format", file=path, fix=fix) from error
    except (ValueError, NotImplementedError, RuntimeError) as error:
        if "Object arrays" in str(error):
            what = f"array {name} holds Python objects, which are not read: they could run code"
            raise DataError(what, file=path, fix="Save numbers or texts, such as numpy.asarray(names, str)") from error
        raise DataError(f"array {name} cannot be read", file=path, fix=fix) from error
    return found


def _require_claim(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    """Check that an array has as many bytes as its header claims, by which numpy allocates memory."""
    with archive.open(entry) as stream:
        if (version := np.lib.format.read_magic(stream)) == (1, 0):
            shape, _, kind = np.lib.format.read_array_header_1_0(stream)
        else:
            shape, _, kind = np.lib.format.read_array_header_2_0(stream)  # also reads version 3, except names of fields
        if not kind.hasobject and stream.tell() + math.prod(shape) * kind.itemsize != entry.file_size:
            raise ValueError(f"version {version}: {shape} of {kind} in {entry.file_size} bytes")


def _read_h5(path: Path) -> GivenFeatures:
    labels, _ = store.read_index(path)
    dims = store.read_dims(path)
    layers = sorted(dims, key=lambda layer: _natural(str(layer)))
    if not layers:
        raise DataError("no features in it", file=path, fix="Run layerprobe probe, which writes them")
    require_memory(len(labels) * sum(dims.values()) * np.dtype(np.float32).itemsize, path)
    given = given_features({str(layer): store.read_features(path, layer) for layer in layers}, labels, file=path)
    features = dict(zip(layers, given.features.values(), strict=True))
    epoch = store.read_epoch(path)
    return GivenFeatures(features, given.labels, epoch=epoch, notes=("layers are in the order of their names",))


def _natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts `conv2` before `conv10`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def _one_a_row(values: Any, name: str, file: Path | None) -> NDArray[Any]:
    """(N,) integers or strings."""
    found = _array(values)
    if found.ndim != 1 or not len(found):
        raise DataError(f"{name} has shape {found.shape}, not (N,)", file=file, fix="Give one value for each row")
    if found.dtype.kind == "f":
        found = _whole(found, name, file)
    if found.dtype.kind == "O" and all(isinstance(value, str) for value in found.tolist()):
        found = found.astype(str)
    if found.dtype.kind == "S":
        found = np.char.decode(found, "utf-8", "surrogateescape")
    if found.dtype.kind not in "iubU" or (name == SPLIT and found.dtype.kind != "U"):
        expected = "strings" if name == SPLIT else "integers or strings"
        raise DataError(f"{name} holds {found.dtype}", file=file, fix=f"Give {expected}, one for each row")
    return found


def _whole(values: NDArray[np.floating], name: str, file: Path | None) -> NDArray[np.int64]:
    """(N,) floats as integers, if they are exact: above the limit, neighbouring integers are one float."""
    limit = 2.0 ** min(np.finfo(values.dtype).nmant + 1, 63)
    for row in np.flatnonzero(~((np.abs(values) < limit) & (values == np.trunc(values))))[:1]:
        most = f"{limit:,.0f} (below it {values.dtype} is exact)"
        what = f"{name}[{row}] is {values[row]:g}, not an integer below {most}"
        raise DataError(what, file=file, fix="Give integers or strings, one for each row")
    return values.astype(np.int64)


def _table(values: Any, name: str, count: int, file: Path | None) -> NDArray[Any]:
    """(N, D) finite real numbers."""
    found = _array(values)
    if found.ndim != 2 or 0 in found.shape:
        fix = "Pool maps and tokens first, to one vector (D,) for each image"
        raise DataError(f"array {name} has shape {found.shape}, not (N, D)", file=file, fix=fix)
    if len(found) != count:
        raise _unlike(f"array {name}", len(found), count, file)
    if found.dtype.kind not in "biuf" or found.dtype.itemsize > 8:
        what = f"array {name} holds {found.dtype}"
        raise DataError(what, file=file, fix="Give real numbers of at most 64 bits, such as float32")
    bad = 0
    for start in range(0, count, _ROWS):
        bad += int((~np.isfinite(found[start : start + _ROWS])).any(1).sum())
    if bad:
        what = f"array {name}: {NotFiniteError(bad, count).message}"
        raise NumericError(what, file=file, fix="Remove the array, or compute these rows again")
    # torch takes neither other byte orders nor negative strides.
    return np.ascontiguousarray(found, found.dtype.newbyteorder("="))


def _are_one_vector(values: NDArray[Any], rows: NDArray[np.intp]) -> bool:
    """Whether some rows have one direction, up to rounding of their type; zero vectors are one, too."""
    rounding = 4 * float(np.finfo(values.dtype if values.dtype.kind == "f" else np.float64).eps)
    blocks = (values[rows[start : start + _ROWS]].astype(np.float64) for start in range(0, len(rows), _ROWS))
    first = unit(torch.from_numpy(values[rows[:1]].astype(np.float64)))
    return all(unit(torch.from_numpy(block)).isclose(first, rtol=rounding, atol=0).all() for block in blocks)


def _array(values: Any) -> NDArray[Any]:
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def _unlike(name: str, found: int, count: int, file: Path | None) -> DataError:
    what = f"{name} has {found:,} rows and labels {count:,}"
    return DataError(what, file=file, fix="Give one label for each row, and as many rows of each array")


def _split_names(texts: NDArray[np.str_], file: Path | None) -> NDArray[np.str_]:
    for name in np.unique(texts).tolist():
        if name not in SPLITS:
            raise UnknownNameError("split", name, SPLITS, file=file)
    return texts


def _group_numbers(groups: NDArray[Any]) -> NDArray[np.int64]:
    """(N,) a number for each group, and for every empty string."""
    _, numbers = np.unique(groups, return_inverse=True)
    found: NDArray[np.int64] = numbers.astype(np.int64)
    return found if groups.dtype.kind != "U" else np.where(groups == "", -1 - np.arange(len(groups)), found)


def _require_classes(given: GivenFeatures, classes: NDArray[Any], file: Path | None) -> None:
    """Check that every split has 2 classes and that no class is in two."""
    texts = np.full(len(classes), "") if given.splits is None else given.splits
    seen: dict[int, str] = {}
    for name in np.unique(texts).tolist():
        found = np.unique(given.labels[texts == name]).tolist()
        if len(found) < 2:
            where = f"the {name} rows have" if name else "labels have"
            raise DataError(f"{where} 1 class; Recall@1 needs 2", file=file, fix="Give rows of 2 classes or more")
        for label in found:
            other = seen.setdefault(label, name)
            if other != name:
                called = classes[np.flatnonzero(given.labels == label)[0]]
                what = f"class {called} is in {other} and {name}, but no class may be in two splits"
                raise DataError(what, file=file, fix="Put all rows of a class into one split, or give no splits")
