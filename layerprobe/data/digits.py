"""The data set `digits`: scikit-learn's small handwritten digits, which lie in its package.

They are the test set of Alpaydin & Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository,
1998, to 8 x 8 pixels of 17 levels. Ten classes show how a study works, not how well a layer generalises.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.spec import Count, DatasetSpec
from layerprobe.data.splits import ArrayImages, Dataset, Split
from layerprobe.data.subsets import count_train_classes, divide_classes, require_no_class_chosen

_WHITE = 16  # the highest level


def load(
    *,
    train_classes: int | None = None,
    class_seed: int | None = None,
    protocol: Literal["retrieval", "classification"] = "retrieval",
) -> Dataset:
    """1,797 digits of 8 x 8 pixels, white on black; within a class they have scikit-learn's order.

    Args:
        train_classes: how many of the classes are for training, the rest being for testing; 0: all are for testing,
            and there is no split `train`; None: the first half, 0 to 4.
        class_seed: shuffles the classes before the first are taken for training; None: they keep their order.
        protocol: "classification" has every class on both sides: the first half of its images is for training.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    labels = digits.target.astype(np.int64)
    classes = len(digits.target_names)
    names = tuple(map(str, digits.target_names))
    pixels = np.rint(digits.images * (255 / _WHITE)).astype(np.uint8)
    of_classes = [np.flatnonzero(labels == label) for label in range(classes)]
    if protocol == "classification":
        require_no_class_chosen(train_classes=train_classes, class_seed=class_seed)
        halves = [np.array_split(places, 2) for places in of_classes]
        sides = {side: [half[number] for half in halves] for number, side in enumerate(("train", "test"))}
        note = f"classification protocol: half of the images of all {classes} classes on each side"
        return Dataset(_splits(sides, labels, pixels), names, classification=True, notes=(note,))
    count = count_train_classes(classes, train_classes, "digits")
    divided = divide_classes(classes, count, class_seed)
    sides = {
        side: [of_classes[label] for label in class_labels]
        for side, class_labels in zip(("train", "test"), divided, strict=True)
    }
    return Dataset(_splits(sides, labels, pixels), names)


def _splits(
    sides: dict[str, list[NDArray[np.intp]]], labels: NDArray[np.int64], pixels: NDArray[np.uint8]
) -> dict[str, Split]:
    splits = {}
    for name, of_classes in sides.items():
        if not of_classes:
            continue
        places = np.concatenate(of_classes)
        ids = tuple(f"{labels[row]}/{row:04}" for row in places.tolist())
        fingerprint = hashlib.sha256(pixels[places].tobytes()).hexdigest()
        splits[name] = Split(name, labels[places], ids, ArrayImages(pixels[places]), fingerprint)
    return splits


SPEC = DatasetSpec(
    load=load,
    # Mean and deviation of all images in 0 ... 1, at 32 pixels.
    defaults={"image_size": 32, "augment": "affine", "mean": 0.31, "std": 0.32},
    holds="scikit-learn's handwritten digits, for figures of a toy network",
    layout="nothing: part of scikit-learn; the first half of the classes trains, the rest tests",
    counts={"train": Count(901, 5), "test": Count(896, 5)},
)
