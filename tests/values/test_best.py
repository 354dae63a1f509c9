from __future__ import annotations

from layerprobe.values.best import Best, best_layer, best_text, worse_text

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
    assert text.startswith("best on choosing classes: pool5, 90.0 %; on test 20.0 %; ")
    assert text.endswith("; not significantly different on choosing classes: fc6")


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
