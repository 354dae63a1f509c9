from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import nn

import layerprobe
from layerprobe.sources.timm_models import SOURCE
from layerprobe.system.errors import DataError, EnvironmentFault, RecipeError, UnknownNameError
from layerprobe.workflow.manage.layers import layers as listed
from tests.workflow.python.test_probe_model import small_model


def test_the_layers_are_the_blocks_and_the_output() -> None:
    found = layerprobe.layers(small_model(), image_size=12)
    assert [(layer.name, layer.kind, layer.dim, layer.calls) for layer in found] == [
        ("0.0", "map", 4, 1),
        ("0.1", "map", 6, 1),
        ("output", "vector", 5, 1),
    ]
    header, _, first, *_ = (line.split() for line in repr(found).splitlines())
    assert (header, first) == (["layer", "output", "dim", "calls"], ["0.0", "map", "(4,", "10,", "10)", "4", "1"])
    assert '<td style="text-align: left">output</td>' in found._repr_html_()


def test_features_are_those_of_a_forward() -> None:
    model, images = small_model().train(), torch.randn(70, 3, 12, 12)
    found = layerprobe.extract(model, "0.1@avg,0.1@max,output", images)
    assert model.training
    with torch.no_grad():
        maps = model.eval()[0](images)
        expected = {"0.1@avg": maps.mean((2, 3)), "0.1@max": maps.amax((2, 3)), "output": model(images)}
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values.numpy(), rtol=1e-5, atol=1e-6)
        assert found[name].dtype == np.float32
    in_batches = layerprobe.extract(model, ["output"], [(images[:30], [0] * 30), (images[30:], [1] * 40)])
    np.testing.assert_allclose(in_batches["output"], found["output"], rtol=1e-5, atol=1e-6)


def test_a_classifier_of_timm_has_the_layers_of_the_command_line(tmp_path: Path) -> None:
    model, images = timm.create_model("test_vit", num_classes=7), torch.randn(2, 3, 160, 160)
    assert [layer.name for layer in layerprobe.layers(model, 160)] == [
        row.layer for row in listed("timm:test_vit", tmp_path).layers
    ]
    of_command = SOURCE.build("test_vit", weights=model.state_dict())
    ours, theirs = (layerprobe.extract(each, "output", images)["output"] for each in (model, of_command))
    np.testing.assert_array_equal(ours, theirs)


def test_the_listing_says_that_the_output_is_the_classifiers_input() -> None:
    model = timm.create_model("test_vit", num_classes=7, img_size=32)
    last = str(layerprobe.layers(model, 32)).splitlines()[-1]
    assert last == "output is the input of the model's classifier; layer head is what that gives"


def test_a_classifier_is_a_layer_by_its_path_alone() -> None:
    torch.manual_seed(0)
    model, images = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), torch.randn(2, 3, 8, 8)
    model.add_module("classifier", nn.Linear(4, 5))
    assert [layer.name for layer in layerprobe.layers(model, 8)] == ["0", "output"]
    found = layerprobe.extract(model, "classifier,output", images)
    assert list(found) == ["output", "classifier"]
    with torch.no_grad():
        np.testing.assert_allclose(found["classifier"], model(images).numpy(), atol=1e-6)
        np.testing.assert_allclose(found["output"], model[:3](images).numpy(), atol=1e-6)


def test_a_wrapped_model_has_the_layers_of_the_model() -> None:
    model = small_model()
    assert layerprobe.layers(nn.DataParallel(model), 12) == layerprobe.layers(model, 12)


def test_a_layer_or_images_that_are_not_there_are_told() -> None:
    with pytest.raises(UnknownNameError, match="unknown layer '0.11'"):
        layerprobe.extract(small_model(), "0.11", torch.zeros(1, 3, 12, 12))
    with pytest.raises(DataError, match=r"images of `images` are float32 \(3, 12, 12\)"):
        layerprobe.extract(small_model(), "output", torch.zeros(3, 12, 12))


class WithBoxes(nn.Module):
    """A block and an output that is no features."""

    def __init__(self) -> None:
        super().__init__()
        self.block = small_model()

    def forward(self, images: torch.Tensor) -> list[str]:
        self.block(images)
        return ["no tensor"]


def test_an_output_that_is_no_features_is_no_layer() -> None:
    assert [layer.name for layer in layerprobe.layers(WithBoxes(), 12)] == ["block.0.0", "block.0.1"]
    assert list(layerprobe.extract(WithBoxes(), "*", torch.zeros(1, 3, 12, 12))) == ["block.0.0@avg", "block.0.1@avg"]


class Raising(nn.Conv2d):
    """What happens in its forward is not about the images."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images) * torch.ones(self.out_channels, 1, 1, device="meta")


class Killed(nn.Conv2d):
    """torch raises this wherever the main process is when a data worker dies."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")


def test_a_tensor_without_numbers_and_a_dead_worker_are_not_about_the_images() -> None:
    with pytest.raises(DataError, match=r"the network has a tensor on the device meta, .* Build it on the CPU"):
        layerprobe.layers(Raising(3, 4, 3), 8)
    with pytest.raises(EnvironmentFault, match=r"a data worker was killed \(memory\?\)\. Use fewer workers"):
        layerprobe.layers(Killed(3, 4, 3), 8)


def test_images_that_the_model_does_not_take_are_told_without_a_flag() -> None:
    with pytest.raises(RecipeError, match="does not take images of 2 px: .*. Give images of another size"):
        layerprobe.layers(small_model(), 2)


@pytest.fixture(scope="module")
def transformer() -> nn.Module:
    """timm's, with two blocks and a class token before 4 x 4 patches."""
    torch.manual_seed(0)
    made: nn.Module = timm.models.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=0
    )
    return made.eval()


def test_a_transformer_has_its_class_token_and_the_mean_of_its_patches(transformer: nn.Module) -> None:
    torch.manual_seed(0)
    images = torch.randn(3, 3, 32, 32)
    found = layerprobe.extract(transformer, ["blocks.*@cls", "blocks.*@avg"], images)
    tokens = transformer.forward_intermediates(  # type: ignore[operator] # timm's
        images, intermediates_only=True, return_prefix_tokens=True, output_fmt="NLC", norm=False
    )
    for block, (patches, prefix) in enumerate(tokens):
        for pool, expected in (("cls", prefix[:, 0]), ("avg", patches.mean(1))):
            values = expected.detach().numpy()
            np.testing.assert_allclose(found[f"blocks.{block}@{pool}"], values, rtol=1e-4, atol=1e-5)
    assert set(found) == {"blocks.0@cls", "blocks.0@avg", "blocks.1@cls", "blocks.1@avg"}
    assert list(layerprobe.extract(transformer, "blocks.*", images)) == ["blocks.0@cls", "blocks.1@cls"]


def test_the_final_norm_is_the_one_after_the_last_block(transformer: nn.Module) -> None:
    torch.manual_seed(0)
    images = torch.randn(3, 3, 32, 32)
    nn.init.normal_(transformer.get_parameter("norm.weight"))
    found = layerprobe.extract(transformer, ["normed(blocks.1)@cls", "output"], images)
    with torch.no_grad():
        expected = transformer.forward_features(images)[:, 0].numpy()  # type: ignore[operator] # timm's
    for name in ("normed(blocks.1)@cls", "output"):
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(RecipeError, match="the network has no final norm"):
        layerprobe.extract(small_model(), "normed(0.1)", torch.zeros(1, 3, 12, 12))


def test_a_maximum_over_tokens_warns(transformer: nn.Module) -> None:
    with pytest.warns(UserWarning, match=r"max over the tokens of blocks.1: .* cls and avg are safer") as warned:
        layerprobe.extract(transformer, "blocks.1@max", torch.zeros(1, 3, 32, 32))
    assert warned[0].filename == __file__


def test_the_parts_of_blocks_are_among_the_modules(transformer: nn.Module) -> None:
    found = layerprobe.extract(transformer, "modules", torch.zeros(1, 3, 32, 32))
    assert {"blocks.0.attn@cls", "blocks.1.mlp.act@cls", "blocks.1@cls"} <= found.keys()


@pytest.mark.slow  # torch takes seconds to import its compiler
def test_a_compiled_model_has_the_layers_of_the_model(transformer: nn.Module) -> None:
    compiled = torch.compile(transformer)
    assert isinstance(compiled, nn.Module)
    assert layerprobe.layers(compiled, 32) == layerprobe.layers(transformer, 32)


def small_model_of(channels: int) -> nn.Sequential:
    """Of 32 x 64 images alone: a map of 4 channels at half the size, then 5 numbers."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(channels, 4, 3, stride=2, padding=1), nn.ReLU())
    return nn.Sequential(block, nn.Flatten(), nn.Linear(4 * 16 * 32, 5))


@pytest.mark.parametrize("channels", [1, 5])
def test_images_have_the_channels_height_and_width_that_the_model_takes(channels: int) -> None:
    model, images = small_model_of(channels), torch.randn(6, channels, 32, 64)
    found = layerprobe.layers(model, (channels, 32, 64))
    assert [(layer.name, layer.kind, layer.layout.shape) for layer in found] == [
        ("0", "map", (4, 16, 32)),
        ("2", "vector", (5,)),
        ("output", "vector", (5,)),
    ]
    features = layerprobe.extract(model, "0@avg,output", images)
    with torch.inference_mode():
        np.testing.assert_allclose(features["0@avg"], model[0](images).mean((2, 3)).numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(features["output"], model(images).numpy(), rtol=1e-5, atol=1e-6)


def test_where_no_channels_are_given_a_model_is_listed_with_the_first_of_3_and_1_that_it_takes() -> None:
    assert layerprobe.layers(small_model_of(1), (32, 64)) == layerprobe.layers(small_model_of(1), (1, 32, 64))
    with pytest.raises(RecipeError, match=r"does not take images of 32x64 px: .*to have 5 channels, but got 3"):
        layerprobe.layers(small_model_of(5), (32, 64))


@pytest.mark.parametrize("image_size", [torch.ones(1, 3, 8, 8), None, "8", 8.0, True, (8.0, 8.0)])
def test_a_size_of_images_is_whole_numbers(image_size: Any) -> None:
    with pytest.raises(TypeError, match=r"image_size must be a whole number, \(H, W\) or \(C, H, W\), in pixels, not "):
        layerprobe.layers(small_model_of(3), image_size)
    assert layerprobe.layers(nn.Conv2d(3, 4, 3), np.int64(8)) == layerprobe.layers(nn.Conv2d(3, 4, 3), 8)  # type: ignore[arg-type] # a whole number, too


@pytest.mark.parametrize("image_size", [(8,), (1, 3, 8, 8), -8, (3, 0, 8)])
def test_a_size_of_images_has_two_or_three_numbers_from_1(image_size: Any) -> None:
    with pytest.raises(ValueError, match="image_size is .*: must be a whole number, .*, each at least 1"):
        layerprobe.layers(small_model_of(3), image_size)


def test_images_of_other_channels_than_the_model_takes_are_told() -> None:
    with pytest.raises(RecipeError, match="the network does not take images of 32x64 px and 2 channels: "):
        layerprobe.extract(small_model_of(5), "output", torch.zeros(2, 2, 32, 64))


def test_batches_of_another_shape_are_told() -> None:
    batches = [torch.zeros(2, 1, 32, 64), torch.zeros(2, 1, 64, 32)]
    with pytest.raises(DataError, match=r"images of `images` are \(1, 64, 32\) after others of \(1, 32, 64\)"):
        layerprobe.extract(small_model_of(1), "output", batches)
