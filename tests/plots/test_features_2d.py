from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from layerprobe.plots.features_2d import _mean_direction, draw, plane_csv
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.views import PlaneFeatures

Overlaps = Callable[[Figure], list[tuple[str, str]]]
FC6 = RankedLayer(LayerKey("fc6", "none"), "none", "cosine")
TRAIN = PlaneFeatures(
    "a", 3, "train", FC6, ((1.0, 0.0), (3.0, 0.0), (0.0, 4.0), (0.0, -8.0)), ("x", "x", "y", "y"),
    weights=(("x", (2.0, 0.0)), ("y", (0.0, -1.0))),
)  # fmt: skip
TEST = replace(TRAIN, split="test", classes=("u", "u", "v", "v"))


def test_a_row_for_each_run_with_a_panel_for_each_split_on_the_same_axes() -> None:
    axes = draw([TRAIN, TEST, replace(TRAIN, run="b")]).axes
    titles = [each.get_title(loc="left") for each in axes]
    assert titles == ["a, fc6\ntrain", "a, fc6\ntest", "b, fc6\ntrain", "b, fc6\nno test"]
    assert axes[0].get_xlim() == axes[1].get_xlim()
    assert np.ptp(axes[0].get_xlim()) == pytest.approx(np.ptp(axes[0].get_ylim()))  # angles are as they are


def test_the_points_of_a_class_have_one_colour_and_its_name() -> None:
    axes = draw([TRAIN]).axes[0]
    dots = {each.get_label(): np.asarray(each.get_offsets()).tolist() for each in axes.collections}
    assert dots == {"x": [[1, 0], [3, 0]], "y": [[0, 4], [0, -8]]}
    assert [text.get_text() for text in axes.texts] == ["x", "y"]


def test_rays_are_as_long_to_each_other_as_the_weights() -> None:
    axes = draw([TRAIN]).axes[0]
    rays = {line.get_label(): np.asarray(line.get_xydata()) for line in axes.lines if "weight" in str(line.get_label())}
    x, y = (rays[f"_weight of {name}"] for name in "xy")
    assert x[0].tolist() == y[0].tolist() == [0, 0]
    assert (x[1] / x[1, 0]).tolist() == [1, 0]
    assert y[1].tolist() == [0, -x[1, 0] / 2]
    assert x[1, 0] > 1


def test_rays_begin_at_the_classifiers_origin_and_are_in_view() -> None:
    axes = draw([replace(TRAIN, origin=(20.0, 5.0))]).axes[0]
    (ray, *_) = (line for line in axes.lines if "weight" in str(line.get_label()))
    start, end = np.asarray(ray.get_xydata()).tolist()
    assert start == [20, 5]
    assert 20 < end[0] < axes.get_xlim()[1]


def test_rays_are_grey_beside_other_classes_and_explained_where_there_are_any() -> None:
    figure = draw([TRAIN, TEST])
    colours = [[line.get_color() for line in axes.lines if "weight" in str(line.get_label())] for axes in figure.axes]
    assert colours[1] == ["0.6", "0.6"]
    assert "0.6" not in colours[0]
    assert "A ray with a diamond" in figure.texts[-1].get_text()
    assert "ray" not in draw([replace(TRAIN, weights=())]).texts[-1].get_text()


def test_many_classes_are_not_named_and_keep_apart_by_markers() -> None:
    rng = np.random.default_rng(0)
    names = tuple(f"c{i}" for i in range(21))
    found = replace(TRAIN, points=tuple(map(tuple, rng.normal(size=(21, 2)).tolist())), classes=names, weights=())
    figure = draw([found])
    dots = figure.axes[0].collections
    assert not figure.axes[0].texts
    assert "Above 20 classes none is named." in " ".join(figure.texts[-1].get_text().split())
    looks = {(str(each.get_facecolor()), np.asarray(each.get_paths()[0].vertices).tobytes()) for each in dots}
    assert len(looks) == 21


def test_no_text_covers_another(overlaps: Overlaps, covers: Overlaps) -> None:
    rng = np.random.default_rng(0)
    names = tuple(f"class-{i % 10:04}" for i in range(60))
    found = replace(TRAIN, points=tuple(map(tuple, rng.normal(size=(60, 2)).tolist())), classes=names)
    figure = draw([found, replace(found, split="test"), replace(found, run="a_run_with_a_long_name")])
    assert (overlaps(figure), covers(figure)) == ([], [])


def test_a_single_point_is_drawn() -> None:
    draw([replace(TRAIN, points=((0.0, 0.0),), classes=("x",), weights=())]).draw_without_rendering()


# Azimuths of 170 and -170 degrees are 20 apart: their middle is 180, where a median of the numbers would be 0.
AROUND = replace(TRAIN, points=((170.0, 10.0), (-170.0, 10.0), (0.0, 80.0), (180.0, 80.0)), weights=(), directions=True)


def test_directions_lie_by_azimuth_and_elevation_with_names_at_their_mean() -> None:
    axes = draw([AROUND]).axes[0]
    assert (axes.get_xlim(), axes.get_ylim()) == ((-180, 180), (-90, 90))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("azimuth, degrees", "elevation, degrees")
    # of x: elevation atan( tan 10 / cos 10 ); of y, two directions 10 degrees on both sides of the pole, the pole
    assert _mean_direction(np.array(AROUND.points[:2])) == pytest.approx([180, 10.15], abs=0.01)
    assert _mean_direction(np.array(AROUND.points[2:]))[1] == pytest.approx(90)
    assert [text.get_text() for text in axes.texts] == ["x", "y"]
    assert "the direction is drawn" in draw([AROUND]).texts[-1].get_text()


def test_the_table_says_which_points_are_directions() -> None:
    rows = list(csv.DictReader(plane_csv([AROUND]).splitlines()))
    assert {row["kind"] for row in rows} == {"direction"}


def test_the_table_has_the_points_and_the_weights() -> None:
    rows = list(csv.DictReader(plane_csv([TRAIN]).splitlines()))
    assert [(row["kind"], row["class"], row["x"], row["y"]) for row in rows][3:] == [
        ("image", "y", "0.0", "-8.0"),
        ("weight", "x", "2.0", "0.0"),
        ("weight", "y", "0.0", "-1.0"),
        ("origin", "", "0.0", "0.0"),
    ]
