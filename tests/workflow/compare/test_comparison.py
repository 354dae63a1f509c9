from __future__ import annotations

from dataclasses import replace

import pytest

from layerprobe.values.intervals import Difference, Interval, IntervalKind, OverSeeds
from layerprobe.values.scores import Subject
from layerprobe.workflow.compare.comparison import (
    ComparedLayer,
    ComparedTrainings,
    Comparison,
    ComparisonData,
    PairedTraining,
    comparison_table,
    sentence,
)
from tests.workflow.stored_ranks import ranked

DATA = ComparisonData("R@1", IntervalKind(), queries=1360, classes=68, units=68)
GAIN = Difference(0.018, 0.006, 0.03, 0.004)


def side(name: str = "pool5.3", run: str = "netA", epoch: int = 20, start: str = "untrained") -> ComparedLayer:
    return ComparedLayer(Subject(run, "e", 0, epoch, "test", ranked(f"{name}@max")), name, start)


A, B = side(), side("fc6")


def compared(
    difference: Difference | None = GAIN, a: ComparedLayer = A, b: ComparedLayer = B, data: ComparisonData = DATA
) -> Comparison:
    return Comparison(a, b, data, (0.858, 0.84), difference)


def test_a_difference_is_said_with_its_interval() -> None:
    assert sentence(compared()) == (
        "pool5.3 retrieves unseen classes better than fc6 in this trained network (netA, epoch 20): R@1 85.8 % against"
        " 84.0 %, +1.8 points (95 % interval over 68 classes, against this gallery: +0.6 to +3.0; p = 0.004)."
    )


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        (Difference(-0.018, -0.03, -0.006, 0.0004), "pool5.3 retrieves unseen classes worse than fc6 in"),
        (Difference(-0.018, -0.03, -0.006, 0.0004), "-1.8 points (95 % interval over 68 classes, against this gallery:"
         " -3.0 to -0.6; p < 0.001)."),
        (Difference(0.004, -0.01, 0.02, 0.2), "pool5.3 and fc6 do not differ significantly on unseen classes in this"),
    ],
)  # fmt: skip
def test_the_claim_follows_the_interval(difference: Difference, words: str) -> None:
    assert words in sentence(compared(difference))


def test_after_holm_p_decides() -> None:
    several = compared(replace(GAIN, p=0.06), data=replace(DATA, comparisons=14))
    assert "do not differ significantly" in sentence(several)
    assert "p = 0.060, corrected by Holm for 14 comparisons" in sentence(several)


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (A, side(epoch=10), "pool5.3 at epoch 20 retrieves unseen classes better than pool5.3 at epoch 10 in this"
         " training (netA):"),
        (A, side("fc6", "netB"), "pool5.3 of netA (epoch 20) retrieves unseen classes better than fc6 of netB"
         " (epoch 20) in these two trained networks:"),
        (side(epoch=0), side("fc6", epoch=0), "unseen classes better than fc6 in this untrained network (netA,"),
        (side(epoch=0, start="pretrained"), side("fc6", epoch=0, start="pretrained"),
         "retrieves the test classes better than fc6 in this pretrained network (netA, epoch 0)"),
        (side(epoch=0, start="epoch 0"), side("fc6", epoch=0, start="epoch 0"),
         "retrieves the test classes better than fc6 in this network (netA, epoch 0)"),
    ],
)  # fmt: skip
def test_the_networks_are_named_as_what_they_are(a: ComparedLayer, b: ComparedLayer, words: str) -> None:
    assert words in sentence(compared(a=a, b=b))


@pytest.mark.parametrize(
    ("seen", "words"), [((True, True), "training"), ((True, False), "training"), ((False, False), "selection")]
)
def test_training_classes_that_no_network_has_seen_are_selection_classes(seen: tuple[bool, bool], words: str) -> None:
    a, b = (
        replace(layer, subject=replace(layer.subject, split="train"), seen=own)
        for layer, own in zip((A, B), seen, strict=True)
    )
    assert f"retrieves the {words} classes better than fc6" in sentence(compared(a=a, b=b))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (replace(DATA, kind=IntervalKind("redraw")), "95 % interval over 68 classes, queries and gallery drawn anew:"),
        (replace(DATA, kind=IntervalKind("gallery", "parent"), units=31), "over 31 clusters of classes (parent), "),
        (replace(DATA, metric="R@1(G=500)"), ": R@1(G=500), thinned by image, 85.8 % against"),
        (replace(DATA, units=29), "p = 0.004). 29 classes are few: the interval itself is uncertain."),
    ],
)  # fmt: skip
def test_what_was_measured_and_drawn_is_said(data: ComparisonData, words: str) -> None:
    assert words in sentence(compared(data=data))


def test_a_table_has_a_row_for_each_and_says_what_was_corrected() -> None:
    data = replace(DATA, comparisons=2)
    invalid = Comparison(A, B, data, None, None, ("netA, pool5.3: NaN (3 rows)",))
    table = comparison_table([compared(data=data), compared(replace(GAIN, p=0.06), data=data), invalid])
    assert table.rows == (
        ("pool5.3", "fc6", "85.8", "84.0", "+1.8", "+0.6 to +3.0", "0.004", "a better"),
        ("pool5.3", "fc6", "85.8", "84.0", "+1.8", "+0.6 to +3.0", "0.060", "not significant"),
        ("pool5.3", "fc6", "-", "-", "-", "-", "-", "netA, pool5.3: NaN (3 rows)"),
    )
    assert table.heading[0] == "netA, epoch 20: R@1 in % on unseen classes, 1,360 queries"
    assert table.notes == ("p is corrected by Holm for 2 comparisons; the intervals are not",)


TOLD, OPEN = Difference(0.012, 0.004, 0.02, 0.003), Difference(0.012, -0.004, 0.03, 0.09)


@pytest.mark.parametrize(
    ("classes", "training", "claim"),
    [
        (
            TOLD,
            replace(TOLD, p=0.04),
            "pool5.3 retrieves unseen classes better than fc6 over 3 trainings (s0, s1, s4; epoch 20): R@1",
        ),
        (
            TOLD,
            OPEN,
            "better than fc6 over 3 trainings (s0, s1, s4; epoch 20), but not significantly for the mean over"
            " trainings: R@1",
        ),
        (
            OPEN,
            OPEN,
            "pool5.3 and fc6 do not differ significantly on unseen classes over 3 trainings "
            "(s0, s1, s4; epoch 20): R@1",
        ),
    ],
)
def test_the_claim_is_about_the_mean_over_trainings(classes: Difference, training: Difference, claim: str) -> None:
    a, b = side(run="s0"), side("fc6", "s0")
    each = tuple(PairedTraining(seed, (f"s{seed}",) * 2, (0.85, 0.838)) for seed in (0, 1, 4))
    over = OverSeeds(0.012, 0.004, 3, classes, training, Interval(0.001, 0.023), Interval(-0.011, 0.035))
    said = sentence(Comparison(a, b, DATA, (0.85, 0.838), training, seeds=ComparedTrainings(each, over)))
    assert claim in said
    assert (
        "R@1 85.0 % against 83.8 % on the mean, +1.2 points, standard deviation 0.4 (seed 0 +1.2, seed 1 +1.2, " in said
    )
    assert said.startswith("pool5.3 ")
    if classes == TOLD:
        assert (
            "95 % interval over 68 classes, against this gallery: for these 3 networks +0.4 to +2.0 (p = 0.003),"
            in said
        )
        assert said.endswith(
            "A new run on as many other classes: -1.1 to +3.5 (95 % prediction interval). The training"
            " classes are the same in all seeds."
        )
