"""Score and Matrix, the values that tables, plots and the report start from, and the file of scores."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from layerprobe.errors import DataError
from layerprobe.files import write_text


@dataclass(frozen=True)
class Score:
    """One number and how it was obtained.

    Args:
        run: the run's name; the experiment's for a mean over seeds.
        experiment: hash of the resolved recipe without its seed.
        seed: the run's seed; None for a mean over seeds.
        epoch: 0 = before any step.
        split: train, validation or test.
        layer: the layer's name without its pool.
        pool: max, avg, gem, grid:s or none.
        reduction: none, or the chain of reductions.
        similarity: cosine, dot, euclidean or hamming.
        metric: R@1, MAP@R ...
        value: a fraction; None where there is no valid number, with the reason in `note`.
        low: lower end of the 95 % interval; None where none was asked for.
        high: upper end.
        n: number of queries.
        note: what a reader must know of the number; empty where nothing.
    """

    run: str
    experiment: str
    seed: int | None
    epoch: int
    split: str
    layer: str
    pool: str
    reduction: str
    similarity: str
    metric: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    note: str = ""


@dataclass(frozen=True)
class Matrix:
    """Numbers by two lists of names, for what a Score cannot hold: how alike pairs of layers are.

    Args:
        run: the run's name.
        split: of the features.
        measure: what the numbers are: linear CKA.
        title: what is compared, without the run and the split.
        row_axis: what the rows are: layer.
        column_axis: what the columns are: layer, or epoch.
        rows: R names.
        columns: C names.
        values: (R, C) numbers; None where there is no valid one, with the reason in `note`; never NaN.
        n: number of images.
        note: what a reader must know of the numbers; empty where nothing.

    Raises:
        ValueError: values that are not R rows of C, or NaN among them.
    """

    run: str
    split: str
    measure: str
    title: str
    row_axis: str
    column_axis: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    n: int
    note: str = ""

    def __post_init__(self) -> None:
        lengths = [len(row) for row in self.values]
        if lengths != [len(self.columns)] * len(self.rows):
            raise ValueError(f"expected {len(self.rows)} rows of {len(self.columns)} values, got {lengths}")
        if any(value is not None and math.isnan(value) for row in self.values for value in row):
            raise ValueError("NaN among the values: None stands for what has no valid number")


# What makes two rows the same measurement: a newer one replaces the older.
_KEY = ("run", "epoch", "split", "layer", "pool", "reduction", "similarity", "metric")
_NUMBERS = {"seed": int, "epoch": int, "n": int, "value": float, "low": float, "high": float}


# Metrics that are neither shares nor means of shares; all others are read in percent.
_PLAIN = ("intra-inter", "alignment", "uniformity", "rho", "effective-rank")


def is_fraction(metric: str) -> bool:
    """Whether a metric lies in [0, 1] and is shown to people in percent."""
    return metric not in _PLAIN


def merge_scores(old: Iterable[Score], new: Iterable[Score]) -> list[Score]:
    """The old rows with the new ones in the place of those they measure again, sorted by epoch."""
    merged = {tuple(getattr(score, name) for name in _KEY): score for score in (*old, *new)}
    return sorted(merged.values(), key=lambda score: score.epoch)


def shared_notes(notes: Iterable[str]) -> list[str]:
    """What all of some scores' notes say, each thing once, in the first one's order."""
    first, *others = (note.split("; ") for note in notes)
    return [part for part in dict.fromkeys(first) if part and all(part in other for other in others)]


def write_scores(path: Path, scores: Iterable[Score]) -> None:
    """Write scores.csv whole: a header of Score's fields, one row a score, an empty cell for None."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Score)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(score) for score in scores)
    write_text(path, text.getvalue())


def read_scores(path: Path) -> list[Score]:
    """The scores of a file that `write_scores` wrote.

    Raises:
        DataError: the file is absent or is not a table of scores.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return [_score(row) for row in csv.DictReader(stream)]
    except FileNotFoundError as error:
        raise DataError("no scores yet", file=path, fix="Run layerprobe probe first") from error
    except (KeyError, TypeError, ValueError) as error:
        raise DataError("not a table of scores", file=path, fix="Delete it and run layerprobe probe again") from error


def _score(row: dict[str, str]) -> Score:
    values: dict[str, object] = {}
    for field in fields(Score):
        text = row[field.name]
        number = _NUMBERS.get(field.name)
        values[field.name] = text if number is None else (None if text == "" else number(text))
    return Score(**values)  # type: ignore[arg-type] # the field's own type, by _NUMBERS
