"""The decoded images that runs share, in `cache/images/`: made where they are wanted, listed, removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from layerprobe.data.cache import Entry, Stamps, Stored, begun, dropped, entries, fill, is_held_here
from layerprobe.data.image_files import Files
from layerprobe.data.processes import default_workers
from layerprobe.data.splits import Dataset, Split
from layerprobe.errors import BusyError, EnvironmentFault, LayerprobeError, UnknownNameError
from layerprobe.files import free_bytes, full_disk_named
from layerprobe.progress import Listener, Task
from layerprobe.wording import as_moment, as_size
from layerprobe.workflow.signals import Stop, stoppable

_SAMPLED = 16  # images of a split that its size is estimated from
FOLDER = "images"


@dataclass(frozen=True)
class Kept:
    """One split's decoded images: `id` is the folder's name, `used` a UTC time, `size` in bytes."""

    id: str
    data: str
    split: str
    images: int
    size: int
    used: str
    complete: bool


@dataclass(frozen=True)
class Decoding:
    """Where decoded images are kept, and how they are made.

    Args:
        cache: folder of all runs.
        listener: hears of progress; None uses what is there and makes nothing.
        workers: processes that decode; None: one a core, at most 8.
        in_process: images are read in this process alone, which holds a small data set in memory instead.
    """

    cache: Path
    listener: Listener | None = None
    workers: int | None = None
    in_process: bool = True


def with_decoded(
    dataset: Dataset, decoding: Decoding, *, files: Mapping[str, Files], steps: str, source: str
) -> Dataset:
    """The data set with its images decoded once, on disk, for all runs; those that are not there yet are made.

    Args:
        dataset: whose images are as they are to be kept.
        decoding: where and how.
        files: of each split.
        steps: the way from a file to what is kept; another way is kept apart.
        source: what `list_images` calls the data set.

    Raises:
        BusyError: this process holds a data set of the same files, which have changed since.
        DataError: an image cannot be read; what was decoded before stays, and the same command goes on from there.
        EnvironmentFault: the disk lacks the room.
        InterruptedRun: a signal came; what was decoded before stays.
    """
    folder, listener = decoding.cache / FOLDER, decoding.listener
    found = {name: Entry.of(folder, files[name].paths, steps) for name in dataset.splits}
    stamps = {name: files[name].stamps() for name in found}
    stored = {name: Stored(entry) for name, entry in found.items() if entry.is_whole(stamps[name])}
    missing = [name for name in found if name not in stored]
    if missing and listener is None:
        return dataset
    if missing and listener is not None:
        workers = default_workers() if decoding.workers is None else decoding.workers
        _require_room(dataset, {name: (found[name], stamps[name]) for name in missing}, listener)
        for name in missing:
            stored[name] = _made(found[name], dataset.splits[name], stamps[name], source, listener, workers)
    splits = {name: replace(split, image=stored[name]) for name, split in dataset.splits.items()}
    return replace(dataset, splits=splits)


def _require_room(dataset: Dataset, missing: Mapping[str, tuple[Entry, Stamps]], listener: Listener) -> None:
    left = {name: len(dataset.splits[name]) - begun(entry, stamps) for name, (entry, stamps) in missing.items()}
    images = sum(left.values())
    needed = sum(_estimated(dataset, name) * count // len(dataset.splits[name]) for name, count in left.items())
    folder = next(iter(missing.values()))[0].folder.parent
    free = free_bytes(folder) + sum(dropped(entry, stamps) for entry, stamps in missing.values())
    if needed > free:
        raise EnvironmentFault(
            f"{images:,} decoded images need about {as_size(needed)} more, {as_size(free)} are free",
            file=folder,
            fix="Free space, choose another --cache, or decode at every epoch by --set data.cache=off",
        )
    listener.say(f"decoding {images:,} images once into {folder}: about {as_size(needed)} ({as_size(free)} free)")


def _estimated(dataset: Dataset, name: str) -> int:
    """Bytes of a split, from images here and there."""
    split = dataset.splits[name]
    count = min(_SAMPLED, len(split))
    sampled = [split.image(i * len(split) // count).nbytes for i in range(count)]
    return sum(sampled) * len(split) // count


def _made(  # noqa: PLR0913 - what, where, and who hears of it
    entry: Entry, split: Split, stamps: Stamps, source: str, listener: Listener, workers: int
) -> Stored:
    def wait() -> None:
        if is_held_here(entry):
            raise BusyError(
                f"the {split.name} images have changed, and this process still uses them as they were",
                file=entry.folder,
                fix="Delete the data set built before, or run the command again",
            )
        listener.say(f"waiting for another process, which uses or decodes the {split.name} images")

    # Waiting is left to the signals' own handlers: it can end anywhere.
    with entry.locked(wait=wait), stoppable() as stop:
        if not entry.is_whole(stamps):  # it may have been made while this process waited
            if done := begun(entry, stamps):
                listener.say(f"{split.name}: {done:,} of {len(split):,} images are decoded already")
            try:
                task_name = f"decoding {split.name}"
                with listener.task(task_name, len(split), "images") as task, full_disk_named(entry.folder):
                    stopped = _Stopped(task, stop)
                    fill(entry, split, stopped, stamps=stamps, about={"data": source}, workers=workers)
                stop.raise_if_asked("stopped")  # a signal may come while the workers end
            except LayerprobeError:
                # A signal to the whole process group may end a data worker before this process: that is no fault.
                done = begun(entry, stamps)
                stop.raise_if_asked(
                    f"{split.name}: {done:,} of {len(split):,} images are decoded; the same command goes on from there"
                )
                raise
    return Stored(entry, stamps)


@dataclass(frozen=True)
class _Stopped:
    """A task that a signal ends at its next step."""

    task: Task
    stop: Stop

    def advance(self, steps: int = 1, **figures: float) -> None:
        self.task.advance(steps, **figures)
        self.stop.raise_if_asked("stopped")


def list_images(cache: Path) -> list[Kept]:
    """What is kept, that used last first."""
    return [_kept(entry) for entry in entries(cache / FOLDER)]


def clean_images(cache: Path, ids: Sequence[str] = ()) -> list[Kept]:
    """Remove decoded images; what was removed. Runs are not touched: they decode anew where they need to.

    Args:
        cache: folder of all runs.
        ids: of which entries; none: of all that no process reads from or builds.

    Raises:
        BusyError: a process uses one that was named.
        UnknownNameError: there is none of that name; nothing is removed.
    """
    known = {entry.folder.name: entry for entry in entries(cache / FOLDER)}
    for name in ids:
        if name not in known:
            raise UnknownNameError("entry", name, known, file=cache / FOLDER)
    removed = []
    for name in ids or known:
        kept = _kept(known[name])
        try:
            known[name].remove()
        except BlockingIOError as error:
            if ids:
                raise BusyError("in use by another process", file=known[name].folder, fix="Wait for it") from error
            continue
        removed.append(kept)
    return removed


def _kept(entry: Entry) -> Kept:
    about = entry.about()
    return Kept(
        id=entry.folder.name,
        data=str(about.get("data", "")),
        split=str(about.get("split", "")),
        images=int(about.get("images", 0)),
        size=entry.bytes_on_disk(),
        used=as_moment(entry.used()),
        complete=entry.is_whole(),
    )
