from __future__ import annotations

import pytest

from layerprobe.system.errors import UnknownNameError
from layerprobe.values.intervals import IntervalKind, ShownKind, estimand_of

KINDS = [IntervalKind(), IntervalKind("redraw"), IntervalKind("gallery", "parent"), IntervalKind("redraw", "camera")]
SEEDS = IntervalKind(trainings=True)


@pytest.mark.parametrize("kind", [*KINDS, SEEDS])
def test_notes_say_the_kind(kind: IntervalKind) -> None:
    assert IntervalKind.of(["3 lone queries count as misses", *kind.notes]) == kind


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


def test_a_note_of_the_kind_is_left_out_where_the_line_says_it() -> None:
    notes = ("2 zero vectors", "interval: redraw", "clusters: parent")
    assert ShownKind.of([IntervalKind.of(notes)]).further(notes) == ("2 zero vectors",)
    assert ShownKind(None, mixed=True).further(notes) == notes


@pytest.mark.parametrize("units", [9, 10, 30])
@pytest.mark.parametrize("kind", [*KINDS, SEEDS])
def test_notes_without_those_of_an_interval_are_the_others(kind: IntervalKind, units: int) -> None:
    assert IntervalKind.without(["3 lone queries", *kind.notes_on(units), "2 zero vectors"]) == (
        "3 lone queries",
        "2 zero vectors",
    )


def test_a_misspelt_interval_is_told() -> None:
    with pytest.raises(UnknownNameError, match="unknown interval 'redrow'. Did you mean 'redraw'"):
        estimand_of("redrow")
