"""CKA of every two layers of a run, of each layer with its earlier epochs, and of the layers of two runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from layerprobe.plots import figure as fig
from layerprobe.plots.plot import Drawing, Plot, PlotOptions, PlotSource, csv_text
from layerprobe.system.wording import visible
from layerprobe.values.facts import DataFacts, image_lines
from layerprobe.values.scores import Matrix, note_text, shared_notes

_SIDE = 3.6  # least side of a panel in inches
_ROOMY = 6.5  # a panel grows up to this side so that each cell has room for its number
_CELL = 0.25  # inches that the number in a cell needs
_LINE = 0.19  # inches that a line of text needs
_NUMBERS = 6.5  # points
_BAR = 0.75  # inches for the colour bar and its numbers
# Equal steps look equal, for every kind of colour blindness and in grey.
_COLOURS = colormaps["viridis"].with_extremes(bad="0.88")


def draw(matrices: Sequence[Matrix], *, data: Mapping[str, DataFacts] | None = None) -> Figure:
    """Draw a panel for each matrix, with colours from 0 to 1; more than two matrices stand two in a row.

    The first row and column are at the bottom left. Cells show their numbers if all fit. A cell without a value is
    grey, and a note gives the reason. Values below 0, which an unbiased estimate can have, are drawn as 0.

    Args:
        matrices: at least one; those of a run follow one another.
    """
    # The two of a single run stand below each other, so that they can be read in a column of a paper.
    columns = 1 if len(matrices) <= 2 else 2
    layers = max(len(matrix.rows) for matrix in matrices)
    side = max(_SIDE, _LINE * layers, min(_CELL * layers, _ROOMY))
    widest = fig.width_of([name for matrix in matrices for name in (*matrix.rows, *matrix.columns)])
    common = shared_notes(matrix.notes for matrix in matrices)
    has_several_runs = len({matrix.run for matrix in matrices}) > 1
    single = [(matrix.run, note) for matrix in matrices for note in matrix.notes if note not in common]
    notes = [*image_lines(data or {}, {matrix.split for matrix in matrices}), *common]
    notes += [f"{run}: " * has_several_runs + note for run, note in dict.fromkeys(single)]
    layout = fig.PanelLayout(
        side,
        side,
        # Between two panels there must be room for the names beside the right one.
        max(_BAR, widest + 0.1),
        below=widest + 0.5,
        columns=columns,
        notes=notes,
    )
    figure, panels = fig.make_panels([f"{matrix.run}, {matrix.split}:\n{matrix.title}" for matrix in matrices], layout)
    for position, (axes, matrix) in enumerate(zip(panels, matrices, strict=True)):
        image = _draw_cells(axes, matrix, side)
        _name_axes(axes, matrix, side)
        if (position + 1) % columns == 0 or position == len(panels) - 1:
            _draw_bar(axes, image, matrix.measure)
    return figure


def _draw_cells(axes: Axes, matrix: Matrix, side: float) -> AxesImage:
    values = np.array([[math.nan if value is None else value for value in row] for row in matrix.values])
    image = axes.imshow(values, cmap=_COLOURS, norm=Normalize(0, 1), aspect="auto", origin="lower")
    image.set(interpolation="none", zorder=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    texts = [[_format_value(value) for value in row] for row in matrix.values]
    width = fig.width_of([text for row in texts for text in row]) * _NUMBERS / fig.FONT
    if width + 0.05 > side / len(matrix.columns):
        return image
    for i, row in enumerate(texts):
        for j, text in enumerate(row):
            red, green, blue, _ = image.cmap(image.norm(values[i, j]))
            light = 0.21 * red + 0.72 * green + 0.07 * blue
            colour = "black" if light > 0.45 else "white"
            axes.text(j, i, text, fontsize=_NUMBERS, color=colour, ha="center", va="center")
    return image


def _format_value(value: float | None) -> str:
    """`.87`, `1`, `-.02`: without the zero before the point, which many cells have no room for."""
    if value is None:
        return ""
    text = f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.0f}"
    return text.replace("-.00", ".00")


def _name_axes(axes: Axes, matrix: Matrix, side: float) -> None:
    columns = list(map(visible, matrix.columns))
    cell = side / len(columns)
    upright = fig.width_of(columns) + 0.1 > cell
    # Every `step`-th column is named, as many as there is room for.
    step = math.ceil(_LINE / cell) if upright else 1
    axes.set_xticks(range(0, len(columns), step), columns[::step])
    axes.set_yticks(range(len(matrix.rows)), list(map(visible, matrix.rows)))
    for label in axes.get_xticklabels():
        label.set(rotation=90 if upright else 0, parse_math=False)
    for label in axes.get_yticklabels():
        label.set(parse_math=False)
    axes.set_xlabel(visible(matrix.column_axis), fontsize=fig.FONT + 1, parse_math=False)
    axes.set_ylabel(visible(matrix.row_axis), fontsize=fig.FONT + 1, parse_math=False)


def _draw_bar(axes: Axes, image: AxesImage, measure: str) -> None:
    beside = axes.inset_axes((1.03, 0, 0.035, 1))
    bar = axes.figure.colorbar(image, cax=beside)
    bar.outline.set_visible(False)
    bar.set_label(measure, fontsize=fig.FONT)
    bar.ax.tick_params(labelsize=fig.FONT)


def matrices_csv(matrices: Iterable[Matrix]) -> str:
    """A line for each number with the notes of its matrix; an invalid number is an empty cell."""
    rows: list[list[object]] = [["run", "split", "comparison", "row", "column", "value", "note"]]
    for matrix in matrices:
        for name, values in zip(matrix.rows, matrix.values, strict=True):
            for column, value in zip(matrix.columns, values, strict=True):
                rows.append([matrix.run, matrix.split, matrix.title, name, column, value, note_text(matrix.notes)])
    return csv_text(rows)


def plot(source: PlotSource, options: PlotOptions) -> Drawing:
    """Draw the CKA of the layers of each run and of every two runs."""
    matrices = source.matrices(options)
    return Drawing(draw(matrices, data=source.data(matrix.run for matrix in matrices)), matrices_csv(matrices))


PLOT = Plot(plot)
