"""What run.json must hold for a run to be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, get_args

from layerprobe.values.own_input import Filter, OwnInput

_Check = Callable[[Any], bool]

FROM_PYTHON = "from_python"  # true in the record of a run that layerprobe.probe wrote: its model is not stored
# The files whose weights are the epochs 0, 1, 2 ... of a run that copied none of them.
FOREIGN = "weights_files"
# What a run's network is, so that nobody has to build it to read the run: `layers` in execution order; `embedding`,
# what the loss takes, as layer and pool; `cuts`, layer -> shares of parameters and multiply-adds after it; `input`, the
# fields of the model's OwnInput, or null; `files`, path from the folder of the user's own file -> SHA-256, the file
# itself under the empty path.
NETWORK = "network"


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
    if not isinstance(value, dict) or value.keys() - {"size"} != {"path", "part", "sha256"}:
        return False
    if not (value.get("size") is None or _is_whole(value["size"])):
        return False
    return _is_text(value["path"]) and _is_text(value["sha256"]) and (value["part"] is None or _is_text(value["part"]))


_LARGEST_SIDE = 100_000  # of an image, in pixels


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


def _is_cut(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_share, value))


def _is_input(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, dict) or value.keys() != {field.name for field in fields(OwnInput)}:
        return False
    sizes = [value["size"], value["size"] if value["resized"] is None else value["resized"]]
    channels = [value["mean"], value["std"]]
    return (
        all(type(size) is int for size in sizes)
        and 1 <= sizes[0] <= sizes[1] <= _LARGEST_SIDE
        and value["filter"] in get_args(Filter)
        and value["crop_rounding"] in ("down", "even")
        and isinstance(value["squeezed"], bool)
        and all(isinstance(three, list) and len(three) == 3 for three in channels)
        and all(isinstance(number, int | float) and abs(number) <= 1e6 for three in channels for number in three)
        and (value["kept"] is None or (isinstance(value["kept"], int | float) and 1e-3 <= value["kept"] <= 1))
    )


def _is_network(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _list_of(_is_text)(value.get("layers"))
        and _list_of(_is_text)(value.get("embedding"))
        and len(value["embedding"]) == 2
        and _section_of(_is_cut)(value.get("cuts"))
        and _is_input(value.get("input"))
        and _section_of(_is_text)(value.get("files"))
        and not any("\0" in path for path in value["files"])
    )


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
    NETWORK: (_is_network, "the network's layers, cuts, input and files"),
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
    if (count := len(record.get(FOREIGN) or [0] * (record["epochs_done"] + 1))) != record["epochs_done"] + 1:
        return f"{FOREIGN} has {count} files, expected one for each of the epochs 0 to {record['epochs_done']}"
    return ""


def recorded_input(record: Mapping[str, Any]) -> OwnInput | None:
    """The images that the model of a run was trained on; None where they are not known, or not recorded."""
    found = record.get(NETWORK, {}).get("input")
    return None if found is None else OwnInput(**found | {key: tuple(found[key]) for key in ("mean", "std")})


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) < 60 else f"{text[:57]}..."
