from __future__ import annotations

import pytest
import torch

import layerprobe
from layerprobe.losses.triplet import Triplet
from layerprobe.registry import LOSSES
from layerprobe.system.errors import RecipeError, UnknownNameError


@pytest.mark.parametrize("name", LOSSES)
def test_every_registered_loss_is_built_by_name(name: str) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    built = layerprobe.loss(name, embedding_dim=4, num_classes=3)
    assert isinstance(built, layerprobe.registry.load("loss", LOSSES, name))
    assert bool((torch.get_rng_state() == before).all())
    again = layerprobe.loss(name, 4, 3)
    assert all(map(torch.equal, built.state_dict().values(), again.state_dict().values()))


def test_options_reach_the_loss() -> None:
    built = layerprobe.loss("triplet", 4, 3, margin=0.7)
    assert isinstance(built, Triplet)
    assert built.margin == 0.7


def test_the_seed_decides_what_a_loss_draws() -> None:
    one, other = (layerprobe.loss("proxy_anchor", 4, 3, seed=seed).state_dict() for seed in (0, 1))
    assert not all(map(torch.equal, one.values(), other.values()))


def test_what_is_no_loss_or_no_option_of_it_is_told() -> None:
    with pytest.raises(UnknownNameError, match="unknown loss 'tripplet'. Did you mean 'triplet'"):
        layerprobe.loss("tripplet", 4, 3)
    with pytest.raises(RecipeError, match="loss triplet: margin"):
        layerprobe.loss("triplet", 4, 3, margin=-1.0)
