from __future__ import annotations

import time

import pytest

from layerprobe.plots.class_names import replace_missing_glyphs, shorten, shorten_distinctly, wrap_name
from layerprobe.plots.figure import FONT, width_of

MAGI = "Alphabet_of_the_Magi/character01"


@pytest.mark.parametrize("name", [MAGI, "W" * 40, "i" * 90, "Jug. (2)"])
@pytest.mark.parametrize("width", [0.7, 1.0, 2.0])
def test_a_shortened_name_fits_and_has_its_beginning_and_its_end(name: str, width: float) -> None:
    short = shorten(name, width, FONT)
    assert width_of([short]) <= width + 0.01
    if width_of([name]) > width:
        head, _, tail = short.partition("…")
        assert name.startswith(head)
        assert name.endswith(tail)
        # nothing more would have fitted
        assert width_of([f"{name[: len(head) + 1]}…{tail}"]) > width
    else:
        assert short == name


def test_lines_end_after_signs_that_divide_words() -> None:
    assert wrap_name(MAGI, 1.0, FONT, 9) == ["Alphabet_of_", "the_Magi/", "character01"]
    assert wrap_name(MAGI, 1.0, FONT, 2) == ["Alphabet_of_", "the_Magi/…r01"]
    assert wrap_name("cat", 1.0, FONT, 2) == ["cat"]
    assert wrap_name("cat", 1.0, FONT, 0) == []


def test_where_little_fits_the_beginning_is_kept() -> None:
    assert shorten(MAGI, 0.42, FONT) == "Al…01"
    assert shorten("W" * 9, 0.3, FONT) == "W…"
    assert shorten(MAGI, 0.1, FONT) == "…"


def test_characters_without_a_picture_are_squares() -> None:
    assert replace_missing_glyphs("a\N{CJK UNIFIED IDEOGRAPH-65E5}\x1b") == "a\N{WHITE SQUARE}\N{REPLACEMENT CHARACTER}"


def test_a_very_long_name_is_shortened_at_once() -> None:
    began = time.monotonic()
    wrap_name("x" * 100_000, 1.0, FONT, 3)
    assert time.monotonic() - began < 60


SAME_ENDS = [f"Alphabet_of_the_{alphabet}/character{n:02}" for alphabet in ("Magi", "Braille") for n in (1, 2, 11)]


@pytest.mark.parametrize("width", [0.8, 1.2, 4.0])
def test_names_that_share_their_beginning_and_end_stay_different(width: float) -> None:
    short = shorten_distinctly(SAME_ENDS, width, FONT)
    assert list(short) == SAME_ENDS
    assert len(set(short.values())) == len(SAME_ENDS)
    assert width_of(list(short.values())) <= width + 0.01


def test_names_begin_where_they_differ() -> None:
    first, second = SAME_ENDS[0], SAME_ENDS[3]
    assert shorten(first, 0.8, FONT) == shorten(second, 0.8, FONT) == "Alphab…r01"
    assert shorten_distinctly([first, second], 0.8, FONT) == {first: "…Magi…r01", second: "…Braill…r01"}
    assert shorten_distinctly([first, "Braille"], 0.8, FONT) == {first: "Alphab…r01", "Braille": "Braille"}


def test_a_name_differs_from_one_that_goes_on() -> None:
    short = shorten_distinctly(["x" * 40, "x" * 41], 0.8, FONT)
    assert list(short.values()) == ["…x", "…xx"]


def test_names_that_no_room_can_tell_apart_end_the_search() -> None:
    assert shorten_distinctly(SAME_ENDS, 0.1, FONT) == dict.fromkeys(SAME_ENDS, "……")
