"""A registered plot, and the values that it may draw.

A module of `plots` ends in its `Plot(plot)`, where `plot` takes its values from the source and draws them;
`layerprobe.registry.PLOTS` points at it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from layerprobe.plots.options import Option
from layerprobe.plots.options import PlotOptions as PlotOptions
from layerprobe.system.errors import DataError
from layerprobe.values.facts import DataFacts
from layerprobe.values.layers import RankedLayer
from layerprobe.values.scores import Matrix, Score
from layerprobe.values.views import (
    Curve,
    ErrorRates,
    GradientSizes,
    Histogram,
    OverTrainings,
    PlaneFeatures,
    PostProcessings,
    Projection,
    QueryNeighbours,
    Selected,
)

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

LOSS = "loss"  # the training loss, where a metric is asked for
# Run and id of an item -> its pixels, uint8 (H, W, 3).
ReadImage = Callable[[str, str], "NDArray[np.uint8]"]
# Scores of one run and epoch, and a metric -> the layers indistinguishable from the best; None where unknown.
Indistinguishable = Callable[[Sequence[Score], str], Collection[RankedLayer] | None]


class NotProbedError(DataError):
    """There is nothing to draw of some runs; `layerprobe probe RUN` with these flags measures it.

    Args:
        run: its name, or that of the mean of some; None: all that are drawn.
    """

    def __init__(self, message: str, *flags: str, run: str | None = None) -> None:
        super().__init__(message, fix=f"Run {' '.join(('layerprobe probe', *flags))}")
        self.flags, self.run = flags, run


class PlotSource(Protocol):
    """The values of some runs, from their files or measured in Python.

    In scores, losses, learnt parameters, recalls by gallery size and post-processing, trainings of one experiment are
    one
    run: their mean.
    """

    @property
    def scores(self) -> Sequence[Score]:
        """At least one, for a plot that is `scored`."""

    def data(self, runs: Iterable[str]) -> Mapping[str, DataFacts]:
        """Run, or mean of trainings, as the values name it -> its data."""

    def embeddings(self) -> Mapping[str, RankedLayer]:
        """Run, or mean of trainings -> its embedding layer, where that is known and measured."""

    def selected(self) -> Mapping[str, Selected]:
        """Run, or mean of trainings -> the selected candidate of the choice that it keeps, where there is one."""

    def indistinguishable(self, scores: Sequence[Score], metric: str) -> Collection[RankedLayer] | None:
        """The layers indistinguishable from the best of one run and epoch; None where unknown."""

    def matrices(self, options: PlotOptions) -> Sequence[Matrix]:
        """CKA of layers, those of a run one after another."""

    def gallery_sizes(self, options: PlotOptions) -> Sequence[Curve]:
        """Recall@1 by number of items searched, those of a run one after another."""

    def post_processings(self, options: PlotOptions) -> Sequence[PostProcessings]:
        """Recall@1 at equal dimensions."""

    def best_of_sizes(self, options: PlotOptions) -> Sequence[PostProcessings]:
        """Recall@1 of the best layers and post-processing in at most so many bytes, by type of number."""

    def over_key(self, options: PlotOptions) -> OverTrainings:
        """A metric, or the training loss, over a key of the recipe."""

    def recall_at_k(self, options: PlotOptions) -> OverTrainings:
        """Recall@K over K."""

    def neighbours(self, options: PlotOptions) -> tuple[Sequence[QueryNeighbours], ReadImage]:
        """The items nearest to some queries, those of a query one after another."""

    def histograms(self, options: PlotOptions) -> Sequence[Histogram]:
        """Similarities of images of the same and of different classes, by layer."""

    def spectra(self, options: PlotOptions) -> Sequence[Curve]:
        """Variance of the features by dimension, by layer."""

    def losses(self) -> Sequence[Score]:
        """The training loss by epoch, and the metric of the scores of the embedding on test where it was measured."""

    def learnt(self) -> Sequence[Score]:
        """The parameters of the loss other than class weights, by epoch."""

    def plane_features(self, options: PlotOptions) -> Sequence[PlaneFeatures]:
        """The features of layers of two dimensions, those of a layer one after another."""

    def projections(self, options: PlotOptions) -> Sequence[Projection]:
        """The features of layers in two dimensions, of the same images; those of a run one after another."""

    def gradients(self, options: PlotOptions) -> Sequence[GradientSizes]:
        """Gradients with respect to the feature, by alpha and by norm, those of a run one after another."""

    def error_rates(self, options: PlotOptions) -> Sequence[ErrorRates]:
        """False accept and false reject rates, by layer."""


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows as CSV; a text that a spreadsheet would take for a formula begins with a `'`."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@")) else cell for cell in row]
        for row in rows
    )
    return text.getvalue()


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure, and the numbers in it as CSV."""

    figure: Figure
    csv: str


@dataclass(frozen=True)
class Plot:
    """A plot.

    Args:
        draw: source and options -> figure and CSV.
        scored: whether it needs scores.
        any_metric: whether it draws metrics that are no shares, and the loss.
    """

    draw: Callable[[PlotSource, PlotOptions], Drawing]
    options: tuple[Option, ...] = ("layers", "epoch")
    scored: bool = True
    any_metric: bool = False
