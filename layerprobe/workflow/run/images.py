"""A data set's images, hashed and decoded once into `cache/images/` for all runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from layerprobe.data.contents import FOLDER as CONTENTS
from layerprobe.data.contents import with_digests
from layerprobe.data.image_files import Files
from layerprobe.data.pixel_cache import (
    FOLDER,
    DecodedPixels,
    Digests,
    Entry,
    bytes_to_remove,
    count_decoded,
    fill,
    is_held_here,
)
from layerprobe.data.splits import Dataset, Split, digests_of
from layerprobe.system.computing import default_workers
from layerprobe.system.errors import BusyError, EnvironmentFault, LayerprobeError
from layerprobe.system.files import disk_faults_told, free_bytes, require_writable
from layerprobe.system.launch import Launch
from layerprobe.system.progress import Listener, Stop, Task, stoppable
from layerprobe.system.wording import as_size

_SAMPLED = 16  # images per split from which its decoded size is estimated


@dataclass(frozen=True)
class Decoding:
    """Where and how images are decoded.

    Args:
        listener: None: use stored decoded images, and decode none.
        workers: number of processes that hash and decode; None: one per core, at most 8.
        in_process: only this process reads images: a small data set stays in memory instead.
        launch: whose hosts hash together.
    """

    cache: Path
    listener: Listener | None = None
    workers: int | None = None
    in_process: bool = True
    launch: Launch = field(default_factory=Launch, compare=False)


def with_contents(dataset: Dataset, decoding: Decoding) -> Dataset:
    """The data set with the hash of each image's content; only changed files are read."""
    workers = default_workers() if decoding.workers is None else decoding.workers
    with stoppable(at_once=True):
        tables = decoding.cache / FOLDER / CONTENTS
        return with_digests(dataset, tables, decoding.listener, workers=workers, launch=decoding.launch)


def with_decoded(
    dataset: Dataset, decoding: Decoding, *, files: Mapping[str, Files], steps: str, source: str
) -> Dataset:
    """The data set with its images read from `cache/images/`, decoded into it if necessary.

    If decoding is interrupted, the same command resumes it.
    """
    folder, listener = decoding.cache / FOLDER, decoding.listener
    entries = {name: Entry.of(folder, files[name].paths, steps) for name in dataset.splits}
    digests = {name: digests_of(dataset.splits[name]) for name in entries}
    stored = {name: DecodedPixels(entry) for name, entry in entries.items() if entry.is_complete(digests[name])}
    if missing := [name for name in entries if name not in stored]:
        if listener is None:
            return dataset
        workers = default_workers() if decoding.workers is None else decoding.workers
        _require_room(dataset, {name: (entries[name], digests[name]) for name in missing}, listener)
        for name in missing:
            stored[name] = _decoded(entries[name], dataset.splits[name], digests[name], source, listener, workers)
    splits = {name: replace(split, image=stored[name]) for name, split in dataset.splits.items()}
    return replace(dataset, splits=splits)


def _require_room(dataset: Dataset, missing: Mapping[str, tuple[Entry, Digests]], listener: Listener) -> None:
    num_undecoded = {
        name: len(dataset.splits[name]) - count_decoded(entry, digests) for name, (entry, digests) in missing.items()
    }
    images = sum(num_undecoded.values())
    needed = sum(
        _estimated(dataset, name) * count // len(dataset.splits[name]) for name, count in num_undecoded.items()
    )
    folder = next(iter(missing.values()))[0].folder.parent
    require_writable(folder)
    free = free_bytes(folder) + sum(bytes_to_remove(entry, digests) for entry, digests in missing.values())
    if needed > free:
        raise EnvironmentFault(
            f"{images:,} decoded images need about {as_size(needed)} more, {as_size(free)} are free",
            file=folder,
            fix="Free space, choose another --cache, or decode in every epoch by --set data.cache=off",
        )
    listener.say(f"decoding {images:,} images once into {folder}: about {as_size(needed)} ({as_size(free)} free)")


def _estimated(dataset: Dataset, name: str) -> int:
    """Bytes of a split's decoded images, estimated from a sample."""
    split = dataset.splits[name]
    count = min(_SAMPLED, len(split))
    sampled = [split.image(i * len(split) // count).nbytes for i in range(count)]
    return sum(sampled) * len(split) // count


def _decoded(  # noqa: PLR0913 - what, where, and progress
    entry: Entry, split: Split, digests: Digests, source: str, listener: Listener, workers: int
) -> DecodedPixels:
    def wait() -> None:
        if is_held_here(entry):
            raise BusyError(
                f"the {split.name} images have changed, and this process still uses them as they were",
                file=entry.folder,
                fix="Delete the data set built before, or run the command again",
            )
        listener.say(f"waiting for another process, which uses or decodes the {split.name} images")

    # The lock is outside `stoppable`: a signal may end the wait at once, as nothing is partly done.
    with entry.locked(wait=wait), stoppable() as stop:
        if entry.is_complete(digests):  # another process has decoded it meanwhile
            return DecodedPixels(entry, digests)
        if done := count_decoded(entry, digests):
            listener.say(f"{split.name}: {done:,} of {len(split):,} images are decoded already")
        try:
            task_name = f"decoding {split.name}"
            with listener.task(task_name, len(split), "images") as task, disk_faults_told(entry.folder):
                fill(entry, split, _Stopped(task, stop), digests=digests, about={"data": source}, workers=workers)
            stop.raise_if_asked("stopped")  # a signal may have come while the workers ended
        except (LayerprobeError, KeyboardInterrupt):
            # A signal to the process group may end a data worker first, whose error is not a fault.
            done = count_decoded(entry, digests)
            stop.raise_if_asked(
                f"{split.name}: {done:,} of {len(split):,} images are decoded; the same command resumes"
            )
            raise
    return DecodedPixels(entry, digests)


@dataclass(frozen=True)
class _Stopped:
    """A task that ends at the first step after a signal."""

    task: Task
    stop: Stop

    def advance(self, steps: int = 1, **figures: float) -> None:
        self.task.advance(steps, **figures)
        self.stop.raise_if_asked("stopped")
