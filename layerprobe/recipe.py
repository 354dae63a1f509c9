"""Recipes: TOML -> frozen, validated `Recipe`, before the first image.

Two gates, whose problems are reported together: keys, types and registered names; then the keys that belong to a data
set, network or loss, against its factory's signature.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import ValidationError, create_model

from layerprobe.errors import LayerprobeError, RecipeError, UnknownNameError, near_miss
from layerprobe.overrides import Overrides, overridden
from layerprobe.registry import DATASETS, LOSSES, METRICS, NETS, load
from layerprobe.sections import SECTIONS, Data, Ensemble, LossSection, Network, Probe, Section, Train

if TYPE_CHECKING:
    from layerprobe.losses.loss import Loss

# What a factory takes and no recipe states.
_NOT_OPTIONS = {"self", "root", "embedding_dim", "num_classes", "seed", "weights"}
_TABLES = {"data": ("data set", DATASETS), "net": ("network", NETS), "loss": ("loss", LOSSES)}


@dataclass(frozen=True)
class Recipe:
    """An experiment, resolved: every default filled in, every name known.

    Args:
        name: the file's name without .toml.
        data: of type Data, with the data set's own options beside the common keys.
        net: of type Network, likewise.
        loss: of type LossSection, likewise.
        train: schedule and seed.
        probe: what to measure.
        ensemble: of which this is the members' recipe; None for a single run.
        metrics: name -> options of those metrics that have any set.
    """

    name: str
    data: Data
    net: Network
    loss: LossSection
    train: Train
    probe: Probe
    metrics: Mapping[str, Mapping[str, Any]]
    ensemble: Ensemble | None = None

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Sections of plain JSON values, as run.json stores them."""
        sections = {name: getattr(self, name).model_dump(mode="json") for name in SECTIONS if name != "ensemble"}
        sections["metrics"] = {name: dict(options) for name, options in self.metrics.items()}
        return sections if self.ensemble is None else sections | {"ensemble": self.ensemble.model_dump(mode="json")}

    def member(self, number: int) -> Recipe:
        """What a member of the ensemble trains, counted from 1; ensembles of two seeds share none."""
        members = self.ensemble.members if self.ensemble else 1
        train = self.train.model_copy(update={"seed": self.train.seed * members + number - 1})
        return replace(self, train=train, ensemble=None)

    def identity(self, *, with_seed: bool = True) -> str:
        """Hex hash of all that decides the trained weights; without the seed, of the experiment."""
        sections = self.as_dict()
        del sections["probe"], sections["metrics"], sections["data"]["root"], sections["data"]["cache"]
        sections["data"].pop("download", None)  # where the data come from, like where they lie
        if not with_seed:
            del sections["train"]["seed"]
        return hashlib.sha256(json.dumps(sections, sort_keys=True).encode()).hexdigest()


def find_recipe(reference: str) -> Path:
    """The file of a recipe: a path, else ./recipes/NAME.toml, else the packaged one.

    Raises:
        RecipeError: a path that does not exist.
        UnknownNameError: no recipe of that name.
    """
    if reference.endswith(".toml"):
        if not Path(reference).is_file():
            raise RecipeError("no such recipe", file=reference, fix="layerprobe recipes lists the known ones")
        return Path(reference)
    known = list_recipes()
    if reference not in known:
        raise UnknownNameError("recipe", reference, known)
    return known[reference]


def list_recipes() -> dict[str, Path]:
    """Name -> file of every recipe; one in ./recipes hides the packaged one of its name."""
    packaged = Path(__file__).parent / "recipes"
    # An editable install runs from the repository, where the recipes lie beside the package.
    folders = [packaged if packaged.is_dir() else Path(__file__).parents[1] / "recipes", Path("recipes")]
    found = {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml")) if path.is_file()}
    return dict(sorted(found.items()))


def load_recipe(reference: str, overrides: Overrides | None = None) -> Recipe:
    """Read, override and validate a recipe.

    Args:
        reference: a name or a path, as for `find_recipe`.
        overrides: what the command line changes.

    Raises:
        RecipeError: with every problem of the recipe, one line each.
    """
    path = find_recipe(reference)
    sections = _read(path)
    ensemble = sections.get("ensemble")
    if isinstance(ensemble, dict) and isinstance(ensemble.get("of"), str):
        sections = _read(find_recipe(ensemble["of"])) | sections
    known = [*SECTIONS, "metrics"]
    return resolve(path.stem, overridden(sections, overrides or Overrides(), path, known), source=path)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"not a TOML file: {error}", file=path) from error


def is_changed(reference: str, recipe: Recipe) -> bool:
    """Whether a recipe, as resolved, would train something else than its file says; where the data lie aside."""
    plain = load_recipe(reference, Overrides(settings=(f"data.root={recipe.data.root or '.'}",)))
    return plain.identity() != recipe.identity()


def resolve(name: str, sections: Mapping[str, Any], *, source: object) -> Recipe:
    """A recipe from plain sections: both gates, all problems at once.

    Args:
        name: what the recipe is called.
        sections: section -> keys, as TOML gives them.
        source: what the problems name, usually the file.

    Raises:
        RecipeError: with `problems`, one line each.
    """
    known = [*SECTIONS, "metrics"]
    problems = [
        f"{source}: unknown section [{section}]. {near_miss(section, known)}"
        for section in sections
        if section not in known
    ]
    parts: dict[str, Any] = {}
    for section in SECTIONS:
        if section == "ensemble" and section not in sections:
            continue
        values = sections.get(section, {})
        if isinstance(values, Mapping):
            parts[section] = _validated(section, values, source, problems)
        else:
            problems.append(f"{source}: {section} is not a section. Write [{section}] and its keys below it")
    parts["metrics"] = _metric_options(sections.get("metrics", {}), source, problems)
    complete = not problems
    loss = _checked_loss(parts.get("loss"), source, problems)
    if complete:
        recipe = _with_loss_defaults(Recipe(name=name, **parts))
        found = _contradictions(recipe) + (loss.contradictions(recipe.train, recipe.net) if loss else [])
        problems += [f"{source} {problem}" for problem in found]
    if problems:
        raise RecipeError(problems[0], problems=problems)
    return recipe


def _validated(section: str, values: Mapping[str, Any], source: object, problems: list[str]) -> Section | None:
    model = SECTIONS[section]
    if section in _TABLES and isinstance(values.get("name"), str):
        try:
            factory = load(*_TABLES[section], values["name"])
        except LayerprobeError as error:
            problems.append(f"{source} [{section}]: {error}".rstrip("."))
            values = {key: value for key, value in values.items() if key in model.model_fields}
        else:
            if section == "data":
                values, factory = {**factory.defaults, **values}, factory.load
            model = create_model(values["name"], __base__=model, **_option_fields(factory, model))
    try:
        return model.model_validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        problems += [_problem(section, item, model, source) for item in error.errors()]
        return None


def _metric_options(values: Any, source: object, problems: list[str]) -> dict[str, dict[str, Any]]:
    """The options of [metrics.NAME] against the metric's factory."""
    if not isinstance(values, Mapping):
        problems.append(f"{source}: metrics is not a section. Write [metrics.NAME] and its keys below it")
        return {}
    found: dict[str, dict[str, Any]] = {}
    for name, options in values.items():
        where = f"metrics.{name}"
        if name not in METRICS:
            problems.append(f"{source} [{where}]: unknown metric {name!r}. {near_miss(name, METRICS)}")
        elif not isinstance(options, Mapping):
            problems.append(f"{source}: {where} is not a section. Write [{where}] and its keys below it")
        else:
            model = create_model(name, __base__=Section, **_option_fields(load("metric", METRICS, name), Section))
            try:
                found[name] = model.model_validate_json(json.dumps(options, default=str)).model_dump(mode="json")
            except ValidationError as error:
                problems += [_problem(where, item, model, source) for item in error.errors()]
    return found


def _option_fields(factory: Any, model: type[Section]) -> dict[str, Any]:
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    return {
        name: (hints[name], parameter.default)
        for name, parameter in inspect.signature(factory).parameters.items()
        if name not in model.model_fields and (name not in _NOT_OPTIONS or (model is Data and name == "seed"))
    }


def _problem(section: str, error: Any, model: type[Section], source: object) -> str:
    first, *rest = error["loc"] or (section,)
    key = f"{first}{''.join(f'[{index}]' for index in rest if isinstance(index, int))}"
    if error["type"] == "extra_forbidden":
        return f"{source} [{section}]: unknown key {key!r}. {near_miss(key, model.model_fields)}"
    if error["type"] == "missing":
        return f"{source} [{section}]: {key} is missing"
    text = error["msg"][0].lower() + error["msg"][1:]
    return f"{source} [{section}]: {key} = {json.dumps(error['input'])}: {text}"


def _checked_loss(section: LossSection | None, source: object, problems: list[str]) -> Loss | None:
    """The loss without values; None where it is unknown, or refuses an option, which is a problem."""
    if section is not None and section.name in LOSSES:
        factory: type[Loss] = load(*_TABLES["loss"], section.name)
        try:
            return factory.checked(section.options())
        except ValueError as error:
            problems.append(f"{source} [loss]: {error}. Change it, or leave it out")
    return None


def _with_loss_defaults(recipe: Recipe) -> Recipe:
    loss = load(*_TABLES["loss"], recipe.loss.name)
    train = recipe.train
    sampler = train.sampler or loss.sampler
    update: dict[str, Any] = {"sampler": sampler}
    if sampler == "shuffled":
        update |= {"images_per_class": None, "replacement": None}
    else:
        default = 2 if sampler == "n_pairs" else loss.images_per_class
        update["images_per_class"] = train.images_per_class or default
        update["replacement"] = sampler == "balanced" if train.replacement is None else train.replacement
    if train.momentum is None:
        update["momentum"] = {"sgd": 0.9, "rmsprop": 0.0}.get(train.optimizer)
    return replace(recipe, train=train.model_copy(update=update))


def _contradictions(recipe: Recipe) -> list[str]:
    """What each key allows and the keys together do not."""
    train, data, found = recipe.train, recipe.data, []
    if data.transform != "square" and data.augment == "affine":
        found.append(
            f'[data]: transform = "{data.transform}" frames training images by itself. Set augment = "photo" or "none"'
        )
    if data.transform == "D3" and (data.mean, data.std) not in (("imagenet", "imagenet"), (0.5, 0.5)):
        found.append('[data]: transform = "D3" scales pixels to -1 ... 1. Leave mean and std out')
    found += _schedule_contradictions(train)
    for name in recipe.probe.metrics:
        if name not in METRICS and not re.fullmatch(r"R@[1-9][0-9]*", name):
            found.append(f"[probe]: unknown metric {name!r}. {near_miss(name, METRICS)}")
    loss = load(*_TABLES["loss"], recipe.loss.name)
    found += _batch_contradictions(train, loss.needs_positives)
    if load(*_TABLES["data"], recipe.data.name).takes_root and not recipe.data.root:
        found.append(f"[data]: {recipe.data.name} needs a root. Give --data {recipe.data.name}:PATH")
    return found


def _schedule_contradictions(train: Train) -> list[str]:
    found = []
    for what, names in (
        ("when the learning rate falls", ("decay_at", "decay_epochs", "decay_iterations")),
        ("when the loss is heated", ("heat_at", "heat_epochs")),
        ("how long the warm-up is", ("warmup_iterations", "warmup_epochs")),
    ):
        given = [name for name in names if getattr(train, name)]
        if len(given) > 1:
            found.append(f"[train]: {' and '.join(given)} both say {what}. Keep one")
        if what.startswith("when the learning") and given and train.decay == "cosine":
            found.append(f'[train]: {given[0]} is for decay = "steps". Leave it out, or decay = "cosine"')
    if train.momentum is not None and train.optimizer in ("adam", "adamw"):
        found.append(f"[train]: {train.optimizer} has no momentum. Leave it out")
    if train.epsilon is not None and train.optimizer == "sgd":
        found.append("[train]: sgd has no epsilon. Leave it out")
    return found


def _batch_contradictions(train: Train, needs_positives: bool) -> list[str]:
    """What the sampler cannot draw. A loss that needs positives asks for more, and says so itself."""
    k, found = train.images_per_class, []
    if k is None:
        return []
    if train.sampler == "n_pairs" and k != 2:
        found.append(f"[train]: images_per_class = {k}: n_pairs takes 2 of a class. Leave it out")
    elif k < 2 and train.sampler != "balanced" and not needs_positives:
        found.append(f"[train]: images_per_class = {k}: {train.sampler} needs each class twice. Set 2 or more")
    if train.batch_size < k and not needs_positives:
        found.append(f"[train]: batch_size = {train.batch_size} holds no class of images_per_class = {k}. Raise it")
    return found


def summary(path: Path) -> str:
    """What a recipe says of itself: its first comment line."""
    first = path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""
