"""Our pixels against those of the libraries' own transforms, on two photographs of several shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL.Image import Resampling
from sklearn.datasets import load_sample_images

from layerprobe.data.loading import load_batches, plain_batches
from layerprobe.data.resizing import Framing, describe, frame_as_model, frame_dataset, mirror, resize
from layerprobe.data.splits import Dataset, Image, Split
from layerprobe.data.transforms import Normalise
from layerprobe.values.network_input import OwnInput

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
        loaded = load_batches(train, batches, epoch=1, seed=0, augment="photo", workers=workers)
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
