"""What OwnInput says of itself; its pixels are held against the libraries' in tests/data/test_own_framing.py."""

from __future__ import annotations

import pytest

from layerprobe.values.own_input import OwnInput


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
