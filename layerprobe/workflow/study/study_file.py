"""The file of a study: TOML -> a checked, frozen `Study`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Annotated, Any

from pydantic import Field, ValidationError

from layerprobe.plots.plot import LOSS
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import Recipe, require_none
from layerprobe.recipe.recipe_files import find_study, list_studies, read_toml
from layerprobe.recipe.validation import problem_of
from layerprobe.registry import METRICS, PLOTS
from layerprobe.system.errors import RecipeError, near_miss
from layerprobe.values.scores import is_fraction, recall_of
from layerprobe.values.sections import LARGEST_SEED, Problem, Section
from layerprobe.workflow.study.search_space import Domain, Search, domains_of, search_problems

_SMALL, _GRID, _VARIANTS, _SEARCH = "small", "grid", "variants", "search"
_SEED = "train.seed"
_MOST_TRAININGS = 5000  # whose recipes are checked in a minute
OVER_KEY = "over-key"  # the plot that takes a key


class About(Section):
    """[study]: what is shown, what is asked, and which paper claims what; the results are judged by [end] compare."""

    title: str = Field(description="What the study shows, as the title of its table or figure.")
    question: str = Field(default="", description="The question that the study answers; the default has none.")
    paper: str = Field(default="", description="The paper, and the table, figure or section, that the study repeats.")
    claim: str = Field(default="", description="What the paper claims, or what is expected where no paper is named.")


class Runs(Section):
    """[runs]: the recipe, the keys set for every run, and the seeds, which `seeded` keys take as well."""

    recipe: str = Field(description="The recipe that is trained: a recipe's name or a .toml file.")
    set: dict[str, Any] = Field(
        default_factory=dict, description="Keys of the recipe, `section.key`, that every run sets."
    )
    seeds: tuple[Annotated[int, Field(ge=0, le=LARGEST_SEED)], ...] = Field(
        default=(0,), min_length=1, description="Values of `train.seed`: each cell of the grid is trained with each."
    )
    seeded: tuple[str, ...] = Field(
        default=(), description="Keys besides `train.seed` that take the seed as their value."
    )


class Variant(Section):
    """[[variants]]: keys that are set together, with a recipe, layers and comparisons in place of the study's."""

    name: str = Field(default="", description="Name of the variant in the table or figure.")
    recipe: str | None = Field(default=None, description="Recipe of the variant; the default is that of [runs].")
    set: dict[str, Any] = Field(
        default_factory=dict, description="Keys of the recipe that the runs of the variant set."
    )
    layers: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="Layers of the variant; the default is those of [end]."
    )
    compare: tuple[tuple[str, str], ...] | None = Field(
        default=None, description="Pairs of layers that are compared in the variant; the default is those of [end]."
    )
    search: dict[str, Any] = Field(
        default_factory=dict, description="Keys that are searched for the variant, besides those of [search.keys]."
    )


class End(Section):
    """[end]: a table of a metric, or a plot."""

    table: str | None = Field(default=None, description='Metric of the table, such as "R@1"; give this or `plot`.')
    plot: str | None = Field(default=None, description='Kind of the plot, such as "layers"; give this or `table`.')
    layers: tuple[str, ...] | None = Field(
        default=None,
        min_length=1,
        description="Layers that are shown; a plot shows by default those that the recipe probes.",
    )
    compare: tuple[tuple[str, str], ...] = Field(
        default=(),
        description="Pairs of layers of the table; each asks whether the first layer is better than the second.",
    )
    metric: str | None = Field(default=None, description="Metric of the plot; the default is that of the plot.")
    also: tuple[str, ...] = Field(default=(), description="Further metrics of the plot, each in a figure of its own.")
    epochs: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        default=None, min_length=1, description="Epochs of the table; the default is the last one."
    )
    key: str | None = Field(
        default=None, description='Key of [grid] or of all variants that is the x axis of plot = "over-key".'
    )


_SECTIONS: Mapping[str, type[Section]] = {"study": About, "runs": Runs, "end": End}
_OPTIONAL: Mapping[str, type[Section]] = {_SEARCH: Search}


@dataclass(frozen=True)
class Study:
    """A grid of recipes and what it ends in.

    Args:
        name: of the file, with `-small` for the small version.
        grid: `section.key` -> its values; empty for a single cell.
        is_small: whether this is the small version.
        variants: each is trained at every cell of the grid; one without a name where the file has none.
        search: how each variant is tuned before it is trained; None: it is trained as it stands.
        domains: name of a variant -> the keys that are searched, with what is drawn for each.
        has_small: whether its file has a small version.
    """

    name: str
    about: About
    runs: Runs
    grid: Mapping[str, tuple[Any, ...]]
    end: End
    is_small: bool = False
    variants: tuple[Variant, ...] = (Variant(),)
    search: Search | None = None
    domains: Mapping[str, Mapping[str, Domain]] = field(default_factory=dict)
    has_small: bool = False

    @property
    def caveat(self) -> str:
        """What its table and its figure say of the small version; empty for the other."""
        return "small version: mechanics only" if self.is_small else ""

    @property
    def cells(self) -> list[dict[str, Any]]:
        """The grid's cells, the last key varying fastest."""
        return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]

    @property
    def has_variants(self) -> bool:
        """Whether the file has variants."""
        return any(variant.name for variant in self.variants)

    @property
    def layers(self) -> tuple[str, ...] | None:
        """The layers of the end, then further ones of variants; None: those that the recipes probe."""
        layers_by_variant = [self.layers_of(variant) or () for variant in self.variants]
        return tuple(dict.fromkeys(layer for layers in layers_by_variant for layer in layers)) or None

    def layers_of(self, variant: Variant) -> tuple[str, ...] | None:
        """A variant's own layers, or the end's; None: those that its recipe probes."""
        return variant.layers or self.end.layers

    def pairs_of(self, variant: str) -> tuple[tuple[str, str], ...]:
        """The layers that are compared in the variant of a name."""
        (pairs,) = (x.compare for x in self.variants if x.name == variant)
        return self.end.compare if pairs is None else pairs

    def epochs(self, recipe: Recipe) -> tuple[int, ...]:
        """The epochs of the table; a plot and its default: the last one."""
        return self.end.epochs or (recipe.train.epochs,)

    def settings(self, cell: Mapping[str, Any], seed: int, variant: Variant | None = None) -> tuple[str, ...]:
        """The keys of a training, each as `--set` takes it."""
        seeded = dict.fromkeys([_SEED, *self.runs.seeded], seed)
        variant_values = {} if variant is None else variant.set
        # All is measured while it trains: no end but learnt numbers needs an earlier checkpoint.
        keep = "all" if self.end.plot == "learnt" else "last"
        values = {"train.keep": keep, **self.runs.set, **variant_values, **cell, **seeded}
        return tuple(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items())


def load_study(reference: str, *, small: bool = False) -> Study:
    """Read and validate a study, or its small version; all problems at once."""
    path = find_study(reference)
    sections = read_toml(path)
    overriding = sections.pop(_SMALL, None)
    problems: list[Problem] = []
    if small and overriding is None:
        raise RecipeError("has no small version", file=path, fix="Leave --small out")
    if small and _are_sections(overriding, problems):
        # A grid is replaced: with its other keys it would not be small.
        for name, values in overriding.items():
            base = sections.get(name)
            merges = name in (*_SECTIONS, *_OPTIONAL)
            sections[name] = {**base, **values} if merges and isinstance(base, dict) else values
    for name in sections:
        if name not in (*_SECTIONS, *_OPTIONAL, _GRID, _VARIANTS):
            text = near_miss(name, (*_SECTIONS, *_OPTIONAL, _GRID, _VARIANTS, _SMALL))
            problems.append(Problem(name, f"unknown section. {text}"))
    parts = {name: _section(name, model, sections.get(name, {}), problems) for name, model in _SECTIONS.items()}
    grid = _grid(sections.get(_GRID, {}), problems)
    variants = _variants(sections.get(_VARIANTS, []), problems)
    about, runs, end = (parts[name] for name in _SECTIONS)
    search = _section(_SEARCH, Search, sections[_SEARCH], problems) if _SEARCH in sections else None
    domains = _domains(search, variants, problems) if isinstance(search, Search) else {}
    if isinstance(runs, Runs):
        problems += _run_problems(runs, variants, grid)
    if isinstance(search, Search) and isinstance(runs, Runs) and isinstance(end, End):
        problems += _search_problems(search, runs, end, variants, grid)
    elif _SEARCH not in sections and any(variant.search for variant in variants):
        problems.append(Problem(_VARIANTS, "search is for a study with [search]. Add it, with budgets = [16]"))
    if isinstance(end, End):
        problems += [*_end_problems(end, variants), *_key_problems(end, [*grid, *_shared_keys(variants)])]
    if isinstance(runs, Runs):
        # Counted, not listed: a few keys have more cells than the memory.
        of_a_cell = len(runs.seeds) if not isinstance(search, Search) else search.budgets[-1]
        count = math.prod([len(variants), of_a_cell, *map(len, grid.values())])
        if count > _MOST_TRAININGS:
            text = (
                f"{count:,} trainings, of at most {_MOST_TRAININGS:,}. Divide the study, or leave values or seeds out"
            )
            problems.append(Problem(_GRID, text))
    require_none(problems, path, Overrides())
    name = f"{path.stem}-{_SMALL}" if small else path.stem
    return Study(name, about, runs, grid, end, small, variants, search, domains, overriding is not None)  # type: ignore[arg-type] # of no problem, so all are there


def studies() -> dict[str, tuple[About, bool]]:
    """Name -> title and paper of each study, and whether it has a small version."""
    return {name: (load_study(str(path)).about, _SMALL in read_toml(path)) for name, path in list_studies().items()}


def _are_sections(values: Any, problems: list[Problem]) -> bool:
    if isinstance(values, Mapping) and all(
        isinstance(keys, list if name == _VARIANTS else Mapping) for name, keys in values.items()
    ):
        return True
    problems.append(Problem(_SMALL, "not sections. Write [small.runs], [small.grid] ... and their keys below them"))
    return False


def _section(name: str, model: type[Section], values: Any, problems: list[Problem]) -> Section | None:
    if not isinstance(values, Mapping):
        problems.append(Problem(name, f"not a section. Write [{name}] and its keys below it"))
        return None
    try:
        return model.model_validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        problems += [problem_of(name, item, model) for item in error.errors()]
        return None


def _grid(values: Any, problems: list[Problem]) -> dict[str, tuple[Any, ...]]:
    if not isinstance(values, Mapping):
        problems.append(Problem(_GRID, "not a section. Write [grid] and its keys below it"))
        return {}
    for key, choices in values.items():
        if not (isinstance(choices, list) and choices):
            problems.append(Problem(_GRID, f'{key}: a list of values is expected. Write "section.key" = [...]'))
    return {key: tuple(choices) for key, choices in values.items() if isinstance(choices, list)}


def _variants(values: Any, problems: list[Problem]) -> tuple[Variant, ...]:
    """The variants of a file; one without a name where it has none."""
    if not isinstance(values, list):
        problems.append(Problem(_VARIANTS, "not a list. Write [[variants]] before the keys of each"))
        return (Variant(),)
    sections = [_section(_VARIANTS, Variant, keys, problems) for keys in values]
    variants = tuple(variant for variant in sections if isinstance(variant, Variant))
    names = [variant.name for variant in variants]
    if not all(names) or len({*names}) < len(names):
        problems.append(Problem(_VARIANTS, 'each needs a name of its own. Write name = "A"'))
    return variants or (Variant(),)


def _run_problems(runs: Runs, variants: tuple[Variant, ...], grid: Mapping[str, tuple[Any, ...]]) -> list[Problem]:
    problems = []
    variant_keys = dict.fromkeys(key for variant in variants for key in variant.set)
    if len(set(runs.seeds)) < len(runs.seeds):
        problems.append(Problem("runs", f"seeds = {[*runs.seeds]}: one is there twice. Keep it once"))
    for key in (key for key in (*runs.set, *variant_keys, *grid, *runs.seeded) if key == _SEED):
        problems.append(Problem("runs", f"{key} is set by seeds. Leave it out elsewhere"))
    for key in grid.keys() & {*runs.set, *runs.seeded}:
        problems.append(Problem(_GRID, f"{key} is set in [runs], too. Keep one"))
    for key in variant_keys.keys() & {*grid, *runs.seeded}:
        problems.append(Problem(_VARIANTS, f"{key} is set by the grid or the seeds, too. Keep one"))
    return problems


def _domains(search: Search, variants: tuple[Variant, ...], problems: list[Problem]) -> dict[str, Mapping[str, Domain]]:
    """The searched keys of each variant: those of all, in whose place its own stand."""
    common = domains_of(_SEARCH, search.keys, problems)
    further = {variant.name: domains_of(_VARIANTS, variant.search, problems) for variant in variants}
    return {name: common | keys for name, keys in further.items()}


def _search_problems(
    search: Search, runs: Runs, end: End, variants: tuple[Variant, ...], grid: Mapping[str, tuple[Any, ...]]
) -> list[Problem]:
    shared_keys = [*runs.set, *runs.seeded, *grid]
    problems = search_problems(
        search, runs.seeded, [*shared_keys, *(key for variant in variants for key in variant.set)]
    )
    for variant in variants:
        keys = {**search.keys, **variant.search}
        where = f" of {variant.name}" if variant.name else ""
        for key in keys:
            if key in (*shared_keys, *variant.set):
                problems.append(Problem(_SEARCH, f"{key}{where} is set by the file, too. Keep one"))
        if not keys:
            problems.append(Problem(_SEARCH, f"no key{where} is searched. Add [search.keys] or search = {{...}}"))
        if len(variant.layers or end.layers or ("",)) > 1:
            problems.append(Problem("end", f"layers{where}: a search goes by one layer. Keep one"))
    if end.table is None or not is_fraction(end.table):
        problems.append(Problem("end", 'a search maximises a share, such as table = "R@1". Give one'))
    if end.epochs is not None:
        problems.append(Problem("end", "epochs: a search chooses them. Leave it out"))
    if end.compare or any(variant.compare for variant in variants):
        problems.append(Problem("end", "compare is for a table of layers. Leave it out"))
    return problems


def _end_problems(end: End, variants: tuple[Variant, ...]) -> list[Problem]:
    if (end.table is None) == (end.plot is None):
        return [Problem("end", 'give either table = "R@1", a metric, or plot = "layers", a kind of plot')]
    problems = []
    if end.plot is not None and end.plot not in PLOTS:
        problems.append(Problem("end", f"unknown plot {end.plot!r}. {near_miss(end.plot, PLOTS)}"))
    for metric in filter(None, (end.table, end.metric, *end.also)):
        if metric == LOSS and end.plot == OVER_KEY:
            continue
        if recall_of(metric) is None and metric not in METRICS:
            problems.append(Problem("end", f"unknown metric {metric!r}. {near_miss(metric, ['R@1', *METRICS])}"))
    if end.table is not None and not all(variant.layers or end.layers for variant in variants):
        problems.append(Problem("end", 'layers is missing. Write layers = ["fc6"], a column for each'))
    for variant in variants:
        compared = end.compare if variant.compare is None else variant.compare
        for layer in dict.fromkeys(layer for pair in compared for layer in pair):
            if layer not in (variant.layers or end.layers or ()):
                problems.append(Problem("end", f"compare: {layer} is no column of the table. Add it to layers"))
    if end.plot is not None and (end.compare or any(variant.compare for variant in variants)):
        problems.append(Problem("end", "compare is for a table. Leave it out"))
    if end.also and end.metric is None:
        problems.append(Problem("end", "also is for figures beside that of metric. Write metric, or leave it out"))
    if end.metric in end.also or len({*end.also}) < len(end.also):
        problems.append(Problem("end", f"also = {json.dumps(end.also)}: a metric has one figure. Name others"))
    if end.table is not None and end.metric is not None:
        problems.append(Problem("end", "metric is for a plot; table names its own. Leave it out"))
    if end.plot is not None and end.epochs is not None:
        problems.append(Problem("end", "epochs is for a table. Leave it out"))
    return problems


def _shared_keys(variants: tuple[Variant, ...]) -> list[str]:
    """The keys that each variant sets."""
    return [key for key in variants[0].set if all(key in variant.set for variant in variants)]


def _key_problems(end: End, keys: Sequence[str]) -> list[Problem]:
    if end.plot != OVER_KEY:
        return [] if end.key is None else [Problem("end", f'key is for plot = "{OVER_KEY}". Leave it out')]
    if end.key is None:
        return [Problem("end", f'key is missing. Write key = "net.fc", a key of [{_GRID}]')]
    if end.key in keys:
        return []
    return [Problem("end", f"{end.key} is no key of [{_GRID}] or of all variants. {near_miss(end.key, keys)}")]
