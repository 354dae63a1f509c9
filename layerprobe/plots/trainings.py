"""Means over trainings along a key of recipes or along K, and their differences from the first line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from layerprobe.plots import figure as fig
from layerprobe.plots.plot import LOSS, Drawing, Plot, PlotOptions, PlotSource, csv_text
from layerprobe.system.wording import visible
from layerprobe.values.facts import DataFacts, common_chance, run_lines, weights_or_epoch
from layerprobe.values.scores import facts_over_seeds, is_fraction, note_text
from layerprobe.values.views import OverTrainings, Repeated, RepeatedLine

_LOG_FROM = 8  # largest / least number
_BETWEEN = 0.08  # inches between the texts at two ticks
_DODGE = 0.14  # between the points of two lines in a category, at most
_SPREAD = 0.6  # of a category, that its points take
_FIGURE, _LEFT = 4.6, 0.75  # inches: width of a figure, left margin of its axes
_LEAST, _HEIGHT = 2.4, 2.7
_LABEL = 0.165  # inches of height that a label needs
_BAND, _BANDS = 0.15, 0.6  # how opaque a band is, and all bands together, at most
_EDGE = 0.06  # of the range of values, at both ends of an axis that is not in percent
_ALL = "all"


@dataclass(frozen=True)
class ValueAxis:
    """Where values lie.

    Args:
        values: ascending numbers, or texts.
    """

    values: Sequence[float | str]

    @property
    def numbers(self) -> list[float]:
        """The values, if there are several and none is a text; else empty."""
        numbers = [value for value in self.values if not isinstance(value, str)]
        return numbers if len(numbers) == len(self.values) > 1 else []

    @property
    def is_log(self) -> bool:
        """Whether the axis has logarithms."""
        numbers = self.numbers
        return bool(numbers) and numbers[0] > 0 and numbers[-1] >= _LOG_FROM * numbers[0]

    def position(self, value: float | str, line: int = 0, lines: int = 1) -> float:
        """The position of a value; in a category the points of several lines stand side by side."""
        if not self.numbers:
            return list(self.values).index(value) + (line - (lines - 1) / 2) * min(_DODGE, _SPREAD / lines)
        return math.log2(float(value)) if self.is_log else float(value)

    @property
    def _texts(self) -> list[str]:
        return [visible(value) if isinstance(value, str) else f"{value:,g}" for value in self.values]

    def is_upright(self, inches: float) -> bool:
        """Whether the names of categories are too long to lie side by side."""
        return not self.numbers and (fig.width_of(self._texts) + _BETWEEN) * len(self.values) > inches

    def height_below(self, inches: float) -> float:
        """Inches that the texts and the axis's name take under the axes."""
        return 0.6 + (fig.width_of(self._texts) - 0.1 if self.is_upright(inches) else 0)

    def set(self, axes: Axes, name: str) -> None:
        """Set limits, ticks and the name of the axis; a tick whose text would touch another has none."""
        positions, inches = [self.position(value) for value in self.values], fig.size_of(axes)[0]
        margin = 0.04 * (positions[-1] - positions[0]) if self.numbers else 0.5
        x_min, x_max = positions[0] - margin, positions[-1] + margin
        axes.set_xlim(x_min, x_max)
        ticks: list[tuple[float, str]] = []
        end = -math.inf
        for position, text in zip(positions, self._texts, strict=True):
            middle = (position - x_min) / (x_max - x_min) * inches
            half = 0.0 if self.is_upright(inches) else fig.width_of([text]) / 2
            if middle - half >= end:
                ticks.append((position, text))
                end = middle + half + _BETWEEN
        axes.set_xticks([position for position, _ in ticks], [text for _, text in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        for label in axes.get_xticklabels():
            label.set(rotation=90 if self.is_upright(inches) else 0, parse_math=False)
        if not self.numbers:
            axes.grid(visible=False, axis="x")
        axes.set_xlabel(name, fontsize=fig.FONT + 1, parse_math=False)


@dataclass(frozen=True)
class _Line:
    """A line of one panel."""

    name: str
    points: Sequence[Repeated]
    style: fig.Style
    dashes: fig.Dashes


@dataclass(frozen=True)
class _LinePanel:
    """A panel's lines, and how its numbers are written.

    Args:
        scale: 100 for percent.
        format_number: a number times the scale -> its text.
    """

    title: str
    measure: str
    lines: Sequence[_Line]
    scale: float
    format_number: Callable[[float], str]

    @property
    def heights(self) -> list[float]:
        """All that is drawn."""
        points = [point for line in self.lines for point in line.points]
        values = [value for point in points for value in point.each.values()]
        values += [end for point in points if point.interval for end in (point.interval.low, point.interval.high)]
        return [self.scale * value for value in values]


def draw(view: OverTrainings, *, data: Mapping[str, DataFacts] | None = None) -> Figure:
    """Draw the means of each line with their intervals, and single trainings as dots.

    Numbers are joined by lines, whose intervals are bands; categories have bars. A second panel has the differences
    from the first line, where there are any.

    Args:
        data: run -> the data it was measured on; a chance level on which all agree is drawn.
    """
    axis, facts = ValueAxis(view.places), data or {}
    panels = _panels(view)
    labels = [_labels(panel, axis) for panel in panels]
    right = fig.width_of([label.text for panel_labels in labels for label in panel_labels]) + 0.25
    width = max(_LEAST, _FIGURE - _LEFT - right)
    notes = [*_data_lines(view, facts), *_captions(view, joined=bool(axis.numbers)), *view.notes]
    height = max(_HEIGHT, _LABEL * max(map(len, labels)))
    layout = fig.PanelLayout(width, height, right, below=axis.height_below(width), columns=1, notes=notes)
    figure, all_axes = fig.make_panels([panel.title for panel in panels], layout)
    floor = common_chance(facts.values()).get(view.split) if view.measure == "R@1" else None
    for axes, panel, panel_labels in zip(all_axes, panels, labels, strict=True):
        is_first = axes is all_axes[0]
        axis.set(axes, view.axis)
        level = 100 * floor if is_first and floor is not None else None
        _set_heights(axes, panel, level, is_first=is_first)
        for i, line in enumerate(panel.lines):
            _draw_line(axes, axis, line, panel.scale, (i, len(panel.lines)))
        if is_first and panel.scale == 100 and level is not None:
            fig.draw_chance(axes, {"test": level})
        fig.label_right(axes, panel_labels)
    return figure


def table(view: OverTrainings) -> str:
    """The numbers drawn as CSV: a line for each mean, with `all` as its seed, and for each training."""
    ends = ("low", "high", "difference", "difference low", "difference high")
    rows: list[list[object]] = [
        ["line", "layer", view.axis, "seed", f"{view.split} {view.measure}", *ends, "n", "note"]
    ]
    note = note_text(view.notes)
    for line in view.lines:
        differences = {point.place: point for point in line.differences}
        for point in line.points:
            difference = differences.get(point.place)
            key = [line.name, line.layer, point.place]
            rows.append([*key, _ALL, *_numbers(point), *_numbers(difference), len(point.each), note])
            for seed, value in point.each.items():
                less = difference.each.get(seed) if difference else None
                rows.append([*key, seed, value, None, None, less, None, None, 1, note])
    return csv_text(rows)


def _numbers(point: Repeated | None) -> list[float | None]:
    if point is None:
        return [None, None, None]
    ends = point.interval
    return [point.mean, ends.low if ends else None, ends.high if ends else None]


def _panels(view: OverTrainings) -> list[_LinePanel]:
    names, layers = (list(dict.fromkeys(texts)) for texts in zip(*((x.name, x.layer) for x in view.lines), strict=True))
    of_name, of_layer = fig.styles(names), fig.styles(layers)

    def make_line(line: RepeatedLine, points: Sequence[Repeated]) -> _Line:
        """Give it the colour of its name and the marker of its layer; with one name, or layer, the other gives both."""
        parts = [line.name] * (len(names) > 1) + [line.layer] * (len(layers) > 1)
        colour = (of_name[line.name] if len(names) > 1 else of_layer[line.layer]).colour
        marker = (of_layer[line.layer] if len(layers) > 1 else of_name[line.name]).marker
        dashes = fig.LINES[layers.index(line.layer) % len(fig.LINES)] if len(names) > 1 else "-"
        return _Line(" ".join(filter(None, parts)), points, fig.Style(colour, marker), dashes)

    percent = view.measure != LOSS and is_fraction(view.measure)
    scale = 100 if percent else 1
    measure = "training loss" if view.measure == LOSS else view.measure
    common = [texts[0] for texts in (names, layers) if len(texts) == 1 and texts[0]]
    low, high = view.epochs[0], view.epochs[-1]
    epochs = weights_or_epoch(view.weights, low) if low == high else f"last epoch of each, {low} to {high}"
    facts = [*common, *([view.split] if view.measure != LOSS else []), epochs]
    title = f"{measure} over {view.axis}\n{', '.join(facts)}"
    if len(view.runs) == 1:
        title = f"{view.runs[0]}: {title}"
    format_number = (lambda value: f"{value:.1f} %") if percent else _format_plainly
    panels = [_LinePanel(title, measure, [make_line(x, x.points) for x in view.lines], scale, format_number)]
    if any(x.differences for x in view.lines):
        format_number = (
            (lambda value: f"{value:+.1f}") if percent else (lambda value: "+" * (value > 0) + _format_plainly(value))
        )
        differences = [make_line(x, x.differences) for x in view.lines if x.differences]
        title = f"Difference from {panels[0].lines[0].name}"
        unit = f"{measure}, difference in points" if percent else f"{measure}, difference"
        panels.append(_LinePanel(title, unit, differences, scale, format_number))
    return panels


def _format_plainly(value: float) -> str:
    """Three significant digits: `3.00`, `21.1`, `1,234`."""
    return f"{value:#.3g}" if abs(value) < 99.95 else f"{value:,.0f}"


def _labels(panel: _LinePanel, axis: ValueAxis) -> list[fig.Label]:
    labels = []
    for i, line in enumerate(panel.lines):
        valid = [point for point in line.points if point.mean is not None]
        if valid:
            last_point, height = valid[-1], panel.scale * (valid[-1].mean or 0.0)
            x = axis.position(last_point.place, i, len(panel.lines))
            text = f"{line.name}: {panel.format_number(height)}" if line.name else panel.format_number(height)
            labels.append(fig.Label(text, x, height, line.style.text))
    return labels


def _set_heights(axes: Axes, panel: _LinePanel, floor: float | None, *, is_first: bool) -> None:
    """Set the y axis: with the chance level in the first panel, with 0 in that of differences."""
    heights = panel.heights or [0.0, 1.0]
    if is_first and panel.scale == 100:
        axes.set_ylim(fig.limits(heights, floor))
        fig.show_percent(axes, "y")
    else:
        low, high = min(heights + [0.0] * (not is_first)), max(heights + [0.0] * (not is_first))
        margin = _EDGE * (high - low) or 0.1 * abs(high) or 1.0
        axes.set_ylim(low - margin, high + margin)
    if not is_first:
        axes.axhline(0, color="0.55", linewidth=1, zorder=1, label="_no difference")
    axes.set_ylabel(panel.measure, fontsize=fig.FONT + 1)


def _draw_line(axes: Axes, axis: ValueAxis, line: _Line, scale: float, number: tuple[int, int]) -> None:
    """Draw means, intervals and single trainings.

    Args:
        number: of the line, and of all lines.
    """
    joined, colour = bool(axis.numbers), line.style.colour
    xs = [axis.position(point.place, *number) for point in line.points]
    means = [math.nan if point.mean is None else scale * point.mean for point in line.points]
    (curve,) = axes.plot(xs, means, color=colour, marker=line.style.marker, label=line.name)
    curve.set(markersize=line.style.size * 0.75, linewidth=1.5, linestyle=line.dashes if joined else "none")
    curve.set(clip_on=False)
    ends = [point.interval for point in line.points]
    low, high = ([math.nan if end is None else scale * getattr(end, side) for end in ends] for side in ("low", "high"))
    if joined and any(ends):
        band = axes.fill_between(xs, low, high, color=colour, alpha=min(_BAND, _BANDS / number[1]))
        band.set(linewidth=0, zorder=0.5, label=f"_interval of {line.name}")
    elif any(ends):
        axes.vlines(xs, low, high, color=colour, linewidth=1.2, label=f"_interval of {line.name}")
    repeated = [(x, point) for x, point in zip(xs, line.points, strict=True) if len(point.each) > 1]
    dots = [(x, scale * value) for x, point in repeated for value in point.each.values()]
    if dots:
        (marks,) = axes.plot(*zip(*dots, strict=True), color=colour, linestyle="none", marker="o")
        marks.set(markersize=2.6, alpha=0.6, zorder=1.8, clip_on=False, label=f"_trainings of {line.name}")


def _data_lines(view: OverTrainings, data: Mapping[str, DataFacts]) -> list[str]:
    """The data set, and the numbers of queries and classes of the split: ranges where trainings differ in them."""
    names = [name for name in dict.fromkeys(facts.name for facts in data.values()) if name]
    if view.measure == LOSS or len(names) > 1 or not data:
        return [", ".join(names)] if names else []
    merged = facts_over_seeds(data, {_ALL: list(data)})[_ALL]
    if view.split in merged.splits:
        return run_lines({_ALL: merged}, {view.split})
    splits = [facts.splits[view.split] for facts in data.values() if view.split in facts.splits]
    classes = [split.classes for split in splits if split.classes is not None]
    text = f"{view.split}: {_range([split.queries for split in splits])} queries"
    return [*names, text + (f" of {_range(classes)} classes" if classes else "")] if splits else names


def _range(numbers: Iterable[int]) -> str:
    numbers = list(numbers)
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _captions(view: OverTrainings, *, joined: bool) -> list[str]:
    """What points, dots, bands and differences are."""
    points = [point for line in view.lines for point in line.points]
    counts = [len(point.each) for point in points if point.each]
    if not counts or max(counts) == 1:
        return ["One training each."]
    classes = "test classes of its own" if view.own_classes else "the same test classes"
    where = "" if view.measure == LOSS else f", each with {classes}"
    shape = "Bands" if joined else "Bars"
    lines = [f"Each point is the mean of {_range(counts)} trainings{where}; dots are single trainings."]
    if any(point.interval for point in points):
        lines.append(f"{shape}: 95 % interval of the mean over trainings (Student's t).")
    if any(line.differences for line in view.lines):
        lines.append("Differences are paired by seed; their mean has the same kind of interval.")
    return lines


def plot_over_key(source: PlotSource, options: PlotOptions) -> Drawing:
    """Draw a metric of the embedding or of the requested layers, or the loss, against a key of the runs' recipes."""
    view = source.over_key(options)
    return Drawing(draw(view, data=source.data(view.runs)), table(view))


def plot_recall_at_k(source: PlotSource, options: PlotOptions) -> Drawing:
    """Draw Recall@K on test of the embedding, or of the requested layers, over K."""
    view = source.recall_at_k(options)
    return Drawing(draw(view, data=source.data(view.runs)), table(view))


OVER_KEY_PLOT = Plot(plot_over_key, ("layers", "epoch", "metric", "key"), any_metric=True)
RECALL_AT_K_PLOT = Plot(plot_recall_at_k)
