"""HDF5 as the store uses it: files that are distrusted when read, text that a checksum covers."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import h5py
import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError, EnvironmentFault
from layerprobe.files import DISK_FULL

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

SCHEMA = 1
# What h5py makes of HDF5's one error, by the words in it; a damaged file gives any of them.
HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)
_LINKED = "refused: links out of the file"


class SteadyFile(io.FileIO):
    """A file that HDF5 writes to and that never fails it: HDF5 2.0 can crash the process where writing at close fails.

    The first failure is kept in `fault`, and nothing is written after it.
    """

    fault: OSError | None = None

    def write(self, data: Buffer, /) -> int:
        """Write all of it, or keep the reason why not."""
        rest = memoryview(data).cast("B")
        length = len(rest)
        with self._kept():
            while self.fault is None and len(rest):
                rest = rest[super().write(rest) :]
        return length

    def truncate(self, size: int | None = None, /) -> int:
        """Set the length, or keep the reason why not."""
        with self._kept():
            if self.fault is None:
                super().truncate(size)
        return self.tell() if size is None else size

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.fault = error

    def watched(self, items: Iterable[T]) -> Iterator[T]:
        """The items, until a write has failed: then its error."""
        for item in items:
            self.require_written()
            yield item

    def require_written(self) -> None:
        """Raise the first failure, if there was one."""
        if self.fault is not None:
            raise self.fault


@contextlib.contextmanager
def created(path: Path) -> Iterator[tuple[h5py.File, SteadyFile]]:
    """A new file to write, and what it is written to; a failed write is raised at the end at the latest."""
    with SteadyFile(path, "w+") as sink:
        try:
            # The newer format has checksums on its own structures too; the older can hang on a flipped bit. Without a
            # cache of chunks, which are written whole: it would hold megabytes for each layer, and failures back.
            with h5py.File(sink, "w", libver="v110", rdcc_nbytes=0) as file:
                yield file, sink
        finally:
            sink.require_written()


@contextlib.contextmanager
def full_disk_told(path: Path, name: str, needed: int) -> Iterator[None]:
    """Turn the error of a full disk into one that says how much a file needs."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        free = shutil.disk_usage(path.parent).free
        raise EnvironmentFault(
            f"disk full: {path.parent} has {free / 1e6:.0f} MB, {name} needs {needed / 1e6:.0f} MB",
            fix="Free space, then run the same command again",
        ) from error


@contextlib.contextmanager
def opened(path: Path, holds: str = "features") -> Iterator[h5py.File]:
    """A file of a known format to read, with `holds` in it; whatever HDF5 finds wrong with it is a DataError."""
    # No lock: a file with its final name is never written to, and network disks refuse locks.
    with reading(path), h5py.File(path, "r", locking=False) as file:
        require_format(file, holds)
        yield file


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever HDF5 finds wrong with a file into a DataError."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError("no such feature file", file=path, fix="Run layerprobe probe first") from error
    except HDF5_ERRORS as error:
        raise damaged(path, "not a readable feature file: truncated or damaged") from error


def require_format(file: h5py.File, holds: str) -> None:
    """Raise a DataError where a file is not of this format or an older one, or `holds` nothing of its own."""
    schema = attribute(file, "schema")
    if not schema.isdecimal():
        raise damaged(file.filename, "not a feature file")
    if int(schema) > SCHEMA:
        theirs, ours = attribute(file, "layerprobe"), metadata.version("layerprobe")
        what = f"written by layerprobe {theirs} (format {schema}); this is {ours} (format {SCHEMA})"
        raise DataError(what, file=file.filename, fix=f"Install layerprobe {theirs}")
    if not isinstance(file.get(holds, getlink=True), h5py.HardLink):
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
