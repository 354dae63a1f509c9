"""Recall of each layer on the training and test set over the epochs (Vo & Hays 2019, Fig. 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from layerprobe.facts import DataFacts, common_chance, level_text, run_lines
from layerprobe.plots import figure as fig
from layerprobe.plots.plot import Layers, ScorePlot
from layerprobe.plots.values import (
    Point,
    Series,
    as_they_are,
    by_run,
    compared,
    layer_names,
    missing,
    not_drawn,
    of_one_kind,
    points,
    shared,
    unreduced_csv,
)
from layerprobe.scores import Score

_WIDTH, _HEIGHT = 5.6, 4.6  # inches
_LABEL = 0.165  # inches of height that a label needs
_SPLITS = ("test", "train")
# With more layers than this, each split gets a panel of its own.
_TOGETHER = 8
_MARKS = 8  # markers on a curve, about
_BAND = 0.13  # how opaque a band is
_BANDS = 0.45  # how opaque all those together are that lie over each other, at most


def draw(
    scores: Sequence[Score],
    *,
    metric: str = "R@1",
    data: Mapping[str, DataFacts] | None = None,
    layers: Layers | None = None,
) -> Figure:
    """Draw a panel for each run, or for each split of a run; each curve is labelled with its last value in percent.

    A band around a curve is its interval. Where both splits share a panel, the test curves alone have one. Layers that
    are reduced are drawn only where none is as it is.

    Args:
        scores: of one or more runs.
        metric: what is drawn.
        data: run -> what its scores were measured on; chance levels on which the runs agree are drawn.
        layers: those that are drawn; None for all.

    Raises:
        LayerprobeError: no score of this metric.
    """
    scores = scores if layers is None else [score for score in scores if score.ranked_layer in layers]
    found = points(as_they_are(scores), metric)
    names = layer_names(by_run(found))
    styles = fig.styles(names)
    epochs = sorted({point.epoch for point in found})
    together = len(names) <= _TOGETHER
    banded = () if len(epochs) == 1 else _SPLITS[:1] if together else _SPLITS
    found, kind = of_one_kind(found, lambda _, split: split in banded)
    runs = by_run(found)
    data = data or {}
    floors = {split: 100 * value for split, value in common_chance(data.values()).items()}
    y_limits = _limits(found, floors)
    notes = (
        run_lines(data)
        + shared(runs)
        + missing(runs, _SPLITS)
        + list(kind.lines("Bands around test curves" if together else "Bands"))
        + fig.chance_outside(dict.fromkeys(_SPLITS, y_limits), floors)
    )
    if len(epochs) == 1:
        notes.append(f"One epoch only ({epochs[0]}): no curves.")
    notes += not_drawn(scores)

    shown = [split for split in _SPLITS if any(point.percent(split) is not None for point in found)] or ["test"]
    groups = [shown] if together else [[split] for split in shown]
    cells = [(run, group) for run in runs for group in groups]
    labels = [_labels(runs[run], styles, group) for run, group in cells]
    layout = fig.Layout(
        _WIDTH,
        max(_HEIGHT, _LABEL * max(map(len, labels))),
        fig.width_of([label.text for panel in labels for label in panel]) + 0.35,
        columns=len(groups) if len(groups) > 1 else 3,
        notes=notes,
    )
    titles = [f"{run}: {' and '.join(group)} {metric} over epochs, {compared(runs[run])}" for run, group in cells]
    figure, panels = fig.panels(titles, layout)
    for axes, (run, group), named in zip(panels, cells, labels, strict=True):
        _set_axes(axes, epochs, y_limits, metric)
        _draw_chance(axes, {split: floors[split] for split in group if split in floors})
        _draw_curves(axes, runs[run], styles, group)
        fig.label_right(axes, named)
        fig.key_below(axes, [_mark(split, fig.GREY) | {"label": split} for split in group])
    return figure


def _limits(found: Sequence[Point], floors: Mapping[str, float]) -> tuple[float, float]:
    values = [value for point in found for split in _SPLITS if (value := point.percent(split)) is not None]
    values += [end for point in found for split in _SPLITS for end in point.ends(split) or ()]
    return fig.limits(values or [0.0, 100.0], min(floors.values(), default=None))


def _valid(layer: Sequence[Point], split: str) -> tuple[list[int], list[float]]:
    """Epochs and percent of a layer's valid values."""
    valid = [(point.epoch, value) for point in layer if (value := point.percent(split)) is not None]
    return [epoch for epoch, _ in valid], [value for _, value in valid]


def _labels(series: Series, styles: Mapping[str, fig.Style], group: Sequence[str]) -> list[fig.Label]:
    last = max(point.epoch for layer in series.values() for point in layer)
    labels = []
    for name, layer in series.items():
        for split in group:
            epochs, values = _valid(layer, split)
            if values:
                parts = [name, *([split] if len(group) > 1 else []), f"{values[-1]:.1f} %"]
                parts += [f"(epoch {epochs[-1]})"] if epochs[-1] != last else []
                labels.append(fig.Label(" ".join(parts), epochs[-1], values[-1], styles[name].text))
    return labels


def _set_axes(axes: Axes, epochs: Sequence[int], y_limits: tuple[float, float], metric: str) -> None:
    margin = 0.02 * (epochs[-1] - epochs[0]) or 0.5
    axes.set_xlim(epochs[0] - margin, epochs[-1] + margin)
    axes.set_ylim(y_limits)
    if len(epochs) == 1:
        axes.set_xticks(epochs)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    fig.in_percent(axes, "y")
    axes.set_xlabel("epoch", fontsize=fig.FONT + 1)
    axes.set_ylabel(metric, fontsize=fig.FONT + 1)


def _draw_chance(axes: Axes, floors: Mapping[str, float]) -> None:
    bottom, top = axes.get_ylim()
    inside = {split: floor for split, floor in floors.items() if bottom < floor < top}
    for split, floor in inside.items():
        axes.axhline(floor, color="0.55", linewidth=1, linestyle=":", zorder=1, label=f"_chance {split}")
    if inside:
        text = "chance: " + ", ".join(f"{split} {level_text(floor)}" for split, floor in inside.items())
        place = (axes.get_xlim()[1], max(inside.values()))
        note = axes.annotate(text, place, xytext=(-3, 3), textcoords="offset points")
        note.set(ha="right", fontsize=fig.FONT - 1, color=fig.GREY)


def _draw_curves(axes: Axes, series: Series, styles: Mapping[str, fig.Style], group: Sequence[str]) -> None:
    for split in group:
        _draw_bands(axes, series, styles, split)
    for i, (name, layer) in enumerate(series.items()):
        style = styles[name]
        for split in group:
            epochs, values = _valid(layer, split)
            # The markers of each curve are at other epochs: so curves that coincide can still be told apart.
            step = max(1, len(epochs) // _MARKS)
            (curve,) = axes.plot(epochs, values)
            curve.set(**_mark(split, style.colour), marker=style.marker, markersize=style.size * 0.55)
            curve.set(markevery=(i % step, step), clip_on=False, label=f"{name} {split}")


def _draw_bands(axes: Axes, series: Series, styles: Mapping[str, fig.Style], split: str) -> None:
    """Shade the intervals of the curves; where an epoch has none the band is broken."""
    bands = {name: _ends(layer, split) for name, layer in series.items() if any(split in p.intervals for p in layer)}
    # The more bands lie over each other, the lighter they are: so the curves stay visible.
    opacity = min(_BAND, 1 - (1 - _BANDS) ** (1 / max(_most_together(list(bands.values())), 1)))
    for name, ends in bands.items():
        epochs, low, high = zip(*ends, strict=True)
        band = axes.fill_between(epochs, low, high, color=styles[name].colour, alpha=opacity)
        band.set(linewidth=0, zorder=0.5, label=f"_interval of {name} {split}")


def _ends(layer: Sequence[Point], split: str) -> list[tuple[int, float, float]]:
    """Epoch, low and high end in percent of each point; NaN where it has no interval."""
    return [(point.epoch, *(point.ends(split) or (math.nan, math.nan))) for point in layer]


def _most_together(bands: Sequence[Sequence[tuple[int, float, float]]]) -> int:
    """How many bands lie over each other where most do."""
    by_epoch: dict[int, list[tuple[float, float]]] = {}
    for band in bands:
        for epoch, low, high in band:
            by_epoch.setdefault(epoch, []).append((low, high))
    return max((sum(a <= low <= b for a, b in own) for own in by_epoch.values() for low, _ in own), default=0)


def _mark(split: str, colour: fig.Colour | str) -> dict[str, object]:
    """Style of a split's curves: solid and filled for test, dashed and hollow for training."""
    if split == "test":
        return {"color": colour, "linestyle": "-", "linewidth": 1.6, "markerfacecolor": colour}
    return {"color": colour, "linestyle": (0, (5, 2)), "linewidth": 1.0, "markerfacecolor": "white"}


PLOT = ScorePlot(draw, unreduced_csv)
