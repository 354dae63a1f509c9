"""What all plots share: panels, colours, labels that do not overlap, and how a figure is saved."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter

from layerprobe.errors import LayerprobeError
from layerprobe.facts import level_text
from layerprobe.files import written_whole
from layerprobe.wording import visible

FORMATS = ("png", "pdf", "svg")
FONT = 9.0  # points
GREY = "0.35"
LINES = ("-", (0, (6, 1.5)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_MARKERS = "osD^vPX<>*"
_DPI = 200
_PAD = 0.08  # inches around everything drawn
_LINE = 1.25  # line spacing, in font sizes
_COLUMN = 1.04  # where labels begin, in widths of the axes
_GAP = 3  # points between a label and its line
_MARGIN = 0.06  # of the range of values, at both ends of an axis
_DATA_SHARE = 0.6  # of an axis: what the values must fill for the chance level to be shown too

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Style:
    """How a layer is drawn: in a colour, whose brightness also orders the layers, and with a marker."""

    colour: Colour
    marker: str

    @property
    def text(self) -> Colour:
        """A darker colour for text, which needs more contrast than areas."""
        red, green, blue = self.colour
        return 0.8 * red, 0.8 * green, 0.8 * blue

    @property
    def size(self) -> float:
        """Size of the marker in points; a star looks smaller than other markers of its size."""
        return 12.0 if self.marker == "*" else 8.0


@dataclass(frozen=True)
class Label:
    """A text to the right of the axes that names a point.

    Args:
        text: shown as it is.
        x: of the point, in data coordinates.
        y: of the point; the label is at this height, or as near as the other labels permit.
        colour: of the text.
    """

    text: str
    x: float
    y: float
    colour: Colour | str


@dataclass(frozen=True)
class Layout:
    """Sizes of a figure of equal panels, in inches.

    Args:
        width: of a panel's axes.
        height: of a panel's axes.
        right: room to the right of the axes, for labels.
        below: room under the axes, for ticks and the axis' name.
        columns: most panels in a row.
        notes: lines under the whole figure.
    """

    width: float
    height: float
    right: float
    below: float = 0.85
    columns: int = 3
    notes: Sequence[str] = ()


def styles(names: Sequence[str]) -> dict[str, Style]:
    """A style for each layer, from dark (first) to light (last); up to ten differ without their colours, too."""
    # viridis keeps its order for every kind of colour blindness and in grey. Its last sixth is too light on white.
    shades = np.linspace(0.0, 0.82, len(names)) if len(names) > 1 else [0.35]
    colours = [colormaps["viridis"](float(shade)) for shade in shades]
    return {
        name: Style((red, green, blue), _MARKERS[i % len(_MARKERS)])
        for i, (name, (red, green, blue, _)) in enumerate(zip(names, colours, strict=True))
    }


def panels(titles: Sequence[str], layout: Layout) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each title, in rows, and the notes below."""
    columns = min(len(titles), layout.columns)
    rows = -(-len(titles) // columns)
    notes = [line for note in layout.notes for line in _wrapped(note, columns * (layout.width + layout.right))]
    foot = 0.12 + len(notes) * FONT * _LINE / 72
    wrapped = [[line for part in title.splitlines() for line in _wrapped(part, layout.width * 0.9)] for title in titles]
    above = max(0.55, 0.15 + max(map(len, wrapped)) * (FONT + 1.5) * _LINE / 72)
    cell = np.array([0.75 + layout.width + layout.right, above + layout.height + layout.below])
    size = cell * (columns, rows) + (0, foot)
    figure = Figure(figsize=(float(size[0]), float(size[1])), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    drawn: list[Axes] = []
    for i, lines in enumerate(wrapped):
        left = (i % columns) * cell[0] + 0.75
        bottom = foot + (rows - 1 - i // columns) * cell[1] + layout.below
        place = (left / size[0], bottom / size[1], layout.width / size[0], layout.height / size[1])
        axes = figure.add_axes(place)
        axes.set_title("\n".join(lines), fontsize=FONT + 1.5, loc="left", parse_math=False)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=FONT)
        axes.grid(color="0.92", linewidth=0.8)
        axes.set_axisbelow(True)
        drawn.append(axes)
    figure.text(0.75 / size[0], foot / size[1], "\n".join(notes), fontsize=FONT, color=GREY, va="top", parse_math=False)
    return figure, drawn


def in_percent(axes: Axes, which: str) -> None:
    """Show the ticks of the x or y axis with a percent sign; the values are in percent already."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))


def limits(values: Sequence[float], floor: float | None = None) -> tuple[float, float]:
    """Limits of an axis in percent: they enclose all values, and the chance level if the values still fill the axis.

    Args:
        values: at least one.
        floor: the chance level; None if it is unknown.
    """
    low, high = min(values), max(values)
    if floor is not None and high - low >= _DATA_SHARE * (high - floor):
        low = min(low, floor)
    margin = max(_MARGIN * (high - low), 0.5)
    return max(low - margin, -1.0), min(high + margin, 101.0)


def chance_outside(axes: Mapping[str, tuple[float, float]], floors: Mapping[str, float]) -> list[str]:
    """A line that names the chance levels outside the limits of the axes; no line where there are none.

    Args:
        axes: split -> limits of the axis that shows it.
        floors: split -> chance level in percent.
    """
    out = [split for split, (low, high) in axes.items() if split in floors and not low < floors[split] < high]
    levels = ", ".join(f"{split} {level_text(floors[split])}" for split in out)
    return [f"Chance level outside the axes: {levels}."] if out else []


def width_of(texts: Sequence[str]) -> float:
    """Width of the widest text, in inches."""
    font = FontProperties(size=FONT)
    return (
        max((text_to_path.get_text_width_height_descent(visible(text), font, False)[0] for text in texts), default=0)
        / 72
    )


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move positions apart as little as possible (in least squares), keeping their order.

    Args:
        positions: in any order; equal ones keep theirs.
        gap: least distance between neighbours afterwards.
        low: the least position allowed.
        high: the largest. If the positions do not fit between the two, they are centred there, `gap` apart.

    Returns:
        The new positions, in the order given.
    """
    order = np.argsort(positions, kind="stable")
    # With i times the gap taken off the i-th position, the nearest non-decreasing sequence is wanted: neighbours in
    # descending order are replaced by their mean (pool adjacent violators).
    pools: list[list[float]] = []  # mean, count
    for place, i in enumerate(order):
        pools.append([positions[i] - place * gap, 1])
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            mean, count = pools.pop()
            before, members = pools[-1]
            pools[-1] = [(before * members + mean * count) / (members + count), members + count]
    level = np.repeat([mean for mean, _ in pools], [int(count) for _, count in pools])
    top = high - (len(order) - 1) * gap
    level = np.clip(level, low, top) if top >= low else np.full(len(order), (low + top) / 2)
    moved = np.empty(len(order))
    moved[order] = level + np.arange(len(order)) * gap
    return [float(position) for position in moved]


def size_of(axes: Axes) -> tuple[float, float]:
    """Width and height of the axes, in inches."""
    extent = axes.get_window_extent()
    return float(extent.width / axes.figure.dpi), float(extent.height / axes.figure.dpi)


def label_right(axes: Axes, labels: Sequence[Label]) -> None:
    """Write labels in a column to the right of the axes, each joined by a thin line to the point that it names.

    The limits of the axes must be set before.
    """
    # Heights in points, as the font has: so the gap is right at any resolution.
    height = size_of(axes)[1] * 72
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    named = [((label.x - left) / (right - left), (label.y - bottom) / (top - bottom)) for label in labels]
    places = [place / height for place in spread([y * height for _, y in named], FONT * _LINE, 0, height)]
    for label, place in zip(labels, places, strict=True):
        text = axes.text(_COLUMN, place, visible(label.text), color=label.colour, fontsize=FONT, va="center")
        text.set(transform=axes.transAxes, parse_math=False, zorder=1.5)
    # Not annotate() with arrows: of 50 labels, the arrows would take half of the time to save a figure.
    end = _COLUMN - _GAP * axes.figure.dpi / 72 / axes.get_window_extent().width
    lines = LineCollection([[point, (end, place)] for point, place in zip(named, places, strict=True)], clip_on=False)
    lines.set(transform=axes.transAxes, color="0.72", linewidth=0.7, capstyle="round", zorder=1.5)
    axes.add_collection(lines, autolim=False)


def key_below(axes: Axes, kinds: Sequence[Mapping[str, object]], columns: int | None = None) -> None:
    """Add a legend under the name of the x axis.

    Args:
        axes: of one panel.
        kinds: for each entry the properties of its line, and `label`, its text.
        columns: in which they stand, one after another; None for one row.
    """
    handles = []
    for kind in kinds:
        handle = Line2D([], [], color=GREY, marker="o", markersize=4.5, linestyle="none")
        handle.set(**kind)
        handles.append(handle)
    legend = axes.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0, -0.5 / size_of(axes)[1]),
        ncols=columns or max(1, len(handles)),
        frameon=False,
        fontsize=FONT - 0.5,
        borderaxespad=0,
        handlelength=3 if any(handle.get_linestyle() != "None" for handle in handles) else 1.2,
        columnspacing=1.5,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a file whose suffix is its format; the file is whole or absent.

    Args:
        figure: any.
        path: ends in .png, .pdf or .svg.

    Raises:
        LayerprobeError: another suffix.
    """
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        kind = repr(path.suffix) if path.suffix else "a file without a suffix"
        raise LayerprobeError(f"cannot write a plot as {kind}", file=path, fix="Name it .png, .pdf or .svg")
    # Font type 42 keeps text as text in a pdf, so that it can be searched and edited.
    with written_whole(path) as aside, rc_context({"pdf.fonttype": 42}):
        # "tight" would draw everything once more to find the same box.
        box = figure.get_tightbbox().padded(_PAD)
        if suffix == "png":  # half the time of the default level, 5 % more bytes
            figure.savefig(aside, format=suffix, bbox_inches=box, pil_kwargs={"compress_level": 3})
        else:
            figure.savefig(aside, format=suffix, bbox_inches=box)


def _wrapped(text: str, inches: float) -> list[str]:
    # The mean width of a character of the default font is about 0.55 of the font size.
    return textwrap.wrap(visible(text), max(20, int(inches * 72 / (0.55 * FONT)))) or [""]
