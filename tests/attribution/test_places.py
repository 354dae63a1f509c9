from __future__ import annotations

import pytest
import torch
from captum.attr import LayerGradCam
from torch import Tensor, nn

from layerprobe.attribution.places import maps_before
from layerprobe.taps import find_layers
from tests.attribution.networks import convolutional, explained, image, measured_of
from tests.taps.models import timm_swin, timm_vit


class TwoChannels(nn.Module):
    """The first two channels of an image, as a map or as tokens after a prefix token; then their mean."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.blocks, self.order = nn.Sequential(Arranged(order)), order

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.blocks(images)
        if self.order == "map":
            return out.mean((2, 3))
        return out.mean((1, 2)) if self.order == "last" else out[:, 1:].mean(1)


class Arranged(nn.Module):
    def __init__(self, order: str) -> None:
        super().__init__()
        self.order, self.cls = order, nn.Parameter(torch.ones(1, 1, 2))

    def forward(self, images: Tensor) -> Tensor:
        maps = images[:, :2]
        if self.order == "map":
            return maps
        if self.order == "last":
            return maps.permute(0, 2, 3, 1)
        return torch.cat([self.cls.expand(len(images), -1, -1), maps.flatten(2).transpose(1, 2)], 1)


@pytest.mark.parametrize("order", ["map", "last", "tokens"])
@pytest.mark.parametrize("layer", ["blocks.0@avg", "output"])
def test_grad_cam_of_two_channels_by_hand(order: str, layer: str) -> None:
    # s = mean(A) . mean(B) over h w places: the gradient is mean(B_c) / (h w) at each, which weighs channel A_c
    size = 8
    found = explained(TwoChannels(order), layer, "dot", size=size)
    first, second = (image(seed, size)[0, :2] for seed in (0, 1))
    for side, own, other in ((found.query, first, second), (found.neighbour, second, first)):
        wanted = (own * other.mean((1, 2))[:, None, None]).sum(0) / size**2
        assert side.places is not None
        torch.testing.assert_close(torch.from_numpy(side.places), wanted, rtol=1e-4, atol=1e-6)


def test_grad_cam_of_a_later_layer_is_captums_of_the_module() -> None:
    module = convolutional().eval()
    found = explained(module, "7", "dot")
    with torch.no_grad():
        other = module(image(1))
    wanted = LayerGradCam(lambda images: (module(images) * other).sum(1), module[4]).attribute(image(0))
    assert found.places_of == "4 (5x5)"
    assert found.query.places is not None
    torch.testing.assert_close(torch.from_numpy(found.query.places), wanted[0, 0].detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("layer", "shown"),
    [("blocks.1@avg", "blocks.1 (4x4)"), ("blocks.1@cls", "blocks.0 (4x4)"), ("output", "blocks.0 (4x4)")],
)
def test_a_layer_is_explained_by_the_last_map_that_it_depends_on(layer: str, shown: str) -> None:
    found = explained(timm_vit(), layer, size=32)
    assert found.places_of == shown
    assert found.query.places is not None
    assert found.query.places.shape == (4, 4)
    assert abs(found.query.places).max() > 0


def test_a_class_token_of_the_first_block_has_no_map_before_it() -> None:
    found = explained(timm_vit(), "blocks.0@cls", size=32)
    assert (found.places_of, found.query.places) == (None, None)
    assert found.notes == ("no Grad-CAM: no named layer at or before it has a map that it depends on",)


def test_maps_with_channels_last_are_read_as_maps() -> None:
    found = explained(timm_swin(), "layers.0.blocks.1@avg", size=64)
    assert found.query.places is not None
    assert found.query.places.shape == (16, 16)


def test_a_map_of_one_place_shows_nothing() -> None:
    network = measured_of(convolutional())
    (pooled,) = find_layers(["5"], network)
    assert [str(at) for at in maps_before(pooled, network)] == ["4 (5x5)", "1 (14x14)"]


def test_grad_cam_of_an_even_map_is_0_and_still_that_map() -> None:
    # A cosine does not change with the length of the mean, so that the channels of an even map cancel out
    found = explained(nn.Sequential(Even()), "0@avg")
    assert found.places_of == "0 (16x16)"
    assert found.query.places is not None
    assert abs(found.query.places).max() < 1e-7


class Even(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3), keepdim=True).expand_as(images)
