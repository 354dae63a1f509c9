"""Batches of pixels, read in this process or by worker processes; the pixels are the same."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from layerprobe.data.batches import Indices
from layerprobe.data.splits import Image, Split
from layerprobe.data.transforms import AUGMENTATIONS
from layerprobe.system.computing import serve, start_method
from layerprobe.system.errors import DataError, EnvironmentFault, LayerprobeError, UnknownNameError
from layerprobe.system.memory import memory_faults_told

Batch = TypeVar("Batch")


def load_batches(  # noqa: PLR0913 - what to read, and the three keys of the augmentation
    split: Split, batches: Sequence[Indices], *, epoch: int, seed: int, augment: str, workers: int
) -> Generator[tuple[Tensor, Indices], None, None]:
    """The batches of an epoch, augmented.

    The augmentation of an image depends on (seed, epoch, index of the image) alone: the number of workers changes only
    the speed, and nothing is drawn from global generators. Closing the iterator ends the workers.

    Args:
        epoch: from 1.
        workers: number of processes that read ahead; 0 reads in this process.

    Yields:
        uint8 (B, H, W, 3) in main memory, and the indices (B,) it was made from.
    """
    if augment not in AUGMENTATIONS:
        raise UnknownNameError("augmentation", augment, AUGMENTATIONS)
    loaded = in_order(_Reader(split, augment, seed, epoch), batches, workers)
    return ((pixels, indices) for pixels, indices in zip(loaded, batches, strict=True))


def plain_batches(split: Split, *, batch_size: int, workers: int) -> Generator[Tensor, None, None]:
    """All images in order, in their test view, not augmented; the last batch may be smaller.

    Args:
        batch_size: at least 1.

    Yields:
        uint8 (B, H, W, 3) in main memory.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size = {batch_size}: must be at least 1")
    batches = [
        np.arange(start, min(start + batch_size, len(split)), dtype=np.int64)
        for start in range(0, len(split), batch_size)
    ]
    return batches_of(split, batches, workers=workers)


def batches_of(split: Split, batches: Sequence[Indices], *, workers: int) -> Generator[Tensor, None, None]:
    """As `plain_batches`, of images with these indices."""
    return in_order(_Reader(split, "none", seed=0, epoch=0), batches, workers)


@dataclass(frozen=True, eq=False)
class _Reader:
    """Indices of a batch -> its pixels; a copy is sent to every worker."""

    split: Split
    augment: str
    seed: int
    epoch: int

    def __call__(self, indices: Indices) -> Tensor:
        first_image = self._image(indices[0].item())
        pixels = np.empty((len(indices), *first_image.shape), np.uint8)
        for row, index in enumerate(indices.tolist()):
            image = self._image(index) if row else first_image
            if image.shape != first_image.shape:
                raise DataError(
                    f"{_size(image)} pixels in a batch of {_size(first_image)} pixels",
                    file=self.split.ids[index],
                    fix="Resize the data set to one size",
                )
            pixels[row] = image  # while the image is in the processor's cache
        return torch.from_numpy(pixels)

    def _image(self, index: int) -> Image:
        split = self.split
        if self.augment == "none" and split.test_image:
            return split.test_image(index)
        image = split.image(index)
        if self.augment == "none":
            return split.test_view(image) if split.test_view else image
        view = split.train_view or AUGMENTATIONS[self.augment]
        return view(image, np.random.default_rng([self.seed, self.epoch, index]))


def _size(image: Image) -> str:
    return f"{image.shape[1]}x{image.shape[0]}"


@dataclass(frozen=True, eq=False)
class _Served(TorchDataset[Batch | LayerprobeError]):
    """In a worker: gives a batch, or the error that the main process is to raise, as a value.

    If the worker raised the error, torch would raise it again with the worker's traceback in its message.
    """

    read: Callable[[Indices], Batch]

    def __getitem__(self, indices: Indices) -> Batch | LayerprobeError:
        try:
            with memory_faults_told():
                batch = self.read(indices)
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


def in_order(
    read: Callable[[Indices], Batch], batches: Sequence[Indices], workers: int
) -> Generator[Batch, None, None]:
    """The results of a function for each batch of indices, from this process or from others that read ahead.

    Args:
        workers: number of processes; 0 calls it in this process.
    """
    if not workers:
        for indices in batches:
            yield read(indices)
        return
    loader: DataLoader[Batch | LayerprobeError] = DataLoader(
        _Served(read),
        batch_size=None,  # an item is a batch already
        sampler=batches,
        num_workers=min(workers, max(1, len(batches))),
        collate_fn=_unchanged,
        worker_init_fn=_begin,
        # Otherwise each epoch would draw from the global generator and change what dropout draws.
        generator=torch.Generator(),
        multiprocessing_context=_start_method(),
    )
    loaded = iter(loader)
    try:
        for _ in batches:
            batch = _next(loaded, loader.num_workers)
            if isinstance(batch, LayerprobeError):
                raise batch
            yield batch
    finally:
        # torch ends the workers when its iterator is deleted; this is the last reference.
        del loaded


def _next(loaded: Iterator[Batch | LayerprobeError], workers: int) -> Batch | LayerprobeError:
    try:
        return next(loaded)
    except (RuntimeError, EOFError, ConnectionError, FileNotFoundError) as error:
        # A dead worker's connection is closed, or torch has found that the worker is gone.
        if isinstance(error, RuntimeError) and "DataLoader worker (pid" not in str(error):
            raise
        # Returned, not raised: this error's traceback would keep the iterator alive, and with it the other workers.
        return EnvironmentFault("a data worker was killed (memory?)", fix=f"Use --workers {0 if workers == 1 else 1}")


def _start_method() -> str:
    # The fork server has imported torch and has no threads; a fork of it starts as quickly as a fork of this process.
    method = start_method()
    if method == "forkserver":
        multiprocessing.set_forkserver_preload([__name__])
    return method


def _begin(worker: int) -> None:  # noqa: ARG001 - torch passes the worker's number
    serve()


def _unchanged(batch: Any) -> Any:
    return batch
