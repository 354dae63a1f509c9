"""Recall@1 of each layer by the number of items searched: all positives, and a random sample of the negatives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from layerprobe.plots import figure as fig
from layerprobe.plots.drawn_scores import merge_lines
from layerprobe.plots.plot import Drawing, Plot, PlotOptions, PlotSource, csv_text
from layerprobe.values.facts import DataFacts, epoch_text, run_lines
from layerprobe.values.intervals import ShownKind
from layerprobe.values.layers import RankedLayer, names_by_layer
from layerprobe.values.scores import note_text, shared_notes
from layerprobe.values.views import Curve

_FIGURE = 4.6  # inches that a figure of one panel has
_LEAST, _HEIGHT = 2.4, 3.0
_LEFT = 0.75
_BAND = 0.15
_BETWEEN = 0.06  # inches between the numbers at two ticks
_KEY = ("run", "epoch", "split", "layer", "pool", "post_processing", "similarity")
_HOW = "Each query searches all its positives and a random sample of the negatives (exact expectation)."


def draw(curves: Sequence[Curve], *, data: Mapping[str, DataFacts] | None = None) -> Figure:
    """Draw a panel for each run, with a line for each layer, labelled with its last value.

    A band around a line is its interval over classes, or the range over trainings.
    """
    kind = ShownKind.of(curve.kind for curve in curves if any(end is not None for end in curve.low))
    if kind.kind is None:
        curves = [replace(curve, low=(), high=()) for curve in curves]
    runs: dict[str, list[Curve]] = {}
    for curve in curves:
        runs.setdefault(curve.run, []).append(curve)
    names = names_by_layer(curve.ranked for curve in curves)
    styles = fig.styles(list(dict.fromkeys(names.values())))
    sizes = [size for curve in curves for size in curve.places]
    margin = (max(sizes) / min(sizes)) ** 0.02 if max(sizes) > min(sizes) else 2.0
    x_limits = min(sizes) / margin, max(sizes) * margin
    labels, titles = [], []
    for run, run_curves in runs.items():
        valid = [(names[curve.ranked], 100 * end) for curve in run_curves if (end := curve.values[-1]) is not None]
        labels.append([fig.Label(f"{name} {y:.1f} %", x_limits[1], y, styles[name].text) for name, y in valid])
        similarities = dict.fromkeys(curve.ranked.similarity for curve in run_curves)
        when = epoch_text(run_curves[0].epoch, (data or {}).get(run))
        titles.append(f"{run}\n{', '.join([run_curves[0].split, when, *similarities])}")
    right = fig.width_of([label.text for run_labels in labels for label in run_labels]) + 0.25
    width = max(_LEAST, _FIGURE - _LEFT - right)
    notes = [*run_lines(data or {}, {curve.split for curve in curves}), _HOW, *kind.lines("Bands")]
    notes += merge_lines({run: _remarks(run_curves, names) for run, run_curves in runs.items()})
    layout = fig.PanelLayout(width, _HEIGHT, right, below=0.6, columns=2, notes=notes)
    figure, panels = fig.make_panels(titles, layout)
    shares = [share for curve in curves for share in (*curve.values, *curve.low, *curve.high) if share is not None]
    y_limits = fig.limits([100 * share for share in shares] or [0.0, 100.0])
    for axes, run_curves, run_labels in zip(panels, runs.values(), labels, strict=True):
        _set_axes(axes, x_limits, y_limits, run_curves[0].measure)
        for curve in run_curves:
            _draw_curve(axes, curve, styles[names[curve.ranked]], names[curve.ranked])
        fig.label_right(axes, run_labels)
    return figure


def table(curves: Iterable[Curve]) -> str:
    """Curves as CSV, a line for each number with the notes of its curve; an invalid number is an empty cell."""
    rows: list[list[object]] = [[*_KEY, "items", "R@1", "low", "high", "n", "note"]]
    for c in curves:
        key = [c.run, c.epoch, c.split, *c.ranked.as_columns().values()]
        note = note_text((*c.remarks, *c.kind.notes))
        ends = c.low or (None,) * len(c.places), c.high or (None,) * len(c.places)
        for size, value, low, high in zip(c.places, c.values, *ends, strict=True):
            rows.append([*key, int(size), value, low, high, c.n, note])
    return csv_text(rows)


def _remarks(curves: Sequence[Curve], names: Mapping[RankedLayer, str]) -> list[str]:
    """The notes of a run's curves: those that all have, and those of single layers."""
    common = shared_notes(curve.remarks for curve in curves)
    remarks = [*common]
    for curve in curves:
        fault = "not valid: " * all(value is None for value in curve.values)
        text = note_text(note for note in curve.remarks if note not in common)
        remarks += [f"{fault}{names[curve.ranked]}: {text}"] if text or fault else []
    return remarks


def _set_axes(axes: Axes, ends: tuple[float, float], y_limits: tuple[float, float], measure: str) -> None:
    low, high = ends
    axes.set_xscale("log")
    axes.set_xlim(ends)
    axes.set_ylim(y_limits)
    axes.xaxis.set_major_locator(FixedLocator(_ticks(low, high, fig.size_of(axes)[0])))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    fig.show_percent(axes, "y")
    axes.set_xlabel("items searched", fontsize=fig.FONT + 1)
    axes.set_ylabel(measure, fontsize=fig.FONT + 1)


def _ticks(low: float, high: float, inches: float) -> list[float]:
    """As many round numbers in the range as fit."""
    powers = range(len(f"{high:.0f}"))
    steps: list[float] = []
    for factors, decades in ((1, 2, 5), 0.30), ((1, 3), 0.47), ((1,), 1.0):
        steps = [step for power in powers for factor in factors if low <= (step := factor * 10.0**power) <= high]
        room = decades / max(math.log10(high / low), decades) * inches
        if fig.width_of([f"{step:,.0f}" for step in steps]) + _BETWEEN <= room:
            return steps
    return steps


def _draw_curve(axes: Axes, curve: Curve, style: fig.Style, name: str) -> None:
    values = [math.nan if value is None else 100 * value for value in curve.values]
    (line,) = axes.plot(curve.places, values, color=style.colour, marker=style.marker, label=name)
    # A marker tells layers apart without their colour; one at every number would hide the line.
    line.set(markersize=style.size * 0.55, linewidth=1.5, clip_on=False)
    line.set_markevery(slice((len(values) - 1) % 3, None, 3))
    if any(end is not None for end in curve.low):
        low, high = ([math.nan if end is None else 100 * end for end in ends] for ends in (curve.low, curve.high))
        band = axes.fill_between(curve.places, low, high, color=style.colour, alpha=_BAND)
        band.set(linewidth=0, zorder=0.5, label=f"_interval of {name}")


def plot(source: PlotSource, options: PlotOptions) -> Drawing:
    """Draw the recalls of a few layers, or of the requested ones."""
    curves = source.gallery_sizes(options)
    return Drawing(draw(curves, data=source.data(curve.run for curve in curves)), table(curves))


PLOT = Plot(plot)
