"""The table of what image files hold: records of 64 bytes, appended to a file that is read through the memory map.

A record that was not written whole, or that another version of the program wrote, is passed over: of a name the last
valid record counts, and the others leave the file where they are more than half of it. It is a cache: what it lacks is
read from the images again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.system.errors import DataError
from layerprobe.system.files import disk_faults_told, remove_leftovers, require_file, written_whole

HASH_SIZE = 16  # bytes, of a name and of a content
# `name` and `digest` are hashes. `stamp` is a file's size, and the times of its last change as programs state it and as
# the system noted it, in ns: no program can set the latter, so that a file replaced by one of the same size and time is
# seen. `rules` are bits. `largest` is the largest value of 16-bit grey.
RECORD = np.dtype(
    [("name", "<u8", 2), ("digest", "<i8", 2), ("stamp", "<i8", 3), ("largest", "<u2"), ("rules", "<u2"),
     ("check", "<u4")]
)  # fmt: skip
_SCHEMA = 0x6C61796572303032  # of the check
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xD1342543DE82EF95], np.uint64)
_FACTOR = _FACTORS[0]
Records = NDArray[np.void]  # (N,) of RECORD


def hash_names(names: Iterable[str]) -> NDArray[np.uint64]:
    """(N, 2) hash of each name."""
    hashed, empty = bytearray(), hashlib.blake2b(digest_size=HASH_SIZE)
    for name in names:
        digest = empty.copy()  # which takes two thirds of the time of a new one
        digest.update(name.encode(errors="surrogateescape"))
        hashed += digest.digest()
    return np.frombuffer(hashed, "<u8").reshape(-1, 2)


def hash_rows(tables: Sequence[str], table: NDArray[np.intp], places: NDArray[np.int64]) -> NDArray[np.uint64]:
    """(N, 2) hash of each image in tables, in a hundredth of the time that the hashes of its name would take.

    The arguments are those of `RowNames`. In one table, rows or first bytes that differ never have the same hash where
    sizes are equal.
    """
    hashes = hash_names(tables)[table]
    for column in np.atleast_2d(places.T):
        hashes = (hashes ^ column.astype(np.uint64)[:, None]) * _FACTORS
        hashes ^= hashes >> np.uint64(29)
    return hashes


def read_records(table: Path) -> Records:
    """The valid records of a table, in the order in which they were written; none where there is no such file."""
    try:
        require_file(table)
        count = table.stat().st_size // RECORD.itemsize
        records: Records = np.memmap(table, RECORD, mode="r", shape=count) if count else np.empty(0, RECORD)
    except (OSError, ValueError, DataError):
        return np.empty(0, RECORD)
    is_valid = _checks(records) == records["check"]
    return records if is_valid.all() else records[is_valid]


def append_records(table: Path, records: Records) -> None:
    """Add records to a table, behind the whole ones; other processes may do the same."""
    records = records.copy()
    records["check"] = _checks(records)
    table.parent.mkdir(parents=True, exist_ok=True)
    with _alone(table.parent):
        remove_leftovers(table.parent)
        table.with_suffix(".json").unlink(missing_ok=True)  # which earlier versions wrote
        if table.exists() and not table.is_file():
            table.unlink()
        with disk_faults_told(table), table.open("ab") as file:
            size = file.tell()
            file.truncate(size - size % RECORD.itemsize)
            file.write(records.tobytes())


def drop_replaced_records(table: Path, files: int) -> None:
    """Write a table again with the last record of each name alone, where these are less than half of its records.

    Args:
        files: the table has records of at least so many names: where these are half of it, nothing is read.
    """
    if not table.is_file() or table.stat().st_size <= 2 * files * RECORD.itemsize:
        return
    with _alone(table.parent):
        records = read_records(table)
        last = last_of_each(records, records["name"])
        rows = np.unique(np.where(last < 0, np.arange(len(records)), last))
        if 2 * len(rows) < len(records):
            with written_whole(table) as aside:
                aside.write_bytes(records[rows].tobytes())


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let no other process write to the tables of a folder inside the block."""
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def last_of_each(records: Records, names: NDArray[np.uint64]) -> NDArray[np.int64]:
    """(N,) the last record of each hashed name (N, 2); -1 where there is none."""
    # Sorting by half of the hash is twice as fast. Of names that share that half one may be passed over.
    first = np.ascontiguousarray(records["name"][:, 0])
    order, in_order = np.argsort(first), np.argsort(names[:, 0])
    if (np.diff(first[order]) == 0).any():
        order = np.argsort(first, kind="stable")  # the last stays the last, which takes five times as long
    places = np.empty(len(names), np.int64)
    places[in_order] = np.searchsorted(first[order], names[in_order, 0], side="right") - 1
    found = np.where(places >= 0, order[places] if len(order) else -1, -1)
    is_same = found >= 0
    is_same[is_same] = (records["name"][found[is_same]] == names[is_same]).all(1)
    return np.where(is_same, found, -1)


def _checks(records: Records) -> NDArray[np.uint32]:
    """(N,) a number that follows from the rest of each record."""
    words: NDArray[Any] = np.ascontiguousarray(records).view("<u8").reshape(-1, 8)
    mixed = words[:, 7] & np.uint64(0xFFFFFFFF) ^ np.uint64(_SCHEMA)
    for column in range(7):
        mixed = (mixed ^ words[:, column]) * _FACTOR
        mixed ^= mixed >> np.uint64(29)
    return (mixed >> np.uint64(32)).astype(np.uint32)
