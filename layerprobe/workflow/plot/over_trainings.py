"""Numbers of whole trainings over a key of recipes, over K, or over epochs, from their logs and checkpoints."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from layerprobe.plots.drawn_scores import match_layers, metric_of, resolve_epoch
from layerprobe.plots.plot import LOSS, NotProbedError, PlotOptions
from layerprobe.recipe.recipe import recorded_recipe
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.values.layers import NO_POST_PROCESSING, RankedLayer, headline_layers, names_by_layer
from layerprobe.values.records import RunRecord
from layerprobe.values.scores import Score, Subject, is_recall, note_text, recall_of, shared_notes
from layerprobe.values.sections import DECIDING, NOT_DECIDING
from layerprobe.values.views import OverTrainings, Repeated, RepeatedLine
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.epoch_weights import read_tensors
from layerprobe.workflow.run.experiments import experiments_of, have_other_images
from layerprobe.workflow.run.metric_values import metric_flags
from layerprobe.workflow.run.references import embedding_among
from layerprobe.workflow.run.runs import Run, kept_epochs
from layerprobe.workflow.run.seen import weights_text
from layerprobe.workflow.run.training_log import logged_losses

_SEED = "train.seed"
_TRAINING_LOSS = "training loss"
_NONE = "none"


@dataclass(frozen=True, eq=False)
class PlottedRun:
    """A run in a figure over trainings.

    Args:
        line: the keys in which it differs from runs of other lines; empty where there are none.
        place: the value of the key; None without a key.
    """

    name: str
    record: RunRecord | None = None
    line: str = ""
    place: float | str | None = None

    @property
    def seed(self) -> int:
        """0 where the record is unreadable."""
        return self.record.seed if self.record else 0


def place_runs(
    runs: Sequence[Run], key: str | None, lines: Mapping[str, str] | None
) -> tuple[list[PlottedRun], tuple[str, ...]]:
    """The runs that have the key, each with its line and place, and notes.

    Runs that differ in the seed alone, and in keys that have the seed's value in every run, share line and place. Runs
    of one recipe that differ otherwise, as by their images, have a line each, under their own names.

    Args:
        lines: run -> the name of its line; None: the keys that differ, of which one that the others imply is a note.

    Raises:
        UnknownNameError: no run has the key.
    """
    records = {run: _read_record(run) for run in runs}
    recipes = {run: {} if record is None else _keys(record) for run, record in records.items()}
    notes: list[str] = []
    if key is not None:
        names_without_key = [run.name for run in runs if key not in recipes[run]]
        if len(names_without_key) == len(runs):
            all_keys = dict.fromkeys(name for recipe in recipes.values() for name in recipe)
            raise UnknownNameError("key", key, _choose_keys(list(recipes.values()), None) or all_keys)
        notes += [f"left out, without {key}: {', '.join(names_without_key)}"] if names_without_key else []
    runs_with_key = [run for run in runs if key is None or key in recipes[run]]
    named_recipes = {run.name: recipes[run] for run in runs_with_key if recipes[run]}
    if lines is None:
        names, implied = _name_lines(named_recipes, key)
        notes += [f"These keys differ as well: {', '.join(implied)}."] if implied else []
        experiment_notes = experiments_of(runs_with_key).notes
        notes += experiment_notes
        own_names = {run.name: run.name for run in runs_with_key} if len(runs_with_key) > 1 else {runs[0].name: ""}
        lines = own_names if experiment_notes else own_names | names
    plotted = [
        PlottedRun(run.name, records[run], lines[run.name], None if key is None else place_of(recipes[run][key]))
        for run in runs_with_key
    ]
    runs_by_position: dict[tuple[object, ...], PlottedRun] = {}
    for run in plotted:
        other = runs_by_position.setdefault((run.line, run.place, run.seed), run)
        if other is not run:
            message = f"{other.name} and {run.name} have the same recipe and seed"
            raise RecipeError(message, fix="Leave one of them out")
    return plotted, tuple(notes)


def line_name(values: Mapping[str, Any]) -> str:
    """`loss.name=triplet, train.batch_size=64`."""
    return ", ".join(f"{key}={_text(place_of(value))}" for key, value in values.items())


def place_of(value: Any) -> float | str:
    """The value of a key as a place: `[64]` is 64; `[]` and null are `none`; true, and lists of several, are text."""
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if value is None or value == []:
        return _NONE
    return value if isinstance(value, str) or type(value) in (int, float) else json.dumps(value)


def places_in_order(places: Iterable[float | str]) -> dict[float | str, float | str]:
    """Place -> itself, ascending; its text if some are texts, which come first, as given."""
    distinct = list(dict.fromkeys(places))
    texts, numbers = [x for x in distinct if isinstance(x, str)], sorted(x for x in distinct if not isinstance(x, str))
    return {**{text: text for text in texts}, **{x: _text(x) if texts else x for x in numbers}}


def differing_keys(runs: Iterable[Run]) -> list[str]:
    """The keys that tell the recipes of runs apart, without the seed, and without keys that others imply."""
    return _choose_keys([_keys(record) for run in runs if (record := _read_record(run))], None)


def _name_lines(recipes: Mapping[str, Mapping[str, Any]], key: str | None) -> tuple[dict[str, str], list[str]]:
    """The line of each run, and the other keys that differ, without options of a part that the lines name."""
    all_recipes = list(recipes.values())
    chosen = _choose_keys(all_recipes, key)
    parts = {name.removesuffix(".name") for name in (*chosen, key or "") if name.endswith(".name")}
    other_keys = [name for name in _find_differing_keys(all_recipes) if name not in (*chosen, key)]
    lines = {run: {name: recipe[name] for name in chosen if name in recipe} for run, recipe in recipes.items()}
    implied = [name for name in other_keys if name.partition(".")[0] not in parts]
    return {run: line_name(values) for run, values in lines.items()}, implied


def _choose_keys(recipes: Sequence[Mapping[str, Any]], key: str | None) -> list[str]:
    """Keys that distinguish recipes with the same value of `key`, chosen greedily; names of parts come first."""
    cells = [() if key is None else (_encode(recipe, key),) for recipe in recipes]
    chosen: list[str] = []
    for name in sorted(_find_differing_keys(recipes), key=lambda name: not name.endswith(".name")):
        finer = [(*cell, _encode(recipe, name)) for cell, recipe in zip(cells, recipes, strict=True)]
        if len(set(finer)) > len(set(cells)):
            chosen.append(name)
            cells = finer
    return chosen


def _find_differing_keys(recipes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that differ, without the seed and those that have its value in every recipe."""
    names = dict.fromkeys(name for recipe in recipes for name in recipe)
    varying = [name for name in names if len({_encode(recipe, name) for recipe in recipes}) > 1]
    return [name for name in varying if any(recipe.get(name) != recipe.get(_SEED) for recipe in recipes)]


def _read_record(run: Run) -> RunRecord | None:
    with contextlib.suppress(DataError):
        return run.read()
    return None


def _keys(record: RunRecord) -> dict[str, Any]:
    """`section.key` -> value, of all that decides the weights."""
    return {
        f"{section}.{name}": value
        for section in DECIDING
        for name, value in record.recipe.get(section, {}).items()
        if (section, name) not in NOT_DECIDING
    }


def _encode(recipe: Mapping[str, Any], name: str) -> str:
    return json.dumps(recipe[name]) if name in recipe else ""


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


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
        raise NotProbedError(f"no scores of {metric} on {SPLIT}", "--splits", SPLIT, *metric_flags(metric))
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
        raise NotProbedError(f"no Recall@K on {SPLIT}", "--splits", SPLIT)
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
    return headline_layers(
        [ranked for ranked in layers if ranked.post_processing == NO_POST_PROCESSING] or layers, {}, None
    )


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
    lines = []
    for (name, layer), line_cells in cells.items():
        repeated = []
        for position in (position for position in positions.values() if position in line_cells):
            by_seed = line_cells[position]
            numbers = {seed: value.value for seed, value in sorted(by_seed.items()) if value.value is not None}
            repeated.append(_summarize(position, numbers, is_complete=len(numbers) == len(by_seed)))
        differences = [] if line_cells is first_line else _differences(line_cells, first_line, positions.values())
        lines.append(RepeatedLine(name, layer, tuple(repeated), tuple(differences)))
    weights = {weights_text(value.run.record) if value.run.record else "" for value in values}
    return OverTrainings(
        measure=measure,
        split=SPLIT,
        axis=axis,
        places=tuple(positions.values()),
        lines=tuple(lines),
        epochs=tuple(sorted({value.epoch for value in values})),
        runs=tuple(dict.fromkeys(value.run.name for value in values)),
        own_classes=any(len(hashes - {None}) > 1 for hashes in tested),
        notes=(*notes, *_notes(values), *_note_unequal_epochs(points)),
        weights=weights.pop() if len(weights) == 1 else "",
    )


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
            if first_value is None or value.value is None or first_value.value is None:
                continue
            record, first_record = value.run.record, first_value.run.record
            if not (record and first_record and have_other_images(record, first_record, SPLIT)):
                differences[seed] = value.value - first_value.value
        if differences:
            yield _summarize(position, differences)


def _summarize(position: Place, values: Mapping[int, float], *, is_complete: bool = True) -> Repeated:
    """The mean of the numbers by seed, with its interval; neither where a training has no valid number."""
    if not is_complete:
        return Repeated(position, values, None)
    interval = None
    if len(values) > 1:
        import numpy as np

        from layerprobe.statistics.seeds import mean_interval  # it imports scipy, which figures of one training omit

        interval = mean_interval(np.array(list(values.values())))
    return Repeated(position, values, fmean(values.values()), interval)


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


def training_losses(runs: Sequence[Run], scores: Sequence[Score]) -> list[Score]:
    """The losses of runs as scores of their embedding, and the scores of the embedding on test.

    Args:
        scores: of these runs, of one metric or of R@1 among others.
    """
    losses: list[Score] = []
    metric = metric_of(scores)
    for run, subject in training_subjects(runs):
        losses += [
            replace(subject, epoch=epoch).score(_TRAINING_LOSS, loss, n) for epoch, loss, n in logged_losses(run)
        ]
        embedding_scores = [s for s in scores if (s.run, s.split, s.metric) == (run.name, "test", metric)]
        embedding = embedding_among(run.read(), dict.fromkeys(score.ranked for score in embedding_scores))
        losses += [replace(s, experiment=subject.experiment) for s in embedding_scores if s.ranked == embedding]
    return losses


def training_subjects(runs: Sequence[Run]) -> list[tuple[Run, Subject]]:
    """Runs, each with the embedding on the training images at epoch 0 as what a number is of."""
    experiments = experiments_of(runs)
    subjects = []
    for run in runs:
        record = run.read()
        if record.network is None or not record.recipe.get("train", {}).get("epochs") or record.members:
            reason = "is an ensemble" if record.members else "was measured only, not trained here"
            fix = (
                f"Name its members: {' '.join(record.members)}" if record.members else "Name a run of layerprobe train"
            )
            raise DataError(f"{run.name} {reason}, so that it has no loss of its own", fix=fix)
        ranked = RankedLayer(record.network.embedding, NO_POST_PROCESSING, record.similarity)
        experiment = experiments.names.get(run, run.name)
        subjects.append((run, Subject(run.name, experiment, record.seed, 0, "train", ranked, experiments.notes)))
    return subjects


def learnt_parameters(runs: Sequence[Run]) -> list[Score]:
    """The trained parameters of the losses other than class weights, as scores of the embedding, at the kept epochs.

    One number for each class is drawn as the mean. Where epoch 0 is not kept, the value there is the recipe's.
    """
    scores = []
    for run, subject in training_subjects(runs):
        record = run.read()
        recipe = recorded_recipe(record, run.record_file)
        # The values before training depend neither on the dimensions nor on the classes.
        loss = from_recipe.build_loss(recipe, embedding_dim=2, num_classes=2)
        if not (names := loss.learnt_numbers()):
            message = f"{run.name}: its loss {recipe.loss.name} learns no number besides class weights"
            fix = "Name a run of heated_softmax or smooth_triplet with loss.learn_scale = true, or of margin"
            raise RecipeError(message, fix=fix)
        start = {name: tensor.detach() for name, tensor in loss.named_parameters() if name in names}
        epochs = [epoch for epoch in kept_epochs(run, record) if epoch > 0]
        kept_note = f"epochs 0 and {', '.join(map(str, epochs))} alone; train with train.keep = all for the others"
        notes = (kept_note,) if len(epochs) < record.epochs_done else ()
        for epoch in (0, *epochs):
            path = run.checkpoint_file(epoch)
            tensors = read_tensors(path, "loss", names, expected=[record.hashes.get(path.name, "")]) if epoch else start
            for name in names:
                value = float(tensors[name].double().mean())
                scores.append(
                    replace(subject, epoch=epoch, notes=(*subject.notes, *notes)).score(names[name], value, 1)
                )
    return scores
