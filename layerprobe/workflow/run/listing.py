"""[data] of a recipe -> the data set in original sizes, with the names and classes of its images."""

from __future__ import annotations

from pathlib import Path

from layerprobe import registry
from layerprobe.data.splits import Dataset
from layerprobe.values.network_input import height_width
from layerprobe.values.sections import Data


def listed(data: Data) -> Dataset:
    """The data set of a section; no image is read."""
    spec = registry.load("data set", registry.DATASETS, data.name)
    common = {"root": Path(data.root or ""), "image_size": max(height_width(data.image_size))}
    dataset: Dataset = spec.load(**spec.taken(common), **data.options())
    return dataset
