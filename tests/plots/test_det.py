from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.special import ndtr, ndtri

from layerprobe.plots.det import draw, error_rates_csv
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.views import ErrorRates, SetThreshold
from tests.plots.conftest import VGG

Overlaps = Callable[[Figure], list[tuple[str, str]]]


def rates(name: str, apart: float = 2.0, run: str = "netA", points: int = 200) -> ErrorRates:
    """Those of two normal distributions so many deviates apart: a straight line."""
    at = np.linspace(-3, apart + 3, points)
    ranked = RankedLayer(LayerKey(name, "none"), "none", "cosine")
    accepts, rejects = 1 - ndtr(at), ndtr(at - apart)
    equal = float(ndtr(-apart / 2))
    return ErrorRates(run, 3, "test", ranked, tuple(accepts.tolist()), tuple(rejects.tolist()), equal, 90)


def test_similarities_of_normal_distributions_make_a_straight_line() -> None:
    (axes,) = draw([rates("fc6")]).axes
    line = next(line for line in axes.lines if line.get_label() == "fc6")
    x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    # a deviate of false accepts less is one of false rejects more
    assert x + y == pytest.approx(np.full(len(x), -2.0), abs=1e-9)
    assert (x.max(), x.min()) == (pytest.approx(0, abs=0.05), pytest.approx(ndtri(1e-4), abs=0.05))
    assert [text.get_text() for text in axes.texts] == ["fc6 15.9"]


def test_ticks_are_rates_in_percent() -> None:
    (axes,) = draw([rates("fc6")]).axes
    ticks = dict(zip((text.get_text() for text in axes.get_xticklabels()), axes.get_xticks(), strict=True))
    assert list(ticks) == ["0.01", "0.1", "1", "5", "20", "50"]
    assert ticks["5"] == pytest.approx(ndtri(0.05))


def test_thresholds_set_on_other_classes_are_marked() -> None:
    marked = replace(rates("fc6"), set_on="train", thresholds=(SetThreshold(0.01, 0.02, 0.5), SetThreshold(1e-3, 0, 1)))
    (axes,) = draw([marked, rates("fc5")]).axes
    marks = [line for line in axes.lines if line.get_label() == "_fc6 at 0.01"]
    assert [float(np.asarray(mark.get_xdata())[0]) for mark in marks] == [pytest.approx(ndtri(0.02))]
    assert not [line for line in axes.lines if line.get_label() == "_fc6 at 0.001"]  # beyond the axes
    legend = axes.get_legend()
    assert legend is not None
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["threshold set on selection classes at 1 %"]
    assert draw([rates("fc6")]).axes[0].get_legend() is None


def test_a_layer_without_rates_is_told_and_not_drawn() -> None:
    empty = replace(rates("fc6"), false_accepts=(), false_rejects=(), notes=("all similarities are equal",))
    figure = draw([rates("fc5"), empty])
    assert [text.get_text() for text in figure.axes[0].texts] == ["fc5 15.9"]
    assert figure.texts[-1].get_text().splitlines()[-1] == "netA, fc6: all similarities are equal"
    draw([empty]).draw_without_rendering()


@pytest.mark.parametrize("layers", [1, 2, 6, 14])
def test_no_text_covers_another(layers: int, overlaps: Overlaps, covers: Overlaps) -> None:
    figure = draw([rates(name, 1 + i / 10) for i, name in enumerate(VGG[:layers])])
    assert (overlaps(figure), covers(figure)) == ([], [])


def test_runs_have_panels_with_the_same_axes() -> None:
    first, second = draw([rates("fc6", 1), rates("fc6", 3, "netB")]).axes
    assert (first.get_xlim(), first.get_ylim()) == (second.get_xlim(), second.get_ylim())
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["netA, epoch 3: test", "netB, epoch 3: test"]


def test_the_table_has_the_points_and_the_thresholds() -> None:
    found = replace(rates("fc6", points=2), thresholds=(SetThreshold(0.01, 0.02, 0.5),))
    rows = list(csv.DictReader(error_rates_csv([found]).splitlines()))
    assert [row["set_at"] for row in rows] == ["", "", "0.01"]
    assert [row["false_accept"] for row in rows[2:]] == ["0.02"]
    assert float(rows[0]["equal_error_rate"]) == pytest.approx(float(ndtr(-1)))
