"""What the examples of the pages find in their folder: images, models, features and runs, all made in seconds.

photos/CLASS                            24 classes of 6 pictures
images/train/CLASS, images/test/CLASS   the same, the first half of the classes and the others
mine.py, best.ckpt, ckpt/epoch_*.pth    a model of one's own, and weights
resnet18.pt                             weights of torchvision's network
features.npz                            layer3 and layer4 of 240 images, with labels
cache/netA                              a VGG16-BN of an eighth of the width, trained for two epochs and probed
"""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import resnet18

from layerprobe.data.glyphs import draw

MINE = '''"""A small network of one's own."""

import torch
from torch import nn


class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 16, 3)
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 8))

    def forward(self, images):
        return self.head(self.stages(images))


def build():
    torch.manual_seed(0)
    return Mine(), {"size": 32, "mean": [0.5] * 3, "std": [0.5] * 3}
'''
TRAIN = (
    "train netA --data folder:photos --set net.name=narrow_vgg --set net.fc=[16] --set data.image_size=32"
    " --set data.validation_classes=0.5 --set train.epochs=2 --set train.batch_size=16 --set train.images_per_class=4"
    " --run netA --device cpu --workers 0 --quiet"
)
PROBE = "probe netA --layers * --device cpu --workers 0 --quiet"
NUM_CLASSES, NUM_IMAGES, SIZE = 24, 6, 32


def make_world(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Fill a folder with what the pages name."""
    for label in range(NUM_CLASSES):
        (of_class := folder / "photos" / f"class{label:02}").mkdir(parents=True)
        for i in range(NUM_IMAGES):
            Image.fromarray(draw(0, label, i, image_size=SIZE)).convert("RGB").save(of_class / f"{i}.png")
        shutil.copytree(of_class, folder / "images" / ("train", "test")[label >= NUM_CLASSES // 2] / of_class.name)
    (folder / "mine.py").write_text(MINE)
    names: dict[str, object] = {}
    exec(MINE, names)
    (folder / "ckpt").mkdir()
    weights = names["Mine"]().state_dict()  # type: ignore[operator] # a class
    for file in ("best.ckpt", "ckpt/epoch_0.pth", "ckpt/epoch_1.pth"):
        torch.save({"state_dict": weights}, folder / file)
        weights = {name: value + 0.1 * torch.randn_like(value) for name, value in weights.items()}
    torch.manual_seed(0)
    torch.save(resnet18().state_dict(), folder / "resnet18.pt")
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(40), 6)
    classes = rng.normal(size=(40, 16))[labels]
    layers = {f"layer{4 - i}": classes + (1 + i) * rng.normal(size=(240, 16)) for i in (1, 0)}
    np.savez(folder / "features.npz", labels=labels, **layers)  # type: ignore[arg-type] # they are arrays, not allow_pickle
    patch.chdir(folder)
    for line in (TRAIN, PROBE):
        code, printed = typed(shlex.split(line), patch)
        assert code == 0, printed


def typed(words: list[str], patch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Run a command of layerprobe in this process, as typed at a terminal: its exit code and all that it prints."""
    code, texts = typed_apart(words, patch)
    return code, "".join(text for _, text in texts)


def typed_apart(words: list[str], patch: pytest.MonkeyPatch) -> tuple[int, list[tuple[str, str]]]:
    """As `typed`, with the name of the stream before each text."""
    from layerprobe.cli import main

    texts: list[tuple[str, str]] = []
    patch.setattr(sys, "argv", ["layerprobe", *words])
    patch.setattr(sys, "stdout", _Stream("stdout", texts, terminal=True))
    patch.setattr(sys, "stderr", _Stream("stderr", texts, terminal=False))
    try:
        main()
    except SystemExit as ended:
        return int(str(ended.code or 0)), texts
    finally:
        patch.setattr(sys, "stdout", sys.__stdout__)
        patch.setattr(sys, "stderr", sys.__stderr__)


class _Stream:
    """Text of a stream, kept in the order in which both streams get it."""

    encoding, errors, closed = "utf-8", "strict", False

    def __init__(self, name: str, texts: list[tuple[str, str]], *, terminal: bool) -> None:
        self._name, self._texts, self._terminal = name, texts, terminal

    def write(self, text: str) -> int:
        self._texts.append((self._name, text))
        return len(text)

    def isatty(self) -> bool:
        return self._terminal

    def flush(self) -> None:
        pass


def names_of_python() -> dict[str, object]:
    """What the Python of the pages has already: a model, data sets, loaders, and the parts of a training loop."""
    torch.manual_seed(0)
    labels = torch.arange(160) // 4
    images = torch.rand(40, 3, 1, 1)[labels] + torch.rand(160, 3, 16, 16) / 10  # a colour for each class
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 4),
    )  # fmt: skip
    train, test = TensorDataset(images[:80], labels[:80]), TensorDataset(images[80:], labels[80:])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return {
        "model": model,
        "train": train,
        "test": test,
        "train_loader": DataLoader(train, 16),
        "test_loader": DataLoader(test, 16),
        "loaders": {"train": DataLoader(train, 16), "test": DataLoader(test, 16)},
        "optimizer": optimizer,
        "train_an_epoch": lambda *_: None,
        "num_epochs": 2,
        "epochs": 2,
    }
