"""Length of the gradient of a softmax loss, by alpha and by the feature's norm (Zhang et al. 2018, figures 1 and 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from layerprobe.plots import figure as fig
from layerprobe.plots.plot import Drawing, Plot, PlotOptions, PlotSource
from layerprobe.plots.saving import csv_text
from layerprobe.values.facts import DataFacts, epoch_text, image_lines
from layerprobe.values.scores import note_text, shared_notes
from layerprobe.values.views import GradientSizes

_WIDTH, _HEIGHT = 1.6, 1.9  # inches
_DECADES = 4  # below the largest: smaller gradients are outside the axis
# Blue, green and vermilion of Okabe and Ito; the lines differ without colours, too.
_KINDS: dict[str, dict[str, object]] = {
    "centroid": {"color": "#0072b2", "linestyle": (0, (1, 1.2)), "linewidth": 1.6},
    "boundary": {"color": "#009e73", "linestyle": (0, (5, 1.5)), "linewidth": 1.6},
    "incorrect": {"color": "#d55e00", "linestyle": "-", "linewidth": 1.6},
}
_BAND = 0.15
_AXES = {"alpha": "alpha (1 / temperature)", "norm": "norm of the feature"}
_HOW = (
    "Gradient of the cross-entropy of single training images; lines are medians, bands the middle half. Left: with "
    "respect to the feature as the classifier multiplies it, which has length 1 where the loss normalises. Right: with "
    "respect to the feature before that, at the trained alpha. Dotted upright: the trained alpha, and the median norm. "
    "Incorrect: another class's logit is at least as large. Of the correct ones, boundary is the tenth nearest to a "
    "decision boundary and centroid the tenth farthest from the nearest one; at most 500 of each."
)


def draw(found: Sequence[GradientSizes], *, data: Mapping[str, DataFacts] | None = None) -> Figure:
    """Draw a row for each run, by alpha and by norm, on logarithmic axes.

    Args:
        data: run -> the data it was measured on.
    """
    runs = list(dict.fromkeys(each.run for each in found))
    cells = [(run, axis) for run in runs for axis in _AXES]
    layout = fig.Layout(
        _WIDTH, _HEIGHT, 0.1, below=0.5, left=0.6, columns=len(_AXES), key=0.75, notes=_notes(found, data or {})
    )
    figure, panels = fig.panels([f"{run}\nby {axis}" for run, axis in cells], layout)
    for axes, (run, axis) in zip(panels, cells, strict=True):
        own = [each for each in found if (each.run, each.axis) == (run, axis)]
        _set_axes(axes, own)
        _draw_lines(axes, own)
    shown = [kind for kind in _KINDS if any(each.samples == kind for each in found)]
    fig.key_below(panels[-len(_AXES)], [_KINDS[kind] | {"label": kind, "marker": ""} for kind in shown], columns=1)
    return figure


def _set_axes(axes: Axes, own: Sequence[GradientSizes]) -> None:
    axes.set(xscale="log", yscale="log")
    axes.set_xlim(min(own[0].places), max(own[0].places))
    top = max(max(each.high) for each in own)
    axes.set_ylim(top / 10**_DECADES, 1.5 * top)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(numticks=6))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(_AXES[own[0].axis], fontsize=fig.FONT)
    if own[0].axis == next(iter(_AXES)):
        axes.set_ylabel("length of the gradient", fontsize=fig.FONT)


def _draw_lines(axes: Axes, own: Sequence[GradientSizes]) -> None:
    axes.axvline(own[0].own, color=fig.GREY, linewidth=0.9, linestyle=":", zorder=1, label="_trained")
    for each in own:
        style = _KINDS[each.samples]
        (line,) = axes.plot(each.places, each.values)
        line.set(**style, label=each.samples)
        band = axes.fill_between(each.places, each.low, each.high, color=style["color"], alpha=_BAND)
        band.set(linewidth=0, zorder=0.5, label=f"_middle half of {each.samples}")


def _notes(found: Sequence[GradientSizes], data: Mapping[str, DataFacts]) -> list[str]:
    common = shared_notes(each.notes for each in found)
    counts: dict[str, dict[str, int]] = {}
    for each in found:
        of = f"{each.run}, {each.ranked.layer.layer}, {epoch_text(each.epoch, data.get(each.run))}"
        counts.setdefault(of, {})[each.samples] = each.n
    lines = [f"{run}: " + ", ".join(f"{n:,} {kind}" for kind, n in own.items()) for run, own in counts.items()]
    others = dict.fromkeys(f"{each.run}: {note}" for each in found for note in each.notes if note not in common)
    return [_HOW, *image_lines(data, {"train"}), *lines, *common, *others]


def gradients_csv(found: Sequence[GradientSizes]) -> str:
    """A line for each place of each line; `own` as in `GradientSizes`."""
    head = ["run", "epoch", "layer", "pool", "samples", "n", "axis", "own", "place", "median", "low", "high", "note"]
    rows: list[list[object]] = [[*head]]
    for each in found:
        layer = each.ranked.layer
        key = [each.run, each.epoch, layer.layer, layer.pool, each.samples, each.n, each.axis, each.own]
        lines = zip(each.places, each.values, each.low, each.high, strict=True)
        rows += [[*key, *cells, note_text(each.notes)] for cells in lines]
    return csv_text(rows)


def plot(source: PlotSource, options: PlotOptions) -> Drawing:
    """Draw the gradients of each run at an epoch."""
    found = source.gradients(options)
    return Drawing(draw(found, data=source.data(each.run for each in found)), gradients_csv(found))


PLOT = Plot(plot, ("epoch",))
