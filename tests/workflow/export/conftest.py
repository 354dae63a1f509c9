"""A small run, probed, and its export, made once for all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.workflow.export.export_run import export_run, layer_to_export
from layerprobe.workflow.export.request import ExportRequest
from layerprobe.workflow.export.writing import Written
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import RECIPES, Silent

PARTIALLY_WHITENED, BITS = "l2+whiten:6:0.5+l2", "l2+pca:6+binary"
CODES, HALVES = "l2+pca:6+int8", "first:6+float16"
WITH_CLASSES = "l2+lwhiten:6:lw+l2"
POST_PROCESSING = (
    "none",
    PARTIALLY_WHITENED,
    WITH_CLASSES,
    BITS,
    f"{PARTIALLY_WHITENED}@gallery",
    "random:4x2",
    CODES,
    HALVES,
)


def colours(root: Path) -> Path:
    """Ten classes of five images, 24 pixels high and 40 wide."""
    rng = np.random.default_rng(0)
    for label in range(10):
        (root / f"class{label}").mkdir(parents=True)
        for i in range(5):
            pixels = rng.integers(0, 256, 3) // 4 + 90 + rng.integers(-40, 40, (24, 40, 3)) + 6 * label
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"class{label}" / f"{i}.png")
    return root


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="session")
def probed(folder: Path) -> Run:
    """LeNet-5 at 28 pixels, its images inverted, trained for an epoch and probed at it."""
    settings = (
        "data.image_size=28", "data.invert=true", "net.name=lenet", "train.batch_size=10", "train.images_per_class=2",
        "train.epochs=1",
    )  # fmt: skip
    recipe = load_recipe(str(RECIPES / "netA.toml"), Overrides(f"folder:{colours(folder / 'images')}", settings))
    run = train(TrainRequest(recipe, True, folder / "cache", "tiny", "cpu", 0), Silent())
    layers = ("c1", "c3", "fc6", "c1+c3@max")
    probe(run, ProbeRequest(layers=layers, device="cpu", workers=0, ks=(1,), post=POST_PROCESSING), Silent())
    return run


@pytest.fixture(scope="session")
def exported(probed: Run, folder: Path) -> Written:
    """Concatenated layers, partially whitened, in all formats."""
    request = ExportRequest(folder / "exported", ("npz", "pt2", "onnx"), layer=f"c1+c3/{PARTIALLY_WHITENED}")
    return export_run(layer_to_export(probed, request, Silent()), request, Silent())


@pytest.fixture
def export(probed: Run, tmp_path: Path) -> Callable[..., Written]:
    """Export a layer of the run, by default as its map alone."""

    def make(layer: str | None, *formats: str, **more: object) -> Written:
        request = ExportRequest(tmp_path / "out", formats or ("npz",), layer=layer, **more)  # type: ignore[arg-type] # one test's fields each
        return export_run(layer_to_export(probed, request, Silent()), request, Silent())

    return make
