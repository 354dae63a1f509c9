from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.values.choice import Choice, ImageCost, TruncationSavings
from layerprobe.values.layers import LayerKey, spoken_name
from layerprobe.values.records import RecordedNetwork
from layerprobe.workflow.choose.choose import choose_runs, cut_after
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.run.runs import Run
from tests.records import recorded
from tests.workflow.conftest import Silent
from tests.workflow.selection_runs import C1, C2, FC6, FIRST, hits, labels_of, write_run
from tests.workflow.stored_ranks import ranked

GOOD, FAIR, POOR = hits(*[4] * 20), hits(*[3] * 20), hits(*[1] * 20)  # 100 %, 75 % and 25 %
HELD_OUT = {"validation": {C1: POOR, C2: GOOD, FC6: FAIR}, "test": {C1: GOOD, C2: FAIR, FC6: POOR}}


def network_of(embedding: str) -> dict[str, Any]:
    """The record of a network with a vector as its embedding."""
    found: dict[str, Any] = json.loads(
        json.dumps(RecordedNetwork(("c1", "c2", "fc6"), LayerKey(embedding, "none"), {}, None, {}).as_json())
    )
    return found


def halves(split: str) -> dict[str, NDArray[np.float32]]:
    """c1 and c2 of 12 classes, which each tell by one of two digits."""
    rng, digits = np.random.default_rng(FIRST[split]), labels_of(split, 12) - FIRST[split]
    parts = 0.3 * rng.standard_normal((2, len(digits), 4)) + np.stack([np.eye(4)[digits % 4], np.eye(4)[digits // 4]])
    return dict(zip(("c1@max", "c2@max"), parts.astype(np.float32), strict=True))


def run_with_two_halves(cache: Path) -> Run:
    """A run that was probed with `--layers c1@max,c2@max,c1+c2@max`."""
    features = {split: halves(split) for split in ("validation", "test")}
    asked = dict.fromkeys((C1, C2, ranked("c1+c2@max")), np.ones(48))
    return write_run(cache, "a", dict.fromkeys(features, asked), features=features)


def recall(values: NDArray[np.floating], labels: NDArray[np.int64]) -> float:
    """Recall@1 by brute force."""
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -9)
    return float((labels[cosines.argmax(1)] == labels).mean())


def chosen(*runs: Run, epochs: str = "all", within: float = 1.0) -> Choice:
    return choose_runs(runs, ChooseRequest(epochs, within, "cpu"), Silent())


def test_the_best_on_validation_is_chosen_and_told_on_test(tmp_path: Path) -> None:
    found = chosen(write_run(tmp_path, "a", HELD_OUT))
    assert (found.selected.layer, found.selected.epoch, found.selected.dim, found.selected.bytes_per_image) == (
        "c2",
        2,
        3,
        12,
    )
    assert found.test is not None
    assert found.best_on_test is not None
    assert (found.chosen.split, found.chosen.value, found.test.value, found.test.split) == (
        "validation",
        1,
        0.75,
        "test",
    )
    assert (found.best_on_test.ranked.layer.layer, found.best_on_test.value, found.regret) == ("c1", 1, 0.25)
    assert (found.run, found.conclusive, dict(found.shares)) == ("a", True, {"c2@max": 1.0})


def test_identical_images_are_told_with_the_value_of_the_layer_that_is_chosen(tmp_path: Path) -> None:
    identical = np.arange(80) % 4 == 0  # the first of each class, which c2 hits, as it does 2 of the other 3
    found = chosen(write_run(tmp_path, "a", HELD_OUT, identical=identical))
    line = "test: 20 of 80 queries have an identical image in what they search; without those R@1 of c2 is 66.7 %"
    assert [note for note in found.notes if "identical" in note] == [line]


def test_points_that_do_not_matter_take_no_cheaper_layer_of_a_lower_mean(tmp_path: Path) -> None:
    near = hits(*[4, 3] * 10)  # 12.5 points below c2
    run = write_run(tmp_path, "a", {"validation": {C1: near, C2: GOOD}, "test": {C1: FAIR, C2: FAIR}})
    assert [chosen(run, within=within).selected.layer for within in (1, 26)] == ["c2", "c2"]


def test_of_layers_alike_in_recall_the_raw_one_is_preferred_where_their_features_are_gone(tmp_path: Path) -> None:
    white = ranked("c2@max", "l2+whiten:2:0.5+l2")
    near, far = hits(*[4, 3, 2, 3] * 5), hits(*[1] * 20)  # 75 %, and 25 %
    test = {C2: FAIR, white: FAIR}
    tied = write_run(tmp_path, "a", {"validation": {C2: near, white: FAIR}, "test": test})
    ahead = write_run(tmp_path, "b", {"validation": {C2: far, white: FAIR}, "test": test})
    assert [chosen(run).preferred.name for run in (tied, ahead)] == ["c2@max", str(white)]


@pytest.mark.parametrize(("classes", "grows"), [(10, True), (20, False)])
def test_bounds_are_for_the_gallery_of_test(classes: int, grows: bool, tmp_path: Path) -> None:
    # Every miss has one closer negative, which half of the halved galleries leave out: odds of misses e and of e / 2.
    few = {C1: hits(*[4, 3, 2, 2] * 5)[: 4 * classes], C2: hits(*[3, 4, 3, 2] * 5)[: 4 * classes]}
    both, alone = {"validation": few, "test": {C1: FAIR, C2: FAIR}}, {"validation": few}
    found, here = chosen(write_run(tmp_path, "a", both)), chosen(write_run(tmp_path, "b", alone))
    misses = 1 - np.mean([few[C1], few[C2]])
    odds, halved = misses / (1 - misses), misses / 2 / (1 - misses / 2)
    odds *= (odds / halved) ** np.log2(19 / (classes - 1))
    growth = odds / (1 + odds) ** 2 / (misses * (1 - misses))
    assert here.max_loss is not None
    assert found.max_loss == pytest.approx(growth * here.max_loss)
    assert (found.gallery_classes, here.gallery_classes) == (20, classes)
    assert (growth > 1 + 1e-9) == grows


@pytest.mark.parametrize(("noise", "gallery"), [(0.05, 4), (1.5, 20)])
def test_what_is_searched_within_folds_is_extrapolated_to_all_classes(
    noise: float, gallery: int, tmp_path: Path
) -> None:
    # Where no query misses within folds of 4 classes there is nothing to extrapolate from.
    white, rng = ranked("c2@max", "l2+whiten:2:0.5+l2"), np.random.default_rng(0)
    centres = rng.normal(size=(20, 3))[labels_of("test") - 200]
    features = {"test": {"c2@max": (centres + noise * rng.normal(size=centres.shape)).astype(np.float32)}}
    run = write_run(tmp_path, "a", {"test": {C2: GOOD, white: GOOD}}, epochs=(0,), features=features)
    found = chosen(run)
    assert (found.classes, found.gallery_classes) == (20, gallery)


def test_recall_in_fifths_without_identical_images_is_labelled(tmp_path: Path) -> None:
    white, rng = ranked("c2@max", "l2+whiten:2:0.5+l2"), np.random.default_rng(0)
    centres = rng.normal(size=(20, 3))[labels_of("test") - 200]
    features = {"test": {"c2@max": (centres + 0.3 * rng.normal(size=centres.shape)).astype(np.float32)}}
    layers, identical = {"test": {C2: GOOD, white: GOOD}}, np.arange(80) % 4 == 0
    found = chosen(write_run(tmp_path, "a", layers, epochs=(0,), features=features, identical=identical))
    (line,) = (note for note in found.notes if "identical" in note)
    assert f"R@1 of {spoken_name(found.chosen.ranked)}, in fifths of the classes, is " in line


def test_epoch_0_of_what_starts_untrained_is_chosen_on_train(tmp_path: Path) -> None:
    layers = {"train": {C1: FAIR, C2: GOOD}, "test": {C1: FAIR, C2: POOR}}
    run = write_run(tmp_path, "a", layers, epochs=(0, 2))
    found = chosen(run, epochs="0")
    assert (found.selected.layer, found.selected.epoch, found.chosen.split) == ("c2", 0, "train")


def test_what_has_seen_its_training_classes_is_cross_fitted_on_test(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", {"train": {C1: GOOD, C2: POOR}, "test": {C1: POOR, C2: GOOD}}, epochs=(0, 2))
    found = chosen(run)
    assert (found.preferred.layer, found.chosen.split, found.classes) == ("c2", "test", 20)
    text = "cross-fitted on the 20 test classes, as the network was trained on the 20 training classes"
    assert (found.basis, " ".join(str(found).split()).startswith(f"a: {text.capitalize()}.")) == (text, True)
    how = "train with --set data.validation_classes=0.2: it trains without 4 of 20 classes, about 16 of 80 images"
    assert f"to choose without the test classes, {how}" in found.notes


def test_post_processing_that_were_fitted_on_training_classes_search_the_whole_test_gallery(tmp_path: Path) -> None:
    whitened = replace(C1, post_processing="l2+whiten:2:0.5+l2")
    ranked_on = {"train": {C1: GOOD, whitened: GOOD}, "test": {C1: POOR, whitened: GOOD}}
    found = chosen(write_run(tmp_path, "a", ranked_on))
    assert found.preferred.post_processing == whitened.post_processing
    assert found.preferred_test is not None
    assert (found.preferred_test.value, found.basis[:12]) == (1, "cross-fitted")
    assert "every fold searches the whole gallery" in found.notes


def test_training_classes_alone_are_not_chosen_on_once_seen(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", {"train": {C1: FAIR}}, epochs=(0, 2))
    with pytest.raises(RecipeError, match="a has seen its training classes, and there are no others.*hold") as caught:
        chosen(run)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("splits", "net", "data", "said"),
    [
        (("train", "validation", "test"), {"weights": "ckpt/own.pth"}, {}, "own.pth was not trained on the 20 valid"),
        (("test",), {"weights": "own.pth"}, {"train_classes": 0}, "own.pth was not trained on the 20 test classes"),
        (("train", "test"), {"weights": "own.pth"}, {"seen": False}, "own.pth was not trained on the 20 selection and"),
        (("train", "test"), {"weights": "own.pth"}, {}, "own.pth was not trained on the 20 test classes"),
        (("train", "test"), {"weights": "run:b"}, {}, "run:b was not trained on the 20 test classes"),
        (("train", "test"), {"name": "python:mine.py:f"}, {}, "python:mine.py:f was not trained on the 20 selection"),
        (("train", "test"), {"name": "timm:x", "weights": "model"}, {}, None),
    ],
)
def test_weights_whose_training_nobody_knows_are_assumed_not_to_have_seen_the_classes(
    tmp_path: Path, splits: tuple[str, ...], net: dict[str, str], data: dict[str, Any], said: str | None
) -> None:
    run = write_run(tmp_path, "a", {split: {C1: GOOD, C2: FAIR} for split in splits}, epochs=(0,), net=net, data=data)
    assumed = [note for note in chosen(run).notes if note.startswith("assumed, not verified: ")]
    assert len(assumed) == (said is not None)
    assert all(note.startswith(f"assumed, not verified: {said}") for note in assumed)


def test_a_run_that_was_trained_here_with_validation_classes_assumes_nothing(tmp_path: Path) -> None:
    layers = {split: {C1: GOOD, C2: FAIR} for split in ("train", "validation", "test")}
    found = chosen(write_run(tmp_path, "a", layers, epochs=(2,), net={"name": "python:mine.py:f"}))
    assert (found.basis, [note for note in found.notes if "assumed" in note]) == ("", [])


def test_without_training_classes_the_choice_is_cross_fitted(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", {"test": {C1: POOR, C2: GOOD}}, epochs=(0,))
    found = chosen(run)
    assert found.test is not None
    assert (found.selected.layer, found.chosen.split, found.test.value) == ("c2", "test", 1)
    assert "cross-fitted, 5 folds" in found.chosen.notes
    assert "every fold searches the whole gallery" in found.notes


def test_trainings_of_one_experiment_are_one_candidate_by_their_mean(tmp_path: Path) -> None:
    # c1 is 100 % and 25 %, c2 75 % in both: 62.5 % against 75 %
    runs = [
        write_run(tmp_path, name, {"validation": {C1: first, C2: FAIR}, "test": {C1: first, C2: FAIR}}, seed=seed)
        for seed, (name, first) in enumerate([("a", GOOD), ("b", POOR)])
    ]
    found = chosen(*runs)
    assert (found.run, found.chosen.value, found.chosen.seed, found.chosen.n) == ("e", 0.75, None, 2)
    assert (found.selected.layer, found.regret) == ("c2", 0)
    assert "experiment e: mean of a, b" in found.notes


def test_each_class_is_judged_by_the_run_that_held_it_out(tmp_path: Path) -> None:
    few = hits(*[4] * 10)
    folds = [
        write_run(
            tmp_path,
            f"f{fold}",
            {"validation": {C1: few, C2: few * (1 - fold)}, "test": {C1: FAIR, C2: FAIR}},
            fold=fold,
            data={"validation_folds": 2, "validation_fold": fold},
        )
        for fold in (0, 1)
    ]
    found = chosen(*folds)
    assert (found.classes, found.candidates) == (20, 2)
    assert (found.selected.layer, found.chosen.value) == ("c1", 1)
    assert "each class is scored by the runs that held it out" in found.notes
    alone = "missing of 2 folds: 1; name their runs to choose on every class"
    assert alone in chosen(folds[0]).notes
    assert alone not in found.notes


def test_experiments_compete_and_say_whose_a_candidate_is(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path, name, {"validation": {C1: own}, "test": {C1: FAIR}}, experiment=name)
        for name, own in (("a", FAIR), ("b", GOOD))
    ]
    found = chosen(*runs)
    assert (found.run, dict(found.shares)) == ("b", {"b#2:c1@max": 1.0})


def test_runs_of_one_recipe_on_other_images_are_not_chosen_among_as_one(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path, name, HELD_OUT, seed=seed, contents={"test": name}) for seed, name in enumerate(("a", "b"))
    ]
    with pytest.raises(RecipeError, match="a and b have one recipe, but other test images: no seeds of one experiment"):
        chosen(*runs)


@pytest.mark.parametrize(
    ("other", "data", "message"),
    [
        ({"validation": {C1: hits(*[4] * 12)}, "test": {C1: FAIR}}, {}, "48 and 80 images|80 and 48 images"),
        ({"train": {C1: FAIR}, "test": {C1: FAIR}}, {"seen": False}, "a would be chosen on validation, b on train"),
        (HELD_OUT, {"validation_folds": 2, "validation_fold": 1}, "hold out different folds"),
    ],
)
def test_runs_that_choose_on_other_classes_are_refused(
    tmp_path: Path, other: dict[str, dict[object, object]], data: dict[str, object], message: str
) -> None:
    first = write_run(tmp_path, "a", HELD_OUT)
    net = {"weights": "file.pt"}
    second = write_run(tmp_path, "b", other, data=data, net=net, experiment="f", epochs=(0,))  # type: ignore[arg-type] # parametrised
    with pytest.raises(RecipeError, match=message):
        chosen(first, second)


def test_what_is_not_ranked_on_test_is_no_candidate_and_named(tmp_path: Path) -> None:
    found = chosen(write_run(tmp_path, "a", {"validation": {C1: FAIR, C2: GOOD}, "test": {C1: FAIR}}))
    assert found.selected.layer == "c1"
    assert "skipped: ranked on validation but not on test in a: c2@max" in found.notes


def test_a_layer_that_has_collapsed_is_named_and_not_shipped(tmp_path: Path) -> None:
    right = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)[np.arange(80) // 4]
    features = {"c1@max": np.ones((80, 2), np.float32), "c2@max": right, "fc6@none": np.ones((80, 4), np.float32)}
    layers = {split: {C1: GOOD, C2: GOOD} for split in ("validation", "test")}
    run = write_run(tmp_path, "one", layers, features=dict.fromkeys(layers, features))
    choice = chosen(run)
    assert choice.selected.layer == "c2"
    assert "skipped: one#2:c1@max: collapsed to one vector" in choice.notes
    dead = write_run(tmp_path, "two", {split: {C1: GOOD} for split in layers}, features=dict.fromkeys(layers, features))
    with pytest.raises(DataError, match="no layer can be chosen: skipped: two#2:c1@max: collapsed to one vector"):
        chosen(dead)


def test_permuted_labels_of_the_validation_classes_leave_no_layer_above_chance(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(20, 3)).astype(np.float32)[np.arange(80) // 4]
    features = {split: {"c1@max": centres[:, :2], "c2@max": centres} for split in ("validation", "test")}
    permuted = features | {"validation": {name: rng.permutation(of) for name, of in features["validation"].items()}}
    layers = {split: {C1: GOOD, C2: GOOD} for split in features}
    assert chosen(write_run(tmp_path, "a", layers, features=features)).selected.layer in ("c1", "c2")
    with pytest.raises(DataError, match="no layer is above chance on the 20 validation classes: c1@max, c2@max"):
        chosen(write_run(tmp_path, "b", layers, features=permuted))


def test_the_gain_over_the_embedding_is_paired_on_test(tmp_path: Path) -> None:
    layers = {"validation": {C1: POOR, C2: GOOD, FC6: FAIR}, "test": {C1: POOR, C2: GOOD, FC6: hits(*[3, 1] * 10)}}
    found = chosen(write_run(tmp_path, "a", layers, network=network_of("fc6")))
    assert found.embedding is not None
    assert (found.embedding.layer.name, found.embedding.test.value, found.advice) == ("fc6", 0.5, "switch")
    assert found.gain is not None
    expected = stats.ttest_1samp([0.25, 0.75] * 10, 0).confidence_interval(0.95)
    assert (found.gain.low, found.gain.high) == pytest.approx((expected.low, expected.high), abs=0.02)


def test_the_embedding_at_the_shipped_epoch_is_compared_though_it_is_no_candidate(tmp_path: Path) -> None:
    layers = {"validation": {C1: FAIR, FC6: GOOD}, "test": {C1: GOOD, FC6: FAIR}}
    run = write_run(tmp_path, "a", layers, epochs=(1, 2), network=network_of("fc6"))
    found = choose_runs([run], ChooseRequest("1", device="cpu", layers=("c1",)), Silent())
    assert (found.selected.name, found.selected.epoch, found.candidates) == ("c1@max", 1, 1)
    assert found.embedding is not None
    assert found.embedding.alike is not None
    assert (found.embedding.layer.epoch, found.embedding.alike.epoch) == (2, 1)
    assert found.embedding.gain is not None
    assert found.embedding.gain.difference == 0.25


def test_the_candidates_can_be_restricted_but_not_the_embedding(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", HELD_OUT, network=network_of("fc6"))
    found = choose_runs([run], ChooseRequest(device="cpu", layers=("c1",)), Silent())
    assert (found.selected.layer, found.candidates) == ("c1", 1)
    assert found.embedding is not None
    assert found.embedding.layer.name == "fc6"
    with pytest.raises(UnknownNameError, match="unknown candidate of a 'c9'"):
        choose_runs([run], ChooseRequest(device="cpu", layers=("c9",)), Silent())


def test_a_concatenation_that_is_named_is_a_candidate(tmp_path: Path) -> None:
    named = ChooseRequest(device="cpu", layers=("c*", "c1+c2@max"))
    found = choose_runs([run_with_two_halves(tmp_path)], named, Silent())
    assert (found.selected.layer, found.selected.pool, found.selected.dim, found.candidates) == (
        "c1+c2",
        "max",
        8,
        2,
    )
    for split, score in (("validation", found.chosen), ("test", found.test)):
        parts = [values.astype(np.float64) for values in halves(split).values()]
        joint = np.hstack([values / np.linalg.norm(values, axis=1, keepdims=True) for values in parts])
        assert score is not None
        assert score.value == pytest.approx(recall(joint, labels_of(split, 12)))
        assert score.value is not None
        assert score.value > max(recall(values, labels_of(split, 12)) for values in parts) + 0.2


@pytest.mark.parametrize("layers", [(), ("*",), ("c1", "c2")])
def test_a_concatenation_that_is_not_named_is_no_candidate(layers: tuple[str, ...], tmp_path: Path) -> None:
    found = choose_runs([run_with_two_halves(tmp_path)], ChooseRequest(device="cpu", layers=layers), Silent())
    assert not any("+" in name for name in found.shares)


def test_ranks_whose_scores_are_gone_hold_no_longer(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", HELD_OUT)
    lines = run.scores_file.read_text().splitlines(keepends=True)
    run.scores_file.write_text("".join(line for line in lines if ",c2," not in line))
    assert chosen(run).selected.layer == "fc6"


def test_without_test_classes_the_choice_stands_alone(tmp_path: Path) -> None:
    found = chosen(write_run(tmp_path, "a", {"validation": HELD_OUT["validation"]}))
    assert (found.selected.layer, found.test, found.best_on_test, found.regret, found.optimism) == ("c2", *[None] * 4)


def test_a_split_without_ranks_is_told_with_the_command_that_makes_them(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", HELD_OUT)
    run.rank_file(2, "validation").unlink()
    with pytest.raises(DataError, match="layerprobe probe a --epochs 2 --splits validation"):
        chosen(run)
    with pytest.raises(RecipeError, match="a has epochs 0 to 2"):
        chosen(run, epochs="3")


def test_a_second_choice_is_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    mixed = {split: {x: rng.random(80) < 0.8 for x in (C1, C2, FC6)} for split in ("validation", "test")}
    run = write_run(tmp_path, "a", mixed)
    assert chosen(run) == chosen(run)


def test_labels_of_splits_are_apart() -> None:
    assert not set(labels_of("validation")) & set(labels_of("test"))


def test_of_two_layers_that_rank_alike_the_earlier_in_the_network_is_chosen(tmp_path: Path) -> None:
    values = {split: halves(split)["c1@max"] for split in ("validation", "test")}
    late, early = (
        write_run(
            tmp_path,
            name,
            {split: {layer: np.ones(48)} for split in values},
            features={split: {str(layer): of_split} for split, of_split in values.items()},
            experiment=name,
        )
        for name, layer in (("late", C2), ("early", C1))
    )
    found = chosen(late, early)
    assert (found.run, found.selected.layer, found.candidates) == ("early", "c1", 1)


def test_what_comes_after_the_selected_layer_is_not_paid_for(tmp_path: Path) -> None:
    network = network_of("fc6") | {"cuts": {"c1": [0.5, 0.25], "c2": [0.25, 0.125], "fc6": [0.0, 0.0]}}
    found = chosen(write_run(tmp_path, "a", {split: {C1: GOOD} for split in HELD_OUT}, network=network))
    assert found.cut == TruncationSavings(0.5, 0.25)
    assert found.cost == found.preferred_cost == ImageCost(8, 0.75)


CUTS = {"a": [0.5, 0.25], "b": [0.125, None]}
NETWORK = {"layers": ["a", "b"], "embedding": ["b", "max"], "cuts": CUTS, "input": None, "files": {}}


def test_of_two_layers_one_of_unknown_multiply_adds_makes_the_share_unknown() -> None:
    record = recorded({"network": NETWORK})
    assert cut_after(record, LayerKey("a", "max")) == TruncationSavings(0.5, 0.25)
    assert cut_after(record, LayerKey("a+b", "max")) == TruncationSavings(0.125, None)
