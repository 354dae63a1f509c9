"""Tables for the terminal: scores, and any rows of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from layerprobe.scores import Score, is_fraction, is_recall, note_text
from layerprobe.wording import visible

_ABSENT = "-"
_BEST = "*"
_SPLITS = {"train": "train", "validation": "valid.", "test": "test"}  # split -> its name in a narrow column
_Row = tuple[str, str, str, str]  # layer, pool, reduction, similarity


def layer_table(scores: Sequence[Score], *, metric: str = "R@1") -> Table:
    """A table with a row for each layer: the metric on every split, the gap, and the other R@K on test.

    Values are percent with one decimal. The gap is train - test in points, from the unrounded fractions. The best layer
    on test has a star and is bold. Where a value is invalid its note is shown; other notes follow below the table.

    Args:
        scores: of one run and one epoch, in the order of the rows.
        metric: the metric to compare between the splits.

    Raises:
        ValueError: no scores, or scores of several runs or epochs.
    """
    if len({(score.run, score.epoch) for score in scores}) != 1:
        raise ValueError("a layer table shows the scores of one run and one epoch")
    cells = {(_row(score), score.split, score.metric): score for score in scores}
    rows = list(dict.fromkeys(map(_row, scores)))
    splits = [split for split in _SPLITS if any(score.split == split for score in scores)]
    further = list(dict.fromkeys(s.metric for s in scores if s.split == "test" and is_recall(s.metric)))
    further = [name for name in further if name != metric]
    # A reduction or similarity that all rows share is named in the title instead of in a column.
    named = [i for i in (2, 3) if len({row[i] for row in rows}) > 1]
    both = {"train", "test"} <= set(splits)

    table = _table()
    table.title, table.title_justify, table.title_style = _title(scores[0], rows, named, metric), "left", "bold"
    table.add_column("", no_wrap=True)
    for header in ("layer", "pool", *(("", "", "reduction", "similarity")[i] for i in named)):
        table.add_column(header, overflow="fold")
    headers = (
        [f"{_SPLITS[split]}\n{metric}" for split in splits] + ["gap"] * both + [f"test\n{name}" for name in further]
    )
    # On a narrow terminal, names and notes are folded before numbers.
    invalid = any(score.value is None for score in scores)
    for header in headers:
        table.add_column(_text(header), justify="right", overflow="fold", no_wrap=not invalid)

    values = {row: _value(cells.get((row, "test", metric))) for row in rows}
    best = max((value for value in values.values() if value is not None), default=None)
    for row in rows:
        shown = [_percent(cells.get((row, split, metric))) for split in splits]
        shown += [_gap(cells.get((row, "train", metric)), cells.get((row, "test", metric)))] * both
        shown += [_percent(cells.get((row, "test", name))) for name in further]
        star = values[row] is not None and values[row] == best
        texts = (_BEST if star else "", row[0], row[1], *(row[i] for i in named), *shown)
        table.add_row(*map(_text, texts), style="bold" if star else None)

    notes = ([f"{_BEST} best test {metric}"] if best is not None else []) + _notes(scores, rows)
    table.caption = _beside("\n".join(notes))
    table.caption_justify = "left"
    return table


def metric_table(scores: Sequence[Score]) -> Table | None:
    """A table of the metrics other than R@K, with a row for each metric and layer; None without such a metric.

    Shares are percent with one decimal, other numbers have three digits. Where a value is invalid its note is shown.

    Args:
        scores: of one run and one epoch, in the order of the rows.
    """
    further = [score for score in scores if not is_recall(score.metric)]
    if not further:
        return None
    cells = {(_row(score), score.split, score.metric): score for score in further}
    splits = [split for split in _SPLITS if any(score.split == split for score in further)]
    table = _table()
    table.title = _beside(f"{further[0].run}, epoch {further[0].epoch}, shares in %")
    table.title_justify, table.title_style = "left", "bold"
    for header in ("metric", "layer", "pool"):
        table.add_column(header, overflow="fold")
    for split in splits:
        table.add_column(_SPLITS[split], justify="right", overflow="fold")
    rows = list(dict.fromkeys(map(_row, further)))
    for metric in dict.fromkeys(score.metric for score in further):
        for row in rows:
            values = [_number(cells.get((row, split, metric))) for split in splits]
            name = metric if row == rows[0] else ""
            table.add_row(*map(_text, (name, row[0], row[1], *values)), end_section=row == rows[-1])
    return table


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of texts, shown as they are: markup in a cell is not interpreted.

    Args:
        columns: headers of the C columns.
        rows: C cells each.
    """
    table = _table()
    for column in columns:
        table.add_column(_text(column), overflow="fold")
    for row in rows:
        table.add_row(*map(_text, row))
    return table


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, show_edge=False)


def _row(score: Score) -> _Row:
    return score.layer, score.pool, score.reduction, score.similarity


def _title(first: Score, rows: Sequence[_Row], named: Sequence[int], metric: str) -> Text:
    parts = [f"{first.run}, epoch {first.epoch}", f"{metric} in %"]
    if 2 not in named and rows[0][2] != "none":
        parts.append(rows[0][2])
    if 3 not in named:
        parts.append(rows[0][3])
    return _beside(", ".join(parts))


def _text(cell: str) -> Text:
    """A cell without markup and control characters: names come from files and must not style or steer the terminal."""
    return Text(visible(cell, keep="\n"))


def _beside(text: str) -> Text:
    """A title or caption that may be wider than its table; rich would fold it to the table's width."""
    wide = _text(text)
    wide.no_wrap, wide.overflow = True, "ignore"
    return wide


def _value(score: Score | None) -> float | None:
    return None if score is None else score.value


def _percent(score: Score | None) -> str:
    if score is None:
        return _ABSENT
    return note_text(score.notes) if score.value is None else f"{100 * score.value:.1f}"


def _number(score: Score | None) -> str:
    if score is None or score.value is None or is_fraction(score.metric):
        return _percent(score)
    return f"{score.value:.3g}"


def _gap(train: Score | None, test: Score | None) -> str:
    before, after = _value(train), _value(test)
    return _ABSENT if before is None or after is None else f"{100 * (before - after):+.1f}"


def _notes(scores: Sequence[Score], rows: Sequence[_Row]) -> list[str]:
    """A line for each split and note, naming the layers that have it; notes of invalid values are in their cells."""
    found: dict[tuple[str, str], dict[_Row, None]] = {}
    for score in scores:
        if score.value is not None:
            for note in score.notes:
                found.setdefault((score.split, note), {})[_row(score)] = None
    lines = []
    for (split, note), noted in found.items():
        where = "every layer" if len(noted) == len(rows) > 1 else ", ".join(dict.fromkeys(row[0] for row in noted))
        lines.append(f"{split}, {where}: {note}")
    return lines
