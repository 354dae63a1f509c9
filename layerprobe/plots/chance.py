"""Chance levels in figures whose upright axis is recall."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from layerprobe.plots.figure import FONT, GREY
from layerprobe.values.facts import level_text


def draw_chance(axes: Axes, floors: Mapping[str, float]) -> None:
    """Draw and label lines at the chance levels that are in view.

    Args:
        floors: split -> chance level in percent.
    """
    bottom, top = axes.get_ylim()
    inside = {split: floor for split, floor in floors.items() if bottom < floor < top}
    for split, floor in inside.items():
        axes.axhline(floor, color="0.55", linewidth=1, linestyle=":", zorder=1, label=f"_chance {split}")
    if inside:
        text = "chance: " + ", ".join(f"{split} {level_text(floor)}" for split, floor in inside.items())
        corner = (axes.get_xlim()[1], max(inside.values()))
        note = axes.annotate(text, corner, xytext=(-3, 3), textcoords="offset points")
        note.set(ha="right", fontsize=FONT - 1, color=GREY)
