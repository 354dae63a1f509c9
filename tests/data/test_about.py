from __future__ import annotations

import importlib

import pytest

from layerprobe.data.about import _TORCHVISION, ABOUT
from layerprobe.data.glyphs import load as glyphs
from layerprobe.data.torchvision_sets import SETS
from layerprobe.registry import DATASETS


def test_something_is_said_of_every_data_set() -> None:
    assert list(ABOUT) == list(DATASETS)
    assert [name for name, about in ABOUT.items() if about.usage.split(":")[0] != name] == []


@pytest.mark.parametrize("name", ["cub200", "cars196", "sop", "inshop"])
def test_the_counts_are_those_that_the_loader_requires(name: str) -> None:
    required = importlib.import_module(f"layerprobe.data.{name}")._COUNTS
    required = required.get("retrieval", required)
    assert ABOUT[name].counts == {split: (count.images, count.classes) for split, count in required.items()}


def test_the_counts_of_the_generated_set_are_its_own() -> None:
    found = {name: (len(split), split.num_classes) for name, split in glyphs().splits.items()}
    assert ABOUT["glyphs"].counts == found


def test_every_set_of_torchvisions_is_named() -> None:
    assert list(_TORCHVISION) == list(SETS)
