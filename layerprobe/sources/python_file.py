"""A model that a user's own Python builds: `python:FILE.py:FUNCTION`."""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from layerprobe.sources.hub import NO_OWN_SIZE, Foreign
from layerprobe.sources.source import Source, take_off
from layerprobe.sources.user_code import import_file
from layerprobe.system.computing import require_numbers
from layerprobe.system.errors import DataError, LayerprobeError, RecipeError, UnknownNameError
from layerprobe.system.files import sha256
from layerprobe.system.naming import split_python
from layerprobe.values.network_input import DEVIATION, MEAN, Filter, ImageSize, OwnInput, as_size

if TYPE_CHECKING:
    from torch import nn

_KEYS = ("size", "filter", "crop", "mean", "std")
_SHAPE = "FILE.py:FUNCTION"


def _parse_name(name: str) -> tuple[Path, str]:
    """The file, its links and `..` resolved, and the function."""
    file, colon, _ = name.rpartition(":")
    path, function = split_python(name)
    if not (colon and file.endswith(".py") and function.isidentifier()):
        raise RecipeError(f"python:{name} is not of the form python:{_SHAPE}", fix="For example python:mine.py:build")
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long a name, or one that no file can have
        is_file = False
    if not is_file:
        fix = f"Give python:{_SHAPE}, from the folder that you are in; to a run whose file has moved, by --model"
        raise DataError("no such file", file=file, fix=fix)
    return path.resolve(), function


def _versions(name: str) -> dict[str, str]:  # noqa: ARG001 - the same of all models
    return {}


def _files(name: str) -> dict[str, str]:
    path, _ = _parse_name(name)
    return {split_python(name)[0].name: sha256(path)[:12]}


def _call_build(name: str) -> tuple[nn.Module, OwnInput | None, Mapping[str, str]]:
    """What the user's function gives, called without arguments: a module, or a module and what its input is.

    The third is as for `Foreign.files`.
    """
    from torch import nn

    path, function = _parse_name(name)
    returned, files = _call_function(path, function)
    module, facts = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if not isinstance(module, nn.Module):
        raise RecipeError(
            f"python:{name} gives {type(module).__name__}", fix="Return a torch.nn.Module, or (module, {size, ...})"
        )
    require_numbers(module, name=f"python:{name}")
    return module, None if facts is None else _as_input(name, facts), files


def _call_function(path: Path, function: str) -> tuple[object, Mapping[str, str]]:
    """The return value of a function of a file, and the hashes of the imported files, as for `Foreign.files`."""
    try:
        with import_file(path, function) as (module, files):
            build = getattr(module, function, None)
            if not callable(build):
                functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
                raise UnknownNameError("function", function, functions, file=path)
            returned = build()
    except LayerprobeError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        where = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) and error.filename == str(path) else (where or [None])[-1]
        at = f"line {line}: " if line else ""
        problem = f"{at}{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise RecipeError(problem, file=path, fix="Correct the file") from error
    return returned, files


def _as_input(name: str, facts: object) -> OwnInput:
    """The input that a user states: {size, filter, crop, mean, std}; all but the size are optional.

    As in timm, `crop` is the share of each side that the crop keeps; without it the image is squeezed.
    """
    if not isinstance(facts, Mapping) or not set(facts) <= set(_KEYS) or "size" not in facts:
        problem = f"python:{name} states its input as {facts!r}"
        raise RecipeError(problem, fix=f"Give a dict with size and, if it has them, {', '.join(_KEYS[1:])}")
    size, crop, resampling = facts["size"], facts.get("crop"), facts.get("filter", "bilinear")
    sides = list(size) if isinstance(size, list | tuple) else [size, size]
    statistics = {key: facts[key] for key in ("mean", "std") if key in facts}
    statistics = {key: [x] if isinstance(x, int | float) else x for key, x in statistics.items()}
    if (
        len(sides) != 2
        or not all(type(side) is int and side > 0 for side in sides)
        or not (crop is None or (isinstance(crop, int | float) and 0 < crop <= 1))
        or resampling not in get_args(Filter)
        or not all(_are_numbers(values) for values in statistics.values())
    ):
        raise RecipeError(
            f"python:{name} states its input as {dict(facts)!r}",
            fix="size is a number of pixels or (height, width), crop the share of each side that is kept (above 0, at"
            f" most 1), filter one of {', '.join(get_args(Filter))}, mean and std are three numbers each, or one",
        )
    resized = None if crop is None else as_size(*(math.floor(side / crop) for side in sides))
    mean, std = (tuple(statistics.get(key, value)) for key, value in (("mean", MEAN), ("std", DEVIATION)))
    if len(mean) != len(std):  # one of them is not stated, or one number for all channels
        mean, std = (values * 3 if len(values) == 1 else values for values in (mean, std))
    return OwnInput(as_size(*sides), resized, resampling, mean, std, kept=crop)


def _are_numbers(values: object) -> bool:
    numbers = values if isinstance(values, list | tuple) else ()
    return len(numbers) in (1, 3) and all(isinstance(x, int | float) for x in numbers)


def _own_input(name: str) -> OwnInput | None:
    import torch

    with torch.random.fork_rng(devices=[]):
        return _call_build(name)[1]


def _model(name: str, *, pretrained: bool, image_size: ImageSize | None) -> Foreign:  # noqa: ARG001 - the file's own weights
    from layerprobe.taps import find_classifier

    module, own_input, files = _call_build(name)
    classifier = find_classifier(module, image_size or (own_input.size if own_input else NO_OWN_SIZE))
    if classifier is not None:
        take_off(module, classifier)
    return Foreign(module, own_input, image_size, ("norm", "fc_norm"), classifier=classifier or "", files=files)


SOURCE = Source(prefix="python:", model=_model, own_input=_own_input, versions=_versions, files=_files)
