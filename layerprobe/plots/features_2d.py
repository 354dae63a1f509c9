"""Features of a layer of two dimensions as points (Horiguchi et al. 2019, figure 1; Zhang et al. 2018, figure 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from layerprobe.plots import figure as fig
from layerprobe.plots.plot import Drawing, Plot, PlotOptions, PlotSource, csv_text
from layerprobe.system.wording import visible
from layerprobe.values.facts import DataFacts, epoch_text, image_lines, split_text
from layerprobe.values.layers import names_by_layer
from layerprobe.values.scores import note_text, shared_notes
from layerprobe.values.views import PlaneFeatures

_SIDE, _GAP = 1.75, 0.55  # inches
_MARGIN = 0.08  # of the larger range, on every side
_REACH = 0.35  # of the larger range of the points: the length of the longest ray
_NAMED = 20  # classes of a panel that are named
_NAME = 14  # characters
_COLOURS = colormaps["tab10"].colors  # type: ignore[attr-defined] # a ListedColormap
_MARKERS = "o^sDv"  # of the second ten classes and so on
_RAYS = (
    "A ray with a diamond is the direction of the classifier's weight vector of a training class; the lengths of the "
    "rays are in proportion to the weights'. They begin at the feature that the classifier takes for 0."
)

Key = tuple[str, str]  # run and layer


def draw(features: Sequence[PlaneFeatures], *, data: Mapping[str, DataFacts] | None = None) -> Figure:
    """Draw a row of panels for each run and layer, with a panel for each split, both on the same axes.

    The classes have a colour each, and a name at their median; above 10 classes colours repeat with other markers.

    Args:
        data: run -> the data it was measured on.
    """
    names = names_by_layer(layer_features.ranked for layer_features in features)
    rows: dict[Key, dict[str, PlaneFeatures]] = {}
    for layer_features in features:
        rows.setdefault((layer_features.run, names[layer_features.ranked]), {})[layer_features.split] = layer_features
    splits = list(dict.fromkeys(layer_features.split for layer_features in features))
    cells = [(by_split, split) for by_split in rows.values() for split in splits]
    titles = [_title(by_split, split, key, data or {}) for key, by_split in rows.items() for split in splits]
    layout = fig.Layout(
        _SIDE, _SIDE, 0.12, below=0.45, left=_GAP, columns=len(splits), notes=_notes(features, data or {})
    )
    figure, panels = fig.make_panels(titles, layout)
    for axes, (by_split, split) in zip(panels, cells, strict=True):
        _set_axes(axes, list(by_split.values()))
        if split in by_split:
            # Those of the other split are as long.
            _draw_points(axes, by_split[split], _rays(next(iter(by_split.values()))))
    return figure


def _title(by_split: Mapping[str, PlaneFeatures], split: str, key: Key, data: Mapping[str, DataFacts]) -> str:
    run, layer = key
    name = split_text(split, [data[run]] if run in data else [])
    return f"{run}, {layer}\n{name}" if split in by_split else f"{run}, {layer}\nno {name}"


def _set_axes(axes: Axes, features: Sequence[PlaneFeatures]) -> None:
    places = np.concatenate(
        [
            np.array([*split_features.points, *(end for _, ray in _rays(split_features) for end in ray)])
            for split_features in features
        ]
    )
    low, high = places.min(0), places.max(0)
    half = (0.5 + _MARGIN) * float((high - low).max()) or 1.0
    for which, middle in zip("xy", (low + high) / 2, strict=True):
        axes.set(**{f"{which}lim": (float(middle) - half, float(middle) + half)})
        getattr(axes, f"{which}axis").set_major_locator(MaxNLocator(4))
    axes.set_xlabel("dimension 1", fontsize=fig.FONT)
    axes.set_ylabel("dimension 2", fontsize=fig.FONT)


def _rays(features: PlaneFeatures) -> list[tuple[str, list[fig.Position]]]:
    """Class, start and end of each ray."""
    if not features.weights:
        return []
    places = np.array([*features.points, features.origin])
    reach = _REACH * float(np.ptp(places, 0).max())
    longest = max(float(np.hypot(*weight)) for _, weight in features.weights) or 1.0
    (x, y), factor = features.origin, reach / longest
    return [(name, [(x, y), (x + factor * across, y + factor * up)]) for name, (across, up) in features.weights]


def _draw_points(axes: Axes, features: PlaneFeatures, rays: Sequence[tuple[str, list[fig.Position]]]) -> None:
    points, classes = np.array(features.points), np.array(features.classes)
    names = sorted(set(features.classes))
    size = float(np.clip(2500 / len(points), 1.5, 9))
    for number, name in enumerate(names):
        class_points = points[classes == name]
        marker = _MARKERS[number // len(_COLOURS) % len(_MARKERS)]
        dots = axes.scatter(
            class_points[:, 0],
            class_points[:, 1],
            s=size,
            color=_COLOURS[number % len(_COLOURS)],
            marker=marker,
            linewidths=0,
        )
        dots.set(alpha=0.6, rasterized=True, label=name, zorder=2)
    for name, ray in rays:
        # The classes of the other split have no ray of their own: all rays are grey there.
        colour = _COLOURS[names.index(name) % len(_COLOURS)] if name in names else "0.6"
        (line,) = axes.plot(*zip(*ray, strict=True), color=colour, linewidth=1.2, marker="D", markersize=4)
        line.set(markevery=[1], markeredgecolor="black", markeredgewidth=0.6, label=f"_weight of {name}", zorder=5.5)
    labels = []
    if len(names) <= _NAMED:
        for number, name in enumerate(names):
            middle = np.median(points[classes == name], 0)
            colour = fig.Style(_COLOURS[number % len(_COLOURS)], "o").text
            labels.append(fig.Label(_shorten(name), float(middle[0]), float(middle[1]), colour, fig.FONT - 1))
    fig.label_points(axes, labels, [ray for _, ray in rays], [ray[-1] for _, ray in rays])


def _shorten(name: str) -> str:
    name = visible(name)
    return name if len(name) <= _NAME else f"…{name[1 - _NAME :]}"


def _notes(features: Sequence[PlaneFeatures], data: Mapping[str, DataFacts]) -> list[str]:
    common = shared_notes(layer_features.notes for layer_features in features)
    epochs = dict.fromkeys((layer_features.run, layer_features.epoch) for layer_features in features)
    lines = [
        f"{layer_features.run}, {layer_features.split}: {note}"
        for layer_features in features
        for note in layer_features.notes
        if note not in common
    ]
    has_unnamed_classes = any(len(set(layer_features.classes)) > _NAMED for layer_features in features)
    return [
        "; ".join(f"{run}, {epoch_text(epoch, data.get(run))}" for run, epoch in epochs) + ". A colour is a class.",
        *([_RAYS] if any(layer_features.weights for layer_features in features) else []),
        *([f"Above {_NAMED} classes none is named."] if has_unnamed_classes else []),
        *image_lines(data, {layer_features.split for layer_features in features}),
        *common,
        *dict.fromkeys(lines),
    ]


def plane_csv(features: Sequence[PlaneFeatures]) -> str:
    """A line for each image, and for each weight of the classifier."""
    head = ["run", "epoch", "split", "layer", "pool", "reduction", "kind", "class", "x", "y", "note"]
    rows: list[list[object]] = [[*head]]
    for layer_features in features:
        layer = layer_features.ranked.layer
        key = [
            layer_features.run,
            layer_features.epoch,
            layer_features.split,
            layer.layer,
            layer.pool,
            layer_features.ranked.reduction,
        ]
        end = note_text(layer_features.notes)
        rows += [
            [*key, "image", name, *point, end]
            for name, point in zip(layer_features.classes, layer_features.points, strict=True)
        ]
        rows += [[*key, "weight", name, *weight, end] for name, weight in layer_features.weights]
        rows += [[*key, "origin", "", *layer_features.origin, end]] if layer_features.weights else []
    return csv_text(rows)


def plot(source: PlotSource, options: PlotOptions) -> Drawing:
    """Draw the embedding of each run, or the requested layers of two dimensions."""
    features = source.plane_features(options)
    return Drawing(
        draw(features, data=source.data(layer_features.run for layer_features in features)), plane_csv(features)
    )


PLOT = Plot(plot)
