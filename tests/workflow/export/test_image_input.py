from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from layerprobe.data.loading import plain_batches
from layerprobe.encoder.example import read_image
from layerprobe.recipe.recipe import Recipe
from layerprobe.values.network_input import OwnInput
from layerprobe.workflow.export.image_input import image_input, image_shape
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.train.building import TrainRequest

OWN = (
    OwnInput(16),
    OwnInput(16, 19, "bicubic"),
    OwnInput(16, 19, "lanczos", crop_rounding="down"),
    OwnInput(16, 21, "box", squeezed=True),
    OwnInput((16, 12)),
    OwnInput((16, 12), (19, 15), "bicubic"),
    OwnInput((16, 12), (19, 15), squeezed=True),
)


@pytest.fixture
def kinds(images: Path) -> Path:
    """Images of several sizes, modes and orientations among those of noise."""
    rng = np.random.default_rng(0)
    sizes = [(40, 23), (17, 64), (16, 16)]
    for i, (width, height) in enumerate(sizes):
        pixels = rng.integers(0, 256, (height, width, 4), dtype=np.uint8)
        Image.fromarray(pixels).save(images / "class0" / f"alpha{i}.png")
        turned = Image.Exif()
        turned[0x0112] = 6 + i
        Image.fromarray(pixels[:, :, :3]).save(images / "class4" / f"exif{i}.jpg", exif=turned)
        Image.fromarray(pixels[:, :, :3]).save(images / "class5" / f"turned{i}.tiff", tiffinfo={0x0112: 3 + i})
        Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 200).save(images / "class1" / f"deep{i}.png")
        Image.fromarray(pixels[:, :, 0]).convert("P").save(images / "class6" / f"palette{i}.gif")
        Image.fromarray(pixels).convert("CMYK").save(images / "class7" / f"cmyk{i}.jpg")
    return images


def require_same(recipe: Recipe, root: Path, channels: int = 3) -> None:
    dataset = from_recipe.build_dataset(recipe)
    net = replace(from_recipe.build_net(recipe), channels=channels)
    how = image_input(recipe, net)
    for split in dataset.splits.values():
        pixels = np.concatenate([batch.numpy() for batch in plain_batches(split, batch_size=8, workers=0)])
        found = np.stack([read_image(root / name, how) for name in split.ids])
        expected = pixels if channels == 3 else [np.asarray(Image.fromarray(x).convert("L"))[..., None] for x in pixels]
        np.testing.assert_array_equal(found, expected)
        assert found.shape[1:] == image_shape(recipe, net)


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("data.resize=fast",),
        ("data.exif_rotation=true",),
        ("data.white=20000",),
        ("data.image_size=[20,12]",),
        ("data.transform=D1",),
        ("data.transform=D1", "data.resize=fast"),
        ("data.transform=D2",),
        ("data.transform=D3", "data.exif_rotation=true"),
    ],
    ids=" ".join,
)
def test_example_py_reads_a_file_to_the_pixels_of_the_probe(
    request_for: Callable[..., TrainRequest], kinds: Path, settings: tuple[str, ...]
) -> None:
    require_same(request_for(*settings).recipe, kinds)


@pytest.mark.parametrize("own", OWN, ids=lambda own: own.steps())
def test_so_it_does_by_a_model_s_own_transform(
    request_for: Callable[..., TrainRequest], kinds: Path, own: OwnInput
) -> None:
    recipe = request_for().recipe
    data = recipe.data.model_copy(update={"transform": "model"})
    require_same(replace(recipe, data=data, own_input=own), kinds)


def test_a_network_of_one_channel_gets_grey_pixels(request_for: Callable[..., TrainRequest], kinds: Path) -> None:
    require_same(request_for().recipe, kinds, channels=1)
