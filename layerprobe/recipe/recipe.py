"""Recipes: TOML -> a frozen, validated Recipe, before the first image is read."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layerprobe.recipe.overrides import Overrides, apply_overrides
from layerprobe.recipe.recipe_files import find_recipe, read_toml
from layerprobe.recipe.validation import (
    batch_problems,
    check_loss,
    data_problems,
    ensemble_problems,
    metric_options,
    own_input_problems,
    probe_problems,
    schedule_problems,
    training_problems,
    validate_section,
    with_defaults_of,
    with_own_size,
)
from layerprobe.registry import LOSSES
from layerprobe.system.errors import DataError, LayerprobeError, RecipeError, near_miss
from layerprobe.system.naming import PYTHON, name_model, run_folder_of, split_python
from layerprobe.values.network_input import OwnInput
from layerprobe.values.records import RunRecord
from layerprobe.values.sections import (
    DECIDING,
    NOT_DECIDING,
    SECTIONS,
    Data,
    Ensemble,
    LossSection,
    Network,
    Probe,
    Problem,
    Train,
)

_KNOWN = (*SECTIONS, "metrics")

# What the trainings of one experiment differ in.
_WITHIN_EXPERIMENT = {("train", "seed"), ("data", "validation_fold")}


@dataclass(frozen=True)
class Change:
    """A key that has another value in another recipe; None where one of them lacks the key."""

    section: str
    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.section}.{self.key}: {json.dumps(self.before)} -> {json.dumps(self.after)}"


@dataclass(frozen=True)
class Recipe:
    """An experiment, resolved: every default filled in, every name known.

    Args:
        data: of type Data, with the data set's own options beside the common keys.
        ensemble: how many members are trained with this recipe; None for a single run.
        metrics: name -> options of those metrics that have any set.
        found_at: where the user says that the network's Python file is, as `python:FILE:FUNCTION`; None: where
            `net.name` says. It is no part of the experiment.
        own_input: the model's own input as run.json has it, so that nobody has to ask the model; None where it does
            not.
    """

    name: str
    data: Data
    net: Network
    loss: LossSection
    train: Train
    probe: Probe
    metrics: Mapping[str, Mapping[str, Any]]
    ensemble: Ensemble | None = None
    found_at: str | None = None
    own_input: OwnInput | None = None

    def __reduce__(self) -> tuple[object, ...]:
        # Sections are of classes made from the options of networks, losses and data sets: a process makes its own.
        return (_resolved_again, (self.name, self.as_dict(), self.found_at, self.own_input))

    @property
    def network(self) -> str:
        """The network's name, by which it can be built here."""
        return self.found_at or self.net.name

    def at(self, model: str | None) -> Recipe:
        """The recipe with its network as the user names it.

        Args:
            model: the same name, or its Python file at another path, whose content is compared where it is built; None
                where the user names none.
        """
        if model is None:
            return self
        name_model(model)
        if model == self.net.name:
            return self
        functions = [split_python(name)[1] for name in (model, self.net.name) if name.startswith(PYTHON)]
        if len(functions) == 2 and functions[0] == functions[1]:
            return replace(self, found_at=model)
        raise RecipeError(f"--model {model}: the run's network is {self.net.name}", fix=f"Name it: {self.net.name}")

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Sections of plain JSON values, as run.json stores them."""
        sections = {name: getattr(self, name).model_dump(mode="json") for name in SECTIONS if name != "ensemble"}
        sections["metrics"] = {name: dict(options) for name, options in self.metrics.items()}
        return sections if self.ensemble is None else sections | {"ensemble": self.ensemble.model_dump(mode="json")}

    def member(self, number: int) -> Recipe:
        """The recipe of a member of the ensemble, counted from 1; ensembles of two seeds share none."""
        members = self.ensemble.members if self.ensemble else 1
        train = self.train.model_copy(update={"seed": self.train.seed * members + number - 1})
        return replace(self, train=train, ensemble=None)

    def identity(self, *, with_seed: bool = True) -> str:
        """Hex hash of all that decides the trained weights; without the seed and validation fold, of the experiment.

        A key at its default is omitted, so that a new key renames no run.
        """
        left_out = NOT_DECIDING if with_seed else NOT_DECIDING | _WITHIN_EXPERIMENT
        sections = {
            name: getattr(self, name).without_defaults() for name in DECIDING if getattr(self, name) is not None
        }
        for section, key in left_out:
            sections[section].pop(key, None)
        return hashlib.sha256(json.dumps(sections, sort_keys=True).encode()).hexdigest()

    @property
    def experiment(self) -> str:
        """Hash of what decides the weights, without the seed."""
        return self.identity(with_seed=False)[:12]

    def changes_since(self, stored: RunRecord) -> list[Change]:
        """The keys that decide the weights and differ from a run's recipe."""
        old = stored.recipe
        with contextlib.suppress(LayerprobeError):
            # Through the same defaults, so that a key that is new since then is no difference.
            old = resolve(stored.recipe_name, old, source="run.json", own_size=False).as_dict()
        new, changes = self.as_dict(), []
        for section in DECIDING:
            before, after = old.get(section, {}), new.get(section, {})
            for key in dict.fromkeys([*before, *after]):
                if before.get(key) != after.get(key) and (section, key) not in NOT_DECIDING:
                    changes.append(Change(section, key, before.get(key), after.get(key)))
        return changes


def _resolved_again(name: str, sections: Mapping[str, Any], found_at: str | None, own_input: OwnInput | None) -> Recipe:
    recipe = resolve(name, sections, source=name, own_size=False)
    return replace(recipe, found_at=found_at, own_input=own_input)


def load_recipe(reference: str, overrides: Overrides | None = None, model: str | None = None) -> Recipe:
    """Read, override and validate a recipe; the user names its network by it, unless its file lies in a run folder."""
    path = find_recipe(reference)
    sections, names_net = read_toml(path), path
    ensemble = sections.get("ensemble")
    if isinstance(ensemble, dict) and isinstance(ensemble.get("of"), str):
        names_net = path if "net" in sections else find_recipe(ensemble["of"])
        sections = read_toml(find_recipe(ensemble["of"])) | sections
    overrides = overrides or Overrides()
    overridden_sections = apply_overrides(sections, overrides, _KNOWN)
    network = overridden_sections.get("net")
    recipe_net = sections.get("net")
    if isinstance(network, dict) and isinstance(name := network.get("name"), str):
        set_by_user = not isinstance(recipe_net, dict) or recipe_net.get("name") != name
        if set_by_user or overrides.flags("net", ("name",)) or run_folder_of(names_net) is None:
            name_model(name)
    return resolve(path.stem, overridden_sections, source=path, overrides=overrides, model=model)


def is_changed(reference: str, recipe: Recipe) -> bool:
    """Whether a recipe, as resolved, would train something else than its file says; where the data lie aside."""
    plain = load_recipe(reference, Overrides(settings=(f"data.root={recipe.data.root or '.'}",)), recipe.found_at)
    return plain.identity() != recipe.identity()


def recorded_recipe(record: RunRecord, file: Path, *, checked: bool = True) -> Recipe:
    """The recipe in a run's record. It fetches no data set, and does not load the model.

    Args:
        checked: False: the options of the network and the loss stay as the run recorded them, and neither is imported,
            with which comes torch: they were checked when the run began.
    """
    if record.from_python:
        raise RecipeError(
            "measured from Python: the run stores neither model nor images",
            file=file,
            fix="Measure it there again, by layerprobe.probe(model, splits, cache=...)",
        )
    sections = record.recipe
    if "download" in record.data:
        sections = {**sections, "data": {**record.data, "download": False}}
    try:
        recipe = resolve(record.recipe_name, sections, source=file, own_size=False, recorded=not checked)
        return replace(recipe, own_input=None if record.network is None else record.network.input)
    except RecipeError as error:
        problem = error.message.removeprefix(f"{file} ")
        raise DataError(problem, file=file, fix="Correct it, or train it again with --fresh") from error


def resolve(  # noqa: PLR0913 - the recipe, its origin and the user's overrides
    name: str,
    sections: Mapping[str, Any],
    *,
    source: object,
    overrides: Overrides | None = None,
    model: str | None = None,
    own_size: bool = True,
    recorded: bool = False,
) -> Recipe:
    """A recipe from plain sections: both gates, all problems at once.

    Args:
        sections: section -> keys, as TOML gives them.
        recorded: they are a run's, with every default filled in: neither the network nor the loss is imported.
    """
    problems: list[Problem] = []
    parts: dict[str, Any] = {}
    for section in sections:
        if section not in _KNOWN:
            problems.append(Problem(section, f"unknown section. {near_miss(section, _KNOWN)}"))
    for section in SECTIONS:
        if section == "ensemble" and section not in sections:
            continue
        values = sections.get(section, {})
        if isinstance(values, Mapping):
            parts[section] = validate_section(section, values, problems, recorded=recorded)
        else:
            problems.append(Problem(section, f"not a section. Write [{section}] and its keys below it", (section,)))
    parts["metrics"] = metric_options(sections.get("metrics", {}), problems)
    complete = not problems
    loss_section = parts.get("loss")
    loss = None
    if not recorded and loss_section is not None and loss_section.name in LOSSES:
        loss = check_loss(loss_section, problems)
    if complete:
        if not recorded:
            parts["train"] = with_defaults_of(parts["loss"], parts["train"])
        recipe = Recipe(name=name, **parts).at(model)
        if own_size:
            data_section = sections.get("data", {})
            recipe = replace(recipe, data=with_own_size(recipe.data, recipe.network, data_section))
        problems += [
            *data_problems(recipe.data),
            *training_problems(recipe.data, recipe.train),
            *own_input_problems(recipe.data, recipe.net),
            *schedule_problems(recipe.train),
            *probe_problems(recipe.probe),
            *([] if recorded else batch_problems(recipe.data, recipe.train, recipe.loss)),
            *ensemble_problems(recipe.train, recipe.ensemble),
            *(loss.contradictions(recipe.train, recipe.net) if loss else []),
        ]
    require_none(problems, source, overrides or Overrides())
    return recipe


def require_none(problems: Sequence[Problem], source: object, overrides: Overrides) -> None:
    """Raise the problems of a recipe, if any, each with the flag that caused it."""
    if problems:
        flags = [overrides.flags(problem.section, problem.keys) for problem in problems]
        lines = [f"{flag or source} {problem}" for flag, problem in zip(flags, problems, strict=True)]
        raise RecipeError(lines[0], problems=lines)
