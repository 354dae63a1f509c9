"""Recall of the layers in network order, on the training and test set (Vo & Hays 2019, Fig. 2)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from layerprobe.plots import figure as fig
from layerprobe.plots.drawn_scores import (
    Series,
    add_search_to_run,
    common_lines,
    comparison_text,
    drawn_percents,
    group_by_network,
    group_by_run,
    keep_one_kind,
    layers_by_epoch_csv,
    metric_of,
    missing_lines,
    names_in_order,
    omission_notes,
    ranked_of,
    resolve_epoch,
    scores_in,
    scores_of_layers,
    scores_of_metric,
    search_name,
    select_raw,
)
from layerprobe.plots.plot import Drawing, Indistinguishable, Plot, PlotOptions, PlotSource
from layerprobe.plots.selected import Star, add_selected, fold_lines, selected_at, stars_on
from layerprobe.system.wording import visible
from layerprobe.values.best import Best, apart_text, best_layer, best_text, worse_text
from layerprobe.values.facts import DataFacts, common_chance, epoch_text, run_lines, split_text
from layerprobe.values.intervals import ShownKind
from layerprobe.values.scores import GAP_SPLITS, SPLITS, Score
from layerprobe.values.views import Selected

_HEIGHT = 3.2  # inches
_LAYER = 0.185  # inches of width for each layer
_WIDTHS = (2.6, 9.0)
_TOGETHER = 3  # as many runs share a panel
_TOGETHER_WIDTH = 3.1  # inches, at least, of a panel of several runs
_BAR = 3.0  # points from the bar of one split, or run, to that of the next
_PANELS = 6  # with more, only raw layers are drawn
_NAMED = 10  # of more indistinguishable layers a caption gives the number
# Vermilion and blue of Okabe and Ito: distinct for every kind of colour blindness, and in grey.
_COLOURS = {"train": "#d55e00", "validation": "#767676", "test": "#0072b2"}
_MARKERS = {"train": "s", "validation": "^", "test": "o"}

P = TypeVar("P", bound=Hashable)


@dataclass(frozen=True)
class _RunLayers:
    """The layers of a run after one post-processing, by one similarity.

    Args:
        epoch: the last, or the requested one.
    """

    run: str
    series: Series
    epoch: int
    facts: DataFacts

    @property
    def at_epoch(self) -> Series:
        """The layers with only their scores of the epoch, if any."""
        return {
            name: {key: score for key, score in layer.items() if score.epoch == self.epoch}
            for name, layer in self.series.items()
        }

    @property
    def train(self) -> str:
        """What the training split is called."""
        return split_text("train", [self.facts])

    def fractions(self, split: str, epoch: int | None = None) -> list[float | None]:
        """The value of each layer at an epoch, the shown one by default; None without a value."""
        key = (self.epoch if epoch is None else epoch, split)
        return [layer[key].value if key in layer else None for layer in self.series.values()]

    def heights(self, split: str, epoch: int | None = None) -> list[float]:
        """The same in percent; NaN without a value."""
        return [np.nan if value is None else 100 * value for value in self.fractions(split, epoch)]

    @property
    def best(self) -> tuple[Best | None, dict[str, list[float | None]]]:
        """The best layer, and the values by split from which it was chosen."""
        post_processings = {score.ranked.post_processing for score in scores_in(self.series)}
        values = {split: self.fractions(split) for split in self.facts.chosen_on(post_processings)}
        return best_layer(values), values

    @property
    def best_text(self) -> str:
        """The best layer with its value; empty without one."""
        best, values = self.best
        return best_text(best, list(self.series), values) if best else ""


def draw(
    scores: Sequence[Score],
    *,
    data: Mapping[str, DataFacts] | None = None,
    indistinguishable: Indistinguishable | None = None,
    remarks: Sequence[str] = (),
    selected: Mapping[str, Selected] | None = None,
) -> Figure:
    """Draw a line for each split at the last epoch and lighter ones of train and test for epoch 0.

    The gap between train and test is shaded. The bars of the last epoch are intervals. The best layer, chosen on
    validation if measured, has a ring, and a note names the layers indistinguishable from it. Where layers have several
    pools, each has a line. Two or three runs of one network share a panel, as in `_draw_together`. Each post-processing
    and similarity has its own panel; if these are too many, only the raw layers are drawn.

    Args:
        data: run -> the data its scores were measured on; chance levels on which the runs agree are drawn.
        indistinguishable: gives the layers indistinguishable from the best of some scores; None where unknown.
        remarks: further notes.
        selected: run -> the selected candidate of its choice: a star at its layer, in the panel of its post-processing
            if there is one.
    """
    drawn_scores, omissions = _select_scores(scores)
    data, remarks, selected = data or {}, [*omissions, *remarks], selected or {}
    if _share_panel(drawn_scores, data):
        return _draw_together(drawn_scores, data, indistinguishable, remarks, selected)
    metric_scores, kind, panels = _panels(drawn_scores, data)
    floors = {split: 100 * level for split, level in common_chance(data.values()).items() if split in GAP_SPLITS}
    stars = _stars_on(panels, selected)
    y_limits = _limits([s for s in metric_scores if s.epoch in (0, panels[s.run].epoch)], SPLITS, floors, stars)
    metric, worse = metric_of(drawn_scores), []
    for name, panel in panels.items():
        before, trained = panel.fractions("test", 0), panel.fractions("test")
        if text := worse_text(list(panel.series), before, trained, metric, panel.facts.start):
            worse.append(f"{name}: " * (len(panels) > 1) + text)
    layers = {name: panel.at_epoch for name, panel in panels.items()}
    notes = run_lines(data) + common_lines(layers)
    notes += _indistinguishable_notes(panels, drawn_scores, kind, indistinguishable)
    notes += [*worse, *missing_lines(layers, GAP_SPLITS), *kind.lines("Bars")]
    notes += [*remarks, *fold_lines(star.selected for star in stars.values())]
    width, under, upright = _sizes([list(panel.series) for panel in panels.values()])
    pools = {name: fig.pool_kinds(_tracks(panel.series)) for name, panel in panels.items()}
    starts = [f"{panel.train}, {panel.facts.start}" for panel in panels.values()]
    below = under + 0.15 + fig.KEY_ROW * (any(pools.values()) + bool(stars))
    layout = fig.PanelLayout(width, _HEIGHT, fig.width_of([*starts, "validation"]) + 0.3, below, columns=2, notes=notes)
    titles = [_title(name, panel, metric) for name, panel in panels.items()]
    figure, all_axes = fig.make_panels(titles, layout)
    for axes, (name, panel) in zip(all_axes, panels.items(), strict=True):
        _set_axes(axes, y_limits, list(panel.series), metric, upright=upright)
        labels = _draw_splits(axes, panel)
        _mark_best(axes, panel, list(panel.series))
        fig.draw_chance(axes, {panel.train if split == "train" else split: level for split, level in floors.items()})
        fig.label_right(axes, labels)
        if pools[name]:
            fig.add_legend(axes, pools[name], under=under)
        if name in stars:
            stars[name].draw(axes)
            fig.add_legend(axes, [stars[name].kind], row=bool(pools[name]), under=under)
    return figure


def _select_scores(scores: Sequence[Score]) -> tuple[list[Score], list[str]]:
    """The scores to draw, those of raw layers if there would be too many panels; and a note on the rest."""
    panels = {(score.run, score.ranked.post_processing, score.ranked.similarity) for score in scores}
    drawn_scores = list(scores) if len(panels) <= _PANELS else select_raw(scores)
    return drawn_scores, omission_notes(scores) if len(drawn_scores) < len(scores) else []


def _share_panel(scores: Sequence[Score], data: Mapping[str, DataFacts]) -> bool:
    """Whether there are several runs, few enough, of one network: layers of different networks share no axis."""
    layers: dict[str, dict[str, None]] = {}
    for score in scores:
        layers.setdefault(score.run, {}).update(dict.fromkeys(score.ranked.layer.layer.split("+")))
    return 1 < len(layers) <= _TOGETHER and len(group_by_network(layers, data)) == 1


def _panels(
    scores: Sequence[Score], data: Mapping[str, DataFacts]
) -> tuple[list[Score], ShownKind, dict[str, _RunLayers]]:
    """The scores under the names of their panels, the kind of their intervals, and the panels by name."""
    metric_scores = scores_of_metric(scores)
    named_scores = add_search_to_run(metric_scores)
    run_of = {named.run: score.run for score, named in zip(metric_scores, named_scores, strict=True)}
    last_epochs = {name: max(score.epoch for score in named_scores if score.run == name) for name in run_of}
    named_scores, kind = keep_one_kind(
        named_scores, lambda score: score.epoch == last_epochs[score.run] and score.split in SPLITS
    )
    unknown = DataFacts("", {})
    return (
        named_scores,
        kind,
        {
            name: _RunLayers(run_of[name], series, last_epochs[name], data.get(run_of[name], unknown))
            for name, series in group_by_run(named_scores).items()
        },
    )


def _stars_on(panels: Mapping[P, _RunLayers], selected: Mapping[str, Selected]) -> dict[P, Star]:
    """Panel -> the star on it: on that of the candidate's post-processing, else on the first one with its layer."""

    def position(name: P, candidate: Selected, exact: bool) -> int | None:
        ranked, layers = candidate.score.ranked, map(ranked_of, panels[name].series.values())
        rows = [i for i, x in enumerate(layers) if (x == ranked if exact else x.layer == ranked.layer)]
        return rows[0] if rows else None

    return stars_on({name: (panel.run, panel.epoch) for name, panel in panels.items()}, selected, position)


def _limits(
    scores: Iterable[Score], splits: Sequence[str], floors: Mapping[str, float], stars: Mapping[P, Star]
) -> tuple[float, float]:
    values = drawn_percents(scores, splits) + [height for star in stars.values() for height in star.heights]
    return fig.limits(values or [0.0, 100.0], min(floors.values(), default=None))


def _indistinguishable_notes(
    panels: Mapping[str, _RunLayers],
    scores: Sequence[Score],
    kind: ShownKind,
    indistinguishable: Indistinguishable | None,
) -> list[str]:
    """A note for each panel that names the layers indistinguishable from the best, where known."""
    if indistinguishable is None or kind.mixed:
        return []
    lines = []
    for name, panel in panels.items():
        best, _ = panel.best
        # With several kinds of post-processing or similarities, `add_search_to_run` has named the panels.
        panel_scores = [s for s in scores if s.epoch == panel.epoch and name in (s.run, search_name(s))]
        near = indistinguishable(panel_scores, metric_of(scores)) if best else None
        if best and near is not None:
            names = [label for label, layer in panel.at_epoch.items() if layer and ranked_of(layer) in near]
            count = [f"{len(names)} of the {len(panel.series) - 1} others"]
            text = apart_text(best, names if len(names) <= _NAMED else count)
            lines.append(f"{name}: " * (len(panels) > 1) + f"best: {list(panel.series)[best.place]}; {text}")
    return lines


def _sizes(panels: Sequence[Sequence[str]]) -> tuple[float, float, bool]:
    """Inches of width, and from the axes to a legend, and whether the names of the layers stand upright."""
    widest = fig.width_of([name for names in panels for name in names], "bold")  # as that of the best layer is
    count = max(map(len, panels))
    width = min(max(_WIDTHS[0], _LAYER * count), _WIDTHS[1])
    upright = widest + 0.1 > width / count
    return width, (widest if upright else 0.15) + 0.2, upright


def _title(name: str, panel: _RunLayers, metric: str) -> str:
    """What is compared is in its name where there are several searches."""
    subtitle = f"{metric} by layer, {epoch_text(panel.epoch, panel.facts)}"
    several = f"{name}\n{subtitle}"
    title = f"{name}: {subtitle}, {comparison_text(panel.series)}" if name == panel.run else several
    return f"{title}\n{panel.best_text}"


def _set_axes(axes: Axes, y_limits: tuple[float, float], layers: Sequence[str], metric: str, *, upright: bool) -> None:
    axes.set_ylim(y_limits)
    fig.show_percent(axes, "y")
    axes.set_ylabel(metric, fontsize=fig.FONT + 1)
    axes.set_xlim(-0.5, len(layers) - 0.5)
    fig.name_layers(axes, layers, upright=upright)


def _tracks(series: Series) -> list[fig.Track]:
    """The lines through the layers: one for each post-processing, and for each pool where layers have several.

    A layer with one pool, such as a vector among maps, is on every line of its post-processing. Each `A+B` is on its
    own, as it is no step of the network.
    """
    layers = list(map(ranked_of, series.values()))
    joint = [i for i, ranked in enumerate(layers) if "+" in ranked.layer.layer]
    lines: list[fig.Track] = []
    for post_processing in dict.fromkeys(ranked.post_processing for ranked in layers):
        rows = [i for i, ranked in enumerate(layers) if ranked.post_processing == post_processing and i not in joint]
        lines += fig.pool_tracks({i: layers[i].layer for i in rows})
    return lines + [fig.Track([i]) for i in joint]


def _draw_splits(axes: Axes, panel: _RunLayers) -> list[fig.Label]:
    """Draw the lines and the gap; returns the lines' labels."""
    lines = _tracks(panel.series)
    labels = []
    for epoch in sorted({0, panel.epoch}):
        light, begins = epoch != panel.epoch, epoch == 0 and not panel.facts.weights
        for split in SPLITS if epoch == panel.epoch else GAP_SPLITS:
            values = panel.heights(split, epoch)
            valid = [i for i, value in enumerate(values) if np.isfinite(value)]
            if not valid:
                continue
            text = panel.train if split == "train" else split
            name = f"{text}, {panel.facts.start}" if begins else text
            for number, track in enumerate(lines):
                line_values = [values[i] for i in track.positions]
                (line,) = axes.plot(track.positions, line_values, color=_COLOURS[split], marker=_MARKERS[split])
                line.set(linestyle=(0, (2, 2)) if begins and not track.pool else track.dashes)
                line.set(linewidth=0.9 if light else 1.6, markersize=3 if light else 5, alpha=0.6 if light else 1)
                line.set_label(f"_{name}" if number else name)
                if begins:
                    line.set(markerfacecolor="white")
            labels.append(fig.Label(name, valid[-1], values[valid[-1]], _COLOURS[split]))
    intervals = {split: _intervals(panel, split, list(panel.series)) for split in SPLITS}
    _draw_bars(axes, {split: ends for split, ends in intervals.items() if ends}, _COLOURS)
    train, test = (np.array(panel.heights(split)) for split in GAP_SPLITS)
    for positions in (list(track.positions) for track in lines):
        axes.fill_between(
            positions, train[positions], test[positions], color="0.5", alpha=0.13, linewidth=0, label="_gap", zorder=0.5
        )
    return labels


Ends = list[tuple[int, tuple[float, float]]]  # place of a layer with an interval, and its ends in percent


def _intervals(panel: _RunLayers, split: str, names: Sequence[str]) -> Ends:
    scores = {name: layer.get((panel.epoch, split)) for name, layer in panel.series.items()}
    return [(names.index(name), x.interval.percent) for name, x in scores.items() if x and x.interval]


def _draw_bars(axes: Axes, intervals: Mapping[str, Ends], colours: Mapping[str, fig.Colour | str]) -> None:
    """Draw a bar for each interval; those of the splits, or of the runs, are side by side.

    Args:
        intervals: by split or run.
    """
    x_min, x_max = axes.get_xlim()
    step = _BAR / 72 * (x_max - x_min) / fig.size_of(axes)[0]
    for number, (name, ends) in enumerate(intervals.items()):
        if ends:
            xs = [i + (number - (len(intervals) - 1) / 2) * step for i, _ in ends]
            bars = axes.vlines(xs, [low for _, (low, _) in ends], [high for _, (_, high) in ends])
            bars.set(color=colours[name], linewidth=_BAR * 0.8, alpha=0.4, zorder=1.5, label=f"_interval {name}")


def _mark_best(axes: Axes, panel: _RunLayers, names: Sequence[str], colour: fig.Colour | str = "black") -> None:
    """Draw a ring around the best layer, at its test value, or at the one it was chosen by."""
    best, values = panel.best
    if best:
        position, on_test = names.index(list(panel.series)[best.place]), values["test"][best.place]
        height = on_test if on_test is not None else values[best.split][best.place]
        (ring,) = axes.plot(position, 100 * (height or 0), marker="o", markersize=12, linestyle="none")
        ring.set(markerfacecolor="none", markeredgecolor=colour, markeredgewidth=1.3, zorder=4, label="_best")
        axes.get_xticklabels()[position].set(weight="bold")


def layers_csv(
    scores: Sequence[Score],
    data: Mapping[str, DataFacts] | None = None,
    selected: Mapping[str, Selected] | None = None,
) -> str:
    """`layers_by_epoch_csv` of the epochs, splits and layers that are drawn, and of selected candidates."""
    drawn_scores, _ = _select_scores(scores)
    metric = metric_of(drawn_scores)
    together = _share_panel(drawn_scores, data or {})

    def panel_key(score: Score) -> object:
        # As for the figure: by run where each has one panel, else by panel.
        return score.run if together else (score.run, score.ranked.post_processing, score.ranked.similarity)

    last_epochs: dict[object, int] = {}
    for score in drawn_scores:
        if score.metric == metric:
            last_epochs[panel_key(score)] = max(score.epoch, last_epochs.get(panel_key(score), 0))
    csv_scores = [
        score
        for score in drawn_scores
        if score.epoch == last_epochs.get(panel_key(score))
        or (score.epoch == 0 and not together and score.split in GAP_SPLITS)
    ]
    return layers_by_epoch_csv(add_selected(csv_scores, (selected or {}).values()))


def _draw_together(
    scores: Sequence[Score],
    data: Mapping[str, DataFacts],
    indistinguishable: Indistinguishable | None,
    remarks: Sequence[str],
    selected: Mapping[str, Selected],
) -> Figure:
    """Draw each run at its last epoch: test solid with its intervals, train dashed and hollow, the best layer ringed.

    Each post-processing and similarity has a panel, and selected candidates a star.

    Args:
        indistinguishable: gives the layers indistinguishable from the best of some scores; None where unknown.
    """
    metric_scores = scores_of_metric(scores)
    runs = dict.fromkeys(score.run for score in metric_scores)
    last_epochs = {run: max(score.epoch for score in metric_scores if score.run == run) for run in runs}
    metric_scores, kind = keep_one_kind(
        [score for score in metric_scores if score.epoch == last_epochs[score.run]],
        lambda score: score.split == "test",
    )
    styles, texts = fig.styles(list(runs)), {split: split_text(split, data.values()) for split in GAP_SPLITS}
    panels = _panels_together(metric_scores, last_epochs, data)
    floors = {split: 100 * value for split, value in common_chance(data.values()).items() if split in GAP_SPLITS}
    stars = _stars_on({(i, run): layers for i, panel in enumerate(panels) for run, layers in panel.items()}, selected)
    y_limits = _limits(metric_scores, GAP_SPLITS, floors, stars)
    # In the notes the name of the run, or with several panels that of the search.
    named = {
        run if len(panels) == 1 else search_name(scores_in(layers.series)[0]): layers
        for panel in panels
        for run, layers in panel.items()
    }
    series = {name: layers.series for name, layers in named.items()}
    notes = run_lines(data, GAP_SPLITS) + common_lines(series)
    notes += [f"{name}: {text}" for name, layers in named.items() if (text := layers.best_text)]
    notes += _indistinguishable_notes(named, scores, kind, indistinguishable)
    notes += [*missing_lines(series, GAP_SPLITS), *kind.lines("Bars")]
    notes += [*remarks, *fold_lines(star.selected for star in stars.values())]
    merged = [names_in_order({run: layers.series for run, layers in panel.items()}) for panel in panels]
    width, under, upright = _sizes(merged)
    pools = fig.pool_kinds(track for layers in named.values() for track in _tracks(layers.series))
    below = under + 0.17 * (len(runs) + len(pools) + len(stars)) + 0.2
    right = fig.width_of(list(texts.values())) + 0.3
    layout = fig.PanelLayout(max(width, _TOGETHER_WIDTH), _HEIGHT, right, below=below, columns=2, notes=notes)
    figure, all_axes = fig.make_panels([_title_together(panel) for panel in panels], layout)
    for i, (axes, panel, names) in enumerate(zip(all_axes, panels, merged, strict=True)):
        _set_axes(axes, y_limits, names, metric_scores[0].metric, upright=upright)
        labels = [x for run, layers in panel.items() for x in _draw_run(axes, layers, names, styles[run], texts)]
        intervals = {run: _intervals(layers, "test", names) for run, layers in panel.items()}
        _draw_bars(axes, intervals, {run: styles[run].colour for run in panel})
        fig.draw_chance(axes, {texts[split]: level for split, level in floors.items()})
        fig.label_right(axes, labels)
        kinds = [_line_look("test", styles[run]) | {"label": visible(run)} for run in panel]
        for run in panel:
            if (i, run) in stars:
                star = replace(stars[i, run], text=f"{run}, {stars[i, run].text}", edge=styles[run].colour)
                star.draw(axes, names.index(list(panel[run].series)[int(star.position)]))
                kinds.append(star.kind)
        fig.add_legend(axes, [*kinds, *pools], columns=1, under=under)
    return figure


def _panels_together(
    scores: Sequence[Score], last_epochs: Mapping[str, int], data: Mapping[str, DataFacts]
) -> list[dict[str, _RunLayers]]:
    """The runs of each panel: one for each post-processing and similarity."""
    searches: dict[tuple[str, str], list[Score]] = {}
    for score in scores:
        searches.setdefault((score.ranked.post_processing, score.ranked.similarity), []).append(score)
    unknown = DataFacts("", {})
    return [
        {
            run: _RunLayers(run, series, last_epochs[run], data.get(run, unknown))
            for run, series in group_by_run(search_scores).items()
        }
        for search_scores in searches.values()
    ]


def _title_together(panel: Mapping[str, _RunLayers]) -> str:
    every = {f"{run} {name}": layer for run, layers in panel.items() for name, layer in layers.series.items()}
    epochs = {epoch_text(layers.epoch, layers.facts) for layers in panel.values()}
    when = epochs.pop() if len(epochs) == 1 else "last epochs"
    return f"{scores_in(every)[0].metric} by layer, {when}, {comparison_text(every)}"


def _draw_run(
    axes: Axes, layers: _RunLayers, names: Sequence[str], style: fig.Style, texts: Mapping[str, str]
) -> list[fig.Label]:
    """Draw the lines of a run; returns their labels.

    Args:
        texts: split -> what it is called.
    """
    labels = []
    xs = [names.index(name) for name in layers.series]
    for split in GAP_SPLITS:
        values = layers.heights(split)
        valid = [i for i, value in enumerate(values) if np.isfinite(value)]
        if not valid:
            continue
        for number, track in enumerate(_tracks(layers.series)):
            (line,) = axes.plot([xs[i] for i in track.positions], [values[i] for i in track.positions])
            line.set(**_line_look(split, style) | ({"linestyle": track.dashes} if track.pool else {}))
            line.set_label(f"{'_' * bool(number)}{layers.run} {split}")
        labels.append(fig.Label(texts[split], xs[valid[-1]], values[valid[-1]], style.text))
    _mark_best(axes, layers, names, style.text)
    return labels


def _line_look(split: str, style: fig.Style) -> dict[str, object]:
    seen = {"linewidth": 1.0, "linestyle": (0, (5, 2)), "markerfacecolor": "white", "markersize": style.size * 0.55}
    new = {"linewidth": 1.7, "linestyle": "-", "markersize": style.size * 0.7}
    return {"color": style.colour, "marker": style.marker} | (seen if split == "train" else new)


def draw_by_layer(source: PlotSource, options: PlotOptions, remarks: Sequence[str] = ()) -> Drawing:
    """Draw the last epoch, or the requested one, beside epoch 0.

    Args:
        remarks: further notes.
    """
    scores = source.scores
    if options.epoch is not None:
        scores = [score for score in scores if score.epoch in (0, resolve_epoch(scores, options.epoch))]
    scores = scores_of_layers(scores, options.layers)
    data = source.data(dict.fromkeys(score.run for score in scores))
    layers = {(score.run, score.ranked.layer) for score in scores}
    selected = selected_at(source.selected(), options.epoch)
    selected = {run: candidate for run, candidate in selected.items() if (run, candidate.score.ranked.layer) in layers}
    figure = draw(scores, data=data, indistinguishable=source.indistinguishable, remarks=remarks, selected=selected)
    return Drawing(figure, layers_csv(scores, data, selected))


PLOT = Plot(draw_by_layer, ("layers", "epoch", "metric"))
