"""Detection error trade-off of each layer: false rejects against false accepts (Martin et al. 1997)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import ndtri

from layerprobe.plots import figure as fig
from layerprobe.plots.drawn_scores import shared_then_single
from layerprobe.plots.plot import Drawing, Plot, PlotOptions, PlotSource, csv_text
from layerprobe.plots.selected import label_layers, star_look
from layerprobe.values.facts import DataFacts, chosen_on_text, epoch_text, image_lines
from layerprobe.values.scores import note_text
from layerprobe.values.views import ErrorRates, Selected, SetThreshold

_WIDTH, _HEIGHT = 2.5, 2.9  # inches
_LEAST, _MOST = 1e-4, 0.999  # rates beyond are outside the axes
_MARKERS = "osD"  # of thresholds, by the rate they were set at
_MARGIN = 0.12  # of the axes, in normal deviates
_TICKS = (1e-4, 1e-3, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99, 0.999)
Look = Mapping[str, object]  # of a marker
_SELECTED = fig.Style((0.0, 0.0, 0.0), "*")
_ALONE = (0.001, 0.5)  # the axes without any curve
_HOW = (
    "False accepts are similar pairs of images of different classes, false rejects unlike pairs of one class; the axes "
    "are normal deviates. The numbers are equal error rates in %: where a line meets the diagonal."
)


def draw(
    error_rates: Sequence[ErrorRates],
    *,
    data: Mapping[str, DataFacts] | None = None,
    selected: Mapping[str, Selected] | None = None,
) -> Figure:
    """Draw a panel for each run, with a line for each layer and a mark at each threshold set on other classes.

    Both axes are normal deviates, as scikit-learn's `DetCurveDisplay` has them: similarities that are normal in both
    kinds of pairs make straight lines.

    Args:
        selected: run -> the selected candidate of its choice, whose line is black with a star.
    """
    names = label_layers(error_rates, selected or {})
    layer_names = list(dict.fromkeys(layer.name for layer in names if not layer.selected))
    styles = fig.styles(layer_names) | {layer.name: _SELECTED for layer in names if layer.selected}
    runs: dict[str, dict[str, ErrorRates]] = {}
    for rates, layer in zip(error_rates, names, strict=True):
        runs.setdefault(rates.run, {})[layer.name] = rates
    stars = {layer.name: star_look(layer.selected) for layer in names if layer.selected}
    epochs = {rates.run: rates.epoch for rates in reversed(error_rates)}
    titles = [f"{run}, {epoch_text(epochs[run], (data or {}).get(run))}: test" for run in runs]
    labels = [_labels(layers, styles, stars) for layers in runs.values()]
    room = fig.width_of([label.text for panel in labels for label in panel]) + 0.25
    rows = fig.KEY_ROW * any(map(_marks, runs.values())) * bool(stars)
    notes = [_HOW, *image_lines(data or {}, {rates.split for rates in error_rates})]
    notes += shared_then_single(
        [(f"{rates.run}, {layer.name}", rates.notes) for rates, layer in zip(error_rates, names, strict=True)]
    )
    layout = fig.PanelLayout(_WIDTH, _HEIGHT, max(room, 0.3), below=0.85 + rows, columns=2, notes=notes)
    figure, panels = fig.make_panels(titles, layout)
    for axes, layers, panel_labels in zip(panels, runs.values(), labels, strict=True):
        _set_axes(axes, [rates for panel in runs.values() for rates in panel.values()])
        _draw_layers(axes, layers, styles, stars)
        bottom, top = axes.get_ylim()
        fig.label_right(axes, [fig.Label(x.text, x.x, min(max(x.y, bottom), top), x.colour) for x in panel_labels])
        marks = _marks(layers)
        if set_on := dict.fromkeys(rates.set_on for rates in layers.values() if rates.set_on and marks):
            texts = [f"{100 * rate:g} %" for rate in marks]
            texts[0] = f"threshold set on {', '.join(map(chosen_on_text, set_on))} at {texts[0]}"
            look = zip(texts, marks.values(), strict=True)
            fig.add_legend(axes, [{"label": text, "marker": x, "markerfacecolor": "white"} for text, x in look])
        if kinds := [{"label": name, **stars[name], "markersize": 9} for name in layers if name in stars]:
            fig.add_legend(axes, kinds, row=bool(set_on))
    return figure


def _labels(
    layers: Mapping[str, ErrorRates], styles: Mapping[str, fig.Style], stars: Mapping[str, Look]
) -> list[fig.Label]:
    """The name and the equal error rate of each layer, at the end of its line with the most false accepts."""
    labels = []
    for name, rates in layers.items():
        if points := _points(rates):
            text = f"{'selected' if name in stars else name} {100 * (rates.equal_error_rate or 0):.1f}"
            labels.append(fig.Label(text, *points[0], styles[name].text))
    return labels


def _points(rates: ErrorRates) -> list[fig.Position]:
    """The points of a line in normal deviates, most false accepts first."""
    most = min(_MOST, max(0.5, rates.equal_error_rate or 0.5))
    return [
        (float(ndtri(accepts)), float(ndtri(rejects)))
        for accepts, rejects in zip(rates.false_accepts, rates.false_rejects, strict=True)
        if _LEAST <= accepts <= most and _LEAST <= rejects <= _MOST
    ]


def _set_axes(axes: Axes, error_rates: Sequence[ErrorRates]) -> None:
    points = [point for rates in error_rates for point in _points(rates)]
    places = points or [(float(ndtri(rate)), float(ndtri(rate))) for rate in _ALONE]
    for which, values in (("x", [x for x, _ in places]), ("y", [y for _, y in places])):
        low, high = min(values) - _MARGIN, max(values) + _MARGIN
        ticks = [(float(ndtri(rate)), f"{100 * rate:g}") for rate in _TICKS if low <= ndtri(rate) <= high]
        axes.set(**{f"{which}lim": (low, high)})
        axes.set(**{f"{which}ticks": [at for at, _ in ticks], f"{which}ticklabels": [text for _, text in ticks]})
    axes.axline((0, 0), slope=1, color="0.75", linewidth=0.8, linestyle=":", zorder=0.5)
    axes.set_xlabel("false accept rate (%)", fontsize=fig.FONT + 1)
    axes.set_ylabel("false reject rate (%)", fontsize=fig.FONT + 1)


def _is_inside(threshold: SetThreshold) -> bool:
    return _LEAST <= threshold.false_accepts <= _MOST and _LEAST <= threshold.false_rejects <= _MOST


def _marks(layers: Mapping[str, ErrorRates]) -> dict[float, str]:
    """Rate at which thresholds were set -> their marker."""
    set_rates = sorted(
        {threshold.asked for rates in layers.values() for threshold in rates.thresholds if _is_inside(threshold)}
    )
    return dict(zip(set_rates, _MARKERS, strict=False))


def _draw_layers(
    axes: Axes,
    layers: Mapping[str, ErrorRates],
    styles: Mapping[str, fig.Style],
    stars: Mapping[str, Look],
) -> None:
    marks = _marks(layers)
    for name, rates in layers.items():
        colour = styles[name].colour
        if points := _points(rates):
            (line,) = axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.6)
            line.set(label=name, marker="." if len(points) == 1 else "")
            if name in stars:
                line.set(**stars[name], markersize=11, markevery=[len(points) // 2], zorder=5)
        for threshold in rates.thresholds:
            if _is_inside(threshold):
                (mark,) = axes.plot([ndtri(threshold.false_accepts)], [ndtri(threshold.false_rejects)], color=colour)
                mark.set(
                    marker=marks[threshold.asked],
                    markerfacecolor="white",
                    markersize=5,
                    zorder=4,
                    label=f"_{name} at {threshold.asked:g}",
                )


def error_rates_csv(error_rates: Sequence[ErrorRates], selected: Mapping[str, Selected] | None = None) -> str:
    """A line for each point of a layer's line, and for each threshold, with the rate it was set at."""
    head = ["run", "epoch", "split", "layer", "pool", "post_processing", "similarity"]
    rows: list[list[object]] = [[*head, "false_accept", "false_reject", "set_at", "equal_error_rate", "n", "note"]]
    for rates, layer in zip(error_rates, label_layers(error_rates, selected or {}), strict=True):
        key = [rates.run, rates.epoch, rates.split, *rates.ranked.as_columns().values()]
        end = [rates.equal_error_rate, rates.n, note_text((*rates.notes, *layer.csv_notes))]
        points = zip(rates.false_accepts, rates.false_rejects, strict=True)
        rows += [[*key, *point, None, *end] for point in points] or [[*key, None, None, None, *end]]
        rows += [[*key, x.false_accepts, x.false_rejects, x.asked, *end] for x in rates.thresholds]
    return csv_text(rows)


def plot(source: PlotSource, options: PlotOptions) -> Drawing:
    """Draw the error rates of a few layers, or of the requested ones."""
    error_rates = source.error_rates(options)
    selected, data = source.selected(), source.data(rates.run for rates in error_rates)
    return Drawing(draw(error_rates, data=data, selected=selected), error_rates_csv(error_rates, selected))


PLOT = Plot(plot)
