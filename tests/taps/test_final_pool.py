from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from layerprobe.taps import measure_layers
from tests.taps.models import Layers


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
