"""The training loss, and recall of the embedding on test, over the epochs (Zhai & Wu 2019, figure 3)."""

from __future__ import annotations

from layerprobe.plots.over_epochs import draw, scores_csv
from layerprobe.plots.plot import Drawing, Plot, PlotOptions, PlotSource

_HOW = (
    "The loss is the mean over the batches of an epoch, during which the weights change. Values of different losses, "
    "or of one at different temperatures, cannot be compared."
)


def plot(source: PlotSource, _: PlotOptions) -> Drawing:
    """Draw the loss of each run, and below it the metric of its embedding where that is measured."""
    scores = source.losses()
    return Drawing(draw(scores, data=source.data(score.run for score in scores), how=_HOW), scores_csv(scores))


PLOT = Plot(plot, ("metric",), scored=False)
