"""What a search tries: ranges and choices of keys, and the values that are drawn from them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field

from layerprobe.system.errors import near_miss
from layerprobe.values.sections import Data, Problem, Section

_DIGITS = 3  # significant ones of a number that is drawn: what the table shows is what is trained
_ENDS = ("low", "high", "log")
# Of [data], the keys that change what the network sees of an image, but neither images nor classes.
_DATA_KEYS = ("image_size", "mean", "std", "augment", "transform", "resize")
_HELD_OUT = ("data.validation_classes", "data.validation_folds", "data.validation_fold")


class Search(Section):
    """[search]: the trials of each method, and the classes that choose among them.

    `budgets` are numbers of trials, ascending: the last is how many each method has, the others are prefixes of them.
    """

    budgets: tuple[int, ...] = Field(
        min_length=1,
        description="Numbers of trials, ascending: each method has the last; the others are prefixes of it.",
    )
    seed: int = Field(default=0, ge=0, description="Seed of the values that are drawn.")
    sampler: Literal["random", "optuna"] = Field(
        default="random",
        description='How values are drawn: "random", or "optuna" for Optuna\'s TPE, which uses earlier trials.',
    )
    validation_classes: float = Field(
        default=0.2, gt=0, lt=1, description="Share of the training classes that is held out to select a trial."
    )
    trials_on_test: bool = Field(
        default=False, description="Measure the trials on the test classes, too, which gives the regret."
    )
    keys: dict[str, Any] = Field(
        default_factory=dict,
        description="Keys that are searched: a list of values, or {low, high, log} for a range, uniform in log or not.",
    )


@dataclass(frozen=True)
class Range:
    """Numbers between two ends, whole ones where both ends are whole, uniform or uniform in their logarithm."""

    low: float
    high: float
    log: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether only whole numbers are drawn, both ends among them."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def at(self, quantile: float) -> float:
        """The number at a quantile in [0, 1)."""
        width = self.high + self.is_whole - self.low
        value = self.low * (1 + width / self.low) ** quantile if self.log else self.low + quantile * width
        return self.rounded(math.floor(value) if self.is_whole else value)

    def rounded(self, value: float) -> float:
        """A number with three significant digits, or a whole one as it is."""
        return value if self.is_whole else min(max(float(f"{value:.{_DIGITS}g}"), self.low), self.high)

    @property
    def ends(self) -> tuple[Any, Any]:
        """Two values that a recipe must take for all to be taken."""
        return self.low, self.high


@dataclass(frozen=True)
class Choices:
    """Values of which each is equally likely."""

    values: tuple[Any, ...]

    def at(self, quantile: float) -> Any:
        """The value at a quantile in [0, 1)."""
        return self.values[int(quantile * len(self.values))]

    @property
    def ends(self) -> tuple[Any, ...]:
        """All of them."""
        return self.values


Domain = Range | Choices


def draw(domains: Mapping[str, Domain], *, seed: int, method: str, trial: int) -> dict[str, Any]:
    """The values of a trial, which depend on the seed, the method's name, the trial's number and the key alone."""
    return {
        key: domain.at(np.random.default_rng([seed, trial, *f"{method}\n{key}".encode()]).random())
        for key, domain in domains.items()
    }


def domains_of(section: str, keys: Mapping[str, Any], problems: list[Problem]) -> dict[str, Domain]:
    """The domains of the keys of a file, without those that have a problem."""
    domains: dict[str, Domain] = {}
    for key, value in keys.items():
        if refusal := _refusal_of_key(key):
            problems.append(Problem(section, refusal))
            continue
        try:
            domains[key] = _domain(value)
        except ValueError as error:
            problems.append(Problem(section, f"{key} = {json.dumps(value, default=str)}: {error}"))
    return domains


def _refusal_of_key(key: str) -> str:
    part, _, name = key.partition(".")
    if key in ("train.seed", "train.keep"):
        return f"{key} is no hyperparameter. Leave it out"
    if part == "data" and name not in _DATA_KEYS:
        where = f"{near_miss(name, _DATA_KEYS)}" if name not in Data.model_fields else "Leave it out"
        where = "Put it into [grid]: each of its values has a search of its own" if "class_seed" in name else where
        return f"{key} decides which images there are. {where}"
    if part not in ("data", "net", "loss", "train"):
        return f"{key} decides no training. {near_miss(part, ('net', 'loss', 'train'))}"
    return ""


def _domain(value: Any) -> Domain:
    """What a value of the file means.

    Raises:
        ValueError: neither a range nor choices.
    """
    if isinstance(value, list):
        if len(value) < 2 or any(value.count(item) > 1 for item in value):
            raise ValueError("a list has two or more different values. For one value use [runs.set] or [variants.set]")
        return Choices(tuple(value))
    if not isinstance(value, Mapping):
        raise ValueError("a range or a list is expected. Write {low = 1e-5, high = 1e-2, log = true} or [1, 2]")
    if unknown := [name for name in value if name not in _ENDS]:
        raise ValueError(f"unknown key {unknown[0]!r}. {near_miss(unknown[0], _ENDS)}")
    low, high, log = _number(value, "low"), _number(value, "high"), value.get("log", False)
    if not isinstance(log, bool):
        raise ValueError("log is true or false")
    if low >= high:
        raise ValueError("low is not below high. Swap them, or leave the key out")
    if log and low <= 0:
        raise ValueError("low must be above 0 where log is true. Raise it, or leave log out")
    if isinstance(low, int) != isinstance(high, int):
        low, high = float(low), float(high)
    return Range(low, high, log)


def _number(value: Mapping[str, Any], name: str) -> float:
    end = value.get(name)
    if isinstance(end, bool) or not isinstance(end, int | float) or not math.isfinite(end):
        raise ValueError(f"{name} is no finite number. Write {{low = 1e-5, high = 1e-2, log = true}}")
    return end


def search_problems(search: Search, seeded: Sequence[str], set_keys: Sequence[str]) -> list[Problem]:
    """What a [search] contradicts by itself, or in the rest of its file.

    Args:
        seeded: the keys that take the training's seed.
        set_keys: the keys that the file sets anywhere.
    """
    problems = []
    if min(search.budgets) < 1:
        problems.append(Problem("search", f"budgets = {[*search.budgets]}: a budget has at least 1 trial. Raise it"))
    if any(second <= first for first, second in zip(search.budgets, search.budgets[1:], strict=False)):
        problems.append(Problem("search", f"budgets = {[*search.budgets]}: not ascending. Write [1, 4, 16]"))
    for key in seeded:
        if key.startswith("data."):
            text = (
                f"seeded: {key} would give each seed other classes, and the validation classes of one may be test"
                " classes of another. Put it into [grid]: each of its values has a search of its own"
            )
            problems.append(Problem("runs", text))
    for key in dict.fromkeys(set_keys):
        if key in _HELD_OUT:
            problems.append(Problem("search", f"{key} is set by validation_classes of [search]. Leave it out"))
    return problems


class RandomSampler:
    """Values drawn at random: trial t does not depend on the trials before it."""

    sequential = False

    def __init__(self, domains: Mapping[str, Domain], seed: int, method: str) -> None:
        self._domains, self._seed, self._method, self._trial = domains, seed, method, 0

    def ask(self) -> dict[str, Any]:
        """The values of the next trial."""
        self._trial += 1
        return draw(self._domains, seed=self._seed, method=self._method, trial=self._trial - 1)

    def tell(self, value: float) -> None:
        """Nothing follows from the value of a trial."""


class OptunaSampler:
    """Values that Optuna's default sampler (TPE) suggests, each after the values of the trials before it.

    Nothing is stored: the same seed and the same values of earlier trials make it suggest the same again.
    """

    sequential = True

    def __init__(self, domains: Mapping[str, Domain], seed: int, method: str) -> None:
        optuna = require_optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        number = int(np.random.default_rng([seed, *method.encode()]).integers(2**31))
        self._study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=number))
        self._domains = domains
        self._trial: Any = None  # an Optuna trial
        self._distributions = {
            key: optuna.distributions.CategoricalDistribution(range(len(domain.values)))
            if isinstance(domain, Choices)
            else optuna.distributions.IntDistribution(domain.low, domain.high, log=domain.log)
            if domain.is_whole
            else optuna.distributions.FloatDistribution(domain.low, domain.high, log=domain.log)
            for key, domain in domains.items()
        }

    def ask(self) -> dict[str, Any]:
        """The values of the next trial."""
        self._trial = self._study.ask(self._distributions)
        return {
            key: domain.values[self._trial.params[key]]
            if isinstance(domain, Choices)
            else domain.rounded(self._trial.params[key])
            for key, domain in self._domains.items()
        }

    def tell(self, value: float) -> None:
        """The validation value of the last trial, to be maximised."""
        self._study.tell(self._trial, value)


Sampler = RandomSampler | OptunaSampler
SAMPLERS: Mapping[str, type[Sampler]] = {"random": RandomSampler, "optuna": OptunaSampler}


def require_optuna() -> Any:
    """Optuna, or how to install it."""
    from layerprobe.sources.hub import import_package

    return import_package("optuna", "optuna")
