"""study: a grid of recipes -> its runs -> a table or a figure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from layerprobe import registry
from layerprobe.plots.plot import PlotOptions
from layerprobe.statistics.seeds import mean_interval
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.system.files import free_bytes
from layerprobe.system.progress import Listener
from layerprobe.tables.tables import TextTable
from layerprobe.values.costs import Estimate
from layerprobe.values.intervals import Interval
from layerprobe.values.scores import Score, is_fraction
from layerprobe.workflow.plot.over_trainings import line_name
from layerprobe.workflow.plot.plot import plot, require_options
from layerprobe.workflow.plot.request import PlotRequest
from layerprobe.workflow.run.from_recipe import choose_device
from layerprobe.workflow.run.outputs import require_output
from layerprobe.workflow.run.runs import find_run
from layerprobe.workflow.study.over import Over as Over
from layerprobe.workflow.study.over import ends_text, over_text, over_trainings
from layerprobe.workflow.study.plan import (
    Cell,
    StudyTraining,
    all_of,
    is_finished,
    keep_scores,
    plan,
    require_images,
    require_weights,
    scores_on,
)
from layerprobe.workflow.study.request import StudyRequest as StudyRequest
from layerprobe.workflow.study.study_file import OVER_KEY, Study
from layerprobe.workflow.study.training import as_in_training, train_all
from layerprobe.workflow.train.train import estimate_training

_SPLIT = "data.class_seed"


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
            **cell_values(study, row.cell),
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
            **cell_values(study, verdict.cell),
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


def cell_values(study: Study, cell: Cell) -> dict[str, Any]:
    """What tells a cell apart, as JSON has it."""
    return {**({"variant": cell.variant} if study.has_variants else {}), "values": cell.values}


def text_table(table: StudyTable) -> TextTable:
    """The table as text; fractions in percent."""
    study, layers = table.study, table.study.layers or ()
    epochs = ("epoch",) if study.end.epochs and len(study.end.epochs) > 1 else ()
    keys = (*key_columns(study), *epochs)
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
                *key_values(study, row.cell),
                *([str(row.epoch)] * len(epochs)),
                *(over_text(over, metric) for over in row.layers),
            )
            for row in table.rows
        ),
        numbers=frozenset(range(len(keys), len(keys) + len(layers))),
        heading=(f"{study.name}: {study.about.title}", f"{unit} on test {when}, {mean}", *brackets),
        notes=tuple(filter(None, notes)),
        intervals={
            number: tuple(ends_text(over, metric) for over in column)
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
    values = [{**cell_values(study, cell), "runs": [training.run for training in cell.trainings]} for cell in cells]
    return {"run": study.name, "estimate": None, "missing_data": lacking, "cells": values}


def plan_table(study: Study, cells: Sequence[Cell], lacking: Sequence[str]) -> TextTable:
    """The trainings of a study whose data are not there: a row for each cell."""
    count = sum(len(cell.trainings) for cell in cells)
    needed = " ".join(f"--data {usage}" for usage in lacking)
    return TextTable(
        (*key_columns(study), "trainings"),
        tuple((*key_values(study, cell), str(len(cell.trainings))) for cell in cells),
        numbers=frozenset([len(key_columns(study))]),
        heading=(f"{study.name}: {study.about.title}", f"{count} trainings; time, memory and disk need {needed}"),
    )


def key_columns(study: Study) -> tuple[str, ...]:
    """The headers of what tells cells apart."""
    return (*(["variant"] * study.has_variants), *study.grid)


def key_values(study: Study, cell: Cell) -> tuple[str, ...]:
    """What tells a cell apart, as text."""
    values = [cell.values[key] for key in study.grid]
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    return (*([cell.variant] * study.has_variants), *texts)


def cells_of(request: StudyRequest) -> list[Cell]:
    """The cells of a study, with the scores that are kept."""
    study, scores = request.study, request.scores
    if scores is not None and study.end.plot is not None:
        raise RecipeError("a plot needs the runs, not their scores", file=study.name, fix="Leave out --scores")
    return plan(study, request.cache, request.data, scores=scores)


def run_study(request: StudyRequest, listener: Listener) -> StudyTable | tuple[Path, ...]:
    """Train and measure what is missing, and return the table, or the files of the figures."""
    study = request.study
    options = PlotOptions(layers=study.layers, metric=study.end.metric, key=study.end.key)
    if study.end.plot is not None:  # an option that the plot has not is told before the trainings
        require_options(study.end.plot, registry.load("plot", registry.PLOTS, study.end.plot), options)
    if request.scores is not None:
        require_output(request.scores, "csv")
    cells = cells_of(request)
    try:
        train_missing(request, all_of(cells), partial(is_finished, study), listener)
    finally:  # also those of a study that was stopped
        if request.scores is not None:
            keep_scores(study, cells, request.scores)
    if study.end.plot is None:
        return StudyTable(study, tuple(row for cell in cells for row in _rows(study, cell)))
    for cell in cells:
        listener.say(f"{', '.join(training.run for training in cell.trainings)}: {cell}")
    runs = [find_run(request.cache, training.run) for cell in cells for training in cell.trainings]
    note = "\n".join(filter(None, (*_run_lines(study, cells), study.caveat)))
    drawn = partial(PlotRequest, study.end.plot, runs, lines=_lines(study, cells), note=note)
    files = [plot(drawn(runs[0].plot_file(study.name), options=options))]
    for metric in study.end.also:
        file = runs[0].plot_file(f"{study.name}-{metric}")
        files.append(plot(drawn(file, options=replace(options, metric=metric))))
    return tuple(files)


def train_missing(
    request: StudyRequest,
    trainings: Sequence[StudyTraining],
    is_finished: Callable[[StudyTraining], bool],
    listener: Listener,
    *,
    kind: str = "trainings",
) -> None:
    """Train and measure those that are not finished."""
    study, missing = request.study, [training for training in trainings if not is_finished(training)]
    if not missing:
        return
    require_weights(missing)
    for name in request.devices:
        choose_device(name)  # one that is not there is told before the trainings
    require_images(study, trainings, request.cache, listener)
    small = ", and --small is a smaller version" if study.has_small and not study.is_small else ""
    advice = f"; --dry-run estimates their time{small}"
    listener.say(f"study {study.name}: {len(missing)} of {len(trainings)} {kind} to do{advice}")
    train_all(missing, request, is_finished, listener)


def _run_lines(study: Study, cells: list[Cell]) -> list[str]:
    """What the runs of each cell are, for a figure that has the names of runs instead of lines."""
    if study.end.plot in (OVER_KEY, "recall-at-k") or len(cells) == 1:
        return []
    return [f"{cell.trainings[0].run.rpartition('-')[0]}: {cell}" for cell in cells]


def _lines(study: Study, cells: list[Cell]) -> dict[str, str]:
    """Run -> the line that it belongs to in a figure: its cell, without the key along which lines are."""
    line_of_run: dict[str, str] = {}
    for cell in cells:
        name = line_name({key: value for key, value in cell.values.items() if key != study.end.key})
        line = ", ".join(filter(None, (cell.variant, name)))
        line_of_run |= {training.run: line for training in cell.trainings}
    return line_of_run


def estimate_study(request: StudyRequest, listener: Listener) -> Estimate:
    """Time, memory and disk of the trainings that are missing; of each cell one is timed."""
    cells = cells_of(request)
    missing = [training for training in all_of(cells) if not is_finished(request.study, training)]
    return estimate_cells(request, cells, missing, listener)


def estimate_cells(
    request: StudyRequest, cells: Sequence[Cell], missing: Sequence[StudyTraining], listener: Listener
) -> Estimate:
    """Time, memory and disk of the trainings of cells that are missing; of each cell one is timed."""
    total = Estimate(0, 0, 0, free_bytes(request.cache))
    if missing:
        require_images(request.study, all_of(cells), request.cache, listener)
    at_once = max(1, min(request.at_once, len(missing)))
    with as_in_training():
        for cell in cells:
            missing_trainings = [training for training in cell.trainings if training in missing]
            if not missing_trainings:
                continue
            estimate = estimate_training(missing_trainings[0].request(request.devices[0]))
            total = replace(
                total,
                seconds=total.seconds + estimate.seconds * len(missing_trainings) / at_once,
                memory=max(total.memory, estimate.memory),
                disk=total.disk + estimate.disk * len(missing_trainings),
            )
    return replace(total, memory=total.memory * at_once)


def _rows(study: Study, cell: Cell) -> Iterator[Row]:
    layers = cell.trainings[0].layers or ()
    scores_of_trainings = [training.scores() for training in cell.trainings]
    for epoch in study.epochs(cell.trainings[0].loaded()):
        columns: list[list[Score]] = [[] for _ in layers]
        for training, training_scores in zip(cell.trainings, scores_of_trainings, strict=True):
            scores = scores_on(study, training, epoch, training_scores)
            if scores is None:
                raise DataError("its scores are gone", file=training.run, fix="Run the study again")
            for column, score in zip(columns, scores, strict=True):
                column.append(score)
        by_layer = dict(zip(layers, map(over_trainings, columns), strict=True))
        yield Row(cell, epoch, tuple(by_layer.get(layer) for layer in study.layers or ()))
