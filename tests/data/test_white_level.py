from __future__ import annotations

import io
from fractions import Fraction
from math import floor

import numpy as np
import PIL.Image
import pytest

from layerprobe.data.images import WHITE, in_8_bits, largest_value, level_note

VALUES = np.arange(2**16, dtype=np.uint16)


def stream_of(image: PIL.Image.Image, format: str) -> io.BytesIO:
    stream = io.BytesIO()
    image.save(stream, format)
    stream.seek(0)
    return stream


def test_the_default_divides_every_value_by_257_and_rounds() -> None:
    np.testing.assert_array_equal(in_8_bits(VALUES, WHITE), (VALUES.astype(int) + 128) // 257)


@pytest.mark.parametrize("white", [1, 255, 1000, 1023, 4095, 16383, 65534])
def test_a_level_becomes_255_and_what_lies_above_it_too(white: int) -> None:
    shown = [*range(0, min(white + 3, 2**16), max(1, white // 700)), white, 2**16 - 1]
    exact = [min(255, floor(Fraction(255 * value, white) + Fraction(1, 2))) for value in shown]
    assert in_8_bits(VALUES, white)[shown].tolist() == exact


def test_big_endian_values_are_the_same() -> None:
    np.testing.assert_array_equal(in_8_bits(VALUES.astype(">u2"), 4095), in_8_bits(VALUES, 4095))


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_the_largest_value_is_that_of_the_pixels(format: str) -> None:
    pixels = np.array([[0, 700], [1020, 3]], np.uint16)
    assert largest_value(stream_of(PIL.Image.fromarray(pixels), format)) == 1020


def test_a_pgm_states_its_own_white_and_eight_bits_have_no_level() -> None:
    pgm = io.BytesIO(b"P5 2 1 4095\n" + np.array([7, 4095], ">u2").tobytes())
    assert largest_value(pgm) == 0
    assert largest_value(stream_of(PIL.Image.new("L", (2, 2), 200), "PNG")) == 0


@pytest.mark.parametrize(
    ("largest", "level"),
    [(1, 255), (255, 255), (256, 1023), (1020, 1023), (1024, 4095), (4080, 4095), (4096, 16383), (16383, 16383)],
)
def test_dark_images_are_told_the_white_of_the_smallest_depth_that_holds_them(largest: int, level: int) -> None:
    assert level_note(largest, WHITE) == (
        f"16-bit grey images have values up to {largest} of 65535, and become dark: --set data.white={level} makes"
        f" {level} white"
    )


@pytest.mark.parametrize(("largest", "white"), [(0, WHITE), (16384, WHITE), (65535, WHITE), (4095, 4095), (9, 4095)])
def test_nothing_is_said_of_the_full_range_and_of_a_level_that_was_chosen(largest: int, white: int) -> None:
    assert level_note(largest, white) is None


def test_values_above_the_chosen_level_are_told() -> None:
    assert level_note(4080, 1023) == (
        "16-bit grey images have values up to 4080: those above data.white = 1023 become white"
    )
