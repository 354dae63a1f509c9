"""What models give of images, read by explicit indexing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layerprobe.sources.building import Readout, measure_output
from layerprobe.system.errors import RecipeError
from tests.sources.conftest import noise


class Gives(nn.Module):
    """A model of patches of 8 pixels that gives them as the last argument arranges them."""

    def __init__(self, arrange: Any) -> None:
        super().__init__()
        self.patches, self.arrange = nn.Conv2d(3, 6, 8, stride=8), arrange

    def forward(self, images: Tensor) -> Any:
        return self.arrange(self.patches(images))


def with_class_token(maps: Tensor) -> Tensor:
    tokens = maps.flatten(2).transpose(1, 2)
    return torch.cat([tokens.sum(1, keepdim=True), tokens], 1)


def read(arrange: Any, pool: str | None = None) -> tuple[Tensor, Tensor]:
    """What a readout gives of a model's output, and the model's patches (B, 6, 5, 5)."""
    model = Gives(arrange)
    output = measure_output("it", model, 40, final_norms=(), prefix_tokens=None)
    with torch.no_grad():
        maps = model.patches(noise(40))
        return Readout("it", output.layout, pool)(arrange(maps)), maps


def test_a_vector_is_as_it_is() -> None:
    given, maps = read(lambda maps: {"loss": None, "pooler_output": maps[:, :, 0, 0], "last_hidden_state": maps})
    assert torch.equal(given, maps[:, :, 0, 0])


@pytest.mark.parametrize("arrange", [lambda maps: maps, lambda maps: (maps.permute(0, 2, 3, 1), None)])
def test_of_a_map_in_either_order_the_mean_or_the_maximum_is_read(arrange: Any) -> None:
    given, maps = read(arrange)
    torch.testing.assert_close(given, maps.mean((2, 3)))
    given, maps = read(arrange, "max")
    assert torch.equal(given, maps.amax((2, 3)))


def test_of_tokens_the_class_token_is_read_or_the_mean_of_the_patches() -> None:
    given, maps = read(with_class_token)
    torch.testing.assert_close(given, maps.sum((2, 3)))
    given, maps = read(with_class_token, "avg")
    torch.testing.assert_close(given, maps.mean((2, 3)))


def test_without_a_class_token_the_mean_of_the_tokens_is_read() -> None:
    given, maps = read(lambda maps: maps.flatten(2).transpose(1, 2))
    torch.testing.assert_close(given, maps.mean((2, 3)))


@pytest.mark.parametrize(
    ("arrange", "pool", "message"),
    [
        (lambda maps: maps[0, 0, 0, 0], None, "the output of it is .*Give a model"),
        (lambda maps: maps.mean((2, 3)), "avg", 'pool = "avg": the output of it is a vector'),
        (lambda maps: maps + torch.rand(()), None, "it draws random numbers for every image, also in evaluation"),
        (lambda maps: maps, "gem", 'pool = "gem" needs values of 0 and above, which it does not promise'),
    ],
)
def test_what_cannot_be_read_is_refused(arrange: Any, pool: str | None, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        read(arrange, pool)


def test_a_final_norm_is_one_that_is_there_normalises_and_runs() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Identity(), nn.LayerNorm(3), nn.LayerNorm(3)

        def forward(self, images: Tensor) -> Tensor:
            normed: Tensor = self.c(self.a(images.mean((2, 3))))
            return normed

    output = measure_output("it", Normed(), 8, final_norms=("none", "a", "b", "c"), prefix_tokens=None)
    assert output.final_norm == "c"
