"""Recall of each layer on the training and test set over the epochs (Vo & Hays 2019, Fig. 3)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from layerprobe.plots import figure as fig
from layerprobe.plots.drawn_scores import (
    Series,
    common_lines,
    comparison_text,
    default_layers,
    drawn_percents,
    group_by_run,
    keep_one_kind,
    layers_by_epoch_csv,
    match_layers,
    missing_lines,
    names_in_order,
    omission_notes,
    scores_in,
    scores_of_layers,
    scores_of_metric,
    select_raw,
)
from layerprobe.plots.layers import draw_by_layer
from layerprobe.plots.plot import Drawing, Plot, PlotOptions, PlotSource
from layerprobe.system.wording import visible
from layerprobe.values.facts import DataFacts, common_chance, run_lines, split_text
from layerprobe.values.layers import RankedLayer
from layerprobe.values.scores import GAP_SPLITS, Score

_WIDTH, _HEIGHT = 2.6, 3.1  # inches
_LABEL = 0.165  # inches of height that a label needs
_SPLITS = GAP_SPLITS[::-1]
# Layers of all runs that share a panel, and both splits of a run.
_TOGETHER = 6
_MARKS = 8  # markers on a curve, about
_BAND = 0.13  # how opaque a band is
_BANDS = 0.45  # how opaque overlapping bands are together, at most


@dataclass(frozen=True)
class _CurvePanel:
    """The curves of one panel.

    Args:
        runs: run -> its layers.
        styles: (run, layer) -> how it is drawn.
    """

    runs: Mapping[str, Series]
    splits: Sequence[str]
    title: str
    styles: Mapping[tuple[str, str], fig.Style]

    @property
    def curves(self) -> list[tuple[str, str, str, list[Score]]]:
        """Run, layer, split and scores of each curve."""
        return [
            (run, name, split, [score for score in layer.values() if score.split == split])
            for split in self.splits
            for run, series in self.runs.items()
            for name, layer in series.items()
        ]

    def label(self, run: str, layer: str, split: str) -> str:
        """Label of the artists of a curve."""
        return f"{layer} {split}" if len(self.runs) == 1 else f"{run} {layer} {split}"


def draw(
    scores: Sequence[Score],
    *,
    data: Mapping[str, DataFacts] | None = None,
    layers: Collection[RankedLayer] | None = None,
    embeddings: Mapping[str, RankedLayer] | None = None,
    remarks: Sequence[str] = (),
) -> Figure:
    """Draw curves of a few layers; each is labelled with its last value in percent.

    Runs with at most six layers in all share a panel, where each has its colour; else each has a panel, or one for each
    split if it has more than six layers. A band around a curve is its interval; where both splits share a panel, only
    the test curves have one. Post-processed layers are drawn only if requested, or if the run has no raw one.

    Args:
        data: run -> the data its scores were measured on; chance levels on which the runs agree are drawn.
        layers: those to draw; None for those of `default_layers`.
        embeddings: run -> its embedding layer, where that is known.
        remarks: further notes.
    """
    data = data or {}
    drawn_scores = _select_scores(scores, layers, embeddings or {}, data)
    metric_scores = scores_of_metric(drawn_scores)
    epochs = sorted({score.epoch for score in metric_scores})
    both = max(map(len, group_by_run(metric_scores).values())) <= _TOGETHER
    banded = _SPLITS[:1] if both else _SPLITS
    metric_scores, kind = keep_one_kind(metric_scores, lambda score: score.split in banded)
    runs = group_by_run(metric_scores)
    floors = {split: 100 * value for split, value in common_chance(data.values()).items()}
    y_limits = fig.limits(drawn_percents(metric_scores, _SPLITS) or [0.0, 100.0], min(floors.values(), default=None))
    notes = run_lines(data, _SPLITS) + common_lines(runs) + missing_lines(runs, _SPLITS)
    notes += list(kind.lines("Bands around test curves" if both else "Bands"))
    if layers is None:
        count, total = (len({score.ranked for score in x}) for x in (drawn_scores, select_raw(scores)))
        notes += [f"{count} of {total} layers; --layers shows others."] if count < total else []
        notes += omission_notes(scores)
    notes += remarks

    valid = {score.split for score in metric_scores if score.value is not None}
    panels = _panels(runs, [split for split in _SPLITS if split in valid] or ["test"])
    labels = [_labels(panel, data) for panel in panels]
    keys = [_key(panel, data) for panel in panels]
    layout = fig.PanelLayout(
        _WIDTH,
        max(_HEIGHT, _LABEL * max(map(len, labels))),
        fig.width_of([label.text for panel in labels for label in panel]) + 0.25,
        below=0.65 + 0.17 * max(len(key) / _columns(key) for key in keys),
        columns=2,
        notes=notes,
    )
    figure, all_axes = fig.make_panels([panel.title for panel in panels], layout)
    for axes, panel, panel_labels, key in zip(all_axes, panels, labels, keys, strict=True):
        _set_axes(axes, epochs, y_limits, metric_scores[0].metric)
        _draw_curves(axes, panel)
        fig.draw_chance(
            axes, {split_text(split, data.values()): floors[split] for split in panel.splits if split in floors}
        )
        fig.label_right(axes, panel_labels)
        if key:
            fig.add_legend(axes, key, _columns(key))
    return figure


def _select_scores(
    scores: Sequence[Score],
    layers: Collection[RankedLayer] | None,
    embeddings: Mapping[str, RankedLayer],
    data: Mapping[str, DataFacts],
) -> list[Score]:
    if layers is not None:
        layer_scores = [score for score in scores if score.ranked in layers]
    else:
        layer_scores = select_raw(scores)
        headline = default_layers(group_by_run(scores_of_metric(layer_scores)), embeddings, data)
        layer_scores = [score for score in layer_scores if score.ranked in headline]
    return [score for score in layer_scores if score.split in _SPLITS] or layer_scores


def _panels(runs: Mapping[str, Series], splits: Sequence[str]) -> list[_CurvePanel]:
    names = names_in_order(runs)
    of_layer = fig.styles(names)
    if len(runs) > 1 and sum(map(len, runs.values())) <= _TOGETHER:
        of_run = fig.styles(list(runs))
        styles = {(run, name): fig.Style(of_run[run].colour, of_layer[name].marker) for run in runs for name in names}
        every = {f"{run} {name}": layer for run, series in runs.items() for name, layer in series.items()}
        return [_CurvePanel(runs, splits, f"{_measure(runs, splits)}, {comparison_text(every)}", styles)]
    groups = [splits] if max(map(len, runs.values())) <= _TOGETHER else [[split] for split in splits]
    return [
        _CurvePanel(
            {run: series},
            group,
            f"{run}: {_measure(runs, group)}, {comparison_text(series)}",
            {(run, name): of_layer[name] for name in series},
        )
        for run, series in runs.items()
        for group in groups
    ]


def _measure(runs: Mapping[str, Series], splits: Sequence[str]) -> str:
    metric = next(score.metric for series in runs.values() for score in scores_in(series))
    return metric if len(splits) > 1 else f"{splits[0]} {metric}"


def _valid_values(scores: Sequence[Score]) -> tuple[list[int], list[float]]:
    """Epochs and percent of the valid values of a curve."""
    valid = [(score.epoch, 100 * score.value) for score in scores if score.value is not None]
    return [epoch for epoch, _ in valid], [value for _, value in valid]


def _labels(panel: _CurvePanel, data: Mapping[str, DataFacts]) -> list[fig.Label]:
    labels = []
    for run, name, split, scores in panel.curves:
        last_epoch = max(score.epoch for score in scores_in(panel.runs[run]))
        epochs, values = _valid_values(scores)
        if values:
            parts = [name, *([split_text(split, data.values())] if len(panel.splits) > 1 else []), f"{values[-1]:.1f}"]
            parts += [f"(epoch {epochs[-1]})"] if epochs[-1] != last_epoch else []
            labels.append(fig.Label(" ".join(parts), epochs[-1], values[-1], panel.styles[run, name].text))
    return labels


def _key(panel: _CurvePanel, data: Mapping[str, DataFacts]) -> list[dict[str, object]]:
    """Legend entries for splits and runs, which the labels do not name."""
    # A single split is in the title.
    splits = {split: split_text(split, data.values()) for split in panel.splits if len(panel.splits) > 1}
    kinds = [_mark(split, fig.GREY) | {"label": text} for split, text in splits.items()]
    if len(panel.runs) > 1:
        colours = {run: panel.styles[run, next(iter(series))].colour for run, series in panel.runs.items()}
        kinds += [
            {"label": visible(run), "color": colour, "linestyle": "-", "linewidth": 2.5, "marker": ""}
            for run, colour in colours.items()
        ]
    return kinds


def _columns(kinds: Sequence[object]) -> int:
    return 2 if len(kinds) in (2, 4) else 1


def _set_axes(axes: Axes, epochs: Sequence[int], y_limits: tuple[float, float], metric: str) -> None:
    margin = 0.02 * (epochs[-1] - epochs[0]) or 0.5
    axes.set_xlim(epochs[0] - margin, epochs[-1] + margin)
    axes.set_ylim(y_limits)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    fig.show_percent(axes, "y")
    axes.set_xlabel("epoch", fontsize=fig.FONT + 1)
    axes.set_ylabel(metric, fontsize=fig.FONT + 1)


def _draw_curves(axes: Axes, panel: _CurvePanel) -> None:
    for split in panel.splits:
        _draw_bands(axes, panel, split)
    for i, (run, name, split, scores) in enumerate(panel.curves):
        style, (epochs, values) = panel.styles[run, name], _valid_values(scores)
        # Markers are at different epochs for each curve, so that coinciding curves can be distinguished.
        step = max(1, len(epochs) // _MARKS)
        (curve,) = axes.plot(epochs, values)
        curve.set(**_mark(split, style.colour), marker=style.marker, markersize=style.size * 0.55)
        curve.set(markevery=(i % step, step), clip_on=False, label=panel.label(run, name, split))


def _draw_bands(axes: Axes, panel: _CurvePanel, split: str) -> None:
    """Shade the intervals of the curves; a band breaks at an epoch without one."""
    bands: dict[tuple[str, str], list[tuple[int, float, float]]] = {}
    by_epoch: dict[int, list[tuple[float, float]]] = {}
    for run, name, curve_split, scores in panel.curves:
        ends = {score.epoch: score.interval.percent for score in scores if score.interval}
        if curve_split == split and ends:
            epochs = dict.fromkeys(epoch for epoch, _ in panel.runs[run][name])
            bands[run, name] = [(epoch, *ends.get(epoch, (math.nan, math.nan))) for epoch in epochs]
            for epoch, interval in ends.items():
                by_epoch.setdefault(epoch, []).append(interval)
    # The more bands lie over each other, the lighter they are: so the curves stay visible.
    overlap = max((sum(a <= low <= b for a, b in ends) for ends in by_epoch.values() for low, _ in ends), default=1)
    opacity = min(_BAND, 1 - (1 - _BANDS) ** (1 / overlap))
    for (run, name), band_ends in bands.items():
        band_epochs, low, high = zip(*band_ends, strict=True)
        band = axes.fill_between(band_epochs, low, high, color=panel.styles[run, name].colour, alpha=opacity)
        band.set(linewidth=0, zorder=0.5, label=f"_interval of {panel.label(run, name, split)}")


def _mark(split: str, colour: fig.Colour | str) -> dict[str, object]:
    """Style of a split's curves: solid and filled for test, dashed and hollow for training."""
    if split == "test":
        return {"color": colour, "linestyle": "-", "linewidth": 1.6, "markerfacecolor": colour}
    return {"color": colour, "linestyle": (0, (5, 2)), "linewidth": 1.0, "markerfacecolor": "white"}


def curves_csv(
    scores: Sequence[Score],
    *,
    layers: Collection[RankedLayer] | None = None,
    embeddings: Mapping[str, RankedLayer] | None = None,
    data: Mapping[str, DataFacts] | None = None,
) -> str:
    """`layers_by_epoch_csv` of the layers and splits that are drawn."""
    return layers_by_epoch_csv(_select_scores(scores, layers, embeddings or {}, data or {}))


def plot(source: PlotSource, options: PlotOptions) -> Drawing:
    """Draw a few layers, or the requested ones; runs of one epoch are drawn by layer if no run has several."""
    scores, embeddings = source.scores, source.embeddings()
    layers = match_layers(options.layers, [score.ranked for score in scores])
    epochs: dict[str, set[int]] = {}
    for score in scores_of_layers(scores, options.layers):
        epochs.setdefault(score.run, set()).add(score.epoch)
    single = {run: min(run_epochs) for run, run_epochs in epochs.items() if len(run_epochs) == 1}
    data = source.data(epochs)
    only = {run: (data[run].weights if run in data else "") or str(epoch) for run, epoch in single.items()}
    if single.keys() == epochs.keys():
        which = ", ".join(dict.fromkeys(only[run] for run in sorted(single, key=single.__getitem__)))
        return draw_by_layer(source, options, [f"One epoch only ({which}): by layer instead of over epochs."])
    data = {run: facts for run, facts in data.items() if run not in single}
    scores = [score for score in scores if score.run not in single]
    remarks = [f"{run}: one epoch only ({which}), no curves; plot layers shows it." for run, which in only.items()]
    figure = draw(scores, data=data, layers=layers, embeddings=embeddings, remarks=remarks)
    return Drawing(figure, curves_csv(scores, layers=layers, embeddings=embeddings, data=data))


PLOT = Plot(plot, ("layers", "metric"))
