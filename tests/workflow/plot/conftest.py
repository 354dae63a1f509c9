"""Toy runs that were trained: LeNet with two dimensions on three classes of characters, two epochs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import RECIPES, Silent

Toy = Callable[..., Run]
_SETTINGS = (
    "data.train_classes=3", "data.test_classes=3", "data.images_per_class=6", 'net.name="lenet"', "net.fc=[2]",
    'net.pool="avg"', 'loss.name="heated_softmax"', "train.epochs=2", "train.batch_size=6", "train.learning_rate=0.01",
)  # fmt: skip


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """Train and probe a toy run with some settings, or give the one that was; no test may change it."""
    cache = tmp_path_factory.mktemp("toys")

    def make(name: str, *settings: str) -> Run:
        run = Run(cache / name)
        if not run.exists():
            loaded = load_recipe(str(RECIPES / "quick.toml"), Overrides("glyphs", (*_SETTINGS, *settings)))
            train(TrainRequest(loaded, True, cache, name, "cpu", 0), Silent())
            probe(run, ProbeRequest(layers=("fc6", "c5"), ks=(1,), device="cpu", workers=0), Silent())
        return run

    return make
