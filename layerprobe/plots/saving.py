"""How a figure and the numbers in it become files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from layerprobe.errors import LayerprobeError
from layerprobe.files import written_whole

FORMATS = ("png", "pdf", "svg")
_PAD = 0.08  # inches around everything drawn


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


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows as CSV; a text that a spreadsheet would take for a formula begins with a `'`."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value
