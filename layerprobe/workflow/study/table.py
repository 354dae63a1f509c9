"""The table of a study: a row for each cell of the grid, a column for each layer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from layerprobe.tables.tables import TextTable
from layerprobe.values.intervals import Interval
from layerprobe.values.metric_names import is_fraction
from layerprobe.values.scores import note_text
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
    """

    mean: float | None
    interval: Interval | None
    values: tuple[float | None, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StudyTable:
    """The cells of a study, each with its values by layer."""

    study: Study
    rows: tuple[tuple[Cell, tuple[Over, ...]], ...]


def table_values(table: StudyTable) -> dict[str, Any]:
    """The table as JSON has it."""
    study, layers = table.study, table.study.end.layers or ()
    cells = [
        {
            "values": cell.values,
            "runs": [training.run for training in cell.trainings],
            "layers": [
                {"layer": layer, "mean": over.mean, "interval": over.interval, "trainings": over.values}
                for layer, over in zip(layers, of_layers, strict=True)
            ],
        }
        for cell, of_layers in table.rows
    ]
    about = study.about
    said = {"study": study.name, "title": about.title, "paper": about.paper, "claim": about.claim}
    return {**said, "small": study.is_small, "metric": study.end.table, "seeds": study.runs.seeds, "cells": cells}


def text_table(table: StudyTable) -> TextTable:
    """The table as text; fractions in percent."""
    study, keys = table.study, tuple(table.study.grid)
    metric, seeds = study.end.table or "", study.runs.seeds
    unit = f"{metric} in %" if is_fraction(metric) else metric
    several = f"mean of {len(seeds)} trainings" if len(seeds) > 1 else "one training"
    where = "test classes of their own" if _SPLIT in (*study.runs.seeded, *study.runs.set) else "these test classes"
    brackets = [f"in brackets: 95 % interval of the mean over trainings, on {where}"] if len(seeds) > 1 else []
    numbers = [of_layers for _, of_layers in table.rows]
    notes = [f"claim: {study.about.claim}"] if study.about.claim else []
    notes += [f"paper: {study.about.paper}"] if study.about.paper else []
    notes += [study.caveat] if study.caveat else []
    first = len(keys)
    return TextTable(
        (*keys, *(study.end.layers or ())),
        tuple(
            (*(_shown(cell.values[key]) for key in keys), *(_number(over, metric) for over in of_layers))
            for cell, of_layers in table.rows
        ),
        numbers=frozenset(range(first, first + len(study.end.layers or ()))),
        heading=(f"{study.name}: {study.about.title}", f"{unit} on test after the last epoch, {several}", *brackets),
        notes=tuple(notes),
        intervals={
            first + place: tuple(_ends(over, metric) for over in column)
            for place, column in enumerate(zip(*numbers, strict=True))
            if any(over.interval for over in column)
        },
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _number(over: Over, metric: str) -> str:
    return note_text(over.notes) if over.mean is None else _text(over.mean, metric)


def _ends(over: Over, metric: str) -> tuple[str, str] | None:
    if over.interval is None:
        return None
    return _text(over.interval.low, metric), _text(over.interval.high, metric)


def _text(value: float, metric: str) -> str:
    return f"{100 * value:.1f}" if is_fraction(metric) else f"{value:.3g}"
