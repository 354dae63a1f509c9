"""The images of a split that are measured at every epoch: whole classes, read once and held in memory."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from layerprobe.values.intervals import FEWEST_UNITS
from layerprobe.workflow.python.loaders import BATCH_SIZE, Batch, BatchOf, read_batches
from layerprobe.workflow.watch.random_state import seed_transforms

Label = int | str  # of a class


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

    def at_most(self, images: int) -> WatchedImages:
        """At most so many of the images, by `_fewer`."""
        return self.of_counts(_fewer(Counter(self.labels.tolist()), images))

    def of_counts(self, counts: Mapping[Label, int]) -> WatchedImages:
        """Some images of some classes, by class."""
        rows = _drawn_rows(self.labels, self.places, counts)
        taken = self.images[torch.from_numpy(rows)], self.labels[rows], self.places[rows]
        return WatchedImages(*taken, self.batch_size, self.counts)

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

    Of a DataLoader the images of its data set are read, by a loader of its own; those that are not watched only where
    the data set does not state its labels, or `batch` may read others.

    For the block of `kept_random_state`, as the generators are seeded.

    Args:
        memory: bytes that the images may take.
        most: number of images; None for any.
        counts: name of a class -> number of its images; None: drawn by a seed.
        batch, note: as of `read_batches`.
    """
    rows, stated = image_rows(loader), None
    if rows is not None and isinstance(loader, DataLoader):
        labels = _stated_labels(loader.dataset, rows) if batch is None else None
        if labels is not None:
            stated = Counter(labels.tolist())
            wanted = _fewer(stated, len(rows) if most is None else most) if counts is None else _named(counts, stated)
            rows = np.array(rows)[_drawn_rows(labels, np.array(rows), wanted)].tolist()
        loader = _own_loader(loader, rows)
    else:
        seed_transforms(0)
    held, seen = _held(read_batches(loader, split, batch=batch, note=note), rows, memory, counts)
    kept = sorted((row for of_class in held.values() for row in of_class), key=lambda row: row[0])
    found = WatchedImages(
        torch.stack([image for _, image, _ in kept]),
        np.array([label for _, _, label in kept]),
        np.array([place for place, _, _ in kept], np.int64),
        _size(loader),
        stated or seen,
    )
    if counts is not None:
        return found.of_counts(_named(counts, found.counts))
    return found if most is None else found.at_most(most)


def _named(counts: Mapping[str, int], labels: Iterable[Label]) -> dict[Label, int]:
    """The numbers of images by label, which is a class's number or its name."""
    return {label: counts[str(label)] for label in labels if str(label) in counts}


def image_rows(loader: Iterable[Any]) -> list[int] | None:
    """The rows of a loader's data set that it may give; None where images cannot be read by their rows."""
    by_rows = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
    if not by_rows or loader.batch_sampler is None or not hasattr(loader.dataset, "__len__"):  # type: ignore[attr-defined] # a DataLoader
        return None
    indices = getattr(loader.sampler, "indices", None)  # type: ignore[attr-defined] # of a SubsetRandomSampler
    return sorted(map(int, indices)) if indices is not None else list(range(len(loader.dataset)))  # type: ignore[attr-defined]


def _drawn(number: Label) -> int:
    """The place of a class, or of an image, in the order in which they are drawn: below 2**64, always the same."""
    return int.from_bytes(hashlib.blake2b(str(number).encode(), digest_size=8).digest())


def _fewer(counts: Mapping[Label, int], images: int) -> dict[Label, int]:
    """Class -> number of its images, at most so many together: whole classes, or equally many images of 10."""
    found, left = dict[Label, int](), images
    ordered = sorted(counts, key=_drawn)
    for label in ordered:
        left -= counts[label]
        if left < 0:
            break
        found[label] = counts[label]
    if len(found) >= min(FEWEST_UNITS, len(counts)):
        return found
    few = ordered[:FEWEST_UNITS]
    return {label: min(counts[label], max(2, images // len(few))) for label in few}


def _drawn_rows(labels: NDArray[Any], places: NDArray[np.int64], counts: Mapping[Label, int]) -> NDArray[np.bool_]:
    """(N,) whether an image is among the first of its class, as many as the class has."""
    kept = np.zeros(len(labels), np.bool_)
    for label, count in counts.items():
        rows = np.flatnonzero(labels == label).tolist()
        kept[rows if len(rows) <= count else sorted(rows, key=lambda row: _drawn(int(places[row])))[:count]] = True
    return kept


def _held(
    batches: Iterable[Batch], rows: Sequence[int] | None, memory: int, classes: Collection[str] | None
) -> tuple[dict[Label, list[tuple[int, Tensor, Label]]], Counter[Label]]:
    """Class -> place, image and label of each of its images; and the number of images of every class.

    Where they exceed the memory, the classes that come last in the order of `_drawn` are dropped for good, and of the
    last 10 half of the images.
    """
    held: dict[Label, list[tuple[int, Tensor, Label]]] = {}
    seen: Counter[Label] = Counter()
    class_bar = image_bar = 2**64
    number = taken = 0
    for batch in batches:
        for image, label in zip(batch.images, batch.labels.tolist(), strict=True):
            place = number if rows is None else rows[number]
            seen[label] += 1
            number += 1
            if (classes is None or str(label) in classes) and _drawn(label) < class_bar and _drawn(place) < image_bar:
                held.setdefault(label, []).append((place, image.detach().cpu().clone(), label))
                taken += image.nbytes
        while taken > memory:
            if len(held) > FEWEST_UNITS:
                class_bar = max(map(_drawn, held))
            else:
                image_bar //= 2
            held = {
                label: [row for row in of_class if _drawn(row[0]) < image_bar]
                for label, of_class in held.items()
                if _drawn(label) < class_bar
            }
            taken = sum(image.nbytes for of_class in held.values() for _, image, _ in of_class)
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


def _own_loader(loader: DataLoader[Any], rows: Sequence[int]) -> DataLoader[Any]:
    """A loader of the same images in the order of their rows, which leaves the other's workers and sampler alone."""
    return DataLoader(
        _SeededRows(loader.dataset, rows),
        batch_size=_size(loader),
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        timeout=loader.timeout,
    )


def _size(loader: object) -> int:
    known = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return known if isinstance(known, int) and known > 0 else BATCH_SIZE


def _stated_labels(dataset: Any, rows: Sequence[int]) -> NDArray[Any] | None:
    """The labels of some rows that a data set states; None where it does not."""
    if isinstance(dataset, Subset):
        return _stated_labels(dataset.dataset, [int(dataset.indices[row]) for row in rows])
    stated = dataset.tensors[-1] if isinstance(dataset, TensorDataset) else None
    stated = getattr(dataset, "targets", getattr(dataset, "labels", None)) if stated is None else stated
    if not isinstance(stated, Tensor | np.ndarray | list | tuple) or len(stated) != len(dataset):
        return None
    labels = np.asarray(stated)
    return (
        labels[np.asarray(rows, np.int64)].astype(np.int64) if labels.dtype.kind in "iu" and labels.ndim == 1 else None
    )
