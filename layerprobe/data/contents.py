"""What image files hold, as hashes, and by which rules: each file is read once, and again only when it has changed.

What is known of the files below one root is kept in a table, `cache/images/contents/HASH.json`. It is a cache: where it
is missing, damaged or behind, the files are read again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL.Image import DecompressionBombError

from layerprobe.data.image_files import Files
from layerprobe.data.images import FULL_RANGE, GREY_16, PIL_ERRORS, ImageFile, largest_value, rules_of
from layerprobe.data.splits import Dataset, Split
from layerprobe.system.errors import DataError
from layerprobe.system.files import remove_leftovers, require_file, write_text
from layerprobe.system.progress import Listener

FOLDER = "contents"  # of all tables, in the folder of the decoded images
_SCHEMA = 1
_DIGEST_SIZE = 16  # bytes
_KEPT_EVERY = 30.0  # seconds of reading that a kill may lose

# A file's size, and the times of its last change as programs state it and as the system noted it, in ns. No program can
# set the latter: a file replaced by one of the same size and time is seen.
_Stamp = list[int]


class _FileRecord(NamedTuple):
    """A file's stamp, the hash of its content, the kinds of rule by which it is read, and its largest value.

    The value is that of 16-bit grey; None: not read.
    """

    stamp: _Stamp
    digest: str
    rules: list[str]
    largest: int | None = None


def with_digests(dataset: Dataset, tables: Path, listener: Listener | None) -> Dataset:
    """The data set with the hash of every image's content in `Split.digests`, and with `rules`.

    Args:
        dataset: as it was loaded, its files not yet resized; images that are not files are hashed as pixels. One that
            is hashed already is unchanged.
        listener: hears of progress; None: keep nothing that is read.
    """
    if all(split.digests is not None for split in dataset.splits.values()):
        return dataset
    splits, rules, largest = dict(dataset.splits), Counter[str](), 0
    files = {name: split.image for name, split in splits.items() if isinstance(split.image, Files)}
    for origin, representative in {image.origin: image for image in files.values()}.items():
        names = {name for image in files.values() if image.origin == origin for name in image.names}
        records = _of_files(replace(representative, names=sorted(names)), tables, listener)
        rules.update(kind for name in names for kind in records[name].rules)
        largest = max([largest, *(records[name].largest or 0 for name in names)])
        for name, image in files.items():
            if image.origin == origin:
                # Of a file with a box the hash of both.
                boxed = zip(image.names, image.boxes or repeat(None), strict=False)
                hashes = [(records[file].digest, box) for file, box in boxed]
                digests = [digest if box is None else _hash(f"{digest} {box}".encode()) for digest, box in hashes]
                splits[name] = replace(splits[name], digests=_array(digests))
    for name, split in splits.items():
        if name not in files:
            splits[name] = replace(split, digests=_array(_of_pixels(split, range(len(split)))))
    return replace(dataset, splits=splits, rules=rules, largest_grey=largest)


def pending_reads(dataset: Dataset, tables: Path) -> list[Callable[[], object]]:
    """What `with_digests` would read: a call for each image whose content is not known, which reads it."""
    if all(split.digests is not None for split in dataset.splits.values()):
        return []
    reads: list[Callable[[], object]] = []
    for split in dataset.splits.values():
        if not isinstance(split.image, Files):
            reads += [partial(_of_pixels, split, [index]) for index in range(len(split))]
            continue
        records = _read_table(table_of(split.image.origin, tables))
        for name, path in ((name, split.image.file(name)) for name in dict.fromkeys(split.image.names)):
            stamp = _stamp(path)
            if name not in records or records[name].stamp != stamp:
                reads.append(partial(_of_file, path, stamp))
    return reads


def table_of(origin: Path, tables: Path) -> Path:
    """The table of the files below a root, or of the images in a column of tables below it."""
    return tables / f"{hashlib.sha256(str(origin.resolve()).encode(errors='surrogateescape')).hexdigest()[:16]}.json"


def _of_files(files: Files, tables: Path, listener: Listener | None) -> Mapping[str, _FileRecord]:
    table, names = table_of(files.origin, tables), files.names
    stamps = {name: _stamp(files.file(name)) for name in names}
    records = _read_table(table)
    # Names of other data sets below the same root stay.
    changed = [name for name in names if name not in records or records[name].stamp != stamps[name]]

    def keep() -> None:
        if listener is None:
            return
        tables.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(tables / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # no other process writes to the folder
            remove_leftovers(tables)
            rows = {name: [value for value in row if value is not None] for name, row in records.items()}
            write_text(table, json.dumps({"schema": _SCHEMA, "root": str(files.origin), "files": rows}))
        finally:
            os.close(descriptor)

    with contextlib.closing(_going_through(changed, "hashing", keep, listener)) as todo:
        for name in todo:
            # The stamp is older than the content: a file that changes meanwhile is read again the next time.
            records[name] = _of_file(files.file(name), stamps[name])
    deep = [name for name in names if GREY_16 in records[name].rules]
    # Where one is known to use all 16 bits, the others say nothing more.
    if listener is None or any((records[name].largest or 0) >= FULL_RANGE for name in deep):
        return records
    unmeasured = [name for name in deep if records[name].largest is None]
    with contextlib.closing(_going_through(unmeasured, "measuring 16-bit", keep, listener)) as todo:
        for name in todo:
            largest = _largest(files.file(name))
            records[name] = records[name]._replace(largest=largest)
            if largest >= FULL_RANGE:
                break
    return records


def _going_through(
    names: Sequence[str], task_name: str, keep: Callable[[], None], listener: Listener | None
) -> Generator[str, None, None]:
    """The names; what was made of them is kept now and then, and at the end."""
    if not names:
        return
    kept_at = time.monotonic()
    progress = contextlib.nullcontext() if listener is None else listener.task(task_name, len(names), "images")
    with progress as task:
        try:
            for name in names:
                yield name
                if task is not None:
                    task.advance()
                if time.monotonic() - kept_at > _KEPT_EVERY:
                    keep()
                    kept_at = time.monotonic()
        finally:
            keep()


def _stamp(path: ImageFile) -> _Stamp:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            require_file(path)
    except OSError as error:
        raise DataError.unreadable(error, file=path) from error
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _of_file(path: ImageFile, stamp: _Stamp) -> _FileRecord:
    """A file's record; it has no rules where the file is no image, which is reported when it is decoded."""
    kinds: list[str] = []
    try:
        with path.open("rb") as stream:
            # Twice as fast as SHA-256 where the processor has no instructions for that.
            digest = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=_DIGEST_SIZE)).hexdigest()
            stream.seek(0)
            with _broken_is_told_later():
                kinds = [kind for kind, _ in rules_of(stream, path, decode_png=False)]
            return _FileRecord(stamp, digest, kinds)
    except OSError as error:
        raise DataError.unreadable(error, file=path) from error


def _largest(path: ImageFile) -> int:
    """The largest value of 16-bit grey; 0 for an image that cannot be decoded."""
    try:
        with path.open("rb") as stream, _broken_is_told_later():
            return largest_value(stream)
    except OSError as error:
        raise DataError.unreadable(error, file=path) from error
    return 0


@contextlib.contextmanager
def _broken_is_told_later() -> Iterator[None]:
    """Pass over what PIL raises of a broken image: it is told when the image is decoded."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # the disk's; PIL's own have no number
            raise
    except (DecompressionBombError, *PIL_ERRORS):
        pass


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=_DIGEST_SIZE).hexdigest()


def _of_pixels(split: Split, rows: Iterable[int]) -> list[str]:
    images = (split.image(index) for index in rows)
    return [_hash(repr(pixels.shape).encode() + pixels.tobytes()) for pixels in images]


def _array(hashes: Iterable[str]) -> NDArray[np.int64]:
    return np.frombuffer(bytes.fromhex("".join(hashes)), np.int64).reshape(-1, 2)


def _read_table(path: Path) -> dict[str, _FileRecord]:
    """The table; empty where there is none that can be read."""
    records: dict[str, _FileRecord] = {}
    try:
        require_file(path)
        table = json.loads(path.read_bytes())
        if table["schema"] != _SCHEMA:
            return {}
        for name, ((size, changed, noted), digest, rules, *largest) in table["files"].items():
            content = bytes.fromhex(digest)
            if len(content) != _DIGEST_SIZE:
                return {}
            stamp = [int(size), int(changed), int(noted)]
            records[str(name)] = _FileRecord(stamp, content.hex(), list(map(str, rules)), *map(int, largest))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, DataError):
        return {}
    return records
