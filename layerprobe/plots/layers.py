"""Recall of the layers in network order, on the training and test set (Vo & Hays 2019, Fig. 2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from layerprobe.best import Best, apart_text, best_layer, best_text, worse_text
from layerprobe.facts import DataFacts, common_chance, level_text, run_lines
from layerprobe.plots import figure as fig
from layerprobe.plots.plot import Alike, BestPlot
from layerprobe.plots.values import (
    Point,
    Series,
    by_run,
    by_search,
    compared,
    missing,
    of_one_kind,
    points,
    points_csv,
    search_name,
    shared,
)
from layerprobe.scores import Score
from layerprobe.wording import visible

_HEIGHT = 4.4  # inches
_LAYER = 0.36  # inches of width for each layer
_WIDTHS = (4.2, 9.0)
_BAR = 4.0  # points from the bar of one split to that of the next
_SPLITS = ("train", "validation", "test")
# Vermilion and blue of Okabe and Ito: distinct for every kind of colour blindness, and in grey.
_COLOURS = {"train": "#d55e00", "validation": "#767676", "test": "#0072b2"}
_MARKERS = {"train": "s", "validation": "^", "test": "o"}


def draw(
    scores: Sequence[Score],
    *,
    metric: str = "R@1",
    data: Mapping[str, DataFacts] | None = None,
    alike: Alike | None = None,
) -> Figure:
    """Draw a panel for each run: a line for each split at the last epoch and a lighter one for epoch 0.

    The gap between train and test is shaded. The bars of the last epoch are intervals. The best layer, chosen on
    validation where there is one, has a ring, and a note names the layers that are not told apart from it. Where there
    are several reductions or similarities, a run has a panel for each of its own.

    Args:
        scores: of one or more runs.
        metric: what is drawn.
        data: run -> what its scores were measured on; chance levels on which the runs agree are drawn.
        alike: tells which layers are not told apart from the best of some scores; None where that is unknown.

    Raises:
        LayerprobeError: no score of this metric.
    """
    given = points(scores, metric)
    found = by_search(given)
    starts, one_search = _starts(given, found, data or {}), found == given
    last: dict[str, int] = {}
    for point in found:
        last[point.run] = max(point.epoch, last.get(point.run, 0))
    found, kind = of_one_kind(found, lambda point, split: point.epoch == last[point.run] and split in _SPLITS)
    runs = by_run(found)
    data = data or {}
    floors = {split: 100 * value for split, value in common_chance(data.values()).items()}
    drawn = [point for point in found if point.epoch in (0, last[point.run])]
    values = [value for point in drawn for split in _SPLITS if (value := point.percent(split)) is not None]
    values += [end for point in drawn for split in _SPLITS for end in point.ends(split) or ()]
    y_limits = fig.limits(values or [0.0, 100.0], min(floors.values(), default=None))
    at_last = {run: _at(series, last[run]) for run, series in runs.items()}
    notes = (
        run_lines(data)
        + shared(at_last)
        + ([] if alike is None or kind.mixed else _alike(at_last, scores, metric, alike))
        + _worse(runs, last, metric, starts)
        + missing(at_last, ("train", "test"))
        + list(kind.lines("Bars"))
        + fig.chance_outside(dict.fromkeys(("train", "test"), y_limits), floors)
    )
    widest = fig.width_of([name for series in runs.values() for name in series])
    count = max(map(len, runs.values()))
    width = min(max(_WIDTHS[0], _LAYER * count), _WIDTHS[1])
    upright = widest + 0.1 > width / count
    layout = fig.Layout(
        width,
        _HEIGHT,
        fig.width_of([f"validation, {starts[run]}" for run in runs]) + 0.35,
        below=(widest if upright else 0.15) + 0.35,
        columns=2,
        notes=notes,
    )
    titles = []
    for run, series in runs.items():
        what = f"{metric} by layer, epoch {last[run]}"
        title = f"{run}: {what}, {compared(series)}" if one_search else f"{run}\n{what}"
        titles.append(f"{title}\n{_best(at_last[run])}")
    figure, panels = fig.panels(titles, layout)
    for axes, (run, series) in zip(panels, runs.items(), strict=True):
        axes.set_ylim(y_limits)
        fig.in_percent(axes, "y")
        axes.set_ylabel(metric, fontsize=fig.FONT + 1)
        _name_layers(axes, list(series), upright=upright)
        labels = _draw_splits(axes, series, last[run], starts[run])
        _mark_best(axes, at_last[run])
        fig.label_right(axes, labels + _draw_chance(axes, floors))
    return figure


def _at(series: Series, epoch: int) -> Series:
    return {name: [point for point in layer if point.epoch == epoch] for name, layer in series.items()}


def _values(series: Series, split: str) -> list[float]:
    """Percent of each layer, of which there is one point at most; NaN where there is none."""
    found = [layer[0].percent(split) if layer else None for layer in series.values()]
    return [np.nan if value is None else value for value in found]


def _name_layers(axes: Axes, names: Sequence[str], *, upright: bool) -> None:
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xticks(range(len(names)), list(map(visible, names)))
    axes.grid(visible=False, axis="x")
    for label in axes.get_xticklabels():
        label.set(rotation=90 if upright else 0, parse_math=False)


def _draw_chance(axes: Axes, floors: Mapping[str, float]) -> list[fig.Label]:
    """Draw lines at the chance levels that are in view, and return their labels."""
    labels = []
    (_, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    for split, floor in floors.items():
        if split in ("train", "test") and bottom < floor < top:
            axes.axhline(floor, color=_COLOURS[split], linewidth=1, linestyle=":", zorder=1, label=f"_chance {split}")
            labels.append(fig.Label(f"chance {level_text(floor)}, {split}", right, floor, _COLOURS[split]))
    return labels


def _starts(given: Sequence[Point], found: Sequence[Point], data: Mapping[str, DataFacts]) -> dict[str, str]:
    """Panel -> what the network of epoch 0 is; `found` are the points of `given`, by panel."""
    runs = {panel.run: point.run for point, panel in zip(given, found, strict=True)}
    return {panel: data[run].start if run in data else DataFacts.start for panel, run in runs.items()}


def _draw_splits(axes: Axes, series: Series, last: int, start: str) -> list[fig.Label]:
    """Draw the lines and the gap, and return the lines' labels."""
    tracks = _tracks(series)
    labels = []
    for epoch in sorted({0, last}):
        light = epoch != last
        layers = _at(series, epoch)
        for split in _SPLITS:
            values = _values(layers, split)
            valid = [i for i in range(len(series)) if np.isfinite(values[i])]
            if not valid:
                continue
            name = f"{split}, {start}" if epoch == 0 else split
            for number, places in enumerate(tracks):
                heights = [values[i] for i in places]
                (line,) = axes.plot(places, heights, color=_COLOURS[split], marker=_MARKERS[split])
                line.set(linewidth=1.0 if light else 1.8, markersize=4 if light else 6, alpha=0.5 if light else 1)
                line.set_label(f"_{name}" if number else name)
                if epoch == 0:
                    line.set(linestyle=(0, (2, 2)), markerfacecolor="white")
            labels.append(fig.Label(name, valid[-1], values[valid[-1]], _COLOURS[split]))
    layers = _at(series, last)
    _draw_intervals(axes, layers)
    train, test = (np.array(_values(layers, split)) for split in ("train", "test"))
    for places in tracks:
        axes.fill_between(
            places, train[places], test[places], color="0.5", alpha=0.13, linewidth=0, label="_gap", zorder=0.5
        )
    return labels


def _draw_intervals(axes: Axes, layers: Series) -> None:
    """Draw a bar for each interval; those of the splits stand beside each other."""
    found = [layer[0] for layer in layers.values() if layer]
    splits = [split for split in _SPLITS if any(split in point.intervals for point in found)]
    left, right = axes.get_xlim()
    beside = _BAR / 72 * (right - left) / fig.size_of(axes)[0]
    for number, split in enumerate(splits):
        ends = [(place, own) for place, layer in enumerate(layers.values()) if layer and (own := layer[0].ends(split))]
        places = [place + (number - (len(splits) - 1) / 2) * beside for place, _ in ends]
        bars = axes.vlines(places, [low for _, (low, _) in ends], [high for _, (_, high) in ends])
        bars.set(color=_COLOURS[split], linewidth=_BAR * 0.8, alpha=0.4, zorder=1.5, label=f"_interval {split}")


def _tracks(series: Series) -> list[list[int]]:
    """The places that a line joins: one line for each reduction and, where layers have several pools, for each of them.

    A layer of one pool, such as a vector among maps, is on every line of its reduction. `A+B` is on none, as it is no
    step of the network: each stands alone.
    """
    points = [layer[0] for layer in series.values()]
    joint = [[i] for i, point in enumerate(points) if "+" in point.layer]
    lines: list[list[int]] = []
    for reduction in dict.fromkeys(point.reduction for point in points):
        rows = [i for i, point in enumerate(points) if point.reduction == reduction and [i] not in joint]
        times = Counter(points[i].layer for i in rows)
        several = list(dict.fromkeys(points[i].pool for i in rows if times[points[i].layer] > 1))
        # Without any such layer, every layer is on the one line.
        for pool in several or [""]:
            lines.append([i for i in rows if times[points[i].layer] == 1 or points[i].pool == pool])
    return [line for line in lines if line] + joint


def _fractions(layers: Series, split: str) -> list[float | None]:
    return [layer[0].values.get(split) if layer else None for layer in layers.values()]


def _best_of(layers: Series) -> tuple[Best | None, dict[str, list[float | None]]]:
    values = {split: _fractions(layers, split) for split in ("validation", "test")}
    return best_layer(values), values


def _best(layers: Series) -> str:
    best, values = _best_of(layers)
    return best_text(best, list(layers), values) if best else ""


def _alike(runs: Mapping[str, Series], scores: Sequence[Score], metric: str, alike: Alike) -> list[str]:
    """A line for each panel, where it is known which layers are not told apart from its best one."""
    lines = []
    for run, series in runs.items():
        best, _ = _best_of(series)
        epochs = {point.epoch for layer in series.values() for point in layer}
        # Where there are several reductions or similarities, `by_search` has named the panels.
        own = [s for s in scores if s.epoch in epochs and run in (s.run, search_name(s))]
        near = alike(own, metric) if best else None
        if best and near is not None:
            told = apart_text(best, [name for name, layer in series.items() if layer and layer[0].ranked_layer in near])
            lines.append(f"{run}: " * (len(runs) > 1) + f"best: {list(series)[best.place]}; {told}")
    return lines


def _worse(runs: Mapping[str, Series], last: Mapping[str, int], metric: str, starts: Mapping[str, str]) -> list[str]:
    lines = []
    for run, series in runs.items():
        before, trained = (_fractions(_at(series, epoch), "test") for epoch in (0, last[run]))
        if told := worse_text(list(series), before, trained, metric, starts[run]):
            lines.append(f"{run}: " * (len(runs) > 1) + told)
    return lines


def _mark_best(axes: Axes, layers: Series) -> None:
    best, values = _best_of(layers)
    if best:
        on_test = values["test"][best.place]
        height = on_test if on_test is not None else values[best.split][best.place]
        (ring,) = axes.plot(best.place, 100 * (height or 0), marker="o", markersize=13, linestyle="none")
        ring.set(markerfacecolor="none", markeredgecolor="black", markeredgewidth=1.4, zorder=4, label="_best")
        axes.get_xticklabels()[best.place].set(weight="bold")


PLOT = BestPlot(draw, points_csv)
