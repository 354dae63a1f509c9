"""Reads every image of a data set once and finds unreadable, unusual and duplicate ones."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np

from layerprobe.data.image_files import Files
from layerprobe.data.images import GREY_16, PIL_ERRORS, ImageFile, largest_value, rules_of
from layerprobe.data.splits import Dataset, Image, Split
from layerprobe.system.computing import serve, start_method
from layerprobe.system.errors import DataError, EnvironmentFault

_CHUNK = 8  # images that a process is sent at once


@dataclass(frozen=True)
class Finding:
    """An error or a remark about an image, or about the whole data set if there is no id.

    Args:
        kind: a word or two that findings are counted by ("truncated").
        fix: what to do; empty if there is nothing to do.
        id: of the image, as text that can be encoded whatever the file is called.
    """

    kind: str
    is_error: bool
    message: str
    fix: str = ""
    split: str = ""
    id: str = ""


@dataclass(frozen=True)
class Examined:
    """The findings about one image.

    Args:
        pixels: hash of its size and pixels; None if it could not be read.
        largest: value of 16-bit grey; 0 of other images.
    """

    index: int
    findings: tuple[Finding, ...]
    pixels: bytes | None
    largest: int = 0


@dataclass(frozen=True)
class SplitCount:
    """How large a split is."""

    split: str
    images: int
    classes: int
    fewest: int
    most: int
    singletons: int


def examine(split: Split, *, workers: int) -> Generator[Examined, None, None]:
    """Read every image of a split, whatever the files hold.

    If a process dies while it reads (a decoder crashed, or memory ran out), the image that caused it is found and the
    others are still read. Closing the iterator ends the processes after the images that they are reading. JPEG has no
    checksum: changed bytes that can still be decoded are not noticed.

    Args:
        workers: number of processes that read; 0 reads in this process, which a crash would then end.

    Yields:
        One value for each image, in order of completion.
    """
    if workers and isinstance(split.image, Files):
        yield from _by_processes(split.image, range(len(split)), workers)
    else:
        yield from (_examine(split.image, index, index) for index in range(len(split)))


def duplicates(dataset: Dataset, pixels: Mapping[str, Sequence[bytes | None]]) -> list[Finding]:
    """Images with the same pixels, and names that differ only in capitals.

    The same pixels in two splits are an error, since images must not be both trained on and tested. Within a split, or
    in two splits of which one is searched in the other, they are a remark on every image but the first; there, the same
    id in both splits is one image and no finding.

    Args:
        pixels: split -> the hash of each of its images.
    """
    findings = []
    first_seen: dict[bytes, dict[str, int]] = {}
    folded: dict[str, str] = {}
    for split in dataset.splits.values():
        for index, digest in enumerate(pixels[split.name]):
            name = split.ids[index]
            if (other := folded.setdefault(name.casefold(), name)) != name:
                text = f"differs from {printable(other)} only in capitals: the same file on Windows and macOS"
                findings.append(Finding("capitals", False, text, "Rename one", split.name, printable(name)))
            if digest is not None:
                earlier = first_seen.setdefault(digest, {})
                findings += _twice(dataset, split, index, earlier)
                earlier.setdefault(split.name, index)
    return findings


def counts(dataset: Dataset) -> list[SplitCount]:
    """How large each split is."""
    split_counts = []
    for split in dataset.splits.values():
        sizes = Counter(split.labels.tolist()).values()
        fewest, most = (min(sizes), max(sizes)) if sizes else (0, 0)
        singletons = sum(size == 1 for size in sizes)
        split_counts.append(SplitCount(split.name, len(split), len(sizes), fewest, most, singletons))
    return split_counts


def printable(name: str) -> str:
    """A file's name as text that can be encoded, also where its bytes are not UTF-8."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def _twice(dataset: Dataset, split: Split, index: int, earlier: Mapping[str, int]) -> Iterator[Finding]:
    """The finding about an image, given the first image with the same pixels in each split."""
    where = sorted(earlier, key=lambda name: dataset.together(name, split.name))
    if not where:
        return
    other = dataset.splits[where[0]]
    same = other.ids[earlier[other.name]]
    together = dataset.together(other.name, split.name)
    if together and other.name != split.name and same == split.ids[index]:
        return
    label = int(other.labels[earlier[other.name]])
    of_class = "" if label == split.labels[index] else f", of class {printable(dataset.class_names[label])}"
    text = f"the same pixels as {other.name}: {printable(same)}{of_class}"
    kind, fix = ("duplicate", "") if together else ("in two splits", "Remove one of them")
    yield Finding(kind, not together, text, fix, split.name, printable(split.ids[index]))


def _by_processes(
    files: Files, indices: Sequence[int], workers: int, chunk: int = _CHUNK
) -> Generator[Examined, None, None]:
    todo = deque(indices[start : start + chunk] for start in range(0, len(indices), chunk))
    most = 1 if chunk == 1 else 2 * workers
    while todo:
        running: dict[Future[list[Examined]], Sequence[int]] = {}
        context = multiprocessing.get_context(start_method())
        pool = ProcessPoolExecutor(min(workers, len(todo)), mp_context=context, initializer=serve)
        try:
            while todo or running:
                while todo and len(running) < most:
                    future = pool.submit(_examine_all, files.some(todo[0]), todo[0])
                    running[future] = todo.popleft()
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    examined = future.result()
                    del running[future]
                    yield from examined
        except BrokenProcessPool:
            pool.shutdown()
            # One of these images ended its process: read one at a time, they show which.
            suspects = [index for chunk_indices in running.values() for index in chunk_indices]
            if len(suspects) == 1:
                message = "the process that read it died (a decoder's crash, or too little memory)"
                yield Examined(suspects[0], (Finding("crash", True, message, "Make it smaller or remove it"),), None)
            else:
                yield from _by_processes(files, suspects, 1, 1)
        finally:
            pool.shutdown(cancel_futures=True)


def _examine_all(files: Files, indices: Sequence[int]) -> list[Examined]:
    return [_examine(files, position, index) for position, index in enumerate(indices)]


def _examine(image: Callable[[int], Image], position: int, index: int) -> Examined:
    """The findings about image `position` of a part of a split, which is image `index` of the whole split."""
    path = image.file(image.names[position]) if isinstance(image, Files) else None
    try:
        pixels = image(position)
    except DataError as error:
        return Examined(index, (Finding(error.kind or "unreadable", True, error.message, error.fix),), None)
    except (EnvironmentFault, MemoryError):
        return Examined(index, (Finding("memory", True, "too little memory to read it", "Use fewer --workers"),), None)
    remarks, largest = ([], 0) if path is None else _remarks(path)
    # Two corners first, since comparing every pixel takes as much memory as the image.
    if (pixels[0, 0] == pixels[-1, -1]).all() and (pixels == pixels[0, 0]).all():
        remarks.append(Finding("one colour", False, "every pixel has the same colour"))
    digest = hashlib.blake2b(repr(pixels.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(pixels).data)
    return Examined(index, tuple(remarks), digest.digest(), largest)


def _remarks(path: ImageFile) -> tuple[list[Finding], int]:
    """The rules by which `read_image` turned an image into RGB, and its largest value; it has been read before."""
    try:
        with path.open("rb") as stream:
            remarks = [Finding(kind, False, message) for kind, message in rules_of(stream, path, decode_png=True)]
            is_deep = any(remark.kind == GREY_16 for remark in remarks)
            stream.seek(0)
            return remarks, largest_value(stream) if is_deep else 0
    except (OSError, *PIL_ERRORS) as error:
        return [Finding("metadata", False, f"metadata that cannot be read ({' '.join(str(error).split())})")], 0
