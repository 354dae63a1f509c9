from __future__ import annotations

import pytest

from layerprobe.values.choice import SelectedLayer
from layerprobe.values.intervals import Interval
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.models import ChosenModel, ModelTable, best_text, letters, model_name
from layerprobe.values.scores import Score

LAYER = RankedLayer(LayerKey("output", "none"), "none", "cosine")
ALL, BEST = ((0,), (0,), (0,)), "timm:a, R@1 60.0 [50.0, 70.0] %"


def table_of(*groups: tuple[int, ...]) -> ModelTable:
    """Models a, b ... of these groups, with R@1 of 60 %, 59 % ..."""
    models = []
    for place, own in enumerate(groups):
        value = 0.6 - place / 100
        score = Score("r", "e", 0, 0, "test", LAYER, "R@1", value, Interval(value - 0.1, value + 0.1), 9)
        layer = SelectedLayer("output", "none", "none", 0, 4, 16)
        models.append(ChosenModel(f"timm:{'abc'[place]}", "r", layer, score, score, 1.0, 9, "keep", "train", 20, own))
    return ModelTable(tuple(models), (), "R@1", "classes", 20, within_folds=False)


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        (((0,),), f"Only {BEST}: no other model is compared with it."),
        (((), ()), f"Highest: {BEST}; fewer than 10 classes do not tell models apart."),
        (ALL, f"No model differs significantly from another. Highest: {BEST}."),
        (((0,), (1,)), f"Best: {BEST}; the other is significantly worse."),
        (((0,), (1,), (1,)), f"Best: {BEST}; each of the 2 others is significantly worse."),
        (((0,), (0, 1), (1,)), f"Best: {BEST}; 1 other does not differ significantly from it: timm:b."),
        (((0, 1), (0,), (1,)), f"Best: {BEST}; 2 others do not differ significantly from it: timm:b, timm:c."),
    ],
)
def test_the_sentence_says_which_models_differ_from_the_best(groups: tuple[tuple[int, ...], ...], text: str) -> None:
    assert best_text(table_of(*groups)) == text


def test_a_letter_names_a_group() -> None:
    assert (letters((0,)), letters((0, 2)), letters((25, 26, 52))) == ("a", "ac", "z aa ba")


def test_a_model_is_named_with_weights_that_are_not_its_own() -> None:
    names = [model_name("timm:a", weights) for weights in ("model", "none", "runs/a/best.pth", "run:mine")]
    assert names == ["timm:a", "timm:a (random)", "timm:a (best.pth)", "timm:a (run:mine)"]
