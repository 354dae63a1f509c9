"""What a registered plot is: how it is drawn, what its table is, and, by its class, which values it draws.

A module of plots ends in `PLOT = ScorePlot(draw, gap_csv)`, `BestPlot(draw, layers_csv)` if it names a best layer,
or `MatrixPlot(draw, matrices_csv)` and so on, and `layerprobe.registry.PLOTS` points at it.
`layerprobe.workflow.plot.plot.draw` gets the values of each class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from layerprobe.values.facts import DataFacts
from layerprobe.values.keys import RankedLayer
from layerprobe.values.scores import Matrix, Score
from layerprobe.values.views import Curve, Histogram, Neighbours, Reductions

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from numpy.typing import NDArray


# What may be asked of a plot beside its runs and files; each plot lists what means something for it.
Option = Literal["layers", "epoch", "query", "where", "queries"]
PICKED: tuple[Option, ...] = ("layers", "epoch")  # of a plot of one epoch

# Run and id of an item -> its pixels, uint8 (H, W, 3).
Image = Callable[[str, str], "NDArray[np.uint8]"]
# Layers that were asked for, as they are searched.
Layers = Collection[RankedLayer]
# Scores of one run and epoch, and a metric -> the layers that are not told apart from the best; None where unknown.
Alike = Callable[[Sequence[Score], str], Collection[RankedLayer] | None]


class DrawScores(Protocol):
    """Scores of one or more runs -> figure."""

    def __call__(
        self, scores: Sequence[Score], *, data: Mapping[str, DataFacts], layers: Layers | None = None
    ) -> Figure:
        """Draw.

        Args:
            scores: at least one.
            data: run -> what its scores were measured on.
            layers: those that were asked for; None where the plot chooses.
        """


class ScoresTable(Protocol):
    """Scores of one or more runs -> the numbers drawn, as CSV."""

    def __call__(self, scores: Sequence[Score], *, layers: Layers | None = None) -> str:
        """Write.

        Args:
            scores: at least one.
            layers: those that were asked for; None where the plot chooses.
        """


class DrawBest(Protocol):
    """Scores of one or more runs -> figure that names the best layer of each."""

    def __call__(self, scores: Sequence[Score], *, data: Mapping[str, DataFacts], alike: Alike) -> Figure:
        """Draw.

        Args:
            scores: at least one, of the layers that were asked for.
            data: run -> what its scores were measured on.
            alike: tells which layers are not told apart from the best of some scores.
        """


class DrawMatrices(Protocol):
    """Matrices of one or more runs -> figure."""

    def __call__(self, matrices: Sequence[Matrix], *, data: Mapping[str, DataFacts]) -> Figure:
        """Draw.

        Args:
            matrices: at least one; those of a run follow one another.
            data: run -> what was measured on.
        """


class DrawHistograms(Protocol):
    """Histograms of one or more runs -> figure."""

    def __call__(self, histograms: Sequence[Histogram], *, data: Mapping[str, DataFacts]) -> Figure:
        """Draw.

        Args:
            histograms: at least one; those of a run follow one another, layers in network order.
            data: run -> what was measured on.
        """


class DrawCurves(Protocol):
    """Curves of one or more runs -> figure."""

    def __call__(self, curves: Sequence[Curve], *, data: Mapping[str, DataFacts]) -> Figure:
        """Draw.

        Args:
            curves: at least one; those of a run follow one another, layers in network order.
            data: run -> what was measured on.
        """


class DrawReductions(Protocol):
    """What reductions do to the layers of one or more runs -> figure."""

    def __call__(self, found: Sequence[Reductions], *, data: Mapping[str, DataFacts]) -> Figure:
        """Draw.

        Args:
            found: at least one, each of another run.
            data: run -> what was measured on.
        """


class DrawNeighbours(Protocol):
    """Neighbours of queries -> figure."""

    def __call__(self, neighbours: Sequence[Neighbours], *, image: Image, data: Mapping[str, DataFacts]) -> Figure:
        """Draw.

        Args:
            neighbours: at least one; those of a query follow one another.
            image: run and id of an item -> its pixels, uint8 (H, W, 3).
            data: run -> what was measured on.
        """


@dataclass(frozen=True)
class ScorePlot:
    """A plot of scores.

    Args:
        draw: scores and what they were measured on -> figure.
        table: scores -> the numbers drawn, as CSV.
        options: what may be asked of it; with `epoch` it is given epoch 0 and that one.
    """

    draw: DrawScores
    table: ScoresTable
    options: tuple[Option, ...] = ("layers",)


@dataclass(frozen=True)
class BestPlot:
    """A plot of scores that names the best layer.

    Args:
        draw: scores, what they were measured on, and which layers are not told apart -> figure.
        table: scores -> the numbers drawn, as CSV.
        options: as for `ScorePlot`.
    """

    draw: DrawBest
    table: Callable[[Sequence[Score]], str]
    options: tuple[Option, ...] = PICKED


@dataclass(frozen=True)
class MatrixPlot:
    """A plot of matrices, such as the CKA of every two layers.

    Args:
        draw: matrices and what their images are -> figure.
        table: matrices -> the numbers drawn, as CSV.
        options: what may be asked of it.
    """

    draw: DrawMatrices
    table: Callable[[Sequence[Matrix]], str]
    options: tuple[Option, ...] = PICKED


@dataclass(frozen=True)
class HistogramPlot:
    """A plot of how often similarities occur.

    Args:
        draw: histograms and what their images are -> figure.
        table: histograms -> the numbers drawn, as CSV.
        options: what may be asked of it.
    """

    draw: DrawHistograms
    table: Callable[[Sequence[Histogram]], str]
    options: tuple[Option, ...] = PICKED


@dataclass(frozen=True)
class CurvePlot:
    """A plot of a curve for each layer.

    Args:
        of: which curves.
        draw: curves and what their images are -> figure.
        table: curves -> the numbers drawn, as CSV.
        options: what may be asked of it.
    """

    of: Literal["spectrum", "gallery-size"]
    draw: DrawCurves
    table: Callable[[Sequence[Curve]], str]
    options: tuple[Option, ...] = PICKED


@dataclass(frozen=True)
class ReductionPlot:
    """A plot of layers as they are and after reductions.

    Args:
        draw: reductions and what they were measured on -> figure.
        table: reductions -> the numbers drawn, as CSV.
        options: what may be asked of it.
    """

    draw: DrawReductions
    table: Callable[[Sequence[Reductions]], str]
    options: tuple[Option, ...] = PICKED


@dataclass(frozen=True)
class NeighbourPlot:
    """A plot of the images nearest to queries.

    Args:
        draw: neighbours and the images in them -> figure.
        table: neighbours -> what is drawn, as CSV.
        options: what may be asked of it.
    """

    draw: DrawNeighbours
    table: Callable[[Sequence[Neighbours]], str]
    options: tuple[Option, ...] = (*PICKED, "query", "where", "queries")


Plot = ReductionPlot | ScorePlot | BestPlot | MatrixPlot | HistogramPlot | CurvePlot | NeighbourPlot
