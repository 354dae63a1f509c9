"""plot: the scores of runs -> a figure."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from layerprobe import registry
from layerprobe.errors import DataError
from layerprobe.files import write_text
from layerprobe.metrics.recall import chance_recall
from layerprobe.plots.figure import save
from layerprobe.plots.values import points_csv
from layerprobe.runs import Run
from layerprobe.scores import Score
from layerprobe.store import read_index
from layerprobe.workflow.probe import scores_of


@dataclass(frozen=True)
class PlotRequest:
    """What `layerprobe plot` was asked for.

    Args:
        kind: a registered plot.
        runs: at least one.
        out: the file, by its suffix png, pdf or svg; None puts it below the first run.
        csv: where the drawn numbers go as a table; None for no table.
    """

    kind: str
    runs: Sequence[Run]
    out: Path | None = None
    csv: Path | None = None


def plot(request: PlotRequest) -> Path:
    """Draw and write the plot; its file.

    Raises:
        UnknownNameError: no such plot.
        DataError: a run without scores.
    """
    draw = registry.load("plot", registry.PLOTS, request.kind)
    scores = [score for run in request.runs for score in scores_of(run)]
    if not scores:
        raise DataError("no scores", file=request.runs[0].scores, fix="Run layerprobe probe first")
    figure = draw(scores, chance=_chance(request.runs, scores))
    out = request.out or request.runs[0].plot(request.kind)
    save(figure, out)
    if request.csv:
        write_text(request.csv, points_csv(scores))
    return out


def _chance(runs: Sequence[Run], scores: Sequence[Score]) -> dict[str, float]:
    """R@1 of a random order, by split, from the labels beside the features; left out where runs differ in it."""
    levels: dict[str, set[float]] = {}
    for run in runs:
        epochs = {score.split: score.epoch for score in scores if score.run == run.name}
        for split, epoch in epochs.items():
            queries, gallery = run.features(epoch, split), run.features(epoch, "gallery")
            with contextlib.suppress(DataError):  # the scores are whole without the features they came from
                searched = read_index(gallery)[0] if split == "test" and gallery.exists() else None
                levels.setdefault(split, set()).add(chance_recall(read_index(queries)[0], 1, searched))
    return {split: values.pop() for split, values in levels.items() if len(values) == 1}
