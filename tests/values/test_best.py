from __future__ import annotations

from collections.abc import Sequence

import pytest

from layerprobe.system.wording import encoded
from layerprobe.values.best import (
    Agreement,
    Best,
    agreement_lines,
    agreements,
    best_layer,
    best_text,
    last_agreements,
    worse_text,
)
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score

NAMES = ["conv", "pool5", "fc6"]


def test_a_best_is_chosen_on_validation_where_there_is_one() -> None:
    values = {"validation": [0.1, 0.9, 0.5], "test": [0.3, 0.2, 0.7]}
    assert best_layer(values) == Best(1, "validation", 1)


def test_without_validation_it_is_chosen_on_test() -> None:
    assert best_layer({"test": [0.3, 0.2, 0.7]}) == Best(2, "test", 1)
    assert best_layer({"validation": [None] * 3, "test": [0.3, 0.2, 0.7]}) == Best(2, "test", 1)


def test_a_layer_without_a_validation_value_is_not_passed_over() -> None:
    # fc6 has a test value and could be the best: validation cannot tell.
    assert best_layer({"validation": [0.1, 0.9, None], "test": [0.3, 0.2, 0.7]}) == Best(2, "test", 1)
    assert best_layer({"validation": [0.1, 0.9, None], "test": [0.3, 0.2, None]}) == Best(1, "validation", 1)


def test_unseen_training_classes_come_after_validation_and_before_test() -> None:
    values = {"train": [0.1, 0.9, 0.5], "test": [0.3, 0.2, 0.7]}
    assert best_layer(values) == Best(1, "train", 1)
    assert best_layer(values | {"validation": [0.9, 0.1, 0.2]}) == Best(0, "validation", 1)
    assert best_layer(values | {"train": [0.1, 0.9, None]}) == Best(2, "test", 1)
    text = best_text(Best(1, "train", 1), NAMES, values, ["fc6"])
    assert text.startswith("best on selection classes: pool5, 90.0 %; on test 20.0 %; ")
    assert text.endswith("; not significantly different on selection classes: fc6")


def test_without_test_values_validation_still_names_a_best() -> None:
    assert best_layer({"validation": [0.1, 0.9, 0.5]}) == Best(1, "validation", 1)


def test_without_any_value_there_is_no_best() -> None:
    assert best_layer({"validation": [None], "test": [None]}) is None
    assert best_layer({}) is None


def test_the_first_of_equals_is_the_best_and_they_are_counted() -> None:
    assert best_layer({"test": [0.3, 0.7, 0.7]}) == Best(1, "test", 2)


def test_a_best_says_where_it_was_chosen_and_what_it_has_on_test() -> None:
    values = {"validation": [0.9, 0.9, 0.5], "test": [0.3, 0.2, 0.7]}
    text = best_text(Best(0, "validation", 2), NAMES, values)
    assert text == "best on validation: conv, 90.0 %, tied with 1 other; on test 30.0 %"
    assert best_text(Best(2, "test", 1), NAMES, values) == "best on test (chosen on test): fc6, 70.0 %"
    assert best_text(Best(0, "validation", 1), NAMES, {"validation": [0.9]}) == "best on validation: conv, 90.0 %"


def test_four_equal_layers_are_a_tie_of_one_with_three_others() -> None:
    best = best_layer({"test": [0.7, 0.7, 0.7, 0.1, 0.7]})
    assert best is not None
    assert best_text(best, [*"abcde"], {"test": [0.7]}).endswith("a, 70.0 %, tied with 3 others")


def test_the_layers_not_told_apart_from_the_best_are_named() -> None:
    values = {"validation": [0.9, 0.8, 0.5], "test": [0.3, 0.2, 0.7]}
    best, on_validation = Best(2, "test", 1), Best(0, "validation", 1)
    assert best_text(best, NAMES, values, ["conv"]).endswith("fc6, 70.0 %; not significantly different: conv")
    text = best_text(on_validation, NAMES, values, ["pool5", "fc6"])
    assert text.endswith("; on test 30.0 %; not significantly different on validation: pool5, fc6")


def test_a_best_that_is_told_apart_from_all_others_says_so() -> None:
    text = best_text(Best(2, "test", 1), NAMES, {"test": [0.3, 0.2, 0.7]}, [])
    assert text == "best on test (chosen on test): fc6, 70.0 %; significantly better than all others"


def test_of_what_training_made_worse_the_layer_best_before_is_named() -> None:
    text = worse_text(NAMES, [0.4, 0.6, 0.5], [0.1, 0.572, 0.65], "R@1")
    assert text == "training made test R@1 worse at 2 of 3 layers, such as pool5: 57.2 %, untrained 60.0 %"


def test_an_untrained_layer_above_every_trained_one_is_told_as_such() -> None:
    text = worse_text(NAMES, [0.4, 0.6, 0.5], [0.5, 0.572, 0.55], "R@1")
    assert text.endswith("such as pool5: 57.2 %, untrained 60.0 %, which no trained layer reaches")


def test_a_loss_below_the_last_decimal_shown_is_none() -> None:
    assert worse_text(["a", "b"], [0.6001, None], [0.6, 0.1], "R@1") == ""


LAYERS = ["a", "b", "c", "d", "e"]
RECALLS = [0.1, 0.5, 0.3, 0.7, 0.9]
# Ranks of recall 1 3 2 4 5, of these 2 5 1 3 4: differences 1 2 1 1 1, so that rho = 1 - 6 * 8 / (5 * 24) = 0.6.
DIMENSIONS = [12.0, 40.0, 3.0, 14.0, 25.0]


def scores(
    metric: str, values: Sequence[float | None], split: str = "test", epoch: int = 9, of: str = "none"
) -> list[Score]:
    return [
        Score(
            "one",
            "x",
            0,
            epoch,
            split,
            RankedLayer(LayerKey(layer, "max"), of, "cosine"),
            metric,
            value,
            None,
            40,
        )
        for layer, value in zip(LAYERS, values, strict=False)
    ]


def correlations(*given: list[Score]) -> list[float | None]:
    return [each.correlation for each in agreements([score for part in given for score in part])]


def test_it_is_spearman_s_rank_correlation() -> None:
    assert correlations(scores("R@1", RECALLS), scores("two-nn", DIMENSIONS)) == [pytest.approx(0.6)]


def test_equal_values_share_their_mean_rank() -> None:
    # Ranks 1 2.5 2.5 4 against 1 2 3 4: the covariance is 4.5, the variances 4.5 and 5.
    found = correlations(scores("R@1", [0.1, 0.2, 0.3, 0.4]), scores("hubness", [0.0, 1.0, 1.0, 2.0]))
    assert found == [pytest.approx(4.5 / (4.5 * 5) ** 0.5)]


def test_each_split_and_epoch_and_post_processing_is_compared_with_its_own_recall() -> None:
    falling = [-value for value in RECALLS]
    given = [
        *scores("R@1", RECALLS), *scores("two-nn", RECALLS), *scores("R@1", falling, "train"),
        *scores("two-nn", RECALLS, "train"), *scores("R@1", falling, epoch=0), *scores("two-nn", RECALLS, epoch=0),
        *scores("R@1", falling, of="pca:8"), *scores("two-nn", RECALLS, of="pca:8"),
    ]  # fmt: skip
    found = {(each.split, each.epoch, each.post_processing): each.correlation for each in agreements(given)}
    assert found == {
        ("test", 9, "none"): 1, ("train", 9, "none"): -1, ("test", 0, "none"): -1, ("test", 9, "pca:8"): -1
    }  # fmt: skip


def test_layers_without_one_of_the_numbers_do_not_count() -> None:
    given = [*scores("R@1", [*RECALLS[:4], None]), *scores("two-nn", [0.1, 0.5, 0.3, 0.7, 99.0])]
    assert [(each.layers, each.correlation) for each in agreements(given)] == [(4, 1)]


def test_three_layers_are_too_few() -> None:
    assert correlations(scores("R@1", RECALLS[:3]), scores("two-nn", DIMENSIONS[:3])) == [None]


def test_equal_numbers_have_no_order() -> None:
    assert correlations(scores("R@1", RECALLS), scores("two-nn", [1.0] * 5)) == [None]


def test_numbers_that_need_labels_are_left_out() -> None:
    assert agreements([*scores("R@1", RECALLS), *scores("MAP@R", RECALLS), *scores("accuracy", RECALLS)]) == ()


def test_without_r_at_1_it_is_the_first_recall_that_is_measured() -> None:
    found = agreements([*scores("R@4", RECALLS), *scores("two-nn", RECALLS)])
    assert [(each.recall, each.correlation) for each in found] == [("R@4", 1)]


def test_a_summary_has_the_last_epoch_with_such_numbers() -> None:
    given = [*scores("two-nn", RECALLS, epoch=3), *scores("two-nn", DIMENSIONS, epoch=6)]
    given += [score for epoch in (3, 6, 9) for score in scores("R@1", RECALLS, epoch=epoch)]
    assert [(each.epoch, each.correlation) for each in last_agreements(given)] == [(6, 0.6)]
    assert last_agreements(scores("R@1", RECALLS)) == ()


def agreement(split: str = "test", layers: int = 6, correlation: float | None = 0.812) -> Agreement:
    return Agreement("two-nn", 20, split, "none", "cosine", "R@1", layers, correlation)


WHAT = "rank correlations are Spearman's over these layers; no layer is chosen by such numbers"


def test_splits_of_a_number_share_a_line() -> None:
    assert agreement_lines([agreement("train", correlation=-0.6), agreement()]) == [
        "two-nn at epoch 20: rank correlation with R@1 on train -0.60, on test 0.81, over 6 layers", WHAT
    ]  # fmt: skip


def test_a_line_says_that_there_are_too_few_layers() -> None:
    assert agreement_lines([agreement(layers=3, correlation=None)]) == [
        "two-nn at epoch 20: no rank correlation with R@1 of fewer than 4 layers", WHAT
    ]  # fmt: skip


def test_a_line_says_that_all_layers_are_equal() -> None:
    line = "two-nn at epoch 20: rank correlation with R@1 on test none, as all values of one are equal, over 6 layers"
    assert agreement_lines([agreement(correlation=None)]) == [line, WHAT]


def test_without_such_numbers_there_is_no_line() -> None:
    assert agreement_lines([]) == []


def test_json_has_what_is_compared_and_over_how_many_layers() -> None:
    assert encoded([agreement()]) == [
        {
            "metric": "two-nn",
            "epoch": 20,
            "split": "test",
            "post_processing": "none",
            "similarity": "cosine",
            "recall": "R@1",
            "layers": 6,
            "correlation": 0.812,
        }
    ]
