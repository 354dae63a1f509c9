from __future__ import annotations

from dataclasses import replace

from layerprobe.values.choice import (
    Choice,
    Embedding,
    Gain,
    Price,
    Ship,
    TruncationSavings,
    advice_text,
    choice_lines,
    ship_text,
    verdict_text,
)
from layerprobe.values.scores import Subject
from tests.workflow.choosing_runs import C1, C2, FC6

CHOSEN = Subject("a", "e", 0, 2, "validation", C1).score("R@1", 0.9, 80)
TEST = Subject("a", "e", 0, 2, "test", C1).score("R@1", 0.8, 80)
BEST = Subject("a", "e", 0, 2, "test", C2).score("R@1", 0.83, 80)
TODAY = Subject("a", "e", 0, 2, "test", FC6).score("R@1", 0.7, 80)
SHIP, FC = Ship("c1", "max", "none", 2, 100, 400), Ship("fc6", "none", "none", 2, 128, 512)
CHOICE = Choice(
    run="a", ship=SHIP, chosen=CHOSEN, test=TEST, embedding=Embedding(FC, TODAY), gain=Gain(0.1, 0.071, 0.129),
    price=Price(400, 0.6), advice="switch", verdict="clear", at_most=0.0, expected_loss=0.0, runner_up="c2@max",
    lead=Gain(0.021, 0.009, 0.033), equivalent=("c1@max",), candidates=14, classes=60, classes_needed=None,
    best_on_test=BEST, regret=0.03, optimism=0.012, shares={"#2:c1": 0.55, "#2:c2": 0.45},
)  # fmt: skip


def test_the_first_two_lines_are_the_advice_and_the_verdict() -> None:
    assert choice_lines(CHOICE)[:2] == [
        "a: switch from fc6 to c1@max: +10.0 points on test [7.1, 12.9].",
        "Clear: on 60 validation classes it is better than each of 13 others; the next, c2@max, lacks 2.1 points"
        " [0.9, 3.3].",
    ]
    assert choice_lines(replace(CHOICE, run=""))[0].startswith("Switch from fc6 to c1@max: ")


def test_each_advice_has_its_sentence() -> None:
    def text(advice: str, gain: Gain, **more: object) -> str:
        return advice_text(replace(CHOICE, advice=advice, gain=gain, **more))  # type: ignore[arg-type] # by test

    worse, small, wide = Gain(-0.05, -0.08, -0.02), Gain(0.002, -0.004, 0.008), Gain(0.01, -0.02, 0.04)
    assert text("keep", worse) == "keep fc6: c1@max is worse, -5.0 points on test [-8.0, -2.0]."
    assert text("keep", small, ship=FC) == "keep fc6: it is also what would be shipped."
    assert text("either", small) == (
        "either fc6 or c1@max will do: +0.2 points on test [-0.4, 0.8]; c1@max is the cheaper, 400 bytes an image."
    )
    assert text("unknown", wide) == (
        "whether to switch from fc6 to c1@max cannot be told from these classes: +1.0 points on test [-2.0, 4.0]."
    )
    few = text("unknown", Gain(0.1, None, None), at_most=None, classes=8)
    assert few.endswith("+10.0 points on test, too few classes for an interval; 8 classes are too few to choose on.")
    assert text("unknown", small, embedding=None) == (
        "ship c1@max; its gain is unknown: the embedding is not known, or not ranked on test."
    )


def test_the_same_layer_at_another_epoch_is_told_apart() -> None:
    earlier = replace(CHOICE, ship=replace(FC, epoch=1))
    assert advice_text(earlier).startswith("switch from fc6 at epoch 2 to fc6 at epoch 1: ")


def test_settled_candidates_are_counted() -> None:
    settled = replace(CHOICE, verdict="settled", at_most=0.8, equivalent=("c1", "c2", "c3"))
    assert verdict_text(settled) == (
        "Settled: any of 3 candidates will do; of the shipped c1@max, none is better by more than 0.8 points (95 %),"
        " and you allow 1."
    )
    assert verdict_text(replace(settled, equivalent=("c1",))) == (
        "Settled: on 60 validation classes, none is better by more than 0.8 points (95 %), and you allow 1."
    )


def test_an_open_choice_says_what_may_be_lost_and_what_would_settle_it() -> None:
    open_ = replace(CHOICE, verdict="open", at_most=3.9, expected_loss=0.5, classes=20, classes_needed=118)
    assert verdict_text(open_) == (
        "Open: 20 validation classes are too few. c1@max is best on them, but another may be up to 3.9 points better"
        " (95 %); a loss of 0.5 is to be expected. About 118 classes would settle it: hold more out, or use folds."
    )
    assert "would settle it" not in verdict_text(replace(open_, classes_needed=None))
    second = replace(open_, lead=Gain(-0.002, -0.01, 0.01))
    assert "c1@max is near the best on them" in verdict_text(second)


def test_few_classes_give_no_figures() -> None:
    few = replace(CHOICE, verdict="open", at_most=None, expected_loss=None, classes=8)
    assert verdict_text(few) == "Open: 8 classes are too few, so c1@max is the best mean only."
    assert not any("resamples" in line for line in choice_lines(few))


def test_the_embedding_and_what_is_shipped_stand_side_by_side() -> None:
    alike = Subject("a", "e", 0, 1, "test", FC6).score("R@1", 0.75, 80)
    embedding = Embedding(FC, TODAY, alike, Gain(0.05, 0.02, 0.08))
    lines = choice_lines(replace(CHOICE, embedding=embedding))
    assert lines[2:7] == [
        "  today: fc6, epoch 2: 128 numbers, 512 bytes an image; R@1 70.0 % on test",
        "  c1@max and fc6: they differ in dimensions (100, 128)",
        "  fc6 at epoch 2: R@1 75.0 % on test; over that, the layer gains +5.0 points [2.0, 8.0]",
        "  ship: c1@max, epoch 2: 100 numbers, 400 bytes an image",
        "  on test: R@1 80.0 %",
    ]


def test_the_best_on_test_is_labelled_with_regret_and_selection_bias() -> None:
    line = "  best on test, chosen by looking: a#2:c2@max, R@1 83.0 %; regret +3.0 points; selection bias +1.2 points"
    assert line in choice_lines(CHOICE)
    assert any(line.endswith("R@1 83.0 %") for line in choice_lines(replace(CHOICE, regret=None, optimism=None)))


def test_what_can_be_cut_is_said_where_it_is_known() -> None:
    cut = replace(CHOICE, cut=TruncationSavings(0.3326, 0.9992), price=Price(400, 0.0008))
    shares = "0.08 % of the network's multiply-adds and 67 % of its parameters"
    assert f"  ship: c1@max, epoch 2: 100 numbers, 400 bytes an image, {shares}" in choice_lines(cut)
    assert not any("multiply" in line for line in choice_lines(CHOICE))
    unknown = replace(CHOICE, cut=TruncationSavings(0.3326, None), price=Price(400, None))
    shares = "an unknown share of the network's multiply-adds and 67 % of its parameters"
    assert f"  ship: c1@max, epoch 2: 100 numbers, 400 bytes an image, {shares}" in choice_lines(unknown)


def test_what_a_score_says_and_the_choice_does_not_follows() -> None:
    chosen, test = replace(CHOSEN, notes=("few", "collapsed")), replace(TEST, notes=("few", "how", "3 lone"))
    lines = choice_lines(replace(CHOICE, chosen=chosen, test=test, notes=("how",)))
    assert lines[-4:] == ["how", "validation and test: few", "validation: collapsed", "test: 3 lone"]


def test_bits_are_no_numbers() -> None:
    bits = replace(SHIP, reduction="l2+binary", bytes_per_image=13)
    assert ship_text(bits) == "c1@max/l2+binary, epoch 2: 100 bits, 13 bytes an image"
