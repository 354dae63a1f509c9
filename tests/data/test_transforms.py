from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import PIL
import PIL.Image
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL.Image import Resampling
from sklearn.datasets import load_sample_images
from torchvision.transforms import functional

from layerprobe.data.loading import load_batches, plain_batches
from layerprobe.data.splits import Dataset, Image, Split
from layerprobe.data.transforms import (
    AUGMENTATIONS,
    Channels,
    Framing,
    Normalise,
    describe,
    describe_decoding,
    describe_transform,
    frame_as_model,
    frame_dataset,
    invert_dataset,
    mirror,
    resize,
    resize_dataset,
)
from layerprobe.system.errors import RecipeError
from layerprobe.values.network_input import OwnInput

DRAWS = 300


def dataset(image: Image) -> Dataset:
    split = Split("train", np.array([0]), ("a",), [image].__getitem__)
    return Dataset({"train": split}, ("ant",))


def only_image(dataset: Dataset) -> Image:
    return dataset.splits["train"].image(0)


def augmented(name: str, image: Image, draws: int = DRAWS) -> list[Image]:
    return [AUGMENTATIONS[name](image, np.random.default_rng([7, i])) for i in range(draws)]


def dots(*places: tuple[int, int], size: int = 96) -> Image:
    """Black, with a soft dot at (x, y) in each channel."""
    rows, columns = np.mgrid[:size, :size]
    image = np.zeros((size, size, 3))
    for channel, (x, y) in enumerate(places):
        image[:, :, channel] = 255 * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / 8)
    return image.round().astype(np.uint8)


def centres(image: Image) -> NDArray[np.float64]:
    """Where each channel's brightness has its centre: (3, 2) as x, y."""
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]]
    weights = image.astype(np.float64).transpose(2, 0, 1)
    total = np.maximum(weights.sum(axis=(1, 2)), 1)
    return np.stack([(weights * columns).sum(axis=(1, 2)) / total, (weights * rows).sum(axis=(1, 2)) / total], axis=1)


def test_resizing_makes_a_square_whatever_the_aspect_ratio() -> None:
    assert only_image(resize_dataset(dataset(np.zeros((30, 50, 3), np.uint8)), 8)).shape == (8, 8, 3)


def test_resizing_to_height_and_width_is_torchvisions() -> None:
    image = np.random.default_rng(0).integers(0, 256, (50, 30, 3), np.uint8)
    expected = np.asarray(functional.resize(PIL.Image.fromarray(image), [24, 10]))
    assert expected.shape == (24, 10, 3)
    np.testing.assert_array_equal(only_image(resize_dataset(dataset(image), (24, 10))), expected)


def test_the_fast_resize_to_height_and_width_is_a_grey_level_away() -> None:
    image = np.random.default_rng(0).integers(0, 256, (50, 30, 3), np.uint8)
    exact, fast = (
        only_image(resize_dataset(dataset(image), (24, 10), method)).astype(int) for method in ("exact", "fast")
    )
    assert np.abs(exact - fast).max() <= 1


@pytest.mark.parametrize("name", ["affine", "photo"])
def test_augmented_images_keep_their_height_and_width(name: str) -> None:
    image = np.random.default_rng(0).integers(0, 256, (24, 10, 3), np.uint8)
    assert {found.shape for found in augmented(name, image, 5)} == {(24, 10, 3)}


def test_resizing_antialiases() -> None:
    # Every fourth column is white; four times smaller, every pixel has the mean, 255 / 4.
    image = np.zeros((32, 32, 3), np.uint8)
    image[:, ::4] = 255
    inner = only_image(resize_dataset(dataset(image), 8))[:, 1:-1]
    assert set(np.unique(inner)) <= {63, 64}


def test_an_image_of_the_size_is_left_alone() -> None:
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    assert only_image(resize_dataset(dataset(image), 8)) is image


def test_resizing_keeps_labels_ids_and_names() -> None:
    before = dataset(np.zeros((4, 4, 3), np.uint8))
    after = resize_dataset(before, 2)
    assert after.class_names == before.class_names
    assert after.splits["train"].ids == ("a",)
    assert after.splits["train"].labels is before.splits["train"].labels


def test_inverting_takes_the_difference_to_255() -> None:
    image = np.array([[[0, 1, 255]]], np.uint8)
    assert only_image(invert_dataset(dataset(image))).tolist() == [[[255, 254, 0]]]


def test_a_transformed_split_can_be_sent_to_a_worker() -> None:
    transformed = invert_dataset(resize_dataset(dataset(np.full((4, 4, 3), 9, np.uint8)), 2)).splits["train"]
    assert np.unique(pickle.loads(pickle.dumps(transformed.image))(0)).tolist() == [246]


def test_normalising_by_hand() -> None:
    # (255 / 255 - 0.5) / 0.25 = 2, (51 / 255 - 0.4) / 0.1 = -2, (0 - 0.1) / 0.2 = -0.5
    normalise = Normalise((0.5, 0.4, 0.1), (0.25, 0.1, 0.2))
    values = normalise(torch.tensor([[[[255, 51, 0]]]], dtype=torch.uint8))
    assert values.shape == (1, 3, 1, 1)
    assert values.flatten().tolist() == pytest.approx([2.0, -2.0, -0.5], abs=1e-6)


def test_normalising_agrees_with_torchvision() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    theirs = functional.normalize(functional.to_tensor(pixels), [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    ours = Normalise.of("imagenet", "imagenet")(torch.from_numpy(pixels)[None])
    torch.testing.assert_close(ours[0], theirs, rtol=0, atol=1e-6)


def test_normalised_pixels_are_float32_in_channels_last_format() -> None:
    pixels = torch.zeros((2, 5, 7, 3), dtype=torch.uint8)
    values = Normalise.of(0.5, 0.5)(pixels)
    assert values.dtype == torch.float32
    assert values.is_contiguous(memory_format=torch.channels_last)
    assert pixels.sum() == 0


@pytest.mark.parametrize(
    ("mean", "expected"), [(0.5, (0.5, 0.5, 0.5)), (0, (0.0, 0.0, 0.0)), ([0.1, 0.2, 0.3], (0.1, 0.2, 0.3))]
)
def test_one_number_serves_all_channels_and_three_serve_one_each(mean: Channels, expected: tuple[float, ...]) -> None:
    assert Normalise.of(mean, 1.0).mean == expected


def test_grey_images_are_pils_luma() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3), np.uint8)
    luma = np.asarray(PIL.Image.fromarray(pixels).convert("L"), np.float64)
    found = Normalise.of(0.5, 0.25, 1)(torch.from_numpy(pixels)[None])
    assert found.shape == (1, 1, 7, 5)
    np.testing.assert_allclose(found[0, 0].numpy(), (luma / 255 - 0.5) / 0.25, rtol=0, atol=1e-6)


def test_a_grey_image_keeps_its_values() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16, 1).expand(-1, -1, -1, 3)
    assert torch.equal(Normalise.of(0, 1, 1)(pixels).flatten(), torch.arange(256) / 255)


def test_grey_images_have_the_mean_of_three_numbers() -> None:
    # (0.485 + 0.456 + 0.406) / 3 and (0.229 + 0.224 + 0.225) / 3
    found = Normalise.of("imagenet", "imagenet", 1)
    assert [*found.mean, *found.std] == pytest.approx([0.449, 0.226])
    assert Normalise.of([0.5], [0.25]) == Normalise((0.5,) * 3, (0.25,) * 3)


@pytest.mark.parametrize("mean", ["imagenett", "abc", (0.1, 0.2), (0.1, 0.2, math.nan)])
def test_other_means_are_refused(mean: Channels) -> None:
    with pytest.raises(RecipeError, match='data.mean = .*. Give one number, three numbers or "imagenet"'):
        Normalise.of(mean, 1.0)


@pytest.mark.parametrize("std", [0, (0.5, 0.5, -0.1)])
def test_a_std_that_is_not_positive_is_refused(std: Channels) -> None:
    with pytest.raises(RecipeError, match="data.std = .*: must be above 0"):
        Normalise.of(0.5, std)


def test_the_description_says_filter_and_decoder() -> None:
    text = describe_transform(image_size=32, invert=True, mean=0.5, std="imagenet")
    assert json.loads(text) == {
        "decoder": f"PIL {PIL.__version__}",
        "alpha": "on white",
        "exif": "ignored",
        "resize": [32, 32, "bilinear, antialiased"],
        "invert": True,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.229, 0.224, 0.225],
    }


def test_a_chosen_white_is_described_and_the_default_is_no_word() -> None:
    for described in (
        partial(describe_decoding, "16x16"),
        partial(describe_transform, image_size=16, invert=False, mean=0.5, std=0.5),
    ):
        assert '"white"' not in described()
        assert "white 65535" not in described()
        assert described(white=65535) == described() != described(white=4095)
        assert "4095" in described(white=4095)


def test_equal_transforms_have_equal_descriptions() -> None:
    one = describe_transform(image_size=32, invert=False, mean=0.5, std="imagenet")
    assert one == describe_transform(image_size=32, invert=False, mean=[0.5, 0.5, 0.5], std=(0.229, 0.224, 0.225))


@pytest.mark.parametrize("name", ["affine", "photo"])
@pytest.mark.parametrize("shape", [(32, 32), (20, 31)])
def test_an_augmented_image_has_its_size_and_type(name: str, shape: tuple[int, int]) -> None:
    image = np.zeros((*shape, 3), np.uint8)
    assert {(x.shape, x.dtype) for x in augmented(name, image, 20)} == {((*shape, 3), image.dtype)}


@pytest.mark.parametrize("name", ["affine", "photo"])
def test_an_augmentation_repeats_for_the_same_generator_and_varies_with_it(name: str) -> None:
    image = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    first, again = augmented(name, image, 20), augmented(name, image, 20)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert len({x.tobytes() for x in first}) == 20


@pytest.mark.parametrize("name", sorted(AUGMENTATIONS))
def test_an_augmentation_leaves_its_argument_alone(name: str) -> None:
    image = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    kept = image.copy()
    augmented(name, image, 20)
    np.testing.assert_array_equal(image, kept)


def test_none_changes_nothing() -> None:
    image = dots((3, 3))
    assert all(x is image for x in augmented("none", image, 5))


def test_affine_fills_with_the_colour_of_the_corners() -> None:
    image = np.full((16, 16, 3), (10, 77, 200), np.uint8)
    assert all(np.array_equal(x, image) for x in augmented("affine", image, 50))


def test_one_odd_corner_does_not_decide_the_filling() -> None:
    image = np.full((32, 32, 3), 50, np.uint8)
    image[0, 0] = 255
    far = np.stack([x[8:, 8:] for x in augmented("affine", image, 50)])
    assert np.unique(far).tolist() == [50]


def spread(values: NDArray[np.float64], low: float, high: float, tolerance: float) -> bool:
    """Whether values fill a range and keep to it."""
    reach = (high - low) / 20
    inside = values.min() >= low - tolerance and values.max() <= high + tolerance
    return bool(inside and values.min() < low + reach and values.max() > high - reach)


def measured(name: str, measure: Callable[[NDArray[np.float64]], float]) -> NDArray[np.float64]:
    """A number taken from the places of dots at the centre, 24 pixels right of it and 24 pixels below it."""
    image = dots((48, 48), (72, 48), (48, 72))
    return np.array([measure(centres(x)) for x in augmented(name, image)])


def test_affine_moves_every_point_as_its_numbers_say() -> None:
    places = np.array([(48, 48), (72, 48), (48, 72)])
    middle = 95 / 2
    for i, image in enumerate(augmented("affine", dots((48, 48), (72, 48), (48, 72)), 50)):
        rng = np.random.default_rng([7, i])
        angle, scale, shift = math.radians(rng.uniform(-10, 10)), rng.uniform(0.9, 1.1), rng.uniform(-0.06, 0.06, 2)
        turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        expected = middle + 96 * shift + scale * (places - middle) @ turn.T
        np.testing.assert_allclose(centres(image), expected, atol=0.15)


def test_affine_turns_by_up_to_ten_degrees_either_way() -> None:
    def turn(places: NDArray[np.float64]) -> float:
        x, y = places[1] - places[0]
        return math.degrees(math.atan2(y, x))

    assert spread(measured("affine", turn), -10, 10, tolerance=0.3)


def test_affine_scales_by_up_to_a_tenth_either_way() -> None:
    assert spread(measured("affine", lambda p: float(np.linalg.norm(p[1] - p[0])) / 24), 0.9, 1.1, tolerance=0.01)


@pytest.mark.parametrize("axis", [0, 1])
def test_affine_shifts_by_up_to_six_per_cent_of_a_side(axis: int) -> None:
    assert spread(measured("affine", lambda p: (p[0, axis] - 48) / 96), -0.06, 0.06, tolerance=0.003)


def test_affine_never_mirrors() -> None:
    def orientation(places: NDArray[np.float64]) -> float:
        right, down = places[1] - places[0], places[2] - places[0]
        return float(right[0] * down[1] - right[1] * down[0])

    assert measured("affine", orientation).min() > 0


def test_photo_scales_up_by_up_to_a_tenth() -> None:
    assert spread(measured("photo", lambda p: float(np.linalg.norm(p[1] - p[0])) / 24), 1, 1.1, tolerance=0.01)


def test_photo_mirrors_half_of_the_images_and_never_upside_down() -> None:
    sides = measured("photo", lambda p: np.sign(p[1, 0] - p[0, 0]))
    # 300 draws at 0.5 have a standard deviation of 8.7.
    assert 115 < (sides < 0).sum() < 185
    assert measured("photo", lambda p: p[2, 1] - p[0, 1]).min() > 0


def test_photo_crops_at_random() -> None:
    # At scale s the crop starts anywhere from 0 to (s - 1) of a side: a centred dot moves up to 0.05 of it.
    shifts = measured("photo", lambda p: (p[0, 1] - 47.5) / 96)
    assert shifts.min() < -0.03
    assert shifts.max() > 0.03
    assert np.abs(shifts).max() < 0.06


def test_photo_brings_in_nothing_from_outside() -> None:
    image = np.full((32, 32, 3), 77, np.uint8)
    assert all(np.array_equal(x, image) for x in augmented("photo", image, 50))


def test_the_description_has_height_before_width_and_one_mean_of_grey_images() -> None:
    text = json.loads(describe_transform(image_size=(64, 32), channels=1, invert=False, mean=0.5, std="imagenet"))
    assert text["resize"][:2] == [64, 32]
    assert text["mean"] == [0.5]


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


def picture(height: int, width: int, seed: int = 0) -> Image:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def by_pil(image: Image, width: int, height: int) -> Image:
    return np.asarray(PIL.Image.fromarray(image).resize((width, height), Resampling.BILINEAR))


def test_d1_keeps_the_aspect_ratio_with_a_tenth_to_spare() -> None:
    framing = Framing("D1", 224)
    assert framing.keep(picture(375, 500)).shape == (247, 329, 3)
    assert framing.keep(picture(1024, 256)).shape == (988, 247, 3)


def test_d1_tests_on_the_centre_of_the_shorter_side() -> None:
    framing, image = Framing("D1", 224), picture(375, 500)
    wanted = by_pil(image, round(500 * 224 / 375), 224)
    left = (wanted.shape[1] - 224) // 2
    np.testing.assert_array_equal(framing.tested(image), wanted[:, left : left + 224])


def test_d1_tests_on_as_sharp_an_image_as_one_step_of_resizing_gives() -> None:
    # White noise, shrunk 5 times: in two steps, by way of 247 pixels, it loses 57 % of its gradients' energy.
    framing, image = Framing("D1", 224), picture(1120, 1120)

    def energy(view: Image) -> float:
        return float((np.diff(view.astype(float), axis=1) ** 2).mean())

    twice = energy(by_pil(framing.keep(image), 224, 224))
    assert twice < 0.5 * energy(framing.tested(image))


def test_d2_squeezes_to_256_and_tests_on_the_central_224() -> None:
    framing, image = Framing("D2", 224), picture(375, 500)
    np.testing.assert_array_equal(framing.test(framing.keep(image)), by_pil(image, 256, 256)[16:240, 16:240])


@pytest.mark.parametrize("name", ["D1", "D2", "D3"])
@pytest.mark.parametrize("shape", [(40, 70), (70, 40), (33, 33), (9, 200)])
def test_every_view_is_a_square_of_the_networks_size(name: str, shape: tuple[int, int]) -> None:
    framing = Framing(name, 32)
    kept = framing.keep(picture(*shape))
    assert (framing.tested(picture(*shape)) if name == "D1" else framing.test(kept)).shape == (32, 32, 3)
    for seed in range(20):
        assert framing.train(kept, np.random.default_rng(seed)).shape == (32, 32, 3)


def test_d2_trains_on_any_corner_of_what_is_kept_mirrored_or_not() -> None:
    framing = Framing("D2", 28)  # out of 32
    kept = np.zeros((32, 32, 3), np.uint8)
    kept[:, :, 0], kept[:, :, 1] = np.arange(32), np.arange(32)[:, None]
    seen = set()
    for seed in range(400):
        view = framing.train(kept, np.random.default_rng(seed)).astype(int)
        step = view[0, 1, 0] - view[0, 0, 0]
        seen.add((view[0, 0, 1], min(view[0, 0, 0], view[0, -1, 0]), step))
    assert seen == {(top, left, step) for top in range(5) for left in range(5) for step in (-1, 1)}


def test_d1_trains_at_scales_between_1_and_1_1() -> None:
    framing = Framing("D1", 100)
    # A ramp from left to right: its slope tells the scale.
    kept = np.repeat(np.linspace(0, 255, 110).astype(np.uint8)[None, :, None], 110, 0).repeat(3, 2)
    widths = []
    for seed in range(100):
        view = framing.train(kept, np.random.default_rng(seed)).astype(float)
        widths.append(255 / abs(np.polyfit(np.arange(80), view[50, 10:90, 0], 1)[0]))
    assert 97 < min(widths) < 103
    assert 107 < max(widths) < 113


def numbered(index: int) -> Image:
    return picture(40 + index, 60, seed=index)


def test_batches_have_the_view_of_their_purpose_whatever_the_workers() -> None:
    names = tuple(f"{i}" for i in range(4))
    split = Split("train", np.array([0, 0, 1, 1]), names, numbered)
    train = frame_dataset(Dataset({"train": split}, ("a", "b")), Framing("D1", 32)).splits["train"]
    plain = np.concatenate([batch.numpy() for batch in plain_batches(train, batch_size=2, workers=0)])
    assert plain.shape == (4, 32, 32, 3)
    framing = Framing("D1", 32)
    np.testing.assert_array_equal(plain[3], framing.tested(numbered(3)))
    batches = [np.array([3, 1]), np.array([0, 2])]
    found = []
    for workers in (0, 2):
        loaded = load_batches(train, [(1, batch) for batch in batches], seed=0, augment="photo", workers=workers)
        found.append([pixels.numpy() for pixels, _ in loaded])
    np.testing.assert_array_equal(found[0], found[1])
    wanted = framing.train(framing.keep(numbered(1)), np.random.default_rng([0, 1, 1]))
    np.testing.assert_array_equal(found[0][0][1], wanted)


HALF = (0.5, 0.5, 0.5)
OPENAI = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
Input = NDArray[np.float32]  # (3, size, size), normalised
Library = Callable[[PIL.Image.Image], Input]


@cache
def photos() -> tuple[Image, ...]:
    """china.jpg and flower.jpg: as they are (427 x 640), upright, cut to odd sizes, and smaller than any model's."""
    found = []
    for photo in load_sample_images().images:
        found += [photo, photo.transpose(1, 0, 2).copy(), photo[:333, 5:406].copy(), photo[100:177, 100:201].copy()]
    return tuple(found)


def square(photo: Image, own: OwnInput) -> Image:
    return np.asarray(own.framed(PIL.Image.fromarray(photo)))


def levels_apart(own: OwnInput, library: Library, photo: Image) -> NDArray[np.float64]:
    """Absolute differences before normalisation, in grey levels: (3, size, size)."""
    theirs = np.asarray(library(PIL.Image.fromarray(photo)), np.float64)
    mean, std = (np.array(x)[:, None, None] for x in (own.mean, own.std))
    apart: NDArray[np.float64] = np.abs((theirs * std + mean) * 255 - square(photo, own).transpose(2, 0, 1))
    return apart


def require_equal(own: OwnInput, library: Library) -> None:
    """No pixel differs; after normalisation, only by the rounding of float32."""
    for photo in photos():
        assert levels_apart(own, library, photo).max() < 1e-3
        ours = torch.from_numpy(square(photo, own).copy())
        input_ = Normalise.of(own.mean, own.std)(ours[None])[0].numpy()
        np.testing.assert_allclose(input_, library(PIL.Image.fromarray(photo)), rtol=0, atol=2e-6)


TIMM = {
    "center": ({"crop_pct": 0.875, "interpolation": "bilinear"}, OwnInput(224, 256)),
    "bicubic, whole": ({"crop_pct": 1.0, "crop_mode": "center"}, OwnInput(224, 224, "bicubic")),
    "odd rest": (
        {"input_size": (3, 225, 225), "crop_pct": 0.9, "mean": HALF, "std": HALF},
        OwnInput(225, 250, "bicubic", HALF, HALF),
    ),
    "floor": ({"input_size": (3, 256, 256), "crop_pct": 0.95}, OwnInput(256, 269, "bicubic")),
    "squash": ({"crop_pct": 1.0, "crop_mode": "squash"}, OwnInput(224, None, "bicubic")),
    "squash and crop": (
        {"input_size": (3, 192, 192), "crop_pct": 0.9, "crop_mode": "squash"},
        OwnInput(192, 213, "bicubic", squeezed=True),
    ),
    "lanczos": ({"crop_pct": 0.9, "interpolation": "lanczos"}, OwnInput(224, 248, "lanczos")),
    "box": ({"crop_pct": 0.9, "interpolation": "box"}, OwnInput(224, 248, "box")),
    "hamming": ({"crop_pct": 0.9, "interpolation": "hamming"}, OwnInput(224, 248, "hamming")),
    "nearest": ({"crop_pct": 0.9, "interpolation": "nearest"}, OwnInput(224, 248, "nearest")),
    "upright": ({"input_size": (3, 256, 128), "crop_pct": 0.9}, OwnInput((256, 128), (284, 142), "bicubic")),
    "wide": ({"input_size": (3, 65, 200), "crop_pct": 0.95}, OwnInput((65, 200), (68, 210), "bicubic")),
    "wide, squashed": (
        {"input_size": (3, 64, 200), "crop_pct": 0.9, "crop_mode": "squash"},
        OwnInput((64, 200), (71, 222), "bicubic", squeezed=True),
    ),
}


@pytest.mark.parametrize("name", TIMM)
def test_pixels_are_those_of_timm(name: str) -> None:
    data = pytest.importorskip("timm.data")
    config, own = TIMM[name]
    require_equal(own, data.create_transform(**data.resolve_data_config(pretrained_cfg=config)))


def test_pixels_are_those_of_torchvision() -> None:
    from torchvision.models import Inception_V3_Weights, Swin_T_Weights, ViT_B_16_Weights

    require_equal(OwnInput(224, 256), ViT_B_16_Weights.IMAGENET1K_V1.transforms())
    require_equal(OwnInput(224, 232, "bicubic"), Swin_T_Weights.IMAGENET1K_V1.transforms())
    require_equal(OwnInput(299, 342), Inception_V3_Weights.IMAGENET1K_V1.transforms())


@pytest.mark.parametrize(
    ("options", "own"),
    [
        ({}, OwnInput(224, 224, "bicubic", *OPENAI)),
        ({"resize_mode": "squash", "interpolation": "bilinear"}, OwnInput(224, None, "bilinear", *OPENAI)),
        ({"mean": HALF, "std": HALF, "resize_mode": "squash"}, OwnInput(224, None, "bicubic", HALF, HALF)),
        ({}, OwnInput((224, 112), (224, 112), "bicubic", *OPENAI)),
        ({"resize_mode": "squash"}, OwnInput((224, 112), None, "bicubic", *OPENAI)),
    ],
)
def test_pixels_are_those_of_open_clip(options: dict[str, Any], own: OwnInput) -> None:
    open_clip = pytest.importorskip("open_clip")
    require_equal(own, open_clip.image_transform(own.size, is_train=False, **options))


# What a processor's configuration says, and ours.
HUGGING_FACE: dict[str, tuple[str, dict[str, Any], OwnInput]] = {
    "clip": (
        "CLIPImageProcessor",
        {"size": {"shortest_edge": 225}, "crop_size": {"height": 224, "width": 224}},
        OwnInput(224, 225, "bicubic", *OPENAI, crop_rounding="down"),
    ),
    "dinov2": (
        "BitImageProcessor",
        {
            "size": {"shortest_edge": 256},
            "crop_size": {"height": 224, "width": 224},
            "image_mean": [0.485, 0.456, 0.406],
            "image_std": [0.229, 0.224, 0.225],
        },
        OwnInput(224, 256, "bicubic", crop_rounding="down"),
    ),
    "vit": ("ViTImageProcessor", {}, OwnInput(224, None, "bilinear", HALF, HALF)),
    "siglip": (
        "SiglipImageProcessor",
        {"size": {"height": 256, "width": 256}},
        OwnInput(256, None, "bicubic", HALF, HALF),
    ),
    "siglip, upright": (
        "SiglipImageProcessor",
        {"size": {"height": 256, "width": 128}},
        OwnInput((256, 128), None, "bicubic", HALF, HALF),
    ),
    "clip, upright": (
        "CLIPImageProcessor",
        {"size": {"shortest_edge": 225}, "crop_size": {"height": 224, "width": 112}},
        OwnInput((224, 112), 225, "bicubic", *OPENAI, crop_rounding="down"),
    ),
    "deit": (
        "DeiTImageProcessor",
        {},
        OwnInput(224, 256, "bicubic", HALF, HALF, "down", squeezed=True),
    ),
}


def processed(class_name: str, config: dict[str, Any], *, pil: bool) -> Library:
    """A Hugging Face processor, which since transformers 5 uses torch unless its name says `Pil`."""
    transformers = pytest.importorskip("transformers")
    is_new = hasattr(transformers, f"{class_name}Pil")
    suffix = ("Pil" if pil else "") if is_new else ("" if pil else "Fast")
    return partial(_pixel_values, getattr(transformers, class_name + suffix)(**config))


def _pixel_values(processor: Any, image: PIL.Image.Image) -> Input:
    return np.asarray(processor(image, return_tensors="pt")["pixel_values"][0], np.float32)


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_pixels_are_those_of_a_hugging_face_processor_that_uses_pil(name: str) -> None:
    class_name, config, own = HUGGING_FACE[name]
    require_equal(own, processed(class_name, config, pil=True))


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_a_hugging_face_processor_that_uses_torch_is_a_grey_level_away(name: str) -> None:
    class_name, config, own = HUGGING_FACE[name]
    library = processed(class_name, config, pil=False)
    apart = [levels_apart(own, library, photo) for photo in photos()]
    assert max(apart[0].max(), apart[4].max()) < 1.001  # the two photos as they are
    # Between its two passes the bicubic filter is cut to 0 ... 255; PIL and torch do not always begin with the same
    # pass, so that at hard edges of other shapes a few values are further apart.
    assert max((levels > 1.001).mean() for levels in apart) < 1e-3


def test_every_split_of_a_data_set_is_framed() -> None:
    photo = photos()[2]
    split = Split("test", np.zeros(1, np.int64), ("a",), lambda _: photo)
    framed = frame_as_model(Dataset({"test": split}, ("one",)), OwnInput(32, 40))
    np.testing.assert_array_equal(framed.splits["test"].image(0), square(photo, OwnInput(32, 40)))
