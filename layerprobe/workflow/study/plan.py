"""A study's trainings: what each is asked for, which of them are done, and whether they have the current images."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from layerprobe.data.splits import Dataset
from layerprobe.plots.plot import LOSS
from layerprobe.recipe.overrides import Overrides, data_keys
from layerprobe.recipe.recipe import Recipe, load_recipe
from layerprobe.registry import DATASETS
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.system.progress import Listener
from layerprobe.system.wording import command_text
from layerprobe.values.layers import NO_POST_PROCESSING, is_glob, matching_layers
from layerprobe.values.scores import Score, ScoreTable, read_scores, recall_of
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.experiments import require_same_images
from layerprobe.workflow.run.images import Decoding
from layerprobe.workflow.run.runs import Run, named_run
from layerprobe.workflow.study.study_file import Study, Variant
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import is_done


@dataclass(frozen=True)
class StudyTraining:
    """What makes one run, in values that another process can be sent.

    Args:
        recipe: name or file.
        settings: as `--set` takes them.
        layers: the study's, with their post-processing; None: all that the recipe probes.
        splits: those that are measured; None: all.
    """

    run: str
    recipe: str
    settings: tuple[str, ...]
    layers: tuple[str, ...] | None
    cache: Path
    kept: tuple[Score, ...] = ()
    splits: tuple[str, ...] | None = None

    def scores(self) -> Sequence[Score]:
        """Those kept in a file, or the run's."""
        run = named_run(self.cache, self.run)
        return self.kept or (run.scores() if run.has_scores else ())

    def loaded(self) -> Recipe:
        """Its recipe; of a run that exists, no checkpoint is removed that it has kept so far."""
        recipe = load_recipe(self.recipe, Overrides(settings=self.settings))
        run = named_run(self.cache, self.run)
        if not run.exists():
            return recipe
        keep = run.read().recipe.get("train", {}).get("keep", recipe.train.keep)
        return replace(recipe, train=recipe.train.model_copy(update={"keep": keep}))

    def request(self, device: str) -> TrainRequest:
        """The call of `train` that makes it on a device."""
        recipe = self.loaded()
        probe = recipe.probe.layers if self.layers is None else tuple(dict.fromkeys(map(_raw, self.layers)))
        run, splits = self.run, self.splits
        return TrainRequest(
            recipe, overridden=True, cache=self.cache, run=run, device=device, probe=probe, splits=splits
        )


@dataclass(frozen=True)
class Cell:
    """A variant of a study at a cell of its grid, with a training for each seed; variant "" where it has none."""

    values: Mapping[str, Any]
    trainings: tuple[StudyTraining, ...]
    variant: str = ""

    def __str__(self) -> str:
        values = ", ".join(f"{key} = {json.dumps(value)}" for key, value in self.values.items())
        return ": ".join(filter(None, (self.variant, values))) or "the only cell"


def plan(study: Study, cache: Path, data: Sequence[str] = (), *, scores: Path | None = None) -> list[Cell]:
    """The cells of a study; every recipe is checked, no image is read.

    Args:
        data: NAME:DIR for the data sets that its recipes name.
        scores: a file of scores of finished trainings.
    """
    cells, lacking = plan_without_data(study, cache, data)
    if scores is not None:
        cells = with_kept(study, cells, scores)
    if lacking and not all(is_finished(study, training) for training in all_of(cells)):
        raise lacking_data(study, lacking)
    return cells


def lacking_data(study: Study, lacking: Sequence[str]) -> RecipeError:
    """That data sets, each as `--data` takes it, have no folder."""
    fix = f"Give {' '.join(f'--data {usage}' for usage in lacking)}"
    return RecipeError(f"study {study.name}: where its data sets lie is not said", fix=fix)


def plan_without_data(study: Study, cache: Path, data: Sequence[str] = ()) -> tuple[list[Cell], tuple[str, ...]]:
    """As `plan`, and the data sets whose folder is not given, each as `--data` takes it: such a cell cannot train."""
    roots = roots_of(study, cache, data)
    cells: list[Cell] = []
    owners: dict[str, Cell] = {}
    for variant, values in product(study.variants, study.cells):
        trainings = []
        for seed in study.runs.seeds:
            trainings.append(plan_training(study, variant, values, seed, roots))
        cell = Cell(values, tuple(trainings), variant.name)
        for training in trainings:
            if (other := owners.setdefault(training.run, cell)) is not cell:
                fix = "Leave one of them out"
                raise RecipeError(f"[grid]: {other} and {cell} train the same", file=study.name, fix=fix)
        cells.append(cell)
    roots.require_used()
    return cells, tuple(roots.lacking)


def plan_training(study: Study, variant: Variant, values: Mapping[str, Any], seed: int, roots: Roots) -> StudyTraining:
    """The training of a variant with the values of a cell; its recipe is checked."""
    reference = variant.recipe or study.runs.recipe
    settings, recipe = roots.placed(reference, study.settings(values, seed, variant))
    layers = study.layers_of(variant)
    _require_measured(study, recipe, layers or ())
    if too_late := [epoch for epoch in study.end.epochs or () if epoch > recipe.train.epochs]:
        text = f"[end]: epoch {too_late[0]} of {recipe.train.epochs} epochs"
        raise RecipeError(text, file=study.name, fix="Leave it out, or train longer")
    unseeded = replace(recipe, train=recipe.train.model_copy(update={"seed": 0}))  # one name for all seeds
    run = named_run(roots.cache, f"{study.name}-{unseeded.identity()[:6]}-s{seed}").name
    return StudyTraining(run, reference, settings, layers, roots.cache)


@dataclass
class Roots:
    """The cache, the folders that are given, those used, and the data sets that have none.

    Args:
        given: name, and set of torchvision -> folder or file.
    """

    study: str
    cache: Path
    given: Mapping[tuple[str, str], str]
    used: set[tuple[str, str]] = field(default_factory=set)
    lacking: dict[str, None] = field(default_factory=dict)

    def placed(self, reference: str, settings: tuple[str, ...]) -> tuple[tuple[str, ...], Recipe]:
        """The settings with the folder of their data set, and the recipe."""
        somewhere = ('data.root="."', *settings)
        recipe = self._loaded(reference, somewhere)
        name = _data_set(recipe.data.model_dump())
        self.used.add(name)
        if root := self.given.get(name):
            settings = (*settings, f"data.root={json.dumps(root, ensure_ascii=False)}")
            return settings, self._loaded(reference, settings)
        with contextlib.suppress(RecipeError):  # of its folder: all else is right
            placed = load_recipe(reference, Overrides(settings=settings))
            if not placed.data.root or Path(placed.data.root).exists():
                return settings, placed
        self.lacking[f"{':'.join(filter(None, name))}:DIR"] = None
        return somewhere, recipe

    def require_used(self) -> None:
        """Check that every folder that is given is one of a recipe."""
        if unknown := [":".join(filter(None, name)) for name in self.given if name not in self.used]:
            text = f"--data {', '.join(unknown)}: no recipe of the study has this data set"
            raise RecipeError(text, file=self.study, fix="Leave it out")

    def _loaded(self, reference: str, settings: tuple[str, ...]) -> Recipe:
        try:
            return load_recipe(reference, Overrides(settings=settings))
        except RecipeError as error:
            lines = [f"study {self.study}: {line}" for line in error.problems or (str(error).rstrip("."),)]
            raise RecipeError(lines[0], problems=lines) from error


def roots_of(study: Study, cache: Path, data: Sequence[str]) -> Roots:
    """The folders that `--data` gives for a study."""
    return Roots(study.name, cache, dict(map(_given_root, data)))


def _given_root(text: str) -> tuple[tuple[str, str], str]:
    values = data_keys(text)
    if values["name"] not in DATASETS:
        raise UnknownNameError("data set", values["name"], DATASETS)
    root = values.get("root", "")
    if root and not Path(root).expanduser().exists():
        raise DataError("no such folder or file", file=root, fix=f"Correct --data {text}")
    return _data_set(values), root


def _data_set(values: Mapping[str, Any]) -> tuple[str, str]:
    return values["name"], values.get("set", "")


def _raw(layer: str) -> str:
    return layer.partition("~")[0].partition("/")[0]


def _require_measured(study: Study, recipe: Recipe, layers: Sequence[str]) -> None:
    """Check that the recipe can be a study's, and has the metric and the post-processing of its end measured."""
    if recipe.ensemble is not None:
        raise RecipeError(f"[runs]: {recipe.name} is an ensemble", file=study.name, fix="Choose a single network")
    measured, probe = [study.end.table or study.end.metric or "R@1", *study.end.also], recipe.probe
    for metric in measured:
        recall = recall_of(metric)
        if metric != LOSS and metric not in probe.metrics and (recall is None or recall.k not in probe.k):
            key, value = ("k", sorted({*probe.k, recall.k})) if recall else ("metrics", [*probe.metrics, metric])
            fix = f'Add "probe.{key}" = {json.dumps(value)} to [runs.set]'
            raise RecipeError(f"[end]: {metric} is not measured", file=study.name, fix=fix)
    if measured == [LOSS]:
        return
    for layer in layers:
        post_processing = layer.partition("~")[0].partition("/")[2] or NO_POST_PROCESSING
        if post_processing not in probe.post and not is_glob(layer):
            fix = f'Add "probe.post" = {json.dumps([*probe.post, post_processing])} to [runs.set]'
            raise RecipeError(f"[end]: {layer} is not measured", file=study.name, fix=fix)


def scores_on(
    study: Study, training: StudyTraining, epoch: int, among: Sequence[Score], split: str = "test"
) -> list[Score] | None:
    """The scores of a training on a split at an epoch: those of a plot, or one for each layer of a table.

    Args:
        among: all of the training.

    Returns:
        None: not all are there.
    """
    scores = [score for score in among if (score.epoch, score.split) == (epoch, split)]
    if study.end.table is None:
        return scores or None
    by_layer = {score.ranked: score for score in scores if score.metric == study.end.table}
    layer_scores = []
    for layer in training.layers or ():
        ranked = matching_layers(layer, by_layer)
        if len(ranked) > 1:
            names = ", ".join(map(str, ranked))
            raise RecipeError(f"[end]: {layer} is several layers of {training.run}: {names}", fix="Name one of them")
        if not ranked:
            return None
        layer_scores.append(by_layer[ranked[0]])
    return layer_scores


def is_finished(study: Study, training: StudyTraining) -> bool:
    """Whether a run is trained and measured to its end."""
    recipe, run = training.loaded(), Run(training.cache / training.run)
    if not (training.kept or is_done(run, recipe)):
        return False
    scores = training.scores()
    return all(scores_on(study, training, epoch, scores) is not None for epoch in study.epochs(recipe))


def with_kept(study: Study, cells: Sequence[Cell], file: Path) -> list[Cell]:
    """The cells, with the scores in a file of trainings whose runs are not finished, where these are complete."""
    scores: dict[str, list[Score]] = {}
    for score in _read(file):
        scores.setdefault(score.run, []).append(score)

    def with_scores(training: StudyTraining) -> StudyTraining:
        scored = replace(training, kept=tuple(scores.get(training.run, ())))
        return scored if scored.kept and not is_finished(study, training) and is_finished(study, scored) else training

    return [replace(cell, trainings=tuple(map(with_scores, cell.trainings))) for cell in cells]


def keep_scores(study: Study, cells: Sequence[Cell], file: Path) -> None:
    """Add the scores of all finished trainings at the study's epochs, without intervals and notes on valid ones."""
    stored = _read(file)
    scores = [*stored]
    for training in filter(partial(is_finished, study), all_of(cells)):
        epochs = study.epochs(training.loaded())
        scores += [
            replace(score, interval=None, units=None, notes=() if score.value is not None else score.notes)
            for score in training.scores()
            if score.epoch in epochs
        ]
    if scores:
        ScoreTable(scores, stored=stored).write(file)


def _read(file: Path) -> list[Score]:
    return read_scores(file, "Name another file by --scores") if file.exists() else []


def require_images(study: Study, trainings: Iterable[StudyTraining], cache: Path, listener: Listener) -> None:
    """Check that the runs that exist have the images of their recipes; those that have not are listed at once."""
    datasets: dict[str, Dataset] = {}
    changed_runs = []
    for training in trainings:
        run = named_run(cache, training.run)
        if not run.exists():
            continue
        recipe = training.loaded()
        drawn = recipe.train.seed if recipe.data.share < 1 else None
        key = json.dumps([recipe.data.model_dump(mode="json"), drawn])
        if key not in datasets:
            datasets[key] = from_recipe.build_dataset(recipe, Decoding(cache, listener), decode=False)
        try:
            require_same_images(run.read(), datasets[key], list(datasets[key].splits), fix="")
        except DataError:
            changed_runs.append(run.name)
    if changed_runs:
        removing = command_text("runs", "remove", changed_runs[0], cache=cache)
        raise DataError(
            f"{len(changed_runs)} runs of the study have other images than their recipe now: {', '.join(changed_runs)}",
            file=study.name,
            fix=f"Restore the images, or remove each of these runs: {removing}",
        )


def require_weights(trainings: Iterable[StudyTraining]) -> None:
    """Check that the weights files of runs that are not begun are there; those that are not are listed at once."""
    new = [training for training in trainings if not named_run(training.cache, training.run).exists()]
    files = dict.fromkeys(from_recipe.weights_file(training.loaded().net.weights) for training in new)
    if missing := [str(file) for file in files if file and not file.exists()]:
        fix = "Put it there, or copy the study into recipes/studies/ and set net.weights in it"
        raise DataError(f"no such weights file: {', '.join(missing)}", fix=fix)


def all_of(cells: Sequence[Cell]) -> list[StudyTraining]:
    """The trainings of all cells, a seed of every cell before the next: an early end leaves the whole grid."""
    return [training for of_seed in zip(*(cell.trainings for cell in cells), strict=True) for training in of_seed]
