from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from functools import partial

import numpy as np
import PIL
import pytest
import torch
from numpy.typing import NDArray
from torchvision.transforms import functional

from layerprobe.data.splits import Dataset, Image, Split
from layerprobe.data.transforms import (
    AUGMENTATIONS,
    Channels,
    Normalise,
    describe_decoding,
    describe_transform,
    invert_dataset,
    resize_dataset,
)
from layerprobe.system.errors import RecipeError

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
    for describe in (
        partial(describe_decoding, "16x16"),
        partial(describe_transform, image_size=16, invert=False, mean=0.5, std=0.5),
    ):
        assert '"white"' not in describe()
        assert "white 65535" not in describe()
        assert describe(white=65535) == describe() != describe(white=4095)
        assert "4095" in describe(white=4095)


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
