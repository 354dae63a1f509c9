"""study: a grid of recipes -> its runs -> a table or a figure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from layerprobe import registry
from layerprobe.plots.plot import PlotOptions
from layerprobe.statistics.seeds import further_interval, mean_interval
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.system.files import free_bytes
from layerprobe.system.progress import Listener
from layerprobe.values.costs import Estimate
from layerprobe.values.scores import Score
from layerprobe.workflow.plot.plot import PlotRequest, plot, require_options
from layerprobe.workflow.plot.recipe_lines import line_name
from layerprobe.workflow.run.outputs import require_output
from layerprobe.workflow.run.runs import find_run
from layerprobe.workflow.study.plan import (
    Cell,
    StudyTraining,
    all_of,
    is_finished,
    keep_scores,
    plan,
    require_images,
    require_weights,
    scores_on_test,
)
from layerprobe.workflow.study.request import StudyRequest as StudyRequest
from layerprobe.workflow.study.study_file import OVER_KEY, Study
from layerprobe.workflow.study.table import Over, Row, StudyTable
from layerprobe.workflow.study.training import as_in_training, train_all
from layerprobe.workflow.train.ensemble import estimate_training_of


def cells_of(request: StudyRequest) -> list[Cell]:
    """The cells of a study, with the scores that are kept."""
    study, scores = request.study, request.scores
    if scores is not None and study.end.plot is not None:
        raise RecipeError("a plot needs the runs, not their scores", file=study.name, fix="Leave out --scores")
    return plan(study, request.cache, request.device, request.data, scores=scores)


def run_study(request: StudyRequest, listener: Listener) -> StudyTable | Path:
    """Train and measure what is missing, and return the table, or the file of the figure."""
    study = request.study
    options = PlotOptions(layers=study.layers, metric=study.end.metric, key=study.end.key)
    if study.end.plot is not None:  # an option that the plot has not is told before the trainings
        require_options(study.end.plot, registry.load("plot", registry.PLOTS, study.end.plot), options)
    if request.scores is not None:
        require_output(request.scores, "csv")
    cells = cells_of(request)
    try:
        if missing := _missing(study, cells):
            require_weights(missing)
            require_images(study, all_of(cells), request.cache, listener)
            listener.say(f"study {study.name}: {len(missing)} of {len(all_of(cells))} trainings to do")
            train_all(missing, request.jobs, partial(is_finished, study), study.name, listener)
    finally:  # also those of a study that was stopped
        if request.scores is not None:
            keep_scores(study, cells, request.scores)
    if study.end.plot is None:
        return StudyTable(study, tuple(row for cell in cells for row in _rows(study, cell)))
    for cell in cells:
        listener.say(f"{', '.join(training.run for training in cell.trainings)}: {cell}")
    runs = [find_run(request.cache, training.run) for cell in cells for training in cell.trainings]
    file, lines = runs[0].plot_file(study.name), _lines(study, cells)
    note = "\n".join(filter(None, (*_run_lines(study, cells), study.caveat)))
    return plot(PlotRequest(study.end.plot, runs, file, options=options, lines=lines, note=note))


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
    study, total = request.study, Estimate(0, 0, 0, free_bytes(request.cache))
    cells = cells_of(request)
    missing = _missing(study, cells)
    if missing:
        require_images(study, all_of(cells), request.cache, listener)
    at_once = max(1, min(request.jobs, len(missing)))
    with as_in_training():
        for cell in cells:
            missing_trainings = [training for training in cell.trainings if training in missing]
            if not missing_trainings:
                continue
            estimate = estimate_training_of(missing_trainings[0].request())
            total = replace(
                total,
                seconds=total.seconds + estimate.seconds * len(missing_trainings) / at_once,
                memory=max(total.memory, estimate.memory),
                disk=total.disk + estimate.disk * len(missing_trainings),
            )
    return replace(total, memory=total.memory * at_once)


def _missing(study: Study, cells: list[Cell]) -> list[StudyTraining]:
    return [training for training in all_of(cells) if not is_finished(study, training)]


def _rows(study: Study, cell: Cell) -> Iterator[Row]:
    layers = cell.trainings[0].layers or ()
    scores_of_trainings = [training.scores() for training in cell.trainings]
    for epoch in study.epochs(cell.trainings[0].loaded()):
        columns: list[list[Score]] = [[] for _ in layers]
        for training, training_scores in zip(cell.trainings, scores_of_trainings, strict=True):
            scores = scores_on_test(study, training, epoch, training_scores)
            if scores is None:
                raise DataError("its scores are gone", file=training.run, fix="Run the study again")
            for column, score in zip(columns, scores, strict=True):
                column.append(score)
        by_layer = dict(zip(layers, map(_over, columns), strict=True))
        yield Row(cell, epoch, tuple(by_layer.get(layer) for layer in study.layers or ()))


def _over(scores: list[Score]) -> Over:
    values = [score.value for score in scores]
    notes = tuple(dict.fromkeys(note for score in scores if score.value is None for note in score.notes))
    valid = np.array([value for value in values if value is not None])
    if len(valid) < len(values):
        return Over(None, None, tuple(values), notes)
    return Over(float(valid.mean()), mean_interval(valid), tuple(values), further=further_interval(valid))
