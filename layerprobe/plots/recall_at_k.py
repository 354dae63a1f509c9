"""Recall@K on test over K."""

from __future__ import annotations

from layerprobe.plots.plot import Drawing, Plot, PlotOptions, PlotSource
from layerprobe.plots.trainings import draw, table


def plot(source: PlotSource, options: PlotOptions) -> Drawing:
    """Draw the embedding, or the requested layers."""
    view = source.recall_at_k(options)
    return Drawing(draw(view, data=source.data(view.runs)), table(view))


PLOT = Plot(plot)
