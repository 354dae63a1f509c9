from __future__ import annotations

from dataclasses import replace

import pytest

from layerprobe.values.choice import (
    Certainty,
    Choice,
    Embedding,
    Gain,
    ImageCost,
    SelectedLayer,
    advice_text,
    certainty_text,
    choice_lines,
    rounded_classes,
    verdict_text,
)
from layerprobe.values.scores import Subject
from tests.workflow.selection_runs import C1, C2, FC6

CHOSEN = Subject("a", "e", 0, 2, "validation", C1).score("R@1", 0.9, 80)
TEST = Subject("a", "e", 0, 2, "test", C1).score("R@1", 0.8, 80)
BEST = Subject("a", "e", 0, 2, "test", C2).score("R@1", 0.83, 80)
CURRENT = Subject("a", "e", 0, 2, "test", FC6).score("R@1", 0.7, 80)
SELECTED, FC = SelectedLayer("c1", "max", "none", 2, 100, 400), SelectedLayer("fc6", "none", "none", 2, 128, 512)
CHOICE = Choice(
    run="a", selected=SELECTED, preferred=SELECTED, chosen=CHOSEN, test=TEST, preferred_test=TEST,
    embedding=Embedding(FC, CURRENT, cost=ImageCost(512, 1.0)), gain=Gain(0.1, 0.071, 0.129), gain_classes=68,
    gain_elsewhere=True, cost=ImageCost(400, 0.6), preferred_cost=ImageCost(400, 0.6),
    advice="switch", verdict="significant", max_loss=0.0, expected_loss=0.0,
    layer=Certainty("significant", 0.0, 6, Gain(0.021, 0.009, 0.033)),
    post_processing=Certainty("inconclusive", 1.9, 2, None),
    runner_up="c2@max", lead=Gain(0.021, 0.009, 0.033), ties=0, equivalent=("c1@max",), candidates=14, classes=60,
    test_classes=68, gallery_classes=68, extrapolated=True, classes_needed=None, best_on_test=BEST, regret=0.03,
    optimism=0.012, shares={"#2:c1": 0.55, "#2:c2": 0.45}, within_folds=False,
)  # fmt: skip
KEPT = replace(
    CHOICE,
    selected=FC,
    test=CURRENT,
    cost=ImageCost(512, 1.0),
    advice="inconclusive",
    gain=Gain(0.1, -0.02, 0.22),
    regret=0.13,
)


def test_the_first_screen_asks_two_questions_and_shows_what_changes() -> None:
    assert choice_lines(CHOICE) == [
        "a: Switch? Yes, +10.0 points of R@1 [7.1, 12.9]: from fc6 to c1 (95 % interval",
        "  over 68 test classes; each half decides for the other).",
        "Which layer exactly? c1: significant, better than each of the 6 others. Which",
        "  post-processing? none: inconclusive, another one may be better by up to 1.9",
        "  points (95 %).",
        "",
        "                 current  selected  difference",
        "layer            fc6      c1",
        "post-processing  none     none",
        "pool             -        max",
        "dimension        128      100       -28",
        "bytes an image   512      400       -112",
        "R@1 on test, %   70.0     80.0      +10.0 [7.1, 12.9]",
        "multiply-adds    100 %    60 %",
        "",
        "How sure: 14 candidates, compared on 60 validation classes. Expected loss of c1",
        "  against the best candidate, in a gallery of 68 classes (extrapolated): 0.0",
        "  points; upper 95 % bound 0.0.",
    ]


def test_a_number_stays_with_its_unit() -> None:
    for width in range(20):
        lines = choice_lines(replace(CHOICE, run="a" * width))
        assert not any(line.lstrip().startswith("%") for line in lines)


def test_no_line_of_the_first_screen_is_wider_than_80_columns() -> None:
    named = replace(SELECTED, post_processing="l2+whiten:128:0.5+l2")
    for choice in (CHOICE, KEPT, replace(CHOICE, selected=named, preferred=named, notes=("a long note " * 20,))):
        assert max(map(len, choice_lines(choice))) <= 80


def test_a_line_feed_in_a_name_begins_no_line() -> None:
    named = replace(SELECTED, layer=f"{'x' * 60}\nerror: forged")
    lines = choice_lines(replace(CHOICE, selected=named, preferred=named))
    assert not any(line.strip().startswith("error") for line in lines)
    assert any("x\N{REPLACEMENT CHARACTER}error: forged" in line for line in lines)


def test_every_advice_has_its_sentence() -> None:
    def text(advice: str, gain: Gain, **more: object) -> str:
        return advice_text(replace(CHOICE, advice=advice, gain=gain, **more))  # type: ignore[arg-type] # by test

    worse, small = Gain(-0.05, -0.08, -0.02), Gain(0.002, -0.004, 0.008)
    assert text("keep", worse, selected=FC).startswith(
        "Switch? No, keep fc6: c1 is worse, -5.0 points of R@1 [-8.0, -2.0]"
    )
    assert text("keep", small, selected=FC, preferred=FC) == (
        "Switch? No: fc6, the current embedding, is the preferred candidate."
    )
    assert text("either", small) == (
        "Switch? Either will do: from fc6 to c1 is +0.2 points of R@1 [-0.4, 0.8]. Selected: c1, 400 bytes an image."
    )
    assert advice_text(KEPT) == ("Switch? Inconclusive, so keep fc6: c1 is +10.0 points of R@1 [-2.0, 22.0] (95 %).")
    few = text("inconclusive", Gain(0.0, None, None), max_loss=None, classes=8, selected=FC, preferred=FC)
    assert few == (
        "Switch? Inconclusive, so keep fc6: 8 validation classes are too few to tell candidates apart; 10 are needed."
    )
    assert text("inconclusive", small, embedding=None) == (
        "Selected: c1. Switch? Inconclusive: the embedding is not known, or not ranked on test."
    )


def test_it_says_which_classes_decided_and_which_measured_the_gain() -> None:
    assert "over 34 of 68 test classes; the others decided" in advice_text(replace(CHOICE, gain_classes=34))
    unsure = advice_text(replace(CHOICE, gain_classes=34, gain=Gain(0.01, -0.006, 0.026)))
    assert unsure == (
        "Switch? Probably, from fc6 to c1: 34 test classes decide so; on the other 34 c1 is +1.0 points of R@1"
        " [-0.6, 2.6] (95 %)."
    )
    worse = replace(CHOICE, advice="keep", selected=FC, gain_classes=34, gain=Gain(-0.125, -0.273, 0.023))
    assert advice_text(worse) == (
        "Switch? Probably not, keep fc6: 34 test classes decide so; on the other 34 c1 is -12.5 points of R@1"
        " [-27.3, 2.3] (95 %)."
    )
    all_decide = replace(CHOICE, gain_elsewhere=False)
    assert "over the same 68 test classes that decide, as neither half does" in advice_text(all_decide)
    same = replace(CHOICE, gain_classes=15, test_classes=15, gain_elsewhere=False)
    assert "over the same 15 test classes that decide, too few to divide" in advice_text(same)


def test_where_the_embedding_is_kept_the_candidate_stands_beside_it() -> None:
    lines = choice_lines(KEPT)
    assert any(
        line.startswith("The candidate for more classes is c1. Which layer exactly? c1: significant") for line in lines
    )
    assert "                 current, selected  candidate  difference" in lines
    assert "R@1 on test, %   70.0               80.0       +10.0 [-2.0, 22.0]" in lines


def test_recall_within_fifths_is_called_so_where_it_stands() -> None:
    embedding = Embedding(FC, CURRENT, whole_gallery=replace(CURRENT, value=0.6))
    lines = choice_lines(replace(CHOICE, embedding=embedding, within_folds=True))
    assert "points of R@1 in fifths of the classes [7.1, 12.9]" in " ".join(line.strip() for line in lines)
    assert [line.split("%")[0] + "%" for line in lines if line.startswith("R@1")] == [
        "R@1 in fifths, %", "R@1 in all, %",
    ]  # fmt: skip


def test_the_same_layer_at_another_epoch_is_told_apart() -> None:
    earlier = replace(FC, epoch=1)
    text = advice_text(replace(CHOICE, selected=earlier, preferred=earlier))
    assert "from fc6 at epoch 2 to fc6 at epoch 1" in text


def test_layer_and_post_processing_are_judged_apart() -> None:
    conclusive = replace(CHOICE, layer=Certainty("conclusive", 0.8, 6, None), post_processing=None)
    assert verdict_text(conclusive) == (
        "Which layer exactly? c1: conclusive, no other layer is better by more than 0.8 points (95 %); up to 1 does not"
        " matter."
    )
    alone = replace(
        CHOICE, layer=Certainty("significant", 0.0, 0, None), post_processing=Certainty("significant", 0.0, 1, None)
    )
    assert verdict_text(alone) == "Which post-processing of c1? none: significant, better than the other."


def test_ties_are_called_ties() -> None:
    assert verdict_text(replace(CHOICE, ties=3)).endswith(" 3 others have the same mean.")


def test_an_inconclusive_choice_says_how_many_classes_would_make_it_conclusive() -> None:
    inconclusive = replace(
        CHOICE, verdict="inconclusive", max_loss=3.9, expected_loss=0.5, classes=20, classes_needed=2229
    )
    assert certainty_text(inconclusive).endswith(
        "(extrapolated): 0.5 points; upper 95 % bound 3.9. About 2,000 classes would make it conclusive: hold more"
        " out, or use folds."
    )
    assert "would make" not in certainty_text(replace(inconclusive, classes_needed=None))


@pytest.mark.parametrize(
    ("needed", "classes", "shown"), [(2229, 60, 2000), (118, 60, 100), (21, 20, 30), (96, 60, 100)]
)
def test_numbers_of_classes_have_one_digit(needed: int, classes: int, shown: int) -> None:
    assert rounded_classes(needed, classes) == shown


def test_few_classes_give_no_figures() -> None:
    few = replace(CHOICE, verdict="inconclusive", max_loss=None, expected_loss=None, classes=8)
    assert verdict_text(few) == (
        "Which layer exactly? Inconclusive: 8 validation classes are too few to tell candidates apart; 10 are needed."
        " c1 has the best mean only."
    )
    assert verdict_text(replace(few, selected=FC, preferred=FC)) == ""
    assert certainty_text(few) == "How sure: 14 candidates, compared on 8 validation classes."
    assert not any("resamples" in line for line in choice_lines(few, full=True))


def test_what_the_layer_alone_gains_in_fifths_is_called_so() -> None:
    alike = Subject("a", "e", 0, 1, "test", FC6).score("R@1", 0.75, 80)
    embedding = Embedding(replace(FC, epoch=1), CURRENT, alike, Gain(0.05, 0.02, 0.08))
    lines = choice_lines(replace(CHOICE, embedding=embedding, within_folds=True))
    assert "fc6 at epoch 2 has R@1 75.0 % in fifths of the test classes: over that" in " ".join(lines)


def test_what_the_layer_alone_gains_stands_beside_what_post_processing_and_epoch_do() -> None:
    alike = Subject("a", "e", 0, 1, "test", FC6).score("R@1", 0.75, 80)
    embedding = Embedding(replace(FC, epoch=1), CURRENT, alike, Gain(0.05, 0.02, 0.08))
    choice = replace(CHOICE, embedding=embedding)
    assert choice_lines(choice)[-2:] == [
        "fc6 at epoch 2 has R@1 75.0 % on test: over that, the layer alone gains +5.0",
        "  points [2.0, 8.0].",
    ]
    assert "c1@max and fc6: they differ in dimensions (100, 128)" in choice_lines(choice, full=True)


def test_full_labels_the_best_on_test_with_regret_and_optimism() -> None:
    line = "best on test, chosen by looking: a#2:c2@max, R@1 83.0 %; regret +3.0 points; optimism +1.2 points"
    assert line in choice_lines(CHOICE, full=True)
    assert line not in choice_lines(CHOICE)
    bare = choice_lines(replace(CHOICE, regret=None, optimism=None), full=True)
    assert any(line.endswith("R@1 83.0 %") for line in bare)


def test_full_ends_with_what_was_left_out_and_what_scores_say() -> None:
    chosen, test = replace(CHOSEN, notes=("few", "collapsed")), replace(TEST, notes=("few", "how", "3 lone"))
    lines = choice_lines(replace(CHOICE, chosen=chosen, test=test, notes=("how",), details=("skipped",)), full=True)
    assert lines[-4:] == ["skipped", "validation and test: few", "validation: collapsed", "test: 3 lone"]
