from __future__ import annotations

import re
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision import models

from layerprobe.nets.head import GlobalPool, Head
from layerprobe.nets.lenet import build
from layerprobe.nets.net import Net
from layerprobe.nets.resnet import build_resnet18
from layerprobe.nets.vgg16_bn import build as build_vgg16_bn
from layerprobe.system.errors import RecipeError, UnknownNameError

IMAGES = torch.randn(6, 3, 28, 28, generator=torch.Generator().manual_seed(2))


def head(net: Net) -> list[str]:
    names = [name for name, _ in net.module.named_children()]
    return names[names.index("pool5") :]


def pooled(net: Net) -> Tensor:
    outputs: list[Tensor] = []
    pool = net.module.get_submodule("pool5")
    handle = pool.register_forward_hook(lambda _module, _args, output: outputs.append(output.clone()))
    net.module(IMAGES)
    handle.remove()
    return outputs[0]


def test_nothing_is_there_that_was_not_asked_for() -> None:
    assert head(build()) == ["pool5", "fc6"]


def test_the_seed_draws_the_trunk_and_then_the_fully_connected_layers() -> None:
    torch.manual_seed(3)
    models.resnet18(weights=None)
    expected = nn.Linear(512, 16)
    assert torch.equal(build_resnet18(fc=[16], seed=3).module.state_dict()["fc6.weight"], expected.weight)


def test_norm_and_dropout_leave_every_draw_as_it_was() -> None:
    plain = build(fc=[16, 8], seed=4).module.state_dict()
    other = build(fc=[16, 8], seed=4, norm="layer", dropout=0.1, fc_norm="layer", fc_dropout=0.2).module.state_dict()
    assert plain.keys() == other.keys()
    assert all(torch.equal(plain[name], other[name]) for name in plain)


def test_everything_asked_for_stands_in_order() -> None:
    net = build(fc=[16, 8], norm="batch", dropout=0.1, fc_norm="layer", fc_dropout=0.2)
    assert head(net) == ["pool5", "norm5", "dropout5", "fc6", "relu6", "fc7", "norm7", "dropout7"]
    assert list(net.layers)[-5:] == ["pool5", "norm5", "fc6", "fc7", "norm7"]


@pytest.mark.parametrize("fc", [(), (16,), (16, 8)])
@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("last", ["none", "layer"])
def test_its_layers_are_known_without_building_it(fc: tuple[int, ...], norm: str, last: str) -> None:
    asked = Head(fc, "max", norm, 0.1, True, last if fc else "none", 0.2 if fc else 0.0)
    names = [name for name in asked.children(4) if name.startswith(("norm", "fc"))]
    assert list(asked.layers) == names


def test_layer_norm_standardises_each_image_over_its_channels() -> None:
    net = build(fc=[], norm="layer")
    net.module.eval()
    values = pooled(net)
    mean, variance = values.mean(1, keepdim=True), values.var(1, keepdim=True, correction=0)
    torch.testing.assert_close(net.module(IMAGES), (values - mean) / (variance + 1e-5).sqrt())


def test_batch_norm_standardises_each_channel_over_the_batch() -> None:
    net = build(fc=[], norm="batch")
    net.module.train()
    values = pooled(net)
    mean, variance = values.mean(0), values.var(0, correction=0)
    torch.testing.assert_close(net.module(IMAGES), (values - mean) / (variance + 1e-5).sqrt())


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_a_norm_has_no_parameters(norm: Literal["layer", "batch"]) -> None:
    assert not list(build(norm=norm).module.get_submodule("norm5").parameters())


def test_without_fully_connected_layers_the_norm_is_the_embedding_layer() -> None:
    net = build_vgg16_bn(fc=[], norm="layer")
    assert list(net.layers)[-2:] == ["pool5.3", "norm5"]
    assert net.embedding_dim == 512


def test_fully_connected_layers_can_do_without_a_bias() -> None:
    state = build(fc=[16, 8], fc_bias=False).module.state_dict()
    assert [name for name in state if name.startswith("fc")] == ["fc6.weight", "fc7.weight"]


def test_fcr1_is_one_linear_layer_on_the_pool() -> None:
    net = build(fc=[64])
    layer = net.module.get_submodule("fc6")
    assert isinstance(layer, nn.Linear)
    torch.testing.assert_close(net.module(IMAGES), F.linear(pooled(net), layer.weight, layer.bias))


def test_fcr2_drops_embeddings_in_training_alone() -> None:
    torch.manual_seed(0)
    plain, fcr2 = build(fc=[64], seed=1).module.train(), build(fc=[64], seed=1, fc_dropout=0.5).module.train()
    expected, dropped = plain(IMAGES), fcr2(IMAGES)
    kept = dropped != 0
    assert 0.3 < kept.float().mean() < 0.7
    torch.testing.assert_close(dropped[kept], 2 * expected[kept])
    assert torch.equal(fcr2.eval()(IMAGES), expected)


def test_dropout_drops_the_pool_in_training_alone() -> None:
    torch.manual_seed(0)
    net = build(fc=[], dropout=0.5)
    assert (net.module.train()(IMAGES) == 0).float().mean() > (pooled(net) == 0).float().mean() + 0.2
    assert torch.equal(net.module.eval()(IMAGES), pooled(net))


@pytest.mark.parametrize("dim", [2, 2048])
def test_embeddings_have_from_2_to_2048_numbers(dim: int) -> None:
    assert build(fc=[dim]).module(IMAGES).shape == (6, dim)


@pytest.mark.parametrize("key", ["dropout", "fc_dropout"])
@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_a_probability_of_one_or_more_is_refused(key: str, value: float) -> None:
    with pytest.raises(RecipeError, match=re.escape(f"[net]: {key} = {value}. A probability is at least 0 and below")):
        build(dropout=value if key == "dropout" else 0.0, fc_dropout=value if key == "fc_dropout" else 0.0)


def test_a_norm_of_the_last_layer_is_the_embedding() -> None:
    net = build(fc=[16], seed=1, fc_norm="batch")
    values = build(fc=[16], seed=1).module.train()(IMAGES)
    mean, variance = values.mean(0), values.var(0, correction=0)
    torch.testing.assert_close(net.module.train()(IMAGES), (values - mean) / (variance + 1e-5).sqrt())
    assert not list(net.module.get_submodule("norm6").parameters())


def test_a_norm_after_no_layer_is_refused() -> None:
    with pytest.raises(RecipeError, match=r'fc_norm = "batch" without a fully connected layer\. Give fc a size, or'):
        build(fc=[], fc_norm="batch")


def test_a_dropout_after_no_layer_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"fc_dropout = 0\.5 without a fully connected layer\. Give fc a size, or"):
        build(fc=[], fc_dropout=0.5)


def test_an_unknown_norm_names_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown norm 'group'\. .*Known: none, layer, batch"):
        build(norm="group")  # type: ignore[arg-type]


# One image, two channels of 2 x 2.
MAPS = torch.tensor([[[[1.0, 2.0], [3.0, 6.0]], [[-1.0, -2.0], [-3.0, -4.0]]]])


def test_max_takes_each_channels_largest_value() -> None:
    assert GlobalPool("max")(MAPS).tolist() == [[6.0, -1.0]]


def test_avg_takes_each_channels_mean() -> None:
    assert GlobalPool("avg")(MAPS).tolist() == [[3.0, -2.5]]


def test_gem_is_the_cube_root_of_the_mean_cube_with_negatives_as_a_millionth() -> None:
    # (1 + 8 + 27 + 216) / 4 = 63
    expected = torch.tensor([[63 ** (1 / 3), 1e-6]])
    torch.testing.assert_close(GlobalPool("gem")(MAPS), expected)


def test_gem_has_finite_gradients_where_a_channel_is_dead() -> None:
    maps = torch.zeros(1, 1, 2, 2, requires_grad=True)
    GlobalPool("gem")(maps).sum().backward()
    assert maps.grad is not None
    assert maps.grad.isfinite().all()


def test_an_unknown_pool_names_the_near_one() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown pool 'mean'\. Known: max, avg, gem\."):
        GlobalPool("mean")
