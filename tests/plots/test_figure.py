from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from layerprobe.errors import EnvironmentFault, LayerprobeError
from layerprobe.plots import figure as fig

SIGNATURES = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}


def one_panel(**options: object) -> tuple[Figure, Axes]:
    layout = fig.Layout(4, 3, 1, **options)  # type: ignore[arg-type] # fields of a layout
    figure, (axes,) = fig.panels(["title"], layout)
    axes.set_ylim(0, 100)
    return figure, axes


def test_positions_far_apart_stay() -> None:
    assert fig.spread([10, 50, 30], 5, 0, 100) == [10, 50, 30]


def test_two_at_one_place_part_by_half_the_gap_each() -> None:
    assert fig.spread([50, 50], 10, 0, 100) == [45, 55]


def test_neighbours_move_least_in_squares() -> None:
    # 0 at 40, 1 at 42, 2 at 44, 10 apart: centred on their mean of 42; the one at 90 stays.
    assert fig.spread([40, 90, 42, 44], 10, 0, 100) == [32, 90, 42, 52]


def test_a_pushed_group_pushes_the_next() -> None:
    # 50 and 51 become 45.5 and 55.5, which is too near 60: all three stand around 161 / 3.
    assert fig.spread([50, 51, 60], 10, 0, 100) == pytest.approx([161 / 3 - 10, 161 / 3, 161 / 3 + 10])


def test_positions_stay_within_the_bounds() -> None:
    assert fig.spread([0, 1, 99, 100], 10, 0, 100) == [0, 10, 90, 100]


def test_too_many_keep_the_gap_and_stand_centred() -> None:
    assert fig.spread([0, 0, 0], 10, 0, 10) == [-5, 5, 15]


def test_equal_positions_keep_the_order_given() -> None:
    first, second, third = fig.spread([7, 7, 7], 1, 0, 100)
    assert first < second < third


def test_nothing_to_spread_is_nothing() -> None:
    assert fig.spread([], 1, 0, 100) == []


@given(st.lists(st.floats(-50, 150), max_size=30), st.floats(0.1, 30))
def test_spread_positions_keep_gap_and_order(positions: list[float], gap: float) -> None:
    moved = fig.spread(positions, gap, 0, 100)
    ordered = [moved[i] for i in np.argsort(positions, kind="stable")]
    assert all(after - before >= gap * (1 - 1e-9) for before, after in pairwise(ordered))
    if (len(positions) - 1) * gap <= 100:
        assert all(-1e-9 <= position <= 100 + 1e-9 for position in moved)


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


def test_names_are_no_formulas_and_steer_nothing() -> None:
    figure, (axes,) = fig.panels(["$t_1$\x1b"], fig.Layout(4, 3, 1, notes=["$n_1$\x1b"]))
    fig.label_right(axes, [fig.Label("$a_1$\x1b", 0.5, 25, "black")])
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and "_1" in text.get_text()]
    assert sorted(text.get_text() for text in texts) == ["$a_1$\ufffd", "$n_1$\ufffd", "$t_1$\ufffd"]
    assert not any(text.get_parse_math() for text in texts)


def test_width_of_is_the_widest_text_in_inches() -> None:
    figure, axes = one_panel()
    text = axes.text(0, 0, "inception4e@max", fontsize=fig.FONT)
    drawn = text.get_window_extent().width / figure.dpi
    assert fig.width_of(["fc6", "inception4e@max"]) == pytest.approx(drawn, rel=0.05)
    assert fig.width_of([]) == 0


def test_panels_have_the_size_asked_for() -> None:
    figure, panels = fig.panels(["a", "b", "c", "d"], fig.Layout(4, 3, 1, columns=2))
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
    assert fig.chance_outside({"test": (48, 82), "train": (0, 82)}, {"train": 1.0, "test": 1.25}) == [
        "Chance level outside the axes: test 1.2 %."
    ]


def test_limits_of_one_value_have_a_width() -> None:
    low, high = fig.limits([50])
    assert low < 50 < high


@pytest.mark.parametrize("suffix", SIGNATURES)
def test_a_figure_is_written_as_its_suffix_says(suffix: str, tmp_path: Path) -> None:
    figure, _ = one_panel()
    path = tmp_path / "new" / f"plot.{suffix}"
    fig.save(figure, path)
    assert path.read_bytes().startswith(SIGNATURES[suffix])
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_suffix_in_capitals_is_known(tmp_path: Path) -> None:
    fig.save(one_panel()[0], tmp_path / "PLOT.PNG")
    assert (tmp_path / "PLOT.PNG").read_bytes().startswith(SIGNATURES["png"])


@pytest.mark.parametrize(("name", "shown"), [("plot.jpg", "'.jpg'"), ("plot", "a file without a suffix")])
def test_another_suffix_is_an_error_that_names_the_three(name: str, shown: str, tmp_path: Path) -> None:
    with pytest.raises(
        LayerprobeError, match=rf"{name}: cannot write a plot as {shown}\. Name it \.png, \.pdf or \.svg"
    ):
        fig.save(one_panel()[0], tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plot.png"
    path.write_bytes(b"old")
    figure, _ = one_panel()

    def fail(target: Path, **_: object) -> None:
        Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(EnvironmentFault, match="disk full"):
        fig.save(figure, path)
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["plot.png"]


def test_a_long_title_stays_clear_of_the_panel_above(overlaps: Callable[[Figure], list[tuple[str, str]]]) -> None:
    layout = fig.Layout(4, 3, 1, below=0.5, columns=1)
    figure, panels = fig.panels(["a\nb\nc\nd\ne", "f\ng\nh\ni\nj"], layout)
    for axes in panels:
        axes.set_xticks([0.0, 0.5], ["left", "right"])
    assert overlaps(figure) == []
