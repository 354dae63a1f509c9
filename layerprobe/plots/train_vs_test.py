"""Test recall against training recall, with a path over the epochs for each layer.

Of two layers with similar recall in training, the one that is higher here generalises better: the comparison that
Vo & Hays 2019 make in section 5.2.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from layerprobe.plots import figure as fig
from layerprobe.plots.drawn_scores import (
    Layer,
    Series,
    common_lines,
    comparison_text,
    default_layers,
    drawn_percents,
    group_by_run,
    keep_one_kind,
    layers_by_epoch_csv,
    match_layers,
    missing_lines,
    omission_notes,
    percent,
    ranked_of,
    scores_in,
    scores_of_metric,
    select_raw,
)
from layerprobe.plots.placing import Samples
from layerprobe.plots.plot import Drawing, NotProbedError, Plot, PlotOptions, PlotSource
from layerprobe.values.facts import DataFacts, common_chance, common_start, level_text, run_lines, split_text
from layerprobe.values.layers import RankedLayer
from layerprobe.values.scores import GAP_SPLITS, Score

_TOGETHER = 6  # as many layers of several runs share a panel
_PALE, _PALE_TEXT = "0.75", "0.5"
_SMALL = fig.FONT - 2  # size of numbers of epochs and of pale names
_NAMED = 60  # with more pale layers there is no room for a name
_BEYOND = 0.55  # inches beside a panel for labels
_STEP = 30.0  # points along a path from one epoch's number to the next
_WIDTH = 3.3  # of a panel in inches
_HEIGHT = 3.1  # of axes with different scales
# Both axes have one scale if test range / train range is within these; else the paths would be pressed flat.
_EQUAL = (0.4, 2.5)
_FLATTEST, _TALLEST = 0.68, 1.0  # least and largest height / width of a panel whose axes share a scale
_DIAGONAL_SHARE = 0.3  # share of the width that the line test = train needs to be labelled
_DIAGONAL_LINE = "_diagonal"
_DIAGONAL = "test = train"

Limits = tuple[float, float]


def draw(
    scores: Sequence[Score],
    *,
    data: Mapping[str, DataFacts] | None = None,
    layers: Collection[RankedLayer] | None = None,
    embeddings: Mapping[str, RankedLayer] | None = None,
) -> Figure:
    """Draw a path of points for each layer, hollow at epoch 0 and large at the last epoch: a panel for each run.

    A few layers are in colour, the others pale and named where there is room. The bars through the points of the last
    epoch are their intervals. Several runs with at most six paths in all share a panel. Post-processed layers are drawn
    only if requested, or if the run has no raw one.

    Args:
        data: run -> the data its scores were measured on; chance levels on which the runs agree are drawn.
        layers: those in colour; None for those of `default_layers`.
        embeddings: run -> its embedding layer, where that is known.
    """
    metric_scores = [x for x in scores_of_metric(select_raw(scores, layers)) if x.split in GAP_SPLITS]
    if not metric_scores:
        message = f"no layer has {scores[0].metric} on train or test"
        raise NotProbedError(message, "--splits", ",".join(GAP_SPLITS))
    runs, data = group_by_run(metric_scores), data or {}
    last_epochs = {run: max(score.epoch for score in scores_in(series)) for run, series in runs.items()}
    bright = default_layers(runs, embeddings or {}, data) if layers is None else layers
    metric_scores, kind = keep_one_kind(
        metric_scores,
        lambda score: score.epoch == last_epochs[score.run] and score.ranked in bright,
    )
    metric = metric_scores[0].metric
    panels = _panels(group_by_run(metric_scores), bright)
    drawn_scores = [score for panel in panels for series in panel.runs.values() for score in scores_in(series)]
    floors = {split: 100 * value for split, value in common_chance(data.values()).items()}
    window = _window_of(drawn_scores, floors)
    scored = {score.split for score in drawn_scores if score.value is not None}
    notes = run_lines(data, GAP_SPLITS) + _notes(panels, data) + list(kind.lines("Bars"))
    notes += (
        window.notes() if scored == set(GAP_SPLITS) else ["Layers without a value on one axis are drawn at its edge."]
    )
    notes += omission_notes(scores, layers)
    styles = fig.styles(list(dict.fromkeys(key for panel in panels for key in panel.in_colour)))
    together = max(len(panel.runs) for panel in panels) > 1
    below = fig.PanelLayout.below + (len(styles) * fig.KEY_ROW if together else 0)
    titles = [f"{panel.title}{metric} by layer, {comparison_text(panel.merged)}" for panel in panels]
    figure, all_axes = fig.make_panels(titles, fig.PanelLayout(_WIDTH, window.height, _BEYOND, below, notes=notes))
    for axes, panel in zip(all_axes, panels, strict=True):
        _set_axes(axes, window, scored, metric, split_text("train", data.values()))
        _draw_chance_levels(axes, floors, scored)
        _draw_paths(axes, panel.paths(last_epochs, window, styles, data), window, diagonal=scored == set(GAP_SPLITS))
        fig.add_legend(axes, _kinds(drawn_scores, data))
        for row, (run, style) in enumerate(styles.items() if together else (), 1):
            look = {"marker": style.marker, "color": style.colour, "linestyle": fig.LINES[(row - 1) % len(fig.LINES)]}
            fig.add_legend(axes, [{"label": run, **look}], row=row)
    return figure


@dataclass(frozen=True)
class _Path:
    """The path of a layer of a run.

    Args:
        style: None for a pale one.
        starts: whether epoch 0 is the start of a training.
    """

    name: str
    text: str
    scores: Layer
    positions: Sequence[tuple[int, float, float]]
    ends: bool
    style: fig.Style | None
    dashes: fig.Dashes
    starts: bool

    @property
    def line(self) -> list[fig.Position]:
        """Its positions without the epochs."""
        return [(x, y) for _, x, y in self.positions]


@dataclass(frozen=True)
class _RunPanel:
    """The runs of a panel, the beginning of its title, and the layers in colour.

    In a panel of several runs each run has a colour, else each of these layers.
    """

    runs: Mapping[str, Series]
    title: str
    bright: Collection[RankedLayer]

    @property
    def merged(self) -> Series:
        """The layers of all runs."""
        return {f"{run} {name}": layer for run, series in self.runs.items() for name, layer in series.items()}

    @property
    def in_colour(self) -> list[str]:
        """The runs or layers that have a colour, in their order."""
        if len(self.runs) > 1:
            return list(self.runs)
        layers = [(name, ranked_of(layer)) for series in self.runs.values() for name, layer in series.items()]
        return [name for name, ranked in layers if ranked in self.bright]

    def paths(
        self,
        last_epochs: Mapping[str, int],
        window: _Window,
        styles: Mapping[str, fig.Style],
        data: Mapping[str, DataFacts],
    ) -> list[_Path]:
        """A path for each layer of each run that has a point."""
        paths = []
        for run, series in self.runs.items():
            for name, layer in series.items():
                key = run if len(self.runs) > 1 else name
                if positions := _positions(layer, window):
                    epoch = positions[-1][0]
                    text = name if epoch == last_epochs[run] else f"{name} (epoch {epoch})"
                    dashes = fig.LINES[list(styles).index(key) % len(fig.LINES)] if key in styles else "-"
                    starts = not _weights_of(run, data)
                    ends = epoch == last_epochs[run]
                    paths.append(_Path(name, text, layer, positions, ends, styles.get(key), dashes, starts))
        return paths


def _weights_of(run: str, data: Mapping[str, DataFacts]) -> str:
    return data[run].weights if run in data else ""


def _notes(panels: Sequence[_RunPanel], data: Mapping[str, DataFacts]) -> list[str]:
    runs = {run: series for panel in panels for run, series in panel.runs.items()}
    epochs = {score.epoch for series in runs.values() for score in scores_in(series)}
    weights = ", ".join(dict.fromkeys(filter(None, (_weights_of(run, data) for run in runs))))
    alone = [f"One epoch only ({weights or min(epochs)}): no paths."] if len(epochs) == 1 else []
    on_axes = {
        run: {name: {key: x for key, x in layer.items() if x.split in GAP_SPLITS} for name, layer in series.items()}
        for run, series in runs.items()
    }
    return [*common_lines(on_axes), *missing_lines(runs, GAP_SPLITS), *alone]


def _panels(runs: Mapping[str, Series], bright: Collection[RankedLayer]) -> list[_RunPanel]:
    """One panel without pale layers if the runs have few paths in all, else one for each run."""
    only = {
        run: {name: layer for name, layer in series.items() if ranked_of(layer) in bright}
        for run, series in runs.items()
    }
    if len(runs) > 1 and 0 < sum(map(len, only.values())) <= _TOGETHER:
        return [_RunPanel({run: series for run, series in only.items() if series}, "", bright)]
    return [_RunPanel({run: series}, f"{run}: ", bright) for run, series in runs.items()]


def _positions(layer: Layer, window: _Window) -> list[tuple[int, float, float]]:
    """(epoch, x, y) of the valid points; a layer that lacks a split is at the edge."""
    positions = []
    scored = {split for _, split in layer}
    for epoch in dict.fromkeys(epoch for epoch, _ in layer):
        x = percent(layer.get((epoch, "train"))) if "train" in scored else window.x[0]
        y = percent(layer.get((epoch, "test"))) if "test" in scored else window.y[0]
        if x is not None and y is not None:
            positions.append((epoch, x, y))
    return positions


def _draw_paths(axes: Axes, paths: Sequence[_Path], window: _Window, *, diagonal: bool) -> None:
    _draw_pale(axes, pale := [path for path in paths if path.style is None])
    for path in paths:
        if path.style is not None:
            _draw_path(axes, path, path.style)
    lines, bright = [path.line for path in paths], [path for path in paths if path.style]
    bars = [[low, path.line[-1], high] for path in bright for low, high in _bars(path)]
    if diagonal:
        _draw_diagonal(axes, window, lines + bars)
    labels = [
        fig.Label(path.text, *path.line[-1], path.style.text)
        if path.style
        else fig.Label(path.text, *path.line[-1], _PALE_TEXT, _SMALL, optional=True)
        for path in paths
        if path.style or len(pale) <= _NAMED
    ]
    starts = [path.line[0] for path in bright]
    drawn = lines + bars + _reference_lines(axes)
    fig.label_points(axes, labels + _numbers(axes, bright), drawn, starts, beyond=_BEYOND)


def _reference_lines(axes: Axes) -> list[list[fig.Position]]:
    """The chance levels and the line test = train, in data coordinates."""
    to_data = axes.transData.inverted()
    references = [line for line in axes.lines if str(line.get_label()).startswith(("_chance", _DIAGONAL_LINE))]
    return [to_data.transform(line.get_transform().transform(line.get_xydata())).tolist() for line in references]


def _draw_pale(axes: Axes, paths: Sequence[_Path]) -> None:
    # Two artists for all of them: thousands would take minutes.
    lines = LineCollection([path.line for path in paths], colors=_PALE, linewidths=0.7, capstyle="projecting")
    axes.add_collection(lines, autolim=False)
    lines.set(label="_pale", joinstyle="round", zorder=1.2)
    ends = np.array([path.line[-1] for path in paths]).reshape(-1, 2)
    axes.plot(*ends.T, color=_PALE, linestyle="none", marker="o", markersize=3.5, zorder=1.3, label="_pale ends")


def _draw_path(axes: Axes, path: _Path, style: fig.Style) -> None:
    name, (x, y) = path.name, zip(*path.line, strict=True)
    (line,) = axes.plot(x, y, color=style.colour, linewidth=1.3, linestyle=path.dashes)
    line.set(alpha=0.8, label=name)
    (dots,) = axes.plot(x, y, color=style.colour, linestyle="none", marker=style.marker, markersize=3)
    dots.set(label=f"_epochs of {name}", clip_on=False)
    for (x_low, y_low), (x_high, y_high) in _bars(path):
        split, cap = ("test", "_") if x_low == x_high else ("train", "|")
        (bar,) = axes.plot([x_low, x_high], [y_low, y_high], color=style.text, linewidth=0.9, marker=cap, markersize=4)
        bar.set(alpha=0.5, label=f"_interval {split} of {name}", zorder=1.8)
    if path.ends and (path.positions[-1][0] > 0 or not path.starts):
        (end,) = axes.plot(x[-1:], y[-1:], color=style.colour, marker=style.marker, markersize=style.size)
        end.set(markeredgecolor="black", markeredgewidth=0.7, zorder=4, clip_on=False, label=f"_end of {name}")
    if path.positions[0][0] == 0 and path.starts:
        (start,) = axes.plot(x[:1], y[:1], color=style.colour, marker=style.marker, markersize=style.size * 0.7)
        start.set(markerfacecolor="white", zorder=3, clip_on=False, label=f"_start of {name}")


def _bars(path: _Path) -> list[list[fig.Position]]:
    """The intervals of the last point: horizontal for train, vertical for test."""
    last_epoch, (x, y) = max(epoch for epoch, _ in path.scores), path.line[-1]
    train, test = (path.scores.get((last_epoch, split)) for split in GAP_SPLITS)
    across = [(end, y) for end in train.interval.percent] if train and train.interval else []
    upright = [(x, end) for end in test.interval.percent] if test and test.interval else []
    return [bar for bar in (across, upright) if bar]


def _numbers(axes: Axes, paths: Sequence[_Path]) -> list[fig.Label]:
    """Numbers of some epochs along each path, at a distance from each other."""
    scale = 72 / axes.figure.dpi
    labels = []
    for path in paths:
        before = None
        for epoch, x, y in path.positions[:-1]:
            position = axes.transData.transform((x, y)) * scale
            if before is not None and math.dist(position, before) < _STEP:
                continue
            if before is not None and path.style:
                labels.append(fig.Label(str(epoch), x, y, path.style.text, _SMALL, optional=True))
            before = position
    return labels


def _kinds(scores: Sequence[Score], data: Mapping[str, DataFacts]) -> list[dict[str, object]]:
    """Legend entries of the markers."""
    weights = dict.fromkeys(filter(None, (_weights_of(score.run, data) for score in scores)))
    kinds: list[dict[str, object]] = [
        {"label": text, "markersize": 6.5, "markeredgecolor": "black"} for text in weights
    ]
    scores = [score for score in scores if not _weights_of(score.run, data)]
    if not scores:
        return kinds
    epochs = sorted({score.epoch for score in scores})
    if epochs[0] == 0:
        start = common_start(facts for facts in data.values() if not facts.weights)
        kinds.append({"label": start, "markersize": 5, "markerfacecolor": "white"})
    if len(epochs) > 1:
        kinds.append({"label": "epochs", "markersize": 3})
    last_epochs = {max(score.epoch for score in scores if score.run == run) for run in {score.run for score in scores}}
    if epochs[-1] > 0:
        which = f"epoch {epochs[-1]}" if len(last_epochs) == 1 else "last epoch"
        kinds.append({"label": which, "markersize": 6.5, "markeredgecolor": "black"})
    return kinds


def table(
    scores: Sequence[Score],
    *,
    layers: Collection[RankedLayer] | None = None,
    embeddings: Mapping[str, RankedLayer] | None = None,
    data: Mapping[str, DataFacts] | None = None,
) -> str:
    """The points of all paths, as `layers_by_epoch_csv` has them."""
    drawn_scores = select_raw(scores, layers)
    runs = group_by_run(scores_of_metric(drawn_scores))
    bright = default_layers(runs, embeddings or {}, data or {}) if layers is None else layers
    panels = _panels(runs, bright)
    drawn_layers = {(score.run, score.ranked) for panel in panels for score in scores_in(panel.merged)}
    drawn_scores = [score for score in drawn_scores if (score.run, score.ranked) in drawn_layers]
    return layers_by_epoch_csv([score for score in drawn_scores if score.split in GAP_SPLITS] or drawn_scores)


@dataclass(frozen=True)
class _Window:
    """The part of the plane that is shown, in percent."""

    x: Limits
    y: Limits
    height: float
    equal: bool = False

    @property
    def names_the_diagonal(self) -> bool:
        """Whether the visible part of the line test = train is long enough for a label."""
        return min(self.x[1], self.y[1]) - max(self.x[0], self.y[0]) >= _DIAGONAL_SHARE * (self.x[1] - self.x[0])

    def notes(self) -> list[str]:
        """Notes on the axes."""
        lines = [] if self.equal else ["The axes differ in scale."]
        if max(self.x[0], self.y[0]) >= min(self.x[1], self.y[1]):
            lines.append("The line test = train lies outside the axes.")
        elif not self.names_the_diagonal:
            lines.append("The line in the corner is test = train.")
        return lines


def _window_of(scores: Sequence[Score], floors: Mapping[str, float]) -> _Window:
    """The window that shows every point with its interval, and both chance levels if there is room.

    Args:
        scores: with the intervals that are drawn.
        floors: split -> chance level in percent.
    """
    x, y = _split_limits(scores, "train", floors), _split_limits(scores, "test", floors)
    # A chance level on one axis only is not worth the room.
    if x and y and any(not low < floors.get(split, high) < high for split, (low, high) in (("train", x), ("test", y))):
        x, y = _split_limits(scores, "train", {}), _split_limits(scores, "test", {})
    if x is None or y is None:
        both = x or y or (0.0, 100.0)
        return _Window(both, both, _HEIGHT)
    (x_min, x_max), (y_min, y_max) = x, y
    if not _EQUAL[0] <= (y_max - y_min) / (x_max - x_min) <= _EQUAL[1]:
        return _Window(x, y, _HEIGHT)
    # The window grows upwards and to the right, where the line test = train comes into view.
    y_max = max(y_max, y_min + _FLATTEST * (x_max - x_min))
    x_max = max(x_max, x_min + (y_max - y_min) / _TALLEST)
    return _Window((x_min, x_max), (y_min, y_max), _WIDTH * (y_max - y_min) / (x_max - x_min), equal=True)


def _split_limits(scores: Sequence[Score], split: str, floors: Mapping[str, float]) -> Limits | None:
    values = drawn_percents(scores, [split])
    return fig.limits(values, floors.get(split)) if values else None


def _set_axes(axes: Axes, window: _Window, scored: Collection[str], metric: str, train: str) -> None:
    """Set the limits and names of the axes; the axis of a split without scores has no ticks.

    Args:
        train: the name of the training classes.
    """
    axes.set_xlim(window.x)
    axes.set_ylim(window.y)
    axes.set_xlabel(f"{train} {metric}", fontsize=fig.FONT + 1)
    axes.set_ylabel(f"test {metric}", fontsize=fig.FONT + 1)
    for split, which, axis in (("train", "x", axes.xaxis), ("test", "y", axes.yaxis)):
        if split in scored:
            fig.show_percent(axes, which)
        else:
            axis.set_ticks([])


def _draw_chance_levels(axes: Axes, floors: Mapping[str, float], scored: Collection[str]) -> None:
    (x_min, x_max), (y_min, y_max) = axes.get_xlim(), axes.get_ylim()
    lines = {"color": "0.55", "linewidth": 1.0, "linestyle": ":", "zorder": 1.0}
    train, test = floors.get("train", x_min), floors.get("test", y_min)
    if x_min < train < x_max and "train" in scored:
        axes.axvline(train, label="_chance train").set(**lines)
        text = axes.annotate(f"chance {level_text(train)}", (train, y_max), xytext=(3, -3), textcoords="offset points")
        text.set(rotation=90, va="top", fontsize=fig.FONT - 1, color=fig.GREY)
    if y_min < test < y_max and "test" in scored:
        axes.axhline(test, label="_chance test").set(**lines)
        text = axes.annotate(f"chance {level_text(test)}", (x_max, test), xytext=(-3, 3), textcoords="offset points")
        text.set(ha="right", fontsize=fig.FONT - 1, color=fig.GREY)


def _draw_diagonal(axes: Axes, window: _Window, paths: Sequence[Sequence[fig.Position]]) -> None:
    """Draw the line test = train as far as it is in view, with its name where the paths are sparsest.

    Args:
        paths: at least one, in data coordinates.
    """
    low, high = max(window.x[0], window.y[0]), min(window.x[1], window.y[1])
    if low >= high:
        return
    axes.plot([low, high], [low, high], color="0.6", linewidth=1, zorder=1, label=_DIAGONAL_LINE)
    if not window.names_the_diagonal:
        return
    scale = 72 / axes.figure.dpi
    start, end = (axes.transData.transform((coordinate, coordinate)) * scale for coordinate in (low, high))
    along = (end - start) / np.hypot(*(end - start))
    across = np.array([-along[1], along[0]])
    path_samples = Samples.from_paths([axes.transData.transform(path) * scale for path in paths]).points
    reach = np.array([36 * fig.width_of([_DIAGONAL]) + 4, fig.FONT])  # half a length and height, with room around
    shares = np.linspace(0.15, 0.85, 29)
    off = path_samples - (start + shares[:, None] * (end - start))[:, None] - across * fig.FONT
    covered = (np.abs(np.stack([off @ along, off @ across], -1)) < reach).all(-1).sum(1)
    fewest = [i for i in range(len(shares)) if covered[i] == covered.min()]
    share = shares[min(fewest, key=lambda i: abs(shares[i] - 0.5))]
    middle = low + float(share) * (high - low)
    text = axes.annotate(_DIAGONAL, (middle, middle), xytext=(0, 3), textcoords="offset points", ha="center")
    text.set(rotation=45, transform_rotates_text=True, rotation_mode="anchor", fontsize=fig.FONT - 1, color=fig.GREY)


def plot(source: PlotSource, options: PlotOptions) -> Drawing:
    """Draw a few layers, or the requested ones."""
    scores, embeddings = source.scores, source.embeddings()
    layers = match_layers(options.layers, [score.ranked for score in scores])
    data = source.data(dict.fromkeys(score.run for score in scores))
    figure = draw(scores, data=data, layers=layers, embeddings=embeddings)
    return Drawing(figure, table(scores, layers=layers, embeddings=embeddings, data=data))


PLOT = Plot(plot, ("layers", "metric"))
