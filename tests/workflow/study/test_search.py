"""A search from its file to its tables: stopped and resumed, with a trial that diverges, and by hand."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.recipe.recipe_files import find_recipe
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.system.wording import encoded
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.request import ProbeRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.study.plan import StudyTraining
from layerprobe.workflow.study.request import StudyRequest
from layerprobe.workflow.study.search import SearchTable, _kept_schedule, plan_search, run_search
from layerprobe.workflow.study.search_tables import orders, plan_texts, search_values, text_tables
from layerprobe.workflow.study.study_file import load_study
from layerprobe.workflow.study.training import as_in_training
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import DIVERGED, train
from tests.workflow.conftest import Silent

# The draws of softmax are 1e9, at which it diverges, and 0.02.
TINY = """
[study]
title = "Two losses"
question = "which is better?"
[runs]
recipe = "quick"
seeds = [0]
[runs.set]
"data.train_classes" = 8
"data.test_classes" = 4
"data.images_per_class" = 8
"train.epochs" = 3
"train.decay_at" = [0.3, 0.6]
"train.batch_size" = 16
"net.name" = "lenet"
"net.fc" = [8]
[[variants]]
name = "smooth"
search = {"loss.scale" = {low = 1, high = 8}}
[[variants]]
name = "softmax"
set = {"loss.name" = "softmax"}
search = {"train.learning_rate" = [0.02, 1e9]}
[search]
budgets = [1, 2]
seed = 2
validation_classes = 0.5
trials_on_test = true
[search.keys]
"train.learning_rate" = {low = 1e-3, high = 1e-1, log = true}
[end]
table = "R@1"
layers = ["fc6"]
"""


@dataclass(frozen=True)
class Made:
    """A search that was run to its end."""

    file: Path
    cache: Path
    table: SearchTable
    heard: list[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("search")
    file, cache, listener = folder / "tiny.toml", folder / "cache", Silent()
    file.write_text(TINY)
    table = run_search(StudyRequest(load_study(str(file)), cache, None, ("cpu", "cpu")), listener)
    return Made(file, cache, table, listener.heard)


def request_of(folder: Path, *changes: tuple[str, str]) -> StudyRequest:
    """Of TINY, with some text in place of other."""
    text = TINY
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "tiny.toml").write_text(text)
    return StudyRequest(load_study(str(folder / "tiny.toml")), folder / "cache", devices=("cpu",))


def values_of(table: SearchTable) -> object:
    return json.loads(json.dumps(encoded(search_values(table))))


def scores_of(run: Path, split: str) -> dict[int, float | None]:
    """R@1 of fc6 on a split after each epoch, from the file of scores."""
    with (run / "scores.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["split"], row["metric"]) == (split, "R@1")]
    return {int(row["epoch"]): float(row["value"]) if row["value"] else None for row in rows}


def stamps(folder: Path) -> Mapping[Path, int]:
    """When each file of a run was written."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path: path.stat().st_mtime_ns for path in files}


def test_what_is_selected_is_recomputed_from_the_stored_scores(made: Made) -> None:
    for item in made.table.methods:
        for outcome in item.outcomes:
            best, at, on_test = -1.0, None, list[float]()
            for number, trial in enumerate(item.method.trials[: outcome.budget], start=1):
                run = made.cache / trial.training.run
                if Run(run).read().state == DIVERGED:
                    continue
                test = scores_of(run, "test")
                for epoch, value in sorted(scores_of(run, "validation").items()):
                    if epoch == 0:
                        continue
                    on_test.append(test[epoch] or 0.0)
                    if value is not None and value > best:
                        best, at = value, (number, epoch)
            found = outcome.selected
            assert at == (None if found is None else (found.trial, found.epoch))
            if found is None or at is None:
                continue
            assert found.validation == best
            chosen = made.cache / item.method.trials[at[0] - 1].training.run
            assert outcome.regret == pytest.approx(max(on_test) - (scores_of(chosen, "test")[at[1]] or 0.0))


def test_the_numbers_are_those_of_the_chosen_settings_trained_and_probed_by_hand(made: Made, tmp_path: Path) -> None:
    outcome = made.table.methods[0].outcomes[-1]
    selected = outcome.selected
    assert selected is not None
    trial = made.table.methods[0].method.trials[selected.trial - 1]
    study, drawn = made.table.study, [f"{key}={json.dumps(value)}" for key, value in trial.values.items()]
    settings = [f"{key}={json.dumps(value)}" for key, value in study.runs.set.items() if key != "train.decay_at"]
    # The learning rate falls where it fell in the trial of 3 epochs, at 0.9 and 1.8.
    falls = [share for share in (0.9 / selected.epoch, 1.8 / selected.epoch) if share < 1]
    settings += [*drawn, f"train.epochs={selected.epoch}", f"train.decay_at={falls}", "train.seed=0"]
    recipe = load_recipe("quick", Overrides(settings=tuple(settings)))
    with as_in_training():
        run = train(TrainRequest(recipe, overridden=True, cache=tmp_path, run="hand", device="cpu"), Silent())
        probe(run, ProbeRequest(layers=("fc6",), device="cpu"), Silent())
    by_hand = scores_of(run.folder, "test")
    assert outcome.test is not None
    assert outcome.before is not None
    assert (outcome.test.values, outcome.before.values) == ((by_hand[selected.epoch],), (by_hand[0],))
    assert "validation" not in run.read().manifests


def test_a_trial_that_diverges_counts_as_the_worst_and_is_said(made: Made) -> None:
    item = made.table.methods[1]
    assert [Run(made.cache / trial.training.run).read().state for trial in item.method.trials] == [DIVERGED, "finished"]
    assert [outcome.selected and outcome.selected.trial for outcome in item.outcomes] == [None, 2]
    (line,) = [line for line in made.heard if line.endswith("it counts as the worst")]
    assert line.startswith(item.method.trials[0].training.run)
    chosen, budgets = text_tables(made.table)
    assert "diverged, counted as the worst: softmax: trial 1" in chosen.notes
    assert budgets.rows[1][1:3] == ("", chosen.rows[1][5])


def test_the_order_of_the_methods_is_by_test_and_one_without_a_value_is_last(made: Made) -> None:
    ((values, (first, second)),) = orders(made.table)
    means = {item.method.variant.name: item.outcomes[1].test for item in made.table.methods}
    assert (values, first) == ({}, ["smooth", "softmax"])
    assert second == sorted(means, key=lambda name: -(means[name].mean or 0))  # type: ignore[union-attr] # both have one


def test_trials_are_prefixes_of_more_trials(made: Made, tmp_path: Path) -> None:
    plan = plan_search(request_of(tmp_path, ("[1, 2]", "[5]")), Silent())
    for method, item in zip(plan.methods, made.table.methods, strict=True):
        assert len(method.trials) == 5
        for trial, trained in zip(method.trials, item.method.trials, strict=False):
            assert (trial.values, trial.training.run) == (trained.values, trained.training.run)


class Interrupting(Silent):
    """A listener that is interrupted when the first training has finished."""

    def say(self, text: str) -> None:
        """Hear a line."""
        super().say(text)
        if text.endswith(": finished"):
            raise KeyboardInterrupt


def test_a_search_that_is_stopped_between_trials_goes_on_and_trains_nothing_twice(made: Made, tmp_path: Path) -> None:
    request = request_of(tmp_path)
    shutil.copytree(made.cache, request.cache)
    trials = [trial.training.run for item in made.table.methods for trial in item.method.trials]
    for run in request.cache.glob("tiny-*"):
        if run.name not in (trials[0], trials[2]):
            shutil.rmtree(run)
    with pytest.raises(KeyboardInterrupt):
        run_search(request, Interrupting())
    finished = [run for run in trials if (request.cache / run / "scores.csv").exists()]
    assert len(finished) == 3  # the one that diverged among them
    before, listener = {run: stamps(request.cache / run) for run in finished}, Silent()
    again = run_search(request, listener)
    assert {run: stamps(request.cache / run) for run in finished} == before
    assert values_of(again) == values_of(made.table)
    assert not [line for line in listener.heard if line.startswith(tuple(finished))]
    silent = Silent()
    assert values_of(run_search(request, silent)) == values_of(made.table)
    assert silent.heard == []


def test_a_dry_run_lists_the_trials_and_counts_all(made: Made, tmp_path: Path) -> None:
    request = request_of(tmp_path, ("[1, 2]", "[1, 2, 3]"))
    shutil.copytree(made.cache, request.cache)
    plan = plan_search(request, Silent())
    table, text = plan_texts(plan)
    assert table.heading[1] == "6 trials, then at most 6 retrainings"  # 2 methods, 3 budgets, a seed
    assert [row[-1] for row in table.rows] == ["done", "done", "", "done", "done", "done"]  # the last has drawn again
    assert table.rows[3][:3] == ("softmax", "1", "train.learning_rate = 1000000000.0")
    assert text.startswith("tiny: the trials that are left take about")


def test_trials_that_were_not_measured_on_test_are_told(made: Made, tmp_path: Path) -> None:
    request = request_of(tmp_path)
    shutil.copytree(made.cache, request.cache)
    trial = made.table.methods[0].method.trials[0].training
    scores = request.cache / trial.run / "scores.csv"
    lines = scores.read_text().splitlines(keepends=True)
    scores.write_text("".join(line for line in lines if ",test," not in line))
    with pytest.raises(DataError, match="was not measured on test after each epoch"):
        run_search(request, Silent())


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"loss.scale"', '"loss.scales"', r"\[search\]: smooth: .*unknown key 'scales'"),
        ("low = 1, high = 8", "low = -1, high = 8", r"\[search\]: loss.scale of smooth: .*scale is -1.0"),
        ("low = 1e-3, high = 1e-1, log = true", "low = 0, high = 1", "learning_rate of smooth: .*greater than 0"),
    ],
)
def test_values_that_a_method_does_not_take_are_refused(tmp_path: Path, old: str, new: str, problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        plan_search(request_of(tmp_path, (old, new)), Silent())


def test_a_search_takes_no_file_of_scores(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="a search needs the runs, not their scores. Leave out --scores"):
        run_search(replace(request_of(tmp_path), scores=tmp_path / "scores.csv"), Silent())


@pytest.mark.parametrize(
    ("settings", "epochs", "kept"),
    [
        # at epochs 3, 6 and 5: of 5 epochs 0.6, and two that are not reached
        (("decay_at=[0.3, 0.6]", "heat_at=[0.5]"), 5, {"train.decay_at": [0.6], "train.heat_at": []}),
        (("decay_at=[0.3, 0.6]", "heat_at=[0.5]"), 10, {"train.decay_at": [0.3, 0.6], "train.heat_at": [0.5]}),
        (("decay_at=[]", "decay_epochs=[3]"), 5, {}),
    ],
)
def test_the_learning_rate_falls_at_the_epochs_of_the_trial(
    settings: tuple[str, ...], epochs: int, kept: dict[str, list[float]]
) -> None:
    texts = ('loss.name="heated_softmax"', "train.epochs=10", *(f"train.{text}" for text in settings))
    assert _kept_schedule(load_recipe("quick", Overrides(settings=texts)).train, epochs) == kept


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings in this process: starting one of their own takes longer than they do."""

    def train_all(waiting: list[StudyTraining], *_: object) -> None:
        with as_in_training():
            for training in waiting:
                train(training.request("cpu"), Silent())

    monkeypatch.setattr("layerprobe.workflow.study.study.train_all", train_all)


@pytest.fixture
def images(tmp_path: Path) -> Callable[[str, int], Path]:
    """A table of 8 classes with 6 images each, half of the classes for training; test has the images of a seed."""

    def write(name: str, seed: int) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        rows = ["path,label,split"]
        for label in range(8):
            is_test = label >= 4
            rng = np.random.default_rng([label, seed * is_test])
            for image in range(6):
                pixels = rng.integers(0, 256, (16, 16, 3), np.uint8)
                pixels[: 2 * label + 2] = 30 * label
                Image.fromarray(pixels).save(folder / f"{label}-{image}.png")
                of_test = (label + seed * image) % 4 + 4  # permuted, too
                rows.append(f"{label}-{image}.png,{of_test if is_test else label},{'test' if is_test else 'train'}")
        (folder / "images.csv").write_text("\n".join(rows))
        return folder / "images.csv"

    return write


@pytest.mark.usefixtures("in_this_process")
def test_other_test_images_and_labels_change_no_choice(images: Callable[[str, int], Path], tmp_path: Path) -> None:
    recipe = tmp_path / "images.toml"
    glyphs = 'name = "glyphs"\ntrain_classes = 60\ntest_classes = 60\nimages_per_class = 20\n'
    recipe.write_text(find_recipe("quick").read_text().replace(glyphs, 'name = "csv"\n'))
    chosen = []
    for seed, name in enumerate(("intact", "corrupted")):
        keys = '"data.augment" = "none"\n"data.image_size" = 32\n'
        request = request_of(
            tmp_path,
            ('recipe = "quick"', f'recipe = "{recipe}"'),
            ('"data.train_classes" = 8\n"data.test_classes" = 4\n"data.images_per_class" = 8\n', keys),
            ("trials_on_test = true\n", ""),
            ('[[variants]]\nname = "softmax"\nset = {"loss.name" = "softmax"}\n', ""),
            ('search = {"train.learning_rate" = [0.02, 1e9]}\n', ""),
            ('"train.batch_size" = 16', '"train.batch_size" = 8'),
            ("[1, 2]", "[2]"),
        )
        data = (f"csv:{images(name, seed)}",)
        table = run_search(replace(request, cache=tmp_path / f"cache-{name}", data=data), Silent())
        chosen.append([(item.curves, [outcome.selected for outcome in item.outcomes]) for item in table.methods])
        for trial in table.methods[0].method.trials:  # test is not even measured
            run = tmp_path / f"cache-{name}" / trial.training.run
            assert {score.split for score in Run(run).scores()} == {"validation"}
    assert chosen[0] == chosen[1]


@pytest.mark.usefixtures("in_this_process")
def test_optuna_suggests_after_the_validation_values_of_the_trials(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    request = request_of(
        tmp_path,
        ("seed = 2\n", 'seed = 0\nsampler = "optuna"\n'),
        ('[[variants]]\nname = "softmax"\nset = {"loss.name" = "softmax"}\n', ""),
        ('search = {"train.learning_rate" = [0.02, 1e9]}\n', ""),
    )
    table = run_search(request, Silent())
    (item,) = table.methods
    seed = int(np.random.default_rng([0, *b"smooth"]).integers(2**31))
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    for trial in item.method.trials:
        asked = study.ask()
        rate = asked.suggest_float("train.learning_rate", 1e-3, 1e-1, log=True)
        scale = asked.suggest_int("loss.scale", 1, 8)
        assert trial.values == {"train.learning_rate": float(f"{rate:.3g}"), "loss.scale": scale}
        values = scores_of(request.cache / trial.training.run, "validation")
        study.tell(asked, max(values[epoch] or 0.0 for epoch in (1, 2, 3)))
    listener = Silent()
    assert values_of(run_search(request, listener)) == values_of(table)
    assert listener.heard == []
