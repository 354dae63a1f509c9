"""The table of a study: a row for each cell of the grid, a column for each layer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from layerprobe.statistics.seeds import mean_interval
from layerprobe.tables.tables import TextTable
from layerprobe.values.intervals import Interval
from layerprobe.values.scores import is_fraction, note_text
from layerprobe.workflow.study.plan import Cell
from layerprobe.workflow.study.study_file import Study

_SPLIT = "data.class_seed"


@dataclass(frozen=True)
class Over:
    """A metric of a layer over the trainings of a cell.

    Args:
        mean: None where a training has no valid value, with the reason in `notes`.
        interval: 95 %, of the mean; None for a single training, or equal ones.
        values: of each training.
        further: 95 % prediction interval of one further training; None for fewer than three, or equal ones.
    """

    mean: float | None
    interval: Interval | None
    values: tuple[float | None, ...]
    notes: tuple[str, ...] = ()
    further: Interval | None = None


@dataclass(frozen=True)
class Row:
    """The values of a cell at an epoch, for each of the study's layers; None for those of other variants."""

    cell: Cell
    epoch: int
    layers: tuple[Over | None, ...]


@dataclass(frozen=True)
class StudyTable:
    """The cells of a study at each epoch of the table."""

    study: Study
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Verdict:
    """Whether a layer is above another in a cell at the last epoch of the table.

    Args:
        difference: mean of (first - second) over the trainings; None where a training has no valid value.
        interval: 95 %, of this mean; None for a single training, or equal differences.
    """

    cell: Cell
    epoch: int
    first: str
    second: str
    difference: float | None
    interval: Interval | None

    @property
    def text(self) -> str:
        """What the interval says."""
        if self.interval is None or self.interval.low <= 0 <= self.interval.high:
            return "does not show"
        return "holds here" if self.interval.low > 0 else "the contrary"


def verdicts(table: StudyTable) -> list[Verdict]:
    """Those of the pairs of layers that a study compares, cell by cell."""
    last_rows = {str(row.cell): row for row in sorted(table.rows, key=lambda row: row.epoch)}
    return [
        _verdict(row, dict(zip(table.study.layers or (), row.layers, strict=True)), pair)
        for row in (last_rows[cell] for cell in dict.fromkeys(str(row.cell) for row in table.rows))
        for pair in table.study.pairs_of(row.cell.variant)
    ]


def _verdict(row: Row, by_layer: Mapping[str, Over | None], pair: tuple[str, str]) -> Verdict:
    values = [over.values if (over := by_layer[layer]) else () for layer in pair]
    if not all(values) or None in (*values[0], *values[1]):
        return Verdict(row.cell, row.epoch, *pair, None, None)
    difference = np.subtract(*np.array(values, np.float64))
    return Verdict(row.cell, row.epoch, *pair, float(difference.mean()), mean_interval(difference))


def about_lines(study: Study) -> list[str]:
    """What is asked, and what the paper says: no result of this study."""
    about = study.about
    lines = [f"question: {about.question}"] if about.question else []
    if about.claim:
        return [*lines, f"the paper says: {about.claim} ({about.paper})" if about.paper else f"expected: {about.claim}"]
    return [*lines, *([f"paper: {about.paper}"] if about.paper else [])]


def table_values(table: StudyTable) -> dict[str, Any]:
    """The table as JSON has it."""
    study, layers = table.study, table.study.layers or ()
    cells = [
        {
            **({"variant": row.cell.variant} if study.has_variants else {}),
            "values": row.cell.values,
            "epoch": row.epoch,
            "runs": [training.run for training in row.cell.trainings],
            "layers": [
                {
                    "layer": layer,
                    "mean": over.mean,
                    "interval": over.interval,
                    "further": over.further,
                    "trainings": over.values,
                }
                for layer, over in zip(layers, row.layers, strict=True)
                if over is not None
            ],
        }
        for row in table.rows
    ]
    compared = [
        {
            **({"variant": verdict.cell.variant} if study.has_variants else {}),
            "values": verdict.cell.values,
            "epoch": verdict.epoch,
            "layers": [verdict.first, verdict.second],
            "difference": verdict.difference,
            "interval": verdict.interval,
            "verdict": verdict.text,
        }
        for verdict in verdicts(table)
    ]
    ends = {"small": study.is_small, "metric": study.end.table, "seeds": study.runs.seeds}
    about = {"study": study.name, **study.about.model_dump()}
    return {**about, **ends, "cells": cells, "verdicts": compared}


def text_table(table: StudyTable) -> TextTable:
    """The table as text; fractions in percent."""
    study, layers = table.study, table.study.layers or ()
    epochs = ("epoch",) if study.end.epochs and len(study.end.epochs) > 1 else ()
    keys = (*_key_columns(study), *epochs)
    metric, seeds = study.end.table or "", study.runs.seeds
    unit = f"{metric} in %" if is_fraction(metric) else metric
    mean = f"mean of {len(seeds)} trainings" if len(seeds) > 1 else "one training"
    where = "test classes of their own" if _SPLIT in (*study.runs.seeded, *study.runs.set) else "these test classes"
    brackets = [f"in brackets: 95 % interval of the mean over trainings, on {where}"] if len(seeds) > 1 else []
    numbers = [row.layers for row in table.rows]
    when = (
        "by epoch" if epochs else f"after epoch {study.end.epochs[0]}" if study.end.epochs else "after the last epoch"
    )
    question, *paper = about_lines(study) or [""]
    verdict_lines = [_verdict_text(verdict, study) for verdict in verdicts(table)]
    by = "a verdict is by the 95 % interval of the mean difference, paired by training" if verdict_lines else ""
    notes = [question, *verdict_lines, by, *paper, study.caveat]
    return TextTable(
        (*keys, *layers),
        tuple(
            (
                *_key_values(study, row.cell),
                *([str(row.epoch)] * len(epochs)),
                *(_number(over, metric) for over in row.layers),
            )
            for row in table.rows
        ),
        numbers=frozenset(range(len(keys), len(keys) + len(layers))),
        heading=(f"{study.name}: {study.about.title}", f"{unit} on test {when}, {mean}", *brackets),
        notes=tuple(filter(None, notes)),
        intervals={
            number: tuple(_ends(over, metric) for over in column)
            for number, column in enumerate(zip(*numbers, strict=True), start=len(keys))
            if any(over and over.interval for over in column)
        },
    )


def _verdict_text(verdict: Verdict, study: Study) -> str:
    metric = study.end.table or ""
    statement = f"{verdict.first} above {verdict.second}: {verdict.text}"
    if verdict.difference is None:
        number = "a value is missing"
    else:
        unit, scale, form = (" points", 100, "+.1f") if is_fraction(metric) else ("", 1, "+.3g")
        number = f"{scale * verdict.difference:{form}}{unit}"
        ends = verdict.interval
        number += f" [{scale * ends.low:{form}}, {scale * ends.high:{form}}]" if ends else ", without an interval"
    cells = len(study.cells) * len(study.variants)
    where = f" at {verdict.cell}" if cells > 1 else ""
    return f"verdict{where}, epoch {verdict.epoch}: {statement}, {number}"


def plan_values(study: Study, cells: Sequence[Cell], lacking: Sequence[str]) -> dict[str, Any]:
    """As JSON has it: the trainings of a study whose data are not there."""
    cell_values = [
        {
            **({"variant": cell.variant} if study.has_variants else {}),
            "values": cell.values,
            "runs": [training.run for training in cell.trainings],
        }
        for cell in cells
    ]
    return {"run": study.name, "estimate": None, "missing_data": lacking, "cells": cell_values}


def plan_table(study: Study, cells: Sequence[Cell], lacking: Sequence[str]) -> TextTable:
    """The trainings of a study whose data are not there: a row for each cell."""
    count = sum(len(cell.trainings) for cell in cells)
    needed = " ".join(f"--data {usage}" for usage in lacking)
    return TextTable(
        (*_key_columns(study), "trainings"),
        tuple((*_key_values(study, cell), str(len(cell.trainings))) for cell in cells),
        numbers=frozenset([len(_key_columns(study))]),
        heading=(f"{study.name}: {study.about.title}", f"{count} trainings; time, memory and disk need {needed}"),
    )


def _key_columns(study: Study) -> tuple[str, ...]:
    return (*(["variant"] * study.has_variants), *study.grid)


def _key_values(study: Study, cell: Cell) -> tuple[str, ...]:
    return (*([cell.variant] * study.has_variants), *(_shown(cell.values[key]) for key in study.grid))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _number(over: Over | None, metric: str) -> str:
    if over is None:
        return ""
    return note_text(over.notes) if over.mean is None else _text(over.mean, metric)


def _ends(over: Over | None, metric: str) -> tuple[str, str] | None:
    if over is None or over.interval is None:
        return None
    return _text(over.interval.low, metric), _text(over.interval.high, metric)


def _text(value: float, metric: str) -> str:
    return f"{100 * value:.1f}" if is_fraction(metric) else f"{value:.3g}"
