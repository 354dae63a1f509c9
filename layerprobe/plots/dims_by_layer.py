"""Recall of the layers at one dimension, with the reducers side by side at each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from layerprobe.plots import figure as fig
from layerprobe.plots.layer_axis import Track, pool_kinds, pool_tracks
from layerprobe.plots.reducers import Reducer, reducer_of, reducer_styles
from layerprobe.plots.selected import Star, star_of
from layerprobe.system.wording import visible
from layerprobe.values.facts import DataFacts, epoch_text
from layerprobe.values.keys import NO_REDUCTION, LayerKey
from layerprobe.values.views import Reductions, Selected, Sized

_FIGURE, _LEFT = 4.6, 0.75  # inches: width of a figure of one panel, left margin of its axes
_LEAST, _MOST, _HEIGHT = 2.4, 9.0, 3.0
_LAYER = 0.17  # inches of width for each layer, at least
_APART = 0.13  # of the distance of two layers, between two points of one layer


def draw(
    reductions: Sequence[Reductions],
    names: Mapping[Reducer, str],
    notes: Sequence[str],
    data: Mapping[str, DataFacts],
    selected: Mapping[str, Selected],
) -> Figure:
    """Draw a panel for each run and dimension: a line for each reducer, through the layers in network order.

    Args:
        data: run -> the data its scores were measured on.
        selected: run -> the selected candidate: a star in the panel of its dimension, else in its layer's first.
    """
    cells = [
        (run_reductions, dim)
        for run_reductions in reductions
        for dim in sorted({s.dim or 0 for s in run_reductions.values if s.equal})
    ]
    titles = [
        f"{run_reductions.run}, {epoch_text(run_reductions.epoch, data.get(run_reductions.run))}\nat {dim:,} dimensions"
        for run_reductions, dim in cells
    ]
    reductions = [_restrict_to_dim(run_reductions, dim) for run_reductions, dim in cells]
    layers = [_layers(run_reductions) for run_reductions in reductions]
    stars = _stars(reductions, [dim for _, dim in cells], names, selected)
    lines = [
        pool_tracks({i: layer for i, layer in enumerate(panel_layers) if "+" not in layer.layer})
        for panel_layers in layers
    ]
    pools = list(map(pool_kinds, lines))
    texts = {layer: str(layer) for panel_layers in layers for layer in panel_layers}
    right = fig.width_of(list(names.values())) + 0.25
    count, widest = max(map(len, layers)), fig.width_of(list(texts.values()))
    width = min(max(_LEAST, _FIGURE - _LEFT - right, _LAYER * count), _MOST)
    upright = widest + 0.1 > width / count
    below = widest if upright else 0.15  # the names of the layers
    keys = fig.KEY_ROW * (any(pools) + bool(stars))
    layout = fig.Layout(width, _HEIGHT, right, below=below + 0.33 + keys, columns=2, notes=notes)
    figure, panels = fig.make_panels(titles, layout)
    values = [
        height for run_reductions in reductions for sized in run_reductions.values for height in sized.heights if height
    ] + [height for star in stars.values() for height in star.heights]
    for i, (axes, run_reductions, panel_layers, tracks, kinds) in enumerate(
        zip(panels, reductions, layers, lines, pools, strict=True)
    ):
        axes.set_xlim(-0.6, len(panel_layers) - 0.4)
        axes.set_ylim(fig.limits(values or [0.0, 100.0]))
        axes.set_xticks(range(len(panel_layers)), [visible(texts[layer]) for layer in panel_layers])
        for label in axes.get_xticklabels():
            label.set(rotation=90 if upright else 0, parse_math=False)
        axes.grid(visible=False, axis="x")
        fig.show_percent(axes, "y")
        axes.set_ylabel(f"{run_reductions.values[0].score.metric} on {run_reductions.split}", fontsize=fig.FONT + 1)
        fig.label_right(axes, _draw_reducers(axes, run_reductions, panel_layers, tracks, names))
        if kinds:
            fig.add_legend(axes, kinds, under=below + 0.2)
        if i in stars:
            stars[i].draw(axes)
            fig.add_legend(axes, [stars[i].kind], row=bool(kinds), under=below + 0.2)
    return figure


def _stars(
    cells: Sequence[Reductions], dims: Sequence[int], names: Mapping[Reducer, str], selected: Mapping[str, Selected]
) -> dict[int, Star]:
    """Panel -> the star on it."""
    run_stars: dict[str, tuple[int, Star]] = {}
    for exact in (True, False):
        for i, (cell, dim) in enumerate(zip(cells, dims, strict=True)):
            candidate = selected.get(cell.run)
            fits = (
                candidate is not None
                and candidate.score.ranked.layer in _layers(cell)
                and (candidate.dim == dim or not exact)
            )
            if candidate is not None and fits and cell.run not in run_stars:
                at = _layers(cell).index(candidate.score.ranked.layer) + _shift(
                    Sized(candidate.score, candidate.dim, exact), names
                )
                run_stars[cell.run] = (i, star_of(candidate, at, cell.epoch))
    return dict(run_stars.values())


def _shift(sized: Sized, names: Mapping[Reducer, str]) -> float:
    """How far from its layer's middle a reducer stands; one without a line of its own in the middle."""
    reducer = reducer_of(sized)
    middle = (len(names) - 1) / 2
    return ((list(names).index(reducer) if reducer in names else middle) - middle) * _APART


def _restrict_to_dim(reductions: Reductions, dim: int) -> Reductions:
    """The layers at one equal dimension: reduced to it, unreduced, and after reductions of no equal dimension."""
    layers = {sized.score.ranked.layer for sized in reductions.values if sized.equal and sized.dim == dim}
    values = (s for s in reductions.values if s.score.ranked.layer in layers and (not s.equal or s.dim == dim))
    return replace(reductions, values=tuple(values))


def _layers(reductions: Reductions) -> list[LayerKey]:
    return list(dict.fromkeys(sized.score.ranked.layer for sized in reductions.values))


def _draw_reducers(
    axes: Axes,
    reductions: Reductions,
    layers: Sequence[LayerKey],
    tracks: Sequence[Track],
    names: Mapping[Reducer, str],
) -> list[fig.Label]:
    """Draw the points with their intervals and the lines between them, and return the labels of the lines."""
    styles, labels = reducer_styles(names), []
    for number, (reducer, name) in enumerate(names.items()):
        scores = {sized.score.ranked.layer: sized.score for sized in reductions.values if reducer_of(sized) == reducer}
        shift = (number - (len(names) - 1) / 2) * _APART
        rows = [i for i, layer in enumerate(layers) if layer in scores and scores[layer].value is not None]
        heights = {i: 100 * (scores[layers[i]].value or 0.0) for i in rows}
        style, raw = styles[reducer], reducer.chain == NO_REDUCTION
        for track in tracks:
            steps = [i for i in track.places if i in heights]
            (line,) = axes.plot([i + shift for i in steps], [heights[i] for i in steps], color=style.colour)
            line.set(linestyle=(0, (4, 2)) if raw and not track.pool else track.dashes)
            line.set(linewidth=1.2, alpha=0.7, zorder=2)
            line.set_label(f"_line of {name}")
        (marks,) = axes.plot([i + shift for i in rows], list(heights.values()), color=style.colour, label=name)
        marks.set(
            marker=style.marker, markersize=4.5, linestyle="none", markerfacecolor="white" if raw else style.colour
        )
        ends = {i: interval.percent for i in rows if (interval := scores[layers[i]].interval)}
        bars = axes.vlines([i + shift for i in ends], *zip(*ends.values(), strict=True)) if ends else None
        if bars:
            bars.set(
                color=style.colour,
                linewidth=1.6,
                alpha=min(0.4, 6 / len(layers)),
                zorder=1.5,
                label=f"_interval of {name}",
            )
        if rows:
            labels.append(fig.Label(name, rows[-1] + shift, heights[rows[-1]], style.text))
    _mark_best(axes, reductions, layers, names)
    return labels


def _ends(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if low is None or high is None else (100 * low, 100 * high)


def _mark_best(axes: Axes, reductions: Reductions, layers: Sequence[LayerKey], names: Mapping[Reducer, str]) -> None:
    """Draw a ring around the best post-processing of each layer, in the middle if it has no line of its own."""
    places, heights = [], []
    for sized in reductions.values:
        if sized.chosen and sized.score.value is not None:
            places.append(layers.index(sized.score.ranked.layer) + _shift(sized, names))
            heights.append(100 * sized.score.value)
    (marks,) = axes.plot(places, heights, linestyle="none", marker="o", markersize=9, label="_best")
    marks.set(markerfacecolor="none", markeredgecolor="black", markeredgewidth=1, zorder=4, clip_on=False)
