"""Which line of a figure, and which place along a key, each run belongs to, by the keys of its recipe."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.values.records import RunRecord
from layerprobe.values.sections import DECIDING, NOT_DECIDING
from layerprobe.workflow.run.experiments import experiments_of
from layerprobe.workflow.run.runs import Run

_SEED = "train.seed"
_NONE = "none"


@dataclass(frozen=True, eq=False)
class PlottedRun:
    """A run in a figure over trainings.

    Args:
        line: the keys in which it differs from runs of other lines; empty where there are none.
        place: the value of the key; None without a key.
    """

    name: str
    record: RunRecord | None = None
    line: str = ""
    place: float | str | None = None

    @property
    def seed(self) -> int:
        """0 where the record is unreadable."""
        return self.record.seed if self.record else 0


def place_runs(
    runs: Sequence[Run], key: str | None, lines: Mapping[str, str] | None
) -> tuple[list[PlottedRun], tuple[str, ...]]:
    """The runs that have the key, each with its line and place, and notes.

    Runs that differ in the seed alone, and in keys that have the seed's value in every run, share line and place. Runs
    of one recipe that differ otherwise, as by their images, have a line each, under their own names.

    Args:
        lines: run -> the name of its line; None: the keys that differ, of which one that the others imply is a note.

    Raises:
        UnknownNameError: no run has the key.
    """
    records = {run: _read_record(run) for run in runs}
    recipes = {run: {} if record is None else _keys(record) for run, record in records.items()}
    notes: list[str] = []
    if key is not None:
        names_without_key = [run.name for run in runs if key not in recipes[run]]
        if len(names_without_key) == len(runs):
            all_keys = dict.fromkeys(name for recipe in recipes.values() for name in recipe)
            raise UnknownNameError("key", key, _choose_keys(list(recipes.values()), None) or all_keys)
        notes += [f"left out, without {key}: {', '.join(names_without_key)}"] if names_without_key else []
    runs_with_key = [run for run in runs if key is None or key in recipes[run]]
    named_recipes = {run.name: recipes[run] for run in runs_with_key if recipes[run]}
    if lines is None:
        names, implied = _name_lines(named_recipes, key)
        notes += [f"These keys differ as well: {', '.join(implied)}."] if implied else []
        experiment_notes = experiments_of(runs_with_key).notes
        notes += experiment_notes
        own_names = {run.name: run.name for run in runs_with_key} if len(runs_with_key) > 1 else {runs[0].name: ""}
        lines = own_names if experiment_notes else own_names | names
    plotted = [
        PlottedRun(run.name, records[run], lines[run.name], None if key is None else place_of(recipes[run][key]))
        for run in runs_with_key
    ]
    _require_distinct(plotted)
    return plotted, tuple(notes)


def line_name(values: Mapping[str, Any]) -> str:
    """`loss.name=triplet, train.batch_size=64`."""
    return ", ".join(f"{key}={_text(place_of(value))}" for key, value in values.items())


def place_of(value: Any) -> float | str:
    """The value of a key as a place: `[64]` is 64; `[]` and null are `none`; true, and lists of several, are text."""
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if value is None or value == []:
        return _NONE
    return value if isinstance(value, str) or type(value) in (int, float) else json.dumps(value)


def places_in_order(places: Iterable[float | str]) -> dict[float | str, float | str]:
    """Place -> itself, ascending; its text if some are texts, which come first, as given."""
    distinct = list(dict.fromkeys(places))
    texts, numbers = [x for x in distinct if isinstance(x, str)], sorted(x for x in distinct if not isinstance(x, str))
    return {**{text: text for text in texts}, **{x: _text(x) if texts else x for x in numbers}}


def differing_keys(runs: Iterable[Run]) -> list[str]:
    """The keys that tell the recipes of runs apart, without the seed, and without keys that others imply."""
    return _choose_keys([_keys(record) for run in runs if (record := _read_record(run))], None)


def _name_lines(recipes: Mapping[str, Mapping[str, Any]], key: str | None) -> tuple[dict[str, str], list[str]]:
    """The line of each run, and the other keys that differ, without options of a part that the lines name."""
    all_recipes = list(recipes.values())
    chosen = _choose_keys(all_recipes, key)
    parts = {name.removesuffix(".name") for name in (*chosen, key or "") if name.endswith(".name")}
    other_keys = [name for name in _find_differing_keys(all_recipes) if name not in (*chosen, key)]
    lines = {run: {name: recipe[name] for name in chosen if name in recipe} for run, recipe in recipes.items()}
    implied = [name for name in other_keys if name.partition(".")[0] not in parts]
    return {run: line_name(values) for run, values in lines.items()}, implied


def _choose_keys(recipes: Sequence[Mapping[str, Any]], key: str | None) -> list[str]:
    """Keys that distinguish recipes with the same value of `key`, chosen greedily; names of parts come first."""
    cells = [() if key is None else (_encode(recipe, key),) for recipe in recipes]
    chosen: list[str] = []
    for name in sorted(_find_differing_keys(recipes), key=lambda name: not name.endswith(".name")):
        finer = [(*cell, _encode(recipe, name)) for cell, recipe in zip(cells, recipes, strict=True)]
        if len(set(finer)) > len(set(cells)):
            chosen.append(name)
            cells = finer
    return chosen


def _find_differing_keys(recipes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that differ, without the seed and those that have its value in every recipe."""
    names = dict.fromkeys(name for recipe in recipes for name in recipe)
    varying = [name for name in names if len({_encode(recipe, name) for recipe in recipes}) > 1]
    return [name for name in varying if any(recipe.get(name) != recipe.get(_SEED) for recipe in recipes)]


def _require_distinct(runs: Sequence[PlottedRun]) -> None:
    runs_by_position: dict[tuple[object, ...], PlottedRun] = {}
    for run in runs:
        other = runs_by_position.setdefault((run.line, run.place, run.seed), run)
        if other is not run:
            message = f"{other.name} and {run.name} have the same recipe and seed"
            raise RecipeError(message, fix="Leave one of them out")


def _read_record(run: Run) -> RunRecord | None:
    with contextlib.suppress(DataError):
        return run.read()
    return None


def _keys(record: RunRecord) -> dict[str, Any]:
    """`section.key` -> value, of all that decides the weights."""
    return {
        f"{section}.{name}": value
        for section in DECIDING
        for name, value in record.recipe.get(section, {}).items()
        if (section, name) not in NOT_DECIDING
    }


def _encode(recipe: Mapping[str, Any], name: str) -> str:
    return json.dumps(recipe[name]) if name in recipe else ""


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
