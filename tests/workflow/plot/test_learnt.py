from __future__ import annotations

import csv

import pytest
from safetensors.torch import load_file

from layerprobe.plots.plot import PlotOptions
from layerprobe.system.errors import RecipeError
from layerprobe.workflow.plot.learnt import learnt_parameters
from layerprobe.workflow.plot.plot import draw_plot
from layerprobe.workflow.run.runs import Run
from tests.workflow.plot.conftest import Toy

LEARNT = ("loss.variant=LN", "loss.scale=8", "loss.learn_scale=true")


def stored(run: Run, epoch: int, name: str) -> float:
    return float(load_file(run.checkpoint_file(epoch))[f"loss.{name}"].double().mean())


def test_a_learnt_alpha_is_that_of_each_checkpoint(toy: Toy) -> None:
    run = toy("learnt", *LEARNT)
    (first, *others) = learnt_parameters([run])
    assert (first.epoch, first.value, first.metric) == (0, 8.0, "scale: alpha, 1 / temperature")
    assert [(score.epoch, score.value) for score in others] == [(e, stored(run, e, "scale")) for e in (1, 2)]
    assert len({score.value for score in (first, *others)}) == 3


def test_the_boundaries_of_margin_are_their_mean(toy: Toy) -> None:
    run = toy("margin", "loss.name=margin", "train.images_per_class=2")
    found = learnt_parameters([run])
    assert found[-1].value == pytest.approx(stored(run, 2, "beta"))
    assert {score.metric for score in found} == {"beta, a distance: mean over the classes"}


def test_where_only_the_last_checkpoint_is_kept_the_start_and_the_end_are_drawn(toy: Toy) -> None:
    run = toy("last", *LEARNT, "train.keep=last")
    found = draw_plot("learnt", [run])
    rows = list(csv.DictReader(found.csv.splitlines()))
    assert [(row["epoch"], float(row["value"])) for row in rows] == [("0", 8.0), ("2", stored(run, 2, "scale"))]
    told = " ".join(found.figure.texts[-1].get_text().split())
    assert "epochs 0 and 2 alone; train with train.keep = all for the others" in told


def test_a_loss_that_learns_none_is_told(toy: Toy) -> None:
    with pytest.raises(RecipeError, match=r"bn: its loss heated_softmax learns no number .*loss.learn_scale = true"):
        draw_plot("learnt", [toy("bn")])
    with pytest.raises(RecipeError, match="plot learnt has no option --epoch. Leave it out"):
        draw_plot("learnt", [toy("bn")], PlotOptions(epoch=1))
