"""plot: the scores of runs, or the similarities of their stored features -> a figure."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from layerprobe import registry
from layerprobe.cka import epoch_cka, layer_cka
from layerprobe.errors import DataError
from layerprobe.files import write_text
from layerprobe.keys import LayerKey
from layerprobe.metrics.recall import chance_recall
from layerprobe.plots.cka import similarities_csv
from layerprobe.plots.figure import save
from layerprobe.plots.values import points_csv
from layerprobe.runs import Run
from layerprobe.scores import Matrix, Score, shared_notes
from layerprobe.store import read_features, read_index

_COMPARED = "test"  # the split whose features are


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

    A kind says by its first parameter what it draws: `scores`, or `similarities`, which are made here.

    Raises:
        UnknownNameError: no such plot.
        DataError: a run without scores, or without the features that are to be compared.
    """
    draw = registry.load("plot", registry.PLOTS, request.kind)
    scores = [score for run in request.runs for score in run.scores()]
    if not scores:
        raise DataError("no scores", file=request.runs[0].scores_file, fix="Run layerprobe probe first")
    if "similarities" in inspect.signature(draw).parameters:
        similarities = [matrix for run in request.runs for matrix in _similarities(run, scores)]
        figure, table = draw(similarities), similarities_csv(similarities)
    else:
        figure, table = draw(scores, chance=_chance(request.runs, scores)), points_csv(scores)
    out = request.out or request.runs[0].plot_file(request.kind)
    save(figure, out)
    if request.csv:
        write_text(request.csv, table)
    return out


def _similarities(run: Run, scores: Sequence[Score]) -> list[Matrix]:
    """Layers with each other at the last epoch probed on the test split, and with themselves at every epoch stored.

    What every test score of the run says, such as that images are missing, they say too.

    Raises:
        DataError: no test scores, or the features of the last epoch are gone, damaged or of other images.
    """
    layers: dict[int, dict[LayerKey, None]] = {}  # in the order of the scores, as other plots have them
    for score in scores:
        if (score.run, score.split, score.reduction) == (run.name, _COMPARED, "none") and "+" not in score.layer:
            layers.setdefault(score.epoch, {})[score.layer_key] = None
    if not layers:
        raise DataError(
            f"no layer was probed on the {_COMPARED} split", file=run.folder, fix="Run layerprobe probe --splits test"
        )
    last = max(layers)
    paths = {epoch: run.feature_file(epoch, _COMPARED) for epoch in sorted(layers)}
    _, images = read_index(paths[last])
    stored = {epoch: list(layers[epoch]) for epoch, path in paths.items() if path.exists()}
    for epoch in stored:
        if read_index(paths[epoch])[1] != images:
            raise DataError(f"not of the images of epoch {last}", file=paths[epoch], fix="Run layerprobe probe again")
    facts = {"run": run.name, "split": _COMPARED}
    notes = shared_notes(score.notes for score in scores if (score.run, score.split) == (run.name, _COMPARED))
    return [
        replace(matrix, notes=(*notes, *matrix.notes))
        for matrix in (
            layer_cka(stored[last], lambda layer: read_features(paths[last], layer), epoch=last, **facts),
            epoch_cka(stored, lambda epoch, layer: read_features(paths[epoch], layer), **facts),
        )
    ]


def _chance(runs: Sequence[Run], scores: Sequence[Score]) -> dict[str, float]:
    """R@1 of a random order, by split, from the labels beside the features; left out where runs differ in it."""
    levels: dict[str, set[float]] = {}
    for run in runs:
        epochs = {score.split: score.epoch for score in scores if score.run == run.name}
        for split, epoch in epochs.items():
            queries, gallery = run.feature_file(epoch, split), run.feature_file(epoch, "gallery")
            with contextlib.suppress(DataError):  # the scores are whole without the features they came from
                searched = read_index(gallery)[0] if split == "test" and gallery.exists() else None
                levels.setdefault(split, set()).add(chance_recall(read_index(queries)[0], 1, searched))
    return {split: values.pop() for split, values in levels.items() if len(values) == 1}
