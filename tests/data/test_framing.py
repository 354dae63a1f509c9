from __future__ import annotations

import numpy as np
import PIL.Image
import pytest
from PIL.Image import Resampling

from layerprobe.data.framing import Framing, frame_dataset
from layerprobe.data.loading import load_batches, plain_batches
from layerprobe.data.splits import Dataset, Image, Split


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
