"""Scores as a probed run gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest

from layerprobe.scores import Score

VGG = [
    "pool1.1", "pool1.2", "pool2.1", "pool2.2", "pool3.1", "pool3.2", "pool3.3", "pool4.1", "pool4.2", "pool4.3",
    "pool5.1", "pool5.2", "pool5.3", "fc6",
]  # fmt: skip
MakeScores = Callable[..., list[Score]]


@pytest.fixture
def make_scores() -> MakeScores:
    """Scores of layers over epochs, deeper layers better; `near` presses their ends together."""

    def make(
        layers: Sequence[str] = VGG,
        epochs: Iterable[int] = range(6),
        splits: Sequence[str] = ("train", "test"),
        *,
        run: str = "netA",
        near: bool = False,
    ) -> list[Score]:
        epochs, rng = list(epochs), np.random.default_rng(0)
        return [
            Score(
                run=run, experiment="e", seed=0, epoch=epoch, split=split, layer=layer, pool="max", reduction="none",
                similarity="cosine", metric="R@1", value=_value(split, epoch, i / len(layers), near, rng), low=None,
                high=None, n=100,
            )
            for epoch in epochs
            for i, layer in enumerate(layers)
            for split in splits
        ]  # fmt: skip

    return make


def _value(split: str, epoch: int, depth: float, near: bool, rng: np.random.Generator) -> float:
    learnt = 1 - 0.7**epoch
    start = 0.5 if near else 0.1 + 0.4 * depth
    reach = 0.1 * depth if near and split != "train" else 0.4 * depth
    return float(start + reach * learnt * (1 if split == "train" else 0.6) + 0.004 * rng.normal())
