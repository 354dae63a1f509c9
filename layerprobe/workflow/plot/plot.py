"""plot: the scores or stored features of runs -> a figure and the numbers in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from layerprobe import registry
from layerprobe.plots.plot import (
    BestPlot,
    CurvePlot,
    HistogramPlot,
    Image,
    MatrixPlot,
    NeighbourPlot,
    Plot,
    ReductionPlot,
    ScorePlot,
)
from layerprobe.plots.saving import FORMATS, encoded
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.values.facts import DataFacts
from layerprobe.values.keys import RankedLayer
from layerprobe.values.scores import Matrix, Score, shared_notes
from layerprobe.values.seeds import facts_over_seeds, over_seeds, trainings
from layerprobe.values.views import Curve, Histogram, Neighbours, Reductions
from layerprobe.workflow.plot.dims import stored_reductions
from layerprobe.workflow.plot.gallery_sizes import stored_curves
from layerprobe.workflow.plot.matrices import COMPARED, comparable, layers_of, matrices_of
from layerprobe.workflow.plot.options import PlotOptions
from layerprobe.workflow.plot.plot_layers import asked_layers
from layerprobe.workflow.plot.unit_views import Read, ShownLayers, choice_of, histograms_of, spectra_of, stored
from layerprobe.workflow.run.experiments import scores_of
from layerprobe.workflow.run.facts import data_facts
from layerprobe.workflow.run.indistinguishable import alike_of, searches_of
from layerprobe.workflow.run.outputs import require_output, write_output
from layerprobe.workflow.run.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_NOTHING_ELSE = PlotOptions()


@dataclass(frozen=True)
class PlotRequest:
    """The words of `layerprobe plot` as values.

    Args:
        runs: at least one.
        out: the figure's file, .png, .pdf or .svg, or a stream, for a .png; None: in the folder of the first run.
        csv: .csv file or stream for the numbers drawn; None writes none.
    """

    kind: str
    runs: Sequence[Run]
    out: Path | None = None
    csv: Path | None = None
    ask: PlotOptions = field(default_factory=PlotOptions)


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure that no file holds yet, and the numbers in it as CSV."""

    figure: Figure
    csv: str


class PlotSource(Protocol):
    """Where the values of plots come from: the files of runs, or what was measured from Python."""

    @property
    def scores(self) -> Sequence[Score]:
        """At least one."""

    def data(self) -> Mapping[str, DataFacts]:
        """Run -> what its scores were measured on."""

    def alike(self, scores: Sequence[Score], metric: str) -> Collection[RankedLayer] | None:
        """The layers that are not told apart from the best of some scores; None where that is unknown."""

    def matrices(self, ask: PlotOptions) -> Sequence[Matrix]:
        """How alike layers are."""

    def gallery_sizes(self, ask: PlotOptions) -> Sequence[Curve]:
        """Recall by how many items are searched; trainings of one experiment as one."""

    def reductions(self, ask: PlotOptions) -> Sequence[Reductions]:
        """Recall at equal dimensions; trainings of one experiment as one."""

    def neighbours(self, ask: PlotOptions) -> tuple[Sequence[Neighbours], Image]:
        """The items nearest to some queries, and what gives the images."""

    def histograms(self, ask: PlotOptions) -> Sequence[Histogram]:
        """How alike images of the same and of different classes are, by layer."""

    def spectra(self, ask: PlotOptions) -> Sequence[Curve]:
        """How the variance of features is spread over dimensions, by layer."""


def plot(request: PlotRequest) -> Path:
    """Draw a plot, write its files and return the figure's."""
    out = request.out or request.runs[0].plot_file(request.kind)
    require_output(out, *FORMATS)
    if request.csv:
        require_output(request.csv, "csv")
    found = drawn(request.kind, request.runs, request.ask)
    write_output(out, encoded(found.figure, out.suffix.lower().removeprefix(".") or "png"))
    if request.csv:
        write_output(request.csv, found.csv.encode())
    return out


def drawn(kind: str, runs: Sequence[Run], ask: PlotOptions = _NOTHING_ELSE) -> Drawing:
    """Draw a plot of one or more runs; nothing is written."""
    part: Plot = registry.load("plot", registry.PLOTS, kind)
    require_meant(kind, part, ask)
    scores = scores_of(runs)
    if not scores:
        raise DataError("no scores", file=runs[0].scores_file, fix="Run layerprobe probe first")
    return draw(part, StoredRuns(runs, scores), ask)


def require_meant(kind: str, part: Plot, ask: PlotOptions) -> None:
    """Check that a plot can do what is asked of it."""
    flags = [f"--{name}" for name, value in vars(ask).items() if value is not None and name not in part.options]
    if flags:
        known = ", ".join(f"--{name}" for name in part.options) or "none"
        raise RecipeError(f"plot {kind} takes no {flags[0]}", fix=f"Beside runs and files it takes {known}")


def draw(part: Plot, material: PlotSource, ask: PlotOptions) -> Drawing:
    """Draw a plot; its class says which values it draws."""
    match part:
        case ScorePlot():
            scores = _of_epoch(over_seeds(material.scores), ask.epoch)
            layers = asked_layers(ask.layers, [score.ranked_layer for score in scores])
            return Drawing(part.draw(scores, data=_data(material), layers=layers), part.table(scores, layers=layers))
        case BestPlot():
            scores = _of_layers(_of_epoch(over_seeds(material.scores), ask.epoch), ask.layers)
            return Drawing(part.draw(scores, data=_data(material), alike=material.alike), part.table(scores))
        case MatrixPlot():
            found = material.matrices(ask)
            return Drawing(part.draw(found, data=material.data()), part.table(found))
        case HistogramPlot():
            histograms = material.histograms(ask)
            return Drawing(part.draw(histograms, data=material.data()), part.table(histograms))
        case CurvePlot():
            spectra = part.of == "spectrum"
            curves = material.spectra(ask) if spectra else material.gallery_sizes(ask)
            data = material.data() if spectra else _data(material)
            return Drawing(part.draw(curves, data=data), part.table(curves))
        case ReductionPlot():
            reductions = material.reductions(ask)
            return Drawing(part.draw(reductions, data=_data(material)), part.table(reductions))
        case NeighbourPlot():
            nearest, image = material.neighbours(ask)
            return Drawing(part.draw(nearest, image=image, data=material.data()), part.table(nearest))


def _data(material: PlotSource) -> dict[str, DataFacts]:
    """What the scores of `over_seeds` were measured on."""
    return facts_over_seeds(material.data(), trainings(material.scores))


def _of_epoch(scores: Sequence[Score], epoch: int | None) -> list[Score]:
    """The scores of an epoch and of epoch 0, from which it started; all of them where none is asked for."""
    if epoch is None:
        return list(scores)
    known = sorted({score.epoch for score in scores})
    if epoch not in known:
        raise RecipeError(f"no scores of epoch {epoch}", fix=f"There are those of {', '.join(map(str, known))}")
    return [score for score in scores if score.epoch in (0, epoch)]


def _until(scores: Sequence[Score], epoch: int | None) -> list[Score]:
    """The scores up to an epoch; all of them where none is asked for."""
    if epoch is None:
        return list(scores)
    _of_epoch(scores, epoch)
    return [score for score in scores if score.epoch <= epoch]


def _of_layers(scores: Sequence[Score], layers: tuple[str, ...] | None) -> list[Score]:
    """The scores of the layers asked for."""
    asked = asked_layers(layers, [score.ranked_layer for score in scores])
    return [score for score in scores if asked is None or score.ranked_layer in asked]


@dataclass(frozen=True, eq=False)
class StoredRuns:
    """Material from the files of runs."""

    runs: Sequence[Run]
    scores: Sequence[Score]

    def data(self) -> Mapping[str, DataFacts]:
        """Run -> what its scores were measured on."""
        return {run.name: data_facts(run, self.scores) for run in self.runs}

    def alike(self, scores: Sequence[Score], metric: str) -> Collection[RankedLayer] | None:
        """The layers that are not told apart from the best of some scores; None where that is unknown."""
        named = {run.name: run for run in self.runs}
        run = named.get(scores[0].run)  # the folder of a run may have been renamed
        return None if run is None else alike_of(scores, metric, searches_of(run))

    def matrices(self, ask: PlotOptions) -> Sequence[Matrix]:
        """CKA of every two layers of each run, of each layer with its earlier epochs, and of every two runs' layers."""
        found = []
        for run in self.runs:
            scores = _of_layers(_until(comparable(run, self.scores), ask.epoch), ask.layers)
            tested = [s.notes for s in self.scores if (s.run, s.split) == (run.name, COMPARED)]
            found.append(layers_of(run, scores, shared_notes(tested) if tested else ()))
        return matrices_of(found)

    def gallery_sizes(self, ask: PlotOptions) -> Sequence[Curve]:
        """Recall@1 of each run by how many items are searched; trainings of one experiment as one."""
        return stored_curves(self.runs, _until(self.scores, ask.epoch), ask.layers)

    def reductions(self, ask: PlotOptions) -> Sequence[Reductions]:
        """The layers of each run at equal dimensions; trainings of one experiment as one."""
        return stored_reductions(self.runs, self.scores, ask.layers, ask.epoch)

    def neighbours(self, ask: PlotOptions) -> tuple[Sequence[Neighbours], Image]:
        """The items nearest to some test queries, and what gives the images."""
        from layerprobe.workflow.plot.panels import panels_of  # it imports torch, which other plots do without

        return panels_of(self.runs, self.scores, ask)

    def histograms(self, ask: PlotOptions) -> Sequence[Histogram]:
        """How alike images of the same and of different classes are, by layer."""
        return [each for part in self._chosen(ask) for each in histograms_of(*part)]

    def spectra(self, ask: PlotOptions) -> Sequence[Curve]:
        """How the variance of features is spread over dimensions, by layer."""
        return [each for part in self._chosen(ask) for each in spectra_of(*part)]

    def _chosen(self, ask: PlotOptions) -> list[tuple[list[Score], Read, ShownLayers]]:
        """The scores of each run, how its features are read, and which of them are shown."""
        own = [(run, [score for score in self.scores if score.run == run.name]) for run in self.runs]
        parts = [stored(run, scores, ask.epoch) for run, scores in own if scores]
        choice = choice_of([scores for scores, _ in parts], ask.layers, ask.epoch)
        return [(*part, choice) for part in parts]
