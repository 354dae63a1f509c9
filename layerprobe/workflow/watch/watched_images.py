"""The images that are measured at every epoch, held in memory; random state stays as it was."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from layerprobe.measure.extraction import BATCH_SIZE
from layerprobe.values.intervals import FEWEST_UNITS
from layerprobe.workflow.python.loaders import Batch, BatchOf, read_batches

Label = int | str  # of a class


@contextlib.contextmanager
def keep_random_state() -> Iterator[None]:
    """Restore the generators of torch (CPU and CUDA), numpy and Python at the end of the block."""
    # Before CUDA is initialised, nothing here draws from its generators, and its seed waits to be set.
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    of_numpy, of_python = np.random.get_state(), random.getstate()  # noqa: NPY002 - the user's
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)


def seed_transforms(seed: int) -> None:
    """Seed the generators that transforms of images draw from on the CPU.

    Not `torch.manual_seed`, which would also set the seed that CUDA is initialised with later.
    """
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - transforms draw from the global generator
    random.seed(seed)


@dataclass(frozen=True, eq=False)
class WatchedImages:
    """The watched images of a split.

    Args:
        images: (N, ...) as the loader gives them.
        labels: (N,) int64, or texts.
        places: (N,) rows of the data set, or numbers in the order of the loader.
        batch_size: as of the loader.
        counts: class -> number of its images in the loader, of all its classes.
    """

    images: Tensor
    labels: NDArray[Any]
    places: NDArray[np.int64]
    batch_size: int
    counts: Mapping[Label, int]

    @property
    def batches(self) -> Iterator[Batch]:
        """The images in batches."""
        for start in range(0, len(self.labels), self.batch_size):
            rows = slice(start, start + self.batch_size)
            yield Batch(self.images[rows], self.labels[rows])

    def max_loss(self, images: int) -> WatchedImages:
        """At most so many of the images: whole classes, or some images of 10."""
        return self.of_counts(_reduce_counts(Counter(self.labels.tolist()), images))

    def of_counts(self, counts: Mapping[Label, int]) -> WatchedImages:
        """Some images of some classes, by class."""
        rows = _draw_rows(self.labels, self.places, counts)
        selected = self.images[torch.from_numpy(rows)], self.labels[rows], self.places[rows]
        return WatchedImages(*selected, self.batch_size, self.counts)

    def __str__(self) -> str:
        classes, images, total = len(np.unique(self.labels)), len(self.labels), sum(self.counts.values())
        if images == total:
            return f"all {classes:,} classes, {images:,} images"
        return f"{classes:,} of {len(self.counts):,} classes, {images:,} of {total:,} images"


def read_images(  # noqa: PLR0913 - a loader, how it is read, and how much of it
    loader: Iterable[Any],
    split: str,
    *,
    memory: int,
    most: int | None = None,
    counts: Mapping[str, int] | None = None,
    batch: BatchOf | None = None,
    note: Callable[[str], object] | None = None,
) -> WatchedImages:
    """Read the watched images of a loader, in one pass and in a fixed order.

    Of a DataLoader the data set is read by rows: those to watch alone where it states its labels, and all where it does
    not, or `batch` may read others. Any other loader is read as it comes.

    For the block of `keep_random_state`, as the generators are seeded.

    Args:
        memory: bytes that the images may take.
        most: number of images; None for any.
        counts: name of a class -> number of its images; None: drawn by a seed.
        batch, note: as of `read_batches`.
    """

    def draw_counts(class_counts: Mapping[Label, int]) -> Mapping[Label, int]:
        if counts is not None:  # a label is a class's number or its name
            return {label: counts[str(label)] for label in class_counts if str(label) in counts}
        return class_counts if most is None else _reduce_counts(class_counts, most)

    rows, stated_counts = image_rows(loader), None
    if rows is not None and isinstance(loader, DataLoader):
        labels = _read_labels(loader.dataset, rows) if batch is None else None
        if labels is not None:
            stated_counts, places = Counter(labels.tolist()), np.array(rows)
            rows = places[_draw_rows(labels, places, draw_counts(stated_counts))].tolist()
        loader = _build_loader(loader, rows)
    else:
        seed_transforms(0)
    held, seen = _hold_images(read_batches(loader, split, batch=batch, note=note), rows, memory, counts)
    held.sort(key=lambda item: item[0])
    images = WatchedImages(
        torch.stack([image for _, image, _ in held]),
        np.array([label for _, _, label in held]),
        np.array([position for position, _, _ in held], np.int64),
        _batch_size_of(loader),
        seen,
    )
    if stated_counts is not None:
        return replace(images, counts=stated_counts)
    return images if counts is None and most is None else images.of_counts(draw_counts(seen))


def image_rows(loader: Iterable[Any]) -> list[int] | None:
    """The rows of a loader's data set that it may give; None where images cannot be read by their rows."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    if loader.batch_sampler is None or not hasattr(loader.dataset, "__len__"):
        return None
    indices = getattr(loader.sampler, "indices", None)  # of a SubsetRandomSampler
    return sorted(map(int, indices)) if indices is not None else list(range(len(loader.dataset)))


def _draw_order(number: Label) -> int:
    """A hash below 2**64 that orders classes, or images, as if at random; the smallest are drawn first."""
    return int.from_bytes(hashlib.blake2b(str(number).encode(), digest_size=8).digest())


def _reduce_counts(counts: Mapping[Label, int], images: int) -> dict[Label, int]:
    """Class -> how many of its images are drawn: whole classes up to so many images, or some images of 10 classes."""
    drawn, remaining = dict[Label, int](), images
    ordered = sorted(counts, key=_draw_order)
    for label in ordered:
        remaining -= counts[label]
        if remaining < 0:
            break
        drawn[label] = counts[label]
    if len(drawn) >= min(FEWEST_UNITS, len(counts)):
        return drawn
    first_classes = ordered[:FEWEST_UNITS]
    return {label: min(counts[label], max(2, images // len(first_classes))) for label in first_classes}


def _draw_rows(labels: NDArray[Any], places: NDArray[np.int64], counts: Mapping[Label, int]) -> NDArray[np.bool_]:
    """(N,) whether an image is drawn: the first of each class by `_draw_order`, as many as `counts` says."""
    is_drawn = np.zeros(len(labels), np.bool_)
    for label, count in counts.items():
        rows = np.flatnonzero(labels == label)
        if len(rows) > count:
            rows = np.array(sorted(rows, key=lambda row: _draw_order(int(places[row])))[:count])
        is_drawn[rows] = True
    return is_drawn


def _hold_images(
    batches: Iterable[Batch], rows: Sequence[int] | None, memory: int, classes: Collection[str] | None
) -> tuple[list[tuple[int, Tensor, Label]], Counter[Label]]:
    """Place, image and label of the images that are held; and the number of images of every class.

    Where they exceed the memory, the classes that come last by `_draw_order` are dropped for good, and of the last 10
    half of the images.
    """
    held: list[tuple[int, Tensor, Label]] = []
    seen: Counter[Label] = Counter()
    class_bar = image_bar = 2**64
    held_bytes = 0
    places = itertools.count() if rows is None else iter(rows)
    for batch in batches:
        for image, label, position in zip(batch.images, batch.labels.tolist(), places, strict=False):
            seen[label] += 1
            is_watched = classes is None or str(label) in classes
            if is_watched and _draw_order(label) < class_bar and _draw_order(position) < image_bar:
                held.append((position, image.detach().cpu().clone(), label))
                held_bytes += image.nbytes
        while held_bytes > memory:
            labels = {label for _, _, label in held}
            if len(labels) > FEWEST_UNITS:
                class_bar = max(map(_draw_order, labels))
                labels = {label for label in labels if _draw_order(label) < class_bar}
            else:
                image_bar //= 2
            held = [item for item in held if item[2] in labels and _draw_order(item[0]) < image_bar]
            held_bytes = sum(image.nbytes for _, image, _ in held)
    return held, seen


class _SeededRows(Dataset[Any]):
    """Rows of a data set, of which random transforms draw by the row, whatever is read before it."""

    def __init__(self, dataset: Any, rows: Sequence[int]) -> None:
        self._dataset, self._rows = dataset, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Any:
        seed_transforms(self._rows[number])
        return self._dataset[self._rows[number]]


def _build_loader(loader: DataLoader[Any], rows: Sequence[int]) -> DataLoader[Any]:
    """A loader of the same images in the order of their rows, which leaves the other's workers and sampler alone."""
    return DataLoader(
        _SeededRows(loader.dataset, rows),
        batch_size=_batch_size_of(loader),
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        timeout=loader.timeout,
    )


def _batch_size_of(loader: object) -> int:
    size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if isinstance(size, int) and size > 0 else BATCH_SIZE


def _read_labels(dataset: Any, rows: Sequence[int]) -> NDArray[Any] | None:
    """The labels of some rows that a data set states; None where it does not."""
    if isinstance(dataset, Subset):
        return _read_labels(dataset.dataset, [int(dataset.indices[row]) for row in rows])
    stated = dataset.tensors[-1] if isinstance(dataset, TensorDataset) else None
    stated = getattr(dataset, "targets", getattr(dataset, "labels", None)) if stated is None else stated
    if not isinstance(stated, Tensor | np.ndarray | list | tuple) or len(stated) != len(dataset):
        return None
    labels = np.asarray(stated)
    return (
        labels[np.asarray(rows, np.int64)].astype(np.int64) if labels.dtype.kind in "iu" and labels.ndim == 1 else None
    )
