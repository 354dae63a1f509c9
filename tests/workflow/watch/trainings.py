"""A small training in which every generator matters: a shuffling loader, random transforms and dropout."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import layerprobe

Loader = DataLoader[tuple[Tensor, int]]
CLASSES, IMAGES = 12, 4


class Augmented(Dataset[tuple[Tensor, int]]):
    """Images of 8 x 8 pixels about the colours of their classes, with noise drawn anew by each generator."""

    def __init__(self, first: int = 0, noise: float = 0.1, classes: int = CLASSES) -> None:
        drawn = torch.Generator().manual_seed(first)
        self.labels = [first + number for number in range(classes) for _ in range(IMAGES)]
        colours = torch.randn(classes, 3, 1, 1, generator=drawn).repeat_interleave(IMAGES, 0)
        self.images = colours + torch.randn(len(self.labels), 3, 8, 8, generator=drawn)
        self.noise = noise

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        drawn = float(torch.randn(())) + np.random.randn() + random.random()  # noqa: NPY002 - as transforms do
        return self.images[row] + self.noise * drawn, self.labels[row]


def loaders(noise: float = 0.1, **options: object) -> dict[str, Loader]:
    train = DataLoader(Augmented(0, noise), 8, shuffle=True, **options)  # type: ignore[arg-type] # one test's options each
    return {"train": train, "test": DataLoader(Augmented(100, noise), 8)}


def network() -> Any:
    torch.manual_seed(3)
    block = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.3), nn.Conv2d(6, 8, 3))
    return nn.Sequential(block, nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))


def watching(folder: Path, **options: object) -> layerprobe.Watch:
    asked = {"splits": loaders(), "layers": "0,output", "ks": (1,), "cache": folder, "name": "watched", **options}
    return layerprobe.Watch(**asked)  # type: ignore[arg-type] # one test's options each


def trained(watch: Callable[[nn.Module, int], object], epochs: int = 2) -> bytes:
    """The state of the model, the optimiser and all generators at the end of a training."""
    model, train = network(), loaders()["train"]
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(5)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    watch(model, 0)
    for epoch in range(1, epochs + 1):
        for images, labels in train:
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimiser.step()
        watch(model, epoch)
    return saved([model.state_dict(), optimiser.state_dict(), *generators()])


def generators() -> list[object]:
    return [torch.get_rng_state(), random.getstate(), str(np.random.get_state())]  # noqa: NPY002


def saved(state: object) -> bytes:
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()
