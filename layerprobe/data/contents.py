"""What image files hold, as hashes, and by which rules: each file is read once, and again only when it has changed.

What is known of the files below one root is kept in a table, `cache/images/contents/HASH.bin` (see `hash_table`).
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, compress, islice, repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL.Image import DecompressionBombError

from layerprobe.data.hash_table import (
    HASH_SIZE,
    RECORD,
    Records,
    append_records,
    drop_replaced_records,
    hash_names,
    hash_rows,
    last_of_each,
    read_records,
)
from layerprobe.data.image_files import Files, RowNames, stamps_of
from layerprobe.data.images import FULL_RANGE, GREY_16, PIL_ERRORS, ImageFile, largest_value, rules_of
from layerprobe.data.splits import Dataset, Split
from layerprobe.system.computing import host, local_rank
from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file
from layerprobe.system.launch import Launch
from layerprobe.system.progress import Listener

FOLDER = "contents"  # of all tables, in the folder of the decoded images
_KEPT_EVERY = 30.0  # seconds of reading that a kill may lose
_ALONE = 4096  # files that this process reads alone: to start others takes seconds
_BATCH = 64  # files that another process reads at once
_ROWS = 1024  # images in tables, likewise: a row group that several processes read is decoded by each of them
_CALL = 2**18  # images that the hosts of a launch share by one call, which holds all their names
# The kinds of `rules_of`, each of which has the bit of its place. A kind that is new is added at the end.
_KINDS = (
    "wrong ending", "1-bit", "grey", "palette", "CMYK", GREY_16, "other mode", "transparency", "animated",
    "EXIF rotation",
)  # fmt: skip
_DEEP, _MEASURED = np.uint16(1 << _KINDS.index(GREY_16)), np.uint16(1 << 15)


def with_digests(
    dataset: Dataset, tables: Path, listener: Listener | None, *, workers: int = 0, launch: Launch | None = None
) -> Dataset:
    """The data set with the hash of every image's content in `Split.digests`, and with `rules`.

    Args:
        dataset: as it was loaded, its files not yet resized; images that are not files are hashed as pixels. One that
            is hashed already is unchanged.
        listener: hears of progress; None: keep nothing that is read.
        workers: number of processes that read files where there are many to read; 0: this process.
        launch: whose hosts read them in turn, each by so many processes; None: this host alone.
    """
    if all(split.digests is not None for split in dataset.splits.values()):
        return dataset
    splits, rules, largest = dict(dataset.splits), Counter[str](), 0
    files = {name: split.image for name, split in splits.items() if isinstance(split.image, Files)}
    for origin in dict.fromkeys(image.origin for image in files.values()):
        images = {name: image for name, image in files.items() if image.origin == origin}
        listed = _ListedFiles.of(list(images.values()))
        records = _read_contents(listed, tables, listener, workers, launch)
        for bit, kind in enumerate(_KINDS):
            if count := int(np.count_nonzero(records["rules"] & (1 << bit))):
                rules[kind] += count
        largest = max(largest, int(records["largest"].max(initial=0)))
        digests = np.split(records["digest"][listed.places], np.cumsum([len(x.names) for x in images.values()])[:-1])
        for (name, image), of_files in zip(images.items(), digests, strict=True):
            splits[name] = replace(splits[name], digests=_of_boxes(image, of_files))
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
        listed = _ListedFiles.of([split.image])
        _, unread = _known_contents(listed, tables)
        reads += [partial(_of_file, split.image.file(listed.name(row))) for row in unread.tolist()]
    return reads


def table_of(origin: Path, tables: Path) -> Path:
    """The table of the files below a root, or of the images in a column of tables below it."""
    return tables / f"{hashlib.sha256(str(origin.resolve()).encode(errors='surrogateescape')).hexdigest()[:16]}.bin"


@dataclass(frozen=True, eq=False)
class _ListedFiles:
    """The files of some splits of one origin, each of them once.

    Args:
        rows: (F,) of them among the images of all the splits.
        hashes: (F, 2) of the names.
        stamps: (F, 3) of the files.
        places: (N,) for each image of the splits the file that it is in.
    """

    splits: Sequence[Files]
    rows: NDArray[np.intp]
    hashes: NDArray[np.uint64]
    stamps: NDArray[np.int64]
    places: NDArray[np.intp]

    @staticmethod
    def of(images: Sequence[Files]) -> _ListedFiles:
        """The files of some splits, whose status is read."""
        hashes = np.concatenate([_hash_names(image.names) for image in images])
        order = np.argsort(hashes[:, 0])  # names that share half of the hash are listed apart
        is_first = np.ones(len(hashes), bool)
        is_first[1:] = (hashes[order][1:] != hashes[order][:-1]).any(1)
        places = np.empty(len(hashes), np.intp)
        places[order] = np.cumsum(is_first) - 1
        rows = order[is_first]
        stamps = np.concatenate([_stamps(image) for image in images])
        if len(rows) == len(hashes):
            return _ListedFiles(images, np.arange(len(rows)), hashes, stamps, np.arange(len(rows)))
        return _ListedFiles(images, rows, hashes[rows], stamps[rows], places)

    def names(self, places: NDArray[np.intp]) -> Iterator[str]:
        """The names of some files whose rows are ascending."""
        is_named = np.zeros(sum(len(image.names) for image in self.splits), bool)
        is_named[self.rows[places]] = True
        return compress(chain.from_iterable(image.names for image in self.splits), is_named.tolist())

    @property
    def files(self) -> Files:
        """Those of the first split, which are read as the others are."""
        return self.splits[0]

    def name(self, place: int) -> str:
        """The name of a file."""
        row = int(self.rows[place])
        for image in self.splits:
            if row < len(image.names):
                return image.names[row]
            row -= len(image.names)
        raise IndexError(place)


def _hash_names(names: Sequence[str]) -> NDArray[np.uint64]:
    return hash_rows(names.tables, names.table, names.places) if isinstance(names, RowNames) else hash_names(names)


def _known_contents(listed: _ListedFiles, tables: Path) -> tuple[Records, NDArray[np.intp]]:
    """(F,) what the table says of each file, and the rows of those that it does not know as they are now."""
    records = read_records(table_of(listed.files.origin, tables))
    rows = last_of_each(records, listed.hashes)
    missing = np.flatnonzero(rows < 0)
    if len(records) and len(missing) and isinstance(listed.files.names, RowNames):  # earlier versions hashed names
        missing = missing[np.argsort(listed.rows[missing])]
        rows[missing] = last_of_each(records, hash_names(listed.names(missing)))
    known: Records = np.zeros(len(rows), RECORD)
    if len(records):
        known = np.take(records, np.maximum(rows, 0))
        known[rows < 0] = 0
    is_unread = (rows < 0) | (known["stamp"] != listed.stamps).any(1)
    known["name"], known["stamp"] = listed.hashes, listed.stamps
    return known, np.flatnonzero(is_unread)


def _read_contents(
    listed: _ListedFiles, tables: Path, listener: Listener | None, workers: int, launch: Launch | None
) -> Records:
    """(F,) what each file holds; those that have changed are read."""
    records, unread = _known_contents(listed, tables)
    table, files = table_of(listed.files.origin, tables), listed.files
    names = {row: listed.name(row) for row in unread.tolist()}
    unread = np.array(sorted(names, key=names.__getitem__), np.intp)
    read = _FileReader(replace(files, names=(), boxes=None, stamps=None))
    shared = workers > 0 and len(unread) > _ALONE
    size = (_ROWS if isinstance(files.names, RowNames) else _BATCH) if shared else 1
    batches = [np.arange(start, min(start + size, len(unread))) for start in range(0, len(unread), size)]
    named = ([names[row] for row in unread[rows].tolist()] for rows in batches)
    results: Iterable[Records] = map(read, named)
    if shared:
        from layerprobe.data.loading import (
            in_order,  # it imports torch, which a probe with nothing to read does without
        )

        if launch is None or launch.rank or host()[1] == 1:
            results = in_order(read, named, workers)
        else:
            results = _read_by_hosts(read, named, _CALL // size, workers, launch)
    with contextlib.closing(_kept(results, table, "hashing", len(unread), listener)) as kept:
        for rows, contents in zip(batches, kept, strict=True):
            # The stamp is older than the content: a file that changes meanwhile is read again the next time.
            for field in ("digest", "largest", "rules"):
                records[field][unread[rows]] = contents[field]
            contents[:] = records[unread[rows]]
    if listener is not None and len(unread):
        drop_replaced_records(table, len(records))
    deep = np.flatnonzero(records["rules"] & _DEEP)
    # Where one is known to use all 16 bits, the others say nothing more.
    if listener is None or (records["largest"][deep] >= FULL_RANGE).any():
        return records
    unmeasured = sorted(deep[records["rules"][deep] & _MEASURED == 0].tolist(), key=listed.name)
    measured = (_measured(files.file(listed.name(row)), records[[row]]) for row in unmeasured)
    with contextlib.closing(_kept(measured, table, "measuring 16-bit", len(unmeasured), listener)) as kept:
        for row, record in zip(unmeasured, kept, strict=True):
            records[row] = record[0]
            if record["largest"][0] >= FULL_RANGE:
                break
    return records


def _read_by_hosts(
    read: _FileReader, named: Iterator[list[str]], together: int, workers: int, launch: Launch
) -> Generator[Records, None, None]:
    """What the files of each batch hold; the hosts of a launch read batches in turn, so many for each call."""
    from layerprobe.data.loading import in_order

    _, hosts = host()
    while batches := list(islice(named, together)):
        launch.call(_read_in_turn, read, batches, workers)
        with contextlib.closing(in_order(read, batches[::hosts], workers)) as results:
            for number, names in enumerate(batches):
                records = launch.take(number) if number % hosts else next(results)
                yield records if len(records) else read(names)  # and it tells of what another host could not read


def _read_in_turn(launch: Launch, read: _FileReader, batches: Sequence[list[str]], workers: int) -> None:
    """In the first process of another host than the first: read its batches."""
    from layerprobe.data.loading import in_order

    if local_rank():
        return
    this_host, hosts = host()
    numbers = range(this_host, len(batches), hosts)
    results = in_order(partial(_readable, read), batches[this_host::hosts], workers)
    for number, records in zip(numbers, results, strict=True):
        launch.give(number, records)


def _readable(read: _FileReader, names: Sequence[str]) -> Records:
    """What some files hold; no records where one of them cannot be read."""
    try:
        return read(names)
    except DataError:
        return np.empty(0, RECORD)


def _kept(
    results: Iterable[Records], table: Path, task_name: str, total: int, listener: Listener | None
) -> Generator[Records, None, None]:
    """The records, as they come; the caller completes each, and they are kept now and then, and at the end."""
    if not total:
        return
    waiting: list[Records] = []

    def keep() -> None:
        if listener is not None and waiting:
            append_records(table, np.concatenate(waiting))
        waiting.clear()

    kept_at = time.monotonic()
    progress = contextlib.nullcontext() if listener is None else listener.task(task_name, total, "images")
    with progress as task:
        try:
            for records in results:
                waiting.append(records)
                yield records
                if task is not None:
                    task.advance(len(records))
                if time.monotonic() - kept_at > _KEPT_EVERY:
                    keep()
                    kept_at = time.monotonic()
        finally:
            keep()


def _of_boxes(image: Files, digests: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N, 2) hash of each image: of a file with a box that of both, else that of the file (N, 2)."""
    if image.boxes is None:
        return digests
    hashes = [row.tobytes().hex() for row in digests]
    boxed = zip(hashes, image.boxes or repeat(None), strict=False)
    return _array(digest if box is None else _hash(f"{digest} {box}".encode()) for digest, box in boxed)


def _stamps(files: Files) -> NDArray[np.int64]:
    """(N, 3) the stamp of each file."""
    if files.stamps is not None:
        return files.stamps
    if isinstance(files.names, RowNames):
        used, table = np.unique(files.names.table, return_inverse=True)
        return stamps_of(files.root, [files.names.tables[number] for number in used.tolist()])[table]
    return stamps_of(files.root, files.names)


@dataclass(frozen=True, eq=False)
class _FileReader:
    """Names of some files -> what these hold; a copy is sent to every worker, and with each batch its names."""

    files: Files

    def __call__(self, names: Sequence[str]) -> Records:
        records = np.zeros(len(names), RECORD)
        for record, name in enumerate(names):
            digest, kinds = _of_file(self.files.file(name))
            records[record]["digest"] = np.frombuffer(digest, np.int64)
            records[record]["rules"] = sum(1 << _KINDS.index(kind) for kind in kinds)
        return records


def _of_file(path: ImageFile) -> tuple[bytes, list[str]]:
    """The hash of a file's content, and the kinds of rule by which its image is read.

    It has none where the file is no image, which is reported when it is decoded.
    """
    kinds: list[str] = []
    try:
        require_file(path)
        with path.open("rb") as stream:
            # Twice as fast as SHA-256 where the processor has no instructions for that.
            digest = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=HASH_SIZE)).digest()
            stream.seek(0)
            with _broken_is_told_later():
                kinds = [kind for kind, _ in rules_of(stream, path, decode_png=False)]
            return digest, kinds
    except OSError as error:
        raise DataError.unreadable(error, file=path) from error


def _measured(path: ImageFile, record: Records) -> Records:
    """(1,) the record of an image of 16-bit grey with its largest value."""
    record["largest"], record["rules"] = _largest(path), record["rules"] | _MEASURED
    return record


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
    return hashlib.blake2b(content, digest_size=HASH_SIZE).hexdigest()


def _of_pixels(split: Split, rows: Iterable[int]) -> list[str]:
    images = (split.image(index) for index in rows)
    return [_hash(repr(pixels.shape).encode() + pixels.tobytes()) for pixels in images]


def _array(hashes: Iterable[str]) -> NDArray[np.int64]:
    return np.frombuffer(bytes.fromhex("".join(hashes)), np.int64).reshape(-1, 2)
