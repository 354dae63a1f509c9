"""Small pictures: at most 64 pixels a side, with the image's shape and colours."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from layerprobe.report.pictures import small_picture


def opened(image: NDArray[np.uint8]) -> PIL.Image.Image:
    return PIL.Image.open(io.BytesIO(small_picture(image)))


def test_the_longer_side_has_64_pixels_and_the_shorter_one_its_share() -> None:
    assert opened(np.zeros((300, 100, 3), np.uint8)).size == (21, 64)  # 100 * 64 / 300 = 21.3


def test_a_line_of_pixels_stays_a_pixel_wide() -> None:
    assert opened(np.zeros((1, 900, 3), np.uint8)).size == (64, 1)


def test_a_small_image_keeps_its_pixels() -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    image[2, 3] = 200, 10, 30
    found = opened(image)
    assert found.format == "PNG"
    np.testing.assert_array_equal(np.asarray(found.convert("RGB")), image)


def test_a_photograph_becomes_jpeg_with_its_colours() -> None:
    noise = np.random.default_rng(0).normal(0, 12, (64, 64, 3))
    image = (np.array([180, 90, 40]) + noise).clip(0, 255).astype(np.uint8)
    found = opened(image)
    assert found.format == "JPEG"
    np.testing.assert_allclose(np.asarray(found).mean((0, 1)), [180, 90, 40], atol=2)


def test_a_grey_image_has_one_channel() -> None:
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 1), np.uint8).repeat(3, axis=2)
    assert opened(image).mode == "L"
