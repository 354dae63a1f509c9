"""Spectrum of each layer's features: share of the variance by principal direction, and effective rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from layerprobe.plots import figure as fig
from layerprobe.plots.drawn_scores import shared_then_single
from layerprobe.plots.plot import Drawing, Plot, PlotOptions, PlotSource, csv_text
from layerprobe.values.facts import DataFacts, epoch_text, image_lines, split_text
from layerprobe.values.layers import names_by_layer
from layerprobe.values.scores import note_text
from layerprobe.values.views import Curve

_WIDTH, _HEIGHT = 3.75, 3.4  # inches
_ROOM = 1.4  # a panel is so many times as wide as its widest label
_LEAST = 1e-6  # smaller shares are outside the axis: a few directions that hardly vary would take half of it
_LABELLED = 2 / 3  # of the axis of dimensions: the part whose points may be labelled
_STEPS = 6  # points of a line that labels keep clear of, for each factor of e
_LINES: dict[str, dict[str, Any]] = {
    "test": {"linestyle": "-", "linewidth": 1.6},
    "train": {"linestyle": (0, (1, 1.2)), "linewidth": 1.2},
}
_HOW = (
    "Principal directions of unit vectors, not centred. The numbers are effective ranks: the exponential of the "
    "entropy of the singular values."
)

BySplit = dict[str, Curve]


def draw(curves: Sequence[Curve], *, data: Mapping[str, DataFacts] | None = None) -> Figure:
    """Draw a panel for each run with a line for each layer and split, on logarithmic axes.

    A label names a layer and its effective rank on test, and on train in brackets.
    """
    names = names_by_layer(curve.ranked for curve in curves)
    styles = fig.styles(list(names.values()))
    epochs = {curve.run: curve.epoch for curve in curves}
    runs: dict[str, dict[str, BySplit]] = {run: {} for run in epochs}
    for curve in curves:
        if None not in curve.values:
            runs[curve.run].setdefault(names[curve.ranked], {})[curve.split] = curve
    widest = fig.width_of([_text(name, splits) for layers in runs.values() for name, splits in layers.items()])
    titles = [f"{run}, {epoch_text(epoch, (data or {}).get(run))}" for run, epoch in epochs.items()]
    width = max(_WIDTH, _ROOM * widest)
    notes = [_HOW, *image_lines(data or {}, {curve.split for curve in curves})]
    notes += shared_then_single(
        [(f"{curve.run}, {names[curve.ranked]}, {curve.split}", curve.notes) for curve in curves]
    )
    layout = fig.PanelLayout(width, _HEIGHT, 0.1, columns=2, notes=notes)
    figure, panels = fig.make_panels(titles, layout)
    for axes, (run, layers) in zip(panels, runs.items(), strict=True):
        _set_axes(axes, curves)
        _draw_curves(axes, layers, styles)
        splits = dict.fromkeys(curve.split for curve in curves if curve.run == run)
        fig.add_legend(
            axes, [_LINES[x] | {"label": split_text(x, (data or {}).values()), "marker": ""} for x in splits]
        )
    return figure


def effective_rank(curve: Curve) -> float | None:
    """Exponential of the entropy of the normalised singular values; None without values.

    Roy & Vetterli, The effective rank (2007), as the metric `effective-rank` has it. The shares of the variance are the
    squares of the singular values.
    """
    values = [math.sqrt(value) for value in curve.values if value]
    total = sum(values)
    return math.exp(-sum(value / total * math.log(value / total) for value in values)) if values else None


def _set_axes(axes: Axes, curves: Sequence[Curve]) -> None:
    points = [point for curve in curves if None not in curve.values for point in _points(curve)]
    least = max(min((value for _, value in points), default=_LEAST), _LEAST)
    longest = max((dim for dim, value in points if value >= least), default=10)
    axes.set(xscale="log", yscale="log")
    axes.set_xlim(0.9, 1.12 * longest)
    axes.set_ylim(0.6 * least, 1.5)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(curves[0].axis, fontsize=fig.FONT + 1)
    axes.set_ylabel(curves[0].measure, fontsize=fig.FONT + 1)


def _draw_curves(axes: Axes, layers: Mapping[str, BySplit], styles: Mapping[str, fig.Style]) -> None:
    paths = []
    for name, splits in layers.items():
        for split, curve in splits.items():
            points = _points(curve)
            (line,) = axes.plot(*zip(*points, strict=True), color=styles[name].colour, **_LINES[split])
            line.set(label=f"_{name}, {split}", marker="." if len(curve.places) == 1 else "")
            # The points of a line that labels keep clear of, at most a few for each factor of e.
            paths.append(list({round(_STEPS * math.log(x)): (x, y) for x, y in points}.values()))
    labelled_curves = {name: splits.get("test") or next(iter(splits.values())) for name, splits in layers.items()}
    farthest, lowest = axes.get_xlim()[1] ** _LABELLED, axes.get_ylim()[0]
    labels = []
    for name, curve in labelled_curves.items():
        other_lines = [dict(_points(other)) for label, other in labelled_curves.items() if label != name]
        points = _points(curve)
        candidates = [(x, y) for x, y in points if x <= farthest and y > 2 * lowest] or points[:1]
        point = max(candidates, key=lambda candidate: _distance(candidate, other_lines))
        labels.append(fig.Label(_text(name, layers[name]), *point, styles[name].text))
    fig.label_points(axes, labels, paths)


def _points(curve: Curve) -> list[fig.Position]:
    return [(dim, value) for dim, value in zip(curve.places, curve.values, strict=True) if value is not None]


def _distance(point: fig.Position, lines: Sequence[Mapping[float, float]]) -> float:
    """Vertical distance from a point to the nearest other line, on the logarithmic axis."""
    return min((abs(math.log(point[1] / line[point[0]])) for line in lines if point[0] in line), default=math.inf)


def _text(name: str, splits: BySplit) -> str:
    """`fc6 68.0 (train 59.3)`."""
    ranks = {split: f"{rank:.1f}" for split, curve in splits.items() if (rank := effective_rank(curve)) is not None}
    if "test" not in ranks:
        return " ".join([name, *(f"{rank} ({split})" for split, rank in ranks.items())])
    return f"{name} {ranks['test']}" + (f" (train {ranks['train']})" if "train" in ranks else "")


def spectra_csv(curves: Sequence[Curve]) -> str:
    """A line for each dimension of each layer and split, with the effective rank of the layer."""
    head = ["run", "epoch", "split", "layer", "pool", "post_processing"]
    rows: list[list[object]] = [[*head, "dimension", "share", "effective-rank", "n", "note"]]
    for curve in curves:
        layer, rank = curve.ranked.layer, effective_rank(curve)
        key = [curve.run, curve.epoch, curve.split, layer.layer, layer.pool, curve.ranked.post_processing]
        end = [rank, curve.n, note_text(curve.notes)]
        rows += [[*key, dim, value, *end] for dim, value in zip(curve.places, curve.values, strict=True)]
    return csv_text(rows)


def plot(source: PlotSource, options: PlotOptions) -> Drawing:
    """Draw the spectra of a few layers, or of the requested ones."""
    curves = source.spectra(options)
    return Drawing(draw(curves, data=source.data(curve.run for curve in curves)), spectra_csv(curves))


PLOT = Plot(plot)
