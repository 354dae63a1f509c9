"""A study's trainings: what each is asked for, which of them are done, and whether they have today's images."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layerprobe.data.splits import Dataset
from layerprobe.plots.plot import LOSS
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import Recipe, load_recipe
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.system.progress import Listener
from layerprobe.values.keys import named
from layerprobe.values.metric_names import recall_of
from layerprobe.values.scores import Score
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.images import Decoding, with_contents
from layerprobe.workflow.run.manifests import require_same_images
from layerprobe.workflow.run.runs import Run, named_run
from layerprobe.workflow.study.study_file import Study
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import is_done


@dataclass(frozen=True)
class StudyTraining:
    """What makes one run, in values that another process can be sent.

    Args:
        recipe: name or file.
        settings: as `--set` takes them.
        probe: the layers that are measured after each epoch.
    """

    run: str
    recipe: str
    settings: tuple[str, ...]
    probe: tuple[str, ...]
    cache: Path
    device: str = "auto"

    def loaded(self) -> Recipe:
        """Its recipe; of a run that exists, no checkpoint is removed that it has kept so far."""
        recipe = load_recipe(self.recipe, Overrides(settings=self.settings))
        run = named_run(self.cache, self.run)
        if not run.exists():
            return recipe
        keep = run.read().recipe.get("train", {}).get("keep", recipe.train.keep)
        return replace(recipe, train=recipe.train.model_copy(update={"keep": keep}))

    def request(self) -> TrainRequest:
        """The call of `train` that makes it."""
        return TrainRequest(
            self.loaded(), overridden=True, cache=self.cache, run=self.run, device=self.device, probe=self.probe
        )


@dataclass(frozen=True)
class Cell:
    """A cell of a study's grid, with a training for each seed."""

    values: Mapping[str, Any]
    trainings: tuple[StudyTraining, ...]

    def __str__(self) -> str:
        return ", ".join(f"{key} = {json.dumps(value)}" for key, value in self.values.items()) or "the only cell"


def plan(study: Study, cache: Path, device: str) -> list[Cell]:
    """The cells of a study; every recipe is checked, no image is read."""
    cells: list[Cell] = []
    owners: dict[str, Cell] = {}
    for values in study.cells:
        trainings = []
        for seed in study.runs.seeds:
            settings = study.settings(values, seed)
            try:
                recipe = load_recipe(study.runs.recipe, Overrides(settings=settings))
            except RecipeError as error:
                lines = [f"study {study.name}: {line}" for line in error.problems or (str(error).rstrip("."),)]
                raise RecipeError(lines[0], problems=lines) from error
            _require_measured(study, recipe)
            unseeded = replace(recipe, train=recipe.train.model_copy(update={"seed": 0}))  # one name for all seeds
            run = named_run(cache, f"{study.name}-{unseeded.identity()[:6]}-s{seed}").name
            layers = study.end.layers or recipe.probe.layers
            trainings.append(StudyTraining(run, study.runs.recipe, settings, layers, cache, device))
        cell = Cell(values, tuple(trainings))
        for training in trainings:
            if (other := owners.setdefault(training.run, cell)) is not cell:
                fix = "Leave one of them out"
                raise RecipeError(f"[grid]: {other} and {cell} train the same", file=study.name, fix=fix)
        cells.append(cell)
    return cells


def _require_measured(study: Study, recipe: Recipe) -> None:
    """Check that the recipe can be a study's, and has the metric of its end measured."""
    if recipe.ensemble is not None:
        raise RecipeError(f"[runs]: {recipe.name} is an ensemble", file=study.name, fix="Choose a single network")
    metric = study.end.table or study.end.metric or "R@1"
    if metric == LOSS:
        return
    recall, probe = recall_of(metric), recipe.probe
    if metric not in probe.metrics and (recall is None or recall.k not in probe.k):
        key, value = ("metrics", [*probe.metrics, metric]) if recall is None else ("k", sorted({*probe.k, recall.k}))
        fix = f'Add "probe.{key}" = {json.dumps(value)} to [runs.set]'
        raise RecipeError(f"[end]: {metric} is not measured", file=study.name, fix=fix)


def last_scores(study: Study, training: StudyTraining, epochs: int) -> list[Score] | None:
    """A run's scores on test at its last epoch: those of a plot, or one for each layer of a table; None: not all."""
    run = named_run(training.cache, training.run)
    if not run.scores_file.exists():
        return None
    scores = [score for score in run.scores() if (score.epoch, score.split) == (epochs, "test")]
    if study.end.table is None:
        return scores or None
    by_layer = {score.ranked_layer: score for score in scores if score.metric == study.end.table}
    found = []
    for layer in study.end.layers or ():
        ranked = named(layer, by_layer)
        if len(ranked) > 1:
            names = ", ".join(str(each) for each in ranked)
            raise RecipeError(f"[end]: {layer} is several layers of {run.name}: {names}", fix="Name one of them")
        if not ranked:
            return None
        found.append(by_layer[ranked[0]])
    return found


def is_finished(study: Study, training: StudyTraining) -> bool:
    """Whether a run is trained and measured to its end."""
    recipe, run = training.loaded(), Run(training.cache / training.run)
    return is_done(run, recipe) and last_scores(study, training, recipe.train.epochs) is not None


def require_images(study: Study, trainings: Iterable[StudyTraining], cache: Path, listener: Listener) -> None:
    """Check that the runs that exist have the images of their recipes; those that have not are listed at once."""
    known: dict[str, Dataset] = {}
    others = []
    for training in trainings:
        run = named_run(cache, training.run)
        if not run.exists():
            continue
        recipe = training.loaded()
        drawn = recipe.train.seed if recipe.data.share < 1 else None
        key = json.dumps([recipe.data.model_dump(mode="json"), drawn])
        if key not in known:
            loaded = with_contents(from_recipe.load_dataset(recipe), Decoding(cache, listener))
            known[key] = from_recipe.build_dataset(recipe, loaded=loaded)
        try:
            require_same_images(run.read(), known[key], list(known[key].splits), fix="")
        except DataError:
            others.append(run.name)
    if others:
        raise DataError(
            f"{len(others)} runs of the study have other images than their recipe now: {', '.join(others)}",
            file=study.name,
            fix="Restore the images, or remove these runs: layerprobe runs remove NAME",
        )


def all_of(cells: Sequence[Cell]) -> list[StudyTraining]:
    """The trainings of all cells, a seed of every cell before the next: an early end leaves the whole grid."""
    return [training for of_seed in zip(*(cell.trainings for cell in cells), strict=True) for training in of_seed]
