"""The request for a model that is measured as it is, and what can be refused before the model is built."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layerprobe import __version__
from layerprobe.nets.weight_files import expand, parts_of
from layerprobe.recipe.overrides import Overrides, apply_overrides
from layerprobe.recipe.recipe import Recipe, recorded_recipe, require_none, resolve
from layerprobe.recipe.validation import data_problems, validate_section
from layerprobe.registry import MODEL_NAMES, SOURCES
from layerprobe.system.errors import DataError, LayerprobeError, RecipeError, UnknownNameError
from layerprobe.system.files import require_file, require_writable
from layerprobe.system.launch import Launch
from layerprobe.system.naming import PYTHON, name_model
from layerprobe.values.records import RunRecord
from layerprobe.values.sections import SECTIONS, Data, Problem
from layerprobe.workflow.run.from_recipe import load_dataset, source_of
from layerprobe.workflow.run.run_network import require_unchanged_files
from layerprobe.workflow.run.runs import Run, find_run, named_run, recipe_run, require_free

OWN_WEIGHTS = ("model", "none")


@dataclass(frozen=True)
class FrozenRequest:
    """A call of `layerprobe probe --model`.

    Args:
        model: a source and what follows it, `timm:resnet50`.
        weights: model, none, FILE[#PART], a glob of such files, or run:NAME.
        run: the run's name; None for one made of the model's.
        device: auto, cpu, cuda, cuda:i or mps.
        workers: data worker processes; None chooses.
        launch: the processes whose hosts hash the images together.
    """

    model: str
    data: str
    cache: Path
    weights: str = "model"
    settings: tuple[str, ...] = ()
    seed: int = 0
    run: str | None = None
    device: str = "auto"
    workers: int | None = None
    launch: Launch = field(default_factory=Launch, compare=False)

    def recipe(self) -> Recipe:
        """The recipe of the run: 0 epochs, and a loss that is never computed."""
        sections = self._sections()
        name_model(self.model)
        return resolve(self._name, sections, source=f"--model {self.model}", overrides=self._overrides)

    @property
    def has_files(self) -> bool:
        """Whether the weights are of somebody's training: in files, or those of a run."""
        return self.weights not in OWN_WEIGHTS

    @property
    def _name(self) -> str:
        return re.sub("[^A-Za-z0-9._-]+", "-", self.model)

    @property
    def _overrides(self) -> Overrides:
        return Overrides(self.data, self.settings, self.seed)

    def _sections(self) -> dict[str, Any]:
        source, colon, name = self.model.partition(":")
        if not (source and colon and name):
            names = ", ".join(MODEL_NAMES)
            raise RecipeError(f"--model {self.model}: not a source and a model", fix=f"Write it like {names}")
        if f"{source}:" not in SOURCES:
            if source.endswith(".py") and name:
                raise RecipeError(f"--model {self.model}: the prefix is missing", fix=f"Give {PYTHON}{self.model}")
            raise UnknownNameError("source in --model", source, [name.removesuffix(":") for name in SOURCES])
        for text in self.settings:
            if not text.strip().startswith("data."):
                raise RecipeError(f"--set {text}: a model is only measured", fix="Set keys of [data], data.KEY=VALUE")
        sections: dict[str, Any] = {
            "net": {"name": self.model, "weights": self.weights},
            "loss": {"name": "contrastive"},
            "train": {"epochs": 0},
        }
        sections = apply_overrides(sections, self._overrides, SECTIONS)
        return {**sections, "data": {"transform": "model", **sections["data"]}}

    def require_ready(self) -> None:
        """Refuse what is wrong without the model being built: flags, paths, permissions, a run in use.

        No torch is needed. `recipe`, `frozen_run` and `probe` check the same where they need it.
        """
        problems: list[Problem] = []
        data = validate_section("data", self._sections()["data"], problems)
        problems += data_problems(data) if isinstance(data, Data) else []
        require_none(problems, f"--model {self.model}", self._overrides)
        require_writable(self.cache)
        if self.run is not None:
            require_free(named_run(self.cache, self.run))
        if self.weights.startswith("run:"):
            find_run(self.cache, self.weights.removeprefix("run:"))
        elif self.has_files:
            for path, _ in expand(self.weights):
                require_weights(path)
        # Where the run is there, no model is built before probing lists the data.
        if isinstance(data, Data) and self.find_repeated_run() is None:
            load_dataset(data)

    def target(self, recipe: Recipe) -> Run:
        """The run that this makes."""
        return recipe_run(self.cache, recipe) if self.run is None else named_run(self.cache, self.run)

    def find_repeated_run(self) -> Run | None:
        """The run that an equal request made before; None where only `recipe` can tell.

        No torch is needed, unlike for the defaults of the loss and the model's own input.
        """
        name_model(self.model)
        names = f"{self._name}-??????" if self.run is None else named_run(self.cache, self.run).name
        for run in map(Run, self.cache.glob(names)):
            # What is damaged, missing or changed is told where the recipe is made anew.
            with contextlib.suppress(LayerprobeError):
                record = run.read()
                if record.request == self.digest(run, record):
                    require_unchanged_files(run, record, recorded_recipe(record, run.record_file, checked=False))
                    return run
        return None

    def digest(self, run: Run, record: RunRecord) -> str:
        """Hash of what is asked for, of what decides the recipe besides, and of the recipe that a run has."""
        source = source_of(self.model)
        versions = {"layerprobe": __version__, **(source[0].origin(source[1]) if source else {})}
        parts = [self.run, run.name, self._sections(), versions, record.recipe]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def require_weights(path: Path) -> None:
    """Check that a weights file, or each of the files that hold the weights of a path, can be read."""
    try:
        for file in parts_of(path):
            require_file(file)
            with file.open("rb"):
                pass
    except OSError as error:
        message = f"no readable weights file: {error.strerror}"
        raise DataError(message, file=path, fix="Name one by --weights, or use --weights none") from error
