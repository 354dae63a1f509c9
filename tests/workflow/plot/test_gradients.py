from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from layerprobe.plots.plot import PlotOptions
from layerprobe.store import read_feature_head
from layerprobe.system.errors import RecipeError
from layerprobe.values.layers import LayerKey
from layerprobe.values.views import GradientSizes
from layerprobe.workflow.plot.plot import StoredRuns, draw_plot
from layerprobe.workflow.run.experiments import scores_of
from layerprobe.workflow.run.opened_run import read_layer
from layerprobe.workflow.run.runs import Run
from tests.workflow.plot.conftest import Toy

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
