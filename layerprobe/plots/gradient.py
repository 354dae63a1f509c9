"""Length of the gradient of a softmax loss, by alpha and by the feature's norm (Zhang et al. 2018, figures 1 and 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from layerprobe.plots import figure as fig
from layerprobe.plots.drawn_scores import shared_then_single
from layerprobe.plots.plot import Drawing, Plot, PlotOptions, PlotSource, csv_text
from layerprobe.values.facts import DataFacts, epoch_text, image_lines
from layerprobe.values.scores import note_text
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


def draw(gradients: Sequence[GradientSizes], *, data: Mapping[str, DataFacts] | None = None) -> Figure:
    """Draw a row for each run, by alpha and by norm, on logarithmic axes."""
    runs = list(dict.fromkeys(gradient.run for gradient in gradients))
    cells = [(run, axis) for run in runs for axis in _AXES]
    counts: dict[str, list[str]] = {}
    for gradient in gradients:
        layer = f"{gradient.run}, {gradient.ranked.layer.layer}"
        name = f"{layer}, {epoch_text(gradient.epoch, (data or {}).get(gradient.run))}"
        counts.setdefault(name, []).append(f"{gradient.n:,} {gradient.samples}")
    notes = [_HOW, *image_lines(data or {}, {"train"})]
    notes += [f"{name}: {', '.join(dict.fromkeys(texts))}" for name, texts in counts.items()]
    notes += shared_then_single([(gradient.run, gradient.notes) for gradient in gradients])
    layout = fig.PanelLayout(_WIDTH, _HEIGHT, 0.1, below=0.5, left=0.6, columns=len(_AXES), key=0.75, notes=notes)
    figure, panels = fig.make_panels([f"{run}\nby {axis}" for run, axis in cells], layout)
    for axes, (run, axis) in zip(panels, cells, strict=True):
        panel_gradients = [gradient for gradient in gradients if (gradient.run, gradient.axis) == (run, axis)]
        _set_axes(axes, panel_gradients)
        axes.axvline(panel_gradients[0].own, color=fig.GREY, linewidth=0.9, linestyle=":", zorder=1, label="_trained")
        for gradient in panel_gradients:
            style = _KINDS[gradient.samples]
            (line,) = axes.plot(gradient.places, gradient.values)
            line.set(**style, label=gradient.samples)
            band = axes.fill_between(gradient.places, gradient.low, gradient.high, color=style["color"], alpha=_BAND)
            band.set(linewidth=0, zorder=0.5, label=f"_middle half of {gradient.samples}")
    kinds = [kind for kind in _KINDS if any(gradient.samples == kind for gradient in gradients)]
    fig.add_legend(panels[-len(_AXES)], [_KINDS[kind] | {"label": kind, "marker": ""} for kind in kinds], columns=1)
    return figure


def _set_axes(axes: Axes, gradients: Sequence[GradientSizes]) -> None:
    axes.set(xscale="log", yscale="log")
    axes.set_xlim(min(gradients[0].places), max(gradients[0].places))
    top = max(max(gradient.high) for gradient in gradients)
    axes.set_ylim(top / 10**_DECADES, 1.5 * top)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(numticks=6))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(_AXES[gradients[0].axis], fontsize=fig.FONT)
    if gradients[0].axis == next(iter(_AXES)):
        axes.set_ylabel("length of the gradient", fontsize=fig.FONT)


def gradients_csv(gradients: Sequence[GradientSizes]) -> str:
    """A line for each place of each line; `own` as in `GradientSizes`."""
    head = ["run", "epoch", "layer", "pool", "samples", "n", "axis", "own", "place", "median", "low", "high", "note"]
    rows: list[list[object]] = [[*head]]
    for x in gradients:
        layer = x.ranked.layer
        key = [x.run, x.epoch, layer.layer, layer.pool, x.samples, x.n, x.axis, x.own]
        rows += [[*key, *cells, note_text(x.notes)] for cells in zip(x.places, x.values, x.low, x.high, strict=True)]
    return csv_text(rows)


def plot(source: PlotSource, options: PlotOptions) -> Drawing:
    """Draw the gradients of each run at an epoch."""
    gradients = source.gradients(options)
    return Drawing(draw(gradients, data=source.data(gradient.run for gradient in gradients)), gradients_csv(gradients))


PLOT = Plot(plot, ("epoch",))
