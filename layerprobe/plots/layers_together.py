"""Recall of the layers of two or three runs in one panel, each run in its own colour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from layerprobe.plots import figure as fig
from layerprobe.plots.layer_axis import (
    best_of,
    heights,
    indistinguishable_notes,
    mark_best,
    name_layers,
    pool_kinds,
    sizes_of,
    tracks,
)
from layerprobe.plots.plot import Indistinguishable
from layerprobe.plots.selected import Star, fold_lines, stars_on
from layerprobe.plots.values import (
    Point,
    Series,
    common_lines,
    comparison_text,
    group_by_run,
    keep_one_kind,
    make_points,
    missing_lines,
    names_in_order,
    search_name,
)
from layerprobe.system.wording import visible
from layerprobe.values.best import best_text
from layerprobe.values.facts import DataFacts, common_chance, epoch_text, run_lines, split_text
from layerprobe.values.scores import Score
from layerprobe.values.views import Selected

_WIDTH, _HEIGHT = 3.1, 3.2  # inches; the width is the least
_BAR = 3.0  # points from the bar of one run to that of the next
_SPLITS = ("train", "test")


def draw_together(
    scores: Sequence[Score],
    data: Mapping[str, DataFacts],
    indistinguishable: Indistinguishable | None,
    left_out: Sequence[str] = (),
    selected: Mapping[str, Selected] | None = None,
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
    styles, texts = fig.styles(list(last_epochs)), {split: split_text(split, data.values()) for split in _SPLITS}
    searches = list(dict.fromkeys((point.ranked.reduction, point.ranked.similarity) for point in points))
    panels = [
        group_by_run([p for p in points if (p.ranked.reduction, p.ranked.similarity) == search]) for search in searches
    ]
    floors = {split: 100 * value for split, value in common_chance(data.values()).items() if split in _SPLITS}
    stars = _stars(panels, selected or {}, last_epochs)
    y_limits = _limits(points, floors, stars.values())
    named_layers = _name_series(panels)
    notes = run_lines(data, _SPLITS) + common_lines(named_layers) + _best(named_layers)
    notes += (
        []
        if indistinguishable is None or kind.mixed
        else indistinguishable_notes(named_layers, scores, indistinguishable)
    )
    notes += missing_lines(named_layers, _SPLITS) + list(kind.lines("Bars"))
    notes += [*left_out, *fold_lines(star.selected for star in stars.values())]
    merged: list[Series] = [{name: [] for name in names_in_order(panel)} for panel in panels]
    sizes = sizes_of({str(i): names for i, names in enumerate(merged)})
    pools = pool_kinds(track for panel in panels for series in panel.values() for track in tracks(series))
    under, right = sizes.names + 0.2, fig.width_of(list(texts.values())) + 0.3
    below = under + 0.17 * (len(last_epochs) + len(pools) + len(stars)) + 0.2
    layout = fig.Layout(max(sizes.width, _WIDTH), _HEIGHT, right, below=below, columns=2, notes=notes)
    figure, all_axes = fig.make_panels([_title(panel, last_epochs, data) for panel in panels], layout)
    for i, (axes, panel, names) in enumerate(zip(all_axes, panels, merged, strict=True)):
        axes.set_ylim(y_limits)
        fig.show_percent(axes, "y")
        axes.set_ylabel(points[0].metric, fontsize=fig.FONT + 1)
        name_layers(axes, list(names), upright=sizes.upright)
        labels = _draw_runs(axes, panel, list(names), styles, texts)
        fig.draw_chance(axes, {texts[split]: level for split, level in floors.items()})
        fig.label_right(axes, labels)
        panel_stars = {run: stars[i, run] for run in panel if (i, run) in stars}
        kinds = [_kind(run, styles[run]) for run in panel] + _draw_stars(axes, panel, list(names), panel_stars, styles)
        fig.add_legend(axes, [*kinds, *pools], columns=1, under=under)
    return figure


def _stars(
    panels: Sequence[Mapping[str, Series]], selected: Mapping[str, Selected], last_epochs: Mapping[str, int]
) -> dict[tuple[int, str], Star]:
    """Panel and run -> its star: a panel has several runs, and a run several panels."""
    cells = {(i, run): series for i, panel in enumerate(panels) for run, series in panel.items()}
    runs, epochs = {cell: cell[1] for cell in cells}, {cell: last_epochs[cell[1]] for cell in cells}
    return stars_on(cells, runs, selected, epochs)


def _name_series(panels: Sequence[Mapping[str, Series]]) -> dict[str, Series]:
    """The layers by the name that notes give to their run, or with several panels to their search."""
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
    _draw_intervals(axes, panel, names, styles)
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
        run_star.draw(axes, names.index(list(panel[run])[int(star.place)]))
        kinds.append(run_star.kind)
    return kinds


def _limits(points: Sequence[Point], floors: Mapping[str, float], stars: Iterable[Star]) -> tuple[float, float]:
    values = [value for point in points for split in _SPLITS if (value := point.percent(split)) is not None]
    values += [end for point in points for end in point.ends("test") or ()]
    values += [height for star in stars for height in star.heights]
    return fig.limits(values or [0.0, 100.0], min(floors.values(), default=None))


def _title(panel: Mapping[str, Series], last_epochs: Mapping[str, int], data: Mapping[str, DataFacts]) -> str:
    every = {f"{run} {name}": layer for run, series in panel.items() for name, layer in series.items()}
    epochs = {epoch_text(last_epochs[run], data.get(run)) for run in panel}
    when = epochs.pop() if len(epochs) == 1 else "last epochs"
    return f"{next(iter(every.values()))[0].metric} by layer, {when}, {comparison_text(every)}"


def _best(runs: Mapping[str, Series]) -> list[str]:
    lines = []
    for run, series in runs.items():
        best, values = best_of(series)
        lines += [f"{run}: {best_text(best, list(series), values)}"] if best else []
    return lines


def _draw_run(axes: Axes, run: str, layers: Series, names: Sequence[str], style: fig.Style) -> list[fig.Label]:
    """Draw the lines of a run; returns their labels."""
    labels = []
    places = [names.index(name) for name in layers]
    for split in _SPLITS:
        values = heights(layers, split)
        valid = [i for i, layer in enumerate(layers.values()) if layer[0].percent(split) is not None]
        if not valid:
            continue
        for number, track in enumerate(tracks(layers)):
            (line,) = axes.plot([places[i] for i in track.places], [values[i] for i in track.places])
            line.set(**_mark(split, style) | ({"linestyle": track.dashes} if track.pool else {}))
            line.set_label(f"{'_' * bool(number)}{run} {split}")
        labels.append(fig.Label(split, places[valid[-1]], values[valid[-1]], style.text))
    mark_best(axes, layers, names, style.text)
    return labels


def _mark(split: str, style: fig.Style) -> dict[str, object]:
    seen = {"linewidth": 1.0, "linestyle": (0, (5, 2)), "markerfacecolor": "white", "markersize": style.size * 0.55}
    new = {"linewidth": 1.7, "linestyle": "-", "markersize": style.size * 0.7}
    return {"color": style.colour, "marker": style.marker} | (seen if split == "train" else new)


def _kind(run: str, style: fig.Style) -> dict[str, object]:
    return _mark("test", style) | {"label": visible(run)}


def _draw_intervals(
    axes: Axes, runs: Mapping[str, Series], names: Sequence[str], styles: Mapping[str, fig.Style]
) -> None:
    """Draw a bar for each interval; those of the runs are side by side."""
    x_min, x_max = axes.get_xlim()
    beside = _BAR / 72 * (x_max - x_min) / fig.size_of(axes)[0]
    for number, (run, layers) in enumerate(runs.items()):
        ends = [(names.index(name), interval) for name, layer in layers.items() if (interval := layer[0].ends("test"))]
        if not ends:
            continue
        xs = [position + (number - (len(runs) - 1) / 2) * beside for position, _ in ends]
        bars = axes.vlines(xs, [low for _, (low, _) in ends], [high for _, (_, high) in ends])
        bars.set(color=styles[run].colour, linewidth=_BAR * 0.8, alpha=0.4, zorder=1.5, label=f"_interval {run}")
