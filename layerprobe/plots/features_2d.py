"""Features of a layer of two dimensions as points (Horiguchi et al. 2019, figure 1; Zhang et al. 2018, figure 2).

Those of three dimensions are drawn by their direction, azimuth and elevation (Horiguchi et al., figure 1 (c)).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from layerprobe.plots import figure as fig
from layerprobe.plots.drawn_scores import shared_then_single
from layerprobe.plots.plot import Drawing, Plot, PlotOptions, PlotSource, csv_text
from layerprobe.system.wording import visible
from layerprobe.values.facts import DataFacts, epoch_text, image_lines, split_text
from layerprobe.values.layers import names_by_layer
from layerprobe.values.retrieval import FloatArray
from layerprobe.values.scores import note_text
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
_DIRECTIONS = "Of features of 3 dimensions the direction is drawn; their length is left out."


def draw(features: Sequence[PlaneFeatures], *, data: Mapping[str, DataFacts] | None = None) -> Figure:
    """Draw a row of panels for each run and layer, with a panel for each split, both on the same axes.

    The classes have a colour each, and a name at their median; above 10 classes colours repeat with other markers.
    """
    names = names_by_layer(layer_features.ranked for layer_features in features)
    rows: dict[tuple[str, str], dict[str, PlaneFeatures]] = {}  # run and layer
    for layer_features in features:
        rows.setdefault((layer_features.run, names[layer_features.ranked]), {})[layer_features.split] = layer_features
    splits = list(dict.fromkeys(layer_features.split for layer_features in features))
    cells = [(by_split, split) for by_split in rows.values() for split in splits]
    titles = []
    for (run, layer), by_split in rows.items():
        for split in splits:
            name = split_text(split, [data[run]] if data and run in data else [])
            titles.append(f"{run}, {layer}\n{'' if split in by_split else 'no '}{name}")
    epochs = dict.fromkeys((layer_features.run, layer_features.epoch) for layer_features in features)
    notes = ["; ".join(f"{run}, {epoch_text(epoch, (data or {}).get(run))}" for run, epoch in epochs)]
    notes[0] += ". A colour is a class."
    notes += [_RAYS] if any(layer_features.weights for layer_features in features) else []
    notes += [_DIRECTIONS] if any(layer_features.directions for layer_features in features) else []
    if any(len(set(layer_features.classes)) > _NAMED for layer_features in features):
        notes.append(f"Above {_NAMED} classes none is named.")
    notes += image_lines(data or {}, set(splits))
    notes += shared_then_single([(f"{x.run}, {x.split}", x.notes) for x in features])
    layout = fig.PanelLayout(_SIDE, _SIDE, 0.12, below=0.45, left=_GAP, columns=len(splits), notes=notes)
    figure, panels = fig.make_panels(titles, layout)
    for axes, (by_split, split) in zip(panels, cells, strict=True):
        _set_axes(axes, list(by_split.values()))
        if split in by_split:
            # Those of the other split are as long.
            _draw_points(axes, by_split[split], _rays(next(iter(by_split.values()))))
    return figure


def _set_axes(axes: Axes, features: Sequence[PlaneFeatures]) -> None:
    if any(split_features.directions for split_features in features):
        axes.set(xlim=(-180, 180), ylim=(-90, 90), xticks=range(-180, 181, 90), yticks=range(-90, 91, 45))
        axes.set_xlabel("azimuth, degrees", fontsize=fig.FONT)
        axes.set_ylabel("elevation, degrees", fontsize=fig.FONT)
        return
    ends = [end for split_features in features for _, ray in _rays(split_features) for end in ray]
    limit_square(axes, [*(point for split_features in features for point in split_features.points), *ends])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4))
    axes.set_xlabel("dimension 1", fontsize=fig.FONT)
    axes.set_ylabel("dimension 2", fontsize=fig.FONT)


def limit_square(axes: Axes, places: Sequence[fig.Position]) -> None:
    """Limit both axes to one range around some places."""
    low, high = np.min(places, 0), np.max(places, 0)
    half = (0.5 + _MARGIN) * float((high - low).max()) or 1.0
    for which, middle in zip("xy", (low + high) / 2, strict=True):
        axes.set(**{f"{which}lim": (float(middle) - half, float(middle) + half)})


def _rays(features: PlaneFeatures) -> list[tuple[str, list[fig.Position]]]:
    """Class, start and end of each ray."""
    if not features.weights:
        return []
    places = np.array([*features.points, features.origin])
    reach = _REACH * float(np.ptp(places, 0).max())
    longest = max(float(np.hypot(*weight)) for _, weight in features.weights) or 1.0
    (x, y), factor = features.origin, reach / longest
    return [(name, [(x, y), (x + factor * across, y + factor * up)]) for name, (across, up) in features.weights]


def class_styles(names: Iterable[str]) -> dict[str, fig.Style]:
    """A colour for each class, in the order of their names; above 10 classes colours repeat with other markers."""
    return {
        name: fig.Style(_COLOURS[number % len(_COLOURS)], _MARKERS[number // len(_COLOURS) % len(_MARKERS)])
        for number, name in enumerate(sorted(set(names)))
    }


def draw_dots(axes: Axes, points: FloatArray, groups: NDArray[np.str_], styles: Mapping[str, fig.Style]) -> None:
    """Draw points, those of a group in its style, the last group on top.

    Args:
        points: (N, 2).
        groups: (N,) keys of the styles.
    """
    size = float(np.clip(2500 / len(points), 1.5, 9))
    for name, style in styles.items():
        group_points = points[groups == name]
        dots = axes.scatter(
            group_points[:, 0], group_points[:, 1], s=size, color=style.colour, marker=style.marker, linewidths=0
        )
        dots.set(alpha=0.6, rasterized=True, label=name, zorder=2)


def name_classes(  # noqa: PLR0913 - the points, and what is around their labels
    axes: Axes,
    points: FloatArray,
    classes: NDArray[np.str_],
    styles: Mapping[str, fig.Style],
    *,
    paths: Sequence[Sequence[fig.Position]] = (),
    marks: Sequence[fig.Position] = (),
) -> None:
    """Name classes at the median of their points; their names are shortened.

    Args:
        points: (N, 2).
        classes: (N,) names.
        styles: class -> style.
        paths: lines that labels avoid.
        marks: points that labels avoid.
    """
    labels = []
    for name, style in styles.items():
        middle = np.median(points[classes == name], 0)
        shown = visible(name)
        short = shown if len(shown) <= _NAME else f"…{shown[1 - _NAME :]}"
        labels.append(fig.Label(short, float(middle[0]), float(middle[1]), style.text, fig.FONT - 1))
    fig.label_points(axes, labels, paths, marks)


def _draw_points(axes: Axes, features: PlaneFeatures, rays: Sequence[tuple[str, list[fig.Position]]]) -> None:
    points, classes = np.array(features.points), np.array(features.classes)
    styles = class_styles(features.classes)
    draw_dots(axes, points, classes, styles)
    for name, ray in rays:
        # The classes of the other split have no ray of their own: all rays are grey there.
        colour = styles[name].colour if name in styles else "0.6"
        (line,) = axes.plot(*zip(*ray, strict=True), color=colour, linewidth=1.2, marker="D", markersize=4)
        line.set(markevery=[1], markeredgecolor="black", markeredgewidth=0.6, label=f"_weight of {name}", zorder=5.5)
    named = styles if len(styles) <= _NAMED else {}
    if features.directions:  # -180 and 180 degrees are one azimuth, which a median would not know
        points = np.array([_mean_direction(points[classes == name]) for name in styles])
        classes = np.array([*styles])
    name_classes(axes, points, classes, named, paths=[ray for _, ray in rays], marks=[ray[-1] for _, ray in rays])


def _mean_direction(points: FloatArray) -> NDArray[np.float64]:
    """(N, 2) azimuth and elevation -> (2,) those of the sum of the directions."""
    azimuth, elevation = np.radians(points).T
    across = np.exp(1j * azimuth) * np.cos(elevation)
    total, up = across.sum(), np.sin(elevation).sum()
    return np.degrees([np.angle(total), np.arctan2(up, abs(total))])


def plane_csv(features: Sequence[PlaneFeatures]) -> str:
    """A line for each image, and for each weight of the classifier; of a direction x and y are its angles."""
    head = ["run", "epoch", "split", "layer", "pool", "post_processing", "kind", "class", "x", "y", "note"]
    rows: list[list[object]] = [[*head]]
    for x in features:
        layer, end = x.ranked.layer, note_text(x.notes)
        key = [x.run, x.epoch, x.split, layer.layer, layer.pool, x.ranked.post_processing]
        kind = "direction" if x.directions else "image"
        rows += [[*key, kind, name, *point, end] for name, point in zip(x.classes, x.points, strict=True)]
        rows += [[*key, "weight", name, *weight, end] for name, weight in x.weights]
        rows += [[*key, "origin", "", *x.origin, end]] if x.weights else []
    return csv_text(rows)


def plot(source: PlotSource, options: PlotOptions) -> Drawing:
    """Draw the embedding of each run, or the requested layers of two or three dimensions."""
    features = source.plane_features(options)
    return Drawing(
        draw(features, data=source.data(layer_features.run for layer_features in features)), plane_csv(features)
    )


PLOT = Plot(plot)
