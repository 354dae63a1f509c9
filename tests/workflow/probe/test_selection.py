from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from torch import nn

from layerprobe.recipe.recipe import recorded_recipe
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.system.files import sha256
from layerprobe.values.layers import LayerKey
from layerprobe.values.scores import Score, ScoreTable
from layerprobe.workflow.probe.estimate_probe import estimate_probe
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest, select_hooks
from layerprobe.workflow.python.user_model import measure_network, net_of
from layerprobe.workflow.run.features import PartlyMeasuredError
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import Silent

FC6 = LayerKey("fc6", "none")
POOL = LayerKey("pool5.3", "max")

Requests = Callable[..., TrainRequest]
REQUEST = ProbeRequest(layers=("pool5.3", "fc6"), ks=(1, 2), device="cpu", workers=0)


def only(scores: list[Score], **fields: object) -> list[Score]:
    return [score for score in scores if fields.items() <= score.as_json().items()]


def by_metric(scores: list[Score], split: str, layer: str) -> dict[str, Score]:
    return {score.metric: score for score in scores if (score.split, score.ranked.layer.layer) == (split, layer)}


@pytest.mark.parametrize(("text", "epochs"), [("all", {0, 1, 2}), ("last", {2}), ("0,2", {0, 2})])
def test_epochs_are_chosen(run: Run, text: str, epochs: set[int]) -> None:
    assert {score.epoch for score in probe(run, replace(REQUEST, epochs=text), Silent())} == epochs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3", "tiny has epochs 0 to 2"),
        ("first", "is neither all, last, best nor an epoch"),
        ("best", "needs validation classes"),
    ],
)
def test_epochs_that_are_not_there_are_refused(run: Run, text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        probe(run, replace(REQUEST, epochs=text), Silent())


def test_an_unknown_split_has_the_near_miss(run: Run) -> None:
    with pytest.raises(UnknownNameError, match="unknown split 'tset'. Did you mean 'test'"):
        probe(run, replace(REQUEST, splits=("tset",)), Silent())


def test_an_unknown_layer_has_the_near_miss_and_loses_nothing(run: Run) -> None:
    probe(run, REQUEST, Silent())
    before = sha256(run.scores_file)
    with pytest.raises(UnknownNameError, match=r"'pool5.4'. Did you mean 'pool5.\d'"):
        probe(run, replace(REQUEST, layers=("pool5.4",)), Silent())
    assert sha256(run.scores_file) == before


def test_a_layer_that_no_file_can_name_is_refused(run: Run) -> None:
    model = nn.Sequential()
    model.add_module("a/b", nn.Conv2d(3, 4, 3))
    recipe = recorded_recipe(run.read(), run.record_file)
    with pytest.raises(RecipeError, match="layer a/b: features cannot be stored under a name with '/'"):
        select_hooks(ProbeRequest(layers=("a/b",)), recipe, measure_network(net_of(model), (3, 8, 8)))


def test_a_large_k_is_refused_when_asked_for_and_dropped_from_a_recipe(run: Run) -> None:
    with pytest.raises(RecipeError, match="K = 16 is not below the 16 images of the train split"):
        probe(run, replace(REQUEST, ks=(1, 16)), Silent())
    listener = Silent()
    scores = probe(run, replace(REQUEST, ks=None), listener)
    assert "K = 16, 32 skipped: fewer items to search" in listener.heard
    assert {score.metric for score in scores} == {"R@1", "R@2", "R@4", "R@8"}


def test_a_recipe_whose_every_k_is_too_large_is_refused_before_extraction(request_for: Requests) -> None:
    run = train(request_for("probe.k=[1000]"), Silent())
    with pytest.raises(RecipeError, match="K = 1000 is not below the 16 images"):
        probe(run, replace(REQUEST, ks=None), Silent())
    assert not run.feature_file(0, "train").exists()


def test_the_best_epoch_is_the_best_on_validation_classes(images: Path, request_for: Requests, tmp_path: Path) -> None:
    splits = {0: "train", 1: "train", 2: "train", 3: "train", 4: "validation", 5: "validation", 6: "test", 7: "test"}
    rows = [f"class{c}/{i}.png,{c},{split}" for c, split in splits.items() for i in range(4)]
    (images / "table.csv").write_text("\n".join(["path,label,split", *rows]))
    made = request_for()
    from layerprobe.recipe.overrides import Overrides
    from layerprobe.recipe.recipe import load_recipe

    recipe = load_recipe("netA", Overrides(f"csv:{images / 'table.csv'}", (
        "net.name=narrow_vgg", "net.fc=[8]", "data.image_size=16", "train.batch_size=8", "train.images_per_class=2",
        "train.epochs=2",
    )))  # fmt: skip
    run = train(replace(made, recipe=recipe), Silent())
    with pytest.raises(RecipeError, match="--epochs best needs fc6 measured on the validation split at every epoch"):
        probe(run, replace(REQUEST, epochs="best"), Silent())
    scores = only(probe(run, replace(REQUEST, splits=("validation",)), Silent()), layer="fc6", metric="R@1")
    values = {score.epoch: score.value or 0.0 for score in scores}
    (epoch,) = {score.epoch for score in probe(run, replace(REQUEST, epochs="best"), Silent())}
    assert values[epoch] == max(values.values())
    assert epoch == min(e for e, value in values.items() if value == max(values.values()))


def test_classes_held_out_of_training_choose_the_best_epoch(request_for: Requests) -> None:
    run = train(request_for("data.validation_classes=0.5", "train.batch_size=4"), Silent())
    scores = probe(run, REQUEST, Silent())
    assert {score.split for score in scores} == {"train", "validation", "test"}
    assert {score.notes[0] for score in scores} == {"2 of 4 training classes held out for validation"}
    assert len({score.epoch for score in probe(run, replace(REQUEST, epochs="best"), Silent())}) == 1


def test_the_best_epoch_is_one_of_those_whose_checkpoints_are_whole(request_for: Requests) -> None:
    run = train(request_for("data.validation_classes=0.5", "train.batch_size=4"), Silent())
    run.checkpoint_file(1).write_bytes(b"damaged")
    request = ProbeRequest(layers=("fc6",), epochs="best", device="cpu", workers=0)
    with pytest.raises(RecipeError, match="First layerprobe probe tiny --layers fc6 --splits validation"):
        estimate_probe(run, request)
    with pytest.raises(PartlyMeasuredError):
        probe(run, replace(request, splits=("validation",), epochs="all"), Silent())
    listener = Silent()
    (epoch,) = {score.epoch for score in probe(run, request, listener)}
    assert epoch in (0, 2)
    assert listener.heard[0].startswith("epoch 1 is skipped: ")
    assert estimate_probe(run, replace(request, splits=("test",))).seconds == 0


def test_an_epoch_without_a_value_is_measured_and_not_the_best(request_for: Requests) -> None:
    run = train(request_for("data.validation_classes=0.5", "train.batch_size=4"), Silent())
    request = ProbeRequest(layers=("fc6",), splits=("validation",), device="cpu", workers=0)
    scores = probe(run, request, Silent())
    run.scores_file.unlink()
    ScoreTable([replace(score, value=None) if score.epoch == 1 else score for score in scores]).write(run.scores_file)
    (epoch,) = {score.epoch for score in probe(run, replace(request, epochs="best"), Silent())}
    assert epoch in (0, 2)


def test_the_best_epoch_goes_by_no_scores_of_other_groups(request_for: Requests) -> None:
    run = train(request_for("data.validation_classes=0.5", "train.batch_size=4"), Silent())
    probe(run, replace(REQUEST, layers=("fc6",), splits=("validation",)), Silent())
    for epoch in (0, 1, 2):
        with h5py.File(run.rank_file(epoch, "validation"), "r+") as file:
            file["fc6@none/none/cosine"].attrs["search_sha256"] = np.bytes_("that of other groups")
    with pytest.raises(RecipeError, match="--epochs best needs fc6 measured on the validation split at every epoch"):
        probe(run, replace(REQUEST, epochs="best"), Silent())


@pytest.mark.parametrize(
    ("recipe", "settings", "reason"),
    [
        ("netA", (), "smooth_triplet has no classifier"),
        (
            "netA-softmax",
            ("train.meta_classes=2",),
            "this run's classifier was trained on meta-classes, not on the classes",
        ),
    ],
)
def test_accuracy_without_a_classifier_is_left_out_before_the_data_are_read(
    request_for: Requests, images: Path, recipe: str, settings: tuple[str, ...], reason: str
) -> None:
    run = train(request_for("train.epochs=0", *settings, recipe=recipe), Silent())
    listener, asked = Silent(), replace(REQUEST, metrics=("uniformity", "accuracy"))
    assert {score.metric for score in probe(run, asked, listener)} == {"R@1", "R@2", "uniformity"}
    assert listener.heard.count(f"accuracy skipped: {reason}") == 1
    images.rename(images.with_name("gone"))
    listener = Silent()
    with pytest.raises(DataError):
        probe(run, asked, listener)
    assert listener.heard == [f"accuracy skipped: {reason}"]


def test_accuracy_of_another_layer_than_the_classifiers_is_refused(request_for: Requests) -> None:
    run = train(request_for("train.epochs=0", recipe="netA-softmax"), Silent())
    with pytest.raises(RecipeError, match="accuracy is measured on fc6. Add fc6 to --layers"):
        probe(run, replace(REQUEST, layers=("pool5.3",), metrics=("accuracy",)), Silent())


def test_an_unknown_similarity_has_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="unknown similarity 'euclid'. Did you mean 'euclidean'"):
        ProbeRequest(similarity="euclid")


def test_the_recipe_says_the_similarity_unless_the_request_does(request_for: Requests) -> None:
    run = train(request_for("train.epochs=0", 'probe.similarity="dot"'), Silent())
    assert {score.ranked.similarity for score in probe(run, REQUEST, Silent())} == {"dot"}
    assert {score.ranked.similarity for score in probe(run, replace(REQUEST, similarity="euclidean"), Silent())} == {
        "euclidean"
    }
    assert {score.ranked.similarity for score in run.scores()} == {"dot", "euclidean"}


def test_the_best_epoch_is_that_of_the_similarity_asked_for(request_for: Requests) -> None:
    run = train(request_for("data.validation_classes=0.5", "train.batch_size=4"), Silent())
    asked = replace(REQUEST, layers=("fc6",), epochs="best", similarity="euclidean")
    probe(run, replace(asked, epochs="all", similarity=None), Silent())
    with pytest.raises(RecipeError, match="by euclidean. First layerprobe probe tiny .* --similarity euclidean"):
        probe(run, asked, Silent())
    probe(run, replace(asked, epochs="all"), Silent())
    best = {"cosine": 0, "euclidean": 2}
    table = [replace(score, value=float(score.epoch == best[score.ranked.similarity])) for score in run.scores()]
    ScoreTable(table, stored=[]).write(run.scores_file)
    assert {score.epoch for score in probe(run, asked, Silent())} == {2}
