from __future__ import annotations

from matplotlib.figure import Figure

from layerprobe.plots.chance import draw_chance


def test_chance_levels_in_view_are_drawn_and_named() -> None:
    axes = Figure().add_subplot()
    axes.set_ylim(0, 10)
    draw_chance(axes, {"train": 2.0, "test": 3.0, "validation": 20.0})
    assert [line.get_ydata() for line in axes.lines] == [[2, 2], [3, 3]]
    assert [text.get_text() for text in axes.texts] == ["chance: train 2.0 %, test 3.0 %"]
