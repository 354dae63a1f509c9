"""Test recall against training recall, with a path over the epochs for each layer.

Of two layers with similar recall in training, the one that is higher here generalises better: the comparison that
Vo & Hays 2019 make in section 5.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from layerprobe.facts import DataFacts, common_chance, common_start, level_text, run_lines
from layerprobe.plots import figure as fig
from layerprobe.plots.plot import Layers, ScorePlot
from layerprobe.plots.values import (
    Point,
    Series,
    as_they_are,
    by_run,
    compared,
    layer_names,
    missing,
    not_drawn,
    of_one_kind,
    points,
    shared,
    unreduced_csv,
)
from layerprobe.scores import Score

_WIDTH, _HEIGHT = 5.2, 4.4  # of a panel in inches; the height is that of axes with different scales
_LABEL = 0.165  # inches of height that a label needs
# Both axes have one scale if test range / train range is within these; else the paths would be pressed flat.
_EQUAL = (0.4, 2.5)
# Least and largest height / width of a panel whose axes share a scale; taller if the names need it.
_FLATTEST, _TALLEST = 0.68, 1.0
_NAMED = 0.25  # share of the width that the line test = train needs to be labelled

Limits = tuple[float, float]


def draw(
    scores: Sequence[Score],
    *,
    metric: str = "R@1",
    data: Mapping[str, DataFacts] | None = None,
    layers: Layers | None = None,
) -> Figure:
    """Draw a panel for each run, with a path of points for each layer: hollow at epoch 0, large at the last epoch.

    The bars through the points of the last epoch are their intervals. Layers that are reduced are drawn only where none
    is as it is.

    Args:
        scores: of one or more runs.
        metric: what is drawn.
        data: run -> what its scores were measured on; chance levels on which the runs agree are drawn.
        layers: those that are drawn; None for all.

    Raises:
        LayerprobeError: no score of this metric.
    """
    scores = scores if layers is None else [score for score in scores if score.ranked_layer in layers]
    found = points(as_they_are(scores), metric)
    last: dict[str, int] = {}
    for point in found:
        last[point.run] = max(point.epoch, last.get(point.run, 0))
    found, kind = of_one_kind(found, lambda point, split: point.epoch == last[point.run] and split in ("train", "test"))
    runs = by_run(found)
    data = data or {}
    floors = {split: 100 * value for split, value in common_chance(data.values()).items()}
    names = layer_names(runs)
    window = _window(found, floors, _LABEL * len(names))
    styles = fig.styles(names)
    titles = [f"{run}: {metric} by layer, {compared(series)}" for run, series in runs.items()]
    notes = run_lines(data) + shared(runs) + missing(runs, ("train", "test"))
    notes += [*kind.lines("Bars"), *_reading(found, window, floors), *not_drawn(scores)]
    labels = {run: _labels(series, styles, window) for run, series in runs.items()}
    right = fig.width_of([label.text for panel in labels.values() for label in panel])
    layout = fig.Layout(_WIDTH, window.height, right + 0.35, notes=notes)
    figure, panels = fig.panels(titles, layout)
    for axes, (run, series) in zip(panels, runs.items(), strict=True):
        axes.set_xlim(window.x)
        axes.set_ylim(window.y)
        _name_axes(axes, metric, _scored(found))
        _draw_references(axes, floors, _scored(found))
        _draw_paths(axes, series, styles, window)
        fig.label_right(axes, labels[run])
        fig.key_below(axes, _kinds(found, common_start(data.values())))
    return figure


@dataclass(frozen=True)
class _Window:
    """The part of the plane that is shown, in percent, and the height of its panel, in inches."""

    x: Limits
    y: Limits
    height: float
    equal: bool = False  # one scale for both axes


def _scored(found: Sequence[Point]) -> set[str]:
    return {split for point in found for split, value in point.values.items() if value is not None}


def _window(found: Sequence[Point], floors: Mapping[str, float], least: float) -> _Window:
    """The window that shows every point, at least `least` inches tall."""
    x, y = _limits(found, "train", floors), _limits(found, "test", floors)
    if x is None or y is None:
        both = x or y or (0.0, 100.0)
        return _Window(both, both, max(_HEIGHT, least))
    (left, right), (bottom, top) = x, y
    ratio = (top - bottom) / (right - left)
    if not _EQUAL[0] <= ratio <= _EQUAL[1]:
        return _Window(x, y, max(_HEIGHT, least))
    # The window grows upwards and to the right, where the line test = train comes into view.
    flattest = max(_FLATTEST, least / _WIDTH)
    top = max(top, bottom + flattest * (right - left))
    right = max(right, left + (top - bottom) / max(_TALLEST, flattest))
    return _Window((left, right), (bottom, top), _WIDTH * (top - bottom) / (right - left), equal=True)


def _limits(found: Sequence[Point], split: str, floors: Mapping[str, float]) -> Limits | None:
    values = [value for point in found if (value := point.percent(split)) is not None]
    values += [end for point in found for end in point.ends(split) or ()]
    return fig.limits(values, floors.get(split)) if values else None


def _reading(found: Sequence[Point], window: _Window, floors: Mapping[str, float]) -> list[str]:
    """Notes that a reader of the figure needs."""
    if not {"train", "test"} <= _scored(found):
        return ["Layers without a value on one axis stand at its edge."]
    lines = []
    lines += fig.chance_outside({"train": window.x, "test": window.y}, floors)
    if not window.equal:
        lines.append("The axes differ in scale.")
    if max(window.x[0], window.y[0]) >= min(window.x[1], window.y[1]):
        lines.append("The line test = train lies outside the axes.")
    elif not _has_room(window.x, window.y):
        lines.append("The line in the corner is test = train.")
    if len({point.epoch for point in found}) == 1:
        lines.append(f"One epoch only ({found[0].epoch}): no paths.")
    return lines


def _has_room(x: Limits, y: Limits) -> bool:
    """Whether the visible part of the line test = train is long enough for its label."""
    return min(x[1], y[1]) - max(x[0], y[0]) >= _NAMED * (x[1] - x[0])


def _name_axes(axes: Axes, metric: str, scored: set[str]) -> None:
    axes.set_xlabel(f"train {metric}", fontsize=fig.FONT + 1)
    axes.set_ylabel(f"test {metric}", fontsize=fig.FONT + 1)
    for split, which, axis in (("train", "x", axes.xaxis), ("test", "y", axes.yaxis)):
        if split in scored:
            fig.in_percent(axes, which)
        else:
            axis.set_ticks([])


def _draw_references(axes: Axes, floors: Mapping[str, float], scored: set[str]) -> None:
    """Draw the line test = train and the chance levels, as far as they are in view."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    low, high = max(left, bottom), min(right, top)
    if low < high and {"train", "test"} <= scored:
        axes.plot([low, high], [low, high], color="0.6", linewidth=1, zorder=1, label="_diagonal")
    if low < high and {"train", "test"} <= scored and _has_room((left, right), (bottom, top)):
        middle = low + 0.6 * (high - low)
        text = axes.annotate("test = train", (middle, middle), xytext=(0, 3), textcoords="offset points", ha="center")
        text.set(
            rotation=45, transform_rotates_text=True, rotation_mode="anchor", fontsize=fig.FONT - 1, color=fig.GREY
        )
    lines = {"color": "0.55", "linewidth": 1.0, "linestyle": ":", "zorder": 1.0}
    train, test = floors.get("train", left), floors.get("test", bottom)
    if left < train < right and "train" in scored:
        axes.axvline(train, label="_chance train").set(**lines)
        text = axes.annotate(f"chance {level_text(train)}", (train, top), xytext=(3, -3), textcoords="offset points")
        text.set(rotation=90, va="top", fontsize=fig.FONT - 1, color=fig.GREY)
    if bottom < test < top and "test" in scored:
        axes.axhline(test, label="_chance test").set(**lines)
        text = axes.annotate(f"chance {level_text(test)}", (right, test), xytext=(-3, 3), textcoords="offset points")
        text.set(ha="right", fontsize=fig.FONT - 1, color=fig.GREY)


def _labels(series: Series, styles: Mapping[str, fig.Style], window: _Window) -> list[fig.Label]:
    """A label for each layer at its last point; it names the epoch if other layers have a later one."""
    last = max(point.epoch for layer in series.values() for point in layer)
    labels = []
    for name, layer in series.items():
        places = _places(layer, window)
        if places:
            epoch, x, y = places[-1]
            text = name if epoch == last else f"{name} (epoch {epoch})"
            labels.append(fig.Label(text, x, y, styles[name].text))
    return labels


def _draw_paths(axes: Axes, series: Series, styles: Mapping[str, fig.Style], window: _Window) -> None:
    last = max(point.epoch for layer in series.values() for point in layer)
    for i, (name, layer) in enumerate(series.items()):
        style, places = styles[name], _places(layer, window)
        if not places:
            continue
        epochs, x, y = zip(*places, strict=True)
        (path,) = axes.plot(x, y, color=style.colour, linewidth=1.1, linestyle=fig.LINES[i % len(fig.LINES)])
        path.set(alpha=0.75, label=name)
        (dots,) = axes.plot(x, y, color=style.colour, linestyle="none", marker=style.marker, markersize=3)
        dots.set(label=f"_epochs of {name}", clip_on=False)
        _draw_intervals(axes, layer[-1], (x[-1], y[-1]), style)
        if epochs[-1] == last > 0:
            (end,) = axes.plot(x[-1:], y[-1:], color=style.colour, marker=style.marker, markersize=style.size)
            end.set(markeredgecolor="black", markeredgewidth=0.7, zorder=4, clip_on=False, label=f"_end of {name}")
        if epochs[0] == 0:
            (start,) = axes.plot(x[:1], y[:1], color=style.colour, marker=style.marker, markersize=style.size * 0.7)
            start.set(markerfacecolor="white", zorder=3, clip_on=False, label=f"_start of {name}")


def _draw_intervals(axes: Axes, point: Point, place: tuple[float, float], style: fig.Style) -> None:
    # The ends have caps: else the bar of train is one with the line to the layer's name.
    bars = {"test": ([place[0]] * 2, point.ends("test"), "_"), "train": (point.ends("train"), [place[1]] * 2, "|")}
    for split, (x, y, cap) in bars.items():
        if x and y:
            (bar,) = axes.plot(x, y, color=style.text, linewidth=1.0, marker=cap, markersize=5, alpha=0.55)
            bar.set(label=f"_interval {split} of {point.layer}", zorder=1.8)


def _places(layer: Sequence[Point], window: _Window) -> list[tuple[int, float, float]]:
    """(epoch, x, y) of the points that can be drawn; those of a layer without one of the splits are at the edge."""
    x = [point.percent("train") for point in layer]
    y = [point.percent("test") for point in layer]
    if not any("train" in point.values for point in layer):
        x = [window.x[0]] * len(layer)
    if not any("test" in point.values for point in layer):
        y = [window.y[0]] * len(layer)
    epochs = [point.epoch for point in layer]
    return [
        (epoch, train, test)
        for epoch, train, test in zip(epochs, x, y, strict=True)
        if train is not None and test is not None
    ]


def _kinds(found: Sequence[Point], start: str) -> list[dict[str, object]]:
    """The kinds of markers in the figure, for its key."""
    epochs = sorted({point.epoch for point in found})
    kinds: list[dict[str, object]] = []
    if epochs[0] == 0:
        kinds.append({"label": f"hollow: {start}", "markersize": 6, "markerfacecolor": "white"})
    if len(epochs) > 1:
        kinds.append({"label": "small: each epoch", "markersize": 3})
    if epochs[-1] > 0:
        kinds.append({"label": f"large: epoch {epochs[-1]}", "markersize": 8, "markeredgecolor": "black"})
    return kinds


PLOT = ScorePlot(draw, unreduced_csv)
