from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from layerprobe.plots.map import draw, projections_csv
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.views import Item, Projection

Overlaps = Callable[[Figure], list[tuple[str, str]]]
FC6 = RankedLayer(LayerKey("fc6", "none"), "none", "cosine")
POOL5 = RankedLayer(LayerKey("pool5", "none"), "none", "cosine")
BY_CLASS = Projection(
    "a", 3, "test", FC6, "pca", ((0.0, 0.0), (1.0, 0.0), (0.0, 4.0), (2.0, 2.0)),
    images=(Item("0", "x"), Item("1", "x"), Item("2", "y"), Item("3", "y")),
    right=(), marked=(True,) * 4, total=4, kept=0.384, chance=0.0044, variance=0.191,
)  # fmt: skip
BY_OUTCOME = replace(BY_CLASS, right=(True, False, None, True))


def dots(axes: Axes) -> dict[str, list[list[float]]]:
    return {str(each.get_label()): np.asarray(each.get_offsets()).tolist() for each in axes.collections}


def legend(axes: Axes) -> list[str]:
    shown = axes.get_legend()
    return [text.get_text() for text in shown.get_texts()] if shown else []


def caption(figure: Figure) -> str:
    return " ".join(figure.texts[0].get_text().split())


def test_a_panel_for_each_layer_has_the_classes_in_their_colours() -> None:
    figure = draw([replace(BY_CLASS, ranked=POOL5), replace(BY_CLASS, points=BY_CLASS.points[::-1])])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["pool5", "fc6"]
    assert dots(figure.axes[0]) == {"x": [[0, 0], [1, 0]], "y": [[0, 4], [2, 2]]}
    assert dots(figure.axes[1]) == {"x": [[2, 2], [0, 4]], "y": [[1, 0], [0, 0]]}
    colours = [[np.asarray(each.get_facecolor()).tolist() for each in axes.collections] for axes in figure.axes]
    assert colours[0] == colours[1]
    assert colours[0][0] != colours[0][1]


def test_with_many_classes_the_colours_tell_outcomes_below_a_legend() -> None:
    figure = draw([BY_OUTCOME])
    assert dots(figure.axes[0]) == {"tied": [[0, 4]], "right": [[0, 0], [2, 2]], "wrong": [[1, 0]]}
    assert legend(figure.axes[0]) == ["right", "wrong", "tied"]
    assert "whether the nearest neighbour is right" in caption(figure)


def test_the_share_of_neighbours_stands_under_each_panel() -> None:
    figure = draw([BY_CLASS, replace(BY_CLASS, ranked=POOL5, method="tsne", variance=None)])
    under = [axes.get_xlabel().splitlines() for axes in figure.axes]
    assert under == [
        ["neighbours kept: 38.4 %", "chance: 0.44 %; variance: 19.1 %"],
        ["neighbours kept: 38.4 %", "chance: 0.44 %"],
    ]


def test_of_how_many_images_some_are_drawn_is_told() -> None:
    assert "4 of 6,000 test images are drawn" in caption(draw([replace(BY_CLASS, total=6000)]))
    assert "images are drawn" not in caption(draw([BY_CLASS]))


def test_what_does_not_stand_out_is_pale_and_behind() -> None:
    figure = draw([replace(BY_OUTCOME, marked=(True, False, False, True))])
    assert list(dots(figure.axes[0]).items()) == [("", [[1, 0], [0, 4]]), ("right", [[0, 0], [2, 2]])]
    assert legend(figure.axes[0]) == ["right", "others"]


def test_a_single_image_is_drawn_without_a_share() -> None:
    single = replace(
        BY_CLASS, points=((0.0, 0.0),), images=BY_CLASS.images[:1], marked=(True,), kept=None, chance=0.0, variance=0.0
    )
    figure = draw([single])
    figure.draw_without_rendering()
    assert figure.axes[0].get_xlabel() == "no neighbours: a single image; variance: 0 %"


@pytest.mark.parametrize("outcomes", [False, True])
def test_no_text_covers_another(overlaps: Overlaps, covers: Overlaps, outcomes: bool) -> None:
    rng = np.random.default_rng(0)
    images = tuple(Item(str(i), f"a-long-name-of-class-{i % 12:04}") for i in range(120))
    many = replace(
        BY_CLASS,
        points=tuple(map(tuple, rng.normal(size=(120, 2)).tolist())),
        images=images,
        marked=tuple((rng.random(120) < 0.9).tolist()),
        right=tuple((rng.random(120) < 0.5).tolist()) if outcomes else (),
        kept=1.0,
        total=12345,
        notes=("4 of 12,345 images: whole classes drawn by seed 0", "In colour: fc6 right, pool5 wrong, 100 images"),
    )
    figure = draw([replace(many, run=f"a_run_with_a_long_name_{i}") for i in range(4)])
    assert (overlaps(figure), covers(figure)) == ([], [])


def test_the_table_has_every_point() -> None:
    rows = list(csv.DictReader(projections_csv([BY_OUTCOME]).splitlines()))
    assert [(row["image"], row["class"], row["x"], row["y"], row["right"]) for row in rows] == [
        ("0", "x", "0.0", "0.0", "true"),
        ("1", "x", "1.0", "0.0", "false"),
        ("2", "y", "0.0", "4.0", ""),
        ("3", "y", "2.0", "2.0", "true"),
    ]
    assert {(row["layer"], row["by"], row["kept"]) for row in rows} == {("fc6", "pca", "0.384")}
