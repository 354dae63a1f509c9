from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from layerprobe.system.errors import DataError, RecipeError
from layerprobe.values.scores import over_seeds
from layerprobe.workflow.compare.compare import compare
from layerprobe.workflow.compare.request import CompareRequest
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.experiments import Conditions, difference, experiments_of, pair_trainings, scores_of
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import Silent
from tests.workflow.stored_ranks import ranked, store_ranks, write_run

SAME: dict[str, Any] = {"contents": {"train": "a", "test": "b"}, "transform": "{}"}


def apart(one: Run, other: Run) -> str:
    found = difference(Conditions(one, one.read()), Conditions(other, other.read()))
    assert found == difference(Conditions(other, other.read()), Conditions(one, one.read()))
    return found


def recipe(**data: object) -> dict[str, dict[str, object]]:
    return {"data": data}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"seed": 1}, ""),
        ({"experiment": "f"}, "another recipe"),
        ({"contents": {"train": "a", "test": "c"}}, "other test images"),
        ({"contents": {"train": "z", "test": "c"}}, "other train and test images"),
        ({"transform": '{"invert": true}'}, "another way from an image to the input"),
        ({"transform": ""}, "another way from an image to the input"),
    ],
)
def test_trainings_of_one_experiment_have_the_recipe_images_and_transform(
    tmp_path: Path, more: dict[str, Any], reason: str
) -> None:
    one, other = write_run(tmp_path, "a", **SAME), write_run(tmp_path, "b", **(SAME | more))
    assert apart(one, other) == reason


def test_a_split_that_a_record_lacks_is_no_difference(tmp_path: Path) -> None:
    known, lacking = write_run(tmp_path, "known", **SAME), write_run(tmp_path, "lacking", **(SAME | {"contents": {}}))
    assert apart(known, lacking) == apart(lacking, known) == ""


@pytest.mark.parametrize(("share", "reason"), [(0.5, ""), (1.0, "other train images")])
def test_training_images_that_the_seed_draws_are_not_compared(tmp_path: Path, share: float, reason: str) -> None:
    drawn = recipe(share=share)
    runs = [
        write_run(tmp_path, f"s{seed}", seed=seed, recipe=drawn, contents={"train": str(seed), "test": "b"})
        for seed in (0, 1)
    ]
    assert apart(*runs) == reason
    same = write_run(tmp_path, "again", seed=0, recipe=drawn, contents={"train": "else", "test": "b"})
    assert apart(runs[0], same) == "other train images"


def test_training_and_validation_images_are_not_compared_between_folds(tmp_path: Path) -> None:
    splits = ("train", "validation", "test")

    def fold(name: str, number: int, test: str = "x") -> Run:
        contents = {"train": name, "validation": name, "test": test}
        data = recipe(validation_folds=2, validation_fold=number)
        return write_run(tmp_path, name, recipe=data, contents=contents, manifests=dict.fromkeys(splits, "m"))

    first = fold("a", 0)
    assert apart(first, fold("b", 1)) == ""
    assert apart(first, fold("c", 1, "y")) == "other test images"
    assert apart(first, fold("d", 0)) == "other train and validation images"


def test_other_rules_of_the_search_are_told_from_what_is_ranked(tmp_path: Path) -> None:
    runs = {name: write_run(tmp_path, name, seed=i) for i, name in enumerate(("a", "b", "none"))}
    for name, rules in (("a", "by class"), ("b", "by groups")):
        store_ranks(runs[name], {ranked("fc6@none"): np.ones(4)}, [0, 0, 1, 1], search=rules)
    assert apart(runs["a"], runs["b"]) == "other groups, lists or queries"
    assert apart(runs["a"], runs["none"]) == ""


def test_a_run_joins_an_experiment_of_which_it_differs_from_no_training(tmp_path: Path) -> None:
    unknown = write_run(tmp_path, "unknown", seed=2)
    a, b, c = (
        write_run(tmp_path, x, seed=i, contents={"test": y})
        for i, (x, y) in enumerate([("a", "x"), ("b", "y"), ("c", "x")])
    )
    damaged = write_run(tmp_path, "damaged")
    damaged.record_file.write_text("{")
    found = experiments_of([unknown, a, b, c, damaged])
    assert found.names == {unknown: "e", a: "e", c: "e", b: "e-2"}
    assert found.notes == ("unknown, a, c and b have one recipe, but other test images: no seeds of one experiment",)


Requests = Callable[..., TrainRequest]


@pytest.fixture
def other_root(images: Path, tmp_path: Path) -> str:
    """The images under the same names, of the same sizes, one test image in another colour."""
    root = shutil.copytree(images, tmp_path / "other")
    changed = root / "class7" / "0.png"
    Image.fromarray(255 - np.asarray(Image.open(changed))).save(changed)
    return f"folder:{root}"


def probed(request: TrainRequest) -> Run:
    run = train(request, Silent())
    probe(run, ProbeRequest(layers=("pool5.3", "fc6"), ks=(1,), device="cpu", workers=0), Silent())
    return run


def on(root: str, request: TrainRequest) -> TrainRequest:
    """The same recipe with its images elsewhere."""
    data = request.recipe.data.model_copy(update={"root": root.partition(":")[2]})
    return replace(request, recipe=replace(request.recipe, data=data))


def test_runs_of_one_recipe_on_other_images_are_drawn_apart_and_not_compared(
    request_for: Requests, other_root: str, images: Path
) -> None:
    first, second = (probed(request_for("train.epochs=0", f"train.seed={i}", run=f"s{i}")) for i in (0, 1))
    other = probed(on(other_root, request_for("train.epochs=0", "train.seed=2", run="s2")))
    assert {run.read().experiment for run in (first, second, other)} == {first.read().experiment}
    scores = scores_of([first, second, other])
    note = "s0, s1 and s2 have one recipe, but other test images: no seeds of one experiment"
    assert all(note in score.notes for score in scores)
    assert {score.run for score in over_seeds(scores)} == {"s* (2 seeds)", "s2"}
    cache = first.folder.parent
    assert compare(CompareRequest(cache, "s0:fc6", "s1:fc6"))
    with pytest.raises(RecipeError, match="s0 and s2 have test images with the same names and other contents. Compare"):
        compare(CompareRequest(cache, "s0:fc6", "s2:fc6"))
    # the same images at another place are the same
    moved = shutil.copytree(images, images.parent / "moved")
    again = probed(on(f"folder:{moved}", request_for("train.epochs=0", "train.seed=3", run="s3")))
    assert apart(first, again) == ""


def test_seeds_that_draw_their_share_of_the_training_images_are_seeds(request_for: Requests) -> None:
    runs = [probed(request_for("train.epochs=0", "data.share=0.5", f"train.seed={i}", run=f"s{i}")) for i in (0, 1)]
    trained = {run.read().contents["train"] for run in runs}
    assert len(trained) == 2
    assert {score.run for score in over_seeds(scores_of(runs))} == {"s* (2 seeds)"}


REQUEST = ProbeRequest(layers=("fc6",), ks=(1, 2), device="cpu", workers=0)
OTHER_CONTENT = "images are not those of the run: the same names and sizes, other contents. Restore them"


@pytest.fixture
def images(images: Path) -> Path:
    """The images, all of one size in bytes."""
    for path in images.rglob("*.png"):
        path.write_bytes(path.read_bytes().ljust(2000, b"\0"))
    return images


@pytest.fixture
def run(request_for: Callable[..., TrainRequest]) -> Run:
    return train(request_for(), Silent())


def exchange(images: Path) -> None:
    """Let an image of the first and one of the last class change places, with the times that they had."""
    first, last = images / "class0" / "0.png", images / "class7" / "0.png"
    times = [path.stat().st_mtime_ns for path in (first, last)]
    contents = [path.read_bytes() for path in (last, first)]
    for path, content, time in zip((first, last), contents, times, strict=True):
        path.write_bytes(content)
        os.utime(path, ns=(time, time))


def test_images_replaced_by_others_of_the_same_size_are_noticed(run: Run, images: Path) -> None:
    probe(run, REQUEST, Silent())
    scores = run.scores_file.read_text()
    exchange(images)
    with pytest.raises(DataError, match=f"images: the train {OTHER_CONTENT}"):
        probe(run, ProbeRequest(layers=("pool5.3",), ks=(1, 2), device="cpu", workers=0), Silent())
    assert run.scores_file.read_text() == scores


def test_a_run_does_not_go_on_with_replaced_images(request_for: Callable[..., TrainRequest], images: Path) -> None:
    train(request_for("train.epochs=1", "train.decay_at=[]"), Silent())
    exchange(images)
    with pytest.raises(DataError, match=f"images: the train {OTHER_CONTENT}"):
        train(request_for("train.epochs=2", "train.decay_at=[]"), Silent())


def test_images_of_other_sizes_are_told_as_such(run: Run, images: Path) -> None:
    with (images / "class0" / "0.png").open("ab") as stream:
        stream.write(b"more")
    with pytest.raises(DataError, match="the train images are not those .*: other names, classes or sizes"):
        probe(run, REQUEST, Silent())


def test_the_runs_of_two_experiments_are_paired_by_seed(tmp_path: Path) -> None:
    a = [write_run(tmp_path, f"a{seed}", experiment="a", seed=seed) for seed in (2, 0, 1)]
    b = [write_run(tmp_path, f"b{seed}", experiment="b", seed=seed) for seed in (0, 2, 5)]
    found = pair_trainings(tmp_path, a[0], b[0], (None, None))
    assert found.pairs == ((a[1], b[0]), (a[0], b[1]))
    assert found.left_out == (
        "a1 left out: the other experiment has no training with seed 1",
        "b5 left out: the other experiment has no training with seed 5",
    )


def test_a_run_without_the_epoch_and_a_second_one_of_a_seed_are_left_out(tmp_path: Path) -> None:
    named = write_run(tmp_path, "m", seed=0)
    for name, seed, epochs in (("a", 0, 2), ("b", 1, 1), ("c", 1, 2), ("d", 2, 2)):
        write_run(tmp_path, name, seed=seed, epochs_done=epochs)
    found = pair_trainings(tmp_path, named, named, (None, None))
    assert [pair[0].name for pair in found.pairs] == ["m", "c", "d"]
    assert found.left_out == ("a left out: m has its seed 0", "b left out: it has no epoch 2")
    assert [pair[0].name for pair in pair_trainings(tmp_path, named, named, (1, 1)).pairs] == ["m", "b", "d"]


def test_runs_on_other_images_are_no_seeds_of_the_experiment(tmp_path: Path) -> None:
    a = [write_run(tmp_path, f"a{seed}", seed=seed, contents={"test": "x"}) for seed in (0, 1)]
    others = [write_run(tmp_path, f"b{seed}", seed=seed, contents={"test": "y"}) for seed in (1, 2)]
    found = pair_trainings(tmp_path, a[0], a[0], (None, None))
    assert found.pairs == ((a[0], a[0]), (a[1], a[1]))
    assert found.left_out == ("b1, b2 left out: other test images than a0 has",)
    assert found.is_one_experiment
    with pytest.raises(
        RecipeError, match="with 1 seed, and it takes 2; b1, b2 left out: other test images than a1 has"
    ):
        pair_trainings(tmp_path, a[1], others[0], (None, None))
    write_run(tmp_path, "b0", seed=0, contents={"test": "y"})
    assert not pair_trainings(tmp_path, a[1], others[0], (None, None)).is_one_experiment


def test_a_single_seed_is_refused(tmp_path: Path) -> None:
    a = write_run(tmp_path, "a")
    write_run(tmp_path, "other", experiment="x", seed=1)
    with pytest.raises(RecipeError, match="a's experiment was trained to that epoch with 1 seed, and it takes 2"):
        pair_trainings(tmp_path, a, a, (None, None))
