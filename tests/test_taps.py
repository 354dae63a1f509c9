from __future__ import annotations

import copy
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerprobe.errors import RecipeError, UnknownNameError
from layerprobe.keys import LayerKey
from layerprobe.layouts import Layout
from layerprobe.taps import Tap, execution_order, list_layers, measure_layers, resolve_taps, tapped

FC6 = LayerKey("fc6", "none")
POOL1 = LayerKey("pool1", "max")
RELU1 = LayerKey("relu#1", "max")
RELU2 = LayerKey("relu#2", "max")
MAP = Layout("map", shape=(4, 8, 8))


@dataclass(frozen=True, eq=False)
class Layers:
    """The least that has named layers."""

    module: nn.Module
    layers: Mapping[str, str]
    parts: Mapping[str, str] = field(default_factory=dict)
    root: str = ""
    final_norm: str | None = None
    prefix_tokens: int | None = None


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor | None]]:
        return x, {"half": x[:, :1], "none": None}


class Tokens(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2)


class Small(nn.Module):
    """(B, 3, 8, 8) -> conv -> norm -> relu -> relu -> (B, 4): modules of every kind that a tap may meet."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(4, 4)
        self.fc6 = nn.Linear(4, 4)  # registered before it runs
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.norm.bias.data = torch.tensor([-9.0, 0.0, 0.5, 1.0])  # the first channel is negative everywhere
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.pair = Pair()
        self.tokens = Tokens()
        self.last = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.conv(x)))
        x = self.drop(self.relu(F.max_pool2d(x, 2) - 0.5))
        self.pair(x)
        self.tokens(x)
        embeddings: Tensor = self.last(self.fc6(x.mean((2, 3))))
        return embeddings


@pytest.fixture
def net() -> Layers:
    torch.manual_seed(0)
    return Layers(Small(), {"pool1": "norm", "pool2": "drop", "fc6": "fc6", "aux": "unused"})


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def resolve(net: Layers, *expressions: str, pools: tuple[str, ...] = ("max",)) -> list[Tap]:
    return resolve_taps(expressions, net, pools=pools, image_size=8)


def features(net: Layers, *expressions: str) -> dict[LayerKey, Tensor]:
    with tapped(net.module, resolve(net, *expressions)) as features_of:
        return features_of(images())


# --- expressions


def test_names_globs_and_paths_give_each_tap_once_in_execution_order(net: Layers) -> None:
    assert [tap.layer for tap in resolve(net, "fc6", "pool*", "conv", "pool1", "norm")] == [
        "conv", "pool1", "pool2", "fc6",
    ]  # fmt: skip


def test_a_tap_has_the_papers_name_however_it_was_asked_for(net: Layers) -> None:
    assert resolve(net, "norm") == resolve(net, "pool1") == [Tap("pool1", "norm", 1, "max", 4, MAP)]


def test_the_only_call_of_a_module_needs_no_number_in_its_name(net: Layers) -> None:
    assert resolve(net, "pool1#1") == resolve(net, "pool1")


def test_a_pool_in_the_expression_replaces_the_default(net: Layers) -> None:
    assert [tap.key for tap in resolve(net, "pool1@avg", "pool2", pools=("max", "gem"))] == [
        LayerKey("pool1", "avg"), LayerKey("pool2", "max"), LayerKey("pool2", "gem"),
    ]  # fmt: skip


@pytest.mark.parametrize("expression", ["fc6", "fc6@avg", "fc6@none"])
def test_a_vector_is_tapped_once_without_a_pool(net: Layers, expression: str) -> None:
    assert resolve(net, expression, pools=("max", "avg", "grid:2")) == [
        Tap("fc6", "fc6", 1, "none", 4, Layout("vector", shape=(4,)))
    ]


def test_a_grid_has_its_side_squared_numbers_a_channel(net: Layers) -> None:
    assert [tap.dim for tap in resolve(net, "pool1@grid:3", "pool2@grid:4")] == [4 * 9, 4 * 16]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("pool3", "unknown layer 'pool3'. Did you mean 'pool2'? Known: pool1, pool2, fc6, aux."),
        ("toklens", "unknown layer 'toklens'. Did you mean 'tokens'? Known: pool1, pool2, fc6, aux, tokens."),
        ("inception*", "unknown layer 'inception*'. Known: pool1, pool2, fc6, aux."),
        ("pool1@mx", "unknown pool 'mx'. Did you mean 'max'? Known: max, avg, gem, cls, cls+avg, grid:s."),
        ("pool1@grid:0", "unknown pool 'grid:0'. Did you mean 'grid:s'? Known: max, avg, gem, cls, cls+avg, grid:s."),
        ("fc6@mx", "unknown pool 'mx'."),
    ],
)
def test_an_unknown_name_is_an_error_with_the_near_miss(net: Layers, expression: str, message: str) -> None:
    with pytest.raises(UnknownNameError, match=re.escape(message)):
        resolve(net, expression)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("relu", "relu is called 2 times: #1 (4, 8, 8), #2 (4, 4, 4). Choose one, like relu#1."),
        ("relu#3", "relu#3: there is no such call. Known: #1 (4, 8, 8), #2 (4, 4, 4)."),
        ("relu#0", "relu#0: there is no such call."),
        ("relu#x", "relu#x: there is no such call."),
        ("aux", "aux does not run in evaluation. Choose another layer."),
        ("pool2@grid:5", "pool2@grid:5: the map is 4 x 4. Choose a smaller grid, or max."),
        ("pool1@none", "pool1 is a map (4, 8, 8) and needs a pool. Choose max, avg, gem or grid:s."),
    ],
)
def test_what_cannot_be_tapped_is_an_error_that_says_why(net: Layers, expression: str, message: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(message)):
        resolve(net, expression)


def test_images_that_the_network_is_too_deep_for_are_an_error() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(4))
    with pytest.raises(RecipeError, match=r"the network does not take images of 4 px: .*Output size is too small"):
        list_layers(Layers(module, {"conv": "0"}), 4)


def test_the_list_is_in_execution_order_whatever_the_mapping_is_in(net: Layers) -> None:
    listed = list_layers(Layers(net.module, {"fc6": "fc6", "b": "drop", "a": "norm"}), 8)
    assert [(info.name, info.module, info.dim, info.kind, info.calls) for info in listed] == [
        ("a", "norm", 4, "map", 1), ("b", "drop", 4, "map", 1), ("fc6", "fc6", 4, "vector", 1),
    ]  # fmt: skip


# --- what is captured


class Constant(nn.Module):
    """Gives one map of its own, whatever the image."""

    def __init__(self, values: list[list[float]], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.maps = nn.Parameter(torch.tensor([[values]], dtype=dtype))
        self.here = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        return torch.as_tensor(self.here(self.maps.expand(len(images), -1, -1, -1)))


RAMP = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        ("max", [9.0]),
        ("avg", [5.0]),
        ("gem", [225 ** (1 / 3)]),  # (1 + 8 + 27 + 64 + 125 + 216 + 343 + 512 + 729) / 9 = 225
        ("grid:1", [9.0]),
        ("grid:2", [5.0, 6.0, 8.0, 9.0]),  # of 3 x 3: windows of 2 x 2 that share the middle
        ("grid:3", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]),
    ],
)
def test_a_map_is_pooled(pool: str, expected: list[float]) -> None:
    net = Layers(Constant(RAMP), {"pool1": "here"})
    values = features(net, f"pool1@{pool}")[LayerKey("pool1", pool)]
    torch.testing.assert_close(values, torch.tensor([expected, expected]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_features_are_float32_whatever_the_network_computes_in(dtype: torch.dtype) -> None:
    net = Layers(Constant([[60.0, 60.0]], dtype), {"pool1": "here"})
    found = features(net, "pool1@max", "pool1@avg", "pool1@gem", "pool1@grid:1")
    assert {values.dtype for values in found.values()} == {torch.float32}
    # 60 ** 3 is above float16's largest number
    assert {round(values.max().item(), 3) for values in found.values()} == {60.0}


def test_a_layer_overwritten_in_place_keeps_what_it_gave(net: Layers) -> None:
    found = features(net, "norm", "relu#1")
    assert (found[POOL1][:, 0] < 0).all()
    assert torch.equal(found[POOL1].clamp(min=0), found[RELU1])
    fc6 = features(net, "fc6")[FC6]
    assert fc6.min() < 0
    assert torch.equal(fc6.clamp(min=0), net.module.eval()(images()))


def test_calls_are_counted_anew_for_each_batch(net: Layers) -> None:
    with tapped(net.module, resolve(net, "relu#1", "relu#2")) as features_of:
        first = features_of(images())
        second = features_of(images())
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first[RELU1], first[RELU2])


def test_a_batch_that_failed_leaves_nothing_to_the_next(net: Layers) -> None:
    with tapped(net.module, resolve(net, "relu#2", "output")) as features_of:
        expected = features_of(images())[RELU2]
        net.module.fc6 = nn.Linear(5, 4)
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            features_of(images())
        net.module.fc6 = nn.Linear(4, 4)
        assert torch.equal(features_of(images())[RELU2], expected)


class Once(nn.Module):
    """Runs its layer in the first forward only."""

    def __init__(self) -> None:
        super().__init__()
        self.here = nn.Identity()
        self.forwards = 0

    def forward(self, images: Tensor) -> Tensor:
        self.forwards += 1
        return torch.as_tensor(self.here(images)) if self.forwards == 1 else images


def test_a_layer_that_stops_running_gives_no_old_features() -> None:
    with tapped(Once(), [Tap("pool1", "here", 1, "max", 3, MAP)]) as features_of:
        features_of(images())
        with pytest.raises(ValueError, match=r"here was called 0 times, pool1@max needs 1"):
            features_of(images())


def test_features_come_in_the_order_of_the_taps_and_carry_no_graph(net: Layers) -> None:
    taps = resolve(net, "fc6", "pool1")[::-1]
    with tapped(net.module, taps) as features_of:
        found = features_of(images())
    assert list(found) == [FC6, POOL1]
    assert not any(values.requires_grad for values in found.values())


def test_a_tap_that_does_not_fire_is_an_error(net: Layers) -> None:
    with (
        tapped(net.module, [Tap("relu#3", "relu", 3, "max", 4, MAP)]) as features_of,
        pytest.raises(ValueError, match=r"relu was called 2 times, relu#3@max needs 3"),
    ):
        features_of(images())


# --- what is left untouched


def hooks(module: nn.Module) -> int:
    return sum(len(part._forward_hooks) for part in module.modules())


def modes(module: nn.Module) -> dict[str, bool]:
    return {name: part.training for name, part in module.named_modules()}


@pytest.fixture
def trained(net: Layers) -> Layers:
    """In mid-training: gradients there, momentum of the statistics moving, one normalisation frozen."""
    net.module.train()
    net.module(images()).sum().backward()
    net.module.get_submodule("norm").eval()
    return net


def test_each_module_gets_its_own_mode_back_and_no_hook_stays(trained: Layers) -> None:
    before = modes(trained.module)
    assert not before["norm"]
    assert before["drop"]
    with tapped(trained.module, resolve(trained, "pool1", "fc6")):
        assert hooks(trained.module) == 2
        assert not any(modes(trained.module).values())
    assert modes(trained.module) == before
    assert hooks(trained.module) == 0


def test_after_an_error_too_each_module_gets_its_mode_back_and_no_hook_stays(trained: Layers) -> None:
    before, taps = modes(trained.module), resolve(trained, "pool1")
    with pytest.raises(KeyError, match="stop"), tapped(trained.module, taps):
        raise KeyError("stop")
    assert modes(trained.module) == before
    assert hooks(trained.module) == 0


def test_a_tap_of_a_module_that_is_not_there_leaves_no_hook(trained: Layers) -> None:
    before, wrong = modes(trained.module), Tap("pool9", "pool9", 1, "max", 4, MAP)
    with pytest.raises(AttributeError, match="pool9"), tapped(trained.module, [*resolve(trained, "pool1"), wrong]):
        pass
    assert modes(trained.module) == before
    assert hooks(trained.module) == 0


def test_capture_changes_no_weight_statistic_gradient_or_generator(trained: Layers) -> None:
    state = copy.deepcopy(trained.module.state_dict())
    gradients = {name: p.grad.clone() for name, p in trained.module.named_parameters() if p.grad is not None}
    drawn = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002 - the global one
    assert len(gradients) == 6
    trained.module.get_submodule("norm").train()
    features(trained, "pool1", "pool2", "fc6")
    list_layers(Layers(trained.module, {"fc6": "fc6"}), 8)
    assert all(torch.equal(value, state[name]) for name, value in trained.module.state_dict().items())
    for name, parameter in trained.module.named_parameters():
        if name in gradients:
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, gradients[name])
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert random.getstate() == drawn[1]
    assert repr(np.random.get_state()) == drawn[2]  # noqa: NPY002


def test_a_users_own_hook_stays(net: Layers) -> None:
    seen: list[Tensor] = []
    net.module.get_submodule("conv").register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    features(net, "conv", "fc6")
    assert hooks(net.module) == 1
    assert len(seen) == 4  # the listing's three forwards and the capture's


def test_layers_are_put_in_the_order_in_which_the_network_runs_them(net: Layers) -> None:
    names = ["fc6", "relu#2", "pool2", "relu#1", "pool1", "fc9", "relu#7"]
    order = execution_order(names, measure_layers(net, 8))
    assert sorted(order) == sorted(names[:-2])
    assert [name for name in order if name.startswith("relu")] == ["relu#1", "relu#2"]
    assert [name for name in order if not name.startswith("relu")] == ["pool1", "pool2", "fc6"]
