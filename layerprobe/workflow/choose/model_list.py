"""A csv table of models, of `layerprobe choose --models`."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from layerprobe.data.csv_file import read_text, rows_of, separator_of
from layerprobe.system.errors import DataError

_COLUMNS = ("model", "weights", "run")


@dataclass(frozen=True)
class ListedModel:
    """A line of the table: what `--model`, `--weights` and `--run` say of a single model; None where it is empty."""

    model: str
    weights: str | None
    run: str | None


def read_models(file: Path) -> list[ListedModel]:
    """The models of a table with a column `model`, and perhaps `weights` and `run`; empty lines are left out.

    Raises:
        DataError: it cannot be read, has another column or no model; a line has no model, or that of another line.
    """
    try:
        text = read_text(file)
        lines = list(rows_of(text, separator_of(text, _COLUMNS)))
    except OSError as error:
        raise DataError.unreadable(error, file=file) from error
    except csv.Error as error:
        fix = "Write one with the columns model, weights and run"
        raise DataError(f"not a csv table ({error})", file=file, fix=fix) from error
    columns = [cell.strip().casefold() for cell in lines[0]] if lines else []
    unknown = [name for name in columns if name not in _COLUMNS or columns.count(name) > 1]
    if "model" not in columns or unknown:
        problem = f"column {unknown[0]!r}" if unknown else "no column model"
        fix = "Name the columns in the first line: model and, where needed, weights and run"
        raise DataError(problem, file=f"{file}:1", fix=fix)
    listed: dict[ListedModel, int] = {}
    for number, cells in enumerate(lines[1:], 2):
        if not any(cell.strip() for cell in cells):
            continue
        values = {name: cell.strip() or None for name, cell in zip(columns, cells, strict=False)}
        model, place = values.get("model"), f"{file}:{number}"
        if model is None or len(cells) > len(columns):
            problem = "no model" if model is None else f"{len(cells)} cells, and there are {len(columns)} columns"
            raise DataError(problem, file=place, fix="Write a model such as timm:resnet18 into the column model")
        row = ListedModel(model, values.get("weights"), values.get("run"))
        same = [line for other, line in listed.items() if (other.model, other.weights) == (row.model, row.weights)]
        if same:
            raise DataError(f"{model} is that of line {same[0]}", file=place, fix="Name it once, or with other weights")
        listed[row] = number
    if not listed:
        raise DataError("no model", file=file, fix="Name one in each line below the columns")
    return list(listed)
