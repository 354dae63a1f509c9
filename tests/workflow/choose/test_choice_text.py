from __future__ import annotations

from dataclasses import replace

from layerprobe.values.choice import Choice, Ship, TruncationSavings
from layerprobe.values.scores import Subject
from layerprobe.workflow.choose.choice_text import choice_lines, next_step, ship_text
from tests.workflow.choosing_runs import C1, C2

CHOSEN = Subject("a", "e", 0, 2, "validation", C1).score("R@1", 0.9, 80)
TEST = Subject("a", "e", 0, 2, "test", C1).score("R@1", 0.8, 80)
BEST = Subject("a", "e", 0, 2, "test", C2).score("R@1", 0.83, 80)
SHIP = Ship("c1", "max", "l2+binary", 2, 100, 13)
CHOICE = Choice("a", CHOSEN, TEST, BEST, SHIP, 0.03, 0.012, {"#2:c1": 0.55, "#2:c2": 0.45}, False, ("#2:c2",))


def test_what_is_not_settled_names_what_is_equivalent() -> None:
    lines = choice_lines(CHOICE)
    assert lines[-2:] == ["  not settled: none reaches 60 %", "  equivalent by the same rule, but not cheaper: #2:c2"]
    settled = choice_lines(replace(CHOICE, settled=True, shares={"#2:c1": 0.9}))
    assert settled[-2:] == ["  chosen in resamples of the classes: #2:c1 90 %", "  settled"]


def test_regret_and_optimism_stand_apart_and_the_best_on_test_is_labelled() -> None:
    assert choice_lines(CHOICE)[2:6] == [
        "  on test: R@1 80.0 %",
        "  best on test, chosen by looking: a#2:c2@max, 83.0 %",
        "  regret: +3.0 points (best on test minus chosen)",
        "  optimism: +1.2 points (selection bias of the best on test)",
    ]


def test_what_can_be_cut_is_said_where_it_is_known() -> None:
    line = "  after the layer: 33 % of the network's parameters, 0.08 % of its multiply-adds"
    assert line in choice_lines(replace(CHOICE, cut=TruncationSavings(0.3326, 0.00083)))
    assert not any("multiply" in line for line in choice_lines(CHOICE))


def test_what_a_score_says_and_the_choice_does_not_follows() -> None:
    chosen, test = replace(CHOSEN, notes=("few", "collapsed")), replace(TEST, notes=("few", "how"))
    lines = choice_lines(replace(CHOICE, chosen=chosen, test=test, notes=("how",)))
    assert lines[-3:] == ["how", "validation: few; collapsed", "test: few"]


def test_bits_are_no_numbers() -> None:
    assert ship_text(SHIP) == "c1@max/l2+binary, epoch 2: 100 bits, 13 bytes an image"


def test_the_next_step_can_be_pasted() -> None:
    settled = replace(CHOICE, settled=True, ship=replace(SHIP, layer="relu#1"))
    command = "layerprobe probe b --epochs 2 --layers 'relu#1@max' --reduce l2+binary --export-index"
    assert next_step(settled, "b") == f"next: {command}"


def test_the_next_step_of_a_cross_fitted_choice_fits_on_what_is_searched() -> None:
    ship = replace(SHIP, reduction="l2+pca:8")
    crossed = replace(CHOICE, settled=True, ship=ship, chosen=replace(CHOSEN, split="test"))
    assert "--reduce l2+pca:8 --fit gallery --export-index" in next_step(crossed, "b")
    assert "gallery" not in next_step(replace(crossed, chosen=CHOSEN), "b")


def test_the_two_figures_of_a_cross_fitted_choice_are_told_apart() -> None:
    crossed = replace(CHOICE, chosen=replace(CHOSEN, split="test"))
    assert choice_lines(crossed)[1:3] == [
        "  chosen on test, all folds: R@1 90.0 %",
        "  on test, cross-fitted: R@1 80.0 %",
    ]


def test_features_without_a_run_have_no_epoch() -> None:
    best = replace(BEST, run="", epoch=0)
    lines = choice_lines(replace(CHOICE, run="", best_on_test=best, ship=replace(SHIP, epoch=None)))
    assert lines[0] == "ship c1@max/l2+binary: 100 bits, 13 bytes an image"
    assert lines[3] == "  best on test, chosen by looking: c2@max, 83.0 %"
