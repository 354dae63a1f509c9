from __future__ import annotations

import pytest

from layerprobe.system.errors import UnknownNameError
from layerprobe.values.intervals import IntervalKind, SamplingUnits, ShownKind, estimand_of

SEEDS = IntervalKind(trainings=True)


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("68 classes", SamplingUnits(IntervalKind(), 68)),
        ("12 clusters (a (b))", SamplingUnits(IntervalKind(cluster="a (b)"), 12)),
        ("3 trainings", SamplingUnits(SEEDS, 3)),
    ],
)
def test_sampling_units_are_read_back_from_their_text(text: str, units: SamplingUnits) -> None:
    assert str(units) == text
    assert SamplingUnits.parse(text) == units


@pytest.mark.parametrize("text", ["classes", "9 dogs", "-3 classes", "3 clusters", ""])
def test_a_text_of_no_units_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a number of classes, clusters or trainings"):
        SamplingUnits.parse(text)


def test_the_default_needs_no_note() -> None:
    assert IntervalKind().notes == ()


def test_the_contracts_words_are_written() -> None:
    assert IntervalKind("redraw", "parent").notes == ("interval: redraw", "clusters: parent")


def test_intervals_of_one_kind_are_shown_and_the_line_says_it() -> None:
    shown = ShownKind.of([IntervalKind("redraw"), IntervalKind("redraw")])
    assert shown == ShownKind(IntervalKind("redraw"))
    assert shown.lines("bands") == ("bands: 95 % interval over classes, queries and gallery drawn anew",)


def test_intervals_of_different_kinds_are_not_shown_and_the_line_says_so() -> None:
    shown = ShownKind.of([IntervalKind(), IntervalKind(cluster="parent")])
    assert shown.kind is None
    assert shown.lines("bands") == (
        "intervals of different kinds are not shown together; probe all with one --cluster",
    )


def test_ranges_of_trainings_are_no_intervals_over_classes() -> None:
    assert ShownKind.of([SEEDS]).lines("bands") == ("bands: lowest to highest training",)
    assert ShownKind.of([IntervalKind(), SEEDS]).mixed


def test_without_intervals_there_is_nothing_to_say() -> None:
    assert ShownKind.of([]).lines("bands") == ()


@pytest.mark.parametrize(
    ("count", "remarks"),
    [
        (9, ("no interval: 9 classes, at least 10 are needed",)),
        (10, ("interval over few classes: 10",)),
        (29, ("interval over few classes: 29",)),
        (30, ()),
    ],
)
def test_few_units_are_remarked(count: int, remarks: tuple[str, ...]) -> None:
    assert SamplingUnits(IntervalKind(), count).remarks == remarks


def test_notes_on_units_say_the_kind_where_there_is_an_interval() -> None:
    clusters = IntervalKind(cluster="parent")
    assert SamplingUnits(clusters, 12).notes == ("clusters: parent", "interval over few clusters: 12")
    assert SamplingUnits(clusters, 9).notes == ("no interval: 9 clusters, at least 10 are needed",)
    assert SamplingUnits(SEEDS, 3).notes == ("interval: lowest to highest training",)


def test_a_misspelt_interval_is_told() -> None:
    with pytest.raises(UnknownNameError, match="unknown interval 'redrow'. Did you mean 'redraw'"):
        estimand_of("redrow")
