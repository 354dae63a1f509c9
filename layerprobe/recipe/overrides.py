"""What the command line changes in a recipe."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from layerprobe.registry import DATASETS, is_source
from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.system.naming import HF_DATASET, is_on_the_hub, name_model
from layerprobe.system.options import Flag

# A key that chooses a part -> the keys that were meant for the part chosen before, and are dropped with it.
_BELONGING = {
    ("net", "name"): (("net", "pool"), ("net", "from_scratch"), ("probe", "layers")),
    ("loss", "name"): (("train", "sampler"), ("train", "images_per_class"), ("train", "replacement")),
    ("train", "sampler"): (("train", "images_per_class"), ("train", "replacement")),
    ("train", "optimizer"): (("train", "momentum"), ("train", "epsilon")),
    ("train", "decay"): (("train", "decay_at"), ("train", "decay_epochs"), ("train", "decay_iterations")),
}
_CHOICES = list(_BELONGING)
_PATHS = ("root", "positives", "ignore")  # keys of [data] that are files or folders


@dataclass(frozen=True)
class Overrides:
    """What the command line changes in a recipe.

    Args:
        data: NAME[:ROOT], or torchvision:SET[:ROOT]. It replaces the whole data section; if the recipe is written for
            that data set, it replaces only the root.
    """

    data: Annotated[str | None, Flag("Train on another data set.", metavar="NAME[:ROOT]")] = None
    settings: Annotated[
        tuple[str, ...],
        Flag("Override a key of the recipe; repeatable.", name="--set", metavar="SECTION.KEY=VALUE"),
    ] = ()
    seed: Annotated[int | None, Flag("Override train.seed of the recipe.", metavar="N", min=0)] = None

    def __bool__(self) -> bool:
        return bool(self.data or self.settings or self.seed is not None)

    def flags(self, section: str, keys: Iterable[str] = ()) -> str:
        """The flags, as typed, that set one of a problem's keys (see `sections.Problem`); empty where none did."""
        names = {*keys, *(f"{section}.{key}" for key in keys)}
        settings = [(_target(text), f"--set {text}") for text in self.settings]
        if self.data:
            settings += [(("data", key), f"--data {self.data}") for key in data_keys(self.data)]
        if self.seed is not None:
            settings.append((("train", "seed"), f"--seed {self.seed}"))
        typed_flags = [
            flag for target, flag in settings if (".".join(target) in names if names else target[0] == section)
        ]
        return " ".join(dict.fromkeys(typed_flags))


def apply_overrides(sections: dict[str, Any], overrides: Overrides, section_names: Iterable[str]) -> dict[str, Any]:
    """The sections of a recipe with the overrides of the command line.

    Args:
        sections: section -> keys, as TOML gives them.
    """
    sections = {name: dict(keys) if isinstance(keys, dict) else keys for name, keys in sections.items()}
    if overrides.data:
        flag_keys, recipe_keys = data_keys(overrides.data), sections.get("data")
        same = isinstance(recipe_keys, dict) and all(
            recipe_keys.get(key) == flag_keys.get(key) for key in ("name", "set")
        )
        sections["data"] = {**recipe_keys, **flag_keys} if same and isinstance(recipe_keys, dict) else flag_keys
    settings = [_setting(text, section_names) for text in overrides.settings]
    # What is chosen starts from its own defaults, wherever the choice stands among the settings.
    for section, key, value in sorted(settings, key=_rank):
        keys = sections.setdefault(section, {})
        if not isinstance(keys, dict):
            continue  # the first gate says so
        changes = keys.get(key) != value
        if (section, key) == ("loss", "name") and changes:
            keys.clear()
        for other, name in _belonging(section, key, value) if changes else ():
            if isinstance(sections.get(other), dict):
                sections[other].pop(name, None)
        if section == "metrics":
            _set_metric(keys, key, value)
        else:
            keys[key] = value
    if overrides.seed is not None and isinstance(sections.setdefault("train", {}), dict):
        sections["train"]["seed"] = overrides.seed
    data = sections.get("data")
    if isinstance(data, dict):
        on_the_hub = data.get("name") == HF_DATASET and is_on_the_hub(data.get("root"))
        if on_the_hub and overrides.flags("data", ("name", "root")):
            name_model(f"{HF_DATASET}:{data['root']}")
        for key in _PATHS:
            if on_the_hub and key == "root":
                continue
            if isinstance(data.get(key), str) and (data[key] or key == "root"):
                data[key] = str(Path(data[key]).expanduser().absolute())
    return sections


def _belonging(section: str, key: str, value: Any) -> tuple[tuple[str, str], ...]:
    """The keys that are dropped where a key that chooses a part gets this value."""
    dependent_keys = _BELONGING.get((section, key), ())
    if (section, key) == ("net", "name") and isinstance(value, str) and is_source(value):
        return (*dependent_keys, ("net", "fc"), ("net", "weights"))
    return dependent_keys


def data_keys(text: str) -> dict[str, Any]:
    """The keys of [data] that `--data` names: name, root, and set of torchvision's."""
    name, _, root = text.partition(":")
    if name not in DATASETS and ("/" in name or Path(text).exists()):
        kind = "csv" if text.endswith(".csv") else "folder"
        raise RecipeError(f"{text} is a path, not the name of a data set", fix=f"Give {kind}:{text}")
    values = {"name": name}
    if name == "torchvision":
        values["set"], _, root = root.partition(":")
    values["root"] = root
    return {key: value for key, value in values.items() if value}


def _target(text: str) -> tuple[str, str]:
    """Section and key that a setting is for; of `metrics.NMI.restarts` the section is `metrics.NMI`."""
    section, _, key = text.partition("=")[0].strip().partition(".")
    name, dot, option = key.partition(".")
    return (f"{section}.{name}", option) if section == "metrics" and dot else (section, key)


def _setting(text: str, section_names: Iterable[str]) -> tuple[str, str, Any]:
    path, equals, value = text.partition("=")
    section, dot, key = path.strip().partition(".")
    if not (equals and dot and section and key):
        raise RecipeError(f"--set {text}: not of the form section.key=value", fix="For example --set train.epochs=30")
    if section not in section_names:
        raise UnknownNameError(f"section in --set {text}:", section, section_names)
    try:
        return section, key, tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return section, key, value.strip()
    except RecursionError as error:
        raise RecipeError(f"--set {section}.{key}: nested too deep", fix="Correct its brackets") from error


def _rank(setting: tuple[str, str, Any]) -> int:
    section, key, _ = setting
    return _CHOICES.index((section, key)) if (section, key) in _CHOICES else len(_CHOICES)


def _set_metric(metrics: dict[str, Any], path: str, value: Any) -> None:
    """`NMI.seeds` = 100: a key of a section of its own."""
    name, dot, key = path.partition(".")
    if dot and isinstance(metrics.get(name, {}), dict):
        metrics[name] = {**metrics.get(name, {}), key: value}
    else:
        metrics[name] = value  # the first validation reports it
