"""plot: the scores or stored features of runs -> a figure and the numbers in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from layerprobe import registry
from layerprobe.cka import epoch_cka, layer_cka
from layerprobe.errors import DataError
from layerprobe.facts import DataFacts
from layerprobe.files import write_text
from layerprobe.keys import LayerKey, RankedLayer
from layerprobe.plots.figure import save
from layerprobe.plots.plot import Alike, BestPlot, MatrixPlot, Plot, ScorePlot
from layerprobe.runs import Run
from layerprobe.scores import Matrix, Score, shared_notes
from layerprobe.store import read_features, read_index
from layerprobe.workflow.facts import data_facts
from layerprobe.workflow.told_apart import alike_of, searches_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPARED = "test"  # the split whose features CKA compares


@dataclass(frozen=True)
class PlotRequest:
    """The words of `layerprobe plot` as values.

    Args:
        kind: a registered plot.
        runs: at least one.
        out: the figure's file, .png, .pdf or .svg; None puts it into the folder of the first run.
        csv: file for the numbers drawn; None writes none.
    """

    kind: str
    runs: Sequence[Run]
    out: Path | None = None
    csv: Path | None = None


@dataclass(frozen=True, eq=False)
class Drawn:
    """A figure that no file holds yet, and the numbers in it as CSV."""

    figure: Figure
    csv: str


def plot(request: PlotRequest) -> Path:
    """Draw a plot, write its files and return the figure's.

    Raises:
        LayerprobeError: as for `drawn`; a file name with another suffix.
    """
    found = drawn(request.kind, request.runs)
    out = request.out or request.runs[0].plot_file(request.kind)
    save(found.figure, out)
    if request.csv:
        write_text(request.csv, found.csv)
    return out


def drawn(kind: str, runs: Sequence[Run]) -> Drawn:
    """Draw a plot of one or more runs; nothing is written.

    The class of a plot says which values it draws; they are made here.

    Raises:
        UnknownNameError: no such plot.
        DataError: a run without scores, or without the features to compare.
    """
    part: Plot = registry.load("plot", registry.PLOTS, kind)
    scores = [score for run in runs for score in run.scores()]
    if not scores:
        raise DataError("no scores", file=runs[0].scores_file, fix="Run layerprobe probe first")
    return draw(
        part,
        scores,
        data=lambda: {run.name: data_facts(run, scores) for run in runs},
        alike=_alike(runs),
        matrices=lambda: [matrix for run in runs for matrix in _matrices(run, scores)],
    )


def draw(
    part: Plot,
    scores: Sequence[Score],
    *,
    data: Callable[[], Mapping[str, DataFacts]],
    alike: Alike,
    matrices: Callable[[], Sequence[Matrix]],
) -> Drawn:
    """Draw a plot.

    Args:
        part: the plot.
        scores: at least one.
        data: gives what the scores of each run were measured on, if the plot draws scores.
        alike: tells which layers are not told apart from the best of some scores, if it names that.
        matrices: gives the matrices, if it draws these.
    """
    match part:
        case ScorePlot():
            return Drawn(part.draw(scores, data=data()), part.table(scores))
        case BestPlot():
            return Drawn(part.draw(scores, data=data(), alike=alike), part.table(scores))
        case MatrixPlot():
            found = matrices()
            return Drawn(part.draw(found), part.table(found))


def _alike(runs: Sequence[Run]) -> Alike:
    named = {run.name: run for run in runs}

    def alike(scores: Sequence[Score], metric: str) -> Collection[RankedLayer] | None:
        run = named.get(scores[0].run)  # the folder of a run may have been renamed
        return None if run is None else alike_of(scores, metric, searches_of(run))

    return alike


def _matrices(run: Run, scores: Sequence[Score]) -> list[Matrix]:
    """CKA of every two layers at the last epoch probed on the test split, and of each layer with its earlier ones.

    A note that every test score of the run has, such as that images are missing, the matrices have too.

    Raises:
        DataError: no test scores; or features of the last epoch that are absent or damaged, or of other images than
            those of an earlier epoch.
    """
    layers: dict[int, dict[LayerKey, None]] = {}  # in the order of the scores, as other plots have them
    for score in scores:
        if (score.run, score.split, score.reduction) == (run.name, COMPARED, "none") and "+" not in score.layer:
            layers.setdefault(score.epoch, {})[score.layer_key] = None
    if not layers:
        raise DataError(
            f"no layer was probed on the {COMPARED} split", file=run.folder, fix="Run layerprobe probe --splits test"
        )
    last = max(layers)
    paths = {epoch: run.feature_file(epoch, COMPARED) for epoch in sorted(layers)}
    _, images = read_index(paths[last])
    stored = {epoch: list(layers[epoch]) for epoch, path in paths.items() if path.exists()}
    for epoch in stored:
        if read_index(paths[epoch])[1] != images:
            raise DataError(
                f"other images than those of epoch {last}", file=paths[epoch], fix="Run layerprobe probe again"
            )
    facts = {"run": run.name, "split": COMPARED}
    notes = shared_notes(score.notes for score in scores if (score.run, score.split) == (run.name, COMPARED))
    matrices = [layer_cka(stored[last], lambda layer: read_features(paths[last], layer), epoch=last, **facts)]
    if len(stored) > 1:  # else each layer would only be compared with itself
        matrices.append(epoch_cka(stored, lambda epoch, layer: read_features(paths[epoch], layer), **facts))
    return [replace(matrix, notes=(*notes, *matrix.notes)) for matrix in matrices]
