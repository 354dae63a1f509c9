"""Recall of layers to equal dimensions, by post-processing (Zhai & Wu 2019, Fig. 2, has it by dimension).

By bytes: the best of all layers and post-processing in at most so many bytes, for each type of number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from layerprobe.plots import figure as fig
from layerprobe.plots.drawn_scores import merge_lines, shared_then_single
from layerprobe.plots.options import BY_BYTES
from layerprobe.plots.plot import Drawing, Plot, PlotOptions, PlotSource, csv_text
from layerprobe.plots.selected import Star, add_selected, fold_lines, selected_at, stars_on
from layerprobe.system.errors import RecipeError
from layerprobe.system.wording import visible
from layerprobe.values.facts import DataFacts, chosen_on_text, epoch_text, run_lines
from layerprobe.values.intervals import ShownKind
from layerprobe.values.layers import NO_POST_PROCESSING, LayerKey, spoken_post_processing
from layerprobe.values.scores import note_text, shared_notes
from layerprobe.values.views import PostProcessings, Selected, Sized, equal_dimensions

_KEY = ("run", "epoch", "split", "layer", "pool", "post_processing", "similarity")
_FIGURE, _LEFT = 4.6, 0.75  # inches: width of a figure of one panel, left margin of its axes
_LEAST, _MOST, _LAYER_HEIGHT = 2.4, 9.0, 3.0
_LAYER_WIDTH = 0.17  # inches of width for each layer, at least
_APART = 0.13  # of the distance of two layers, between two points of one layer
_SIZE_WIDTH, _SIZE_HEIGHT = 2.1, 2.6
_BAND = 0.15
_BETWEEN = 0.06  # inches between the numbers at two ticks
MANY = 3  # with at least so many equal dimensions, lines are drawn over them
# Okabe and Ito's, distinct for every kind of colour blindness; the markers tell them apart without colour.
_COLOURS = (("#0072b2", "s"), ("#d55e00", "^"), ("#009e73", "v"), ("#cc79a7", "P"), ("#e69f00", "X"), ("#56b4e9", "<"))
_TYPES = {"float32": "float32", "float16": "float16", "int8": "int8", "bit": "bits"}
_RAW_STYLE = fig.Style(to_rgb("0.35"), "o")


def draw(
    post_processings: Sequence[PostProcessings],
    *,
    data: Mapping[str, DataFacts] | None = None,
    selected: Mapping[str, Selected] | None = None,
) -> Figure:
    """Draw a panel for each equal dimension, by layer; with many dimensions, a panel for each method, by dimension.

    A ring marks the best post-processing of a layer, a star the selected candidate. Intervals are bars, or bands.

    Args:
        post_processings: at least one layer is at an equal dimension.
    """
    selected = selected or {}
    names = method_names(post_processings)
    kind = ShownKind.of(sized.score.kind for sized in _values(post_processings) if sized.score.interval)
    if kind.kind is None:
        without = [
            tuple(replace(sized, score=replace(sized.score, interval=None)) for sized in of_run.values)
            for of_run in post_processings
        ]
        post_processings = [
            replace(of_run, values=values) for of_run, values in zip(post_processings, without, strict=True)
        ]
    by_size = len(equal_dimensions(post_processings)) >= MANY
    notes = run_lines(data or {}, {of_run.split for of_run in post_processings})
    notes += ["; ".join(_chains(post_processings, names)), *_signs(post_processings, by_size=by_size)]
    notes += kind.lines("Bands" if by_size else "Bars")
    notes += merge_lines({of_run.run: _remarks(of_run, names) for of_run in post_processings})
    notes += fold_lines(selected.values())
    draw_panels = _draw_by_size if by_size else _draw_by_layer
    return draw_panels(post_processings, names, notes, data or {}, selected)


def draw_by_bytes(
    post_processings: Sequence[PostProcessings],
    *,
    data: Mapping[str, DataFacts] | None = None,
    selected: Mapping[str, Selected] | None = None,
) -> Figure:
    """Draw a panel for each run: steps for each type of number, by the size of an image's vector.

    A step is the best of all candidates of at most so many bytes, not of exactly so many: what a limit on memory buys.
    It is chosen on the split that `PostProcessings.chosen_on` says, and drawn with its value on the split that is
    shown, where a later step may be lower. Zhai & Wu 2019, section 6.6, compare 2,048 bits with 64 floats so, of equal
    size.

    Args:
        post_processings: values of one run by type of number, then by size.
        selected: run -> the selected candidate: a star, where its size is known.
    """
    kind = ShownKind.of(sized.score.kind for sized in _values(post_processings) if sized.score.interval)
    stars = stars_on(
        {i: (of_run.run, of_run.epoch) for i, of_run in enumerate(post_processings)},
        selected or {},
        lambda _, one, __: one.size,
    )
    notes = run_lines(data or {}, {of_run.split for of_run in post_processings})
    notes += merge_lines({of_run.run: [_steps_line(of_run), *of_run.notes] for of_run in post_processings})
    notes += kind.lines("Bars") if kind.kind is not None else []
    notes += merge_lines({of_run.run: _remarks_on_best(of_run) for of_run in post_processings})
    notes += fold_lines(star.selected for star in stars.values())
    sizes = sorted(
        {*(x.size or 1 for x in _values(post_processings)), *(star.selected.size or 1 for star in stars.values())}
    )
    margin = max(sizes[-1] / sizes[0], 2) ** 0.04
    ends = sizes[0] / margin, sizes[-1] * margin
    powers = [2**power for power in range(sizes[-1].bit_length() + 1) if ends[0] <= 2**power <= ends[1]]
    right = fig.width_of([f"{name} 100.0 %" for name in _TYPES.values()]) + 0.25
    width = _FIGURE - _LEFT - right
    layout = fig.PanelLayout(width, _LAYER_HEIGHT, right, below=0.6 + fig.KEY_ROW * bool(stars), columns=2, notes=notes)
    figure, all_axes = fig.make_panels([_run_and_epoch(of_run, data or {}) for of_run in post_processings], layout)
    y_limits = _y_limits(post_processings, stars.values())
    for i, (axes, of_run) in enumerate(zip(all_axes, post_processings, strict=True)):
        _set_y_axis(axes, of_run, y_limits)
        _set_log_axis(axes, powers or sizes, ends, width)
        axes.set_xlabel("bytes an image", fontsize=fig.FONT + 1)
        fig.label_right(axes, _draw_steps(axes, of_run, ends[1], bars=kind.kind is not None))
        if i in stars:
            stars[i].draw(axes)
            fig.add_legend(axes, [stars[i].kind])
    return figure


def _steps_line(post_processings: PostProcessings) -> str:
    where = (
        f"chosen on {chosen_on_text(post_processings.chosen_on)}"
        if post_processings.chosen_on
        else f"best on {post_processings.split}"
    )
    return f"Steps: the best layer and post-processing of at most so many bytes, {where}"


def _remarks_on_best(post_processings: PostProcessings) -> list[str]:
    return shared_then_single([(str(x.score.ranked), x.score.remarks) for x in post_processings.values])


def _draw_steps(axes: Axes, post_processings: PostProcessings, end: float, *, bars: bool) -> list[fig.Label]:
    """Draw the steps of each type of number up to the end of the axis, and return their labels."""
    labels = []
    for (number, name), (colour, marker) in zip(_TYPES.items(), _COLOURS, strict=False):
        values = [sized for sized in post_processings.values if sized.number == number]
        if not values:
            continue
        style, sizes, heights = (
            fig.Style(to_rgb(colour), marker),
            [x.size or 1 for x in values],
            [x.percent for x in values],
        )
        (steps,) = axes.plot([*sizes, end], [*heights, heights[-1]], color=colour, drawstyle="steps-post")
        steps.set(linewidth=1.2, alpha=0.7, zorder=2, label=f"_steps of {name}")
        (marks,) = axes.plot(sizes, heights, color=colour, label=name)
        marks.set(marker=marker, markersize=4.5, linestyle="none", zorder=3, clip_on=False)
        intervals = {x.size or 1: x.score.interval.percent for x in values if bars and x.score.interval}
        if intervals:
            lines = axes.vlines(list(intervals), *zip(*intervals.values(), strict=True))
            lines.set(color=colour, linewidth=1.6, alpha=0.3, zorder=1.5, label=f"_interval of {name}")
        labels.append(fig.Label(f"{name} {heights[-1]:.1f} %", end, heights[-1], style.text))
    return labels


def table(post_processings: Iterable[PostProcessings], selected: Mapping[str, Selected] | None = None) -> str:
    """The numbers drawn as CSV, with the split on which the best post-processing of a layer was chosen.

    Where sizes are known, the types of the numbers and the bytes of a vector stand before the numbers.
    """
    post_processings = list(post_processings)
    metric = post_processings[0].values[0].score.metric
    with_size = any(sized.size is not None for sized in _values(post_processings))
    best = "best of at most so many bytes, chosen on" if with_size else "best post-processing, chosen on"
    numbers = [*["numbers", "bytes"] * with_size, "dimensions", metric, "low", "high", "n", best, "note"]
    rows: list[list[object]] = [[*_KEY, *numbers]]
    for of_run in post_processings:
        candidate = (selected or {}).get(of_run.run)
        for sized in _add_selected(of_run, candidate):
            s = sized.score
            chosen = of_run.chosen_on if sized.chosen else None
            key = [s.run, s.epoch, s.split, *s.ranked.as_columns().values(), *[sized.number, sized.size] * with_size]
            rows.append([*key, sized.dim, s.value, s.low, s.high, s.n, chosen, note_text(s.all_notes)])
    return csv_text(rows)


def _values(post_processings: Iterable[PostProcessings]) -> list[Sized]:
    return [sized for of_run in post_processings for sized in of_run.values]


def _add_selected(post_processings: PostProcessings, selected: Selected | None) -> list[Sized]:
    """The values drawn, with that of the selected candidate, which has a note that says so."""
    if selected is None:
        return list(post_processings.values)
    by_score = {sized.score: sized for sized in post_processings.values}
    scores = add_selected(list(by_score), [selected])
    candidate = Sized(selected.score, selected.dim, False, number=selected.number, size=selected.size)
    drawn_values = [*by_score.values(), candidate][: len(scores)]
    return [replace(sized, score=score) for sized, score in zip(drawn_values, scores, strict=True)]


def _signs(post_processings: Sequence[PostProcessings], *, by_size: bool) -> list[str]:
    """The legend of rings and hollow points."""
    splits = dict.fromkeys(
        of_run.chosen_on for of_run in post_processings if any(sized.chosen for sized in of_run.values)
    )
    rings = [f"Ring: a layer's best post-processing, chosen on {split}" for split in splits]
    hollow = by_size and any(
        sized.score.ranked.post_processing == NO_POST_PROCESSING and sized.dim for sized in _values(post_processings)
    )
    return ["Hollow: the raw layer, at its own dimensions"] * hollow + rings


def _chains(post_processings: Sequence[PostProcessings], names: Mapping[Method, str]) -> list[str]:
    """The chain of post-processing steps of each name."""
    lines = []
    for method, name in names.items():
        sizes = {sized.dim for sized in _values(post_processings) if method_of(sized) == method}
        dims = sorted(dim for dim in sizes if dim is not None)
        if method.chain != NO_POST_PROCESSING:
            lines.append(f"{name}: {method.chain.replace(':D', f':{dims[0]}') if len(dims) == 1 else method.chain}")
        elif dims:
            size = f"{dims[0]:,}" if len(dims) == 1 else f"{dims[0]:,} to {dims[-1]:,}"
            lines.append(f"{name}: {size} dimensions")
    return lines


def _remarks(post_processings: PostProcessings, names: Mapping[Method, str]) -> list[str]:
    """The notes that all scores of a run share, those of one method, of single scores, and of the choice."""
    everywhere = shared_notes(sized.score.remarks for sized in post_processings.values)
    lines = [*everywhere, *post_processings.notes]
    for method in dict.fromkeys(map(method_of, post_processings.values)):
        method_scores = [sized.score for sized in post_processings.values if method_of(sized) == method]
        name = names.get(method, method.chain)
        common = shared_notes(score.remarks for score in method_scores)
        if notes := [note for note in common if note not in everywhere]:
            lines.append(f"{name}: {note_text(notes)}")
        for score in method_scores:
            notes = [note for note in score.remarks if note not in common]
            if score.value is None:
                lines.append(f"not valid: {score.ranked.layer} {name}: {note_text(notes or score.notes)}")
            elif notes:
                lines.append(f"{score.ranked.layer} {name}: {note_text(notes)}")
    return lines


def _draw_by_layer(
    post_processings: Sequence[PostProcessings],
    names: Mapping[Method, str],
    notes: Sequence[str],
    data: Mapping[str, DataFacts],
    selected: Mapping[str, Selected],
) -> Figure:
    """Draw a panel for each run and dimension: a line for each method, through the layers in network order.

    Args:
        selected: run -> the selected candidate: a star in the panel of its dimension, else in its layer's first.
    """
    dims = [sorted({sized.dim or 0 for sized in of_run.values if sized.equal}) for of_run in post_processings]
    cells = [(of_run, dim) for of_run, run_dims in zip(post_processings, dims, strict=True) for dim in run_dims]
    titles = [f"{_run_and_epoch(of_run, data)}\nat {dim:,} dimensions" for of_run, dim in cells]
    panels = [_restrict_to_dim(of_run, dim) for of_run, dim in cells]
    layers = [_layers(panel) for panel in panels]

    def position(i: int, candidate: Selected, exact: bool) -> float | None:
        layer = candidate.score.ranked.layer
        if layer not in layers[i] or (exact and candidate.dim != cells[i][1]):
            return None
        return layers[i].index(layer) + _shift(Sized(candidate.score, candidate.dim, exact), names)

    stars = stars_on({i: (panel.run, panel.epoch) for i, panel in enumerate(panels)}, selected, position)
    lines = [fig.pool_tracks({i: key for i, key in enumerate(keys) if "+" not in key.layer}) for keys in layers]
    pools = list(map(fig.pool_kinds, lines))
    texts = {layer: str(layer) for keys in layers for layer in keys}
    right = fig.width_of(list(names.values())) + 0.25
    count, widest = max(map(len, layers)), fig.width_of(list(texts.values()))
    width = min(max(_LEAST, _FIGURE - _LEFT - right, _LAYER_WIDTH * count), _MOST)
    upright = widest + 0.1 > width / count
    below = widest if upright else 0.15  # the names of the layers
    legends = fig.KEY_ROW * (any(pools) + bool(stars))
    layout = fig.PanelLayout(width, _LAYER_HEIGHT, right, below=below + 0.33 + legends, columns=2, notes=notes)
    figure, all_axes = fig.make_panels(titles, layout)
    y_limits = _y_limits(panels, stars.values())
    for i, (axes, panel, keys) in enumerate(zip(all_axes, panels, layers, strict=True)):
        axes.set_xlim(-0.6, len(keys) - 0.4)
        _set_y_axis(axes, panel, y_limits)
        axes.set_xticks(range(len(keys)), [visible(texts[layer]) for layer in keys])
        for label in axes.get_xticklabels():
            label.set(rotation=90 if upright else 0, parse_math=False)
        axes.grid(visible=False, axis="x")
        fig.label_right(axes, _draw_methods(axes, panel, keys, lines[i], names))
        if pools[i]:
            fig.add_legend(axes, pools[i], under=below + 0.2)
        if i in stars:
            stars[i].draw(axes)
            fig.add_legend(axes, [stars[i].kind], row=bool(pools[i]), under=below + 0.2)
    return figure


def _run_and_epoch(post_processings: PostProcessings, data: Mapping[str, DataFacts]) -> str:
    return f"{post_processings.run}, {epoch_text(post_processings.epoch, data.get(post_processings.run))}"


def _y_limits(post_processings: Sequence[PostProcessings], stars: Iterable[Star]) -> tuple[float, float]:
    heights = [height for sized in _values(post_processings) for height in sized.heights if height]
    heights += [height for star in stars for height in star.heights]
    return fig.limits(heights or [0.0, 100.0])


def _set_y_axis(axes: Axes, post_processings: PostProcessings, y_limits: tuple[float, float]) -> None:
    axes.set_ylim(y_limits)
    fig.show_percent(axes, "y")
    axes.set_ylabel(f"{post_processings.values[0].score.metric} on {post_processings.split}", fontsize=fig.FONT + 1)


def _shift(sized: Sized, names: Mapping[Method, str]) -> float:
    """How far from its layer's middle a method stands; one without a line of its own in the middle."""
    method = method_of(sized)
    middle = (len(names) - 1) / 2
    return ((list(names).index(method) if method in names else middle) - middle) * _APART


def _restrict_to_dim(post_processings: PostProcessings, dim: int) -> PostProcessings:
    """The layers at one equal dimension: post-processed to it, raw, and after post-processing of no equal dimension."""
    layers = {sized.score.ranked.layer for sized in post_processings.values if sized.equal and sized.dim == dim}
    values = (s for s in post_processings.values if s.score.ranked.layer in layers and (not s.equal or s.dim == dim))
    return replace(post_processings, values=tuple(values))


def _layers(post_processings: PostProcessings) -> list[LayerKey]:
    return list(dict.fromkeys(sized.score.ranked.layer for sized in post_processings.values))


def _draw_methods(
    axes: Axes,
    post_processings: PostProcessings,
    layers: Sequence[LayerKey],
    tracks: Sequence[fig.Track],
    names: Mapping[Method, str],
) -> list[fig.Label]:
    """Draw the points with their intervals and the lines between them, and return the labels of the lines."""
    styles, labels = method_styles(names), []
    for number, (method, name) in enumerate(names.items()):
        scores = {
            sized.score.ranked.layer: sized.score for sized in post_processings.values if method_of(sized) == method
        }
        shift = (number - (len(names) - 1) / 2) * _APART
        rows = [i for i, layer in enumerate(layers) if layer in scores and scores[layer].value is not None]
        heights = {i: 100 * (scores[layers[i]].value or 0.0) for i in rows}
        style, raw = styles[method], method.chain == NO_POST_PROCESSING
        for track in tracks:
            steps = [i for i in track.positions if i in heights]
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
    _mark_best(axes, post_processings, layers, names)
    return labels


def _mark_best(
    axes: Axes, post_processings: PostProcessings, layers: Sequence[LayerKey], names: Mapping[Method, str]
) -> None:
    """Draw a ring around the best post-processing of each layer, in the middle if it has no line of its own."""
    places, heights = [], []
    for sized in post_processings.values:
        if sized.chosen and sized.score.value is not None:
            places.append(layers.index(sized.score.ranked.layer) + _shift(sized, names))
            heights.append(100 * sized.score.value)
    (marks,) = axes.plot(places, heights, linestyle="none", marker="o", markersize=9, label="_best")
    marks.set(markerfacecolor="none", markeredgecolor="black", markeredgewidth=1, zorder=4, clip_on=False)


def _draw_by_size(
    post_processings: Sequence[PostProcessings],
    names: Mapping[Method, str],
    notes: Sequence[str],
    data: Mapping[str, DataFacts],
    selected: Mapping[str, Selected],
) -> Figure:
    """Draw a panel for each run and method, with a line for each layer that is labelled with its last value.

    Args:
        selected: run -> the selected candidate: a star at its dimensions, in the panel of its method, else in the
            run's first.
    """
    texts = {sized.score.ranked.layer: str(sized.score.ranked.layer) for sized in _values(post_processings)}
    styles = fig.styles(list(texts.values()))
    cells = [
        (of_run, method)
        for of_run in post_processings
        for method in names
        if any(sized.equal and method_of(sized) == method for sized in of_run.values)
    ]

    def position(i: int, candidate: Selected, exact: bool) -> float | None:
        of_panel = method_of(Sized(candidate.score, candidate.dim, True)) == cells[i][1]
        return candidate.dim if of_panel or not exact else None

    stars = stars_on({i: (of_run.run, of_run.epoch) for i, (of_run, _) in enumerate(cells)}, selected, position)
    dims = [sized.dim for sized in _values(post_processings) if sized.dim is not None]
    dims = sorted({*dims, *(star.selected.dim for star in stars.values())})
    ends = dims[0] / (dims[-1] / dims[0]) ** 0.03, dims[-1] * (dims[-1] / dims[0]) ** 0.03
    lines = [
        {text: values for layer, text in texts.items() if (values := _post_processed_values(of_run, method, layer))}
        for of_run, method in cells
    ]
    labels = [[_label(text, line[-1], styles[text]) for text, line in panel_lines.items()] for panel_lines in lines]
    right = fig.width_of([label.text for panel_labels in labels for label in panel_labels]) + 0.25
    width = _FIGURE - _LEFT - right if len(cells) == 1 else _SIZE_WIDTH
    layout = fig.PanelLayout(width, _SIZE_HEIGHT, right, below=0.6 + fig.KEY_ROW * bool(stars), columns=2, notes=notes)
    titles = [f"{_run_and_epoch(of_run, data)}\n{names[method]}" for of_run, method in cells]
    figure, all_axes = fig.make_panels(titles, layout)
    y_limits = _y_limits(post_processings, stars.values())
    for i, (axes, (of_run, method), panel_labels) in enumerate(zip(all_axes, cells, labels, strict=True)):
        _set_y_axis(axes, of_run, y_limits)
        _set_log_axis(axes, dims, ends, width)
        axes.set_xlabel("bits" if method.similarity == "hamming" else "dimensions", fontsize=fig.FONT + 1)
        for text, post_processed in lines[i].items():
            _draw_layer(
                axes, post_processed, _raw_value(of_run, post_processed[0].score.ranked.layer), styles[text], text
            )
        fig.label_right(axes, panel_labels)
        if i in stars:
            stars[i].draw(axes)
            fig.add_legend(axes, [stars[i].kind])
    return figure


def _set_log_axis(axes: Axes, places: Sequence[int], ends: tuple[float, float], width: float) -> None:
    """An x axis in powers of two, with ticks at as many of the places as there is room for."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(ends)
    axes.xaxis.set_major_locator(FixedLocator(_ticks(places, ends, width)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _label(text: str, last: Sized, style: fig.Style) -> fig.Label:
    return fig.Label(f"{text} {last.percent:.1f} %", last.dim or 1, last.percent, style.text)


def _ticks(dims: Sequence[int], ends: tuple[float, float], inches: float) -> list[int]:
    """The dimensions without those whose numbers would touch that of a smaller one."""
    ticks: list[int] = []
    for dim in dims:
        room = math.log(dim / ticks[-1]) / math.log(ends[1] / ends[0]) * inches if ticks else math.inf
        if room > fig.width_of([f"{dim:,}"]) + _BETWEEN:
            ticks.append(dim)
    return ticks


def _post_processed_values(post_processings: PostProcessings, method: Method, layer: LayerKey) -> list[Sized]:
    """The valid values of a layer after a method, by dimension."""
    values = [
        sized
        for sized in post_processings.values
        if sized.equal
        and sized.score.ranked.layer == layer
        and method_of(sized) == method
        and sized.score.value is not None
    ]
    return sorted(values, key=lambda sized: sized.dim or 0)


def _raw_value(post_processings: PostProcessings, layer: LayerKey) -> Sized | None:
    """The raw layer, where its dimensions are known."""
    for sized in post_processings.values:
        raw = sized.score.ranked.layer == layer and sized.score.ranked.post_processing == NO_POST_PROCESSING
        if raw and sized.dim is not None and sized.score.value is not None:
            return sized
    return None


def _draw_layer(axes: Axes, post_processed: Sequence[Sized], raw: Sized | None, style: fig.Style, label: str) -> None:
    """Draw a layer's values after a method, by dimension, and the raw layer."""
    dims, values = [s.dim or 1 for s in post_processed], [s.percent for s in post_processed]
    (line,) = axes.plot(dims, values, color=style.colour, marker=style.marker, label=label)
    line.set(markersize=style.size * 0.55, linewidth=1.5, clip_on=False)
    band = [(sized.dim or 1, *sized.score.interval.percent) for sized in post_processed if sized.score.interval]
    if band:
        along, lows, highs = (list(column) for column in zip(*band, strict=True))
        area = axes.fill_between(along, lows, highs, color=style.colour, alpha=_BAND)
        area.set(linewidth=0, zorder=0.5, label=f"_interval of {label}")
    if raw:
        (mark,) = axes.plot([raw.dim or 1], [raw.percent], color=style.colour, linestyle="none")
        mark.set(marker=style.marker, markersize=style.size * 0.55, markerfacecolor="white", clip_on=False, zorder=3)
        mark.set_label(f"_{label} raw")
    best = [s for s in [*post_processed, *([raw] if raw else [])] if s.chosen]
    (ring,) = axes.plot([s.dim or 1 for s in best], [s.percent for s in best], linestyle="none")
    ring.set(marker="o", markersize=10, markerfacecolor="none", markeredgecolor="black", zorder=4, clip_on=False)
    ring.set_label("_best")


@dataclass(frozen=True)
class Method:
    """A chain of post-processing steps and a similarity, whatever the number of dimensions.

    Args:
        chain: with D in place of the number of dimensions, `none` for raw layers.
    """

    chain: str
    similarity: str


def method_of(sized: Sized) -> Method:
    """The method of a layer: of `l2+pca:128+l2`, which leaves 128 dimensions, `l2+pca:D+l2`."""
    chain = sized.score.ranked.post_processing
    if sized.equal:
        chain = re.sub(rf"(?<=[a-z]):{sized.dim}(?![0-9])", ":D", chain)
    return Method(chain, sized.score.ranked.similarity)


def method_names(post_processings: Sequence[PostProcessings]) -> dict[Method, str]:
    """Method -> its name, such as PCA or partially whitened; the chain where two would have the same name.

    `none` is first, the others are sorted by chain, so that a method has the same colour in most figures.
    """
    methods = sorted(
        {
            method_of(sized)
            for sized in _values(post_processings)
            if sized.equal or sized.score.ranked.post_processing == NO_POST_PROCESSING
        },
        key=lambda method: (method.chain != NO_POST_PROCESSING, method.chain, method.similarity),
    )
    names = {method: _chain_name(method.chain) for method in methods}
    for method, name in list(names.items()):
        namesakes = [other for other in methods if _chain_name(other.chain) == name]
        parts = [method.chain if len({other.chain for other in namesakes}) > 1 else name]
        parts += [method.similarity] if len({other.similarity for other in namesakes}) > 1 else []
        names[method] = ", ".join(parts)
    return names


def _chain_name(chain: str) -> str:
    return "raw" if chain == NO_POST_PROCESSING else spoken_post_processing(chain)


def method_styles(names: Mapping[Method, str]) -> dict[Method, fig.Style]:
    """A colour and a marker for each method; raw layers are grey."""
    post_processed = [method for method in names if method.chain != NO_POST_PROCESSING]
    styles = {method: _COLOURS[i % len(_COLOURS)] for i, method in enumerate(post_processed)}
    return {
        method: fig.Style(to_rgb(styles[method][0]), styles[method][1]) if method in styles else _RAW_STYLE
        for method in names
    }


def plot(source: PlotSource, options: PlotOptions) -> Drawing:
    """Draw the layers at equal dimensions, or the requested ones; by bytes, the best of all in each size."""
    if options.by not in (None, BY_BYTES):
        raise RecipeError(f"plot dims has no --by {options.by}", fix=f"Write --by {BY_BYTES}")
    if options.by is not None:
        best = source.best_of_sizes(options)
        candidates = selected_at(source.selected(), options.epoch) if options.layers is None else {}
        figure = draw_by_bytes(best, data=source.data(of_run.run for of_run in best), selected=candidates)
        return Drawing(figure, table(best, candidates))
    post_processings = source.post_processings(options)
    layers = {(of_run.run, sized.score.ranked.layer) for of_run in post_processings for sized in of_run.values}
    selected = selected_at(source.selected(), options.epoch)
    selected = {run: candidate for run, candidate in selected.items() if (run, candidate.score.ranked.layer) in layers}
    figure = draw(post_processings, data=source.data(of_run.run for of_run in post_processings), selected=selected)
    return Drawing(figure, table(post_processings, selected))


PLOT = Plot(plot, ("layers", "epoch", "metric", "by"))
