from __future__ import annotations

import pytest

from layerprobe.intervals import IntervalKind

KINDS = [IntervalKind(), IntervalKind("redraw"), IntervalKind("gallery", "parent"), IntervalKind("redraw", "camera")]


@pytest.mark.parametrize("kind", KINDS)
def test_notes_say_the_kind(kind: IntervalKind) -> None:
    assert IntervalKind.of(["3 lone queries count as misses", *kind.notes]) == kind


def test_the_default_needs_no_note() -> None:
    assert IntervalKind().notes == ()


def test_the_contracts_words_are_written() -> None:
    assert IntervalKind("redraw", "parent").notes == ("interval: redraw", "clusters: parent")
