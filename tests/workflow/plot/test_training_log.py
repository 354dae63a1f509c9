from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from layerprobe.plots.plot import PlotOptions
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.workflow.plot.plot import StoredRuns, draw_plot
from layerprobe.workflow.plot.training_log import learnt_parameters, training_losses
from layerprobe.workflow.run.experiments import scores_of
from layerprobe.workflow.run.runs import Run
from tests.workflow.plot.conftest import Toy


def logged(run: Run) -> list[float]:
    return [json.loads(line)["loss"] for line in run.training_log_file.read_text().splitlines()]


def copied(run: Run, folder: Path) -> Run:
    shutil.copytree(run.folder, folder / run.name)
    return Run(folder / run.name)


def test_the_losses_are_those_of_the_log_with_recall_of_the_embedding_on_test(toy: Toy) -> None:
    run = toy("bn")
    found = training_losses([run], scores_of([run]))
    losses = [(score.epoch, score.value) for score in found if score.metric == "training loss"]
    assert losses == list(enumerate(logged(run), start=1))
    recalls = {
        (s.epoch, s.value) for s in run.scores() if (s.split, s.ranked.layer.layer, s.metric) == ("test", "fc6", "R@1")
    }
    assert {(score.epoch, score.value) for score in found if score.metric == "R@1"} == recalls
    assert len(recalls) == 3


def test_trainings_of_one_experiment_are_their_mean_with_the_range(toy: Toy) -> None:
    runs = [toy("bn"), toy("bn-s1", "train.seed=1")]
    found = StoredRuns(runs, scores_of(runs)).losses()
    last = next(score for score in found if (score.metric, score.epoch) == ("training loss", 2))
    ends = sorted(logged(run)[1] for run in runs)
    assert (last.low, last.high) == tuple(ends)
    assert last.value == pytest.approx(sum(ends) / 2)
    assert last.run == "bn* (2 seeds)"


def test_a_run_that_was_not_probed_has_its_loss_drawn(toy: Toy, tmp_path: Path) -> None:
    run = copied(toy("bn"), tmp_path)
    run.scores_file.unlink()
    rows = list(csv.DictReader(draw_plot("loss", [run]).csv.splitlines()))
    assert [float(row["value"]) for row in rows] == logged(run)


def test_a_run_without_a_training_has_no_loss(toy: Toy) -> None:
    run = toy("frozen", "train.epochs=0")
    with pytest.raises(DataError, match="frozen was measured only, not trained here.* Name a run of layerprobe train"):
        draw_plot("loss", [run])


@pytest.mark.parametrize(
    ("content", "told"), [("{", "not the log of a training"), ('{"epoch": 1}', "not the log"), (None, "no epoch has")]
)
def test_a_damaged_or_missing_log_is_told(toy: Toy, tmp_path: Path, content: str | None, told: str) -> None:
    run = copied(toy("bn"), tmp_path)
    if content is None:
        run.training_log_file.unlink()
    else:
        run.training_log_file.write_text(content)
    with pytest.raises(DataError, match=told):
        draw_plot("loss", [run])


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
