"""How alike layers are: every two of them at the last epoch, and each with its own past."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from layerprobe.plots import figure as fig
from layerprobe.plots.plot import MatrixPlot
from layerprobe.plots.values import matrices_csv
from layerprobe.scores import Matrix
from layerprobe.wording import visible

_SIDE = 3.6  # inches of a panel, at least
_ROOMY = 6.5  # inches up to which each layer has room for its numbers
_CELL = 0.27  # inches that a number needs
_LINE = 0.19  # inches that a name needs across its letters
_NUMBERS = 6.5  # points
_BAR = 0.75  # inches for the colour bar and its numbers
# Equal steps look equal, for every kind of colour blindness and in grey.
_COLOURS = colormaps["viridis"].with_extremes(bad="0.88")


def draw(matrices: Sequence[Matrix]) -> Figure:
    """A panel for each matrix, two in a row, all on one scale of colours from 0 to 1.

    The first row and column are at the bottom left. A number stands in each cell where all have room; a cell without a
    value is grey, its reason under the figure. Values below 0, which an unbiased estimate can have, look like 0.

    Args:
        matrices: at least one; those of a run one after the other.
    """
    layers = max(len(matrix.rows) for matrix in matrices)
    side = max(_SIDE, _LINE * layers, min(_CELL * layers, _ROOMY))
    widest = fig.width_of([name for matrix in matrices for name in (*matrix.rows, *matrix.columns)])
    layout = fig.Layout(
        side,
        side,
        # The next panel's names and the axis' own go between the panels.
        max(_BAR, widest + 0.1),
        below=widest + 0.5,
        columns=2,
        notes=_notes(matrices),
    )
    figure, panels = fig.panels([f"{matrix.run}, {matrix.split}:\n{matrix.title}" for matrix in matrices], layout)
    for place, (axes, matrix) in enumerate(zip(panels, matrices, strict=True)):
        image = _draw_cells(axes, matrix, side)
        _name(axes, matrix, side)
        if place % 2 or place == len(panels) - 1:
            _draw_bar(axes, image, matrix.measure)
    return figure


def _notes(matrices: Sequence[Matrix]) -> list[str]:
    """What is said of a run's matrices, each thing once."""
    several = len({matrix.run for matrix in matrices}) > 1
    notes = [(matrix.run, note) for matrix in matrices for note in matrix.notes]
    return [f"{run}: " * several + note for run, note in dict.fromkeys(notes)]


def _draw_cells(axes: Axes, matrix: Matrix, side: float) -> AxesImage:
    values = np.array([[math.nan if value is None else value for value in row] for row in matrix.values])
    image = axes.imshow(values, cmap=_COLOURS, norm=Normalize(0, 1), aspect="auto", origin="lower")
    image.set(interpolation="none", zorder=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    texts = [[_short(value) for value in row] for row in matrix.values]
    width = fig.width_of([text for row in texts for text in row]) * _NUMBERS / fig.FONT
    if width + 0.07 > side / len(matrix.columns):
        return image
    for i, row in enumerate(texts):
        for j, text in enumerate(row):
            red, green, blue, _ = image.cmap(image.norm(values[i, j]))
            light = 0.21 * red + 0.72 * green + 0.07 * blue
            colour = "black" if light > 0.45 else "white"
            axes.text(j, i, text, fontsize=_NUMBERS, color=colour, ha="center", va="center")
    return image


def _short(value: float | None) -> str:
    """`.87`, `1`, `-.02`: the zero before the point takes room that many cells do not have."""
    if value is None:
        return ""
    text = f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.0f}"
    return text.replace("-.00", ".00")


def _name(axes: Axes, matrix: Matrix, side: float) -> None:
    columns = list(map(visible, matrix.columns))
    cell = side / len(columns)
    upright = fig.width_of(columns) + 0.1 > cell
    # As many names as there is room for.
    step = math.ceil(_LINE / cell) if upright else 1
    axes.set_xticks(range(0, len(columns), step), columns[::step])
    axes.set_yticks(range(len(matrix.rows)), list(map(visible, matrix.rows)))
    for label in axes.get_xticklabels():
        label.set(rotation=90 if upright else 0, parse_math=False)
    for label in axes.get_yticklabels():
        label.set(parse_math=False)
    axes.set_xlabel(matrix.column_axis, fontsize=fig.FONT + 1)
    axes.set_ylabel(matrix.row_axis, fontsize=fig.FONT + 1)


def _draw_bar(axes: Axes, image: AxesImage, measure: str) -> None:
    beside = axes.inset_axes((1.03, 0, 0.035, 1))
    bar = axes.figure.colorbar(image, cax=beside)
    bar.outline.set_visible(False)
    bar.set_label(measure, fontsize=fig.FONT)
    bar.ax.tick_params(labelsize=fig.FONT)


PLOT = MatrixPlot(draw, matrices_csv)
