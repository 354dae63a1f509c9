"""Commands of the pages that need what is not here: parsed, and every name in them looked up."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from layerprobe import registry
from layerprobe.cli import _find, command_line
from layerprobe.cli.options import ModelOptions, ModelsOptions
from layerprobe.cli.requests import _WithOptions
from layerprobe.recipe.overrides import Overrides, data_keys
from layerprobe.recipe.recipe import load_recipe
from layerprobe.system.errors import UnknownNameError
from tests.docs.pages import ROOT

_EXTRAS = re.compile(r"(?:layerprobe|\.)\[([\w,-]+)\]")
# Programs of others in the blocks that are parsed: their options are theirs.
_OTHERS = {
    "pip", "python", "python3", "git", "cd", "docker", "torchrun", "ruff", "mypy", "pytest", "export", "curl", "source",
    "embedding-atlas", "tensorboard", "conda", "uv", "sphinx-build", "make", "twine", "hatch", "srun", "sbatch", ".",
    "wget", "unzip", "tar", "jupyter", "pre-commit", "ls", "cat", "mkdir", "cp", "echo",
}  # fmt: skip


def resolve(words: list[str]) -> None:
    """Check a command without running it: its options, and the names in it.

    Raises:
        LayerprobeError: as the command would.
        AssertionError: another program than the pages name, or an extra that is not there.
    """
    words = words[next((i for i, word in enumerate(words) if "=" not in word), 0) :]  # after NAME=VALUE
    if words[:1] == ["torchrun"] and "-m" in words:  # torchrun ... -m layerprobe train ...
        words = words[words.index("-m") + 1 :]
    if words[:1] != ["layerprobe"]:
        assert words[0] in _OTHERS, f"{words[0]}: no program that pages name"
        _require_extras(" ".join(words))
        return
    if words[1:2] and not words[1].startswith("-"):
        resolve_values(words[1], _parsed(words[1:]))


def _require_extras(line: str) -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    for names in _EXTRAS.findall(line):
        missing = set(names.split(",")) - set(extras)
        assert not missing, f"no such extra: {missing}"


def _parsed(words: list[str]) -> Mapping[str, Any]:
    """The arguments with which the command's function would be called."""
    app = command_line(words[0])
    command, depth = _find(app, words)
    if command is None or not hasattr(command, "params") or hasattr(command, "commands"):
        raise UnknownNameError("command", words[0], [])
    arguments: dict[str, Any] = {}
    with_options = _with_options_of(command.callback)
    function = with_options._command

    @functools.wraps(function)
    def keep(**values: Any) -> None:
        arguments.update(values)

    with_options._command = keep
    try:
        with command.make_context(" ".join(["layerprobe", *words[:depth]]), words[depth:]) as context:
            command.invoke(context)
    finally:
        with_options._command = function
    return arguments


def _with_options_of(callback: Any) -> _WithOptions:
    while not isinstance(callback, _WithOptions):
        callback = callback.__wrapped__
    return callback


def resolve_values(command: str, arguments: Mapping[str, Any]) -> None:
    """Look up the names among a command's arguments: recipes, plots, studies, models, data sets, trackers."""
    if command == "train":
        load_recipe(arguments["recipe"], arguments["overrides"], arguments.get("model"))
    if command == "plot":
        registry.load("plot", registry.PLOTS, arguments["kind"])
    if command == "study" and arguments.get("name"):
        from layerprobe.workflow.study.study_file import load_study

        load_study(arguments["name"], small=arguments.get("small", False))
    if command == "compare" and arguments.get("paper"):
        from layerprobe.papers.tables import find_table

        find_table(arguments["paper"])
    if command == "recipes" and arguments.get("name"):
        load_recipe(arguments["name"])
    if command == "data" and "data" in arguments:
        _resolve_data(arguments["data"], arguments.get("settings") or ())
    for tracker in arguments.get("log") or ():
        registry.load("tracker", registry.TRACKERS, tracker.partition(":")[0])
    for value in arguments.values():
        if isinstance(value, ModelOptions | ModelsOptions):
            _resolve_models(value)
        elif is_dataclass(value) and hasattr(value, "network"):
            assert value.network


def _resolve_models(options: ModelOptions | ModelsOptions) -> None:
    for source in [options.model] if isinstance(options.model, str) else options.model or ():
        registry.load_apart("source", registry.SOURCES, source)
        if source.startswith("timm:"):
            _require_timm(source.removeprefix("timm:"))
    if options.data is not None:
        _resolve_data(options.data, options.settings or ())


def _resolve_data(data: str, settings: tuple[str, ...]) -> None:
    registry.load("data set", registry.DATASETS, data.partition(":")[0])
    data_keys(data)
    load_recipe("netA", Overrides(data, settings))


def _require_timm(name: str) -> None:
    import timm

    stem = name.partition(".")[0]
    if stem != "NAME" and not timm.is_model(stem):
        raise UnknownNameError("model of timm", stem, timm.list_models(f"{stem[:4]}*"))
