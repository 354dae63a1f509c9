"""Files of a user's features -> the arrays in them by role -> one checked value; no code of a file runs."""

from __future__ import annotations

import math
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.system.files import require_file
from layerprobe.system.memory import memory_faults_told, require_memory
from layerprobe.system.wording import first_named
from layerprobe.values.intervals import PARENT
from layerprobe.values.scores import SPLITS
from layerprobe.workflow.choose.request import FEATURE_SUFFIXES, NPY
from layerprobe.workflow.choose.user_features import GROUP, LABELS, SPLIT, UserFeatures, check_features
from layerprobe.workflow.run.units import parent_units

_SAVEZ = "numpy.savez('features.npz', labels=labels, NAME=features)"
_SAVE = f"Save the arrays by {_SAVEZ}"
_H5 = (".h5", ".hdf5")
_ALSO_LABELS = ("label", "targets", "target", "y")  # what others call the labels
_ID_NAMES = ("ids", "filenames", "paths", "names", "image_names")  # of several arrays of text, the one that names rows
_IN_ORDER_OF_NAMES = "layers are in the order of their names"
_HAS_LABELS = "it has labels of its own"
# What torch raises on bytes that are no file of its own.
_NO_TORCH_FILE = (
    pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError, AssertionError,
    OverflowError, zipfile.BadZipFile,
)  # fmt: skip


def read_user_features(
    path: Path, *further: Path, labels: Path | None = None, cluster: str | None = None
) -> UserFeatures:
    """Read features from a file.

    Args:
        path: a .npz, .pt or .h5 with `labels` (N,), optionally `split` and `group`, and an array (N, D) for each layer;
            a .h5 feature file that layerprobe wrote; or a .npy of one layer, called by the file's stem.
        further: more .npy files of the same rows.
        labels: a .npy (N,), or a text file with one label a line, where `path` has none.
        cluster: the array (N,) whose values are the units of intervals, such as `group`; or `parent`, for the folder in
            the name of each class. None: the units are the classes.
    """
    if further and {file.suffix for file in (path, *further)} != {NPY}:
        raise RecipeError(f"{path} and {len(further)} more", fix="Name one file, or a .npy for each layer")
    for file in (path, *further):
        if file.suffix not in FEATURE_SUFFIXES:
            raise RecipeError(f"features are read from {', '.join(FEATURE_SUFFIXES)}", file=file, fix=_SAVE)
        _require_present(file)
    with memory_faults_told(path):
        classes = None if labels is None else _read_labels(labels)
        if path.suffix == NPY:
            return _add_parent_units(_read_npy_layers((path, *further), classes), cluster)
        if path.suffix in _H5 and store.is_feature_file(path):
            return _add_parent_units(_read_feature_file(path, classes), cluster)
        content: Mapping[Any, Any]
        if path.suffix in _H5:
            content = store.read_arrays(path)
        else:
            content = _read_npz(path) if path.suffix == ".npz" else _read_pt(path)
        return _assign_roles(_flatten(content, path), classes, path, cluster)


def _require_present(path: Path) -> None:
    try:
        require_file(path)
    except FileNotFoundError as error:
        raise DataError("no such file", file=path, fix="Check the path") from error
    except OSError as error:
        raise DataError.unreadable(error, file=path) from error


def _read_npy_layers(paths: tuple[Path, ...], classes: NDArray[Any] | None) -> UserFeatures:
    """A layer of each file."""
    if classes is None:
        raise DataError("it has no labels beside it", file=paths[0], fix=f"Name their file by --labels. {_SAVE}")
    features = {path.stem: _read_npy(path) for path in paths}
    if len(features) < len(paths):
        raise RecipeError("two files have one name, which is their layer's", file=paths[0], fix="Rename one")
    return check_features(features, classes, file=paths[0] if len(paths) == 1 else paths[0].absolute().parent)


def _add_parent_units(user_features: UserFeatures, cluster: str | None, columns: Sequence[str] = ()) -> UserFeatures:
    """The features with the folders of their classes as units, if these are asked for.

    Args:
        columns: the arrays that may be named instead.
    """
    _require_column(cluster, columns, user_features.file)
    if cluster != PARENT or user_features.clusters is not None:
        return user_features
    names = [
        user_features.class_names[label] if user_features.class_names else "" for label in user_features.labels.tolist()
    ]
    return replace(user_features, clusters=parent_units(names, columns), cluster=cluster)


def _require_column(cluster: str | None, columns: Sequence[str], file: Path | None) -> None:
    if cluster not in (None, PARENT, *columns):
        raise UnknownNameError("array in --cluster:", str(cluster), [*columns, PARENT], file=file)


def _assign_roles(
    arrays: Mapping[str, Any], classes: NDArray[Any] | None, path: Path, cluster: str | None
) -> UserFeatures:
    """The layers, labels, splits, groups, ids and clusters among named arrays, by their names and shapes."""
    # The rows of an expanded tensor share their bytes in the file.
    expanded = [
        tensor.nbytes for tensor in arrays.values() if isinstance(tensor, torch.Tensor) and not tensor.is_contiguous()
    ]
    require_memory(sum(expanded), path)
    apart = [name for name, values in arrays.items() if not _has_rows(values)]
    remaining = {name: values for name, values in arrays.items() if name not in apart}
    sorts = path.suffix in _H5 and list(remaining) == sorted(remaining)  # as HDF5 does unless it tracks the order
    remaining = dict(sorted(remaining.items(), key=lambda item: _natural_key(item[0]))) if sorts else remaining
    labels_name = _find_labels_name(remaining)
    if classes is not None and labels_name is not None:
        raise RecipeError(_HAS_LABELS, file=path, fix="Leave out --labels")
    if labels_name is not None:
        classes = remaining.pop(labels_name)
    elif classes is None:
        held = (
            f"it has {first_named([_format_shape(*item) for item in remaining.items()])}"
            if remaining
            else "it has no array"
        )
        fix = f"Save the class of each row with it, as by {_SAVEZ}, or name their file by --labels"
        raise DataError(f"no array `labels`: {held}", file=path, fix=fix)
    notes = [f"labels are `{labels_name}`"] if labels_name not in (LABELS, None) else []
    columns = [name for name, values in remaining.items() if name != SPLIT and _is_column(values)]
    _require_column(cluster, columns, path)
    clusters = remaining[cluster] if cluster in columns else None
    if cluster in columns and cluster != GROUP:  # which says, too, what images may find
        del remaining[cluster]
    splits, groups = remaining.pop(SPLIT, None), remaining.pop(GROUP, None)
    texts = {name: remaining.pop(name) for name in [name for name, values in remaining.items() if _is_text(values)]}
    apart += [name for name, values in texts.items() if len(values) != len(classes)]  # such as the names of the classes
    ids = _find_ids({name: values for name, values in texts.items() if name not in apart}, path)
    notes += [f"left out: {first_named(apart)}"] if apart else []
    notes += [_IN_ORDER_OF_NAMES] if sorts and len(remaining) > 1 else []
    user_features = check_features(remaining, classes, splits, groups, ids=ids, clusters=clusters, file=path)
    user_features = replace(user_features, notes=tuple(notes), cluster=cluster if clusters is not None else None)
    return _add_parent_units(user_features, cluster, columns)


def _flatten(content: Mapping[Any, Any], path: Path) -> dict[str, Any]:
    """The arrays at the top and in a single group, or dict, beside them."""
    groups = [name for name, values in content.items() if isinstance(values, Mapping)]
    inner = [name for group in groups for name, values in content[group].items() if isinstance(values, Mapping)]
    top = {str(name): values for name, values in content.items() if name not in groups}
    if len(groups) > 1 or inner:
        message = f"arrays are in several groups: {first_named([str(name) for name in (*groups, *inner)])}"
        raise DataError(message, file=path, fix=_SAVE)
    grouped = {str(name): values for group in groups for name, values in content[group].items()}
    if twice := sorted(top.keys() & grouped.keys()):
        raise DataError(f"two arrays are called {twice[0]}", file=path, fix=_SAVE)
    # In the place of the group, so that the order of layers is the file's.
    return {inner: values for name, entry in content.items()
            for inner, values in (grouped if name in groups else {str(name): entry}).items()}  # fmt: skip


def _find_labels_name(arrays: Mapping[str, Any]) -> str | None:
    if LABELS in arrays:
        return LABELS
    synonyms = [name for name, values in arrays.items() if name.lower() in _ALSO_LABELS and _is_column(values)]
    return synonyms[0] if len(synonyms) == 1 else None


def _find_ids(texts: Mapping[str, Any], path: Path) -> Any:
    """The array of text that names the rows; None without any."""
    for name, values in texts.items():
        if set(np.ravel(np.asarray(values, str)).tolist()) <= {*SPLITS, "val"}:
            raise DataError(f"{name} has the names of splits", file=path, fix="Call it `split`, or leave it out")
    id_names = [name for name in texts if name.lower() in _ID_NAMES or len(texts) == 1]
    if texts and len(id_names) != 1:
        fix = "Call the one that names the rows `ids`, or leave the others out"
        raise DataError(f"several arrays of text: {first_named(list(texts))}", file=path, fix=fix)
    return texts[id_names[0]] if id_names else None


def _is_text(values: Any) -> bool:
    """Whether an array (N,) or (N, 1) is of texts."""
    if not _is_column(values) or isinstance(values, torch.Tensor):
        return False
    values = np.asarray(values)
    return values.dtype.kind in "SU" or all(isinstance(value, str) for value in values.ravel().tolist())


def _is_column(values: Any) -> bool:
    """Whether an array is (N,) or (N, 1), or a list of single values."""
    if isinstance(values, list | tuple):
        return not any(hasattr(value, "__len__") and not isinstance(value, str) for value in values)
    return len(values) > 0 and math.prod(values.shape) == len(values)


def _has_rows(values: Any) -> bool:
    """Whether it is an array or a list, not a single number or text beside them."""
    return isinstance(values, list | tuple) or bool(getattr(values, "ndim", 0))


def _format_shape(name: str, values: Any) -> str:
    return f"{name} {tuple(getattr(values, 'shape', (len(values),)))}"


def _read_labels(path: Path) -> NDArray[Any]:
    """(N,) labels of a .npy, or the lines of a text file."""
    _require_present(path)
    if path.suffix == NPY:
        return _read_npy(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        message = "labels are neither a .npy nor text in UTF-8"
        raise DataError(message, file=path, fix="Save them by numpy.save, or as one label a line") from error
    texts = [line.strip() for line in lines]
    if "" in texts:
        raise DataError("no label", file=f"{path}:{texts.index('') + 1}", fix="Write one label a line")
    return np.array(texts)


def _read_npy(path: Path) -> NDArray[Any]:
    try:
        mapped = np.lib.format.open_memmap(path, mode="r")  # compares the header's claim with the size of the file
        require_memory(mapped.nbytes, path)
        return np.array(mapped)
    except PermissionError as error:
        raise DataError.unreadable(error, file=path) from error
    except (OSError, EOFError, ValueError) as error:
        raise _build_read_error(path, path.stem, error) from error


def _build_read_error(path: Path, name: str, error: Exception) -> DataError:
    if "Object arrays" in str(error) or "Python objects" in str(error):
        message = f"array {name} holds Python objects, which are not read: they could run code"
        return DataError(message, file=path, fix="Save numbers or texts, such as numpy.asarray(names, str)")
    return DataError(f"array {name} cannot be read", file=path, fix=_SAVE)


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of a .npz file in its order, without unpickling anything."""
    arrays: dict[str, NDArray[Any]] = {}
    name = ""
    try:
        with zipfile.ZipFile(path) as archive:  # np.load reads other formats, too
            for entry in archive.infolist():
                name = entry.filename.removesuffix(".npy")
                _require_claim(archive, entry)
            require_memory(sum(entry.file_size for entry in archive.infolist()), path)
        with memory_faults_told(path), np.load(path, allow_pickle=False) as stored:
            for name in stored.files:
                arrays[name] = stored[name]
    except PermissionError as error:
        raise DataError.unreadable(error, file=path) from error
    except (OSError, EOFError, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        message = "not a readable .npz file: truncated, damaged or another format"
        raise DataError(message, file=path, fix=_SAVE) from error
    except (ValueError, NotImplementedError, RuntimeError) as error:
        raise _build_read_error(path, name, error) from error
    return arrays


def _require_claim(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    """Check that an array has as many bytes as its header claims, by which numpy allocates memory."""
    with archive.open(entry) as stream:
        if (version := np.lib.format.read_magic(stream)) == (1, 0):
            shape, _, kind = np.lib.format.read_array_header_1_0(stream)
        else:
            shape, _, kind = np.lib.format.read_array_header_2_0(stream)  # also reads version 3, except names of fields
        if not kind.hasobject and stream.tell() + math.prod(shape) * kind.itemsize != entry.file_size:
            raise ValueError(f"version {version}: {shape} of {kind} in {entry.file_size} bytes")


def _read_pt(path: Path) -> Mapping[Any, Any]:
    """The dict in a file of torch.save, or its only tensor by the file's stem."""
    try:
        require_memory(path.stat().st_size, path)
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                require_memory(sum(entry.file_size for entry in archive.infolist()), path)
        with warnings.catch_warnings(action="ignore"), torch.serialization.safe_globals(_list_numpy_types()):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except PermissionError as error:
        raise DataError.unreadable(error, file=path) from error
    except _NO_TORCH_FILE as error:
        # torch's own message recommends disabling the protection.
        code = re.search(r"GLOBAL ([\w.]+)", str(error))
        message = (
            f"holds Python objects ({code[1]}), which are not read: they could run code" if code
            else "not a readable file of torch.save: truncated, damaged or another format"
        )  # fmt: skip
        raise DataError(message, file=path, fix=_SAVE) from error
    content = {path.stem: content} if isinstance(content, torch.Tensor) else content
    if isinstance(content, Mapping):
        tensors = [
            value for part in (content, *content.values()) if isinstance(part, Mapping) for value in part.values()
        ]
        if any(isinstance(value, torch.Tensor) and value.is_nested for value in tensors):
            raise DataError("holds a nested tensor, whose rows differ in length", file=path, fix=_SAVE)
        return content
    message = f"holds a {type(content).__name__}, not a dict of tensors by name"
    raise DataError(message, file=path, fix=_SAVE)


def _list_numpy_types() -> list[Any]:
    """What a pickle of a numpy array or number of its own types calls, by the names of numpy 1 and 2."""
    rebuild, number = np.zeros(1).__reduce__()[0], np.float32(0).__reduce__()[0]
    functions = {"_reconstruct": rebuild, "scalar": number}
    called = [(function, f"numpy.{core}.multiarray.{name}")
              for name, function in functions.items() for core in ("core", "_core")]  # fmt: skip
    kinds = [type(np.dtype(code)) for code in "?bhilqBHILQefdUS"]
    return [*called, np.ndarray, np.dtype, *kinds]


def _read_feature_file(path: Path, classes: NDArray[Any] | None) -> UserFeatures:
    if classes is not None:
        raise RecipeError(_HAS_LABELS, file=path, fix="Leave out --labels")
    head = store.read_feature_head(path)
    labels, ids = head.rows
    with store.open_feature_file(path) as file:
        layers = sorted(file.layers, key=lambda layer: _natural_key(str(layer)))
        if not layers:
            raise DataError("no features in it", file=path, fix="Run layerprobe probe, which writes them")
        dims = [file.table(layer).shape[1] for layer in layers]
        require_memory(len(labels) * sum(dims) * np.dtype(np.float32).itemsize, path)
        arrays = {str(layer): file.read(layer) for layer in layers}
    user_features = check_features(arrays, labels, ids=ids, file=path)
    features = dict(zip(layers, user_features.features.values(), strict=True))
    names, epoch = head.class_names, int(head.facts["epoch"])
    class_names = tuple(names[label] for label in np.unique(labels).tolist()) if names else ()
    return replace(user_features, features=features, epoch=epoch, notes=(_IN_ORDER_OF_NAMES,), class_names=class_names)


def _natural_key(text: str) -> list[tuple[int, str]]:
    """A key that sorts `conv2` before `conv10`."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", text)]
