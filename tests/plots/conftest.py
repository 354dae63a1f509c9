"""Scores as a probed run gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import BboxBase

from layerprobe.plots.placing import sample_path
from layerprobe.values.facts import DataFacts, SplitFacts
from layerprobe.values.intervals import Interval, SamplingUnits
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score
from tests.scores import CLASSES

VGG = [
    "pool1.1", "pool1.2", "pool2.1", "pool2.2", "pool3.1", "pool3.2", "pool3.3", "pool4.1", "pool4.2", "pool4.3",
    "pool5.1", "pool5.2", "pool5.3", "fc6",
]  # fmt: skip
MakeScores = Callable[..., list[Score]]


def with_chance(**levels: float) -> dict[str, DataFacts]:
    """A run's data, of which the chance level of each split is this."""
    splits = {split: SplitFacts(100, 10, chance=level) for split, level in levels.items()}
    return {"netA": DataFacts("glyphs", splits)}


def sure(
    scores: Iterable[Score], width: float = 0.02, *, notes: tuple[str, ...] = (), units: SamplingUnits = CLASSES
) -> list[Score]:
    """The scores with intervals that reach this far to both sides, and notes."""
    sides = [(score, max(0.0, (score.value or 0) - width), min(1.0, (score.value or 0) + width)) for score in scores]
    return [replace(score, interval=Interval(low, high), notes=notes, units=units) for score, low, high in sides]


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
                run=run, experiment="e", seed=0, epoch=epoch, split=split,
                ranked=RankedLayer(LayerKey(layer, "none"), "none", "cosine"), metric="R@1",
                value=_value(split, epoch, i / len(layers), near, rng), interval=None, n=100,
            )
            for epoch in epochs
            for i, layer in enumerate(layers)
            for split in splits
        ]  # fmt: skip

    return make


@pytest.fixture
def overlaps() -> Callable[[Figure], list[tuple[str, str]]]:
    """Pairs of texts of a figure whose boxes overlap, of all that it shows."""

    def find(figure: Figure) -> list[tuple[str, str]]:
        figure.draw_without_rendering()
        hidden = {id(text) for axis in figure.findobj(Axis) for text in _out_of_view(axis)}
        texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and id(text) not in hidden]
        # A text's own box: that of an annotation has its line in it.
        texts = [text for text in texts if text.get_text() and text.get_visible()]
        boxes = [(text.get_text(), Text.get_window_extent(text)) for text in texts]
        return [
            (a, b)
            for (a, first), (b, second) in combinations(boxes, 2)
            if min(first.x1, second.x1) - max(first.x0, second.x0) > 0.5
            and min(first.y1, second.y1) - max(first.y0, second.y0) > 0.5
        ]

    return find


@pytest.fixture
def covers() -> Callable[[Figure], list[tuple[str, str]]]:
    """Labels of a figure that lie on a line of their axes, with the line; a text that is turned lies along its own."""

    def find(figure: Figure) -> list[tuple[str, str]]:
        figure.draw_without_rendering()
        return [
            (text.get_text(), str(line.get_label()))
            for axes in figure.axes
            for text in axes.texts
            if text.get_text() and text.get_visible() and not text.get_rotation()
            for line in axes.lines
            if line.get_linestyle() != "None" and not str(line.get_label()).startswith("_line to")
            if _crosses(Text.get_window_extent(text), line)
        ]

    return find


def _crosses(box: BboxBase, line: Line2D) -> bool:
    places = line.get_transform().transform(line.get_xydata())
    places = places[np.isfinite(places).all(1)]
    if len(places) < 2:
        return False
    samples = sample_path(places)
    return bool(((samples > np.array(box.min) + 0.5) & (samples < np.array(box.max) - 0.5)).all(1).any())


def _out_of_view(axis: object) -> list[Text]:
    """Labels of the ticks that an axis holds but does not draw."""
    if not isinstance(axis, Axis):
        return []
    low, high = sorted(axis.get_view_interval())
    return [tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high]


def _value(split: str, epoch: int, depth: float, near: bool, rng: np.random.Generator) -> float:
    learnt = 1 - 0.7**epoch
    start = 0.5 if near else 0.1 + 0.4 * depth
    reach = 0.1 * depth if near and split != "train" else 0.4 * depth
    return float(start + reach * learnt * (1 if split == "train" else 0.6) + 0.004 * rng.normal())
