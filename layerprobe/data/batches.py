"""Which images make a batch: functions of (labels, seed, epoch) alone, so that a resumed run draws the same batches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.splits import LabelArray
from layerprobe.system.errors import RecipeError

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

    Returns:
        N // batch_size arrays (p * k,) of indices into `labels`; the images of a class stand side by side.
    """
    _require_enough(labels, batch_size)
    least = 1 if singletons else 2
    _require_between(least, images_per_class, batch_size)
    _, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    members = np.split(np.argsort(inverse, kind="stable"), np.cumsum(sizes)[:-1])
    count = batch_size // images_per_class
    eligible = np.flatnonzero(sizes >= least)
    if len(eligible) < count:
        enough = f"{least} image{'s' * (least > 1)} or more"
        raise RecipeError(
            f"train.batch_size = {batch_size} with train.images_per_class = {images_per_class} needs {count} classes of"
            f" {enough}; {len(eligible)} of the {len(sizes)} training classes have as many",
            fix="Lower train.batch_size or raise train.images_per_class",
        )
    chances = sizes[eligible] / sizes[eligible].sum() if by_size else None
    rng = np.random.default_rng([seed, epoch])
    return [
        np.concatenate(
            [
                rng.choice(members[c], images_per_class, replace=replacement or bool(sizes[c] < images_per_class))
                for c in rng.choice(eligible, count, replace=False, p=chances)
            ]
        )
        for _ in range(len(labels) // batch_size)
    ]


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


def _require_between(least: int, images_per_class: int, batch_size: int) -> None:
    if not least <= images_per_class <= batch_size:
        raise RecipeError(
            f"train.images_per_class = {images_per_class}: must be from {least} to train.batch_size = {batch_size}",
            fix="Change one of the two",
        )


def _require_enough(labels: LabelArray, batch_size: int) -> None:
    if batch_size < 1:
        raise RecipeError(f"train.batch_size = {batch_size}: must be at least 1", fix="Raise train.batch_size")
    if len(labels) < batch_size:
        raise RecipeError(
            f"train.batch_size = {batch_size}: there are {len(labels)} training images", fix="Lower train.batch_size"
        )
