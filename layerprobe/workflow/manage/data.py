"""data: list the data sets, and check a copy of one."""

from __future__ import annotations

import contextlib
import inspect
import secrets
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from layerprobe import registry
from layerprobe.data import check
from layerprobe.data.check import Finding, SplitCount
from layerprobe.data.image_files import Files, read_with
from layerprobe.data.images import WHITE, level_note
from layerprobe.data.search_rules import read_searching, with_search_rules
from layerprobe.data.spec import DatasetSpec
from layerprobe.data.splits import Dataset, label_notes, require_retrieval
from layerprobe.recipe.overrides import Overrides, apply_overrides
from layerprobe.recipe.recipe_files import list_recipes, read_toml
from layerprobe.recipe.validation import validate_section
from layerprobe.system.computing import default_workers
from layerprobe.system.errors import DataError, InterruptedRun, LayerprobeError, RecipeError, UnknownNameError
from layerprobe.system.progress import Listener, stoppable
from layerprobe.values.sections import SEARCH_KEYS, Data, Problem
from layerprobe.workflow.probe.identical_images import identical_images
from layerprobe.workflow.probe.measures import why_no_right_item


@dataclass(frozen=True)
class Checked:
    """The result of a check.

    Args:
        findings: errors, then remarks, both in the order of the splits' images.
        read: number of images read; less than `images` if a signal ended the check.
        notes: on the data set, as a run says them when it begins.
    """

    data: str
    splits: tuple[SplitCount, ...]
    findings: tuple[Finding, ...]
    images: int
    read: int
    signal_number: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def errors(self) -> list[Finding]:
        """The findings to fix before the data set can be used."""
        return [finding for finding in self.findings if finding.is_error]

    @property
    def remarks(self) -> list[Finding]:
        """The findings that need no action."""
        return [finding for finding in self.findings if not finding.is_error]


def list_data() -> dict[str, tuple[DatasetSpec, list[str]]]:
    """Name -> data set and the names of its recipes."""
    recipes: dict[str, list[str]] = {name: [] for name in registry.DATASETS}
    for recipe, path in list_recipes().items():
        # An invalid file is reported when it is used.
        with contextlib.suppress(RecipeError):
            data = read_toml(path).get("data")
            name = data.get("name") if isinstance(data, dict) else None
            if isinstance(name, str) and name in recipes:
                recipes[name].append(recipe)
    return {name: (_spec(name), recipe_names) for name, recipe_names in recipes.items()}


def _spec(name: str) -> DatasetSpec:
    spec: DatasetSpec = registry.load("data set", registry.DATASETS, name)
    return spec


def check_data(data: str, listener: Listener, *, settings: Sequence[str] = (), workers: int | None = None) -> Checked:
    """Read every image of a data set once and report all faults; a signal ends the check with those found so far.

    Args:
        settings: `data.KEY=VALUE`.
        workers: number of processes; 0: this process; None: one per core, at most 8.
    """
    dataset, problems = _dataset(data, tuple(settings))
    is_sound = not problems
    images = sum(map(len, dataset.splits.values()))
    pixels: dict[str, list[bytes | None]] = {name: [None] * len(split) for name, split in dataset.splits.items()}
    findings: dict[str, dict[int, tuple[Finding, ...]]] = {name: {} for name in dataset.splits}
    workers = default_workers() if workers is None else workers
    signal_number, largest = None, 0
    with (
        stoppable() as stop,
        listener.task(f"check {data}", images, "images") as task,
        contextlib.closing(_examine(dataset, workers)) as results,
    ):
        try:
            for name, result in stop.between(results, "interrupted"):
                pixels[name][result.index] = result.pixels
                findings[name][result.index] = result.findings
                largest = max(largest, result.largest)
                task.advance()
        except (InterruptedRun, KeyboardInterrupt):  # the latter: a signal ended a wait
            signal_number = stop.signal_number
    for name, split in dataset.splits.items():
        for index in sorted(findings[name]):
            problems += [replace(f, split=name, id=check.printable(split.ids[index])) for f in findings[name][index]]
    problems += check.duplicates(dataset, pixels)
    searches = _of_searches(dataset, pixels) if is_sound and signal_number is None else ()
    white = next((split.image.white for split in dataset.splits.values() if isinstance(split.image, Files)), WHITE)
    level = [note] if (note := level_note(largest, white)) else []
    return Checked(
        data,
        tuple(check.counts(dataset)),
        tuple(sorted(problems, key=lambda finding: not finding.is_error)),
        images,
        sum(map(len, findings.values())),
        signal_number,
        tuple(map(check.printable, [*dataset.input_notes, *label_notes(dataset), *level, *searches])),
    )


def _examine(dataset: Dataset, workers: int) -> Generator[tuple[str, check.Examined], None, None]:
    for name, split in dataset.splits.items():
        with contextlib.closing(check.examine(split, workers=workers)) as results:
            yield from ((name, result) for result in results)


def _of_searches(dataset: Dataset, pixels: Mapping[str, Sequence[bytes | None]]) -> Iterator[str]:
    """Notes on queries without a right item, and with an identical image in what they search."""
    hashed = {}
    for name, split in dataset.splits.items():  # an image that cannot be read is like no other
        digests = b"".join(digest or secrets.token_bytes(16) for digest in pixels[name])
        hashed[name] = replace(split, digests=np.frombuffer(digests, np.int64).reshape(-1, 2))
    for name in dataset.searched:
        if why := why_no_right_item(dataset, name):
            yield why
        identical = identical_images(replace(dataset, splits=hashed), name)
        if identical is not None and (count := int(identical.sum())):
            yield f"{name}: {count:,} of {len(identical):,} queries have an identical image in what they search"


def _dataset(data: str, settings: tuple[str, ...]) -> tuple[Dataset, list[Finding]]:
    """The data set and its loader's error; after an error, the data set without the loader's checks."""
    section = apply_overrides({}, Overrides(data=data, settings=settings), ["data"])["data"]
    name, wrong = section["name"], list[Problem]()
    keys = validate_section("data", section, wrong) if settings else None
    if wrong:
        raise RecipeError(f"--set: {wrong[0]}", fix="Change it, or leave it out")
    spec = _spec(name)
    options = spec.taken({"image_size": Data.model_fields["image_size"].default, **spec.defaults, **section})
    if spec.takes_root:
        if "root" not in options:
            raise RecipeError(f"{name} needs a root", fix=f"layerprobe data check {data.rstrip(':')}:PATH")
        options["root"] = Path(options["root"])
    try:
        dataset, problems = spec.load(**options), []
    except DataError as error:
        if spec.unchecked is None:
            raise
        parameters = inspect.signature(spec.unchecked).parameters
        accepted = {key: value for key, value in options.items() if key in parameters}
        dataset, problems = spec.unchecked(**accepted), [_refused(error)]
    if isinstance(keys, Data):
        dataset = read_with(dataset, exif_rotation=keys.exif_rotation, fast=False, white=keys.white)
    try:
        require_retrieval(dataset, source=options.get("root", name))
        dataset = with_search_rules(dataset, read_searching(dataset, **{key: section.get(key) for key in SEARCH_KEYS}))
    except (DataError, RecipeError, UnknownNameError) as error:
        problems.append(_refused(error))
    return dataset, problems


def _refused(error: LayerprobeError) -> Finding:
    text = error.message if error.file is None else f"{check.printable(error.file)}: {error.message}"
    return Finding("data set", True, check.printable(text), check.printable(error.fix))
