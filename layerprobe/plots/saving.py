"""How a figure and the numbers in it become the content of files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from matplotlib import rc_context
from matplotlib.figure import Figure

FORMATS = ("png", "pdf", "svg")
_PAD = 0.08  # inches around everything drawn


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


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows as CSV; a text that a spreadsheet would take for a formula begins with a `'`."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value
