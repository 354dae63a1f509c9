"""Batches of pixels: which images make one, read in this process or by worker processes; the pixels are the same.

Which images are in a batch depends on (labels, seed, epoch) alone, so that a resumed run draws the same ones.
"""

from __future__ import annotations

import itertools
import multiprocessing
import operator
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from layerprobe.data.splits import Image, LabelArray, Split
from layerprobe.data.transforms import AUGMENTATIONS
from layerprobe.system.computing import serve, start_method
from layerprobe.system.errors import DataError, EnvironmentFault, LayerprobeError, RecipeError, UnknownNameError
from layerprobe.system.memory import memory_faults_told

Indices = NDArray[np.int64]  # (B,)


def class_batches(  # noqa: PLR0913 - the rules in which the papers' samplers differ
    labels: LabelArray,
    *,
    batch_size: int,
    images_per_class: int,
    seed: int,
    epoch: int,
    by_size: bool = True,
    singletons: bool = False,
    replacement: bool = False,
    self_pairs: float = 0.0,
) -> list[Indices]:
    """The batches of an epoch, each of p classes with k images.

    Vo & Hays, section 3.3: m = pk with p, k > 1. As in their released code, classes are drawn without replacement, with
    probabilities proportional to their sizes, and classes of one image are skipped. p is batch_size // k. If k does
    not divide batch_size, batches are smaller: 75 with k = 37 gives 74 images, 75 with k = 12 gives 72.

    Args:
        labels: (N,) classes.
        batch_size: m, at most N.
        images_per_class: k, from 2 to batch_size; from 1 with `singletons`. Images are drawn without replacement; only
            in classes with fewer than k images some are repeated.
        by_size: False draws all classes with equal probability, as Fehervari et al. (2019) do for N-pairs and episodes.
        singletons: also draw classes of one image (class-balanced batches, Zhai & Wu 2019, section 6.4.1).
        epoch: from 1.
        self_pairs: with k = 2, the probability that a class gives one image, augmented twice, in place of two images
            (Fehervari et al. 2019, section 2.4).

    Returns:
        N // batch_size arrays (p * k,) of indices into `labels`; the images of a class stand side by side. N + i is
        image i with another augmentation.
    """
    count_class_batches(labels, batch_size=batch_size, images_per_class=images_per_class, singletons=singletons)
    _, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    images = np.argsort(inverse, kind="stable")  # those of a class side by side
    starts, counts = (np.cumsum(sizes) - sizes).tolist(), sizes.tolist()
    count, k = batch_size // images_per_class, images_per_class
    eligible = np.flatnonzero(sizes >= _least(singletons))
    chances = sizes[eligible] / sizes[eligible].sum()
    cumulated = _cumulated(chances)
    rng = np.random.default_rng([seed, epoch])

    def one_batch() -> Indices:
        if by_size:
            classes = eligible[_drawn_by_size(rng, chances, cumulated, count)]
        else:
            classes = rng.choice(eligible, count, replace=False)
        places = [starts[c] + rng.choice(counts[c], k, replace=replacement or counts[c] < k) for c in classes.tolist()]
        indices: Indices = images[np.concatenate(places)]
        if self_pairs:
            is_self = np.flatnonzero(rng.random(count) < self_pairs)
            indices[2 * is_self + 1] = len(labels) + indices[2 * is_self]
        return indices

    return [one_batch() for _ in range(len(labels) // batch_size)]


def count_class_batches(
    labels: LabelArray, *, batch_size: int, images_per_class: int, singletons: bool = False
) -> tuple[int, int]:
    """The number of batches of `class_batches`, in every epoch, and of images in each; none is made.

    Raises:
        RecipeError: too few images or classes for a batch.
    """
    _require_enough(labels, batch_size)
    least = _least(singletons)
    if not least <= images_per_class <= batch_size:
        raise RecipeError(
            f"train.images_per_class = {images_per_class}: must be from {least} to train.batch_size = {batch_size}",
            fix="Change one of the two",
        )
    sizes, count = np.unique(labels, return_counts=True)[1], batch_size // images_per_class
    eligible = np.count_nonzero(sizes >= least)
    if eligible < count:
        enough = f"{least} image{'s' * (least > 1)} or more"
        raise RecipeError(
            f"train.batch_size = {batch_size} with train.images_per_class = {images_per_class} needs {count} classes of"
            f" {enough}; {eligible} of the {len(sizes)} training classes have as many",
            fix="Lower train.batch_size or raise train.images_per_class",
        )
    return len(labels) // batch_size, count * images_per_class


def _least(singletons: bool) -> int:
    """The images that a class needs to be drawn."""
    return 1 if singletons else 2


def _drawn_by_size(
    rng: np.random.Generator, chances: NDArray[np.float64], cumulated: NDArray[np.float64], count: int
) -> NDArray[np.int64]:
    """What `rng.choice(len(chances), count, replace=False, p=chances)` draws, bit for bit, without its pass over all.

    numpy draws as many as are lacking, drops repeated ones, and draws again with the chances of those drawn set to 0.

    Args:
        cumulated: of `chances`, which are the same for every batch.
    """
    drawn = np.empty(0, np.int64)
    while len(drawn) < count:
        uniform = rng.random(count - len(drawn))
        if len(drawn):
            left = chances.copy()
            left[drawn] = 0
            cumulated = _cumulated(left)
        further = cumulated.searchsorted(uniform, side="right")
        drawn = np.concatenate([drawn, further[np.sort(np.unique(further, return_index=True)[1])]])
    return drawn


def _cumulated(chances: NDArray[np.float64]) -> NDArray[np.float64]:
    sums: NDArray[np.float64] = np.cumsum(chances)
    sums /= sums[-1]
    return sums


def shuffled_batches(labels: LabelArray, *, batch_size: int, seed: int, epoch: int) -> list[Indices]:
    """The batches of an epoch, of images in random order, whatever their classes.

    Args:
        labels: (N,) classes, of which only N is used.
        batch_size: at most N.
        epoch: from 1.

    Returns:
        N // batch_size arrays (batch_size,) of indices; the N % batch_size images at the end are dropped.
    """
    _require_enough(labels, batch_size)
    order = np.random.default_rng([seed, epoch]).permutation(len(labels))
    return list(order[: len(labels) // batch_size * batch_size].reshape(-1, batch_size))


def count_shuffled_batches(labels: LabelArray, *, batch_size: int) -> tuple[int, int]:
    """The number of batches of `shuffled_batches`, in every epoch, and of images in each."""
    _require_enough(labels, batch_size)
    return len(labels) // batch_size, batch_size


def _require_enough(labels: LabelArray, batch_size: int) -> None:
    if batch_size < 1:
        raise RecipeError(f"train.batch_size = {batch_size}: must be at least 1", fix="Raise train.batch_size")
    if len(labels) < batch_size:
        raise RecipeError(
            f"train.batch_size = {batch_size}: there are {len(labels)} training images", fix="Lower train.batch_size"
        )


Key = TypeVar("Key")
Batch = TypeVar("Batch")


def load_batches(
    split: Split, batches: Iterable[tuple[int, Indices]], *, seed: int, augment: str, workers: int
) -> Generator[tuple[Tensor, Indices], None, None]:
    """The batches of epochs, augmented.

    The augmentation of an image depends on (seed, epoch, index) alone: the number of workers changes only the speed,
    and nothing is drawn from global generators. Of N images, the index N + i is image i with another augmentation. The
    workers stay from the first batch to the last; closing the iterator ends them.

    Args:
        batches: (epoch from 1, indices (B,)) of each; with workers drawn two for each worker ahead.
        workers: number of processes that read ahead; 0 reads in this process.

    Yields:
        uint8 (B, H, W, 3) in main memory, and the indices (B,) it was made from.
    """
    if augment not in AUGMENTATIONS:
        raise UnknownNameError("augmentation", augment, AUGMENTATIONS)
    drawn_ahead, drawn = itertools.tee(batches)
    loaded = in_order(_BatchReader(split, augment, seed), drawn_ahead, workers)
    return ((pixels, indices) for pixels, (_, indices) in zip(loaded, drawn, strict=True))


def plain_batches(
    split: Split, *, batch_size: int, workers: int, rows: range | None = None, share: slice = slice(None)
) -> Generator[Tensor, None, None]:
    """Images in order, in their test view, not augmented; the last batch may be smaller.

    Args:
        batch_size: at least 1.
        rows: of the images; None for all.
        share: which of the batches are given.

    Yields:
        uint8 (B, H, W, 3) in main memory.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size = {batch_size}: must be at least 1")
    rows = range(len(split)) if rows is None else rows
    batches = [
        np.arange(start, min(start + batch_size, rows.stop), dtype=np.int64)
        for start in range(rows.start, rows.stop, batch_size)
    ]
    return batches_of(split, batches[share], workers=workers)


def batches_of(split: Split, batches: Sequence[Indices], *, workers: int) -> Generator[Tensor, None, None]:
    """As `plain_batches`, of images with these indices."""
    return in_order(_BatchReader(split, "none", seed=0), [(0, indices) for indices in batches], workers)


@dataclass(frozen=True, eq=False)
class _BatchReader:
    """The epoch and the indices of a batch -> its pixels; a copy is sent to every worker."""

    split: Split
    augment: str
    seed: int

    def __call__(self, batch: tuple[int, Indices]) -> Tensor:
        epoch, indices = batch
        first_image = self._image(indices[0].item(), epoch)
        pixels = np.empty((len(indices), *first_image.shape), np.uint8)
        for row, index in enumerate(indices.tolist()):
            image = self._image(index, epoch) if row else first_image
            if image.shape != first_image.shape:
                raise DataError(
                    f"{_size(image)} pixels in a batch of {_size(first_image)} pixels",
                    file=self.split.ids[index % len(self.split)],
                    fix="Resize the data set to one size",
                )
            pixels[row] = image  # while the image is in the processor's cache
        return torch.from_numpy(pixels)

    def _image(self, index: int, epoch: int) -> Image:
        split = self.split
        second, index = divmod(index, len(split))
        if self.augment == "none" and split.test_image:
            return split.test_image(index)
        image = split.image(index)
        if self.augment == "none":
            return split.test_view(image) if split.test_view else image
        view = split.train_view or AUGMENTATIONS[self.augment]
        return view(image, np.random.default_rng([self.seed, epoch, index, *[second] * (second > 0)]))


def _size(image: Image) -> str:
    return f"{image.shape[1]}x{image.shape[0]}"


@dataclass(frozen=True, eq=False)
class _Served(TorchDataset[Batch | LayerprobeError]):
    """In a worker: gives a batch, or the error that the main process is to raise, as a value.

    If the worker raised the error, torch would raise it again with the worker's traceback in its message.
    """

    read: Callable[[Any], Batch]

    def __getitem__(self, key: Any) -> Batch | LayerprobeError:
        try:
            with memory_faults_told():
                batch = self.read(key)
        except LayerprobeError as error:
            return error
        fault = _share(batch) if isinstance(batch, Tensor) else None
        return fault or batch


def _share(pixels: Tensor) -> EnvironmentFault | None:
    """Move pixels to shared memory now; if torch did so while it sends them, an error would be lost."""
    try:
        pixels.share_memory_()
    except RuntimeError as error:
        return EnvironmentFault(
            f"shared memory is full ({str(error).splitlines()[0]})",
            fix="Use --workers 0, or give the container more with --shm-size",
        )
    return None


def in_order(read: Callable[[Key], Batch], keys: Iterable[Key], workers: int) -> Generator[Batch, None, None]:
    """The results of a function for each key of a batch, from this process or from others that read ahead.

    Args:
        keys: such as the indices of each batch; with workers drawn two for each worker ahead.
        workers: number of processes; 0 calls it in this process.
    """
    if not workers:
        for key in keys:
            yield read(key)
        return
    method = start_method()
    if method == "forkserver":
        # It has imported torch and has no threads; a fork of it starts as quickly as a fork of this process.
        multiprocessing.set_forkserver_preload([__name__])
    loader: DataLoader[Batch | LayerprobeError] = DataLoader(
        _Served(read),
        batch_size=None,  # an item is a batch already
        sampler=keys,
        num_workers=min(workers, max(1, operator.length_hint(keys, workers))),
        collate_fn=_unchanged,
        worker_init_fn=_begin,
        # Otherwise it would draw from the global generator and change what dropout draws.
        generator=torch.Generator(),
        multiprocessing_context=method,
    )
    loaded = iter(loader)
    try:
        while (batch := _next(loaded, loader.num_workers)) is not None:
            if isinstance(batch, LayerprobeError):
                raise batch
            yield batch
    finally:
        # torch ends the workers when its iterator is deleted; this is the last reference.
        del loaded


def _next(loaded: Iterator[Batch | LayerprobeError], workers: int) -> Batch | LayerprobeError | None:
    """The next batch, its error as a value, or None after the last."""
    try:
        return next(loaded, None)
    except (RuntimeError, EOFError, ConnectionError, FileNotFoundError) as error:
        # A dead worker's connection is closed, or torch has found that the worker is gone.
        if isinstance(error, RuntimeError) and "DataLoader worker (pid" not in str(error):
            raise
        # Returned, not raised: this error's traceback would keep the iterator alive, and with it the other workers.
        return EnvironmentFault("a data worker was killed (memory?)", fix=f"Use --workers {0 if workers == 1 else 1}")


def _begin(worker: int) -> None:  # noqa: ARG001 - torch passes the worker's number
    serve()


def _unchanged(batch: Any) -> Any:
    return batch
