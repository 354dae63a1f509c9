from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerprobe.nets.googlenet_caffe import build
from layerprobe.system.errors import RecipeError

# Block -> channels and side of its map for images of 224: Szegedy et al., Table 1.
MAPS = {
    "3a": (256, 28), "3b": (480, 28), "4a": (512, 14), "4b": (512, 14), "4c": (512, 14), "4d": (528, 14),
    "4e": (832, 14), "5a": (832, 7), "5b": (1024, 7),
}  # fmt: skip


def response_normalised(x: Tensor) -> Tensor:
    """Caffe's: over five channels, x / (1 + alpha / 5 * sum of squares) ** beta."""
    squares = F.pad(x.square(), (0, 0, 0, 0, 2, 2))
    total = sum(squares[:, shift : shift + x.shape[1]] for shift in range(5))
    return x / (1 + 1e-4 / 5 * total) ** 0.75


def caffe_features(w: dict[str, Tensor], x: Tensor) -> Tensor:
    """The prototxt up to inception_5b/output, written as a list of operations on Caffe's names."""

    def unit(name: str, x: Tensor, stride: int = 1) -> Tensor:
        weight = w[f"{name}.weight"]
        return F.conv2d(x, weight, w[f"{name}.bias"], stride, weight.shape[-1] // 2).relu()

    def pool(x: Tensor) -> Tensor:
        return F.max_pool2d(x, 3, 2, ceil_mode=True)

    x = response_normalised(pool(unit("conv1/7x7_s2", x, 2)))
    x = pool(response_normalised(unit("conv2/3x3", unit("conv2/3x3_reduce", x))))
    for block in MAPS:
        if block in ("4a", "5a"):
            x = pool(x)
        name = f"inception_{block}/"
        triple = unit(f"{name}3x3", unit(f"{name}3x3_reduce", x))
        five = unit(f"{name}5x5", unit(f"{name}5x5_reduce", x))
        pooled = unit(f"{name}pool_proj", F.max_pool2d(x, 3, 1, 1))
        x = torch.cat([unit(f"{name}1x1", x), triple, five, pooled], 1)
    return x


def caffe_name(name: str) -> str:
    name = re.sub(r"^inception(\d[a-e])\.", r"inception_\1/", name)
    return re.sub(r"^(conv\d)_", r"\1/", name)


@pytest.fixture(scope="module")
def converted() -> dict[str, Tensor]:
    """As a converter writes Caffe's file: with its classifiers."""
    weights = {caffe_name(name): value for name, value in build(fc=[], seed=8).module.state_dict().items()}
    return weights | {"loss3/classifier.weight": torch.zeros(1000, 1024), "loss1/conv.weight": torch.zeros(2)}


def test_with_caffes_file_it_computes_caffes_features(converted: dict[str, Tensor]) -> None:
    torch.manual_seed(0)
    net = build(fc=[], weights=converted, seed=9)
    rgb = torch.rand(2, 3, 70, 70)  # maps of 35, 18, 9 and 5, at which Caffe rounds up
    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[..., None, None]
    bgr = 255 * rgb[:, [2, 1, 0]] - torch.tensor([104.0, 117.0, 123.0])[:, None, None]
    with torch.inference_mode():
        expected = caffe_features(converted, bgr).mean((2, 3))
        embeddings = net.module.eval()((rgb - mean) / deviation)
    torch.testing.assert_close(embeddings, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())
    assert not net.new_parameters


def test_a_converters_underscores_are_read_too(converted: dict[str, Tensor]) -> None:
    flat = {name.replace("/", "_"): value for name, value in converted.items()}
    state = build(fc=[], weights=flat).module.state_dict()
    assert torch.equal(state["inception4c.5x5.weight"], converted["inception_4c/5x5.weight"])


def test_with_a_classifier_of_1000_it_has_caffes_6_998_552_parameters() -> None:
    assert sum(parameter.numel() for parameter in build(fc=[1000]).module.parameters()) == 6_998_552


def test_layers_are_the_blocks_with_their_maps_the_pool_and_the_head() -> None:
    net = build(fc=[64])
    assert list(net.layers) == [*(f"inception{block}" for block in MAPS), "pool5", "fc6"]
    shapes: dict[str, tuple[int, ...]] = {}
    for name, path in net.layers.items():
        net.module.get_submodule(path).register_forward_hook(
            lambda _module, _args, output, name=name: shapes.update({name: tuple(output.shape[1:])})
        )
    with torch.inference_mode():
        net.module.eval()(torch.zeros(1, 3, 224, 224))
    maps = {f"inception{block}": (channels, side, side) for block, (channels, side) in MAPS.items()}
    assert shapes == maps | {"pool5": (1024,), "fc6": (64,)}


def test_it_starts_as_caffes_with_xavier_and_biases_of_a_fifth() -> None:
    convolutions = [part for part in build(fc=[], seed=3).module.modules() if isinstance(part, nn.Conv2d)]
    assert len(convolutions) == 57
    for convolution in convolutions:
        assert convolution.bias is not None
        assert torch.equal(convolution.bias, torch.full_like(convolution.bias, 0.2))
        # Uniform with variance 1 / inputs: nothing beyond the root of three times that.
        inputs = convolution.weight[0].numel()
        assert convolution.weight.std().item() == pytest.approx(inputs**-0.5, rel=0.05)
        assert convolution.weight.abs().max().item() <= (3 / inputs) ** 0.5


def test_there_is_no_batch_normalisation_to_freeze() -> None:
    with pytest.raises(RecipeError, match=r"googlenet_caffe has no batch normalisation to freeze\. Leave freeze_bn"):
        build(freeze_bn=True)
