"""The result of `layerprobe choose` of several models on the same images, as values and as text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase

from layerprobe.values.choice import Advice, SelectedLayer, score_text
from layerprobe.values.intervals import FEWEST_UNITS
from layerprobe.values.scores import Score


@dataclass(frozen=True)
class ChosenModel:
    """A model, and what its choice prefers.

    Args:
        name: as of `model_name`.
        layer: the preferred candidate.
        test: its score on test; if cross-fitted, each fold by the choice on the other folds.
        embedding: the score on test of the embedding without post-processing; None if that is not known.
        share_of_multiply_adds: of the network's, up to the layer; None if unknown.
        multiply_adds: of an image, up to the layer; None likewise.
        advice: whether to switch from the embedding.
        chosen_on: the split whose classes the layer is selected on; test if cross-fitted.
        classes: how many these are, or clusters of them; fewer than 10 tell no candidates apart.
        groups: places of the groups that it belongs to; empty with fewer than 10 units.
    """

    name: str
    run: str
    layer: SelectedLayer
    test: Score
    embedding: Score | None
    share_of_multiply_adds: float | None
    multiply_adds: int | None
    advice: Advice
    chosen_on: str
    classes: int
    groups: tuple[int, ...] = ()

    def is_alike(self, other: ChosenModel) -> bool:
        """Whether it does not differ significantly from another model."""
        return bool(set(self.groups) & set(other.groups))


@dataclass(frozen=True)
class LeftOut:
    """A model that is not compared, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class ModelTable:
    """Several models on the same test queries.

    Args:
        models: at least one, the best first.
        left_out: those that failed, or were measured on other queries.
        units: what intervals and p resample: classes, or clusters of classes.
        count: of the units.
        assumed: names of the models whose weights are assumed, not known, not to have been trained on the test classes.
        within_folds: whether all scores are searched within each fold of the test classes.
    """

    models: tuple[ChosenModel, ...]
    left_out: tuple[LeftOut, ...]
    metric: str
    units: str
    count: int
    within_folds: bool
    assumed: tuple[str, ...] = ()

    @property
    def comparisons(self) -> int:
        """The number of pairs that p is corrected for."""
        return len(self.models) * (len(self.models) - 1) // 2

    @property
    def alike(self) -> tuple[ChosenModel, ...]:
        """The models that do not differ significantly from the best one."""
        best, *others = self.models
        return tuple(model for model in others if model.is_alike(best))

    @property
    def is_one_group(self) -> bool:
        """Whether no two of several models differ significantly."""
        return len(self.models) > 1 and {model.groups for model in self.models} == {(0,)}


def model_name(model: str, weights: str) -> str:
    """`timm:resnet18`, `timm:resnet18 (random)`, `timm:resnet18 (best.pth)`."""
    if weights == "model":
        return model
    text = weights if weights.startswith("run:") else Path(weights).name
    return f"{model} ({'random' if weights == 'none' else text})"


def letters(groups: tuple[int, ...]) -> str:
    """`ab`: a letter for each group; `y z aa` where there are more groups than letters."""
    size = len(ascii_lowercase)
    names = [ascii_lowercase[group // size - 1] * (group >= size) + ascii_lowercase[group % size] for group in groups]
    return (" " if any(len(name) > 1 for name in names) else "").join(names)


def best_text(table: ModelTable) -> str:
    """Which model is best, and which do not differ from it.

    `Best: timm:a, R@1 63.1 [60.0, 66.1] %; 2 others do not differ significantly from it: timm:b, timm:c.`
    """
    best, *others = table.models
    value = f"{best.name}, {table.metric} {score_text(best.test)} %"
    if not others:
        return f"Only {value}: no other model is compared with it."
    if not best.groups:
        return f"Highest: {value}; fewer than {FEWEST_UNITS} {table.units} do not tell models apart."
    if table.is_one_group:
        return f"No model differs significantly from another. Highest: {value}."
    alike = [model.name for model in table.alike]
    if not alike:
        count = "the other is" if len(others) == 1 else f"each of the {len(others)} others is"
        return f"Best: {value}; {count} significantly worse."
    verb = "other does" if len(alike) == 1 else "others do"
    return f"Best: {value}; {len(alike)} {verb} not differ significantly from it: {', '.join(alike)}."
