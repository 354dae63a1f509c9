from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from layerprobe.measure.distributions import Labelled
from layerprobe.plots.plot import PlotOptions
from layerprobe.system.errors import NumericError, RecipeError
from layerprobe.values.layers import LayerKey
from layerprobe.values.views import PlaneFeatures
from layerprobe.workflow.plot.feature_views import LayerSelection
from layerprobe.workflow.plot.plane_features import plane_features_of
from layerprobe.workflow.plot.plot import StoredRuns, draw_plot
from layerprobe.workflow.run.experiments import scores_of
from layerprobe.workflow.run.opened_run import read_layer
from layerprobe.workflow.run.runs import Run, remove_checkpoints
from tests.workflow.plot.conftest import Toy

SM = ("loss.variant=SM",)


def features(run: Run, options: PlotOptions | None = None) -> dict[str, PlaneFeatures]:
    found = StoredRuns([run], scores_of([run])).plane_features(options or PlotOptions())
    return {each.split: each for each in found}


def test_the_points_are_the_embedding_on_both_splits_with_the_names_of_classes(toy: Toy) -> None:
    run = toy("sm", *SM)
    found = features(run)
    assert found.keys() == {"train", "test"}
    for split, each in found.items():
        values = read_layer(run, 2, split, LayerKey("fc6", "none"))
        np.testing.assert_array_equal(np.array(each.points, np.float32), values)
    assert sorted(set(found["train"].classes)) == ["class-0000", "class-0001", "class-0002"]
    assert sorted(set(found["test"].classes)) == ["class-0003", "class-0004", "class-0005"]


def test_the_rays_are_the_weights_in_the_checkpoint(toy: Toy) -> None:
    run = toy("sm", *SM)
    found = features(run, PlotOptions(epoch=1))["test"]
    weight = load_file(run.checkpoint_file(1))["loss.weight"].tolist()
    assert [name for name, _ in found.weights] == ["class-0000", "class-0001", "class-0002"]
    assert [list(ray) for _, ray in found.weights] == weight
    assert found.origin == (0, 0)


def test_with_batch_norm_the_rays_begin_at_the_running_mean(toy: Toy) -> None:
    run = toy("bn")
    mean = load_file(run.checkpoint_file(2))["loss.norm.running_mean"].tolist()
    assert list(features(run)["train"].origin) == mean


def test_a_loss_without_a_classifier_has_no_rays(toy: Toy) -> None:
    run = toy("margin", "loss.name=margin", "train.images_per_class=2")
    assert {each.weights for each in features(run).values()} == {()}


def test_the_rays_of_a_removed_checkpoint_are_missed_in_a_note(toy: Toy, tmp_path: Path) -> None:
    shutil.copytree(toy("sm", *SM).folder, tmp_path / "sm")
    run = Run(tmp_path / "sm")
    remove_checkpoints(run, [1])
    found = features(run, PlotOptions(epoch=1))["test"]
    assert not found.weights
    assert found.notes[-1] == "the checkpoint of epoch 1 was removed, and the classifier's weights with it"


def test_features_that_are_not_finite_are_refused(toy: Toy, tmp_path: Path) -> None:
    run = toy("sm", *SM)
    scores = [score for score in run.scores() if score.ranked.layer.layer == "fc6"]
    which = LayerSelection(PlotOptions(), {}, {})
    bad = Labelled(np.array([[np.nan, 0.0]], np.float32), np.array([0]))
    with pytest.raises(NumericError, match="sm: NaN or Inf in the features of fc6 on train at epoch 2"):
        list(plane_features_of(scores, lambda *_: bad, which))


def test_layers_of_other_dimensions_are_refused(toy: Toy) -> None:
    with pytest.raises(RecipeError, match=r"sm: c5@max has 120 dimensions, and features-2d draws 2. Name a layer of 2"):
        draw_plot("features-2d", [toy("sm", *SM)], PlotOptions(layers=("c5@max",)))
