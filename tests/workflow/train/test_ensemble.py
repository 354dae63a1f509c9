from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerprobe import store
from layerprobe.ranking import recall_at_k
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.values.layers import LayerKey
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.experiments import experiments_of
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.ensemble import estimate_probe_of, probe_any
from layerprobe.workflow.train.train import estimate_training, train_any
from tests.workflow.conftest import RECIPES, Silent

FC6 = LayerKey("fc6", "none")

SMALL = (
    "data.image_size=16", "train.batch_size=8", "train.images_per_class=4", "train.epochs=1", "net.name=narrow_vgg",
    "net.fc=[8]", "train.meta_classes=2",
)  # fmt: skip
Make = Callable[..., TrainRequest]


@pytest.fixture
def request_for(images: Path, tmp_path: Path) -> Make:
    """A request to train an ensemble of two."""
    file = tmp_path / "pair.toml"
    file.write_text(f'# pair: two\n[ensemble]\nof = "{RECIPES / "netA.toml"}"\nmembers = 2\n')

    def make(*settings: str, **fields: object) -> TrainRequest:
        recipe = load_recipe(str(file), Overrides(f"folder:{images}", (*SMALL, *settings)))
        return TrainRequest(recipe, True, tmp_path / "cache", "pair", "cpu", 0, **fields)  # type: ignore[arg-type] # one test's fields each

    return make


def request(**fields: object) -> ProbeRequest:
    return ProbeRequest(device="cpu", workers=0, **fields)  # type: ignore[arg-type] # one test's fields each


def member(run: Run, number: int) -> Run:
    return Run(run.folder.with_name(f"{run.name}.{number}"))


def test_members_are_runs_of_their_own_with_a_seed_each(request_for: Make) -> None:
    run = train_any(request_for(), Silent())
    records = [member(run, number).read() for number in (1, 2)]
    assert [record.seed for record in records] == [0, 1]
    assert [record.state for record in records] == ["finished"] * 2
    assert "ensemble" not in records[0].recipe
    assert len(set(experiments_of([member(run, number) for number in (1, 2)]).names.values())) == 1
    assert (run.read().members, run.read().epochs_done) == (("pair.1", "pair.2"), 1)


def test_an_ensembles_features_are_its_members_unit_embeddings_side_by_side(request_for: Make) -> None:
    run = train_any(request_for(), Silent())
    scores = probe_any(run, request(), Silent())
    probe_any(member(run, 1), request(layers=("fc6",)), Silent())
    probe_any(member(run, 2), request(layers=("fc6",)), Silent())
    for split in ("train", "test"):
        parts = [store.read_features(member(run, n).feature_file(1, split), FC6) for n in (1, 2)]
        wanted = np.hstack([part / np.linalg.norm(part, axis=1, keepdims=True) for part in parts])
        found = store.read_features(run.feature_file(1, split), FC6)
        assert store.read_feature_head(run.feature_file(1, split)).class_names == tuple(
            f"class{label}" for label in range(8)
        )
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)
        labels = np.repeat(np.arange(4), 4)
        (score,) = [s for s in scores if (s.epoch, s.split, s.metric) == (1, split, "R@1")]
        assert score.value == recall_at_k(found, labels, ks=(1,))[1]


def test_the_same_command_again_trains_nothing(request_for: Make) -> None:
    train_any(request_for(), Silent())
    listener = Silent()
    train_any(request_for(), listener)
    assert [text for text in listener.heard if "nothing to do" in text] == [
        f"nothing to do: pair.{n} has all its 1 epochs" for n in (1, 2)
    ]


def test_probing_again_extracts_nothing(request_for: Make) -> None:
    run = train_any(request_for(), Silent())
    before = probe_any(run, request(), Silent())
    written = run.feature_file(1, "test").stat().st_mtime_ns
    assert probe_any(run, request(), Silent()) == before
    assert run.feature_file(1, "test").stat().st_mtime_ns == written


def test_every_score_says_that_a_member_is_stored_as_float16(request_for: Make) -> None:
    run = train_any(request_for(), Silent())
    probe_any(member(run, 2), request(layers=("fc6",), store="float16", splits=("test",), epochs="last"), Silent())
    scores = probe_any(run, request(epochs="last", splits=("train", "test")), Silent())
    assert {score.split for score in scores if "stored as float16" in score.notes} == {"train", "test"}
    probe_any(member(run, 2), request(layers=("fc6",), store="float32", splits=("train",), epochs="last"), Silent())
    scores = probe_any(run, request(epochs="last", splits=("train", "test")), Silent())
    assert {score.split for score in scores if "stored as float16" in score.notes} == {"test"}


def test_another_recipe_under_the_name_is_refused(request_for: Make) -> None:
    train_any(request_for(), Silent())
    with pytest.raises(RecipeError, match="train.learning_rate: 0.01 -> 0.5"):
        train_any(request_for("train.learning_rate=0.5"), Silent())


def test_another_number_of_members_under_the_name_is_refused(request_for: Make) -> None:
    run = train_any(request_for(), Silent())
    before = run.read()
    with pytest.raises(RecipeError, match="ensemble.members: 2 -> 3"):
        train_any(request_for("ensemble.members=3"), Silent())
    assert run.read() == before
    assert not member(run, 3).exists()


def test_more_epochs_go_on_from_those_of_the_members(request_for: Make) -> None:
    train_any(request_for("train.decay_at=[]"), Silent())
    run = train_any(request_for("train.decay_at=[]", "train.epochs=2"), Silent())
    assert [member(run, number).read().epochs_done for number in (1, 2)] == [2, 2]
    assert run.read().epochs_done == 2


def test_ensembles_of_two_seeds_share_no_member(request_for: Make) -> None:
    recipes = [request_for(f"train.seed={seed}").recipe for seed in (0, 1)]
    seeds = [recipe.member(number).train.seed for recipe in recipes for number in (1, 2)]
    assert seeds == [0, 1, 2, 3]


def test_other_layers_are_the_members(request_for: Make) -> None:
    run = train_any(request_for(), Silent())
    with pytest.raises(RecipeError, match="embeddings alone: fc6. Probe a member for other layers"):
        probe_any(run, request(layers=("pool5.3",)), Silent())


def test_members_that_drew_other_shares_of_the_images_are_probed(request_for: Make) -> None:
    few = ("data.share=0.5", "train.images_per_class=2", "train.batch_size=4", "train.seed=1")
    run = train_any(request_for(*few), Silent())
    assert len({member(run, number).read().manifests["train"] for number in (1, 2)}) == 2
    scores = probe_any(run, request(), Silent())
    assert {(score.split, score.n) for score in scores} == {("train", 8), ("test", 16)}


def test_images_that_changed_since_the_training_are_noticed(request_for: Make, images: Path) -> None:
    run = train_any(request_for(), Silent())
    (images / "class7" / "0.png").unlink()
    with pytest.raises(DataError, match="the test images are not those of the run"):
        probe_any(run, request(), Silent())


def test_a_member_that_is_gone_is_named(request_for: Make) -> None:
    run = train_any(request_for(), Silent())
    member(run, 2).folder.rename(run.folder.with_name("elsewhere"))
    with pytest.raises(DataError, match="pair.2: no such run"):
        probe_any(run, request(), Silent())


def test_an_estimate_is_the_first_members_times_the_members(request_for: Make) -> None:
    ensemble = request_for()
    single = replace(ensemble, recipe=ensemble.recipe.member(1), run="pair.1")
    assert estimate_training(ensemble).disk == 2 * estimate_training(single).disk
    run = train_any(ensemble, Silent())
    with pytest.raises(RecipeError, match="Estimate a member: pair.1"):
        estimate_probe_of(run, request())


def test_probing_while_training_is_for_single_runs(request_for: Make) -> None:
    with pytest.raises(RecipeError, match="--probe is for a single run"):
        train_any(request_for(probe=("fc6",)), Silent())


def test_an_ensemble_has_no_classifier_whose_accuracy_could_be_measured(request_for: Make) -> None:
    run = train_any(request_for("loss.name=softmax", "train.sampler=shuffled"), Silent())
    listener = Silent()
    scores = probe_any(run, request(metrics=("accuracy",), ks=(1,), similarity="euclidean"), listener)
    assert {(score.metric, score.ranked.similarity) for score in scores} == {("R@1", "euclidean")}
    assert "accuracy skipped: an ensemble has no classifier" in listener.heard
