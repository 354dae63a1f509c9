"""What run.json must hold for a run to be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_Check = Callable[[Any], bool]

FROM_PYTHON = "from_python"  # true in the record of a run that layerprobe.probe wrote: its model is not stored
# The files whose weights are the epochs 0, 1, 2 ... of a run that copied none of them.
FOREIGN = "weights_files"


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _list_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _section_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _is_recipe(value: Any) -> bool:
    sections = _section_of(lambda section: isinstance(section, dict))(value)
    return sections and ("train" not in value or _is_whole(value["train"].get("epochs")))


def _is_foreign_file(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {"path", "part", "sha256"}:
        return False
    return _is_text(value["path"]) and _is_text(value["sha256"]) and (value["part"] is None or _is_text(value["part"]))


_REQUIRED: Mapping[str, tuple[_Check, str]] = {
    "state": (_is_text, "text"),
    "recipe_name": (_is_text, "text"),
    "recipe": (_is_recipe, "the sections of a recipe, train.epochs a whole number"),
    "experiment": (_is_text, "text"),
    "seed": (_is_whole, "a whole number"),
    "epochs_done": (_is_whole, "a whole number"),
    "hashes": (_section_of(_is_text), "the hash of each file"),
    "manifests": (_section_of(_is_text), "the hash of each split"),
    "new_parameters": (_list_of(_is_text), "a list of names"),
}
_OPTIONAL: Mapping[str, tuple[_Check, str]] = {
    "touched": (_is_text, "a time"),
    "layer_order": (_list_of(_is_text), "a list of layers"),
    "members": (_list_of(_is_text), "a list of runs"),
    "versions": (_section_of(_is_text), "a version of each package"),
    "contents": (_section_of(_is_text), "the hash of each split"),
    "features_by_size": (_list_of(_is_text), "a list of splits"),
    "checkpoints_removed": (_list_of(_is_whole), "a list of epochs"),
    FROM_PYTHON: (lambda value: isinstance(value, bool), "true or false"),
    "weights_files": (_list_of(_is_foreign_file), "the path, part and sha256 of a file for each epoch"),
    "untrained": (lambda value: isinstance(value, bool), "true or false"),
}


def record_fault(record: Mapping[str, Any]) -> str:
    """The first field that is missing or of another kind than a run's, in words; empty where there is none."""
    for name, (is_right, expected) in _REQUIRED.items():
        if name not in record:
            return f"{name} is missing, expected {expected}"
        if not is_right(record[name]):
            return f"{name} is {_shown(record[name])}, expected {expected}"
    for name, (is_right, expected) in _OPTIONAL.items():
        if name in record and not is_right(record[name]):
            return f"{name} is {_shown(record[name])}, expected {expected}"
    return ""


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) < 60 else f"{text[:57]}..."
