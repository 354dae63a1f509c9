"""Gap between training and test recall: a row for each layer, a column for each epoch."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from layerprobe.plots import figure as fig
from layerprobe.plots.drawn_scores import (
    Layer,
    Series,
    common_lines,
    comparison_text,
    group_by_run,
    keep_one_kind,
    match_layers,
    metric_of,
    missing_lines,
    omission_notes,
    percent,
    scores_by_split,
    scores_in,
    scores_of_metric,
    select_raw,
)
from layerprobe.plots.plot import Drawing, NotProbedError, Plot, PlotOptions, PlotSource, csv_text
from layerprobe.system.wording import visible
from layerprobe.values.facts import EPOCH_0, DataFacts, run_lines, split_text
from layerprobe.values.layers import RankedLayer
from layerprobe.values.scores import GAP_SPLITS, SEEN, UNSEEN, Score, note_text

_WIDTHS = (2.4, 3.2)  # inches of a panel's cells, least and most
_COLUMN = 0.5  # inches of a column, at most, if the panel is not narrower then
_ROW = 0.19  # inches of a row
_HEIGHTS = (1.6, 9.0)
_NUMBERS = 8.0  # points
_LEAST = 1.0  # percentage points: gaps smaller than this never have the full colour
# Blue and vermilion of Okabe and Ito, as test and train have in other figures: distinct for every colour blindness.
_COLOURS = LinearSegmentedColormap.from_list("gap", ["#0072b2", "#f7f7f7", "#d55e00"]).with_extremes(bad="0.82")


def draw(
    scores: Sequence[Score],
    *,
    data: Mapping[str, DataFacts] | None = None,
    layers: Collection[RankedLayer] | None = None,
) -> Figure:
    """Draw a panel for each run, all with the same colours; beside each row stands its gap at the last epoch.

    The first layer is at the bottom. If there is room, all cells show their numbers instead. A cell without a value on
    either split is grey, and a note gives the reason. Post-processed layers are drawn only if requested, or if the run
    has no raw one.

    Args:
        layers: those to draw; None for the raw ones.
    """
    drawn_scores = _select_scores(scores, layers)
    metric_scores, _ = keep_one_kind(scores_of_metric(drawn_scores), lambda _: False)  # a gap has no such intervals
    metric = metric_of(drawn_scores)
    runs, data = group_by_run(metric_scores), data or {}
    gaps = [gap for series in runs.values() for gap in _gaps(series).flat if not math.isnan(gap)]
    if not gaps:
        raise NotProbedError(f"no layer has {metric} on both {SEEN} and {UNSEEN}", "--splits", f"{SEEN},{UNSEEN}")
    notes = run_lines(data, GAP_SPLITS) + common_lines(runs) + missing_lines(runs, GAP_SPLITS)
    notes += _size_notes(data)
    notes += _epoch_0_notes(runs, data) + ([] if layers else omission_notes(scores))
    most = max(_LEAST, *map(abs, gaps))
    columns = max(len(_epochs(series)) for series in runs.values())
    rows = max(map(len, runs.values()))
    layout = fig.PanelLayout(
        min(max(_COLUMN * columns, _WIDTHS[0]), _WIDTHS[1]),
        min(max(_ROW * rows, _HEIGHTS[0]), _HEIGHTS[1]),
        # Between two panels there must be room for the names beside the right one.
        fig.width_of(["+88.8"])
        + 0.15
        + (fig.width_of([name for series in runs.values() for name in series]) if len(runs) > 1 else 0),
        below=1.1,
        columns=2,
        notes=notes,
    )
    titles = [f"{run}: gap of {metric}, {comparison_text(series)}" for run, series in runs.items()]
    figure, panels = fig.make_panels(titles, layout)
    for axes, (run, series) in zip(panels, runs.items(), strict=True):
        image = axes.imshow(_gaps(series), cmap=_COLOURS, norm=Normalize(-most, most), aspect="auto", origin="lower")
        image.set(interpolation="none", zorder=0, label="_gaps")
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        _name_axes(axes, series, data[run].weights if run in data else "")
        if not _write_numbers(axes, series, most):
            _write_last_gaps(axes, series)
        _draw_bar(axes, image, f"{split_text(SEEN, data.values())} - {UNSEEN} {metric}, percentage points")
    return figure


def _select_scores(scores: Sequence[Score], layers: Collection[RankedLayer] | None) -> list[Score]:
    """The scores of the two splits, of the raw layers or of the requested ones."""
    drawn_scores = select_raw(scores) if layers is None else [score for score in scores if score.ranked in layers]
    # All of them where neither split is there, for the error message.
    return [score for score in drawn_scores if score.split in GAP_SPLITS] or drawn_scores


def _gap(layer: Layer, epoch: int) -> float | None:
    """In percentage points; None where a split has no valid value."""
    seen, unseen = percent(layer.get((epoch, SEEN))), percent(layer.get((epoch, UNSEEN)))
    return None if seen is None or unseen is None else seen - unseen


def _epochs(series: Series) -> list[int]:
    return sorted({score.epoch for score in scores_in(series)})


def _size_notes(data: Mapping[str, DataFacts]) -> list[str]:
    """A note if the splits differ in size: recall falls with the number of classes."""
    for facts in data.values():
        seen, unseen = facts.splits.get(SEEN), facts.splits.get(UNSEEN)
        if seen and unseen and seen.queries != unseen.queries:
            advice = "layerprobe summary compares them in galleries of one size."
            return [f"The splits differ in size and so in difficulty; {advice}"]
        if seen and unseen and seen.classes != unseen.classes:
            return ["The splits differ in their number of classes and so in difficulty."]
    return []


def _epoch_0_notes(runs: Mapping[str, Series], data: Mapping[str, DataFacts]) -> list[str]:
    """A note on the gap of epoch 0, if training followed."""
    for run, series in runs.items():
        epochs = _epochs(series)
        start = data[run].start if run in data else EPOCH_0
        if epochs[0] == 0 < epochs[-1] and start != EPOCH_0:
            return [f"The gap of epoch 0 ({start}) is the difference in difficulty between the splits."]
    return []


def _gaps(series: Series) -> NDArray[np.float64]:
    """(layers, epochs) gaps in percentage points; NaN where there is none."""
    epochs = _epochs(series)
    gaps = [[_gap(layer, epoch) for epoch in epochs] for layer in series.values()]
    return np.array([[math.nan if gap is None else gap for gap in row] for row in gaps])


def _write_numbers(axes: Axes, series: Series, most: float) -> bool:
    """Write each gap into its cell if all fit; returns whether they do."""
    values = _gaps(series)
    if fig.width_of(["+88.8"]) * _NUMBERS / fig.FONT + 0.06 > fig.size_of(axes)[0] / values.shape[1]:
        return False
    for (row, column), gap in np.ndenumerate(values):
        if math.isfinite(gap):
            # On vermilion black has the better contrast, even where that is strongest.
            colour = "white" if gap < -0.7 * most else "black"
            text = axes.text(column, row, _format_gap(gap), fontsize=_NUMBERS, color=colour)
            text.set(ha="center", va="center_baseline")
    return True


def _format_gap(gap: float) -> str:
    """`+8.6`, `0.0`; a negative gap has the minus sign of the numbers of the colour bar."""
    text = f"{gap:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def _name_axes(axes: Axes, series: Series, weights: str) -> None:
    epochs = _epochs(series)
    room = fig.size_of(axes)[0] / len(epochs)
    step = math.ceil((fig.width_of([str(epochs[-1])]) + 0.08) / room)
    axes.set_xticks(range(0, len(epochs), step), [weights or str(epoch) for epoch in epochs[::step]])
    axes.set_yticks(range(len(series)), list(map(visible, series)))
    for label in axes.get_yticklabels():
        label.set(parse_math=False)
    axes.set_xlabel("" if weights else "epoch", fontsize=fig.FONT + 1)


def _write_last_gaps(axes: Axes, series: Series) -> None:
    """Write the gap of the last epoch beside each row."""
    last_epoch = _epochs(series)[-1]
    head = axes.text(1.02, -0.02, f"epoch {last_epoch}", transform=axes.transAxes, va="top")
    head.set(fontsize=fig.FONT - 1, color=fig.GREY)
    for row, layer in enumerate(series.values()):
        gap = _gap(layer, last_epoch)
        if gap is not None:
            text = axes.text(1.02, row, _format_gap(gap), transform=axes.get_yaxis_transform(), fontsize=fig.FONT)
            text.set(va="center_baseline")


def _draw_bar(axes: Axes, image: AxesImage, label: str) -> None:
    width, height = fig.size_of(axes)
    beside = axes.inset_axes((0, -0.62 / height, min(1.0, 2.4 / width), 0.1 / height))
    bar = axes.figure.colorbar(image, cax=beside, orientation="horizontal")
    bar.outline.set_visible(False)
    bar.set_label(label, fontsize=fig.FONT)
    bar.ax.tick_params(labelsize=fig.FONT, length=2)


def gap_csv(scores: Sequence[Score], *, layers: Collection[RankedLayer] | None = None) -> str:
    """The gaps as CSV, a line for each run, layer and epoch, with the two recalls, as fractions."""
    key = ("run", "layer", "pool", "post_processing", "similarity", "epoch")
    splits = GAP_SPLITS
    rows: list[list[object]] = []
    metric = metric_of(scores)
    rows.append([*key, f"{metric} gap", *(f"{s} {metric}" for s in splits), *(f"{s} note" for s in splits)])
    for by_split in scores_by_split(scores_of_metric(_select_scores(scores, layers))):
        score, both = next(iter(by_split.values())), list(map(by_split.get, splits))
        seen, unseen = (None if x is None else x.value for x in both)
        gap = None if seen is None or unseen is None else seen - unseen
        notes = [note_text(x.all_notes if x else ()) for x in both]
        rows.append([score.run, *score.ranked.as_columns().values(), score.epoch, gap, seen, unseen, *notes])
    return csv_text(rows)


def plot(source: PlotSource, options: PlotOptions) -> Drawing:
    """Draw the raw layers, or the requested ones."""
    scores = source.scores
    layers = match_layers(options.layers, [score.ranked for score in scores])
    data = source.data(dict.fromkeys(score.run for score in scores))
    return Drawing(draw(scores, data=data, layers=layers), gap_csv(scores, layers=layers))


PLOT = Plot(plot, ("layers", "metric"))
