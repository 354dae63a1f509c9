from __future__ import annotations

import pytest
import torch

from layerprobe.losses.cross_batch_memory import CrossBatchMemory
from layerprobe.losses.loss import Loss
from layerprobe.losses.triplet import Triplet
from layerprobe.registry import LOSSES, load
from layerprobe.values.sections import Network, Train

NET = Network.model_validate({"name": "vgg16_bn"})


def batches(sampler: str, images_per_class: int | None, batch_size: int = 32) -> Train:
    keys = {"sampler": sampler, "images_per_class": images_per_class, "batch_size": batch_size}
    return Train.model_validate({"epochs": 1} | keys)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_is_checked_without_values_and_draws_nothing(name: str) -> None:
    before = torch.get_rng_state()
    loss: Loss = load("loss", LOSSES, name).without_values({})
    assert all(tensor.is_meta for tensor in (*loss.parameters(), *loss.buffers()))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.empty(1).device.type == "cpu"


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_suits_its_own_sampler(name: str) -> None:
    loss: Loss = load("loss", LOSSES, name).without_values({})
    k = None if loss.sampler == "shuffled" else loss.images_per_class
    assert loss.contradictions(batches(loss.sampler, k), NET) == []


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("proxy_nca", "proxy"),
        ("proxy_triplet", "proxy"),
        ("proxy_anchor", "proxy"),
        ("soft_triple", "centre"),
        ("margin", "beta"),
    ],
)
def test_a_losss_own_parameters_may_train_at_a_multiple_of_the_networks_rate(name: str, own: str) -> None:
    factory: type[Loss] = load("loss", LOSSES, name)
    (absolute,) = factory.without_values({}).parameter_groups()
    assert absolute.learning_rate is not None
    assert absolute.rate_factor is None
    (multiple,) = factory.without_values({f"{own}_rate_factor": 7.0}).parameter_groups()
    assert (multiple.learning_rate, multiple.rate_factor) == (None, 7.0)
    with pytest.raises(ValueError, match=f"^{own}_learning_rate is 0.5 and {own}_rate_factor is 7.0; "):
        factory.without_values({f"{own}_learning_rate": 0.5, f"{own}_rate_factor": 7.0})


def test_a_bad_option_is_refused_without_values() -> None:
    with pytest.raises(ValueError, match="margin is -1"):
        Triplet.without_values({"margin": -1})


@pytest.mark.parametrize(("batch_size", "found"), [(7, 1), (8, 0)])
def test_a_loss_of_pairs_needs_two_classes_in_a_batch(batch_size: int, found: int) -> None:
    assert len(Triplet.without_values({}).contradictions(batches("classes", 4, batch_size), NET)) == found


def test_what_changes_a_loss_in_training_is_told_in_batches() -> None:
    assert CrossBatchMemory.without_values({"warmup": 7}).effective_after() == {"warmup": 7}
    assert Triplet.without_values({}).effective_after() == {}
