from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from layerprobe.plots.gradient import draw, gradients_csv
from layerprobe.values.facts import DataFacts
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.views import GradientSizes

Overlaps = Callable[[Figure], list[tuple[str, str]]]
FC6 = RankedLayer(LayerKey("fc6", "none"), "none", "cosine")
ALPHA = GradientSizes(
    "a", 3, FC6, "centroid", 7, "alpha", 4.0, (1.0, 4.0, 16.0), (1.0, 2.0, 0.5), (0.5, 1.0, 0.25), (1.5, 3.0, 0.75)
)
ALL = [
    replace(ALPHA, samples=kind, axis=axis, own=own, n=n)
    for kind, n in (("centroid", 7), ("boundary", 8), ("incorrect", 9))
    for axis, own in (("alpha", 4.0), ("norm", 2.0))
]


def test_a_row_for_each_run_by_alpha_and_by_norm() -> None:
    figure = draw([*ALL, *(replace(each, run="b") for each in ALL)])
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["a\nby alpha", "a\nby norm", "b\nby alpha", "b\nby norm"]
    # four decades below the largest, 3
    assert figure.axes[0].get_ylim()[0] == pytest.approx(3e-4)


def test_lines_are_medians_with_bands_of_the_middle_half() -> None:
    axes = draw(ALL).axes[0]
    drawn = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in axes.lines}
    assert drawn["centroid"] == drawn["boundary"] == drawn["incorrect"] == [1, 2, 0.5]
    assert np.asarray(axes.lines[0].get_xdata()).tolist() == [4, 4]  # the trained alpha
    assert axes.collections[0].get_paths()[0].get_extents().intervaly.tolist() == [0.25, 3]
    assert len({line.get_linestyle() for line in axes.lines}) > 1


def test_the_legend_and_the_caption_have_the_kinds_that_are_drawn() -> None:
    figure = draw([each for each in ALL if each.samples != "incorrect"])
    legends = [legend for axes in figure.axes if (legend := axes.get_legend())]
    assert [text.get_text() for text in legends[0].get_texts()] == ["centroid", "boundary"]
    assert "a, fc6, epoch 3: 7 centroid, 8 boundary" in " ".join(figure.texts[-1].get_text().split())


def test_no_text_covers_another(overlaps: Overlaps, covers: Overlaps) -> None:
    small = [
        replace(each, places=(1e-5, 1e-2), values=(1e-4, 1e-3), low=(1e-4, 1e-3), high=(1e-4, 1e-3)) for each in ALL
    ]
    figure = draw([*ALL, *(replace(each, run="a_run_with_a_long_name") for each in small)])
    assert (overlaps(figure), covers(figure)) == ([], [])
    assert overlaps(draw(small)) == []


def test_the_table_has_every_place_of_every_line() -> None:
    rows = list(csv.DictReader(gradients_csv([ALPHA]).splitlines()))
    found = [(row["samples"], row["n"], row["place"], row["median"], row["low"], row["high"]) for row in rows]
    assert found[1:] == [
        ("centroid", "7", "4.0", "2.0", "1.0", "3.0"),
        ("centroid", "7", "16.0", "0.5", "0.25", "0.75"),
    ]


def test_the_weights_of_one_file_are_named_instead_of_an_epoch() -> None:
    single = [replace(each, epoch=0) for each in ALL]
    figure = draw(single, data={"a": DataFacts("", {}, weights="weights of own.pth")})
    caption = " ".join(figure.texts[-1].get_text().split())
    assert "a, fc6, weights of own.pth: 7 centroid" in caption
    assert "epoch" not in caption
