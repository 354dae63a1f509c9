"""A data set as somebody would add it, with nothing but a loader."""

from __future__ import annotations

from pathlib import Path

from layerprobe.data.folder import load as folder
from layerprobe.data.spec import DatasetSpec
from layerprobe.data.splits import Dataset


def load(root: Path, *, train_classes: int = 2, image_size: int) -> Dataset:
    assert image_size == 224
    return folder(root, train_classes=train_classes)


SPEC = DatasetSpec(load)
