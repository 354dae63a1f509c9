"""Recall of the layers in network order, on the training and test set (Vo & Hays 2019, Fig. 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from layerprobe.plots import figure as fig
from layerprobe.plots.drawn_layers import (
    group_by_network,
    omission_notes,
    resolve_epoch,
    scores_of_layers,
    select_unreduced,
)
from layerprobe.plots.layer_axis import (
    best_of,
    heights,
    indistinguishable_notes,
    mark_best,
    name_layers,
    points_at_epoch,
    pool_kinds,
    sizes_of,
    tracks,
    worsening_notes,
)
from layerprobe.plots.layers_together import draw_together
from layerprobe.plots.plot import Drawing, Indistinguishable, Plot, PlotOptions, PlotSource
from layerprobe.plots.selected import Star, add_selected, fold_lines, selected_at, stars_on
from layerprobe.plots.values import (
    Point,
    Series,
    add_search_to_run,
    common_lines,
    comparison_text,
    group_by_run,
    keep_one_kind,
    make_points,
    metric_of,
    missing_lines,
    points_csv,
)
from layerprobe.values.best import best_text
from layerprobe.values.facts import DataFacts, common_chance, run_lines, split_text
from layerprobe.values.intervals import ShownKind
from layerprobe.values.scores import Score
from layerprobe.values.views import Selected

_HEIGHT = 3.2  # inches
_TOGETHER = 3  # as many runs share a panel
_BAR = 3.0  # points from the bar of one split to that of the next
_PANELS = 6  # with more, only unreduced layers are drawn
_SPLITS = ("train", "validation", "test")
_GAP = ("train", "test")
# Vermilion and blue of Okabe and Ito: distinct for every kind of colour blindness, and in grey.
_COLOURS = {"train": "#d55e00", "validation": "#767676", "test": "#0072b2"}
_MARKERS = {"train": "s", "validation": "^", "test": "o"}


def draw(
    scores: Sequence[Score],
    *,
    data: Mapping[str, DataFacts] | None = None,
    indistinguishable: Indistinguishable | None = None,
    remarks: Sequence[str] = (),
    selected: Mapping[str, Selected] | None = None,
) -> Figure:
    """Draw a line for each split at the last epoch and lighter ones of train and test for epoch 0.

    The gap between train and test is shaded. The bars of the last epoch are intervals. The best layer, chosen on
    validation if measured, has a ring, and a note names the layers indistinguishable from it. Where layers have several
    pools, each has a line. Two or three runs of one network share a panel, as in `draw_together`. Each reduction and
    similarity has its own panel; if these are too many, only the unreduced layers are drawn.

    Args:
        data: run -> the data its scores were measured on; chance levels on which the runs agree are drawn.
        indistinguishable: gives the layers indistinguishable from the best of some scores; None where unknown.
        remarks: further notes.
        selected: run -> the selected candidate of its choice: a star at its layer, in the panel of its reduction if
            there is one.
    """
    drawn_scores, left_out = _select_scores(scores)
    data, left_out, selected = data or {}, [*left_out, *remarks], selected or {}
    if _share_panel(drawn_scores, data):
        return draw_together(drawn_scores, data, indistinguishable, left_out, selected)
    points, kind, panels = _panels(drawn_scores, data)
    runs = {name: panel.series for name, panel in panels.items()}
    run_of, last_epochs = {x: panel.run for x, panel in panels.items()}, {x: panel.last for x, panel in panels.items()}
    floors = {split: 100 * level for split, level in common_chance(data.values()).items() if split in _GAP}
    stars = stars_on(runs, run_of, selected, last_epochs)
    y_limits = _limits(
        [point for point in points if point.epoch in (0, last_epochs[point.run])], floors, stars.values()
    )
    at_last = {name: panel.at_last for name, panel in panels.items()}
    notes = run_lines(data) + common_lines(at_last)
    notes += (
        []
        if indistinguishable is None or kind.mixed
        else indistinguishable_notes(at_last, drawn_scores, indistinguishable)
    )
    notes += worsening_notes(runs, last_epochs, {name: panel.start for name, panel in panels.items()})
    notes += missing_lines(at_last, _GAP) + list(kind.lines("Bars"))
    notes += [*left_out, *fold_lines(star.selected for star in stars.values())]
    sizes, pools = sizes_of(runs), {name: pool_kinds(tracks(series)) for name, series in runs.items()}
    right = fig.width_of([_start_label(panel.train, panel.start) for panel in panels.values()] + ["validation"]) + 0.3
    below = sizes.names + 0.35 + fig.KEY_ROW * (any(pools.values()) + bool(stars))
    layout = fig.Layout(sizes.width, _HEIGHT, right, below=below, columns=2, notes=notes)
    figure, all_axes = fig.make_panels(_titles(panels, metric_of(drawn_scores)), layout)
    for axes, (name, panel) in zip(all_axes, panels.items(), strict=True):
        axes.set_ylim(y_limits)
        _draw_panel(axes, panel, metric_of(drawn_scores), floors, upright=sizes.upright)
        under = sizes.names + 0.2
        if pools[name]:
            fig.add_legend(axes, pools[name], under=under)
        if name in stars:
            stars[name].draw(axes)
            fig.add_legend(axes, [stars[name].kind], row=bool(pools[name]), under=under)
    return figure


@dataclass(frozen=True)
class _Panel:
    """The layers of a run after one reduction, by one similarity.

    Args:
        last: the epoch shown.
        start: the network of epoch 0.
        weights: what a network without epochs has; empty for one with epochs.
        train: what the training split is called.
    """

    run: str
    series: Series
    last: int
    start: str
    weights: str
    train: str

    @property
    def at_last(self) -> Series:
        """The layers at the epoch shown."""
        return points_at_epoch(self.series, self.last)


def _panels(scores: Sequence[Score], data: Mapping[str, DataFacts]) -> tuple[list[Point], ShownKind, dict[str, _Panel]]:
    """The points, the kind of their intervals, and the panels by their names."""
    by_name = make_points(scores, data)
    points = add_search_to_run(by_name)
    run_of = {panel.run: point.run for point, panel in zip(by_name, points, strict=True)}
    last_epochs: dict[str, int] = {}
    for point in points:
        last_epochs[point.run] = max(point.epoch, last_epochs.get(point.run, 0))
    points, kind = keep_one_kind(
        points, lambda point, split: point.epoch == last_epochs[point.run] and split in _SPLITS
    )
    panels = {}
    for name, series in group_by_run(points).items():
        facts = data.get(run_of[name])
        start, weights = (DataFacts.start, "") if facts is None else (facts.start, facts.weights)
        train = split_text("train", [] if facts is None else [facts])
        panels[name] = _Panel(run_of[name], series, last_epochs[name], start, weights, train)
    return points, kind, panels


def _titles(panels: Mapping[str, _Panel], metric: str) -> list[str]:
    """The title of each panel; what is compared is in its name where there are several searches."""
    titles = []
    for name, panel in panels.items():
        subtitle = f"{metric} by layer, {panel.weights or f'epoch {panel.last}'}"
        title = f"{name}: {subtitle}, {comparison_text(panel.series)}" if name == panel.run else f"{name}\n{subtitle}"
        titles.append(f"{title}\n{_best(panel.at_last)}")
    return titles


def _draw_panel(axes: Axes, panel: _Panel, metric: str, floors: Mapping[str, float], *, upright: bool) -> None:
    """Draw the layers of a panel whose y axis has its limits."""
    fig.show_percent(axes, "y")
    axes.set_ylabel(metric, fontsize=fig.FONT + 1)
    name_layers(axes, list(panel.series), upright=upright)
    start = None if panel.weights else panel.start
    labels = _draw_splits(axes, panel.series, panel.last, start, panel.train)
    mark_best(axes, panel.at_last, list(panel.series))
    fig.draw_chance(axes, {panel.train if split == "train" else split: level for split, level in floors.items()})
    fig.label_right(axes, labels)


def _share_panel(scores: Sequence[Score], data: Mapping[str, DataFacts]) -> bool:
    """Whether there are several runs, few enough, of one network: layers of different networks share no axis."""
    layers: dict[str, dict[str, None]] = {}
    for score in scores:
        layers.setdefault(score.run, {}).update(dict.fromkeys(score.ranked.layer.layer.split("+")))
    return 1 < len(layers) <= _TOGETHER and len(group_by_network(layers, data)) == 1


def _select_scores(scores: Sequence[Score]) -> tuple[list[Score], list[str]]:
    """The scores to draw, those of unreduced layers if there would be too many panels; and a note on the rest."""
    panels = {(score.run, score.ranked.reduction, score.ranked.similarity) for score in scores}
    drawn_scores = list(scores) if len(panels) <= _PANELS else select_unreduced(scores)
    return drawn_scores, omission_notes(scores) if len(drawn_scores) < len(scores) else []


def _limits(points: Sequence[Point], floors: Mapping[str, float], stars: Iterable[Star]) -> tuple[float, float]:
    values = [value for point in points for split in _SPLITS if (value := point.percent(split)) is not None]
    values += [end for point in points for split in _SPLITS for end in point.ends(split) or ()]
    values += [height for star in stars for height in star.heights]
    return fig.limits(values or [0.0, 100.0], min(floors.values(), default=None))


def _start_label(split: str, start: str) -> str:
    return f"{split}, {start}"


def _draw_splits(axes: Axes, series: Series, last_epoch: int, start: str | None, train_text: str) -> list[fig.Label]:
    """Draw the lines and the gap; returns the lines' labels.

    Args:
        start: the network of epoch 0; None where that is no training's start.
    """
    lines = tracks(series)
    labels = []
    for epoch in sorted({0, last_epoch}):
        light, begins = epoch != last_epoch, start if epoch == 0 else None
        layers = points_at_epoch(series, epoch)
        for split in _SPLITS if epoch == last_epoch else _GAP:
            values = heights(layers, split)
            valid = [i for i in range(len(series)) if np.isfinite(values[i])]
            if not valid:
                continue
            text = train_text if split == "train" else split
            name = text if begins is None else _start_label(text, begins)
            for number, track in enumerate(lines):
                line_values = [values[i] for i in track.places]
                (line,) = axes.plot(track.places, line_values, color=_COLOURS[split], marker=_MARKERS[split])
                line.set(linestyle=(0, (2, 2)) if begins is not None and not track.pool else track.dashes)
                line.set(linewidth=0.9 if light else 1.6, markersize=3 if light else 5, alpha=0.6 if light else 1)
                line.set_label(f"_{name}" if number else name)
                if begins is not None:
                    line.set(markerfacecolor="white")
            labels.append(fig.Label(name, valid[-1], values[valid[-1]], _COLOURS[split]))
    layers = points_at_epoch(series, last_epoch)
    _draw_intervals(axes, layers)
    train, test = (np.array(heights(layers, split)) for split in _GAP)
    for places in (list(track.places) for track in lines):
        axes.fill_between(
            places, train[places], test[places], color="0.5", alpha=0.13, linewidth=0, label="_gap", zorder=0.5
        )
    return labels


def _draw_intervals(axes: Axes, layers: Series) -> None:
    """Draw a bar for each interval; those of the splits are side by side."""
    points = [layer[0] for layer in layers.values() if layer]
    splits = [split for split in _SPLITS if any(split in point.intervals for point in points)]
    x_min, x_max = axes.get_xlim()
    beside = _BAR / 72 * (x_max - x_min) / fig.size_of(axes)[0]
    for number, split in enumerate(splits):
        ends = [
            (i, interval) for i, layer in enumerate(layers.values()) if layer and (interval := layer[0].ends(split))
        ]
        places = [i + (number - (len(splits) - 1) / 2) * beside for i, _ in ends]
        bars = axes.vlines(places, [low for _, (low, _) in ends], [high for _, (_, high) in ends])
        bars.set(color=_COLOURS[split], linewidth=_BAR * 0.8, alpha=0.4, zorder=1.5, label=f"_interval {split}")


def _best(layers: Series) -> str:
    best, values = best_of(layers)
    return best_text(best, list(layers), values) if best else ""


def layers_csv(
    scores: Sequence[Score],
    data: Mapping[str, DataFacts] | None = None,
    selected: Mapping[str, Selected] | None = None,
) -> str:
    """`points_csv` of the epochs, splits and layers that are drawn, and of selected candidates."""
    drawn_scores, _ = _select_scores(scores)
    metric = metric_of(drawn_scores)
    together = _share_panel(drawn_scores, data or {})
    # As for the figure: by run where each has one panel, else by panel.
    last_epochs: dict[object, int] = {}
    for score in drawn_scores:
        if score.metric == metric:
            last_epochs[_panel(score, together)] = max(score.epoch, last_epochs.get(_panel(score, together), 0))
    csv_scores = [
        score
        for score in drawn_scores
        if score.epoch == last_epochs.get(_panel(score, together))
        or (score.epoch == 0 and not together and score.split in _GAP)
    ]
    return points_csv(add_selected(csv_scores, (selected or {}).values()))


def _panel(score: Score, together: bool) -> object:
    return score.run if together else (score.run, score.ranked.reduction, score.ranked.similarity)


def draw_by_layer(source: PlotSource, options: PlotOptions, remarks: Sequence[str] = ()) -> Drawing:
    """Draw the last epoch, or the requested one, beside epoch 0.

    Args:
        remarks: further notes.
    """
    scores = source.scores
    if options.epoch is not None:
        scores = [score for score in scores if score.epoch in (0, resolve_epoch(scores, options.epoch))]
    scores = scores_of_layers(scores, options.layers)
    data = source.data(dict.fromkeys(score.run for score in scores))
    layers = {(score.run, score.ranked.layer) for score in scores}
    selected = selected_at(source.selected(), options.epoch)
    selected = {run: candidate for run, candidate in selected.items() if (run, candidate.score.ranked.layer) in layers}
    figure = draw(scores, data=data, indistinguishable=source.indistinguishable, remarks=remarks, selected=selected)
    return Drawing(figure, layers_csv(scores, data, selected))


PLOT = Plot(draw_by_layer, ("layers", "epoch", "metric"))
