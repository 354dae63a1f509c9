"""The numbers that a loss learns besides class weights, over the epochs: a temperature, a scale, boundaries."""

from __future__ import annotations

from layerprobe.plots.over_epochs import draw, scores_csv
from layerprobe.plots.plot import Drawing, Plot, PlotOptions, PlotSource

_HOW = "Parameters of the loss, from the checkpoints; epoch 0 is the recipe's value."


def plot(source: PlotSource, _: PlotOptions) -> Drawing:
    """Draw a panel for each parameter, with a line for each run whose loss learns it."""
    scores = source.learnt()
    return Drawing(draw(scores, how=_HOW), scores_csv(scores))


PLOT = Plot(plot, (), scored=False)
