"""Recall of layers by the number of dimensions they are reduced to: a panel for each reducer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from layerprobe.plots import figure as fig
from layerprobe.plots.reducers import Reducer, reducer_of
from layerprobe.plots.selected import Star, star_of
from layerprobe.values.facts import DataFacts, epoch_text
from layerprobe.values.keys import NO_REDUCTION, LayerKey
from layerprobe.values.views import Reductions, Selected, Sized

_FIGURE, _LEFT = 4.6, 0.75  # inches: width of a figure of one panel, left margin of its axes
_NARROW, _HEIGHT = 2.1, 2.6
_BAND = 0.15
_BETWEEN = 0.06  # inches between the numbers at two ticks


def draw(
    reductions: Sequence[Reductions],
    names: Mapping[Reducer, str],
    notes: Sequence[str],
    data: Mapping[str, DataFacts],
    selected: Mapping[str, Selected],
) -> Figure:
    """Draw a panel for each run and reducer, with a line for each layer that is labelled with its last value.

    Args:
        data: run -> the data its scores were measured on.
        selected: run -> the selected candidate: a star at its dimensions, in the panel of its reducer, else in the
            run's first.
    """
    texts = {
        s.score.ranked.layer: str(s.score.ranked.layer) for run_reductions in reductions for s in run_reductions.values
    }
    styles = fig.styles(list(texts.values()))
    cells = [
        (run_reductions, reducer)
        for run_reductions in reductions
        for reducer in names
        if any(sized.equal and reducer_of(sized) == reducer for sized in run_reductions.values)
    ]
    stars = _stars(cells, selected)
    dims = [s.dim for run_reductions in reductions for s in run_reductions.values if s.dim is not None]
    dims = sorted({*dims, *(star.selected.dim for star in stars.values())})
    ends = dims[0] / (dims[-1] / dims[0]) ** 0.03, dims[-1] * (dims[-1] / dims[0]) ** 0.03
    labels = [_labels(run_reductions, reducer, texts, styles, ends) for run_reductions, reducer in cells]
    right = fig.width_of([label.text for panel_labels in labels for label in panel_labels]) + 0.25
    width = _FIGURE - _LEFT - right if len(cells) == 1 else _NARROW
    layout = fig.Layout(width, _HEIGHT, right, below=0.6 + fig.KEY_ROW * bool(stars), columns=2, notes=notes)
    titles = [
        f"{run_reductions.run}, {epoch_text(run_reductions.epoch, data.get(run_reductions.run))}\n{names[reducer]}"
        for run_reductions, reducer in cells
    ]
    figure, panels = fig.make_panels(titles, layout)
    values = [
        height for run_reductions in reductions for sized in run_reductions.values for height in sized.heights if height
    ] + [height for star in stars.values() for height in star.heights]
    for i, (axes, (run_reductions, reducer), panel_labels) in enumerate(zip(panels, cells, labels, strict=True)):
        axes.set_xscale("log", base=2)
        axes.set_xlim(ends)
        axes.set_ylim(fig.limits(values or [0.0, 100.0]))
        axes.xaxis.set_major_locator(FixedLocator(_ticks(dims, ends, width)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        fig.show_percent(axes, "y")
        axes.set_xlabel("bits" if reducer.similarity == "hamming" else "dimensions", fontsize=fig.FONT + 1)
        axes.set_ylabel(f"{run_reductions.values[0].score.metric} on {run_reductions.split}", fontsize=fig.FONT + 1)
        for layer, label in texts.items():
            if values_of := _reduced_values(run_reductions, reducer, layer):
                _draw_layer(axes, values_of, _unreduced_value(run_reductions, layer), styles[label], label)
        fig.label_right(axes, panel_labels)
        if i in stars:
            stars[i].draw(axes)
            fig.add_legend(axes, [stars[i].kind])
    return figure


def _stars(cells: Sequence[tuple[Reductions, Reducer]], selected: Mapping[str, Selected]) -> dict[int, Star]:
    """Panel -> the star on it."""
    run_stars: dict[str, tuple[int, Star]] = {}
    for exact in (True, False):
        for i, (run_reductions, reducer) in enumerate(cells):
            candidate = selected.get(run_reductions.run)
            if candidate is not None and run_reductions.run not in run_stars:
                same_reducer = reducer_of(Sized(candidate.score, candidate.dim, True)) == reducer
                run_stars |= (
                    {run_reductions.run: (i, star_of(candidate, candidate.dim, run_reductions.epoch))}
                    if same_reducer or not exact
                    else {}
                )
    return dict(run_stars.values())


def _ticks(dims: Sequence[int], ends: tuple[float, float], inches: float) -> list[int]:
    """The dimensions without those whose numbers would touch that of a smaller one."""
    ticks: list[int] = []
    for dim in dims:
        room = math.log(dim / ticks[-1]) / math.log(ends[1] / ends[0]) * inches if ticks else math.inf
        if room > fig.width_of([f"{dim:,}"]) + _BETWEEN:
            ticks.append(dim)
    return ticks


def _reduced_values(reductions: Reductions, reducer: Reducer, layer: LayerKey) -> list[Sized]:
    """The valid values of a layer after a reducer, by dimension."""
    values = [
        sized
        for sized in reductions.values
        if sized.equal
        and sized.score.ranked.layer == layer
        and reducer_of(sized) == reducer
        and sized.score.value is not None
    ]
    return sorted(values, key=lambda sized: sized.dim or 0)


def _unreduced_value(reductions: Reductions, layer: LayerKey) -> Sized | None:
    """The unreduced layer, where its dimensions are known."""
    for sized in reductions.values:
        raw = sized.score.ranked.layer == layer and sized.score.ranked.reduction == NO_REDUCTION
        if raw and sized.dim is not None and sized.score.value is not None:
            return sized
    return None


def _labels(
    reductions: Reductions,
    reducer: Reducer,
    texts: Mapping[LayerKey, str],
    styles: Mapping[str, fig.Style],
    ends: tuple[float, float],
) -> list[fig.Label]:
    labels = []
    for layer, text in texts.items():
        values = _reduced_values(reductions, reducer, layer)
        if values:
            value = 100 * (values[-1].score.value or 0.0)
            # `label_right` takes an axis whose equal steps are equal differences.
            along = math.log((values[-1].dim or 1) / ends[0]) / math.log(ends[1] / ends[0])
            x = ends[0] + along * (ends[1] - ends[0])
            labels.append(fig.Label(f"{text} {value:.1f} %", x, value, styles[text].text))
    return labels


def _x_position(sized: Sized) -> float:
    """Its place on the axis; NaN, which is not drawn, where its dimensions are unknown."""
    return math.nan if sized.dim is None else sized.dim


def _draw_layer(axes: Axes, reduced: Sequence[Sized], unreduced: Sized | None, style: fig.Style, label: str) -> None:
    """Draw a layer's values after a reducer, by dimension, and the unreduced layer."""
    dims, values = list(map(_x_position, reduced)), [100 * (s.score.value or 0.0) for s in reduced]
    (line,) = axes.plot(dims, values, color=style.colour, marker=style.marker, label=label)
    line.set(markersize=style.size * 0.55, linewidth=1.5, clip_on=False)
    band = [(_x_position(sized), *sized.score.interval.percent) for sized in reduced if sized.score.interval]
    if band:
        along, lows, highs = (list(column) for column in zip(*band, strict=True))
        area = axes.fill_between(along, lows, highs, color=style.colour, alpha=_BAND)
        area.set(linewidth=0, zorder=0.5, label=f"_interval of {label}")
    if unreduced:
        (mark,) = axes.plot(
            [_x_position(unreduced)], [100 * (unreduced.score.value or 0.0)], color=style.colour, linestyle="none"
        )
        mark.set(marker=style.marker, markersize=style.size * 0.55, markerfacecolor="white", clip_on=False, zorder=3)
        mark.set_label(f"_{label} unreduced")
    best = [s for s in [*reduced, *([unreduced] if unreduced else [])] if s.chosen]
    heights = [100 * (s.score.value or 0.0) for s in best]
    (ring,) = axes.plot(list(map(_x_position, best)), heights, linestyle="none")
    ring.set(marker="o", markersize=10, markerfacecolor="none", markeredgecolor="black", zorder=4, clip_on=False)
    ring.set_label("_best")
