"""Which pixels make a query and its nearest neighbour similar, layer beside layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from layerprobe.plots import figure as fig
from layerprobe.plots.panels import NEUTRAL, RIGHT, WRONG, Frame, draw_picture, shorten
from layerprobe.values.explanations import Attribution, ExplainedNeighbour, ExplainedQuery, RankCorrelation
from layerprobe.values.layers import names_by_layer

# Inches.
_SIDE = 0.92  # of a picture
_SPACE = 0.06  # between two pictures
_BESIDE = 0.22  # between the pictures of the query and those of the neighbour
_TEXT = 0.155  # height of a line
_LINES = 5  # beside the picture: the layer, what each picture is, and three below it
_BETWEEN = 0.16  # between two layers
_HALF = 3 * _SIDE + 2 * _SPACE
_WIDTH = 2 * _HALF + _BESIDE
_SMALL = fig.FONT - 1.5  # points
_MOST = 99  # percentile of the absolute values that has the full colour
_KEY = (
    "r: Spearman's correlation with the map of the network with random weights, and that of the absolute values. Near"
    " 1, the map does not show what training has changed. s - s0: similarity less that of the baseline; error: by how"
    " much the map's sum misses it"
)


def draw(explained: ExplainedQuery) -> Figure:
    """Draw a row for each layer: the query, its integrated gradients and Grad-CAM, and the same of its neighbour.

    Colours of a map go from blue (less similar) over white to red (more similar), each map by a scale of its own.
    """
    row, count = _LINES * _TEXT + _SIDE, len(explained.neighbours)
    height = count * row + (count - 1) * _BETWEEN
    notes = [*explained.notes, _KEY]
    notes += [note for neighbour in explained.neighbours for note in neighbour.explanation.notes]
    layout = fig.PanelLayout(_WIDTH, height, 0.3, below=0.05, columns=1, notes=tuple(dict.fromkeys(notes)))
    title = f"{explained.run}, {explained.when}: why two {explained.split} images are similar"
    figure, (axes,) = fig.make_panels([title], layout)
    axes.set_axis_off()
    names = names_by_layer(neighbour.explanation.ranked for neighbour in explained.neighbours)
    for i, neighbour in enumerate(explained.neighbours):
        top = i * (row + _BETWEEN)
        _draw_row(axes, explained, neighbour, top, names[neighbour.explanation.ranked])
    axes.set(xlim=(0, _WIDTH), ylim=(height, 0))
    return figure


def _draw_row(axes: Axes, explained: ExplainedQuery, neighbour: ExplainedNeighbour, top: float, name: str) -> None:
    explanation, frame, right = neighbour.explanation, RIGHT if neighbour.found.right else WRONG, _HALF + _BESIDE
    title, class_name = f"{name}: similarity {explanation.similarity:.3f}", f"{frame.sign} {neighbour.found.item.name}"
    _write(axes, (0, top), [title], _HALF, fontsize=fig.FONT, weight="bold")
    _write(axes, (right, top), [class_name], _HALF, fontsize=fig.FONT, color=frame.colour)
    sides = ((0.0, "query", explained.image, NEUTRAL), (right, "neighbour", neighbour.image, frame))
    for (x, whose, image, border), (_, attribution) in zip(sides, explanation.sides, strict=True):
        _draw_side(axes, (whose, image, border), attribution, (x, top + _TEXT), explanation.places_of)


def _draw_side(
    axes: Axes,
    titled_image: tuple[str, NDArray[np.uint8], Frame],
    attribution: Attribution,
    corner: tuple[float, float],
    places_of: str | None,
) -> None:
    """Draw an image and its two maps, with their numbers below."""
    (whose, image, frame), (x, top) = titled_image, corner
    _write(axes, corner, [whose], _SIDE)
    grey: dict[str, Any] = {"cmap": "gray", "vmin": 0, "vmax": 255} if image.shape[2] == 1 else {}
    draw_picture(axes, image, (x, top + _TEXT, _SIDE), frame, **grey)
    error = f"{100 * attribution.error:.2g} %" if math.isfinite(attribution.error) else "undefined"
    sums = [f"s - s0 = {attribution.difference:.2f}", f"error {error}", f"{attribution.steps} steps"]
    _write(axes, (x, top + _TEXT + _SIDE), sums, _SIDE)
    maps = (
        ("integr. gradients", attribution.pixels, _correlations(attribution.random_pixels)),
        ("Grad-CAM", attribution.places, [*_correlations(attribution.random_places), places_of or ""]),
    )
    for heading, values, below in maps:
        x += _SIDE + _SPACE
        if values is None:
            continue
        most = float(np.percentile(np.abs(values), _MOST)) or float(np.abs(values).max()) or 1.0
        scale: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -most, "vmax": most}
        _write(axes, (x, top), [heading], _SIDE)
        draw_picture(axes, values, (x, top + _TEXT, _SIDE), NEUTRAL, size=image.shape[:2], **scale)
        _write(axes, (x, top + _TEXT + _SIDE), below, _SIDE)


def _correlations(agreement: RankCorrelation | None) -> list[str]:
    values = (None, None) if agreement is None else (agreement.signed, agreement.absolute)
    signed, absolute = ("-" if r is None else f"{r:.2f}" for r in values)
    return [f"r = {signed}", f"of |map| {absolute}"]


def _write(axes: Axes, corner: tuple[float, float], lines: Sequence[str], room: float, **style: Any) -> None:
    """Write lines below a corner, each shortened to a width."""
    (x, top), style = corner, {"fontsize": _SMALL, **style}
    for number, line in enumerate(lines):
        below = top + (number + 0.5) * _TEXT
        text = axes.text(x, below, shorten(line, room, style["fontsize"]), va="center", **style)
        text.set_parse_math(False)
