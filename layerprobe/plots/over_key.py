"""A metric on test, or the training loss, over a key of the recipe."""

from __future__ import annotations

from layerprobe.plots.plot import Drawing, Plot, PlotOptions, PlotSource
from layerprobe.plots.trainings import draw, table


def plot(source: PlotSource, options: PlotOptions) -> Drawing:
    """Draw the embedding, or the requested layers."""
    view = source.over_key(options)
    return Drawing(draw(view, data=source.data(view.runs)), table(view))


PLOT = Plot(plot, ("layers", "epoch", "metric", "key"), any_metric=True)
