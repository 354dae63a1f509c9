"""data: what a data set needs, and whether a copy of it is sound."""

from __future__ import annotations

import contextlib
import inspect
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layerprobe import registry
from layerprobe.data import check
from layerprobe.data.about import ABOUT, About
from layerprobe.data.check import Finding, SplitCount
from layerprobe.data.listing import every_listed
from layerprobe.data.splits import Dataset, require_retrieval
from layerprobe.errors import DataError, InterruptedRun, RecipeError
from layerprobe.overrides import Overrides, overridden
from layerprobe.progress import Listener
from layerprobe.recipe import list_recipes
from layerprobe.workflow.signals import stoppable


@dataclass(frozen=True)
class Checked:
    """What a check found.

    Args:
        data: NAME[:ROOT], as asked.
        splits: the size of each.
        findings: errors first, then remarks, each in the order of the splits' images.
        images: how many the data set lists.
        read: how many were looked at; fewer where a signal came.
        signal_number: of the signal that ended it early; None where it went through.
    """

    data: str
    splits: tuple[SplitCount, ...]
    findings: tuple[Finding, ...]
    images: int
    read: int
    signal_number: int | None = None

    @property
    def errors(self) -> list[Finding]:
        """What has to be mended before the data set can be used."""
        return [finding for finding in self.findings if finding.is_error]

    @property
    def remarks(self) -> list[Finding]:
        """What is worth knowing."""
        return [finding for finding in self.findings if not finding.is_error]


def list_data() -> dict[str, tuple[About, list[str]]]:
    """Every data set, with the names of the recipes that are written for it."""
    recipes: dict[str, list[str]] = {name: [] for name in registry.DATASETS}
    for recipe, path in list_recipes().items():
        # A recipe that is none says so when it is used.
        with contextlib.suppress(tomllib.TOMLDecodeError, UnicodeDecodeError):
            data = tomllib.loads(path.read_text(encoding="utf-8")).get("data")
            name = data.get("name") if isinstance(data, dict) else None
            if isinstance(name, str) and name in recipes:
                recipes[name].append(recipe)
    return {name: (ABOUT[name], found) for name, found in recipes.items()}


def check_data(data: str, listener: Listener, *, workers: int | None = None) -> Checked:
    """Read every image of a data set once and say all that is wrong with it.

    A signal ends it with what was found so far.

    Args:
        data: NAME[:ROOT], as for --data.
        listener: hears of progress.
        workers: processes that read; None: one a core, at most 8; 0: this one.

    Raises:
        UnknownNameError: no such data set.
        RecipeError: it needs a root.
        DataError: no image of it can be found; the loader's own error.
    """
    dataset, problems = _dataset(data)
    images = sum(map(len, dataset.splits.values()))
    pixels: dict[str, list[bytes | None]] = {name: [None] * len(split) for name, split in dataset.splits.items()}
    found: dict[str, dict[int, tuple[Finding, ...]]] = {name: {} for name in dataset.splits}
    workers = min(8, os.cpu_count() or 1) if workers is None else workers
    signal_number = None
    with stoppable() as stop, listener.task(f"check {data}", images, "images") as task:
        try:
            for name, split in dataset.splits.items():
                with contextlib.closing(check.examined(split, workers=workers)) as results:
                    for result in stop.between(results, "interrupted"):
                        pixels[name][result.index] = result.pixels
                        found[name][result.index] = result.findings
                        task.advance()
        except InterruptedRun:
            signal_number = stop.signal_number
    for name, split in dataset.splits.items():
        for index in sorted(found[name]):
            problems += [replace(f, split=name, id=check.printable(split.ids[index])) for f in found[name][index]]
    problems += check.duplicates(dataset, pixels)
    return Checked(
        data,
        tuple(check.counts(dataset)),
        tuple(sorted(problems, key=lambda finding: not finding.is_error)),
        images,
        sum(map(len, found.values())),
        signal_number,
    )


def _dataset(data: str) -> tuple[Dataset, list[Finding]]:
    """The data set, as whole as it can be had, and what its loader says against it."""
    section = overridden({}, Overrides(data=data), data, ["data"])["data"]
    name = section["name"]
    load = registry.load("data set", registry.DATASETS, name)
    takes = inspect.signature(load).parameters
    defaults: Mapping[str, Any] = inspect.getmodule(load).DEFAULTS  # type: ignore[union-attr] # every data set's module has them
    options = {key: value for key, value in {**defaults, **section}.items() if key in takes}
    if "root" in takes and "root" not in options:
        raise RecipeError(f"{name} needs a root", fix=f"layerprobe data check {data.rstrip(':')}:PATH")
    if "root" in options:
        options["root"] = Path(options["root"])
    try:
        dataset, problems = load(**options), []
    except DataError as error:
        lenient = every_listed(name, options)
        if lenient is None:
            raise
        dataset, problems = lenient, [_refused(error)]
    try:
        require_retrieval(dataset, source=options.get("root", name))
    except DataError as error:
        problems.append(_refused(error))
    return dataset, problems


def _refused(error: DataError) -> Finding:
    text = error.message if error.file is None else f"{check.printable(error.file)}: {error.message}"
    return Finding("data set", True, check.printable(text), check.printable(error.fix))
