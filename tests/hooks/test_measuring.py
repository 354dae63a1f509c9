from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerprobe.hooks import (
    Measured,
    capture_layers,
    find_hooks,
    find_layers,
    first_use,
    forwards_as_json,
    is_computed,
    keep_calls_without,
    list_layers,
    measure_layers,
    recorded_forwards,
    resolve_hooks,
)
from layerprobe.hooks.layouts import Unclear
from layerprobe.nets.lenet import build
from layerprobe.system.errors import EnvironmentFault, RecipeError
from layerprobe.workflow.python.user_model import measure_network, net_of
from tests.hooks.models import Layers, images, timm_vit


@dataclass
class Outputs:
    """As Hugging Face's models give them; made in the order of its fields."""

    last_hidden_state: Tensor
    pooler_output: Tensor | None = None


class Gives(nn.Module):
    """Gives what a function makes of the images, (B, 3, 8, 8)."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def layout_of(function: Any) -> str:
    (call,) = measure_layers(Layers(Gives(function)), 8).calls[""]
    return str(call.layout)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: Outputs(x, x.mean((2, 3))), "vector (3,) of pooler_output"),
        (lambda x: Outputs(x), "map (3, 8, 8) of last_hidden_state"),
        (lambda x: {"mask": x, "image_embeds": x.mean((2, 3))}, "vector (3,) of image_embeds"),
        (lambda x: OrderedDict(first=x, second=x[:, :1]), "map (3, 8, 8) of first"),
        (lambda x: (x, None), "map (3, 8, 8) of [0]"),
        (lambda x: [{"last_hidden_state": x.flatten(2).mT}], "tokens (64, 3) of [0].last_hidden_state"),
    ],
)
def test_of_an_output_of_several_parts_the_known_or_the_first_is_taken_and_named(function: Any, expected: str) -> None:
    assert layout_of(function) == expected


def test_the_part_that_the_listing_names_is_the_one_that_is_pooled() -> None:
    module = nn.Sequential(Gives(lambda x: Outputs(x, x[:, 1:, 0, 0])), Gives(lambda outputs: outputs.pooler_output))
    net = Layers(module, {"first": "0"})
    (info,) = list_layers(net, 8)
    assert (info.kind, info.dim, info.layout.part) == ("vector", 2, ("pooler_output",))
    hooks = resolve_hooks(["first"], net, image_size=8)
    with capture_layers(module, hooks) as features_of:
        assert torch.equal(features_of(images(8))[hooks[0].key], images(8)[:, 1:, 0, 0])


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda _: (None, "text"), "there is no tensor in it"),
        (lambda x: x[0], "no one axis grows with the number of images"),
        (lambda x: x.mean(), "no one axis grows"),
        (lambda x: x.repeat(2, 1, 1, 1), "axis 0 has 2 rows an image, such as its windows"),
        (lambda x: torch.zeros(len(x) ** 2, 3), "axis 0 does not grow by one for each image"),
        (lambda x: x.mean((1, 2, 3)), "neither a map, tokens nor a vector: (2,) with 2 images"),
        (lambda x: torch.zeros(len(x), 6, 5), "cannot determine the axis of tokens from one image size"),
        (lambda x: x if len(x) == 2 else (x, x), "depends on the number of images"),
    ],
)
def test_what_cannot_be_told_is_refused_with_the_reason(function: Any, reason: str) -> None:
    (call,) = measure_layers(Layers(Gives(function)), 8).calls[""]
    assert isinstance(call.layout, Unclear)
    assert reason in call.layout.reason


class Resizes(nn.Module):
    """Makes images of 32 px of all."""

    def __init__(self) -> None:
        super().__init__()
        self.vit = timm_vit()

    def forward(self, x: Tensor) -> Any:
        return self.vit(F.interpolate(x, 32))


def test_a_network_that_resizes_its_images_itself_is_measured_at_its_own_size() -> None:
    (info,) = list_layers(Layers(Resizes(), {"block": "vit.blocks.1"}), 48)
    assert str(info.layout) == "tokens (17, 32), 1 before the patches"


class Queries(nn.Module):
    """6 tokens for images of every size, made of a map that changes with it."""

    def __init__(self) -> None:
        super().__init__()
        self.map, self.queries = nn.Identity(), Gives(lambda x: torch.zeros(len(x), 6, 5))

    def forward(self, x: Tensor) -> Any:
        return self.queries(self.map(x))


def test_tokens_that_no_image_size_changes_are_refused() -> None:
    with pytest.raises(RecipeError, match="neither of its axes changes with the image size, as that of tokens does"):
        list_layers(Layers(Queries(), {"queries": "queries"}), 8)


def refuse(error: Exception) -> Any:
    def function(_: Tensor) -> None:
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("too small\nand more"), "too small."),
        (AssertionError("Wrong image height!"), "AssertionError: Wrong image height!"),
        (AssertionError(), "AssertionError."),
        (AttributeError("'NoneType' object has no attribute 'size'"), "AttributeError: 'NoneType' object has no"),
        (TypeError("missing input_ids"), "TypeError: missing input_ids."),
        (ValueError("no"), "ValueError: no."),
        (KeyError("text"), "KeyError: 'text'."),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero."),
    ],
)
def test_whatever_a_model_raises_on_the_images_is_one_line(error: Exception, reason: str) -> None:
    message = f"the network does not take images of 8 px: {reason}"
    with pytest.raises(RecipeError, match=re.escape(message)):
        measure_layers(Layers(Gives(refuse(error))), 8)


def test_too_little_memory_is_no_refusal_of_the_images() -> None:
    error = RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory")
    with pytest.raises(EnvironmentFault, match="out of memory"):
        measure_layers(Layers(Gives(refuse(error))), 8)


def test_a_network_runs_twice_at_its_size_and_at_the_first_other_size_that_it_takes() -> None:
    seen: list[tuple[int, ...]] = []

    def function(x: Tensor) -> Tensor:
        seen.append(tuple(x.shape))
        if x.shape[-1] % 14:
            raise AssertionError
        return x

    measure_layers(Layers(Gives(function)), 126)
    assert seen == [(2, 3, 126, 126), (3, 3, 126, 126), (2, 3, 63, 63), (2, 3, 64, 64), (2, 3, 56, 56)]


class Positions(nn.Module):
    """16 tokens at 32 px, 4 x 4 patches, to which positions are added; 1 patch would be added to all 16 of them."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 6, 8, 8), nn.LayerNorm(6)
        self.positions = nn.Parameter(torch.zeros(1, 16, 6))

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.norm(self.patches(x).flatten(2).mT + self.positions)
        return tokens


def test_positions_of_one_size_do_not_pass_for_another_size() -> None:
    (call,) = measure_layers(Layers(Positions()), 32).calls["norm"]
    assert str(call.layout) == "tokens (16, 6)"


def test_tokens_that_come_window_by_window_have_no_grid() -> None:
    from timm.models.hiera import Hiera

    torch.manual_seed(0)
    model = Hiera(img_size=(64, 64), embed_dim=24, num_heads=1, stages=(1, 1, 1, 1), num_classes=0).eval()
    net = Layers(model, {"blocks.0": "blocks.0"})
    assert [layer.pools for layer in list_layers(net, 64)] == [("avg", "max")]
    with pytest.raises(RecipeError, match="blocks.0@grid:2: its tokens do not come row by row. Choose max or avg"):
        resolve_hooks(["blocks.0@grid:2"], net, image_size=64)
    with capture_layers(model, resolve_hooks(["blocks.0"], net, pools=["avg"], image_size=64)) as features_of:
        (found,) = features_of(images(64)).values()
    with torch.inference_mode():
        expected = model.forward_intermediates(images(64), indices=[0], intermediates_only=True)[0]
    torch.testing.assert_close(found, torch.as_tensor(expected).mean((2, 3)))


class ChannelsLast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1)


def test_maps_of_a_network_of_one_size_that_is_no_square_are_told_from_what_runs_at_another() -> None:
    # (16, 8, 4) alone may be 16 maps of 8 x 4; the linear layer takes no other size, but what comes before it does
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), ChannelsLast(), nn.Flatten(), nn.Linear(4 * 16 * 8, 4))
    found = {info.name: info.layout for info in list_layers(Layers(net, {"1": "1", "3": "3"}, channels=1), (16, 8))}
    assert (found["1"].kind, found["1"].channels, found["1"].shape) == ("map", 3, (4, 16, 8))
    assert found["3"].kind == "vector"


class Pooled(nn.Module):
    """A convolution, a ReLU that is no module, a function, and a linear classifier."""

    def __init__(self, pool: Callable[[Tensor], Tensor], *, relu: bool = False) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 6, 3), nn.Linear(6, 4)
        self.pool, self.relu = pool, relu

    def forward(self, images: Tensor) -> Tensor:
        maps = self.conv(images)
        found: Tensor = self.fc(self.pool(maps.relu() if self.relu else maps))
        return found


class Tokens(nn.Module):
    """Patches with a class token through a norm, and one of the tokens or their mean."""

    def __init__(self, pool: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 6, 4, stride=4), nn.LayerNorm(6), nn.Identity()
        self.cls_token = nn.Parameter(torch.ones(1, 1, 6))
        self.pool = pool

    def forward(self, images: Tensor) -> Tensor:
        patches = self.conv(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], 1)
        found: Tensor = self.head(self.pool(self.norm(tokens)))
        return found


class Excited(Pooled):
    """Squeeze and excitation by avg, then max."""

    def __init__(self) -> None:
        super().__init__(lambda maps: maps.amax((2, 3)))
        self.gate = nn.Conv2d(6, 6, 1)
        self.last = nn.Sigmoid()

    def forward(self, images: Tensor) -> Tensor:
        maps = self.conv(images)
        maps = self.last(maps * self.gate(maps.mean((2, 3), keepdim=True)))
        found: Tensor = self.fc(self.pool(maps))
        return found


def final_pool(module: nn.Module) -> str | None:
    torch.manual_seed(0)
    return measure_layers(Layers(module, {}), 16).final_pool


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("pool", "name"),
    [
        (lambda maps: maps.mean((2, 3)), "avg"),
        (lambda maps: maps.amax((2, 3)), "max"),
        (lambda maps: maps.std((2, 3)), None),
        (lambda maps: maps[:, :, 0, 0], None),
    ],
)
def test_the_pool_of_the_last_map_is_told(pool: Callable[[Tensor], Tensor], name: str | None, relu: bool) -> None:
    assert final_pool(Pooled(pool, relu=relu)) == name


@pytest.mark.parametrize(
    ("pool", "name"),
    [
        (lambda tokens: tokens[:, 0], "cls"),
        (lambda tokens: tokens[:, 1:].mean(1), "avg"),
        (lambda tokens: tokens.mean(1), "avg"),
        (lambda tokens: tokens[:, 1:].amax(1), "max"),
        (lambda tokens: tokens[:, 3], None),
    ],
)
def test_the_pool_of_the_last_tokens_is_told(pool: Callable[[Tensor], Tensor], name: str | None) -> None:
    assert final_pool(Tokens(pool)) == name


def test_a_pool_before_the_last_map_is_not_the_final_one() -> None:
    assert final_pool(Excited()) == "max"


MADE_FROM = {"net": "lenet", "torch": "2.11"}


def unbuilt() -> nn.Module:
    raise AssertionError("the network is built")


@pytest.fixture(scope="module")
def measured() -> Measured:
    return measure_layers(build(fc=[8], seed=0), 28)


def test_layers_are_found_as_in_the_network_which_is_not_built(measured: Measured) -> None:
    text = forwards_as_json(measured, MADE_FROM).encode()
    found = recorded_forwards(text, MADE_FROM, unbuilt)
    assert found is not None
    for expressions in (["*"], ["modules"], ["*@avg"], ["c1+c3@max"]):
        assert find_layers(expressions, found) == find_layers(expressions, measured)


def test_tokens_are_found_as_in_the_network() -> None:
    measured = measure_layers(Layers(timm_vit(), {"1": "blocks.0", "2": "blocks.1"}, final_norm="norm"), 32)
    found = recorded_forwards(forwards_as_json(measured, MADE_FROM).encode(), MADE_FROM, lambda: measured.net.module)
    assert found is not None
    for expressions in (["*"], ["blocks.*.attn"], ["normed(1)"]):
        assert find_layers(expressions, found) == find_layers(expressions, measured)


def test_forwards_of_something_else_are_not_used(measured: Measured) -> None:
    text = forwards_as_json(measured, MADE_FROM).encode()
    assert recorded_forwards(text, {**MADE_FROM, "torch": "2.12"}, unbuilt) is None


@pytest.mark.parametrize("place", [-1, 0, 100])
def test_a_damaged_file_is_not_used(measured: Measured, place: int) -> None:
    text = bytearray(forwards_as_json(measured, MADE_FROM).encode())
    text[place] ^= 0x80
    assert recorded_forwards(bytes(text), MADE_FROM, unbuilt) is None


def test_a_value_of_another_type_is_not_used(measured: Measured) -> None:
    text = forwards_as_json(measured, MADE_FROM).replace('"channels":3', '"channels":"three"', 1)
    assert recorded_forwards(text.encode(), MADE_FROM, unbuilt) is None


class Attending(nn.Module):
    """A convolution, a block with a parameter of its own around two layers, and attention that calls no `out_proj`."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.block = Block()
        self.attention = nn.MultiheadAttention(4, 1, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.block(self.stem(images).flatten(2).transpose(1, 2))
        found: Tensor = self.head(self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(1))
        return found


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(4))
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.second(self.first(tokens + self.token))
        return found


# By hand, the calls that end: stem 0, block.first 1, block.second 2, block 3, attention 4, head 5, the network 6.
@pytest.mark.parametrize(
    ("tensor", "computed"),
    [
        ("head.weight", ["stem", "block.first", "block.second", "block", "attention"]),
        ("attention.out_proj.bias", ["stem", "block.first", "block.second", "block"]),  # which does not run as a module
        ("block.second.weight", ["stem", "block.first"]),
        ("block.token", ["stem"]),  # the block may add it before any of its layers
        ("stem.bias", []),
    ],
)
def test_a_layer_is_computed_without_the_tensors_of_what_ends_after_it(tensor: str, computed: list[str]) -> None:
    network = measure_network(net_of(Attending()), (3, 4, 4))
    assert first_use(network, tensor) == len(computed)
    without = keep_calls_without(network, [tensor, "head.bias"])
    assert {path for path, calls in without.calls.items() if calls} == set(computed)
    names = ["stem", "block.first", "head"]
    hooks = find_hooks(names, network)
    assert {hook.layer for hook in hooks if is_computed(hook, without)} == {*names} & {*computed}
    assert keep_calls_without(network, []) is network
