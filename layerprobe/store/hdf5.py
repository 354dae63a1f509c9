"""HDF5: checked reading and checksums for the store, and arrays in files of other programs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from layerprobe.system.errors import BusyError, DataError
from layerprobe.system.files import SteadyFile, require_file
from layerprobe.system.memory import memory_faults_told, require_memory
from layerprobe.system.wording import command_text

SCHEMA = 1
# h5py chooses one of these by the words of HDF5's error; a damaged file can lead to any of them.
HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)


@contextlib.contextmanager
def create_file(path: Path) -> Iterator[tuple[h5py.File, SteadyFile]]:
    """Create a file and yield it with its sink; an error of a write is raised when the block ends at the latest."""
    with SteadyFile(path, "w+") as sink:
        try:
            # The format of v110 has checksums on its own structures, too; the older one can hang on a flipped bit.
            # Chunks are written whole: a chunk cache would hold megabytes per layer and delay write errors until close.
            with h5py.File(sink, "w", libver="v110", rdcc_nbytes=0) as file:
                yield file, sink
        finally:
            sink.require_written()


@contextlib.contextmanager
def open_file(path: Path, holds: str = "features") -> Iterator[h5py.File]:
    """Open a file of a known format to read, with `holds` in it; a fault of the file is a DataError."""
    # No lock is needed, as a file with its final name is never written to; network disks may refuse locks.
    with reading(path):
        require_file(path)
    with reading(path), h5py.File(path, "r", locking=False) as file:
        require_format(file, holds)
        yield file


class OtherFormatError(DataError):
    """A file that another version of layerprobe wrote: it is whole, and must not be replaced."""


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn HDF5's errors about a file into a DataError, or a BusyError where another program writes to it."""
    try:
        with memory_faults_told(path):
            yield
    except FileNotFoundError as error:
        raise DataError("no such feature file", file=path, fix=f"Run {probe_command(path)} first") from error
    except PermissionError as error:
        raise DataError.unreadable(error, file=path) from error
    except HDF5_ERRORS as error:
        if _is_held(path):
            fix = "Close it there, then run the same command again"
            raise BusyError("is open for writing in another program", file=path, fix=fix) from error
        raise damage_error(path, "not a readable feature file: truncated or damaged") from error


def _is_held(path: Path) -> bool:
    """Whether a program has the file open for writing: HDF5 holds an exclusive lock then."""
    import fcntl

    try:
        with path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


@contextlib.contextmanager
def stale_passed() -> Iterator[None]:
    """Pass over a file that cannot be used and will be replaced; one of another format is not to be replaced."""
    try:
        yield
    except OtherFormatError:
        raise
    except DataError:
        return


def require_format(file: h5py.File, holds: str) -> None:
    """Check that a file is of this format, and has a `holds` of its own."""
    schema = attribute(file, "schema")
    if not schema.isdecimal():
        # Another program's file may be the only copy of what it holds.
        fix = f"Move it away; {probe_command(Path(file.filename))} computes the features again"
        raise DataError("not a feature file of layerprobe", file=file.filename, fix=fix)
    if int(schema) != SCHEMA:
        theirs, ours = attribute(file, "layerprobe") or "of another version", metadata.version("layerprobe")
        problem = f"written by layerprobe {theirs} (format {schema}); this is {ours} (format {SCHEMA})"
        fix = f"Install layerprobe {theirs}, or move the file away to have it computed again"
        raise OtherFormatError(problem, file=file.filename, fix=fix)
    if not isinstance(file.get(holds, getlink=True), h5py.HardLink):
        raise _elsewhere(file, holds)


def stored_dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """A data set whose bytes are all in this file: not behind a link, in external storage, or claimed but missing.

    It may be larger than memory: see `read_dataset`.
    """
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise _elsewhere(file, name)
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset) or dataset.external is not None or dataset.is_virtual:
        raise _elsewhere(file, name)
    filters = dataset.id.get_create_plist()
    checksum_only = filters.get_nfilters() == 1 and filters.get_filter(0)[0] == h5py.h5z.FILTER_FLETCHER32
    held = min(dataset.id.get_storage_size(), file.id.get_filesize())  # chunks may claim the same bytes
    if not checksum_only or held < dataset.nbytes:
        raise damage_error(file.filename, f"{name} is not stored as layerprobe stores it")
    return dataset


def read_dataset(dataset: h5py.Dataset) -> NDArray[Any]:
    """All values of a data set."""
    require_memory(dataset.nbytes, dataset.file.filename)
    values: NDArray[Any] = dataset[()]
    return values


def _elsewhere(file: h5py.File, name: str) -> DataError:
    """The error of a file that could make layerprobe read another one."""
    return damage_error(file.filename, f"refused: {name} is a link, absent, or stored in another file")


def damage_error(path: object, problem: str) -> DataError:
    """The error of a file that cannot be used."""
    return DataError(problem, file=path, fix=f"Delete it; {probe_command(Path(str(path)))} computes it again")


def probe_command(path: Path, *words: str) -> str:
    """The command that computes a file of features or ranks again, by the run in whose folder it lies."""
    run = next((folder.parent for folder in path.parents[:2] if folder.name in ("features", "ranks")), None)
    if run is None:
        return " ".join(("layerprobe probe", *words))
    return command_text("probe", run.name, *words, cache=run.parent)


def attribute(item: h5py.HLObject, name: str) -> str:
    """An attribute as text; empty if it is absent or of a type that layerprobe does not write."""
    if name not in item.attrs or item.attrs.get_id(name).dtype.kind not in "iS":
        return ""
    value = item.attrs[name]
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def set_attributes(item: h5py.HLObject, facts: Mapping[str, str | int]) -> None:
    """Write texts and numbers as attributes of a file, group or data set."""
    for name, value in facts.items():
        item.attrs[name] = fixed_text(value) if isinstance(value, str) else value


def fixed_text(text: str | Sequence[str]) -> NDArray[np.bytes_]:
    """Text as UTF-8 of a fixed length: HDF5 keeps other text without a checksum, where a flipped bit can hang it."""
    # The name of an image file need not be UTF-8; surrogateescape brings its bytes back as they were.
    parts = [line.encode(errors="surrogateescape") for line in ([text] if isinstance(text, str) else text)]
    encoded = np.array(parts[0] if isinstance(text, str) else parts)
    return encoded.astype(h5py.string_dtype("utf-8", max(1, encoded.itemsize)))


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
