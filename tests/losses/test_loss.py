from __future__ import annotations

import math

import pytest
import torch

import layerprobe
from layerprobe.losses.cross_batch_memory import CrossBatchMemory
from layerprobe.losses.loss import Loss, at_least_zero, parameter_rate, positive, rate, several_classes, share
from layerprobe.losses.triplet import Triplet
from layerprobe.registry import LOSSES, load
from layerprobe.system.errors import RecipeError, UnknownNameError
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


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_what_is_not_positive_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=rf"^scale is {value}; it is a factor, a number above 0$"):
        positive("scale", value, "a factor")
    with pytest.raises(ValueError, match="a learning rate"):
        rate("proxy_learning_rate", value)


def test_no_rate_is_a_rate() -> None:
    assert rate("proxy_learning_rate", None) is None
    assert rate("proxy_learning_rate", 0.1) == 0.1


def test_a_factor_takes_the_place_of_the_default_rate() -> None:
    assert parameter_rate("proxy", 0.01, None, default=0.01) == (0.01, None)
    assert parameter_rate("proxy", 0.5, None, default=0.01) == (0.5, None)
    assert parameter_rate("proxy", 0.01, 3.0, default=0.01) == (None, 3.0)
    assert parameter_rate("proxy", None, 3.0, default=0.01) == (None, 3.0)


def test_a_factor_beside_another_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="^proxy_learning_rate is 0.5 and proxy_rate_factor is 3.0; both say how fast"):
        parameter_rate("proxy", 0.5, 3.0, default=0.01)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf])
def test_a_factor_that_is_not_positive_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=rf"^beta_rate_factor is {value}; "):
        parameter_rate("beta", 0.01, value, default=0.01)


@pytest.mark.parametrize("value", [-0.1, math.inf, math.nan])
def test_what_is_below_zero_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=rf"^margin is {value}; it is a distance, a number of at least 0$"):
        at_least_zero("margin", value, "a distance")
    assert at_least_zero("margin", 0, "a distance") == 0


@pytest.mark.parametrize("value", [-0.1, 1.0, math.nan])
def test_what_is_no_share_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=rf"^label_smoothing is {value}; it is a share, at least 0 and below 1$"):
        share("label_smoothing", value)


def test_one_class_cannot_be_told_apart() -> None:
    with pytest.raises(ValueError, match=r"^num_classes is 1; telling classes apart needs at least 2$"):
        several_classes(1)


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
