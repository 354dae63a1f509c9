"""What a registered plot is: how it is drawn, what its table is, and, by its class, which values it draws.

A module of plots ends in `PLOT = ScorePlot(draw, points_csv)`, `BestPlot(draw, points_csv)` if it names a best layer,
or `MatrixPlot(draw, matrices_csv)`, and `layerprobe.registry.PLOTS` points at it. `layerprobe.workflow.plot.drawn`
makes the values of each class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from layerprobe.facts import DataFacts
from layerprobe.keys import RankedLayer
from layerprobe.scores import Matrix, Score

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Scores of one run and epoch, and a metric -> the layers that are not told apart from the best; None where unknown.
Alike = Callable[[Sequence[Score], str], Collection[RankedLayer] | None]


class DrawScores(Protocol):
    """Scores of one or more runs -> figure."""

    def __call__(self, scores: Sequence[Score], *, data: Mapping[str, DataFacts]) -> Figure:
        """Draw.

        Args:
            scores: at least one.
            data: run -> what its scores were measured on.
        """


class DrawBest(Protocol):
    """Scores of one or more runs -> figure that names the best layer of each."""

    def __call__(self, scores: Sequence[Score], *, data: Mapping[str, DataFacts], alike: Alike) -> Figure:
        """Draw.

        Args:
            scores: at least one.
            data: run -> what its scores were measured on.
            alike: tells which layers are not told apart from the best of some scores.
        """


@dataclass(frozen=True)
class ScorePlot:
    """A plot of scores.

    Args:
        draw: scores and what they were measured on -> figure.
        table: scores -> the numbers drawn, as CSV.
    """

    draw: DrawScores
    table: Callable[[Sequence[Score]], str]


@dataclass(frozen=True)
class BestPlot:
    """A plot of scores that names the best layer.

    Args:
        draw: scores, what they were measured on, and which layers are not told apart -> figure.
        table: scores -> the numbers drawn, as CSV.
    """

    draw: DrawBest
    table: Callable[[Sequence[Score]], str]


@dataclass(frozen=True)
class MatrixPlot:
    """A plot of matrices, such as the CKA of every two layers.

    Args:
        draw: matrices -> figure.
        table: matrices -> the numbers drawn, as CSV.
    """

    draw: Callable[[Sequence[Matrix]], Figure]
    table: Callable[[Sequence[Matrix]], str]


Plot = ScorePlot | BestPlot | MatrixPlot
