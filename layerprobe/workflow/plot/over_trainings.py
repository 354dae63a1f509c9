"""Numbers over a key of recipes, or over K: means over trainings with intervals, and differences paired by seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from layerprobe.plots.asked import asked_epoch, asked_layers
from layerprobe.plots.plot import LOSS, PlotOptions
from layerprobe.system.errors import DataError
from layerprobe.values.headline_layers import headline_layers
from layerprobe.values.intervals import Interval
from layerprobe.values.keys import NO_REDUCTION, RankedLayer, names_by_layer
from layerprobe.values.metric_names import is_recall, recall_of
from layerprobe.values.scores import Score, note_text, shared_notes
from layerprobe.values.views import OverTrainings, Repeated, RepeatedLine
from layerprobe.workflow.plot.recipe_lines import Placed, places_in_order
from layerprobe.workflow.plot.training_log import logged_losses
from layerprobe.workflow.run.manifests import have_other_images
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import weights_text

SPLIT = "test"
_EMBEDDING = "embedding"
Place = float | str


@dataclass(frozen=True)
class Trained:
    """The trainings of a figure.

    Args:
        notes: on them.
        embeddings: run -> its embedding layer, where that is known.
    """

    found: Sequence[Placed]
    scores: Sequence[Score]
    notes: tuple[str, ...] = ()
    embeddings: Mapping[str, RankedLayer] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Measured:
    """A number of one training; `value` is None without a valid one."""

    of: Placed
    layer: str
    metric: str
    place: Place | None
    epoch: int
    value: float | None
    notes: tuple[str, ...] = ()


# Line and layer -> place -> seed -> number.
_Cells = dict[tuple[str, str], dict[Place, dict[int, _Measured]]]


def scores_over_key(trained: Trained, options: PlotOptions, key: str) -> OverTrainings:
    """A metric on test over the key that gives each training its place."""
    metric = options.metric or "R@1"
    measured = _scored(trained, options, lambda score: score.metric == metric)
    if not measured:
        raise DataError(f"no scores of {metric} on {SPLIT}", fix="Run layerprobe probe first")
    return _view([each for each in measured if each.place is not None], metric, key, trained.notes)


def losses_over_key(trained: Trained, logs: Mapping[str, Run], options: PlotOptions, key: str) -> OverTrainings:
    """The training loss over the key that gives each training its place."""
    measured = [_loss(each, logs[each.run], options.epoch) for each in trained.found]
    return replace(_view(measured, LOSS, key, trained.notes), split="train")


def recall_at_k(trained: Trained, options: PlotOptions) -> OverTrainings:
    """Recall@K on test over K."""
    measured = _scored(trained, options, lambda score: is_recall(score.metric))
    if not measured:
        raise DataError(f"no Recall@K on {SPLIT}", fix="Run layerprobe probe first")
    measured = [replace(each, place=recall.k) for each in measured if (recall := recall_of(each.metric))]
    view = _view(measured, "R@K", "K", trained.notes)
    return replace(view, lines=tuple(replace(line, differences=()) for line in view.lines))


def _scored(trained: Trained, options: PlotOptions, is_shown: Callable[[Score], bool]) -> list[_Measured]:
    """The scores on test at each run's last or the asked epoch, of the asked layers or each run's embedding."""
    by_run: dict[str, list[Score]] = {}
    for score in trained.scores:
        if score.split == SPLIT:
            by_run.setdefault(score.run, []).append(score)
    last = {run: asked_epoch(own, options.epoch) for run, own in by_run.items()}
    by_run = {run: [s for s in own if s.epoch == last[run] and is_shown(s)] for run, own in by_run.items()}
    every = [score.ranked for own in by_run.values() for score in own]
    asked = asked_layers(options.layers, every) if every else []
    shown = {
        run: _first_shown(own, trained.embeddings.get(run)) if asked is None else asked for run, own in by_run.items()
    }
    names = names_by_layer(ranked for layers in shown.values() for ranked in layers)
    embeddings = {layers[0] for run, layers in shown.items() if layers == [trained.embeddings.get(run)]}
    if asked is None and len(embeddings) > 1:
        names |= dict.fromkeys(embeddings, _EMBEDDING)
    return [
        _Measured(each, names[ranked], s.metric, each.place, s.epoch, s.value, s.notes)
        for each in trained.found
        for ranked in shown.get(each.run, ())
        for s in by_run[each.run]
        if s.ranked == ranked
    ]


def _first_shown(scores: Sequence[Score], embedding: RankedLayer | None) -> list[RankedLayer]:
    """The embedding; the `headline_layers` where it is unknown."""
    layers = list(dict.fromkeys(score.ranked for score in scores))
    if embedding in layers:
        return [embedding]
    return headline_layers([ranked for ranked in layers if ranked.reduction == NO_REDUCTION] or layers, {}, None)


def _loss(of: Placed, run: Run, epoch: int | None) -> _Measured:
    """The last line of metrics.jsonl, or that of the epoch."""
    losses = {logged: loss for logged, loss, _ in logged_losses(run)}
    at = max(losses, default=0) if epoch is None else epoch
    if at not in losses:
        known = f"Known: {', '.join(map(str, sorted(losses)))}" if losses else "Leave the run out"
        raise DataError(f"no training loss of epoch {at}", file=run.training_log_file, fix=known)
    valid = math.isfinite(losses[at])
    return _Measured(of, "", LOSS, of.place, at, losses[at] if valid else None, () if valid else ("not finite",))


def _view(measured: Sequence[_Measured], measure: str, axis: str, notes: Iterable[str]) -> OverTrainings:
    places = places_in_order(each.place for each in measured if each.place is not None)
    cells: _Cells = {}
    for each in measured:
        if each.place is not None:
            own = cells.setdefault((each.of.line, each.layer), {})
            own.setdefault(places[each.place], {})[each.of.seed] = each
    points = [each for own in cells.values() for each in own.values()]
    tested = [{each.of.record.contents.get(SPLIT) for each in own.values() if each.of.record} for own in points]
    first = next(iter(cells.values()))
    weights = {weights_text(each.of.record) if each.of.record else "" for each in measured}
    return OverTrainings(
        measure,
        SPLIT,
        axis,
        tuple(places.values()),
        tuple(
            RepeatedLine(
                name,
                layer,
                tuple(_repeated(place, own[place]) for place in places.values() if place in own),
                tuple(_differences(own, first, places.values())) if own is not first else (),
            )
            for (name, layer), own in cells.items()
        ),
        tuple(sorted({each.epoch for each in measured})),
        tuple(dict.fromkeys(each.of.run for each in measured)),
        any(len(found - {None}) > 1 for found in tested),
        (*notes, *_notes(measured), *_uneven(points)),
        weights.pop() if len(weights) == 1 else "",
    )


def _repeated(place: Place, own: Mapping[int, _Measured]) -> Repeated:
    each = {seed: one.value for seed, one in sorted(own.items()) if one.value is not None}
    return _over(place, each, whole=len(each) == len(own))


def _differences(
    own: Mapping[Place, Mapping[int, _Measured]],
    first: Mapping[Place, Mapping[int, _Measured]],
    places: Iterable[Place],
) -> Iterable[Repeated]:
    """From the first line at the same place, over the seeds of both whose test images are the same."""
    for place in places:
        each = {}
        for seed, one in sorted(own.get(place, {}).items()):
            other = first.get(place, {}).get(seed)
            if other is None or one.value is None or other.value is None or _differ_in_images(one.of, other.of):
                continue
            each[seed] = one.value - other.value
        if each:
            yield _over(place, each)


def _differ_in_images(one: Placed, other: Placed) -> bool:
    return bool(one.record and other.record and have_other_images(one.record, other.record, SPLIT))


def _over(place: Place, each: Mapping[int, float], *, whole: bool = True) -> Repeated:
    """The mean of `each`, with its interval; neither unless they are all."""
    if not whole:
        return Repeated(place, each, None)
    return Repeated(place, each, fmean(each.values()), _interval(list(each.values())) if len(each) > 1 else None)


def _interval(values: Sequence[float]) -> Interval | None:
    import numpy as np

    from layerprobe.statistics.seeds import mean_interval  # it imports scipy, which figures of one training do without

    return mean_interval(np.array(values))


def _notes(measured: Sequence[_Measured]) -> list[str]:
    """The notes that all numbers share, then those of some runs, and why numbers are not valid."""
    valid = [each.notes for each in measured if each.value is not None]
    shared = shared_notes(valid) if valid else ()
    lines: dict[str, dict[str, None]] = {}
    for each in measured:
        text = note_text(note for note in each.notes if note not in shared)
        if each.value is None:
            text = f"not valid: {each.metric} {each.layer}".rstrip() + f": {note_text(each.notes)}"
        if text:
            lines.setdefault(text, {})[each.of.run] = None
    return [*shared, *(f"{', '.join(runs)}: {text}" for text, runs in lines.items())]


def _uneven(points: Iterable[Mapping[int, _Measured]]) -> list[str]:
    """A note on trainings of one point that end at different epochs."""
    ends = {
        each.of.run: each.epoch
        for own in points
        if len({one.epoch for one in own.values()}) > 1
        for each in own.values()
    }
    runs = ", ".join(f"{run} ({epoch})" for run, epoch in ends.items())
    return [f"trainings of one point have other last epochs: {runs}"] if ends else []
