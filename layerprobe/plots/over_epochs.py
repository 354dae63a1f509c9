"""Numbers of whole runs over the epochs: the training loss, and the numbers that a loss learns besides class weights.

The loss and, below it, recall of the embedding on test are as in Zhai & Wu 2019, figure 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from layerprobe.plots import figure as fig
from layerprobe.plots.drawn_scores import merge_lines
from layerprobe.plots.plot import Drawing, Plot, PlotOptions, PlotSource, csv_text
from layerprobe.values.facts import DataFacts, run_lines
from layerprobe.values.intervals import ShownKind
from layerprobe.values.scores import Score, note_text, shared_notes

_WIDTH, _HEIGHT = 2.6, 2.0  # inches
_LABEL = 0.165  # inches of height that a label needs
_LOG = 20.0  # an axis of positive numbers with a larger ratio is logarithmic
_MARGIN = 0.06  # of the range, at both ends of an axis
_MARKS = 8  # markers on a line, about
_BAND = 0.15  # how opaque a band is
_LOSS_NOTE = (
    "The loss is the mean over the batches of an epoch, during which the weights change. Values of different losses, "
    "or of one at different temperatures, cannot be compared."
)
_LEARNT_NOTE = "Parameters of the loss, from the checkpoints; epoch 0 is the recipe's value."

Lines = dict[str, list[Score]]  # run -> its scores by epoch


def draw(scores: Sequence[Score], *, data: Mapping[str, DataFacts] | None = None, how: str = "") -> Figure:
    """Draw the scores of one layer of each run; each line is labelled with its last value.

    Scores on test are shown in percent; others are numbers, with a logarithmic axis where the largest is more than 20
    times the smallest. Bands are the ranges over trainings; other intervals are not drawn.

    Args:
        scores: of one split for each metric; at least one with a value.
        how: what the numbers are, for the caption.
    """
    metrics: dict[str, Lines] = {}
    for score in sorted(scores, key=lambda score: score.epoch):
        metrics.setdefault(score.metric, {}).setdefault(score.run, []).append(score)
    order = dict.fromkeys(score.metric for score in scores)
    styles = fig.styles(list(dict.fromkeys(score.run for score in scores)))
    labels = {metric: _labels(lines, styles) for metric, lines in metrics.items()}
    room = fig.width_of([label.text for metric_labels in labels.values() for label in metric_labels]) + 0.25
    height = max(_HEIGHT, _LABEL * max(map(len, labels.values())))
    remarks: dict[str, list[tuple[str, ...]]] = {}
    for score in scores:
        remarks.setdefault(score.run, []).append(score.remarks)
    notes = [how, *run_lines(data or {}, ("test",))]
    notes += merge_lines({run: shared_notes(run_remarks) for run, run_remarks in remarks.items()})
    notes += ShownKind.of(score.kind for score in scores if _ends(score)).lines("Bands")
    layout = fig.PanelLayout(_WIDTH, height, room, below=0.6, above=0.45, columns=1, notes=list(filter(None, notes)))
    titles = []
    for metric in order:
        of_test = all(score.split == "test" for run_scores in metrics[metric].values() for score in run_scores)
        titles.append(f"{metric} of the embedding on test" if of_test else metric)
    figure, panels = fig.make_panels(titles, layout)
    epochs = [score.epoch for score in scores]
    for axes, metric in zip(panels, order, strict=True):
        _set_axes(axes, (min(epochs), max(epochs)), metrics[metric])
        _draw_lines(axes, metrics[metric], styles)
        fig.label_right(axes, labels[metric])
    return figure


def _factor(score: Score) -> float:
    return 100.0 if score.split == "test" else 1.0


def _points(scores: Sequence[Score]) -> list[tuple[float, float]]:
    return [(score.epoch, _factor(score) * score.value) for score in scores if score.value is not None]


def _ends(score: Score) -> tuple[float, float] | None:
    if score.interval is None or not score.kind.trainings:
        return None
    return _factor(score) * score.interval.low, _factor(score) * score.interval.high


def _labels(lines: Lines, styles: Mapping[str, fig.Style]) -> list[fig.Label]:
    labels = []
    for run, scores in lines.items():
        if points := _points(scores):
            value = f"{points[-1][1]:.1f}" if scores[0].split == "test" else f"{points[-1][1]:.3g}"
            labels.append(fig.Label(f"{run} {value}", *points[-1], styles[run].text))
    return labels


def _set_axes(axes: Axes, epochs: tuple[int, int], lines: Lines) -> None:
    scores = [score for run_scores in lines.values() for score in run_scores]
    values = [value for run_scores in lines.values() for _, value in _points(run_scores)]
    values += [end for score in scores for end in _ends(score) or ()]
    first_epoch, last_epoch = epochs
    margin = 0.02 * (last_epoch - first_epoch) or 0.5
    axes.set_xlim(first_epoch - margin, last_epoch + margin)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch", fontsize=fig.FONT + 1)
    if scores[0].split == "test":
        axes.set_ylim(fig.limits(values or [0.0, 100.0]))
        fig.show_percent(axes, "y")
        return
    low, high = min(values), max(values)
    if low > 0 and high > _LOG * low:
        reach = (high / low) ** _MARGIN
        axes.set_yscale("log")
        axes.set_ylim(low / reach, high * reach)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        return
    # Not the default locator, whose ticks when a figure is saved may be wider than those that it is cropped by.
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    reach = _MARGIN * (high - low) or _MARGIN * abs(high) or 1.0
    axes.set_ylim(low - reach, high + reach)


def _draw_lines(axes: Axes, lines: Lines, styles: Mapping[str, fig.Style]) -> None:
    for i, (run, scores) in enumerate(lines.items()):
        style, points = styles[run], _points(scores)
        if not points:
            continue
        (line,) = axes.plot(*zip(*points, strict=True), color=style.colour, linewidth=1.5, label=run)
        step = max(1, len(points) // _MARKS)
        line.set(marker=style.marker, markersize=style.size * 0.55, markevery=(i % step, step), clip_on=False)
        if bands := [(score.epoch, *ends) for score in scores if (ends := _ends(score))]:
            epochs, low, high = zip(*bands, strict=True)
            band = axes.fill_between(epochs, low, high, color=style.colour, alpha=_BAND)
            band.set(linewidth=0, zorder=0.5, label=f"_range of {run}")


def scores_csv(scores: Sequence[Score]) -> str:
    """A line for each number, with the lowest and highest of several trainings."""
    rows: list[list[object]] = [["run", "epoch", "split", "layer", "metric", "value", "low", "high", "note"]]
    for score in scores:
        ends = (score.low, score.high) if score.kind.trainings else (None, None)
        name = str(score.ranked)
        rows.append(
            [score.run, score.epoch, score.split, name, score.metric, score.value, *ends, note_text(score.all_notes)]
        )
    return csv_text(rows)


def plot_loss(source: PlotSource, _: PlotOptions) -> Drawing:
    """Draw the loss of each run, and below it the metric of its embedding where that is measured."""
    scores = source.losses()
    figure = draw(scores, data=source.data(score.run for score in scores), how=_LOSS_NOTE)
    return Drawing(figure, scores_csv(scores))


def plot_learnt(source: PlotSource, _: PlotOptions) -> Drawing:
    """Draw a panel for each parameter, such as a temperature, with a line for each run whose loss learns it."""
    scores = source.learnt()
    return Drawing(draw(scores, how=_LEARNT_NOTE), scores_csv(scores))


LOSS_PLOT = Plot(plot_loss, ("metric",), scored=False)
LEARNT_PLOT = Plot(plot_learnt, (), scored=False)
