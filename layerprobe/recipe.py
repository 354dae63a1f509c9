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
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from layerprobe.errors import LayerprobeError, RecipeError, UnknownNameError, near_miss
from layerprobe.overrides import Overrides, overridden
from layerprobe.registry import DATASETS, LOSSES, METRICS, NETS, load

# What a factory takes and no recipe states.
_NOT_OPTIONS = {"self", "root", "embedding_dim", "num_classes", "seed", "weights"}
_TABLES = {"data": ("data set", DATASETS), "net": ("network", NETS), "loss": ("loss", LOSSES)}
_Fraction = Annotated[float, Field(gt=0, lt=1)]
_Channels = float | tuple[float, float, float] | Literal["imagenet"]


class _Section(BaseModel):
    # Strict: "15" is no number. Read as JSON, where an array may stand for a tuple all the same.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def options(self) -> dict[str, Any]:
        """The keys that belong to the named part alone: its factory's keyword arguments."""
        common = _SECTIONS[self.section_name()].model_fields
        return {name: getattr(self, name) for name in type(self).model_fields if name not in common}

    @classmethod
    def section_name(cls) -> str:
        return next(name for name, section in _SECTIONS.items() if issubclass(cls, section))


class Data(_Section):
    """What to train and measure on, and what is done to an image."""

    name: str
    root: str | None = None
    image_size: int = Field(224, ge=16)
    invert: bool = False
    mean: _Channels = "imagenet"
    std: _Channels = "imagenet"
    augment: Literal["none", "affine", "photo"] = "photo"
    transform: Literal["square", "D1", "D2", "D3"] = "square"
    resize: Literal["exact", "fast"] = "exact"
    exif_rotation: bool = False
    validation_classes: Annotated[float, Field(ge=0, lt=1)] = 0.0
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    cache: Literal["auto", "off"] = "auto"


class Network(_Section):
    """Backbone and head; `fc` lists the sizes of fc6, fc7 ...; no entry puts the loss on the pooled layer."""

    name: str
    fc: tuple[Annotated[int, Field(ge=1)], ...] = (512,)
    pool: Literal["max", "avg", "gem"] | None = None
    weights: str = "none"
    from_scratch: tuple[str, ...] = ()


class LossSection(_Section):
    """The loss's name; its further keys are its own options."""

    name: str


class Train(_Section):
    """Batches, optimiser and schedule; the defaults are paper 004's (section 5)."""

    epochs: int = Field(ge=0)
    batch_size: int = Field(32, ge=2)
    sampler: Literal["classes", "shuffled"] | None = None
    images_per_class: int | None = Field(None, ge=2)
    optimizer: Literal["sgd"] = "sgd"
    learning_rate: float = Field(0.01, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(5e-4, ge=0)
    new_layers_factor: float = Field(1.0, gt=0)
    decay_at: tuple[_Fraction, ...] = ()
    decay_epochs: tuple[Annotated[int, Field(ge=1)], ...] = ()
    decay_iterations: tuple[Annotated[int, Field(ge=1)], ...] = ()
    decay_factor: float = Field(0.1, gt=0)
    warmup_iterations: int = Field(0, ge=0)
    warmup: Literal["zero_rate", "freeze"] = "zero_rate"
    seed: int = Field(0, ge=0)


class Probe(_Section):
    """What `probe` measures unless told otherwise; no part of a run's identity."""

    layers: tuple[str, ...] = Field(("*",), min_length=1)
    pool: tuple[str, ...] = Field(("max",), min_length=1)
    k: tuple[Annotated[int, Field(ge=1)], ...] = Field((1, 2, 4, 8, 16, 32), min_length=1)
    metrics: tuple[str, ...] = ()


_SECTIONS: dict[str, type[_Section]] = {
    "data": Data,
    "net": Network,
    "loss": LossSection,
    "train": Train,
    "probe": Probe,
}


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
        metrics: name -> options of those metrics that have any set.
    """

    name: str
    data: Data
    net: Network
    loss: LossSection
    train: Train
    probe: Probe
    metrics: Mapping[str, Mapping[str, Any]]

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Sections of plain JSON values, as run.json stores them."""
        sections = {name: getattr(self, name).model_dump(mode="json") for name in _SECTIONS}
        return {**sections, "metrics": {name: dict(options) for name, options in self.metrics.items()}}

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
    try:
        sections = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"not a TOML file: {error}", file=path) from error
    known = [*_SECTIONS, "metrics"]
    return resolve(path.stem, overridden(sections, overrides or Overrides(), path, known), source=path)


def is_changed(reference: str, recipe: Recipe) -> bool:
    """Whether a recipe, as resolved, would train something else than its file says; where the data lie aside."""
    root = recipe.data.root
    plain = load_recipe(reference, Overrides(settings=(f"data.root={root}",)) if root else None)
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
    problems = [
        f"{source}: unknown section [{section}]. {near_miss(section, [*_SECTIONS, 'metrics'])}"
        for section in sections
        if section not in _SECTIONS and section != "metrics"
    ]
    parts: dict[str, Any] = {}
    for section in _SECTIONS:
        values = sections.get(section, {})
        if isinstance(values, Mapping):
            parts[section] = _validated(section, values, source, problems)
        else:
            problems.append(f"{source}: {section} is not a section. Write [{section}] and its keys below it")
    parts["metrics"] = _metric_options(sections.get("metrics", {}), source, problems)
    if not problems:
        recipe = _with_loss_defaults(Recipe(name=name, **parts))
        problems += [f"{source} {problem}" for problem in _contradictions(recipe)]
    if problems:
        raise RecipeError(problems[0], problems=problems)
    return recipe


def _validated(section: str, values: Mapping[str, Any], source: object, problems: list[str]) -> _Section | None:
    model = _SECTIONS[section]
    if section in _TABLES and isinstance(values.get("name"), str):
        try:
            factory = load(*_TABLES[section], values["name"])
        except LayerprobeError as error:
            problems.append(f"{source} [{section}]: {error}".rstrip("."))
            values = {key: value for key, value in values.items() if key in model.model_fields}
        else:
            if section == "data":
                values = {**inspect.getmodule(factory).DEFAULTS, **values}  # type: ignore[union-attr] # every data set's module has them
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
            model = create_model(name, __base__=_Section, **_option_fields(load("metric", METRICS, name), _Section))
            try:
                found[name] = model.model_validate_json(json.dumps(options, default=str)).model_dump(mode="json")
            except ValidationError as error:
                problems += [_problem(where, item, model, source) for item in error.errors()]
    return found


def _option_fields(factory: Any, model: type[_Section]) -> dict[str, Any]:
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    return {
        name: (hints[name], parameter.default)
        for name, parameter in inspect.signature(factory).parameters.items()
        if name not in model.model_fields and (name not in _NOT_OPTIONS or (model is Data and name == "seed"))
    }


def _problem(section: str, error: Any, model: type[_Section], source: object) -> str:
    key = str(error["loc"][0]) if error["loc"] else section
    if error["type"] == "extra_forbidden":
        return f"{source} [{section}]: unknown key {key!r}. {near_miss(key, model.model_fields)}"
    if error["type"] == "missing":
        return f"{source} [{section}]: {key} is missing"
    text = error["msg"][0].lower() + error["msg"][1:]
    return f"{source} [{section}]: {key} = {json.dumps(error['input'])}: {text}"


def _with_loss_defaults(recipe: Recipe) -> Recipe:
    loss = load(*_TABLES["loss"], recipe.loss.name)
    sampler = recipe.train.sampler or loss.sampler
    per_class = (recipe.train.images_per_class or 4) if sampler == "classes" else None
    train = recipe.train.model_copy(update={"sampler": sampler, "images_per_class": per_class})
    return replace(recipe, train=train)


def _contradictions(recipe: Recipe) -> list[str]:
    """What each key allows and the keys together do not."""
    train, data, found = recipe.train, recipe.data, []
    if data.transform != "square" and data.augment == "affine":
        found.append(
            f'[data]: transform = "{data.transform}" frames training images by itself. Set augment = "photo" or "none"'
        )
    if data.transform == "D3" and (data.mean, data.std) not in (("imagenet", "imagenet"), (0.5, 0.5)):
        found.append('[data]: transform = "D3" scales pixels to -1 ... 1. Leave mean and std out')
    decays = [name for name in ("decay_at", "decay_epochs", "decay_iterations") if getattr(train, name)]
    if len(decays) > 1:
        found.append(f"[train]: {' and '.join(decays)} both say when the learning rate falls. Keep one")
    if train.images_per_class and train.batch_size < 2 * train.images_per_class:
        found.append(
            f"[train]: batch_size = {train.batch_size} holds fewer than 2 classes of images_per_class ="
            f" {train.images_per_class}"
        )
    for name in recipe.probe.metrics:
        if name not in METRICS and not re.fullmatch(r"R@[1-9][0-9]*", name):
            found.append(f"[probe]: unknown metric {name!r}. {near_miss(name, METRICS)}")
    loss = load(*_TABLES["loss"], recipe.loss.name)
    if loss.needs_positives and train.sampler != "classes":
        found.append(f'[train]: {recipe.loss.name} needs each class twice in a batch. Set sampler = "classes"')
    if "root" in inspect.signature(load(*_TABLES["data"], recipe.data.name)).parameters and not recipe.data.root:
        found.append(f"[data]: {recipe.data.name} needs a root. Give --data {recipe.data.name}:PATH")
    return found


def summary(path: Path) -> str:
    """What a recipe says of itself: its first comment line."""
    first = path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""
