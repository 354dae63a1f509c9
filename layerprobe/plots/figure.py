"""What all figures share: panels, colours, labels that do not overlap, chance levels, and files."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, MaxNLocator

from layerprobe.plots.placing import NEAR, Obstacles, end_of_line, first_free, place_labels, sample_path, spread
from layerprobe.system.wording import visible
from layerprobe.values.facts import level_text
from layerprobe.values.layers import LayerKey
from layerprobe.values.retrieval import FloatArray

FORMATS = ("png", "pdf", "svg")
FONT = 9.0  # points
GREY = "0.35"
Dashes = str | tuple[int, tuple[float, ...]]
KEY_ROW = 0.2  # inches
LINES: tuple[Dashes, ...] = ("-", (0, (6, 1.5)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_MARKERS = "osD^vPX<>*"
_DPI = 200
_PAD = 0.08  # inches around everything drawn, in a file
_LINE = 1.25  # line spacing, in font sizes
_COLUMN = 1.04  # where labels begin, in widths of the axes
_GAP = 3  # points between a label and its line
_MARGIN = 0.06  # of the range of values, at both ends of an axis
_DATA_SHARE = 0.75  # share of an axis that the values must fill for the chance level to be shown

_DARK = 1.05 / 4.5 - 0.05  # luminance whose contrast to white is 4.5

Colour = tuple[float, float, float]
Position = tuple[float, float]  # in data coordinates


@dataclass(frozen=True)
class Style:
    """How a layer is drawn: in a colour, whose brightness also orders the layers, and with a marker."""

    colour: Colour
    marker: str

    @property
    def text(self) -> Colour:
        """A darker colour for text, which needs more contrast than areas: at least 4.5 to white, as WCAG 2.2 has it."""
        red, green, blue = self.colour
        shade = next(share for share in np.linspace(1, 0, 101) if _luminance(share * np.array(self.colour)) <= _DARK)
        return float(shade * red), float(shade * green), float(shade * blue)

    @property
    def size(self) -> float:
        """Size of the marker in points; a star looks smaller than other markers of its size."""
        return 9.5 if self.marker == "*" else 6.5


@dataclass(frozen=True)
class Label:
    """A text that names a point.

    Args:
        y: of the point; the label is as near to it as the other labels permit.
    """

    text: str
    x: float
    y: float
    colour: Colour | str
    size: float = FONT
    optional: bool = False


@dataclass(frozen=True)
class PanelLayout:
    """Sizes of a figure of equal panels, in inches."""

    width: float
    height: float
    right: float
    below: float = 0.85
    left: float = 0.75
    above: float = 0.55
    key: float = 0.0
    columns: int = 3
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Track:
    """A line through layers.

    Args:
        positions: of the layers that it joins.
        pool: of these layers; empty where they have one pool each.
    """

    positions: Sequence[int]
    pool: str = ""
    dashes: Dashes = "-"


def styles(names: Sequence[str]) -> dict[str, Style]:
    """A style for each layer, from dark (first) to light (last); up to ten differ without their colours, too."""
    # viridis keeps its order for every kind of colour blindness and in grey. Its last sixth is too light on white.
    shades = np.linspace(0.0, 0.76, len(names)) if len(names) > 1 else [0.35]
    colours = [colormaps["viridis"](float(shade)) for shade in shades]
    return {
        name: Style((red, green, blue), _MARKERS[i % len(_MARKERS)])
        for i, (name, (red, green, blue, _)) in enumerate(zip(names, colours, strict=True))
    }


def make_panels(titles: Sequence[str], layout: PanelLayout) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each title, in rows, and the notes below."""
    columns = min(len(titles), layout.columns)
    rows = -(-len(titles) // columns)
    notes = [line for note in layout.notes for line in _wrap(note, columns * (layout.width + layout.right), FONT - 1)]
    foot = 0.12 + len(notes) * (FONT - 1) * _LINE / 72
    room = layout.width + 0.8 * layout.right
    wrapped = [[line for text in title.splitlines() for line in _wrap(text, 0.9 * room)] for title in titles]
    above = max(layout.above, 0.15 + max(map(len, wrapped)) * (FONT + 1.5) * _LINE / 72)
    cell = np.array([layout.left + layout.width + layout.right, above + layout.height + layout.below])
    size = cell * (columns, rows) + (0, foot + layout.key)
    figure = Figure(figsize=(float(size[0]), float(size[1])), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    all_axes: list[Axes] = []
    for i, lines in enumerate(wrapped):
        x = (i % columns) * cell[0] + layout.left
        y = foot + layout.key + (rows - 1 - i // columns) * cell[1] + layout.below
        box = (x / size[0], y / size[1], layout.width / size[0], layout.height / size[1])
        axes = figure.add_axes(box)
        axes.set_title("\n".join(lines), fontsize=FONT + 1.5, loc="left", pad=8, parse_math=False)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=FONT)
        axes.grid(color="0.92", linewidth=0.8)
        axes.set_axisbelow(True)
        all_axes.append(axes)
    text = figure.text(layout.left / size[0], foot / size[1], "\n".join(notes), fontsize=FONT - 1, color=GREY, va="top")
    text.set_parse_math(False)
    return figure, all_axes


def add_note(figure: Figure, note: str) -> None:
    """Write a line under all that a figure has."""
    under = figure.get_tightbbox().y0 / figure.get_figheight()
    x = min((axes.get_position().x0 for axes in figure.axes), default=0.0)
    gap = 0.5 * FONT / 72 / figure.get_figheight()
    figure.text(x, under - gap, note, fontsize=FONT, color=GREY, va="top").set(weight="bold", parse_math=False)


def show_percent(axes: Axes, which: str) -> None:
    """Show the ticks of the x or y axis up to 100 with a percent sign; the values are in percent already."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %" if value <= 100 else ""))
    if which == "x":
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))  # with more, their texts would touch


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


def width_of(texts: Sequence[str], weight: str = "normal") -> float:
    """Width of the widest text, in inches."""
    font = FontProperties(size=FONT, weight=weight)
    widths = [text_to_path.get_text_width_height_descent(visible(text), font, False)[0] for text in texts]
    return max(widths, default=0) / 72


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
    points = [(_place_on(axes.xaxis, label.x), _place_on(axes.yaxis, label.y)) for label in labels]
    heights = [y / height for y in spread([y * height for _, y in points], FONT * _LINE, 0, height)]
    for label, y in zip(labels, heights, strict=True):
        text = axes.text(_COLUMN, y, visible(label.text), color=label.colour, fontsize=FONT, va="center")
        text.set(transform=axes.transAxes, parse_math=False, zorder=1.5)
    # Not annotate() with arrows: of 50 labels, the arrows would take half of the time to save a figure.
    end = _COLUMN - _GAP * axes.figure.dpi / 72 / axes.get_window_extent().width
    lines = LineCollection([[point, (end, y)] for point, y in zip(points, heights, strict=True)], clip_on=False)
    lines.set(transform=axes.transAxes, color="0.72", linewidth=0.7, capstyle="round", zorder=1.5)
    axes.add_collection(lines, autolim=False)


def _place_on(axis: Axis, value: float) -> float:
    """Where a value lies on an axis, from 0 to 1."""
    low, high = axis.get_view_interval()
    if axis.get_scale() == "log":
        return math.log(value / low) / math.log(high / low)
    return float((value - low) / (high - low))


def label_points(
    axes: Axes,
    labels: Sequence[Label],
    paths: Sequence[Sequence[Position]] = (),
    marks: Sequence[Position] = (),
    *,
    beyond: float = 0.0,
) -> None:
    """Write labels beside the points that they name, with a thin line where they must stand off.

    No label covers another one or a text that is in the axes already; if possible none covers a labelled point, a
    marker or a path. The limits of the axes must be set before.

    Args:
        paths: lines through points in data coordinates.
    """
    if not labels:
        return
    corner, scale = axes.get_window_extent().min, 72 / axes.figure.dpi

    def to_points(positions: Sequence[Position]) -> FloatArray:
        pixels = axes.transData.transform(np.asarray(positions, np.float64).reshape(-1, 2))
        return np.asarray((pixels - corner) * scale, np.float64)

    area = np.array(size_of(axes)) * 72
    points = to_points([(label.x, label.y) for label in labels])
    sizes = np.array([(72 * width_of([label.text]) * label.size / FONT, 1.2 * label.size) for label in labels])
    extents = [text.get_window_extent() for text in axes.texts]
    boxes = np.array([(np.array([box.min, box.max]) - corner).ravel() * scale for box in extents]).reshape(-1, 4)
    obstacles = Obstacles(
        (float(area[0]) + 72 * beyond, float(area[1])),
        np.concatenate([points, to_points(marks)]),
        [to_points(path) for path in paths],
        boxes,
    )
    positions = place_labels(points, sizes, obstacles, [label.optional for label in labels])
    for label, point, size, position in zip(labels, points, sizes, positions, strict=True):
        if position is None:
            continue
        text = axes.annotate(
            visible(label.text),
            (0, 0),
            xycoords="axes fraction",
            xytext=position,
            textcoords="offset points",
            parse_math=False,
        )
        text.set(color=label.colour, fontsize=label.size, va="bottom", zorder=5)
        text.set_bbox({"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.2})
        end = end_of_line(point, np.array([*position, *(position + size)]))
        if np.hypot(*(end - point)) > NEAR:
            line = Line2D(*np.stack([point, end], 1) / area[:, None], color=label.colour, linewidth=0.6, clip_on=False)
            line.set(transform=axes.transAxes, zorder=4.5, label=f"_line to {label.text}")
            axes.add_line(line)


def add_legend(
    axes: Axes, kinds: Sequence[Mapping[str, object]], columns: int | None = None, *, row: int = 0, under: float = 0.5
) -> None:
    """Add a legend under the name of the x axis.

    Args:
        columns: in which they stand, one after another; None for one row.
    """
    handles = []
    for kind in kinds:
        handle = Line2D([], [], color=GREY, marker="o", markersize=4.5, linestyle="none")
        handle.set(**kind)
        handle.set_label(visible(str(handle.get_label())))
        handles.append(handle)
    if above := axes.get_legend():
        axes.add_artist(above).set_clip_on(False)
    legend = axes.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0, -(under + row * KEY_ROW) / size_of(axes)[1]),
        ncols=columns or max(1, len(handles)),
        frameon=False,
        fontsize=FONT - 0.5,
        borderaxespad=0,
        handlelength=3 if any(handle.get_linestyle() != "None" for handle in handles) else 1.2,
        columnspacing=1.5,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _luminance(colour: FloatArray) -> float:
    """Relative luminance of an sRGB colour, WCAG 2.2."""
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def _wrap(text: str, inches: float, size: float = FONT) -> list[str]:
    # The mean width of a character of the default font is about 0.55 of the font size. A percentage keeps its unit, and
    # the word before it, which says what it is of.
    unbroken, length = re.sub(r" (?=([0-9.]+ )?%)", "\0", visible(text)), max(20, int(inches * 72 / (0.55 * size)))
    return [line.replace("\0", " ") for line in textwrap.wrap(unbroken, length)] or [""]


def name_layers(axes: Axes, names: Sequence[str], *, upright: bool) -> None:
    """Name the layers under the axes."""
    axes.set_xticks(range(len(names)), list(map(visible, names)))
    axes.grid(visible=False, axis="x")
    for label in axes.get_xticklabels():
        label.set(rotation=90 if upright else 0, parse_math=False)


def pool_tracks(layers: Mapping[int, LayerKey]) -> list[Track]:
    """The lines through layers of one post-processing: one for each pool where layers have several.

    Args:
        layers: position -> layer.
    """
    times = Counter(key.layer for key in layers.values())
    pools = list(dict.fromkeys(key.pool for key in layers.values() if times[key.layer] > 1))
    lines = []
    # Without any such layer, every layer is on the one line.
    for number, pool in enumerate(pools or [""]):
        positions = [i for i, key in layers.items() if times[key.layer] == 1 or key.pool == pool]
        lines.append(Track(positions, pool, LINES[number % len(LINES)]))
    return [line for line in lines if line.positions]


def pool_kinds(lines: Iterable[Track]) -> list[dict[str, object]]:
    """Legend entries of the pools that have a line of their own."""
    dashes = {track.pool: track.dashes for track in lines if track.pool}
    line = {"marker": "", "linewidth": 1.6}
    return [line | {"label": f"pool {pool}", "linestyle": pool_dashes} for pool, pool_dashes in dashes.items()]


def draw_chance(axes: Axes, floors: Mapping[str, float]) -> None:
    """Draw lines at the chance levels that are in view, and label them where no other line is.

    All else must be drawn before. Without such a place there is no label: captions have the levels.

    Args:
        floors: split -> chance level in percent.
    """
    bottom, top = axes.get_ylim()
    inside = {split: floor for split, floor in floors.items() if bottom < floor < top}
    for split, floor in inside.items():
        axes.axhline(floor, color="0.55", linewidth=1, linestyle=":", zorder=1, label=f"_chance {split}")
    if inside:
        text = "chance: " + ", ".join(f"{split} {level_text(floor)}" for split, floor in inside.items())
        width, height = 72 * width_of([text]) * (FONT - 1) / FONT, 1.2 * (FONT - 1)
        area = np.array(size_of(axes)) * 72
        levels = [_place_on(axes.yaxis, floor) * area[1] for floor in inside.values()]
        rows = [y for y in (max(levels) + _GAP, min(levels) - _GAP - height) if 0 <= y <= area[1] - height]
        steps = np.arange(area[0] - width - _GAP, 0, -_GAP)
        places = np.array([(x, y) for y in rows for x in steps]).reshape(-1, 2)
        found = first_free(np.concatenate([places, places + np.array([width, height])], 1), _drawn_paths(axes))
        if found is not None:
            x, y = places[found].tolist()
            note = axes.annotate(text, (0, 0), xycoords="axes fraction", xytext=(x, y), textcoords="offset points")
            note.set(va="bottom", fontsize=FONT - 1, color=GREY)


def _drawn_paths(axes: Axes) -> list[tuple[FloatArray, float]]:
    """Places a step apart on the lines of the axes, in points from their corner, and half the size of their markers."""
    corner, scale = axes.get_window_extent().min, 72 / axes.figure.dpi
    paths = []
    for line in axes.lines:
        places = (line.get_transform().transform(line.get_xydata()) - corner) * scale
        places = places[np.isfinite(places).all(1)]
        marked = line.get_marker() not in ("None", "", None)
        reach = float(line.get_markersize()) / 2 if marked else 0.0
        paths += [(places, reach)] if marked else []
        paths += [(sample_path(places), 0.5)] if line.get_linestyle() != "None" and len(places) > 1 else []
    bars = [part for part in axes.collections if isinstance(part, LineCollection)]
    for segment in (segment for part in bars for segment in part.get_segments()):
        paths.append((sample_path((axes.transData.transform(segment) - corner) * scale), 1.2))
    return paths


def encode_figure(figure: Figure, form: str) -> bytes:
    """A figure as the content of a file."""
    content = io.BytesIO()
    # Font type 42 keeps text as text in a pdf, so that it can be searched and edited. Images stay apart: laying those
    # of an axes into one takes the time of its whole area for each of them.
    with rc_context({"pdf.fonttype": 42, "image.composite_image": False}):
        # "tight" would draw everything once more to find the same box.
        box = figure.get_tightbbox().padded(_PAD)
        if form == "png":  # half the time of the default level, 5 % more bytes
            figure.savefig(content, format=form, bbox_inches=box, pil_kwargs={"compress_level": 3})
        else:
            figure.savefig(content, format=form, bbox_inches=box)
    return content.getvalue()
