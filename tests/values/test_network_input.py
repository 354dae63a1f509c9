"""What OwnInput says of itself; its pixels are held against the libraries' in tests/data/test_resizing.py."""

from __future__ import annotations

import pytest

from layerprobe.values.network_input import OwnInput


def test_other_sizes_scale_the_resized_side() -> None:
    assert OwnInput(224, 256).at(112) == OwnInput(112, 128)
    assert OwnInput(224, 248).at(256) == OwnInput(256, 283)
    assert OwnInput(224).at(64) == OwnInput(64)


def test_other_sizes_keep_the_share_that_the_crop_keeps() -> None:
    assert OwnInput(224, 248, kept=0.9).at(256) == OwnInput(256, 284, kept=0.9)


def test_a_crop_larger_than_the_resized_image_is_refused() -> None:
    with pytest.raises(ValueError, match="224 pixels cannot be cropped out of 223"):
        OwnInput(224, 223)


def test_the_words_tell_every_step() -> None:
    assert OwnInput(224).steps() == "squeezed to 224x224"
    assert OwnInput(224, 256).steps() == "shorter side 256, central 224x224 from half the rest rounded to even"
    assert (
        OwnInput(224, 256, squeezed=True, crop_rounding="down").steps()
        == "squeezed to 256x256, central 224x224 from half the rest rounded down"
    )


def test_other_sizes_scale_both_sides_of_an_image_that_is_no_square() -> None:
    assert OwnInput((256, 128), (284, 142), kept=0.9).at((128, 64)) == OwnInput((128, 64), (142, 71), kept=0.9)
    assert OwnInput(224, 256).at((112, 56)) == OwnInput((112, 56), (128, 64))
    assert OwnInput((64, 32), (80, 40)).at(32) == OwnInput(32, 40)
    # a shorter side that is given as such stays one
    assert OwnInput((56, 24), 64).at((56, 24)) == OwnInput((56, 24), 64)


def test_the_words_tell_height_before_width() -> None:
    assert OwnInput((64, 32)).steps() == "squeezed to 64x32"
    rest = "central 64x32 from half the rest rounded to even"
    assert OwnInput((64, 32), (80, 40)).steps() == f"as small as covers 80x40, {rest}"
    assert OwnInput((64, 32), (80, 40), squeezed=True).steps() == f"squeezed to 80x40, {rest}"
    assert OwnInput((64, 32), 80).steps() == f"shorter side 80, {rest}"


def test_a_side_of_a_crop_that_is_larger_than_the_resized_image_is_refused() -> None:
    with pytest.raises(ValueError, match="64x32 pixels cannot be cropped out of 64x31"):
        OwnInput((64, 32), (64, 31))
