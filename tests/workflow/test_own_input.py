"""`data.transform = "model"`, from image files to features."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from sklearn.datasets import load_sample_images
from torch import nn

from layerprobe import store
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe, recorded_recipe
from layerprobe.system.errors import RecipeError
from layerprobe.values.layers import LayerKey
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.images import Decoding
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import RECIPES, Silent

Make = Callable[..., TrainRequest]
Features = NDArray[np.float32]
Library = Callable[[PIL.Image.Image], torch.Tensor]  # an image -> (3, size, size), normalised

MINE = """
import torch
from torch import nn


def build():
    module = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return module, {"size": 24, "filter": "bicubic", "crop": 0.9, "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.3)}


def build_without():
    return build()[0]
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of two photographs each: wide, upright, odd, and smaller than a model's input."""
    root = tmp_path_factory.mktemp("photos")
    for name, photo in zip(("china", "flower"), load_sample_images().images, strict=True):
        (root / name).mkdir(parents=True)
        shapes = (photo, photo.transpose(1, 0, 2)[:401]) if name == "china" else (photo[:77, :131], photo[1:, 1:])
        for number, pixels in enumerate(shapes):
            PIL.Image.fromarray(np.ascontiguousarray(pixels)).save(root / name / f"{number}.bmp")
    return root


@pytest.fixture
def frozen(tmp_path: Path, photos: Path) -> Make:
    """A request for a run of 0 epochs of a model, all photographs in test."""

    def make(model: str, *settings: str, weights: str = "model") -> TrainRequest:
        net = (f"net.name={model}", f"net.weights={weights}", "data.transform=model", "data.augment=none")
        settings = (*net, "data.train_classes=0", "train.epochs=0", "probe.k=[1]", 'probe.layers=["output"]', *settings)
        recipe = load_recipe(str(RECIPES / "netA.toml"), Overrides(f"folder:{photos}", settings))
        return TrainRequest(recipe, True, tmp_path / "cache", "frozen", "cpu", 0)

    return make


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return f"python:{tmp_path}/mine.py:build"


def features_of(request: TrainRequest) -> tuple[Run, Features]:
    """The run, and the stored features of the model's output for the four photographs."""
    run = train(request, Silent())
    probe(run, ProbeRequest(layers=("output",), device="cpu", workers=0), Silent())
    return run, store.read_features(run.feature_file(0, "test"), LayerKey("output", "none"))


def expected(photos: Path, library: Library, model: Callable[[torch.Tensor], torch.Tensor]) -> Features:
    """What the library makes of the photographs: its transform, then its model."""
    images = [PIL.Image.open(path) for path in sorted(photos.glob("*/*.bmp"))]
    with torch.no_grad():
        found: Features = model(torch.stack([library(image) for image in images])).numpy()
    return found


def with_trunk_of(run: Run, model: nn.Module) -> nn.Module:
    """A model of the library with the run's weights."""
    tensors = load_file(run.checkpoint_file(0))
    trunk = "net.model."
    model.load_state_dict({key.removeprefix(trunk): x for key, x in tensors.items() if key.startswith(trunk)})
    return model.eval()


@pytest.mark.parametrize("size", [160, 96])
def test_features_are_those_of_timms_own_transform_and_model(frozen: Make, photos: Path, size: int) -> None:
    timm = pytest.importorskip("timm")
    settings = () if size == 160 else (f"data.image_size={size}",)
    run, found = features_of(frozen("timm:test_vit.r160_in1k", *settings, weights="none"))
    model = with_trunk_of(run, timm.create_model("test_vit.r160_in1k", img_size=size, num_classes=0))
    config = timm.data.resolve_data_config({"input_size": (3, size, size)}, model=model)
    np.testing.assert_allclose(
        found, expected(photos, timm.data.create_transform(**config), model), rtol=1e-4, atol=1e-5
    )


def test_features_are_those_of_a_hugging_face_processor_and_model(frozen: Make, photos: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    transformers = pytest.importorskip("transformers")
    config = transformers.Dinov2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=56, patch_size=14
    )
    model = transformers.Dinov2Model(config).eval()
    model.save_pretrained(tmp_path / "dinov2")
    size = {"size": {"shortest_edge": 65}, "crop_size": {"height": 56, "width": 56}}
    new = getattr(transformers, "BitImageProcessorPil", transformers.BitImageProcessor)
    processor = new(**size, image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225])
    processor.save_pretrained(tmp_path / "dinov2")
    _, found = features_of(frozen(f"hf:{tmp_path}/dinov2"))

    def library(image: PIL.Image.Image) -> torch.Tensor:
        return torch.as_tensor(processor(image, return_tensors="pt")["pixel_values"][0])

    def forward(pixels: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = model(pixels).pooler_output
        return output

    np.testing.assert_allclose(found, expected(photos, library, forward), rtol=1e-4, atol=1e-5)


def test_features_of_another_size_are_those_of_a_hugging_face_model_that_interpolates(
    frozen: Make, photos: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    transformers = pytest.importorskip("transformers")
    tiny = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        vision_config={**tiny, "image_size": 32, "patch_size": 8},
        text_config={**tiny, "vocab_size": 49408},
        projection_dim=16,
    )
    model = transformers.CLIPModel(config).eval()
    model.save_pretrained(tmp_path / "clip")
    sizes = [{"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}} for side in (32, 48)]
    kind = getattr(transformers, "CLIPImageProcessorPil", transformers.CLIPImageProcessor)
    kind(**sizes[0]).save_pretrained(tmp_path / "clip")
    _, found = features_of(frozen(f"hf:{tmp_path}/clip", "data.image_size=48"))
    processor = kind(**sizes[1])

    def library(image: PIL.Image.Image) -> torch.Tensor:
        return torch.as_tensor(processor(image, return_tensors="pt")["pixel_values"][0])

    def forward(pixels: torch.Tensor) -> torch.Tensor:
        pooled = model.vision_model(pixels, interpolate_pos_encoding=True).pooler_output
        projected: torch.Tensor = model.visual_projection(pooled)
        return projected

    np.testing.assert_allclose(found, expected(photos, library, forward), rtol=1e-4, atol=1e-5)


def test_the_models_own_size_is_recorded_where_none_is_given(frozen: Make, mine: str) -> None:
    run = train(frozen(mine), Silent())
    assert run.read().recipe["data"]["image_size"] == 24
    assert recorded_recipe(run.read(), run.folder).identity() == frozen(mine).recipe.identity()


def test_every_step_is_recorded(frozen: Make, mine: str) -> None:
    steps = json.loads(from_recipe.transform_text(frozen(mine).recipe))
    words = "bicubic, antialiased, shorter side 26, central 24x24 from half the rest rounded to even"
    assert steps["resize"] == [24, 24, words]
    assert (steps["mean"], steps["std"]) == ([0.5, 0.4, 0.3], [0.2, 0.2, 0.3])


def test_another_size_scales_the_side_that_is_resized(frozen: Make, mine: str) -> None:
    steps = json.loads(from_recipe.transform_text(frozen(mine, "data.image_size=48").recipe))
    assert steps["resize"][:2] == [48, 48]
    assert "shorter side 53, central 48x48" in steps["resize"][2]


def test_images_decoded_on_disk_are_the_same(frozen: Make, mine: str, tmp_path: Path) -> None:
    recipe = frozen(mine).recipe
    read = from_recipe.build_dataset(recipe).splits["test"]
    stored = from_recipe.build_dataset(recipe, Decoding(tmp_path / "cache", Silent(), 0, in_process=False)).splits[
        "test"
    ]
    assert list((tmp_path / "cache" / "images").glob("*/pixels.u8"))
    for index in range(len(read)):
        np.testing.assert_array_equal(read.image(index), stored.image(index))


def test_the_glyphs_have_the_models_size_and_mean_instead_of_their_own(mine: str) -> None:
    settings = (f"net.name={mine}", "net.weights=model", "net.fc=[]", "data.transform=model")
    recipe = load_recipe(str(RECIPES / "netA-cub200.toml"), Overrides("glyphs", settings))
    assert recipe.data.image_size == 24
    assert from_recipe.build_normalise(recipe).mean == (0.5, 0.4, 0.3)


@pytest.mark.parametrize("augment", ["photo", "affine"])
def test_the_squares_are_augmented_for_training(request_for: Make, mine: str, augment: str) -> None:
    net = (f"net.name={mine}", "net.weights=model", "net.fc=[]")
    request = request_for(*net, "data.transform=model", f"data.augment={augment}", "train.epochs=1")
    assert train(request, Silent()).read().epochs_done == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("data.mean=0.5",), "has a mean and std of its own. Leave mean out"),
        (("data.std=0.5", "data.mean=[0.1, 0.2, 0.3]"), "Leave mean and std out"),
        (("data.resize=fast",), 'Leave resize = "fast" out'),
        (("net.name=lenet", "net.weights=none"), "lenet has no input of its own"),
    ],
)
def test_what_contradicts_the_models_own_input_is_refused(
    frozen: Make, mine: str, settings: tuple[str, ...], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        frozen(mine, *settings)


def test_a_model_that_does_not_say_its_input_is_refused(frozen: Make, mine: str) -> None:
    with pytest.raises(RecipeError, match="the input of python:.*:build_without is not known. Set .* = square"):
        train(frozen(f"{mine}_without"), Silent())


def test_inverted_images_are_inverted_after_the_resize(frozen: Make, mine: str) -> None:
    plain, inverted = (
        from_recipe.build_dataset(frozen(mine, f"data.invert={value}").recipe).splits["test"]
        for value in ("false", "true")
    )
    np.testing.assert_array_equal(inverted.image(2), 255 - plain.image(2))
