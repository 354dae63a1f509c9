from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from layerprobe.taps import find_taps, first_use, is_computed, keep_calls_without
from layerprobe.workflow.python.user_model import measure_network, net_of


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
    taps = find_taps(names, network)
    assert {tap.layer for tap in taps if is_computed(tap, without)} == {*names} & {*computed}
    assert keep_calls_without(network, []) is network
