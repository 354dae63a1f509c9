"""HDF5 files that other programs wrote -> their arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from layerprobe.store.hdf5 import HDF5_ERRORS, attribute, read_dataset
from layerprobe.system.errors import DataError
from layerprobe.system.memory import memory_faults_told, require_memory

Arrays = Mapping[str, NDArray[Any]]
_FIX = "Save the arrays by numpy.savez('features.npz', labels=labels, NAME=features)"


def is_feature_file(path: Path) -> bool:
    """Whether layerprobe wrote an HDF5 file, be it damaged."""
    with _open_foreign(path) as file:
        return attribute(file, "schema").isdecimal() and "layerprobe" in file.attrs


def read_arrays(path: Path) -> dict[str, NDArray[Any] | Arrays]:
    """All arrays, by their names in the order of the file: of the creation if it tracks that, else of the names.

    Text becomes an object array of str; a scalar an array without dimensions.

    Returns:
        Data sets at the top, and a mapping for each group there.

    Raises:
        DataError: groups in groups, or what is behind a link, stored in another file, or no array.
    """
    with _open_foreign(path) as file:
        items = {name: _item(file, name) for name in file}
        names = [[f"{name}/{inner}" for inner in item] if isinstance(item, h5py.Group) else [name]
                 for name, item in items.items()]  # fmt: skip
        tables = {name: _table(file, name) for of_item in names for name in of_item}
        require_memory(sum(table.nbytes for table in tables.values()), path)
        arrays: dict[str, NDArray[Any] | Arrays] = {}
        for (name, item), of_item in zip(items.items(), names, strict=True):
            values = {inner.removeprefix(f"{name}/"): _values(tables[inner]) for inner in of_item}
            arrays[name] = values if isinstance(item, h5py.Group) else values[name]
        return arrays


@contextlib.contextmanager
def _open_foreign(path: Path) -> Iterator[h5py.File]:
    """Open a file whose origin is not known; a fault of it is a DataError, which tells nobody to delete it."""
    try:
        with memory_faults_told(path), h5py.File(path, "r", locking=False) as file:
            yield file
    except PermissionError as error:
        raise DataError.unreadable(error, file=path) from error
    except HDF5_ERRORS as error:
        problem = "not a readable HDF5 file: truncated, damaged, in use or another format"
        raise DataError(problem, file=path, fix=_FIX) from error


def _item(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
    item = group[name] if isinstance(group.get(name, getlink=True), h5py.HardLink) else None
    if not isinstance(item, h5py.Group | h5py.Dataset):
        raise DataError(f"{name} is a link or a type, which is not read", file=group.file.filename, fix=_FIX)
    return item


def _table(file: h5py.File, name: str) -> h5py.Dataset:
    """A data set of numbers or texts whose bytes are all in this file."""
    outer, _, inner = name.partition("/")
    item = _item(_item(file, outer), inner) if inner else _item(file, name)
    if isinstance(item, h5py.Group):
        problem = f"{name} is a group in a group; arrays are read at the top and in one group"
        raise DataError(problem, file=file.filename, fix=_FIX)
    if item.external is not None or item.is_virtual:
        raise DataError(f"{name} is stored in another file, which is not read", file=file.filename, fix=_FIX)
    if item.shape is None or (item.dtype.kind == "O" and h5py.check_string_dtype(item.dtype) is None):
        raise DataError(f"{name} is no array of numbers or texts", file=file.filename, fix=_FIX)
    return item


def _values(table: h5py.Dataset) -> NDArray[Any]:
    if h5py.check_string_dtype(table.dtype) is None:
        return read_dataset(table)
    return np.asarray(table.asstr(errors="surrogateescape")[()], object)
