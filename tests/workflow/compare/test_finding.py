from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerprobe import store
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.values.layers import LayerKey
from layerprobe.workflow.compare.finding import (
    BestOnValidation,
    best_on_validation,
    choose_on_validation,
    findings,
    findings_of,
    inputs_of,
)
from layerprobe.workflow.run.runs import Run
from tests.records import rewrite
from tests.workflow.rank_files import FC6, POOL5, first_hit, ranks_of, stored, written

LAYERS = ["pool5", "fc6"]


def finding(run: Run) -> str:
    """The finding of the layer before the embedding."""
    (found,) = findings_of([inputs_of(run)], [None])
    return found


def run_of(cache: Path, name: str = "one", *, seed: int = 0, better: int = 9) -> Run:
    """A run of 12 classes of two images: of test, one image of `better` of them is found by pool5, of six by fc6."""
    run = Run(cache / name)
    test = stored(run, 5, "test", {POOL5: first_hit(better), FC6: first_hit(6)})
    train = stored(run, 5, "train", {POOL5: first_hit(12), FC6: first_hit(9)})
    written(run, train, test, layer_order=LAYERS, seed=seed)
    return run


def test_the_layer_before_the_embedding_is_compared_with_it(tmp_path: Path) -> None:
    text = finding(run_of(tmp_path))
    # 9 and 6 of 24 test images, 12 and 9 of 24 training images
    assert "pool5@max, the layer before the embedding," in text
    assert "and the embedding fc6 do not differ significantly on unseen classes" in text
    assert "R@1 37.5 % against 25.0 %, +12.5 points (95 % interval over 12 classes" in text
    assert text.endswith("On the training classes they reach 50.0 % against 37.5 %.")


def test_the_last_epoch_that_is_ranked_counts(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    rewrite(run, epochs_done=9)
    assert "(one, epoch 5)" in finding(run)


def test_an_epoch_that_is_ranked_and_not_scored_yet_does_not_count(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    rewrite(run, epochs_done=6)
    stored(run, 6, "test", {POOL5: first_hit(1), FC6: first_hit(1)})
    assert "(one, epoch 5)" in finding(run)


def test_without_training_ranks_they_are_not_mentioned(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    run.rank_file(5, "train").unlink()
    assert "training classes" not in finding(run)


def test_a_layer_that_may_not_be_the_last_but_one_is_not_called_so(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    network = run.read().network
    assert network is not None
    rewrite(run, network=replace(network, layers=("pool5", "norm5", "fc6")))
    text = finding(run)
    assert "pool5@max, the last layer probed before the embedding," in text


def test_a_layer_that_equals_the_embedding_is_not_passed_over_unsaid(tmp_path: Path) -> None:
    found = inputs_of(run_of(tmp_path))
    same = replace(found, layers=replace(found.layers, adjacent=False), same=frozenset({LayerKey("head", "none")}))
    assert same.name == "pool5@max, the last layer probed that differs from the embedding,"


def test_too_few_classes_for_an_interval_are_told(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    labels = np.repeat(np.arange(3), 2)
    ranks = {POOL5: ranks_of([1, 1, 0, 0, 0, 0]), FC6: ranks_of([1, 0, 0, 0, 0, 0])}
    written(run, stored(run, 5, "test", ranks, labels=labels), layer_order=LAYERS)
    assert "+16.7 points (no interval: 3 classes, and it takes 10)" in finding(run)


def test_an_embedding_that_is_not_ranked_is_told_with_the_command(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    written(run, stored(run, 5, "test", {POOL5: first_hit(3)}), layer_order=LAYERS)
    with pytest.raises(
        DataError, match="fc6 and a layer before it are not both ranked at epoch 5. Run layerprobe probe"
    ):
        inputs_of(run)


def test_a_run_whose_embedding_is_not_known_has_no_finding(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    rewrite(run, network=None)
    with pytest.raises(
        RecipeError, match="not known which layer is the embedding. Name two layers of one to layerprobe compare"
    ):
        inputs_of(run)


PAIRS = np.repeat(np.arange(12), 2)
POOL3 = replace(POOL5, layer=LayerKey("pool3", POOL5.layer.pool))


def run_with_validation(cache: Path, name: str, validation: tuple[int, int, int], *, seed: int = 0) -> Run:
    """A run of three layers: of validation, one image of so many of 12 classes is found by pool3, pool5 and fc6."""
    run = Run(cache / name)
    test = stored(run, 5, "test", {POOL3: first_hit(12), POOL5: first_hit(9), FC6: first_hit(6)})
    hits = dict(zip((POOL3, POOL5, FC6), map(first_hit, validation), strict=True))
    written(run, test, stored(run, 5, "validation", hits, labels=PAIRS), layer_order=["pool3", *LAYERS], seed=seed)
    return run


def test_the_best_on_validation_comes_first(tmp_path: Path) -> None:
    found = findings([run_with_validation(tmp_path, "one", (8, 7, 6))])
    chosen, fixed = found.sentences
    # on test 12 and 6 of 24
    assert "pool3@max, the best of 3 layers on validation," in chosen
    assert "R@1 50.0 % against 25.0 %, +25.0 points (95 % interval over 12 classes" in chosen
    assert "pool5@max, the layer before the embedding," in fixed


def test_a_best_on_validation_that_another_layer_equals_is_called_a_tie(tmp_path: Path) -> None:
    chosen = findings([run_with_validation(tmp_path, "one", (8, 7, 8))]).sentences[0]
    assert "pool3@max, the best of 3 layers on validation, tied with 1 other, retrieves" in chosen


def test_without_validation_the_best_on_unseen_training_classes_comes_first(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    test = stored(run, 0, "test", {POOL3: first_hit(12), POOL5: first_hit(9), FC6: first_hit(6)})
    train = stored(run, 0, "train", {POOL3: first_hit(8), POOL5: first_hit(7), FC6: first_hit(6)})
    written(run, test, train, layer_order=["pool3", *LAYERS])
    rewrite(run, epochs_done=0, recipe={"data": {"name": "glyphs"}, "train": {"epochs": 0}})
    chosen, _ = findings([run]).sentences
    assert "pool3@max, the best of 3 layers on selection classes," in chosen
    assert chosen.endswith("On the selection classes they reach 33.3 % against 25.0 %.")
    found = best_on_validation(run, [*test, *train], {POOL3: "pool3", POOL5: "pool5", FC6: "fc6"})
    assert found.startswith("one, epoch 0: best on selection classes: pool3, 33.3 %; on test 50.0 %")
    rewrite(run, recipe={"data": {"name": "glyphs"}, "train": {"epochs": 5}})
    (fixed,) = findings([run]).sentences
    assert "the layer before the embedding," in fixed
    assert best_on_validation(run, [*test, *train], {POOL3: "pool3", POOL5: "pool5", FC6: "fc6"}) == ""


def test_several_runs_have_a_sentence_each(tmp_path: Path) -> None:
    chosen, other = run_with_validation(tmp_path, "one", (8, 7, 6)), run_of(tmp_path, "two")
    first, second = findings([chosen, other]).sentences
    assert "pool3@max, the best of 3 layers on validation," in first
    assert "pool5@max, the layer before the embedding," in second


@pytest.mark.parametrize("validation", [(6, 7, 6), (6, 7, 8)])
def test_the_best_on_test_is_never_chosen(tmp_path: Path, validation: tuple[int, int, int]) -> None:
    (fixed,) = findings([run_with_validation(tmp_path, "one", validation)]).sentences
    assert "pool5@max, the layer before the embedding," in fixed


def test_of_validation_ranks_that_are_not_exact_for_the_first_item_no_best_is_told(tmp_path: Path) -> None:
    run = run_with_validation(tmp_path, "one", (8, 7, 6))
    inputs = inputs_of(run)
    place = inputs.validation
    assert place is not None
    rough = {**place.stored.ranks, POOL5: replace(first_hit(7), closer_high=first_hit(7).closer + 9)}
    inputs = replace(inputs, validation=replace(place, stored=replace(place.stored, ranks=rough)))
    assert choose_on_validation([inputs]) is None


def test_a_layer_with_several_pools_is_one_of_those_that_the_best_is_chosen_among(tmp_path: Path) -> None:
    run, avg = Run(tmp_path / "one"), replace(POOL3, layer=LayerKey("pool3", "avg"))
    hits = {POOL3: first_hit(8), avg: first_hit(5), POOL5: first_hit(7), FC6: first_hit(6)}
    validation = stored(run, 5, "validation", hits, labels=PAIRS)
    written(run, stored(run, 5, "test", hits), validation, layer_order=["pool3", *LAYERS])
    assert choose_on_validation([inputs_of(run)]) == BestOnValidation(POOL3, 3)


def test_layers_side_by_side_are_not_among_those_that_the_best_is_chosen_among(tmp_path: Path) -> None:
    run, both = Run(tmp_path / "one"), replace(POOL3, layer=LayerKey("pool3+pool5", POOL3.layer.pool))
    hits = {POOL3: first_hit(8), POOL5: first_hit(7), both: first_hit(12), FC6: first_hit(6)}
    validation = stored(run, 5, "validation", hits, labels=PAIRS)
    written(run, stored(run, 5, "test", hits), validation, layer_order=["pool3", *LAYERS])
    assert choose_on_validation([inputs_of(run)]) == BestOnValidation(POOL3, 3)


def test_the_embedding_by_a_second_name_is_not_the_best_on_validation(tmp_path: Path) -> None:
    run, same = Run(tmp_path / "one"), replace(FC6, layer=LayerKey("head", "none"))
    hits = {POOL5: first_hit(7), same: first_hit(8), FC6: first_hit(8)}
    validation = stored(run, 5, "validation", hits, labels=PAIRS)
    written(run, stored(run, 5, "test", hits), validation, layer_order=["pool5", "head", "fc6"])
    values = {layer.layer: np.ones((24, 1), np.float32) for layer in (FC6, same)}
    path, rows = run.feature_file(5, "test"), store.Rows(PAIRS, [str(i) for i in range(24)])
    path.parent.mkdir()
    key, columns = store.FeatureKey("one", 5, "test", "", "", ""), store.Columns(dict.fromkeys(values, 1), "cpu", 8)
    store.write_features(path, key, rows, columns, [values])
    inputs = inputs_of(run)
    assert inputs.layers.before == POOL5
    assert choose_on_validation([inputs]) is None


def test_over_trainings_the_best_mean_on_validation_is_chosen(tmp_path: Path) -> None:
    # pool3 and pool5 reach 12 and 9, and 3 and 8: on the mean 7.5 and 8.5
    worse = [run_with_validation(tmp_path, "a", (12, 9, 0)), run_with_validation(tmp_path, "b", (3, 8, 0), seed=1)]
    assert choose_on_validation([inputs_of(run) for run in worse]) is None
    better = [worse[0], run_with_validation(tmp_path, "c", (6, 8, 0), seed=2)]
    assert choose_on_validation([inputs_of(run) for run in better]) == BestOnValidation(POOL3, 3)
    assert "over 2 trainings (a, c; epoch 5)" in findings(better).sentences[0]


def test_trainings_of_one_experiment_have_one_finding(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, "s1", seed=1, better=12), run_of(tmp_path, "s0", seed=0, better=6)]
    found = findings(runs)
    (text,) = found.sentences
    # 12 and 6 of 24 by pool5, 6 of 24 by fc6
    assert "pool5@max, the layer before the embedding," in text
    assert "over 2 trainings (s0, s1; epoch 5)" in text
    assert "37.5 % against 25.0 % on the mean, +12.5 points" in text
    assert "(seed 0 +0.0, seed 1 +25.0)" in text
    assert text.endswith("On the training classes they reach 50.0 % against 37.5 % on the mean.")
    assert found.missing == ()


def test_runs_on_other_images_have_a_finding_each(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, f"s{seed}", seed=seed) for seed in (0, 1)]
    for run in runs:
        rewrite(run, manifests={"test": "m", "train": "m"}, contents={"test": run.name})
    found = findings(runs)
    assert [re.findall(r"\((\w+), epoch 5\)", text) for text in found.sentences] == [["s0"], ["s1"]]


def test_several_runs_of_one_seed_are_no_trainings(tmp_path: Path) -> None:
    found = findings([run_of(tmp_path, name) for name in ("a", "b")])
    assert [re.findall(r"\((\w), epoch 5\)", text) for text in found.sentences] == [["a"], ["b"]]


def test_a_run_without_a_finding_says_why_and_the_others_have_theirs(tmp_path: Path) -> None:
    damaged = run_of(tmp_path, "damaged")
    damaged.rank_file(5, "test").write_bytes(b"no HDF5")
    found = findings([damaged, run_of(tmp_path, "whole")])
    assert ["(whole, epoch 5)" in text for text in found.sentences] == [True]
    (why,) = found.missing
    assert why.startswith("damaged: no finding: ")
    assert "epoch-0005.test.h5" in why


def test_the_best_on_validation_is_named_with_its_test_value(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    scores = [
        *stored(run, 5, "validation", {POOL5: first_hit(6), FC6: first_hit(3)}, labels=np.repeat(np.arange(12), 2)),
        *stored(run, 5, "test", {POOL5: first_hit(9), FC6: first_hit(12)}),
    ]
    text = best_on_validation(run, scores, {POOL5: "pool5", FC6: "fc6"})
    assert text == "one, epoch 5: best on validation: pool5, 25.0 %; on test 37.5 %."


def test_what_is_best_on_test_alone_is_not_named(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    scores = stored(run, 5, "test", {POOL5: first_hit(9), FC6: first_hit(12)})
    assert best_on_validation(run, scores, {POOL5: "pool5", FC6: "fc6"}) == ""


def test_each_layer_at_its_best_post_processing_stands_beside_and_is_corrected_together(tmp_path: Path) -> None:
    run, white = Run(tmp_path / "one"), replace(FC6, post_processing="l2+whiten:2:0.5+l2")
    test = stored(run, 5, "test", {POOL5: first_hit(9), FC6: first_hit(6), white: first_hit(10)})
    # On validation fc6 is better whitened, pool5 has no post-processing.
    hits = {POOL5: first_hit(7), FC6: first_hit(6), white: first_hit(8)}
    written(run, test, stored(run, 5, "validation", hits, labels=PAIRS), layer_order=LAYERS)
    text = finding(run)
    processed = (
        "Each at its best post-processing on validation: pool5@max 37.5 % against fc6/l2+whiten:2:0.5+l2 41.7 %,"
    )
    assert processed in text
    assert text.count("corrected by Holm for 2 comparisons") == 2


def test_post_processing_that_is_better_on_test_alone_is_not_chosen(tmp_path: Path) -> None:
    run, white = Run(tmp_path / "one"), replace(FC6, post_processing="l2+whiten:2:0.5+l2")
    test = stored(run, 5, "test", {POOL5: first_hit(9), FC6: first_hit(6), white: first_hit(10)})
    hits = {POOL5: first_hit(7), FC6: first_hit(6), white: first_hit(5)}
    written(run, test, stored(run, 5, "validation", hits, labels=PAIRS), layer_order=LAYERS)
    assert "post-processing" not in finding(run)
