"""The images nearest to queries by several layers (Vo & Hays 2019, Fig. 8), or codes (Zhai & Wu 2019, Fig. 1)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ft2font import LoadFlags
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from layerprobe.plots import figure as fig
from layerprobe.plots.plot import Drawing, Plot, PlotOptions, PlotSource, ReadImage, csv_text
from layerprobe.plots.selected import label_layers
from layerprobe.system.wording import visible
from layerprobe.values.facts import DataFacts, epoch_text, run_lines
from layerprobe.values.layers import RankedLayer
from layerprobe.values.scores import note_text
from layerprobe.values.views import QueryNeighbours, Selected

# Inches.
_WIDTH = 4.4
_QUERY = 0.8  # side of a query's picture
_BESIDE = 0.14  # between it and the neighbours
_SPACE = 0.07  # between two pictures
_INSIDE = 0.022  # between a frame and its picture
_TEXT = 0.17  # height of a line
_NAME = 0.18  # of one under a picture
_BETWEEN = 0.16  # between two queries
_NAMES = fig.FONT - 1  # points
_ELLIPSIS = "…"
_TAIL = 3  # characters at the end of a shortened name
_SIGNS = "/_-. "  # after which a line may end
_UNIT = 100.0  # points, at which a character is measured


@dataclass(frozen=True)
class Frame:
    """Frame of a picture, and the sign below it."""

    colour: str
    line: str | tuple[float, tuple[float, float]]
    sign: str


# Blue and vermilion of Okabe and Ito: distinct for every kind of colour blindness, and in grey. Line and sign differ.
RIGHT = Frame("#0072b2", "-", "✓")
WRONG = Frame("#d55e00", (0, (2.5, 1.5)), "✗")
NEUTRAL = Frame("0.2", "-", "")


def draw(
    neighbours: Sequence[QueryNeighbours],
    *,
    image: ReadImage,
    data: Mapping[str, DataFacts] | None = None,
    selected: Mapping[str, Selected] | None = None,
) -> Figure:
    """Draw a block for each query: its picture at the left, and a row of its neighbours for each layer.

    A right neighbour has a solid frame and a tick, a wrong one a dashed frame, a cross, and the name of its class.

    Args:
        neighbours: at least one; those of a query follow one another.
        image: run and id of an item -> its pixels, uint8 (H, W, 3).
    """
    row_names = _row_names(neighbours, selected or {})
    blocks = [list(block) for _, block in groupby(neighbours, key=lambda nearest: nearest.query)]
    most = max(len(nearest.found) for nearest in neighbours)
    side = min((_WIDTH - _QUERY - _BESIDE + _SPACE) / max(most, 1) - _SPACE, _QUERY)
    row = _TEXT + side + _NAME
    heights = [max(len(block) * row, _QUERY + 3 * _TEXT + 0.05) for block in blocks]
    height = sum(heights) + (len(blocks) - 1) * _BETWEEN
    # Room at the right is for lines of text, which the figure would else divide well before their end.
    layout = fig.PanelLayout(_WIDTH, height, 0.3, below=0.05, columns=1, notes=_notes(neighbours, data or {}))
    # A selected candidate may be of another epoch.
    epochs = {nearest.run: nearest.epoch for nearest in reversed(neighbours)}
    whose = [next(iter(epochs)) if len(epochs) == 1 else "several runs"]
    if len(set(epochs.values())) == 1:
        whose.append(epoch_text(neighbours[0].epoch, (data or {}).get(neighbours[0].run)))
    figure, (axes,) = fig.make_panels([f"{', '.join(whose)}: nearest {neighbours[0].split} images"], layout)
    axes.set_axis_off()
    classes = dict.fromkeys(neighbour.item.name for nearest in neighbours for neighbour in nearest.found)
    names = shorten_distinctly(classes, side - 0.12, _NAMES)
    top = 0.0
    for block, block_height in zip(blocks, heights, strict=True):
        if top:
            axes.plot([0, _WIDTH], [top - _BETWEEN / 2] * 2, color="0.8", linewidth=0.8)
        query, below = block[0].query, top + block_height
        bottom = draw_picture(axes, image(block[0].run, query.id), (0, top + _TEXT, _QUERY), NEUTRAL)
        lines = wrap_name(query.name, _QUERY, _NAMES, int((below - bottom - 0.04) / _TEXT))
        text = axes.text(0, bottom + 0.05, "\n".join(lines), fontsize=_NAMES, va="top", linespacing=1.1)
        text.set_parse_math(False)
        for i, nearest in enumerate(block):
            title = row_names[nearest.run, nearest.epoch, nearest.ranked]
            _draw_row(axes, nearest, image, (top + i * row, side), title=title, names=names)
        top += block_height + _BETWEEN
    axes.set(xlim=(0, _WIDTH), ylim=(height, 0))
    return figure


def _notes(neighbours: Sequence[QueryNeighbours], data: Mapping[str, DataFacts]) -> list[str]:
    split = neighbours[0].split
    split_facts = {
        run: replace(facts, splits={split: facts.splits[split]}) for run, facts in data.items() if split in facts.splits
    }
    searched = {nearest.ranked.similarity for nearest in neighbours}
    compared = f". Compared by {searched.pop()}" if len(searched) == 1 else ""
    key = f"Left: the query. Solid {RIGHT.sign}: right. Dashed {WRONG.sign}: wrong"
    layer_notes = dict.fromkeys(note for nearest in neighbours for note in nearest.notes)
    return [f"{key}{compared}", *run_lines(split_facts), *layer_notes]


def _row_names(
    neighbours: Sequence[QueryNeighbours], selected: Mapping[str, Selected]
) -> dict[tuple[str, int, RankedLayer], str]:
    """The layer of each row, with run and epoch if there are several runs."""
    has_several_runs, names = len({nearest.run for nearest in neighbours}) > 1, {}
    for nearest, label in zip(neighbours, label_layers(neighbours, selected), strict=True):
        run = f"{nearest.run}, " if label.selected else f"{nearest.run}#{nearest.epoch}:"
        names[nearest.run, nearest.epoch, nearest.ranked] = f"{run * has_several_runs}{label.name}"
    return names


def _draw_row(  # noqa: PLR0913 - where, what, and its texts
    axes: Axes,
    nearest: QueryNeighbours,
    image: ReadImage,
    top_and_side: tuple[float, float],
    *,
    title: str,
    names: Mapping[str, str],
) -> None:
    """Draw the neighbours by one layer: their pictures and signs, and the shortened name of the class of wrong ones."""
    top, side = top_and_side
    x = _QUERY + _BESIDE
    short_title = shorten(title, _WIDTH - x, fig.FONT)
    axes.text(x, top + _TEXT / 2, short_title, fontsize=fig.FONT, va="center", parse_math=False)
    for neighbour in nearest.found:
        frame = RIGHT if neighbour.right else WRONG
        draw_picture(axes, image(nearest.run, neighbour.item.id), (x, top + _TEXT, side), frame)
        below = top + _TEXT + side + 0.09
        axes.text(x - 0.01, below, frame.sign, fontsize=fig.FONT, color=frame.colour, va="center", weight="bold")
        if neighbour.item.name != nearest.query.name:
            short = names[neighbour.item.name]
            axes.text(x + 0.12, below, short, fontsize=_NAMES, color=fig.GREY, va="center", parse_math=False)
        x += side + _SPACE


def draw_picture(
    axes: Axes,
    pixels: NDArray[Any],
    square: tuple[float, float, float],
    frame: Frame,
    *,
    size: tuple[int, ...] | None = None,
    **image_options: Any,
) -> float:
    """Draw a framed picture, as large as fits a square; returns its lower end.

    Args:
        square: left and top end, and side, of the square.
        size: rows and columns that give its form; None: its own.
        image_options: how `imshow` draws it.
    """
    x, y, side = square
    rows, columns = map(float, size or pixels.shape[:2])
    height, width = side * rows / max(rows, columns), side * columns / max(rows, columns)
    x, y = x + (side - width) / 2, y + (side - height) / 2
    inner = (x + _INSIDE, x + width - _INSIDE, y + height - _INSIDE, y + _INSIDE)
    axes.imshow(pixels, extent=inner, aspect="auto", zorder=1, **image_options)
    box = Rectangle((x, y), width, height, fill=False, zorder=2, clip_on=False)
    box.set(edgecolor=frame.colour, linestyle=frame.line, linewidth=1.6)
    axes.add_patch(box)
    return y + height


def neighbours_csv(neighbours: Sequence[QueryNeighbours], selected: Mapping[str, Selected] | None = None) -> str:
    """A line for each neighbour, with unabridged ids and class names."""
    head = ["run", "epoch", "split", "layer", "pool", "post_processing", "similarity"]
    rows: list[list[object]] = []
    rows.append([*head, "query", "query_class", "place", "item", "item_class", "value", "right", "note"])
    for nearest, label in zip(neighbours, label_layers(neighbours, selected or {}), strict=True):
        key = [nearest.run, nearest.epoch, nearest.split, *nearest.ranked.as_columns().values()]
        key += [nearest.query.id, nearest.query.name]
        for rank, neighbour in enumerate(nearest.found, start=1):
            cells = [rank, neighbour.item.id, neighbour.item.name, neighbour.similarity, str(neighbour.right).lower()]
            rows.append([*key, *cells, note_text((*nearest.notes, *label.csv_notes))])
    return csv_text(rows)


def shorten(name: str, width: float, size: float) -> str:
    """A name shortened to a width by an ellipsis before its last characters.

    Args:
        size: of the font, in points.
    """
    name = replace_missing_glyphs(name)
    if _width(name, size) <= width:
        return name
    for length in range(min(_TAIL, len(name) - 1), -1, -1):
        tail = name[len(name) - length :]
        room, head = width - _width(_ELLIPSIS + tail, size), 0
        while (room := room - _width(name[head], size)) >= 0:
            head += 1
        if head:
            return f"{name[:head]}{_ELLIPSIS}{tail}"
    return _ELLIPSIS


def shorten_distinctly(names: Iterable[str], width: float, size: float) -> dict[str, str]:
    """Name -> the name shortened to a width so that it differs from the others, as far as the width permits.

    Names that `shorten` would make the same begin, after an ellipsis, where they differ.

    Args:
        size: of the font, in points.
    """
    begins = dict.fromkeys(names, 0)
    while True:
        rest = width - _width(_ELLIPSIS, size)
        texts = {
            name: _ELLIPSIS + shorten(name[begin:], rest, size) if begin else shorten(name, width, size)
            for name, begin in begins.items()
        }
        groups: dict[str, list[str]] = {}
        for name, text in texts.items():
            groups.setdefault(text, []).append(name)
        # Of a name that begins another one, the last character is left.
        differ = {
            name: min(_common_prefix_length(group), min(map(len, group)) - 1)
            for group in groups.values()
            if len(group) > 1
            for name in group
        }
        further = {name: difference for name, difference in differ.items() if difference > begins[name]}
        if not further:
            return texts
        begins |= further


def _common_prefix_length(names: Iterable[str]) -> int:
    """Number of characters with which all names begin."""
    return sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False)))


def wrap_name(name: str, width: float, size: float, count: int) -> list[str]:
    """A name wrapped to a width in at most `count` lines; the rest is shortened.

    Args:
        size: of the font, in points.
    """
    name, lines = replace_missing_glyphs(name), list[str]()
    while name and len(lines) < count - 1:
        end, room = 0, width
        while end < len(name) and (room := room - _width(name[end], size)) >= 0:
            end += 1
        end = max(end, 1)
        if end < len(name):
            end = max((i + 1 for i in range(end // 3, end) if name[i] in _SIGNS), default=end)
        lines.append(name[:end])
        name = name[end:]
    return [*lines, shorten(name, width, size)] if name and count > 0 else lines


def replace_missing_glyphs(name: str) -> str:
    """A name with a square in place of each character that the font lacks."""
    font = get_font(findfont(FontProperties()))
    return "".join(c if font.get_char_index(ord(c)) else "\N{WHITE SQUARE}" for c in visible(name))


def _width(text: str, size: float) -> float:
    return sum(map(_advance, text)) * size / _UNIT / 72  # inches


@functools.cache
def _advance(character: str) -> float:
    """Width of a character in points, at the size `_UNIT`."""
    font = get_font(findfont(FontProperties()))
    font.set_size(_UNIT, 72)  # whoever draws with this font sets the size too
    return float(font.load_char(ord(character), flags=LoadFlags.NO_HINTING).linearHoriAdvance) / 65536


def plot(source: PlotSource, options: PlotOptions) -> Drawing:
    """Draw the neighbours of some queries."""
    neighbours, image = source.neighbours(options)
    data = source.data(nearest.run for nearest in neighbours)
    selected = source.selected()
    figure = draw(neighbours, image=image, data=data, selected=selected)
    return Drawing(figure, neighbours_csv(neighbours, selected))


PLOT = Plot(plot, ("layers", "epoch", "query", "where", "queries"))
