from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from layerprobe.system.errors import RecipeError
from layerprobe.values.scores import over_seeds
from layerprobe.workflow.compare.compare import CompareRequest, compare
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.experiments import Conditions, difference, experiments_of, scores_of
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
    assert apart(runs["a"], runs["b"]) == "other groups or lists"
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
