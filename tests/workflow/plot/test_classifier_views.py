from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from layerprobe.measure.distributions import LabelledFeatures
from layerprobe.plots.plot import PlotOptions
from layerprobe.store import read_feature_head
from layerprobe.system.errors import NumericError, RecipeError
from layerprobe.values.layers import LayerKey
from layerprobe.values.views import GradientSizes, PlaneFeatures
from layerprobe.workflow.plot.classifier_views import plane_features_of
from layerprobe.workflow.plot.feature_views import LayerSelection
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
    bad = LabelledFeatures(np.array([[np.nan, 0.0]], np.float32), np.array([0]))
    with pytest.raises(NumericError, match="sm: NaN or Inf in the features of fc6 on train at epoch 2"):
        list(plane_features_of(scores, lambda *_: bad, which))


def test_features_of_three_dimensions_are_their_azimuth_and_elevation(toy: Toy) -> None:
    run = toy("solid", *SM, "net.fc=[3]")
    for split, each in features(run).items():
        x, y, z = read_layer(run, 2, split, LayerKey("fc6", "none")).astype(float).T
        length = np.sqrt(x**2 + y**2 + z**2)
        azimuth, elevation = np.radians(np.array(each.points)).T
        np.testing.assert_allclose(length * np.cos(elevation) * np.cos(azimuth), x, atol=1e-9)
        np.testing.assert_allclose(length * np.cos(elevation) * np.sin(azimuth), y, atol=1e-9)
        np.testing.assert_allclose(length * np.sin(elevation), z, atol=1e-9)
        assert (each.directions, each.weights) == (True, ())


def test_a_feature_of_three_dimensions_without_a_direction_is_left_out(toy: Toy) -> None:
    run = toy("sm", *SM)
    scores = [score for score in run.scores() if score.ranked.layer.layer == "fc6"]
    rows = LabelledFeatures(np.array([[0, 0, 0], [0, -2, 0], [0, 0, 5]], np.float32), np.array([0, 1, 2]))
    found, *_ = plane_features_of(scores, lambda *_: rows, LayerSelection(PlotOptions(), {}, {}))
    assert (found.points, found.classes) == (((-90.0, 0.0), (0.0, 90.0)), ("1", "2"))
    assert found.notes[-1] == "1 images are left out, whose feature is 0"


def test_layers_of_other_dimensions_are_refused(toy: Toy) -> None:
    with pytest.raises(RecipeError, match=r"sm: c5@max has 120 dimensions, and features-2d draws 2 or 3. Name"):
        draw_plot("features-2d", [toy("sm", *SM)], PlotOptions(layers=("c5@max",)))


LEARNT = ("loss.variant=LN", "loss.scale=8", "loss.learn_scale=true")


def gradients(run: Run, epoch: int | None = None) -> list[GradientSizes]:
    return list(StoredRuns([run], scores_of([run])).gradients(PlotOptions(epoch=epoch)))


def test_at_the_trained_alpha_the_gradient_is_that_of_the_run_s_loss(toy: Toy) -> None:
    run = toy("learnt", *LEARNT)
    weights = {name: tensor.double() for name, tensor in load_file(run.checkpoint_file(2)).items()}
    path = run.feature_file(2, "train")
    x = torch.tensor(read_layer(run, 2, "train", LayerKey("fc6", "none"))).double()
    unit = F.normalize(x).requires_grad_()
    logits = weights["loss.scale"] * unit @ F.normalize(weights["loss.weight"]).T + weights["loss.bias"]
    labels = torch.tensor(read_feature_head(path).rows[0]).long()
    F.cross_entropy(logits, labels, reduction="sum").backward()
    assert unit.grad is not None
    own, others = logits.gather(1, labels[:, None])[:, 0], logits.scatter(1, labels[:, None], -torch.inf).amax(1)
    expected = unit.grad[own <= others].norm(dim=1).numpy()
    found = {(each.samples, each.axis): each for each in gradients(run)}
    wrong = found["incorrect", "alpha"]
    assert (wrong.n, wrong.own) == (len(expected), float(weights["loss.scale"]))
    middle = wrong.places.index(min(wrong.places, key=lambda place: abs(place - wrong.own)))
    assert wrong.places[middle] == pytest.approx(wrong.own)
    assert wrong.values[middle] == pytest.approx(np.median(expected), rel=1e-6)
    assert (wrong.low[middle], wrong.high[middle]) == pytest.approx(
        tuple(np.quantile(expected, [0.25, 0.75])), rel=1e-6
    )


def test_the_axis_of_norms_is_around_the_median_norm(toy: Toy) -> None:
    run = toy("sm", "loss.variant=SM")
    x = read_layer(run, 1, "train", LayerKey("fc6", "none"))
    (norms,) = {each.own for each in gradients(run, epoch=1) if each.axis == "norm"}
    assert norms == pytest.approx(float(np.median(np.linalg.norm(x, axis=1))))


def test_losses_without_a_plain_softmax_are_refused(toy: Toy) -> None:
    with pytest.raises(
        RecipeError, match="margin: no gradient of a softmax loss: margin has no classifier. Name a run"
    ):
        draw_plot("gradient", [toy("margin", "loss.name=margin", "train.images_per_class=2")])
    with pytest.raises(RecipeError, match="arc: no gradient of a softmax loss: arcface is no plain softmax"):
        draw_plot("gradient", [toy("arc", "loss.name=arcface")])
