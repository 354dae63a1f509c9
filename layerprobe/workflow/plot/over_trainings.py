"""Numbers over a key of recipes, or over K: means over trainings with intervals, and differences paired by seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from layerprobe.plots.drawn_layers import match_layers, resolve_epoch
from layerprobe.plots.plot import LOSS, PlotOptions
from layerprobe.system.errors import DataError
from layerprobe.values.intervals import Interval
from layerprobe.values.layers import NO_REDUCTION, RankedLayer, headline_layers, names_by_layer
from layerprobe.values.scores import Score, is_recall, note_text, recall_of, shared_notes
from layerprobe.values.views import OverTrainings, Repeated, RepeatedLine
from layerprobe.workflow.plot.recipe_lines import PlottedRun, places_in_order
from layerprobe.workflow.plot.training_log import logged_losses
from layerprobe.workflow.run.experiments import have_other_images
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import weights_text

SPLIT = "test"
_EMBEDDING = "embedding"
Place = float | str


@dataclass(frozen=True)
class TrainingScores:
    """The trainings of a figure, with their scores.

    Args:
        notes: on the trainings.
        embeddings: run -> its embedding layer, where that is known.
    """

    runs: Sequence[PlottedRun]
    scores: Sequence[Score]
    notes: tuple[str, ...] = ()
    embeddings: Mapping[str, RankedLayer] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _RunValue:
    """A number of one training; `value` is None without a valid one."""

    run: PlottedRun
    layer: str
    metric: str
    place: Place | None
    epoch: int
    value: float | None
    notes: tuple[str, ...] = ()


# Line and layer -> place -> seed -> number.
_Cells = dict[tuple[str, str], dict[Place, dict[int, _RunValue]]]


def scores_over_key(training_scores: TrainingScores, options: PlotOptions, key: str) -> OverTrainings:
    """A metric on test over the key that gives each training its place."""
    metric = options.metric or "R@1"
    values = _read_values(training_scores, options, lambda score: score.metric == metric)
    if not values:
        raise DataError(f"no scores of {metric} on {SPLIT}", fix="Run layerprobe probe first")
    return _build_view([value for value in values if value.place is not None], metric, key, training_scores.notes)


def losses_over_key(
    training_scores: TrainingScores, logs: Mapping[str, Run], options: PlotOptions, key: str
) -> OverTrainings:
    """The training loss over the key that gives each training its place."""
    values = [_read_loss(run, logs[run.name], options.epoch) for run in training_scores.runs]
    return replace(_build_view(values, LOSS, key, training_scores.notes), split="train")


def recall_at_k(training_scores: TrainingScores, options: PlotOptions) -> OverTrainings:
    """Recall@K on test over K."""
    values = _read_values(training_scores, options, lambda score: is_recall(score.metric))
    if not values:
        raise DataError(f"no Recall@K on {SPLIT}", fix="Run layerprobe probe first")
    values = [replace(value, place=recall.k) for value in values if (recall := recall_of(value.metric))]
    view = _build_view(values, "R@K", "K", training_scores.notes)
    return replace(view, lines=tuple(replace(line, differences=()) for line in view.lines))


def _read_values(
    training_scores: TrainingScores, options: PlotOptions, is_shown: Callable[[Score], bool]
) -> list[_RunValue]:
    """The scores on test at the requested epoch or each run's last, of the requested layers or each run's embedding."""
    by_run: dict[str, list[Score]] = {}
    for score in training_scores.scores:
        if score.split == SPLIT:
            by_run.setdefault(score.run, []).append(score)
    epochs = {name: resolve_epoch(run_scores, options.epoch) for name, run_scores in by_run.items()}
    by_run = {
        name: [s for s in run_scores if s.epoch == epochs[name] and is_shown(s)] for name, run_scores in by_run.items()
    }
    all_layers = [score.ranked for run_scores in by_run.values() for score in run_scores]
    requested = match_layers(options.layers, all_layers) if all_layers else []
    run_layers = {
        name: _default_layers(run_scores, training_scores.embeddings.get(name)) if requested is None else requested
        for name, run_scores in by_run.items()
    }
    names = names_by_layer(ranked for layers in run_layers.values() for ranked in layers)
    embeddings = {layers[0] for name, layers in run_layers.items() if layers == [training_scores.embeddings.get(name)]}
    if requested is None and len(embeddings) > 1:
        names |= dict.fromkeys(embeddings, _EMBEDDING)
    return [
        _RunValue(run, names[ranked], s.metric, run.place, s.epoch, s.value, s.notes)
        for run in training_scores.runs
        for ranked in run_layers.get(run.name, ())
        for s in by_run[run.name]
        if s.ranked == ranked
    ]


def _default_layers(scores: Sequence[Score], embedding: RankedLayer | None) -> list[RankedLayer]:
    """The embedding; the `headline_layers` where it is unknown."""
    layers = list(dict.fromkeys(score.ranked for score in scores))
    if embedding in layers:
        return [embedding]
    return headline_layers([ranked for ranked in layers if ranked.reduction == NO_REDUCTION] or layers, {}, None)


def _read_loss(plotted: PlottedRun, run: Run, epoch: int | None) -> _RunValue:
    """The last line of metrics.jsonl, or that of the epoch."""
    losses = {logged: loss for logged, loss, _ in logged_losses(run)}
    read_epoch = max(losses, default=0) if epoch is None else epoch
    if read_epoch not in losses:
        fix = f"Known: {', '.join(map(str, sorted(losses)))}" if losses else "Leave the run out"
        raise DataError(f"no training loss of epoch {read_epoch}", file=run.training_log_file, fix=fix)
    valid = math.isfinite(losses[read_epoch])
    return _RunValue(
        plotted,
        "",
        LOSS,
        plotted.place,
        read_epoch,
        losses[read_epoch] if valid else None,
        () if valid else ("not finite",),
    )


def _build_view(values: Sequence[_RunValue], measure: str, axis: str, notes: Iterable[str]) -> OverTrainings:
    positions = places_in_order(value.place for value in values if value.place is not None)
    cells: _Cells = {}
    for value in values:
        if value.place is not None:
            line_cells = cells.setdefault((value.run.line, value.layer), {})
            line_cells.setdefault(positions[value.place], {})[value.run.seed] = value
    points = [by_seed for line_cells in cells.values() for by_seed in line_cells.values()]
    tested = [
        {value.run.record.contents.get(SPLIT) for value in by_seed.values() if value.run.record} for by_seed in points
    ]
    first_line = next(iter(cells.values()))
    weights = {weights_text(value.run.record) if value.run.record else "" for value in values}
    return OverTrainings(
        measure,
        SPLIT,
        axis,
        tuple(positions.values()),
        tuple(
            RepeatedLine(
                name,
                layer,
                tuple(
                    _repeat_point(position, line_cells[position])
                    for position in positions.values()
                    if position in line_cells
                ),
                tuple(_differences(line_cells, first_line, positions.values())) if line_cells is not first_line else (),
            )
            for (name, layer), line_cells in cells.items()
        ),
        tuple(sorted({value.epoch for value in values})),
        tuple(dict.fromkeys(value.run.name for value in values)),
        any(len(hashes - {None}) > 1 for hashes in tested),
        (*notes, *_notes(values), *_note_unequal_epochs(points)),
        weights.pop() if len(weights) == 1 else "",
    )


def _repeat_point(position: Place, by_seed: Mapping[int, _RunValue]) -> Repeated:
    numbers = {seed: value.value for seed, value in sorted(by_seed.items()) if value.value is not None}
    return _summarize(position, numbers, is_complete=len(numbers) == len(by_seed))


def _differences(
    line: Mapping[Place, Mapping[int, _RunValue]],
    first_line: Mapping[Place, Mapping[int, _RunValue]],
    places: Iterable[Place],
) -> Iterable[Repeated]:
    """Differences from the first line at each position, paired by seed; pairs with other test images are skipped."""
    for position in places:
        differences = {}
        for seed, value in sorted(line.get(position, {}).items()):
            first_value = first_line.get(position, {}).get(seed)
            if (
                first_value is None
                or value.value is None
                or first_value.value is None
                or _differ_in_images(value.run, first_value.run)
            ):
                continue
            differences[seed] = value.value - first_value.value
        if differences:
            yield _summarize(position, differences)


def _differ_in_images(run: PlottedRun, other: PlottedRun) -> bool:
    return bool(run.record and other.record and have_other_images(run.record, other.record, SPLIT))


def _summarize(position: Place, values: Mapping[int, float], *, is_complete: bool = True) -> Repeated:
    """The mean of the numbers by seed, with its interval; neither where a training has no valid number."""
    if not is_complete:
        return Repeated(position, values, None)
    return Repeated(
        position, values, fmean(values.values()), _interval(list(values.values())) if len(values) > 1 else None
    )


def _interval(values: Sequence[float]) -> Interval | None:
    import numpy as np

    from layerprobe.statistics.seeds import mean_interval  # it imports scipy, which figures of one training do without

    return mean_interval(np.array(values))


def _notes(values: Sequence[_RunValue]) -> list[str]:
    """The notes that all numbers share, then those of some runs, and why numbers are not valid."""
    valid = [value.notes for value in values if value.value is not None]
    shared = shared_notes(valid) if valid else ()
    lines: dict[str, dict[str, None]] = {}
    for value in values:
        text = note_text(note for note in value.notes if note not in shared)
        if value.value is None:
            text = f"not valid: {value.metric} {value.layer}".rstrip() + f": {note_text(value.notes)}"
        if text:
            lines.setdefault(text, {})[value.run.name] = None
    return [*shared, *(f"{', '.join(runs)}: {text}" for text, runs in lines.items())]


def _note_unequal_epochs(points: Iterable[Mapping[int, _RunValue]]) -> list[str]:
    """A note on trainings of one point that end at different epochs."""
    ends = {
        value.run.name: value.epoch
        for by_seed in points
        if len({value.epoch for value in by_seed.values()}) > 1
        for value in by_seed.values()
    }
    runs = ", ".join(f"{run} ({epoch})" for run, epoch in ends.items())
    return [f"trainings of one point have other last epochs: {runs}"] if ends else []
