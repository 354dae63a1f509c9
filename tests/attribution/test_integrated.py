from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from layerprobe.attribution.explaining import explain
from layerprobe.attribution.integrated import MOST, integrated_gradients
from tests.attribution.networks import convolutional, explained, image, measured_of, scored


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


def test_steps_are_doubled_until_the_sum_is_complete() -> None:
    # F rises by 0.5 in the last 0.5 % of the path alone, where 200 midpoints have one, 0.9975: 100 / 200
    def score(images: Tensor) -> Tensor:
        return (100 * (images.sum((1, 2, 3)) - 0.995)).clamp(min=0)

    found = integrated_gradients(score, torch.ones(1, 1, 1, 1))
    assert found.steps == 200
    assert found.difference == pytest.approx(0.5, rel=1e-3)
    assert found.error < 1e-3


def test_steps_end_at_the_limit_with_their_error() -> None:
    def score(images: Tensor) -> Tensor:
        return (1e5 * (images.sum((1, 2, 3)) - 0.99999)).clamp(min=0)

    found = integrated_gradients(score, torch.ones(1, 1, 1, 1))
    assert found.steps == MOST
    assert found.error == pytest.approx(1)


def test_a_small_difference_is_held_to_that_of_the_similarity() -> None:
    # 1 % of 5 % of a similarity of 1 is 0.0005, more than this difference
    def score(images: Tensor) -> Tensor:
        x = images.sum((1, 2, 3))
        return 1 - 1e-4 * x * x

    found = integrated_gradients(score, torch.ones(1, 1, 1, 1))
    assert found.steps == 50
    assert found.difference == pytest.approx(-1e-4, rel=1e-3)


def test_a_jump_at_the_baseline_is_told() -> None:
    # Without biases, f(a x) = a f(x): the cosine is the same all along the path, and 0 at its beginning
    found = explained(linear(), "1", size=4)
    assert found.query.steps == 200
    assert found.query.error == pytest.approx(1, abs=1e-3)
    assert any("the similarity jumps at the baseline" in note for note in found.notes)


def test_a_baseline_of_features_has_no_such_note() -> None:
    assert explained(convolutional(), "7").notes == ()
