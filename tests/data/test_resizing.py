from __future__ import annotations

import numpy as np
import PIL.Image
import pytest
import torch
import torch.nn.functional as F
from PIL.Image import Resampling

from layerprobe.data.resizing import describe, mirror, resize
from layerprobe.data.splits import Image

SIZES = [(375, 500), (768, 1024), (500, 333), (97, 131), (30, 40)]


def photo(height: int, width: int) -> Image:
    """Smooth shapes with noise and hard edges, as photographs have."""
    rng = np.random.default_rng(height)
    y, x = np.mgrid[:height, :width]
    waves = np.stack([np.sin(x / (7 + c)) * np.cos(y / (11 + c)) for c in range(3)], axis=2)
    image = 127 + 90 * waves + rng.normal(0, 12, (height, width, 3))
    image[height // 3 : height // 2, width // 4 : width // 2] = (255, 0, 255)
    return image.clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_exact_is_pil_bit_for_bit(height: int, width: int) -> None:
    image = photo(height, width)
    wanted = np.asarray(PIL.Image.fromarray(image).resize((96, 64), Resampling.BILINEAR))
    np.testing.assert_array_equal(resize(image, 64, 96, "exact"), wanted)


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("size", [(256, 256), (64, 96), (247, 329), (224, 224)])
def test_fast_is_at_most_a_grey_level_away(height: int, width: int, size: tuple[int, int]) -> None:
    image = photo(height, width)
    fast, exact = (resize(image, *size, method).astype(int) for method in ("fast", "exact"))
    assert fast.shape == (*size, 3)
    assert np.abs(fast - exact).max() <= 1


def test_fast_is_two_levels_away_in_single_values_of_smooth_images() -> None:
    rng = np.random.default_rng(84)
    height, width = rng.integers(100, 400, 2)
    image = np.asarray(PIL.Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((width, height)))
    fast, exact = (resize(image, 256, 256, method).astype(int) for method in ("fast", "exact"))
    assert np.abs(fast - exact).max() <= 2
    assert (np.abs(fast - exact) == 2).sum() <= 1


def test_fast_takes_what_may_not_be_written_to_and_leaves_it() -> None:
    image = photo(40, 50)
    before = image.copy()
    image.flags.writeable = False
    np.testing.assert_array_equal(resize(image, 20, 20, "fast"), resize(before, 20, 20, "fast"))
    np.testing.assert_array_equal(image, before)


def test_fast_gives_the_layout_that_batches_have() -> None:
    # Otherwise stacking the images copies value by value.
    assert resize(photo(97, 131), 64, 48, "fast").flags.c_contiguous


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_fast_is_torchs_resize_of_any_memory_format(height: int, width: int) -> None:
    image = photo(height, width)
    planes = torch.from_numpy(image).permute(2, 0, 1).contiguous()[None]
    wanted = F.interpolate(planes, (64, 96), mode="bilinear", align_corners=False, antialias=True)
    np.testing.assert_array_equal(resize(image, 64, 96, "fast"), wanted[0].permute(1, 2, 0).numpy())


@pytest.mark.parametrize("method", ["exact", "fast"])
def test_an_image_of_that_size_stays_the_same_array(method: str) -> None:
    image = photo(32, 48)
    assert resize(image, 32, 48, method) is image  # type: ignore[arg-type] # one of the two names


def test_the_ways_have_different_names() -> None:
    assert describe("exact") == "bilinear, antialiased"
    assert describe("fast").startswith("bilinear, antialiased by torch ")


def test_mirroring_exchanges_left_and_right_of_any_part_of_an_image() -> None:
    image = photo(40, 50)
    image.flags.writeable = False
    np.testing.assert_array_equal(mirror(image), image[:, ::-1])
    np.testing.assert_array_equal(mirror(image[5:30, 7:22]), image[5:30, 7:22][:, ::-1])


def test_the_words_name_the_filter() -> None:
    assert describe("exact", "bicubic") == "bicubic, antialiased"
    assert describe("exact", "nearest") == "nearest"
