"""What a registered plot is: how it is drawn, what its table is, and, by its class, which values it draws.

A module of plots ends in `PLOT = ScorePlot(draw, points_csv)` or `PLOT = MatrixPlot(draw, matrices_csv)`, and
`layerprobe.registry.PLOTS` points at it. `layerprobe.workflow.plot.drawn` makes the values of each class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from layerprobe.facts import DataFacts
from layerprobe.scores import Matrix, Score

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class DrawScores(Protocol):
    """Scores of one or more runs -> figure."""

    def __call__(self, scores: Sequence[Score], *, data: Mapping[str, DataFacts]) -> Figure:
        """Draw.

        Args:
            scores: at least one.
            data: run -> what its scores were measured on.
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
class MatrixPlot:
    """A plot of matrices, such as the CKA of every two layers.

    Args:
        draw: matrices -> figure.
        table: matrices -> the numbers drawn, as CSV.
    """

    draw: Callable[[Sequence[Matrix]], Figure]
    table: Callable[[Sequence[Matrix]], str]


Plot = ScorePlot | MatrixPlot
