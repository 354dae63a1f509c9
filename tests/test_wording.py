from __future__ import annotations

import pytest

from layerprobe.wording import as_duration, as_moment, as_size, visible


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 MB"), (350_000_000, "350 MB"), (999_999_999, "1000 MB"), (1_840_000_000, "1.8 GB")]
)
def test_bytes_are_given_in_mb_or_gb(count: int, words: str) -> None:
    assert as_size(count) == words


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (59, "59 s"), (200, "3 min 20 s"), (7260, "2 h 1 min")])
def test_a_duration_is_given_in_its_two_largest_units(seconds: float, words: str) -> None:
    assert as_duration(seconds) == words


def test_a_moment_is_utc() -> None:
    assert as_moment(86400) == "1970-01-02T00:00:00Z"


def test_control_characters_are_replaced_unless_kept() -> None:
    assert visible("a\x1b[2Jb\nc") == "a\N{REPLACEMENT CHARACTER}[2Jb\N{REPLACEMENT CHARACTER}c"
    assert visible("b\nc\x07", keep="\n") == "b\nc\N{REPLACEMENT CHARACTER}"
