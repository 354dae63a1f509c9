from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from layerprobe.attribution.explaining import agreement
from layerprobe.values.explanations import RankCorrelation
from tests.attribution.networks import convolutional, explained


def both(found: RankCorrelation | None) -> tuple[float | None, float | None] | None:
    return None if found is None else (found.signed, found.absolute)


def test_a_network_agrees_with_itself() -> None:
    module = convolutional()
    found = explained(module, "7", random=copy.deepcopy(module))
    for _, side in found.sides:
        assert both(side.random_pixels) == pytest.approx((1, 1))
        assert both(side.random_places) == pytest.approx((1, 1))


def test_other_weights_agree_less() -> None:
    found = explained(convolutional(), "7", random=convolutional(seed=1))
    for _, side in found.sides:
        assert side.random_pixels is not None
        assert side.random_pixels.signed is not None
        assert abs(side.random_pixels.signed) < 0.5


def test_agreement_is_spearmans_of_values_and_of_absolute_values() -> None:
    # ranks 1 2 3 4 and 4 2 3 1: 1 - 6 (9 + 0 + 0 + 9) / (4 * 15) = -0.8; of the absolute values 1 2 3 4 and 4 2 1 3:
    # 1 - 6 (9 + 0 + 4 + 1) / (4 * 15) = -0.4
    one, other = np.array([[1, 2], [3, 4]], np.float32), np.array([[4, -2], [1, -3]], np.float32)
    assert both(agreement(one, other)) == pytest.approx((-0.8, -0.4))
    assert both(agreement(one, -one)) == pytest.approx((-1, 1))


def test_a_constant_map_agrees_with_nothing() -> None:
    constant = np.array([1, -1, 1], np.float32)
    assert agreement(constant, np.array([1, 2, 3], np.float32)).absolute is None
    assert agreement(np.array([np.nan, 1, 2], np.float32), constant) == RankCorrelation(None, None)


def test_an_explanation_is_the_same_again_and_leaves_the_network_as_it_was() -> None:
    module = convolutional().train()
    before = copy.deepcopy(module.state_dict())
    first, again = (explained(module, "4@max") for _ in range(2))
    assert np.array_equal(first.query.pixels, again.query.pixels)
    assert all(part.training for part in module.modules())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    assert all(own.grad is None for own in module.parameters())
    assert all(torch.equal(before[name], own) for name, own in module.state_dict().items())


def test_a_frozen_network_is_explained() -> None:
    module = convolutional().requires_grad_(False)
    found = explained(module, "7")
    assert found.query.places is not None
    assert found.query.error < 0.05
