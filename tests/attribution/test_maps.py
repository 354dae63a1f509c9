from __future__ import annotations

import pytest
import torch
from captum.attr import IntegratedGradients, LayerGradCam
from torch import Tensor, nn

import layerprobe
from layerprobe.attribution import maps
from layerprobe.attribution.explaining import explain
from layerprobe.attribution.maps import Division, integrated_gradients, maps_before, similarities
from layerprobe.hooks import find_layers
from layerprobe.values.layers import VECTOR_SIMILARITIES, VectorSimilarity
from tests.attribution.networks import convolutional, explained, image, measured_of, scored
from tests.hooks.models import timm_swin, timm_vit


@pytest.mark.parametrize("similarity", VECTOR_SIMILARITIES)
def test_similarities_are_those_of_the_search(similarity: VectorSimilarity) -> None:
    features = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).double()
    found = layerprobe.nearest_neighbours(features, k=1, similarity=similarity)
    for row in range(5):
        nearest = features[found.indices[row, 0]][None]
        (own,) = similarities(features[row][None], nearest, similarity).tolist()
        assert own == pytest.approx(found.similarities[row, 0], abs=1e-12)


def test_a_zero_vector_has_a_cosine_of_0() -> None:
    assert similarities(torch.zeros(1, 3), torch.ones(1, 3), "cosine").tolist() == [0]


def test_the_cosine_of_concatenated_layers_is_the_mean_of_theirs() -> None:
    module = convolutional()
    network = measured_of(module)
    found = []
    for name in ("2@avg", "3@avg", "2+3@avg"):
        with scored(name, network).embedding(module) as embed, torch.no_grad():
            features = embed(torch.cat([image(0), image(1)]))
        found.append(float(similarities(features[:1], features[1:], "cosine")))
    assert found[2] == pytest.approx((found[0] + found[1]) / 2, abs=1e-6)


def test_relus_work_in_place_again_afterwards() -> None:
    module = convolutional()
    with scored("7", measured_of(module)).embedding(module):
        assert not module[1].inplace
    assert module[1].inplace


def linear() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 5, bias=False))


def test_pixels_of_a_linear_network_are_its_weights_times_the_image() -> None:
    # s = f(x) . f(y) = x . W'W y: each pixel's share is x times W'W y, summed over the channels
    module = linear()
    found = explained(module, "1", "dot", size=4)
    weight = next(module.parameters()).detach().double()
    x, y = (image(seed, 4).double().flatten() for seed in (0, 1))
    for side, one, other in ((found.query, x, y), (found.neighbour, y, x)):
        wanted = (one * (weight.T @ weight @ other)).reshape(3, 4, 4).sum(0)
        torch.testing.assert_close(torch.from_numpy(side.pixels).double(), wanted, rtol=1e-4, atol=1e-5)
        assert side.difference == pytest.approx(float(wanted.sum()), rel=1e-5)
        assert side.steps == 50


def test_pixels_of_a_distance_are_those_of_the_closed_form() -> None:
    # s = -|a x - y| with y = 2 x is -(2 - a) |x|: the gradient x / |x| is the same all along, and shares are x^2 / |x|
    x, network = image(0, 4), measured_of(nn.Flatten(), 4)
    found = explain(network, scored("output", network, "euclidean"), (x, 2 * x))
    torch.testing.assert_close(torch.from_numpy(found.query.pixels), (x * x / x.norm())[0].sum(0))
    assert found.query.difference == pytest.approx(float(x.norm()), rel=1e-5)
    assert found.query.error < 1e-5


@pytest.mark.parametrize("layer", ["2@max", "4@max", "7"])
def test_pixels_of_a_convolutional_network_are_complete(layer: str) -> None:
    found = explained(convolutional(), layer)
    for _, side in found.sides:
        assert abs(float(side.pixels.sum()) - side.difference) <= 0.0101 * max(abs(side.difference), 0.05)
        assert side.error == pytest.approx(abs(side.pixels.sum() / side.difference - 1), abs=1e-4)


def late(images: Tensor) -> Tensor:
    """It rises by 0.5 in the last 0.5 % of the path alone."""
    return (100 * (images.sum((1, 2, 3)) - 0.995)).clamp(min=0)


def test_a_step_that_misses_is_divided_into_three_until_the_sum_is_complete() -> None:
    # The last of 50 steps misses all. Of its thirds the last has 0.667 and should have 0.5; then the first of its
    # thirds has 0 of 0.0556, the last of those 0.0741 of 0.0556, its first 0 of 0.0062 and the last of those
    # 0.0082 of 0.0062: 0.0021 of 0.5 is below 1 %, after five divisions.
    result = integrated_gradients(late, torch.ones(1, 1, 1, 1))
    assert len(result.division) == 50 + 5 * 2
    assert result.division.widths.sum() == pytest.approx(1)
    assert result.difference == pytest.approx(0.5, rel=1e-3)
    assert result.error == pytest.approx(0.0021 / 0.5, rel=0.05)


def test_the_number_of_steps_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "MOST", 54)
    result = integrated_gradients(late, torch.ones(1, 1, 1, 1))
    assert len(result.division) == 54
    assert result.error == pytest.approx(0.0556 / 0.5, rel=0.01)


def test_a_jump_on_the_path_ends_the_division_with_its_error() -> None:
    # Five divisions of one step of 0.02: the next would be below 0.0001.
    result = integrated_gradients(
        lambda images: (images.sum((1, 2, 3)) > 0.71) + 0 * images.sum(), torch.ones(1, 1, 1, 1)
    )
    assert len(result.division) == 50 + 5 * 2
    assert result.error == pytest.approx(1)


def test_equal_steps_are_captums_midpoint_rule() -> None:
    module = convolutional().eval()
    with torch.no_grad():
        other = module(image(1))

    def score(images: Tensor) -> Tensor:
        return similarities(module(images).double(), other.double(), "cosine")

    wanted = IntegratedGradients(score).attribute(image(0), n_steps=20, method="riemann_middle")[0].sum(0)
    result = integrated_gradients(score, image(0), Division.equal(20))
    torch.testing.assert_close(result.pixels.double(), wanted.double(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("layer", ["2@max", "4@max", "7"])
def test_divided_steps_give_the_pixels_of_many_equal_ones(layer: str) -> None:
    module = convolutional()
    network = measured_of(module)
    with scored(layer, network).embedding(module) as embed:
        with torch.no_grad():
            other = embed(image(1))
        score = scored(layer, network).score(embed, other)
        many = integrated_gradients(score, image(0), Division.equal(4000)).pixels
        result = integrated_gradients(score, image(0))
    assert float((result.pixels - many).norm() / many.norm()) < 0.05


def test_a_small_difference_is_held_to_that_of_the_similarity() -> None:
    # 1 % of 5 % of a similarity of 1 is 0.0005, more than this difference
    def score(images: Tensor) -> Tensor:
        x = images.sum((1, 2, 3))
        return 1 - 1e-4 * x * x

    found = integrated_gradients(score, torch.ones(1, 1, 1, 1))
    assert len(found.division) == 50
    assert found.difference == pytest.approx(-1e-4, rel=1e-3)


def test_a_jump_at_the_baseline_is_told() -> None:
    # Without biases, f(a x) = a f(x): the cosine is the same all along the path, and 0 at its beginning
    found = explained(linear(), "1", size=4)
    assert found.query.steps == 100
    assert found.query.error == pytest.approx(1, abs=1e-3)
    assert any("the similarity jumps at the baseline" in note for note in found.notes)


def test_a_baseline_of_features_has_no_such_note() -> None:
    assert explained(convolutional(), "7").notes == ()


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
