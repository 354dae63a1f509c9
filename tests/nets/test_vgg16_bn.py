from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.vgg import cfgs, make_layers

from layerprobe.nets.vgg16_bn import build
from layerprobe.system.errors import DataError, UnknownNameError

# Paper's name -> index of the ReLU in torchvision's features, by its own listing.
RELUS = {
    "pool1.1": 2, "pool1.2": 5, "pool2.1": 9, "pool2.2": 12, "pool3.1": 16, "pool3.2": 19, "pool3.3": 22,
    "pool4.1": 26, "pool4.2": 29, "pool4.3": 32, "pool5.1": 36, "pool5.2": 39, "pool5.3": 42,
}  # fmt: skip


@pytest.fixture(scope="module")
def pretrained() -> dict[str, Tensor]:
    """As torchvision's file: the trunk's tensors, and a classifier (here a small one)."""
    torch.manual_seed(5)
    features = {f"features.{key}": value for key, value in make_layers(cfgs["D"], batch_norm=True).state_dict().items()}
    features["features.41.running_mean"] += 3
    return features | {"classifier.6.weight": torch.zeros(10, 4), "classifier.6.bias": torch.zeros(10)}


def test_layers_are_the_relus_after_each_convolution_then_fc6() -> None:
    net = build()
    assert net.layers == {name: f"features.{index}" for name, index in RELUS.items()} | {"fc6": "fc6"}
    assert list(net.layers) == [*RELUS, "fc6"]
    assert all(isinstance(net.module.get_submodule(f"features.{index}"), nn.ReLU) for index in RELUS.values())


def test_a_relu_stands_between_fully_connected_layers_only() -> None:
    names = [name for name, _ in build(fc=[512, 64, 32]).module.named_children()]
    assert names == ["features", "pool5", "fc6", "relu6", "fc7", "relu7", "fc8"]


@pytest.mark.parametrize(("fc", "dim"), [([], 512), ([64], 64), ([64, 32], 32)])
def test_the_embedding_is_the_last_fully_connected_layer_or_the_pool(fc: list[int], dim: int) -> None:
    net = build(fc=fc)
    assert net.embedding_dim == dim
    assert net.module.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, dim)


def test_without_fully_connected_layers_the_output_is_the_global_maximum_of_the_last_relu() -> None:
    torch.manual_seed(0)
    module = build(fc=[]).module.eval()
    images = torch.randn(2, 3, 48, 48)  # a last map of 3 x 3, of which torchvision's max pool would drop a row
    features = module.get_submodule("features")(images)
    assert features.shape == (2, 512, 3, 3)
    assert torch.equal(module(images), features.flatten(2).max(2).values)


def test_convolutions_start_as_torchvisions_vgg_with_kaiming_fan_out_and_no_bias() -> None:
    convolutions = [part for part in build(seed=3).module.modules() if isinstance(part, nn.Conv2d)]
    assert len(convolutions) == 13
    for convolution in convolutions:
        # gain^2 / (output channels x 9 positions); torch's own start of a convolution is 1 / (3 x input positions)
        assert convolution.weight.std().item() == pytest.approx((2 / (convolution.out_channels * 9)) ** 0.5, rel=0.05)
        assert convolution.bias is not None
        assert not convolution.bias.any()


def test_the_same_seed_gives_the_same_net_and_another_seed_another() -> None:
    first, again, other = (build(seed=seed).module.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["features.0.weight"], other["features.0.weight"])
    assert not torch.equal(first["fc6.weight"], other["fc6.weight"])


def test_building_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    build(seed=11)
    assert torch.equal(torch.get_rng_state(), before)


def test_everything_is_new_without_weights() -> None:
    net = build()
    assert net.new_parameters == {name for name, _ in net.module.named_parameters()}


def test_torchvisions_weights_fill_the_trunk_and_leave_the_head_new(pretrained: dict[str, Tensor]) -> None:
    net = build(weights=pretrained)
    state = net.module.state_dict()
    assert all(torch.equal(state[name], value) for name, value in pretrained.items() if name.startswith("features"))
    assert net.new_parameters == {"fc6.weight", "fc6.bias"}


def test_netb_leaves_the_last_convolution_and_its_batch_normalisation_at_their_start(
    pretrained: dict[str, Tensor],
) -> None:
    net, start = build(weights=pretrained, from_scratch=["conv5.3"], seed=4), build(seed=4)
    state, fresh = net.module.state_dict(), start.module.state_dict()
    new = [name for name in fresh if name.startswith(("features.40.", "features.41."))]
    assert len(new) == 7  # weight and bias twice, mean, variance, count
    assert all(torch.equal(state[name], fresh[name]) for name in new)
    assert torch.equal(state["features.37.weight"], pretrained["features.37.weight"])
    assert net.new_parameters == {
        "features.40.weight", "features.40.bias", "features.41.weight", "features.41.bias", "fc6.weight", "fc6.bias",
    }  # fmt: skip


def test_a_head_is_loaded_where_its_shape_agrees() -> None:
    weights = build(fc=[64, 32], seed=1).module.state_dict()
    net = build(fc=[64, 16], weights=weights, seed=2)
    assert torch.equal(net.module.state_dict()["fc6.weight"], weights["fc6.weight"])
    assert net.new_parameters == {"fc7.weight", "fc7.bias"}


def test_a_fully_connected_layer_can_start_from_scratch() -> None:
    weights = build(seed=1).module.state_dict()
    assert build(weights=weights, from_scratch=["fc6"]).new_parameters == {"fc6.weight", "fc6.bias"}


def test_an_unknown_convolution_names_the_near_one() -> None:
    with pytest.raises(
        UnknownNameError, match=r"vgg16_bn to train from scratch 'conv5\.4'\. Did you mean 'conv5\.3'\?"
    ):
        build(from_scratch=["conv5.4"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("features.37.weight"), "features.37.weight is missing"),
        (lambda w: w.pop("features.41.running_var"), "features.41.running_var is missing"),
        (
            lambda w: w.update({"features.0.weight": torch.zeros(64, 1, 3, 3)}),
            "features.0.weight has shape (64, 1, 3, 3), not (64, 3, 3, 3)",
        ),
        (lambda w: w.update({"features.43.weight": torch.zeros(3)}), "there is no place for features.43.weight"),
    ],
)
def test_weights_of_another_trunk_are_refused_by_tensor_and_network(
    pretrained: dict[str, Tensor], change: object, message: str
) -> None:
    weights = dict(pretrained)
    assert callable(change)
    change(weights)
    with pytest.raises(
        DataError, match=re.escape(f"weights of another network than vgg16_bn: {message}. Name the network")
    ):
        build(weights=weights)


def test_weights_older_than_the_batch_counter_are_taken(pretrained: dict[str, Tensor]) -> None:
    old = {name: value for name, value in pretrained.items() if not name.endswith("num_batches_tracked")}
    assert build(weights=old).new_parameters == {"fc6.weight", "fc6.bias"}


def test_half_precision_weights_become_float32(pretrained: dict[str, Tensor]) -> None:
    halves = {name: value.half() if value.is_floating_point() else value for name, value in pretrained.items()}
    assert {parameter.dtype for parameter in build(weights=halves).module.parameters()} == {torch.float32}


def test_a_layer_needs_an_output() -> None:
    with pytest.raises(ValueError, match=r"fc = \[512, 0\]: a layer needs at least 1 output"):
        build(fc=[512, 0])
