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
    texts = {s.score.ranked.layer: str(s.score.ranked.layer) for each in reductions for s in each.values}
    styles = fig.styles(list(texts.values()))
    cells = [
        (each, reducer)
        for each in reductions
        for reducer in names
        if any(sized.equal and reducer_of(sized) == reducer for sized in each.values)
    ]
    stars = _stars(cells, selected)
    dims = [s.dim for each in reductions for s in each.values if s.dim is not None]
    dims = sorted({*dims, *(star.selected.dim for star in stars.values())})
    ends = dims[0] / (dims[-1] / dims[0]) ** 0.03, dims[-1] * (dims[-1] / dims[0]) ** 0.03
    named = [_labels(each, reducer, texts, styles, ends) for each, reducer in cells]
    right = fig.width_of([label.text for own in named for label in own]) + 0.25
    width = _FIGURE - _LEFT - right if len(cells) == 1 else _NARROW
    layout = fig.Layout(width, _HEIGHT, right, below=0.6 + fig.KEY_ROW * bool(stars), columns=2, notes=notes)
    titles = [f"{each.run}, {epoch_text(each.epoch, data.get(each.run))}\n{names[reducer]}" for each, reducer in cells]
    figure, panels = fig.panels(titles, layout)
    values = [height for each in reductions for sized in each.values for height in sized.heights if height] + [
        height for star in stars.values() for height in star.heights
    ]
    for i, (axes, (each, reducer), own) in enumerate(zip(panels, cells, named, strict=True)):
        axes.set_xscale("log", base=2)
        axes.set_xlim(ends)
        axes.set_ylim(fig.limits(values or [0.0, 100.0]))
        axes.xaxis.set_major_locator(FixedLocator(_ticks(dims, ends, width)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        fig.in_percent(axes, "y")
        axes.set_xlabel("bits" if reducer.similarity == "hamming" else "dimensions", fontsize=fig.FONT + 1)
        axes.set_ylabel(f"{each.values[0].score.metric} on {each.split}", fontsize=fig.FONT + 1)
        for layer, label in texts.items():
            if values_of := _of(each, reducer, layer):
                _draw_layer(axes, values_of, _raw(each, layer), styles[label], label)
        fig.label_right(axes, own)
        if i in stars:
            stars[i].draw(axes)
            fig.key_below(axes, [stars[i].kind])
    return figure


def _stars(cells: Sequence[tuple[Reductions, Reducer]], selected: Mapping[str, Selected]) -> dict[int, Star]:
    """Panel -> the star on it."""
    found: dict[str, tuple[int, Star]] = {}
    for exact in (True, False):
        for i, (each, reducer) in enumerate(cells):
            one = selected.get(each.run)
            if one is not None and each.run not in found:
                own = reducer_of(Sized(one.score, one.dim, True)) == reducer
                found |= {each.run: (i, star_of(one, one.dim, each.epoch))} if own or not exact else {}
    return dict(found.values())


def _ticks(dims: Sequence[int], ends: tuple[float, float], inches: float) -> list[int]:
    """The dimensions without those whose numbers would touch that of a smaller one."""
    ticks: list[int] = []
    for dim in dims:
        room = math.log(dim / ticks[-1]) / math.log(ends[1] / ends[0]) * inches if ticks else math.inf
        if room > fig.width_of([f"{dim:,}"]) + _BETWEEN:
            ticks.append(dim)
    return ticks


def _of(reductions: Reductions, reducer: Reducer, layer: LayerKey) -> list[Sized]:
    """The valid values of a layer after a reducer, by dimension."""
    own = [
        sized
        for sized in reductions.values
        if sized.equal
        and sized.score.ranked.layer == layer
        and reducer_of(sized) == reducer
        and sized.score.value is not None
    ]
    return sorted(own, key=lambda sized: sized.dim or 0)


def _raw(reductions: Reductions, layer: LayerKey) -> Sized | None:
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
        own = _of(reductions, reducer, layer)
        if own:
            value = 100 * (own[-1].score.value or 0.0)
            # `label_right` takes an axis whose equal steps are equal differences.
            along = math.log((own[-1].dim or 1) / ends[0]) / math.log(ends[1] / ends[0])
            place = ends[0] + along * (ends[1] - ends[0])
            labels.append(fig.Label(f"{text} {value:.1f} %", place, value, styles[text].text))
    return labels


def _along(sized: Sized) -> float:
    """Its place on the axis; NaN, which is not drawn, where its dimensions are unknown."""
    return math.nan if sized.dim is None else sized.dim


def _draw_layer(axes: Axes, own: Sequence[Sized], raw: Sized | None, style: fig.Style, label: str) -> None:
    """Draw a layer's values after a reducer, by dimension, and the unreduced layer."""
    dims, values = list(map(_along, own)), [100 * (s.score.value or 0.0) for s in own]
    (line,) = axes.plot(dims, values, color=style.colour, marker=style.marker, label=label)
    line.set(markersize=style.size * 0.55, linewidth=1.5, clip_on=False)
    band = [(_along(sized), *sized.score.interval.percent) for sized in own if sized.score.interval]
    if band:
        along, lows, highs = (list(column) for column in zip(*band, strict=True))
        area = axes.fill_between(along, lows, highs, color=style.colour, alpha=_BAND)
        area.set(linewidth=0, zorder=0.5, label=f"_interval of {label}")
    if raw:
        (mark,) = axes.plot([_along(raw)], [100 * (raw.score.value or 0.0)], color=style.colour, linestyle="none")
        mark.set(marker=style.marker, markersize=style.size * 0.55, markerfacecolor="white", clip_on=False, zorder=3)
        mark.set_label(f"_{label} unreduced")
    best = [s for s in [*own, *([raw] if raw else [])] if s.chosen]
    heights = [100 * (s.score.value or 0.0) for s in best]
    (ring,) = axes.plot(list(map(_along, best)), heights, linestyle="none")
    ring.set(marker="o", markersize=10, markerfacecolor="none", markeredgecolor="black", zorder=4, clip_on=False)
    ring.set_label("_best")
