"""A run small enough for tests: eight folders of noise, a narrow VGG16-BN at 16 pixels, two epochs."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from layerprobe import registry
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.system.progress import Task
from layerprobe.workflow.choose import choose_among
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train

RECIPES = Path(__file__).parents[2] / "recipes"
NARROW_VGG = "tests.workflow.narrow_vgg:build"


class Silent:
    """A listener that keeps what it heard, and may act on it."""

    def __init__(self, act: Callable[[str], None] = lambda text: None) -> None:
        self.heard: list[str] = []
        self.act = act

    def say(self, text: str) -> None:
        self.heard.append(text)
        self.act(text)

    @contextlib.contextmanager
    def task(self, name: str, total: int, unit: str) -> Iterator[Task]:
        yield self

    def advance(self, steps: int = 1, **figures: float) -> None:
        pass


@pytest.fixture(autouse=True)
def narrow_vgg() -> Iterator[None]:
    """Register `narrow_vgg`, by a patch of its own: tests undo what `monkeypatch` did."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.NETS, "narrow_vgg", NARROW_VGG)
        yield


def tiny_request(
    images: Path,
    cache: Path,
    *settings: str,
    recipe: str = "netA",
    run: str = "tiny",
    workers: int = 0,
    **fields: object,
) -> TrainRequest:
    """A request to train on these images."""
    small = (
        "data.image_size=16", "net.name=narrow_vgg", "net.fc=[8]", "train.batch_size=8", "train.images_per_class=2",
        "train.epochs=2",
    )  # fmt: skip
    loaded = load_recipe(str(RECIPES / f"{recipe}.toml"), Overrides(f"folder:{images}", (*small, *settings)))
    return TrainRequest(loaded, True, cache, run, "cpu", workers, **fields)  # type: ignore[arg-type] # one test's fields each


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with eight classes of four 20 x 20 images, told apart by their colour, and a run trained on them.

    It is made once; tests change copies.
    """
    folder, rng = tmp_path_factory.mktemp("trained"), np.random.default_rng(0)
    for label in range(8):
        (folder / "images" / f"class{label}").mkdir(parents=True)
        colour = rng.integers(0, 256, 3)
        for i in range(4):
            noise = rng.integers(-40, 40, (20, 20, 3))
            pixels = (colour + noise).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "images" / f"class{label}" / f"{i}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.NETS, "narrow_vgg", NARROW_VGG)
        train(tiny_request(folder / "images", folder / "cache"), Silent())
    return folder


def write_pairs(root: Path) -> Path:
    """Write twelve classes to train on and twelve to test on, of two images of noise around a colour."""
    rng = np.random.default_rng(0)
    for label in range(24):
        folder = root / f"class{label:02}"
        folder.mkdir(parents=True)
        colour = rng.integers(60, 196, 3)
        for i in range(2):
            pixels = colour + rng.integers(-60, 60, (16, 16, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    return root


@pytest.fixture
def images(tiny: Path, tmp_path: Path) -> Path:
    """A copy of these images."""
    return Path(shutil.copytree(tiny / "images", tmp_path / "images"))


@pytest.fixture
def request_for(images: Path, tmp_path: Path) -> Callable[..., TrainRequest]:
    """A request to train on them, in a cache below tmp_path."""

    return partial(tiny_request, images, tmp_path / "cache")


@pytest.fixture
def copy_of(tiny: Path, images: Path, tmp_path: Path) -> Callable[[Run], Run]:
    """Copy a run on those images, as if it was a run on the copied images."""

    def copy(run: Run) -> Run:
        copied = Run(tmp_path / "cache" / run.name)
        shutil.copytree(run.folder, copied.folder)
        record = copied.record_file.read_text()
        copied.record_file.write_text(record.replace(str(tiny / "images"), str(images)))
        return copied

    return copy


@pytest.fixture
def run(tiny: Path, copy_of: Callable[[Run], Run]) -> Run:
    """The run of such a request, trained."""
    return copy_of(Run(tiny / "cache" / "tiny"))


FOREIGN = """
from torch import nn

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.ReLU(), nn.Conv2d(6, 4, 3))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, images):
        return self.head(self.stages(images))

def build():
    return Mine()
"""


@pytest.fixture
def foreign(request_for: Callable[..., TrainRequest], tmp_path: Path) -> Callable[..., Run]:
    """A run of 0 epochs of a user's own model, whose module `head` gives the model's output, probed."""
    (tmp_path / "mine.py").write_text(FOREIGN)

    def make(*settings: str, layers: tuple[str, ...] = ("*", "head")) -> Run:
        net = (f"net.name=python:{tmp_path / 'mine.py'}:build", "net.weights=none", "train.epochs=0", *settings)
        run = train(request_for(*net), Silent())
        probe(run, ProbeRequest(layers=layers, device="cpu", workers=0, ks=(1,)), Silent())
        return run

    return make


@pytest.fixture
def switches(monkeypatch: pytest.MonkeyPatch) -> None:
    """`choose` selects the candidate of the best mean, however small the gain on test and few the classes."""

    compared = choose_among._compare_with_embedding

    def always(*args: Any, **options: Any) -> Any:
        choice = compared(*args, **options)
        assert choice.embedding is not None
        return replace(choice, advice="switch")

    monkeypatch.setattr(choose_among, "_compare_with_embedding", always)
    monkeypatch.setattr(choose_among, "_kept_embedding", lambda *_: None)


@pytest.fixture
def without_learned_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates of `choose` are raw and partially whitened alone, as where there are few classes."""
    monkeypatch.setattr("layerprobe.post_processing.supervised.FEWEST_CLASSES", 1_000_000)
