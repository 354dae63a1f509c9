from __future__ import annotations

import math
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import torch

from layerprobe.losses import smooth_triplet
from layerprobe.losses.smooth_triplet import SmoothTriplet

LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])


def build(**options: object) -> SmoothTriplet:
    return SmoothTriplet(5, 3, **options).double()  # type: ignore[arg-type] # options of one test each


def embeddings(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(LABELS), 5, generator=generator, dtype=torch.float64, requires_grad=True)


def by_loops(
    features: torch.Tensor,
    labels: torch.Tensor = LABELS,
    *,
    kind: int = 0,
    margin: float | None = None,
    weighting: bool = False,
    dot: bool = False,
) -> tuple[torch.Tensor, int]:
    """Section 3.4 written out: every triplet, one at a time; the features already scaled."""

    def distance(i: int, j: int) -> torch.Tensor:
        return -(features[i] * features[j]).sum() if dot else (features[i] - features[j]).square().sum()

    n = len(features)
    every = np.array([[distance(i, j).item() for j in range(n)] for i in range(n)])
    total, weights, count = features.new_zeros(()), 0.0, 0
    for i, j, k in product(range(n), repeat=3):
        same_ij, same_ik = labels[i] == labels[j], labels[i] == labels[k]
        valid = (i != j and same_ij and not same_ik, i != j and same_ij, not same_ij and not same_ik)[kind]
        if kind == 1:
            valid = valid and every[i, j] < every[i, k]
        if kind == 2:
            valid = valid and every[i, j] > every[i, k]
        if not valid:
            continue
        weight = 1.0
        if weighting:
            z = (every[i, k] - every.mean()) / every.std()
            weight = every.std() * math.sqrt(2 * math.pi) / math.exp(-z * z / 2)
        difference = distance(i, j) - distance(i, k)
        smooth = torch.logaddexp(difference, torch.zeros_like(difference))
        value = smooth if margin is None else (difference + margin).clamp(min=0)
        total, weights, count = total + weight * value, weights + weight, count + 1
    return total / weights, count


def unit(features: torch.Tensor, scale: float = 4.0) -> torch.Tensor:
    lengths: torch.Tensor = features.norm(dim=1, keepdim=True)
    return features / lengths * scale


@pytest.mark.parametrize(
    ("options", "oracle"),
    [
        ({}, {}),
        ({"distance": "dot"}, {"dot": True}),
        ({"margin": 0.2}, {"margin": 0.2}),
        ({"triplet_type": 1}, {"kind": 1}),
        ({"triplet_type": 2}, {"kind": 2}),
        ({"distance_weighting": True, "scale": 1.0}, {"weighting": True}),
    ],
)
def test_value_and_gradient_equal_the_loops(options: dict[str, object], oracle: dict[str, object]) -> None:
    ours, theirs = embeddings(), embeddings()
    loss = build(**options)(ours, LABELS)
    scale = float(options.get("scale", 4.0))  # type: ignore[arg-type] # a float where it is given
    expected, _ = by_loops(unit(theirs, scale), **oracle)  # type: ignore[arg-type] # the oracle's own keywords
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("chunk", [1, 40, 1 << 17])
@pytest.mark.parametrize("labels", [[2, 0, 1, 0, 1, 2, 0, 0], [1, 0, 0, 1, 2, 2, 3, 3], [0, 1, 1, 2, 3, 4, 5, 6]])
def test_classes_of_any_sizes_and_order_equal_the_loops(
    chunk: int, labels: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smooth_triplet, "_CHUNK", chunk)
    ours, theirs = embeddings(1), embeddings(1)
    loss = build()(ours, torch.tensor(labels))
    expected, _ = by_loops(unit(theirs), torch.tensor(labels))
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("options", [{"scale": 25.0}, {"normalise": False}, {"normalise": False, "distance": "dot"}])
def test_far_and_unnormalised_embeddings_equal_the_loops(options: dict[str, object]) -> None:
    stretch = 8.0 if "normalise" in options else 1.0  # differences of hundreds: exp is beyond float32
    ours, theirs = embeddings(2), embeddings(2)
    loss = build(**options)(ours * stretch, LABELS)
    features = theirs * stretch if "normalise" in options else unit(theirs, 25.0)
    expected, _ = by_loops(features, dot=options.get("distance") == "dot")
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-10)
    single = build(**options).float()(ours.detach().float() * stretch, LABELS)
    assert single.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("distance", ["squared_euclidean", "dot"])
def test_the_learnt_scales_gradient_equals_the_loops(distance: str) -> None:
    loss, scale = build(learn_scale=True, distance=distance), torch.tensor(4.0, dtype=torch.float64, requires_grad=True)
    loss(embeddings(), LABELS).backward()
    features = embeddings().detach()
    by_loops(features / features.norm(dim=1, keepdim=True) * scale, dot=distance == "dot")[0].backward()
    torch.testing.assert_close(loss.scale.grad, scale.grad, rtol=1e-9, atol=0)


def test_small_losses_are_as_exact_in_float32() -> None:
    # Every triplet costs log(1 + exp(-32)) = 1.27e-14: 1 + exp(-32) is 1 in float32.
    assert build().float()(torch.eye(3)[LABELS], LABELS).item() == pytest.approx(math.exp(-32), rel=1e-4, abs=0)


@pytest.mark.parametrize("labels", [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 2, 2, 2]])
def test_an_embedding_of_length_0_has_a_finite_gradient(labels: list[int]) -> None:
    features = embeddings().detach()
    features[3] = 0
    features.requires_grad_()
    loss = build()(features, torch.tensor(labels))
    assert loss.item() == pytest.approx(build(normalise=False)(unit_or_zero(features), torch.tensor(labels)).item())
    loss.backward()
    assert features.grad is not None
    assert features.grad.abs().max().item() < 100


def unit_or_zero(features: torch.Tensor) -> torch.Tensor:
    lengths = features.detach().norm(dim=1, keepdim=True)
    rows: torch.Tensor = features.detach() / lengths.clamp(min=1e-9) * 4
    return rows


@pytest.mark.parametrize("normalise", [True, False])
def test_what_is_not_a_number_is_not_lost(normalise: bool) -> None:
    features = embeddings().detach()
    features[3, 2] = math.nan
    assert math.isnan(build(normalise=normalise)(features, LABELS).item())


def test_a_gradient_may_be_asked_for_twice() -> None:
    features = embeddings()
    loss = build()(features, LABELS)
    (first,) = torch.autograd.grad(loss, features, retain_graph=True)
    (second,) = torch.autograd.grad(3 * loss, features)
    torch.testing.assert_close(3 * first, second)


def test_blocks_with_recomputation_equal_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, blocked = embeddings(), embeddings()
    build(triplet_type=2)(whole, LABELS).backward()
    monkeypatch.setattr(smooth_triplet, "_BLOCK", 40)
    build(triplet_type=2)(blocked, LABELS).backward()
    torch.testing.assert_close(whole.grad, blocked.grad, rtol=1e-10, atol=1e-12)


def test_a_collapsed_batch_costs_ln_2() -> None:
    same = torch.ones(8, 5, dtype=torch.float64)
    assert build()(same, LABELS).item() == pytest.approx(math.log(2), rel=1e-12)


def test_near_positives_cost_less_than_far_ones() -> None:
    near = torch.eye(3, dtype=torch.float64)[LABELS]
    far = torch.eye(8, dtype=torch.float64)
    assert build()(near, LABELS).item() == pytest.approx(math.log1p(math.exp(-32)))
    assert build()(far, LABELS).item() == pytest.approx(math.log(2))


def test_the_number_of_triplets_is_the_papers_formula() -> None:
    # p = 2 classes of k = 4: p k (k - 1) (p k - k) = 8 * 3 * 4 = 96
    _, count = by_loops(unit(embeddings()), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))
    assert count == 96


def test_the_dot_product_has_half_the_temperature() -> None:
    # |x_a - x_b|^2 = 32 - 2 x_a . x_b at scale 4, so scale 4 sqrt 2 with dot equals scale 4 with distances.
    loss = build(distance="dot", scale=4 * math.sqrt(2))(embeddings(), LABELS)
    torch.testing.assert_close(loss, build()(embeddings(), LABELS))


def test_unnormalised_embeddings_are_taken_as_they_are() -> None:
    ours = embeddings()
    torch.testing.assert_close(build(normalise=False)(ours, LABELS), by_loops(ours)[0])


def test_half_gradient_halves_the_gradient_and_not_the_value() -> None:
    full, half = embeddings(), embeddings()
    loss, half_loss = build()(full, LABELS), build(half_gradient=True)(half, LABELS)
    assert loss.item() == half_loss.item()
    loss.backward()
    half_loss.backward()
    assert full.grad is not None
    torch.testing.assert_close(half.grad, full.grad / 2)


def test_the_learnt_scale_has_the_released_rate_and_decay() -> None:
    (group,) = build(learn_scale=True).parameter_groups()
    assert (group.learning_rate, group.weight_decay, len(group.parameters)) == (0.01, 5e-5, 1)
    loss = build(learn_scale=True)
    loss(embeddings(), LABELS).backward()
    assert loss.scale.grad is not None
    assert loss.scale.grad.abs().item() > 0


def test_a_fixed_scale_is_no_trained_parameter() -> None:
    assert build().parameter_groups() == []


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3]])
def test_a_batch_without_triplets_is_refused(labels: list[int]) -> None:
    with pytest.raises(ValueError, match="a batch without triplets"):
        build()(torch.randn(4, 5, dtype=torch.float64), torch.tensor(labels))


@pytest.mark.parametrize("options", [{"scale": 0.0}, {"scale": math.inf}, {"learn_scale": True, "normalise": False}])
def test_options_that_mean_nothing_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="scale"):
        build(**options)


@pytest.mark.gpu
def test_a_first_backward_on_a_gpu_warns_of_no_missing_context() -> None:
    step = """
import torch
from layerprobe.losses.smooth_triplet import SmoothTriplet
embeddings = torch.randn(8, 5, device="cuda", requires_grad=True)
SmoothTriplet(5, 3)(embeddings, torch.arange(8, device="cuda") // 2).backward()
"""
    ended = subprocess.run([sys.executable, "-c", step], check=True, capture_output=True, text=True)
    assert "current CUDA context" not in ended.stderr
