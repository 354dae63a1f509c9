"""The tables of `layerprobe classes`, and its files."""

from __future__ import annotations

from collections.abc import Sequence

from layerprobe.system.wording import one_line
from layerprobe.tables.formats import as_csv
from layerprobe.tables.tables import TextTable
from layerprobe.values.classes import ComparedClass, ComparedClasses, Confusion, TwoNames
from layerprobe.values.intervals import Interval
from layerprobe.values.layers import layer_names

_SHOWN = 12  # rows of a table in a terminal
_ABSENT = "-"


def class_table(compared: ComparedClasses) -> TextTable:
    """The first classes: images, recall by both layers, the difference with its interval, and shrunk."""
    shown = compared.classes[:_SHOWN]
    numbers, layers = class_heading(compared, shown)
    heading = (f"{_title(compared)}: {numbers}", layers)
    rest = len(compared.classes) - len(shown)
    notes = (
        *([f"{rest:,} more classes: --csv, --json or another --sort"] if rest else []),
        *class_notes(compared, shown),
    )
    return TextTable(
        ("class", "images", "A", "B", "A - B", "shrunk"),
        tuple(_class_cells(x) for x in shown),
        numbers=frozenset(range(1, 6)),
        heading=heading,
        notes=notes,
        intervals={4: tuple(_ends(x.interval) for x in shown)} if any(x.interval for x in shown) else {},
    )


def class_heading(compared: ComparedClasses, shown: Sequence[ComparedClass]) -> tuple[str, str]:
    """What the numbers of some classes are, and which layers are A and B."""
    return (
        f"R@1 in % of each test class, {compared.queries:,} images",
        f"A: {layer_name(compared, 0)}, B: {layer_name(compared, 1)}"
        + "; 95 % interval over other images of the class" * any(x.interval for x in shown),
    )


def class_notes(compared: ComparedClasses, shown: Sequence[ComparedClass]) -> tuple[str, ...]:
    """What the numbers of some classes need to be read, and what is left out of them."""
    shrunk = "shrunk: towards the difference of all classes, the more the fewer images a class has"
    return (*([shrunk] if any(x.shrunk is not None for x in shown) else []), *compared.notes)


def two_names_text(candidates: Sequence[TwoNames]) -> str:
    """The candidates for one class under two names, or that there are none."""
    names = [f"{x.names[0]} and {x.names[1]} (by {' and '.join(x.layers)})" for x in candidates]
    if not names:
        return "no two classes are alike enough to be one under two names"
    return f"candidates for one class under two names: {'; '.join(names)}"


def confusion_table(compared: ComparedClasses) -> TextTable:
    """The largest directed pairs of classes, by both layers, with examples."""
    shown = compared.confusions[:_SHOWN]
    rest = len(compared.confusions) - len(shown)
    return TextTable(
        ("class", "found in\nits place", "of", "A", "B", "image -> its nearest"),
        tuple(map(_confusion_cells, shown)),
        numbers=frozenset(range(2, 5)),
        multiline=frozenset({5}),
        heading=(f"{_title(compared)}: images whose nearest item is of another class, by A and B",),
        notes=(
            *([f"{rest:,} more pairs: --confusions or --json"] if rest else []),
            two_names_text(compared.two_names),
        ),
    )


def classes_csv(compared: ComparedClasses) -> str:
    """A row for each class, in the order of the request; shares, not percent."""
    columns = ("class", "images", "R@1 a", "R@1 b", "difference", "low", "high", "p", "shrunk")
    rows = [
        (x.name, x.images, x.a, x.b, x.difference, x.interval and x.interval.low, x.interval and x.interval.high, x.p,
         x.shrunk)
        for x in compared.classes
    ]  # fmt: skip
    return _csv(columns, rows)


def confusions_csv(compared: ComparedClasses) -> str:
    """A row for each directed pair of classes, the largest first."""
    columns = (
        "class", "nearest class", "images", "a", "b", "two names",
        *(f"{name} {number}" for number in (1, 2) for name in ("image", "nearest")),
    )  # fmt: skip
    two_names = {frozenset(x.names): " and ".join(x.layers) for x in compared.two_names}

    def cells(x: Confusion) -> Sequence[object]:
        examples = [name for example in x.examples for name in (example.image, example.nearest)]
        alike = two_names.get(frozenset((x.name, x.nearest)), "")
        return (x.name, x.nearest, x.images, x.a, x.b, alike, *examples, *[""] * (4 - len(examples)))

    return _csv(columns, [cells(x) for x in compared.confusions])


def layer_name(compared: ComparedClasses, side: int) -> str:
    """The name of layer a (0) or b (1), with its epoch where they differ in it."""
    name = layer_names([compared.a, compared.b])[side]
    return name if len(set(compared.epochs)) == 1 else f"#{compared.epochs[side]}:{name}"


def _title(compared: ComparedClasses) -> str:
    epochs = set(compared.epochs)
    return f"{compared.run}#{compared.epochs[0]}" if len(epochs) == 1 else compared.run


def _confusion_cells(x: Confusion) -> tuple[str, ...]:
    examples = [f"{_short(pair.image, x.name)} -> {_short(pair.nearest, x.nearest)}" for pair in x.examples]
    return (x.name, x.nearest, f"{x.images:,}", f"{x.a:,}", f"{x.b:,}", "\n".join(examples))


def _short(image: str, name: str) -> str:
    """The name of an image in one line, without the folder that is its class."""
    return one_line(image.removeprefix(f"{name}/"))


def _class_cells(x: ComparedClass) -> tuple[str, ...]:
    points = [_ABSENT if value is None else f"{100 * value:+.1f}" for value in (x.difference, x.shrunk)]
    return (x.name, f"{x.images:,}", f"{100 * x.a:.1f}", f"{100 * x.b:.1f}", *points)


def _ends(interval: Interval | None) -> tuple[str, str] | None:
    return None if interval is None else tuple(f"{end:+.1f}" for end in interval.percent)  # type: ignore[return-value] # two


def _csv(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Cells as text, empty for None."""
    cells = tuple(tuple("" if cell is None else str(cell) for cell in row) for row in rows)
    return f"{as_csv(TextTable(tuple(columns), cells))}\n"
