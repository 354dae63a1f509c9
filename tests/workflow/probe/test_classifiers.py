from __future__ import annotations

from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.workflow.probe.classifiers import why_no_classifier


def test_a_model_that_is_only_probed_is_not_said_to_have_a_loss() -> None:
    model = ("net.name=timm:resnet18", "net.weights=none", "train.epochs=0")
    assert why_no_classifier(load_recipe("quick", Overrides(None, model))) == (
        "a model that is only probed has no classifier"
    )
    assert why_no_classifier(load_recipe("quick")) == "smooth_triplet has no classifier"
