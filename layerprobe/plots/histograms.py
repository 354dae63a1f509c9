"""How alike images of one class and of different classes are, by layer (Zhang et al. 2018, Fig. 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from layerprobe.plots import figure as fig
from layerprobe.plots.drawn_scores import shared_then_single
from layerprobe.plots.plot import Drawing, Plot, PlotOptions, PlotSource, csv_text
from layerprobe.plots.selected import label_layers
from layerprobe.values.facts import DataFacts, epoch_text, image_lines, level_text
from layerprobe.values.scores import note_text
from layerprobe.values.views import Histogram, Selected

_WIDTH, _ALONE, _HEIGHT = 1.75, 3.5, 0.62  # inches; a panel alone in its row is wider
_PAD = 6  # points between the axes and the number over them
_LEFT, _RIGHT = 0.14, 0.16  # inches of room beside the axes
_BELOW, _ABOVE = 0.3, 0.42
_FOOT = 0.46  # inches under the last row, for the axis' name and the key
_TAIL = 0.002  # of the pairs of either kind, at most that share is outside the axes at each end
_TICKS = 4
_SAME, _DIFFERENT = "same class", "different class"
# Blue and vermilion of Okabe and Ito. The first is an area, the second a line: they differ without colours, too.
_COLOURS = {_SAME: "#0072b2", _DIFFERENT: "#d55e00"}
_DARKER = "#a84a00"  # of the second one, for text
_AXIS = "cosine of two images"
_KEY: tuple[dict[str, object], ...] = (
    {"label": _SAME, "color": _COLOURS[_SAME], "marker": "s", "markersize": 9, "alpha": 0.4},
    {"label": "its median", "color": "black", "marker": "", "linestyle": ":", "linewidth": 1},
    {"label": _DIFFERENT, "color": _COLOURS[_DIFFERENT], "marker": "", "linestyle": "-", "linewidth": 1.4},
)
_HOW = (
    "Every two images of a split are a pair; each histogram has the area 1. The number is the share of different-class "
    "pairs that are more similar than the median same-class pair."
)

Row = tuple[str, str]  # name of the layer, and run


def draw(
    histograms: Sequence[Histogram],
    *,
    data: Mapping[str, DataFacts] | None = None,
    selected: Mapping[str, Selected] | None = None,
) -> Figure:
    """Draw a row of panels for each layer and run, with a panel for each split.

    The dotted line is the median of the same-class pairs; the number is the share of different-class pairs beyond it.
    The panels of a layer share an axis.
    """
    names = [layer.name for layer in label_layers(histograms, selected or {})]
    runs = list(dict.fromkeys(histogram.run for histogram in histograms))
    splits = list(dict.fromkeys(histogram.split for histogram in histograms))
    by_row: dict[Row, dict[str, list[Histogram]]] = {(name, run): {} for name in names for run in runs}
    for histogram, name in zip(histograms, names, strict=True):
        by_row[name, histogram.run].setdefault(histogram.split, []).append(histogram)
    rows = [row for row, by_split in by_row.items() if by_split]
    head = {run: f"{run}\n" if len(runs) > 1 else "" for run in runs}
    # The last line of a title is left empty for the number.
    titles = [f"{head[run]}{name}, {split}\n " for name, run in rows for split in splits]
    epochs = {histogram.run: histogram.epoch for histogram in reversed(histograms)}
    whose = "; ".join(f"{run}, {epoch_text(epochs[run], (data or {}).get(run))}" for run in runs)
    notes = [f"{whose}.", _HOW, *image_lines(data or {}, set(splits))]
    notes += shared_then_single(
        [(f"{x.run}, {name}, {x.split}", x.notes) for x, name in zip(histograms, names, strict=True)]
    )
    layout = fig.PanelLayout(
        _WIDTH if len(splits) > 1 else _ALONE,
        _HEIGHT,
        _RIGHT,
        below=_BELOW,
        left=_LEFT,
        above=_ABOVE,
        columns=len(splits),
        key=_FOOT,
        notes=notes,
    )
    figure, panels = fig.make_panels(titles, layout)
    for axes, (row, split) in zip(panels, product(rows, splits), strict=True):
        axes.set_xlim(_limits([x for x, name in zip(histograms, names, strict=True) if name == row[0]]))
        if split in by_row[row]:
            _draw_panel(axes, by_row[row][split])
        else:
            # Not set_visible(False): the name of the axis and the key stand under the last panel of the first column.
            axes.set_title("", loc="left")
            axes.spines[:].set_visible(False)
            axes.grid(visible=False)
            axes.set(xticks=[], yticks=[])
    corner = panels[len(panels) - len(splits)]
    corner.set_xlabel(_AXIS, fontsize=fig.FONT, loc="left")
    fig.add_legend(corner, _KEY)
    return figure


def _draw_panel(axes: Axes, histograms: Sequence[Histogram]) -> None:
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(_TICKS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    heights: dict[str, NDArray[np.float64]] = {}
    for histogram in histograms:
        counts = np.array(histogram.counts, float)
        heights[histogram.pairs] = counts / (max(counts.sum(), 1) * np.diff(histogram.edges))
    top = max((float(densities.max()) for densities in heights.values()), default=0) or 1
    axes.set_ylim(0, 1.05 * top)
    for histogram in histograms:
        same = histogram.pairs == _SAME
        area = StepPatch(
            heights[histogram.pairs], np.array(histogram.edges), fill=same, color=_COLOURS[histogram.pairs]
        )
        area.set(alpha=0.4 if same else 1, linewidth=0 if same else 1.4, label=histogram.pairs)
        axes.add_patch(area)
        if same and histogram.median is not None:
            axes.axvline(histogram.median, color="black", linewidth=1, linestyle=":", label="median")
        if histogram.pairs == _DIFFERENT:
            text_above = (
                "no number" if histogram.above is None else f"{level_text(100 * histogram.above)} beyond the line"
            )
            text = axes.annotate(
                text_above, (0, 1), xycoords="axes fraction", xytext=(0, _PAD), textcoords="offset points"
            )
            text.set(fontsize=fig.FONT, color=_DARKER)
            # The title stands above the number, where its empty line was.
            title = axes.get_title(loc="left").rstrip()
            axes.set_title(title, loc="left", fontsize=fig.FONT + 1.5, pad=_PAD + 1.4 * fig.FONT, parse_math=False)


def _limits(histograms: Sequence[Histogram]) -> tuple[float, float]:
    """Ends of the axis: few pairs of any histogram lie outside."""
    lows, highs = [], []
    for histogram in histograms:
        below = np.cumsum(histogram.counts)
        if below[-1]:
            lows.append(histogram.edges[int(np.searchsorted(below, _TAIL * below[-1], side="right"))])
            highs.append(histogram.edges[int(np.searchsorted(below, (1 - _TAIL) * below[-1])) + 1])
    return (min(lows), max(highs)) if lows else (-1.0, 1.0)


def histograms_csv(histograms: Sequence[Histogram], selected: Mapping[str, Selected] | None = None) -> str:
    """A line for each bin: its ends and its number of pairs; `median` and `above` as in `Histogram`."""
    facts = ["run", "epoch", "split", "layer", "pool", "post_processing", "pairs"]
    rows: list[list[object]] = [[*facts, "low", "high", "count", "median", "above", "note"]]
    for histogram, label in zip(histograms, label_layers(histograms, selected or {}), strict=True):
        layer, post_processing = histogram.ranked.layer, histogram.ranked.post_processing
        head = [
            histogram.run,
            histogram.epoch,
            histogram.split,
            layer.layer,
            layer.pool,
            post_processing,
            histogram.pairs,
        ]
        end = [histogram.median, histogram.above, note_text((*histogram.notes, *label.csv_notes))]
        bins = zip(histogram.edges[:-1], histogram.edges[1:], histogram.counts, strict=True)
        rows += [[*head, low, high, count, *end] for low, high, count in bins]
    return csv_text(rows)


def plot(source: PlotSource, options: PlotOptions) -> Drawing:
    """Draw the histograms of a few layers, or of the requested ones."""
    histograms = source.histograms(options)
    data = source.data(histogram.run for histogram in histograms)
    selected = source.selected()
    return Drawing(draw(histograms, data=data, selected=selected), histograms_csv(histograms, selected))


PLOT = Plot(plot)
