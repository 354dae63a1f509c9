from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from layerprobe.hooks import Hook
from layerprobe.hooks.cut import count_multiply_adds, shares_after
from layerprobe.hooks.layouts import Layout
from layerprobe.system.errors import RecipeError

MAP = Layout("map", shape=(4, 8, 8))


def hook(module: str, call: int = 1) -> Hook:
    return Hook(module, module, call, "max", 4, MAP)


class Small(nn.Module):
    """A token of its own, two convolutions, one of them twice, and what never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(5))
        self.first = nn.Conv2d(3, 4, 3, padding=1, bias=False)  # 108 parameters, 108 x 64 multiply-adds
        self.again = nn.Conv2d(4, 4, 1, bias=False)  # 16, and 16 x 64 each time
        self.head = nn.Linear(4, 2)  # 10, and 8
        self.unused = nn.Linear(1, 60, bias=False)  # 60

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.head(self.again(self.again(self.first(images))).mean((2, 3)) + self.token[:4])
        return found


# 5 + 108 + 16 + 10 + 60 = 199 parameters; 64 (108 + 16 + 16) + 8 = 8968 multiply-adds
@pytest.mark.parametrize(
    ("layer", "parameters", "operations"),
    [
        (hook("first"), 86 / 199, (64 * 32 + 8) / 8968),
        (hook("again", 1), 70 / 199, (64 * 16 + 8) / 8968),
        (hook("again", 2), 70 / 199, 8 / 8968),
        (hook("head"), 60 / 199, 0.0),
    ],
)
def test_what_begins_after_the_layer_is_left_out(layer: Hook, parameters: float, operations: float) -> None:
    assert shares_after(Small(), [layer], 8) == [pytest.approx((parameters, operations))]


def test_one_forward_tells_of_all_layers_in_the_order_asked_for() -> None:
    asked = [hook("again", 2), hook("first"), hook("head")]
    assert shares_after(Small(), asked, 8) == [shares_after(Small(), [layer], 8)[0] for layer in asked]


def test_a_layer_that_does_not_run_is_refused() -> None:
    with pytest.raises(RecipeError, match="unused does not run"):
        shares_after(Small(), [hook("unused")], 8)


def test_attention_keeps_the_parts_that_it_uses_without_calling_them() -> None:
    block = nn.Sequential(nn.Flatten(2), nn.TransformerEncoderLayer(64, 1, 8, batch_first=True), nn.Linear(64, 1))
    whole = sum(own.numel() for own in block.parameters())
    assert shares_after(block, [hook("1")], 8)[0][0] == pytest.approx(65 / whole)


def test_the_multiply_adds_of_an_image_are_those_of_its_products() -> None:
    assert count_multiply_adds(Small(), 8) == 8968  # as above


class Pooling(nn.Module):
    """A learnt query, expanded to all images, that a linear layer takes in."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.ones(1, 4))
        self.conv = nn.Conv2d(3, 4, 1, bias=False)  # 12 parameters, 12 x 64 multiply-adds
        self.linear = nn.Linear(4, 4, bias=False)  # 16, and 16 for the query

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.conv(images).mean((2, 3)) * self.linear(self.query.expand(len(images), -1))
        return found


@pytest.mark.parametrize("frozen", [False, True])
def test_attention_pooling_is_counted_whether_its_query_learns_or_not(frozen: bool) -> None:
    module = Pooling()
    module.query.requires_grad_(not frozen)
    # 4 + 12 + 16 = 32 parameters, 12 x 64 + 16 = 784 multiply-adds
    assert shares_after(module, [hook("conv")], 8) == [pytest.approx((16 / 32, 16 / 784))]
    assert module.query.requires_grad is not frozen


def test_what_cannot_be_counted_is_unknown() -> None:
    module = Pooling()
    given = torch.ones(1, 4, requires_grad=True)  # no parameter: torch's counter fails at its view
    del module.query
    object.__setattr__(module, "query", given)
    [(parameters, operations)] = shares_after(module, [hook("conv")], 8)
    assert parameters == pytest.approx(16 / 28)
    assert operations is None
    assert count_multiply_adds(module, 8) is None


# By hand, the calls that end: stem 0, block.first 1, block.second 2, block 3, attention 4, head 5, the network 6.
