from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from layerprobe.plots import figure as fig
from layerprobe.plots.figure import FORMATS, draw_chance, encode_figure
from layerprobe.plots.plot import csv_text

Overlaps = Callable[[Figure], list[tuple[str, str]]]


def one_panel(**options: object) -> tuple[Figure, Axes]:
    layout = fig.PanelLayout(4, 3, 1, **options)  # type: ignore[arg-type] # fields of a layout
    figure, (axes,) = fig.make_panels(["title"], layout)
    axes.set(xlim=(0, 1), ylim=(0, 100))
    return figure, axes


@pytest.mark.parametrize("count", [1, 4, 18])
def test_layers_get_darker_to_lighter_colours_in_grey(count: int) -> None:
    styles = fig.styles([f"layer{i}" for i in range(count)])
    # Rec. 709 luminance of the colours as they are stored.
    grey = [float(np.dot(style.colour, (0.2126, 0.7152, 0.0722))) for style in styles.values()]
    assert grey == sorted(set(grey))
    assert max(grey) < 0.75


def test_neighbouring_layers_have_different_markers() -> None:
    markers = [style.marker for style in fig.styles([f"layer{i}" for i in range(18)]).values()]
    assert all(a != b for a, b in pairwise(markers))
    assert len(set(markers[:10])) == 10


def test_text_has_a_contrast_to_white_of_four_and_a_half() -> None:
    # Greys have the luminance of their channel; 0.1833 is 1.05 / 4.5 - 0.05, and sRGB 0.4654 has it (WCAG 2.2).
    assert fig.Style((0.9, 0.9, 0.9), "o").text == pytest.approx((0.4654,) * 3, abs=0.01)
    assert fig.Style((0.2, 0.2, 0.2), "o").text == (0.2, 0.2, 0.2)


@pytest.mark.parametrize("count", [2, 9, 18])
def test_labels_of_equal_heights_do_not_overlap(count: int) -> None:
    figure, axes = one_panel()
    fig.label_right(axes, [fig.Label(f"layer{i}.p", 1, 50 + 0.01 * i, "black") for i in range(count)])
    figure.draw_without_rendering()
    boxes = sorted((text.get_window_extent() for text in axes.texts), key=lambda box: box.y0)
    assert all(below.y1 <= above.y0 for below, above in pairwise(boxes))
    assert all(box.x0 > axes.get_window_extent().x1 for box in boxes)


def test_a_label_alone_stands_at_the_height_of_what_it_names() -> None:
    figure, axes = one_panel()
    fig.label_right(axes, [fig.Label("fc6", 0.5, 25, "black")])
    (text,), (lines,) = axes.texts, axes.collections
    assert text.get_position()[1] == pytest.approx(0.25)
    assert isinstance(lines, LineCollection)
    (line,) = lines.get_segments()
    drawn = axes.transData.inverted().transform(lines.get_transform().transform(line))
    assert drawn[0] == pytest.approx((0.5, 25))
    assert drawn[1][1] == pytest.approx(25)
    gap = text.get_window_extent().x0 - axes.transData.transform(drawn[1])[0]
    assert gap == pytest.approx(3 * figure.dpi / 72, abs=1)


@pytest.mark.parametrize("count", [2, 9, 18])
def test_labels_beside_points_at_one_place_do_not_overlap(overlaps: Overlaps, count: int) -> None:
    figure, axes = one_panel()
    axes.annotate("other", (0.5, 50))
    fig.label_points(axes, [fig.Label(f"layer{i}.p", 0.5, 50 + 0.01 * i, "black") for i in range(count)])
    assert overlaps(figure) == []
    assert len(axes.texts) == count + 1
    frame = axes.get_window_extent()
    assert all(frame.contains(*corner) for text in axes.texts for corner in text.get_window_extent().get_points())


def test_a_label_alone_stands_right_beside_its_point_without_a_line() -> None:
    figure, axes = one_panel()
    fig.label_points(axes, [fig.Label("fc6", 0.5, 25, "black")])
    box, (x, y) = axes.texts[0].get_window_extent(), axes.transData.transform((0.5, 25))
    assert box.x0 - x == pytest.approx(4.5 * figure.dpi / 72, abs=1)
    assert box.y0 < y < box.y1
    assert len(axes.lines) == 0


def test_a_label_that_stands_off_has_a_line_to_its_point() -> None:
    _, axes = one_panel()
    fig.label_points(axes, [fig.Label(f"layer{i}", 0.5, 50, "black") for i in range(12)])
    lines = [
        axes.transData.inverted().transform(line.get_transform().transform(line.get_xydata())) for line in axes.lines
    ]
    assert lines
    assert axes.get_xlim() == (0, 1)
    assert all(line[0] == pytest.approx((0.5, 50)) for line in lines)


def test_labels_may_stand_beyond_the_axes_where_there_is_room() -> None:
    _, axes = one_panel()
    fig.label_points(axes, [fig.Label("fc6", 1, 25, "black")], beyond=0.6)
    assert axes.texts[0].get_window_extent().x0 > axes.get_window_extent().x1


def test_names_are_no_formulas_and_steer_nothing() -> None:
    figure, (axes,) = fig.make_panels(["$t_1$\x1b"], fig.PanelLayout(4, 3, 1, notes=["$n_1$\x1b"]))
    fig.label_right(axes, [fig.Label("$a_1$\x1b", 0.5, 25, "black")])
    fig.label_points(axes, [fig.Label("$b_1$\x1b", 0.5, 25, "black")])
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and "_1" in text.get_text()]
    assert sorted(text.get_text() for text in texts) == ["$a_1$\ufffd", "$b_1$\ufffd", "$n_1$\ufffd", "$t_1$\ufffd"]
    assert not any(text.get_parse_math() for text in texts)


def test_width_of_is_the_widest_text_in_inches() -> None:
    figure, axes = one_panel()
    text = axes.text(0, 0, "inception4e@max", fontsize=fig.FONT)
    drawn = text.get_window_extent().width / figure.dpi
    assert fig.width_of(["fc6", "inception4e@max"]) == pytest.approx(drawn, rel=0.05)
    assert fig.width_of([]) == 0


def test_panels_have_the_size_asked_for() -> None:
    figure, panels = fig.make_panels(["a", "b", "c", "d"], fig.PanelLayout(4, 3, 1, columns=2))
    width, height = figure.get_size_inches()
    sizes = {(round(p.width * width, 6), round(p.height * height, 6)) for p in (a.get_position() for a in panels)}
    assert sizes == {(4, 3)}
    left, right = panels[0].get_position().x0, panels[1].get_position().x0
    assert panels[2].get_position().x0 == left < right


def test_chance_is_in_view_where_the_data_keep_most_of_the_axis() -> None:
    low, high = fig.limits([10, 80], 1)
    assert low < 1
    assert high > 80


def test_chance_is_left_out_where_it_would_press_the_data_together() -> None:
    assert fig.limits([50, 80], 1)[0] > 40


@pytest.mark.parametrize("width", range(62, 76))
def test_a_percentage_keeps_its_unit_and_the_word_that_it_is_of(width: int) -> None:
    figure, _ = one_panel(notes=["x" * width + ", chance R@1 1.4 % " + "y" * 70])
    (notes,) = figure.texts
    assert "R@1 1.4 %" in notes.get_text()
    assert "\n" in notes.get_text()


def test_limits_of_one_value_have_a_width() -> None:
    low, high = fig.limits([50])
    assert low < 50 < high


def test_a_long_title_stays_clear_of_the_panel_above(overlaps: Overlaps) -> None:
    layout = fig.PanelLayout(4, 3, 1, below=0.5, columns=1)
    figure, panels = fig.make_panels(["a\nb\nc\nd\ne", "f\ng\nh\ni\nj"], layout)
    for axes in panels:
        axes.set_xticks([0.0, 0.5], ["left", "right"])
    assert overlaps(figure) == []


def test_no_tick_is_more_than_all() -> None:
    figure, axes = one_panel()
    axes.set_ylim(0, 119)
    fig.show_percent(axes, "y")
    figure.draw_without_rendering()
    assert [label.get_text() for label in axes.get_yticklabels()][-2:] == ["100 %", ""]


def test_a_note_is_under_all_that_a_figure_has() -> None:
    figure, _ = fig.make_panels(["title"], fig.PanelLayout(2, 2, 0.5, notes=["a caption of one line"]))
    before = figure.get_tightbbox()
    fig.add_note(figure, "small version: mechanics only")
    note = figure.texts[-1]
    assert note.get_text() == "small version: mechanics only"
    assert note.get_window_extent().y1 / figure.dpi <= before.y0


def test_chance_levels_in_view_are_drawn_and_named() -> None:
    axes = Figure().add_subplot()
    axes.set_ylim(0, 10)
    draw_chance(axes, {"train": 2.0, "test": 3.0, "validation": 20.0})
    assert [line.get_ydata() for line in axes.lines] == [[2, 2], [3, 3]]
    assert [text.get_text() for text in axes.texts] == ["chance: train 2.0 %, test 3.0 %"]


SIGNATURES = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}


@pytest.mark.parametrize("form", FORMATS)
def test_a_figure_is_encoded_in_the_format_asked_for(form: str) -> None:
    assert encode_figure(Figure(), form).startswith(SIGNATURES[form])


@pytest.mark.parametrize(("form", "image"), [("pdf", rb"/Subtype /Image\b"), ("svg", rb"<image\b")])
def test_images_are_not_laid_into_one(form: str, image: bytes) -> None:
    # Into one, each of 400 pictures of `plot panels` takes the time of the whole figure.
    figure = Figure()
    axes = figure.add_subplot()
    for left in range(3):
        axes.imshow(np.full((4, 4, 3), 80 * left, np.uint8), extent=(left, left + 0.9, 0, 1))
    axes.set(xlim=(0, 3), ylim=(0, 1))
    assert len(re.findall(image, encode_figure(figure, form))) == 3


def test_no_name_in_a_table_is_a_formula() -> None:
    assert (
        csv_text([["run", "value"], ["=1+1", -0.5], ["a,b", None], ["@x", 2]])
        == "run,value\n'=1+1,-0.5\n\"a,b\",\n'@x,2\n"
    )
