"""HDF5 as the store uses it: files that are distrusted when read, text that a checksum covers."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError

SCHEMA = 1
# What h5py makes of HDF5's one error, by the words in it; a damaged file gives any of them.
HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)
_FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_LINKED = "refused: links out of the file"


@contextlib.contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """A feature file of a known format to read; whatever HDF5 finds wrong with it is a DataError."""
    try:
        # No lock: a file with its final name is never written to, and network disks refuse locks.
        with h5py.File(path, "r", locking=False) as file:
            _require_format(file)
            yield file
    except FileNotFoundError as error:
        raise DataError("no such feature file", file=path, fix="Run layerprobe probe first") from error
    except HDF5_ERRORS as error:
        if disk_is_full(error):  # the disk that is copied to
            raise
        raise damaged(path, "not a readable feature file: truncated or damaged") from error


def _require_format(file: h5py.File) -> None:
    schema = attribute(file, "schema")
    if not schema.isdecimal():
        raise damaged(file.filename, "not a feature file")
    if int(schema) > SCHEMA:
        theirs, ours = attribute(file, "layerprobe"), metadata.version("layerprobe")
        what = f"written by layerprobe {theirs} (format {schema}); this is {ours} (format {SCHEMA})"
        raise DataError(what, file=file.filename, fix=f"Install layerprobe {theirs}")
    if not isinstance(file.get("features", getlink=True), h5py.HardLink):
        raise DataError(_LINKED, file=file.filename)


def stored_dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """A dataset whose bytes lie in this file: no link, external or virtual storage, nothing claimed but not there."""
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise DataError(_LINKED, file=file.filename)
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset) or dataset.external is not None or dataset.is_virtual:
        raise DataError(_LINKED, file=file.filename)
    filters = dataset.id.get_create_plist()
    checksum_only = filters.get_nfilters() == 1 and filters.get_filter(0)[0] == h5py.h5z.FILTER_FLETCHER32
    if not checksum_only or dataset.id.get_storage_size() < dataset.nbytes:
        raise damaged(file.filename, f"{name} is not stored as layerprobe stores it")
    return dataset


def damaged(path: object, what: str) -> DataError:
    """The error of a file that is of no use as it is."""
    return DataError(what, file=path, fix="Delete it; layerprobe probe computes it again")


def attribute(item: h5py.HLObject, name: str) -> str:
    """An attribute as text; empty where there is none, or none that layerprobe writes."""
    if name not in item.attrs or item.attrs.get_id(name).dtype.kind not in "iS":
        return ""
    value = item.attrs[name]
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def set_attributes(item: h5py.HLObject, facts: Mapping[str, str | int]) -> None:
    """Write texts and numbers as attributes of a file or data set."""
    for name, value in facts.items():
        item.attrs[name] = fixed_text(value) if isinstance(value, str) else value


def fixed_text(text: str | Sequence[str]) -> NDArray[np.bytes_]:
    """UTF-8 of one length: HDF5 keeps other text in a heap without checksum, and one flipped bit there can hang it."""
    # A file's name need not be UTF-8; its bytes come back as they were.
    parts = [part.encode(errors="surrogateescape") for part in ([text] if isinstance(text, str) else text)]
    encoded = np.array(parts[0] if isinstance(text, str) else parts)
    return encoded.astype(h5py.string_dtype("utf-8", max(1, encoded.itemsize)))


def disk_is_full(error: BaseException | None) -> bool:
    """Whether an error or one that it hides says so: HDF5's failure to close comes after the failed write."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL_DISK:
            return True
        error = error.__cause__ or error.__context__
    return False
