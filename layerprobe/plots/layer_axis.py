"""The axis of layers in network order, the best layer on it, and notes on both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from layerprobe.plots import figure as fig
from layerprobe.plots.plot import Indistinguishable
from layerprobe.plots.values import Series, metric_of, search_name
from layerprobe.system.wording import visible
from layerprobe.values.best import Best, apart_text, best_layer, worse_text
from layerprobe.values.layers import LayerKey
from layerprobe.values.scores import Score

_LAYER = 0.185  # inches of width for each layer
_WIDTHS = (2.6, 9.0)
_NAMED = 10  # of more indistinguishable layers a caption gives the number


@dataclass(frozen=True)
class Sizes:
    """Sizes of axes with a tick for each layer, in inches."""

    width: float
    names: float
    upright: bool


@dataclass(frozen=True)
class Track:
    """A line through layers.

    Args:
        positions: of the layers that it joins.
        pool: of these layers; empty where they have one pool each.
    """

    positions: Sequence[int]
    pool: str = ""
    dashes: fig.Dashes = "-"


def sizes_of(runs: Mapping[str, Series]) -> Sizes:
    """Sizes that leave room for the names of the layers."""
    widest = fig.width_of([name for series in runs.values() for name in series], "bold")  # as that of the best layer is
    count = max(map(len, runs.values()))
    width = min(max(_WIDTHS[0], _LAYER * count), _WIDTHS[1])
    upright = widest + 0.1 > width / count
    return Sizes(width, widest if upright else 0.15, upright)


def points_at_epoch(series: Series, epoch: int) -> Series:
    """The layers with only their point of an epoch, if any."""
    return {name: [point for point in layer if point.epoch == epoch] for name, layer in series.items()}


def heights(series: Series, split: str) -> list[float]:
    """Percent of each layer, which has at most one point; NaN without a value."""
    percents = [layer[0].percent(split) if layer else None for layer in series.values()]
    return [np.nan if value is None else value for value in percents]


def name_layers(axes: Axes, names: Sequence[str], *, upright: bool) -> None:
    """Name the layers under the axes."""
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xticks(range(len(names)), list(map(visible, names)))
    axes.grid(visible=False, axis="x")
    for label in axes.get_xticklabels():
        label.set(rotation=90 if upright else 0, parse_math=False)


def tracks(series: Series) -> list[Track]:
    """The lines through the layers: one for each reduction, and for each pool where layers have several.

    A layer with one pool, such as a vector among maps, is on every line of its reduction. Each `A+B` is on its own, as
    it is no step of the network.
    """
    points = [layer[0] for layer in series.values()]
    joint = [i for i, point in enumerate(points) if "+" in point.ranked.layer.layer]
    lines: list[Track] = []
    for reduction in dict.fromkeys(point.ranked.reduction for point in points):
        rows = [i for i, point in enumerate(points) if point.ranked.reduction == reduction and i not in joint]
        lines += pool_tracks({i: points[i].ranked.layer for i in rows})
    return lines + [Track([i]) for i in joint]


def pool_tracks(layers: Mapping[int, LayerKey]) -> list[Track]:
    """The lines through layers of one reduction: one for each pool where layers have several.

    Args:
        layers: position -> layer.
    """
    times = Counter(key.layer for key in layers.values())
    pools = list(dict.fromkeys(key.pool for key in layers.values() if times[key.layer] > 1))
    lines = []
    # Without any such layer, every layer is on the one line.
    for number, pool in enumerate(pools or [""]):
        positions = [i for i, key in layers.items() if times[key.layer] == 1 or key.pool == pool]
        lines.append(Track(positions, pool, fig.LINES[number % len(fig.LINES)]))
    return [line for line in lines if line.positions]


def pool_kinds(lines: Iterable[Track]) -> list[dict[str, object]]:
    """Legend entries of the pools that have a line of their own."""
    dashes = {track.pool: track.dashes for track in lines if track.pool}
    line = {"marker": "", "linewidth": 1.6}
    return [line | {"label": f"pool {pool}", "linestyle": pool_dashes} for pool, pool_dashes in dashes.items()]


def fractions(layers: Series, split: str) -> list[float | None]:
    """The value of each layer, which has at most one point; None without a value."""
    return [layer[0].values.get(split) if layer else None for layer in layers.values()]


def best_of(layers: Series) -> tuple[Best | None, dict[str, list[float | None]]]:
    """The best layer, and the values by split from which it was chosen."""
    splits = next((layer[0].chosen_on for layer in layers.values() if layer), ())
    values = {split: fractions(layers, split) for split in splits}
    return best_layer(values), values


def indistinguishable_notes(
    runs: Mapping[str, Series], scores: Sequence[Score], indistinguishable: Indistinguishable
) -> list[str]:
    """A note for each panel that names the layers indistinguishable from the best, where known."""
    lines = []
    for run, series in runs.items():
        best, _ = best_of(series)
        epochs = {point.epoch for layer in series.values() for point in layer}
        # With several reductions or similarities, `by_search` has named the panels.
        panel_scores = [s for s in scores if s.epoch in epochs and run in (s.run, search_name(s))]
        near = indistinguishable(panel_scores, metric_of(scores)) if best else None
        if best and near is not None:
            names = [name for name, layer in series.items() if layer and layer[0].ranked in near]
            text = apart_text(
                best, names if len(names) <= _NAMED else [f"{len(names)} of the {len(series) - 1} others"]
            )
            lines.append(f"{run}: " * (len(runs) > 1) + f"best: {list(series)[best.place]}; {text}")
    return lines


def worsening_notes(runs: Mapping[str, Series], last_epochs: Mapping[str, int], starts: Mapping[str, str]) -> list[str]:
    """A note for each panel in which training made a layer worse."""
    lines = []
    for run, series in runs.items():
        before, trained = (fractions(points_at_epoch(series, epoch), "test") for epoch in (0, last_epochs[run]))
        metric = next(point.metric for layer in series.values() for point in layer)
        if text := worse_text(list(series), before, trained, metric, starts[run]):
            lines.append(f"{run}: " * (len(runs) > 1) + text)
    return lines


def mark_best(axes: Axes, layers: Series, names: Sequence[str], colour: fig.Colour | str = "black") -> None:
    """Draw a ring around the best layer, at its test value, or at the one it was chosen by."""
    best, values = best_of(layers)
    if best:
        position, on_test = names.index(list(layers)[best.place]), values["test"][best.place]
        height = on_test if on_test is not None else values[best.split][best.place]
        (ring,) = axes.plot(position, 100 * (height or 0), marker="o", markersize=12, linestyle="none")
        ring.set(markerfacecolor="none", markeredgecolor=colour, markeredgewidth=1.3, zorder=4, label="_best")
        axes.get_xticklabels()[position].set(weight="bold")
