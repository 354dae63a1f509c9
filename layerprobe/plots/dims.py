"""Recall of layers reduced to equal dimensions, by reduction (Zhai & Wu 2019, Fig. 2, has it by dimension)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from layerprobe.plots import dims_by_layer, dims_by_size
from layerprobe.plots.figure import csv_text
from layerprobe.plots.plot import Drawing, Plot, PlotOptions, PlotSource
from layerprobe.plots.reducers import MANY, Reducer, reducer_names, reducer_of
from layerprobe.plots.selected import add_selected, fold_lines, selected_at
from layerprobe.plots.values import merge_lines
from layerprobe.values.facts import DataFacts, run_lines
from layerprobe.values.intervals import ShownKind
from layerprobe.values.keys import NO_REDUCTION
from layerprobe.values.scores import note_text, shared_notes
from layerprobe.values.views import Reductions, Selected, Sized, equal_dimensions

_KEY = ("run", "epoch", "split", "layer", "pool", "reduction", "similarity")


def draw(
    reductions: Sequence[Reductions],
    *,
    data: Mapping[str, DataFacts] | None = None,
    selected: Mapping[str, Selected] | None = None,
) -> Figure:
    """Draw a panel for each equal dimension, by layer; with many dimensions, a panel for each reducer, by dimension.

    A ring marks the best post-processing of a layer, a star the selected candidate. Intervals are bars, or bands.

    Args:
        reductions: at least one layer is at an equal dimension.
        data: run -> the data it was measured on.
        selected: run -> the selected candidate of its choice.
    """
    selected = selected or {}
    names = reducer_names(reductions)
    kind = ShownKind.of(
        sized.score.kind for run_reductions in reductions for sized in run_reductions.values if sized.score.interval
    )
    if kind.kind is None:
        reductions = [
            replace(run_reductions, values=tuple(map(_drop_interval, run_reductions.values)))
            for run_reductions in reductions
        ]
    by_size = len(equal_dimensions(reductions)) >= MANY
    notes = run_lines(data or {}, {run_reductions.split for run_reductions in reductions})
    notes += ["; ".join(_chains(reductions, names)), *_signs(reductions, by_size=by_size)]
    notes += kind.lines("Bands" if by_size else "Bars")
    notes += merge_lines({run_reductions.run: _remarks(run_reductions, names) for run_reductions in reductions})
    notes += fold_lines(selected.values())
    draw_panels = dims_by_size.draw if by_size else dims_by_layer.draw
    return draw_panels(reductions, names, notes, data or {}, selected)


def table(reductions: Iterable[Reductions], selected: Mapping[str, Selected] | None = None) -> str:
    """The numbers drawn as CSV, with the split on which the best post-processing of a layer was chosen.

    Args:
        selected: run -> the selected candidate of its choice.
    """
    reductions = list(reductions)
    metric = reductions[0].values[0].score.metric
    numbers = ["dimensions", metric, "low", "high", "n", "best post-processing, chosen on", "note"]
    rows: list[list[object]] = [[*_KEY, *numbers]]
    for run_reductions in reductions:
        star = (selected or {}).get(run_reductions.run)
        for sized in _add_selected(run_reductions, star):
            s = sized.score
            chosen = run_reductions.chosen_on if sized.chosen else None
            key = [s.run, s.epoch, s.split, *s.ranked.as_columns().values()]
            rows.append([*key, sized.dim, s.value, s.low, s.high, s.n, chosen, note_text(s.all_notes)])
    return csv_text(rows)


def _add_selected(reductions: Reductions, selected: Selected | None) -> list[Sized]:
    """The values drawn, with that of the selected candidate, which has a note that says so."""
    if selected is None:
        return list(reductions.values)
    by_score = {sized.score: sized for sized in reductions.values}
    scores = add_selected(list(by_score), [selected])
    drawn = [*by_score.values(), Sized(selected.score, selected.dim, False)][: len(scores)]
    return [replace(sized, score=score) for sized, score in zip(drawn, scores, strict=True)]


def _drop_interval(sized: Sized) -> Sized:
    return replace(sized, score=replace(sized.score, interval=None))


def _signs(reductions: Sequence[Reductions], *, by_size: bool) -> list[str]:
    """The legend of rings and hollow points."""
    chosen = dict.fromkeys(
        run_reductions.chosen_on
        for run_reductions in reductions
        if any(sized.chosen for sized in run_reductions.values)
    )
    rings = [f"Ring: a layer's best post-processing, chosen on {split}" for split in chosen]
    raw = any(
        sized.score.ranked.reduction == NO_REDUCTION and sized.dim
        for run_reductions in reductions
        for sized in run_reductions.values
    )
    return ["Hollow: the unreduced layer, at its own dimensions"] * (by_size and raw) + rings


def _chains(reductions: Sequence[Reductions], names: Mapping[Reducer, str]) -> list[str]:
    """The chain of reductions of each name."""
    lines = []
    for reducer, name in names.items():
        chain_values = [
            sized for run_reductions in reductions for sized in run_reductions.values if reducer_of(sized) == reducer
        ]
        dims = sorted({sized.dim for sized in chain_values if sized.dim is not None})
        if reducer.chain != NO_REDUCTION:
            lines.append(f"{name}: {reducer.chain.replace(':D', f':{dims[0]}') if len(dims) == 1 else reducer.chain}")
        elif dims:
            size = f"{dims[0]:,}" if len(dims) == 1 else f"{dims[0]:,} to {dims[-1]:,}"
            lines.append(f"{name}: {size} dimensions")
    return lines


def _remarks(reductions: Reductions, names: Mapping[Reducer, str]) -> list[str]:
    """The notes that all scores of a run share, those of one reducer, of single scores, and of the choice."""
    everywhere = shared_notes(sized.score.remarks for sized in reductions.values)
    lines = [*everywhere, *reductions.notes]
    for reducer in dict.fromkeys(map(reducer_of, reductions.values)):
        reducer_scores = [sized.score for sized in reductions.values if reducer_of(sized) == reducer]
        name = names.get(reducer, reducer.chain)
        common = shared_notes(score.remarks for score in reducer_scores)
        if notes := [note for note in common if note not in everywhere]:
            lines.append(f"{name}: {note_text(notes)}")
        for score in reducer_scores:
            notes = [note for note in score.remarks if note not in common]
            if score.value is None:
                lines.append(f"not valid: {score.ranked.layer} {name}: {note_text(notes or score.notes)}")
            elif notes:
                lines.append(f"{score.ranked.layer} {name}: {note_text(notes)}")
    return lines


def plot(source: PlotSource, options: PlotOptions) -> Drawing:
    """Draw the layers at equal dimensions, or the requested ones."""
    reductions = source.reductions(options)
    layers = {
        (run_reductions.run, sized.score.ranked.layer)
        for run_reductions in reductions
        for sized in run_reductions.values
    }
    selected = selected_at(source.selected(), options.epoch)
    selected = {run: candidate for run, candidate in selected.items() if (run, candidate.score.ranked.layer) in layers}
    figure = draw(reductions, data=source.data(run_reductions.run for run_reductions in reductions), selected=selected)
    return Drawing(figure, table(reductions, selected))


PLOT = Plot(plot, ("layers", "epoch", "metric"))
