"""Batches forwarded in chunks against whole ones, and against all chunks in one graph, in float64."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layerprobe.data.splits import Split
from layerprobe.losses.loss import loss as build_loss
from layerprobe.nets.net import Net
from layerprobe.registry import LOSSES
from layerprobe.system.errors import RecipeError
from layerprobe.training.chunks import ChunkedBatch
from layerprobe.training.loop import Plan, Trainer
from layerprobe.training.schedule import Schedule
from tests.training.shared_training import LABELS, OPTIONS, PIXELS, PLAN, image, network, normalise

SPLIT = Split("train", LABELS, tuple(map(str, range(len(LABELS)))), image)
BATCHES = PLAN.batches(1)  # two, of 12 images each


def plain_network() -> Net:
    """Neither batch statistics nor random layers."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.Tanh(), nn.Linear(8, 5))
    return Net(module.double(), {}, 5, frozenset())


def trainer(loss: str, net: Net, plan: Plan = PLAN) -> Trainer:
    """One whose loss has the same values in every call."""
    return Trainer(net, build_loss(loss, 5, 8, **OPTIONS.get(loss, {})).double(), SPLIT, normalise, plan)


def forward_backward(trained: Trainer) -> dict[str, Tensor]:
    """The gradients of both batches together, and what network and loss then hold."""
    torch.manual_seed(0)
    trained.net.module.train()
    for batch in BATCHES:
        trained._backward(torch.from_numpy(PIXELS[batch]), batch, 1)
    return contents(trained.net.module, trained.loss)


def contents(*modules: nn.Module) -> dict[str, Tensor]:
    tensors = {}
    for number, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                tensors[f"gradient {number}.{name}"] = parameter.grad.to_dense()
        tensors |= {f"{number}.{name}": value.clone() for name, value in module.state_dict().items()}
    return tensors | {"random numbers": torch.rand(3)}


def assert_equal(ours: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_are_those_of_the_whole_batch(loss: str) -> None:
    whole = forward_backward(trainer(loss, plain_network()))
    assert float(whole["gradient 0.1.weight"].abs().max()) > 1e-6
    assert_equal(forward_backward(trainer(loss, plain_network(), replace(PLAN, chunk=5))), whole)


@pytest.mark.parametrize("loss", ["contrastive", "subsampled_softmax"])  # the latter draws classes
def test_dropout_and_batch_norm_are_those_of_all_chunks_in_one_graph(loss: str) -> None:
    ours = trainer(loss, network(), replace(PLAN, chunk=5))
    plain = trainer(loss, network())
    torch.manual_seed(0)
    module = plain.net.module.train()
    for batch in BATCHES:
        chunks = normalise(torch.from_numpy(PIXELS[batch])).split(5)
        plain.loss(torch.cat([module(chunk) for chunk in chunks]), torch.from_numpy(LABELS[batch])).backward()
    expected = contents(module, plain.loss)
    assert int(expected["0.1.num_batches_tracked"]) == 2 * 3  # once for each chunk of two batches
    assert_equal(forward_backward(ours), expected)


@pytest.mark.parametrize("chunk", [12, 1000])
def test_a_chunk_of_the_whole_batch_is_the_ordinary_step(chunk: int) -> None:
    whole = forward_backward(trainer("triplet", network()))
    trained = trainer("triplet", network(), replace(PLAN, chunk=chunk))
    ours = forward_backward(trained)
    assert trained.plan.images_at_once == 12
    assert all(torch.equal(ours[name], value) for name, value in whole.items())


def forwarded(trained: Trainer) -> list[tuple[int, bool]]:
    """How many images the network is given at once, in one batch, and whether it keeps its activations."""
    forwards = list[tuple[int, bool]]()
    trained.net.module.register_forward_pre_hook(
        lambda module, images: forwards.append((len(images[0]), torch.is_grad_enabled()))
    )
    trained._backward(torch.from_numpy(PIXELS[BATCHES[0]]), BATCHES[0], 1)
    return forwards


def test_activations_are_kept_of_a_chunk_at_a_time() -> None:
    without, kept = ([(size, keeps) for size in (5, 5, 2)] for keeps in (False, True))
    assert forwarded(trainer("softmax", plain_network(), replace(PLAN, chunk=5))) == without + kept


def test_a_network_that_is_held_is_forwarded_once() -> None:
    net = plain_network()
    net.module.requires_grad_(False)
    assert forwarded(trainer("softmax", net, replace(PLAN, chunk=5))) == [(5, False), (5, False), (2, False)]


def test_frozen_batch_norm_is_exact() -> None:
    def gradient(chunk: int) -> Tensor:
        trained = trainer("triplet", network(), replace(PLAN, chunk=chunk))
        trained.net.module.eval()  # statistics, and no dropout
        trained._backward(torch.from_numpy(PIXELS[BATCHES[0]]), BATCHES[0], 1)
        return trained.net.module.get_parameter("0.weight").grad  # type: ignore[return-value] # it has one

    torch.testing.assert_close(gradient(5), gradient(0), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("chunk", "right"), [(1, 2), (11, 10)])  # 12 = 11 + 1
def test_a_single_image_is_nothing_to_normalise_by(chunk: int, right: int) -> None:
    refusal = rf"\[train\]: chunk = {chunk} leaves BatchNorm a single image of 12 .* Set train.chunk={right}, or"
    with pytest.raises(RecipeError, match=refusal):
        trainer("triplet", network(), replace(PLAN, chunk=chunk))


def test_a_network_without_batch_norm_takes_images_one_by_one() -> None:
    assert forwarded(trainer("triplet", plain_network(), replace(PLAN, chunk=1)))[12:] == [(1, True)] * 12


def test_bfloat16_is_the_networks_in_both_forwards() -> None:
    def gradient(chunk: int, *, bfloat16: bool) -> Tensor:
        net, plan = plain_network(), replace(PLAN, chunk=chunk, bfloat16=bfloat16)
        net.module.float()
        trained = Trainer(net, build_loss("softmax", 5, 8), SPLIT, lambda pixels: normalise(pixels).float(), plan)
        return forward_backward(trained)["gradient 0.1.weight"]

    whole, full = gradient(0, bfloat16=True), gradient(5, bfloat16=False)
    chunked = gradient(5, bfloat16=True)
    assert float((chunked - full).abs().max()) > 1e-5  # it is rounded
    torch.testing.assert_close(chunked, whole, rtol=0.03, atol=0.01 * float(whole.abs().max()))


@pytest.mark.parametrize("options", [{"clip_gradient": 1e-3}, {"accumulate": 2}])
def test_whole_epochs_end_with_the_weights_of_whole_batches(options: dict[str, Any]) -> None:
    def weights(chunk: int) -> Tensor:
        plan = replace(PLAN, schedule=Schedule(), chunk=chunk, learning_rate=0.1, **options)
        trained = trainer("multi_similarity", plain_network(), plan)
        list(trained.epochs())
        return trained.net.module.get_parameter("1.weight").detach()

    start = plain_network().module.get_parameter("1.weight").detach()
    assert float((weights(0) - start).abs().max()) > 1e-6
    torch.testing.assert_close(weights(5), weights(0), rtol=1e-10, atol=1e-10)


def test_a_buffer_that_acts_on_the_output_is_that_of_the_forward_before_the_loss() -> None:
    torch.manual_seed(0)
    module = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4)).double()
    images, weights = torch.randn(12, 6, dtype=torch.float64).split(4), torch.randn(12, 4, dtype=torch.float64)
    other = copy.deepcopy(module)
    (torch.cat([other(chunk) for chunk in images]) * weights).sum().backward()
    batch = ChunkedBatch(module, module, images)
    (batch.embeddings * weights).sum().backward()
    batch.backward()
    ours, expected = contents(module), contents(other)
    del ours["random numbers"], expected["random numbers"]  # nothing is drawn
    assert_equal(ours, expected)
