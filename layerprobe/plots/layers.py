"""Recall of the layers in network order, on the training and test set (Vo & Hays 2019, Fig. 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

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
from layerprobe.plots.plot import Drawing, Indistinguishable, Plot, PlotOptions, PlotSource
from layerprobe.plots.selected import Star, add_selected, fold_lines, selected_at, stars_on
from layerprobe.plots.values import (
    Point,
    Series,
    add_search_to_run,
    common_lines,
    comparison_text,
    drawn_percents,
    group_by_run,
    keep_one_kind,
    make_points,
    metric_of,
    missing_lines,
    names_in_order,
    points_csv,
    search_name,
)
from layerprobe.system.wording import visible
from layerprobe.values.best import best_text
from layerprobe.values.facts import DataFacts, common_chance, epoch_text, run_lines, split_text
from layerprobe.values.intervals import ShownKind
from layerprobe.values.scores import Score
from layerprobe.values.views import Selected

_HEIGHT = 3.2  # inches
_TOGETHER = 3  # as many runs share a panel
_BAR = 3.0  # points from the bar of one split, or run, to that of the next
_PANELS = 6  # with more, only unreduced layers are drawn
_SPLITS = ("train", "validation", "test")
_GAP = ("train", "test")
# Vermilion and blue of Okabe and Ito: distinct for every kind of colour blindness, and in grey.
_COLOURS = {"train": "#d55e00", "validation": "#767676", "test": "#0072b2"}
_MARKERS = {"train": "s", "validation": "^", "test": "o"}
_TOGETHER_WIDTH = 3.1  # inches, at least, of a panel of several runs


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
    pools, each has a line. Two or three runs of one network share a panel, as in `_draw_together`. Each reduction and
    similarity has its own panel; if these are too many, only the unreduced layers are drawn.

    Args:
        data: run -> the data its scores were measured on; chance levels on which the runs agree are drawn.
        indistinguishable: gives the layers indistinguishable from the best of some scores; None where unknown.
        remarks: further notes.
        selected: run -> the selected candidate of its choice: a star at its layer, in the panel of its reduction if
            there is one.
    """
    drawn_scores, omissions = _select_scores(scores)
    data, remarks, selected = data or {}, [*omissions, *remarks], selected or {}
    if _share_panel(drawn_scores, data):
        return _draw_together(drawn_scores, data, indistinguishable, remarks, selected)
    points, kind, panels = _panels(drawn_scores, data)
    runs = {name: panel.series for name, panel in panels.items()}
    last_epochs = {name: panel.epoch for name, panel in panels.items()}
    floors = {split: 100 * level for split, level in common_chance(data.values()).items() if split in _GAP}
    stars = stars_on(runs, {name: panel.run for name, panel in panels.items()}, selected, last_epochs)
    points = [point for point in points if point.epoch in (0, last_epochs[point.run])]
    y_limits = _limits(points, _SPLITS, floors, stars.values())
    layers = {name: panel.layers for name, panel in panels.items()}
    notes = run_lines(data) + common_lines(layers)
    if indistinguishable is not None and not kind.mixed:
        notes += indistinguishable_notes(layers, drawn_scores, indistinguishable)
    notes += worsening_notes(runs, last_epochs, {name: panel.start for name, panel in panels.items()})
    notes += missing_lines(layers, _GAP) + list(kind.lines("Bars"))
    notes += [*remarks, *fold_lines(star.selected for star in stars.values())]
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
        epoch: the last, or the requested one.
        start: the network of epoch 0.
        weights: what a network without epochs has; empty for one with epochs.
        train: what the training split is called.
    """

    run: str
    series: Series
    epoch: int
    start: str
    weights: str
    train: str

    @property
    def layers(self) -> Series:
        """The layers at the epoch."""
        return points_at_epoch(self.series, self.epoch)


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
        subtitle = f"{metric} by layer, {panel.weights or f'epoch {panel.epoch}'}"
        title = f"{name}: {subtitle}, {comparison_text(panel.series)}" if name == panel.run else f"{name}\n{subtitle}"
        titles.append(f"{title}\n{_best_text(panel.layers)}")
    return titles


def _draw_panel(axes: Axes, panel: _Panel, metric: str, floors: Mapping[str, float], *, upright: bool) -> None:
    """Draw the layers of a panel whose y axis has its limits."""
    fig.show_percent(axes, "y")
    axes.set_ylabel(metric, fontsize=fig.FONT + 1)
    name_layers(axes, list(panel.series), upright=upright)
    start = None if panel.weights else panel.start
    labels = _draw_splits(axes, panel.series, panel.epoch, start, panel.train)
    mark_best(axes, panel.layers, list(panel.series))
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


def _limits(
    points: Sequence[Point], splits: Sequence[str], floors: Mapping[str, float], stars: Iterable[Star]
) -> tuple[float, float]:
    values = drawn_percents(points, splits) + [height for star in stars for height in star.heights]
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
                line_values = [values[i] for i in track.positions]
                (line,) = axes.plot(track.positions, line_values, color=_COLOURS[split], marker=_MARKERS[split])
                line.set(linestyle=(0, (2, 2)) if begins is not None and not track.pool else track.dashes)
                line.set(linewidth=0.9 if light else 1.6, markersize=3 if light else 5, alpha=0.6 if light else 1)
                line.set_label(f"_{name}" if number else name)
                if begins is not None:
                    line.set(markerfacecolor="white")
            labels.append(fig.Label(name, valid[-1], values[valid[-1]], _COLOURS[split]))
    layers = points_at_epoch(series, last_epoch)
    rows = [(i, layer[0]) for i, layer in enumerate(layers.values()) if layer]
    intervals = {split: [(i, ends) for i, point in rows if (ends := point.ends(split))] for split in _SPLITS}
    _draw_bars(axes, {split: ends for split, ends in intervals.items() if ends}, _COLOURS)
    train, test = (np.array(heights(layers, split)) for split in _GAP)
    for positions in (list(track.positions) for track in lines):
        axes.fill_between(
            positions, train[positions], test[positions], color="0.5", alpha=0.13, linewidth=0, label="_gap", zorder=0.5
        )
    return labels


def _draw_bars(
    axes: Axes,
    intervals: Mapping[str, Sequence[tuple[int, tuple[float, float]]]],
    colours: Mapping[str, fig.Colour | str],
) -> None:
    """Draw a bar for each interval; those of the splits, or of the runs, are side by side.

    Args:
        intervals: split or run -> the places of layers with an interval, and its ends in percent.
    """
    x_min, x_max = axes.get_xlim()
    step = _BAR / 72 * (x_max - x_min) / fig.size_of(axes)[0]
    for number, (name, ends) in enumerate(intervals.items()):
        if ends:
            xs = [i + (number - (len(intervals) - 1) / 2) * step for i, _ in ends]
            bars = axes.vlines(xs, [low for _, (low, _) in ends], [high for _, (_, high) in ends])
            bars.set(color=colours[name], linewidth=_BAR * 0.8, alpha=0.4, zorder=1.5, label=f"_interval {name}")


def _best_text(layers: Series) -> str:
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
            last_epochs[_panel_key(score, together)] = max(score.epoch, last_epochs.get(_panel_key(score, together), 0))
    csv_scores = [
        score
        for score in drawn_scores
        if score.epoch == last_epochs.get(_panel_key(score, together))
        or (score.epoch == 0 and not together and score.split in _GAP)
    ]
    return points_csv(add_selected(csv_scores, (selected or {}).values()))


def _panel_key(score: Score, together: bool) -> object:
    return score.run if together else (score.run, score.ranked.reduction, score.ranked.similarity)


def _draw_together(
    scores: Sequence[Score],
    data: Mapping[str, DataFacts],
    indistinguishable: Indistinguishable | None,
    remarks: Sequence[str],
    selected: Mapping[str, Selected],
) -> Figure:
    """Draw each run at its last epoch: test solid with its intervals, train dashed and hollow, the best layer ringed.

    Each reduction and similarity has a panel, and selected candidates a star.

    Args:
        data: run -> the data its scores were measured on.
        indistinguishable: gives the layers indistinguishable from the best of some scores; None where unknown.
    """
    points = make_points(scores, data)
    runs = dict.fromkeys(point.run for point in points)
    last_epochs = {run: max(point.epoch for point in points if point.run == run) for run in runs}
    points, kind = keep_one_kind(
        [point for point in points if point.epoch == last_epochs[point.run]], lambda _, split: split == "test"
    )
    styles, texts = fig.styles(list(last_epochs)), {split: split_text(split, data.values()) for split in _GAP}
    searches = list(dict.fromkeys((point.ranked.reduction, point.ranked.similarity) for point in points))
    panels = [
        group_by_run([p for p in points if (p.ranked.reduction, p.ranked.similarity) == search]) for search in searches
    ]
    floors = {split: 100 * value for split, value in common_chance(data.values()).items() if split in _GAP}
    stars = _stars_together(panels, selected, last_epochs)
    y_limits = _limits(points, _GAP, floors, stars.values())
    named_layers = _name_series(panels)
    notes = run_lines(data, _GAP) + common_lines(named_layers)
    notes += [f"{name}: {text}" for name, series in named_layers.items() if (text := _best_text(series))]
    if indistinguishable is not None and not kind.mixed:
        notes += indistinguishable_notes(named_layers, scores, indistinguishable)
    notes += missing_lines(named_layers, _GAP) + list(kind.lines("Bars"))
    notes += [*remarks, *fold_lines(star.selected for star in stars.values())]
    merged: list[Series] = [{name: [] for name in names_in_order(panel)} for panel in panels]
    sizes = sizes_of({str(i): names for i, names in enumerate(merged)})
    pools = pool_kinds(track for panel in panels for series in panel.values() for track in tracks(series))
    under, right = sizes.names + 0.2, fig.width_of(list(texts.values())) + 0.3
    below = under + 0.17 * (len(last_epochs) + len(pools) + len(stars)) + 0.2
    layout = fig.Layout(max(sizes.width, _TOGETHER_WIDTH), _HEIGHT, right, below=below, columns=2, notes=notes)
    figure, all_axes = fig.make_panels([_title_together(panel, last_epochs, data) for panel in panels], layout)
    for i, (axes, panel, names) in enumerate(zip(all_axes, panels, merged, strict=True)):
        axes.set_ylim(y_limits)
        fig.show_percent(axes, "y")
        axes.set_ylabel(points[0].metric, fontsize=fig.FONT + 1)
        name_layers(axes, list(names), upright=sizes.upright)
        labels = _draw_runs(axes, panel, list(names), styles, texts)
        fig.draw_chance(axes, {texts[split]: level for split, level in floors.items()})
        fig.label_right(axes, labels)
        panel_stars = {run: stars[i, run] for run in panel if (i, run) in stars}
        kinds = [_run_kind(run, styles[run]) for run in panel] + _draw_stars(
            axes, panel, list(names), panel_stars, styles
        )
        fig.add_legend(axes, [*kinds, *pools], columns=1, under=under)
    return figure


def _stars_together(
    panels: Sequence[Mapping[str, Series]], selected: Mapping[str, Selected], last_epochs: Mapping[str, int]
) -> dict[tuple[int, str], Star]:
    """Panel and run -> its star: a panel has several runs, and a run several panels."""
    cells = {(i, run): series for i, panel in enumerate(panels) for run, series in panel.items()}
    runs, epochs = {cell: cell[1] for cell in cells}, {cell: last_epochs[cell[1]] for cell in cells}
    return stars_on(cells, runs, selected, epochs)


def _name_series(panels: Sequence[Mapping[str, Series]]) -> dict[str, Series]:
    """Name in the notes -> layers: the name of the run, or with several panels that of the search."""
    return {
        run if len(panels) == 1 else search_name(next(iter(series.values()))[0]): series
        for panel in panels
        for run, series in panel.items()
    }


def _draw_runs(
    axes: Axes,
    panel: Mapping[str, Series],
    names: Sequence[str],
    styles: Mapping[str, fig.Style],
    texts: Mapping[str, str],
) -> list[fig.Label]:
    """Draw the lines and intervals of the runs of a panel; returns the labels of the lines.

    Args:
        texts: split -> what it is called.
    """
    labels = [
        replace(label, text=texts[label.text])
        for run, layers in panel.items()
        for label in _draw_run(axes, run, layers, names, styles[run])
    ]
    intervals = {
        run: [(names.index(name), ends) for name, layer in layers.items() if (ends := layer[0].ends("test"))]
        for run, layers in panel.items()
    }
    _draw_bars(axes, intervals, {run: styles[run].colour for run in panel})
    return labels


def _draw_stars(
    axes: Axes,
    panel: Mapping[str, Series],
    names: Sequence[str],
    stars: Mapping[str, Star],
    styles: Mapping[str, fig.Style],
) -> list[dict[str, object]]:
    """Draw the star of each run of a panel that has one; returns their legend entries."""
    kinds = []
    for run, star in stars.items():
        run_star = replace(star, text=f"{run}, {star.text}", edge=styles[run].colour)
        run_star.draw(axes, names.index(list(panel[run])[int(star.position)]))
        kinds.append(run_star.kind)
    return kinds


def _title_together(panel: Mapping[str, Series], last_epochs: Mapping[str, int], data: Mapping[str, DataFacts]) -> str:
    every = {f"{run} {name}": layer for run, series in panel.items() for name, layer in series.items()}
    epochs = {epoch_text(last_epochs[run], data.get(run)) for run in panel}
    when = epochs.pop() if len(epochs) == 1 else "last epochs"
    return f"{next(iter(every.values()))[0].metric} by layer, {when}, {comparison_text(every)}"


def _draw_run(axes: Axes, run: str, layers: Series, names: Sequence[str], style: fig.Style) -> list[fig.Label]:
    """Draw the lines of a run; returns their labels."""
    labels = []
    xs = [names.index(name) for name in layers]
    for split in _GAP:
        values = heights(layers, split)
        valid = [i for i, layer in enumerate(layers.values()) if layer[0].percent(split) is not None]
        if not valid:
            continue
        for number, track in enumerate(tracks(layers)):
            (line,) = axes.plot([xs[i] for i in track.positions], [values[i] for i in track.positions])
            line.set(**_line_look(split, style) | ({"linestyle": track.dashes} if track.pool else {}))
            line.set_label(f"{'_' * bool(number)}{run} {split}")
        labels.append(fig.Label(split, xs[valid[-1]], values[valid[-1]], style.text))
    mark_best(axes, layers, names, style.text)
    return labels


def _line_look(split: str, style: fig.Style) -> dict[str, object]:
    seen = {"linewidth": 1.0, "linestyle": (0, (5, 2)), "markerfacecolor": "white", "markersize": style.size * 0.55}
    new = {"linewidth": 1.7, "linestyle": "-", "markersize": style.size * 0.7}
    return {"color": style.colour, "marker": style.marker} | (seen if split == "train" else new)


def _run_kind(run: str, style: fig.Style) -> dict[str, object]:
    return _line_look("test", style) | {"label": visible(run)}


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
