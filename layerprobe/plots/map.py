"""Features of layers in two dimensions: the same images in a panel for each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from layerprobe.plots import figure as fig
from layerprobe.plots.drawn_scores import shared_then_single
from layerprobe.plots.features_2d import class_styles, draw_dots, limit_square, name_classes
from layerprobe.plots.panels import RIGHT, WRONG
from layerprobe.plots.plot import Drawing, Plot, PlotOptions, PlotSource, csv_text
from layerprobe.values.facts import DataFacts, epoch_text, image_lines, level_text
from layerprobe.values.layers import names_by_layer
from layerprobe.values.scores import note_text
from layerprobe.values.views import Projection

_SIDE, _GAP = 2.3, 0.16  # inches
_METHODS = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}
_OTHERS = ""  # the images that do not stand out; no class has this name
_PALE = fig.Style(to_rgb("0.82"), "o")
_OUTCOMES = {
    "tied": fig.Style(to_rgb("0.45"), "s"),
    "right": fig.Style(to_rgb(RIGHT.colour), "o"),
    "wrong": fig.Style(to_rgb(WRONG.colour), "^"),
}
_KEPT = (
    "Neighbours kept: of an image's 10 nearest by the layer, among the images drawn, the share that is among its 10 "
    "nearest in the picture, on average; by chance as many as in a random picture."
)


def draw(projections: Sequence[Projection], *, data: Mapping[str, DataFacts] | None = None) -> Figure:
    """Draw a panel for each layer, with the share of neighbours that it keeps.

    At most twelve classes have a colour each, and a name at their median; of more, the colours tell whether the nearest
    neighbour is right.

    Args:
        projections: at least one, all of the same images.
    """
    data = data or {}
    names = names_by_layer(projection.ranked for projection in projections)
    runs = dict.fromkeys((projection.run, projection.epoch) for projection in projections)
    titles = [f"{x.run}, {names[x.ranked]}" if len(runs) > 1 else names[x.ranked] for x in projections]
    first_projection = projections[0]
    has_outcomes = bool(first_projection.right)
    whose = "; ".join(f"{run}, {epoch_text(epoch, data.get(run))}" for run, epoch in runs)
    colours = "Colours: whether the nearest neighbour is right." if has_outcomes else "A colour is a class."
    drawn, total = len(first_projection.images), first_projection.total
    images = f"{drawn:,} of {total:,} {first_projection.split} images are drawn" if drawn < total else ""
    notes = [f"{whose}. {_METHODS[first_projection.method]}. {colours}", _KEPT]
    notes += [images] if images else []
    notes += image_lines(data, {first_projection.split})
    notes += shared_then_single([(f"{x.run}, {names[x.ranked]}", x.notes) for x in projections])
    columns, key = 2 if len(projections) == 4 else 3, 1.5 * fig.KEY_ROW * has_outcomes
    layout = fig.PanelLayout(_SIDE, _SIDE, 0.12, below=0.5, left=_GAP, above=0.4, key=key, columns=columns, notes=notes)
    figure, panels = fig.make_panels(titles, layout)
    for axes, projection in zip(panels, projections, strict=True):
        _draw_panel(axes, projection)
    if has_outcomes:
        _add_key(panels[columns * ((len(panels) - 1) // columns)], projections)
    return figure


def _draw_panel(axes: Axes, projection: Projection) -> None:
    points = np.array(projection.points)
    groups, styles = _groups(projection)
    limit_square(axes, projection.points)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color="0.8")
    draw_dots(axes, points, groups, styles)
    named = {} if projection.right else {name: style for name, style in styles.items() if name != _OTHERS}
    name_classes(axes, points, groups, named)
    lines = ["no neighbours: a single image"]
    if projection.kept is not None:
        lines = [f"neighbours kept: {level_text(100 * projection.kept)}"]
        lines.append(f"chance: {level_text(100 * projection.chance)}")
    if projection.variance is not None:
        lines[-1] += f"; variance: {level_text(100 * projection.variance)}"
    axes.set_xlabel("\n".join(lines), fontsize=fig.FONT - 0.5, loc="left", linespacing=1.3)


def _groups(projection: Projection) -> tuple[NDArray[np.str_], dict[str, fig.Style]]:
    """(N,) the group of each image, and the style of each group that has any, the last one on top."""
    if projection.right:
        outcomes = {None: "tied", True: "right", False: "wrong"}
        groups, styles = np.array([outcomes[right] for right in projection.right]), dict(_OUTCOMES)
    else:
        groups = np.array([image.name for image in projection.images])
        styles = class_styles(groups.tolist())
    marked = np.array(projection.marked)
    groups = np.where(marked, groups, _OTHERS)
    present = set(groups.tolist())
    return groups, {name: style for name, style in {_OTHERS: _PALE, **styles}.items() if name in present}


def _add_key(axes: Axes, projections: Sequence[Projection]) -> None:
    """Name the outcomes below a panel, those that any panel has."""
    styles = {name: style for projection in projections for name, style in _groups(projection)[1].items()}
    in_order = [(name, styles[name]) for name in ("right", "wrong", "tied", _OTHERS) if name in styles]
    kinds: list[dict[str, object]] = [
        {"label": name or "others", "color": style.colour, "marker": style.marker} for name, style in in_order
    ]
    fig.add_legend(axes, kinds, under=0.48)


def projections_csv(projections: Sequence[Projection]) -> str:
    """A line for each image of each layer."""
    head = ["run", "epoch", "split", "layer", "pool", "post_processing", "similarity", "by"]
    rows: list[list[object]] = [[*head, "image", "class", "x", "y", "right", "marked", "kept", "chance", "note"]]
    for x in projections:
        key = [x.run, x.epoch, x.split, *x.ranked.as_columns().values(), x.method]
        note = note_text(x.notes)
        rights = x.right or (None,) * len(x.images)
        for image, point, right, marked in zip(x.images, x.points, rights, x.marked, strict=True):
            outcome = "" if right is None else str(right).lower()
            rows.append([*key, image.id, image.name, *point, outcome, str(marked).lower(), x.kept, x.chance, note])
    return csv_text(rows)


def plot(source: PlotSource, options: PlotOptions) -> Drawing:
    """Draw a few layers, or the requested ones."""
    projections = source.projections(options)
    data = source.data(projection.run for projection in projections)
    return Drawing(draw(projections, data=data), projections_csv(projections))


PLOT = Plot(plot, ("layers", "epoch", "by", "classes", "where"))
