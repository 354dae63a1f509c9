from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from layerprobe.losses.margin import Margin, distance_weighted
from layerprobe.losses.vectors import euclidean, pairs_of, unit
from tests.losses.pairwise import LABELS, ignores_lengths, informative, is_finite_where_it_hurts, normalised, rows


def build(**options: float) -> Margin:
    return Margin(5, 3, **options).double()


def triplets(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Every pair of one class with a negative."""
    positives, negatives = pairs_of(LABELS)
    anchors, others = positives.nonzero(as_tuple=True)
    torch.manual_seed(seed)
    return anchors, others, torch.multinomial(negatives[anchors].double(), 1)[:, 0]


def by_loops(features: Tensor, beta: Tensor, margin: float, nu: float) -> Tensor:
    x = normalised(features)
    terms, boundaries = [], []
    for a, p, n in zip(*(indices.tolist() for indices in triplets()), strict=True):
        boundary = beta[LABELS[a]]
        near = margin + (x[a] - x[p]).square().sum().sqrt() - boundary
        far = margin + boundary - (x[a] - x[n]).square().sum().sqrt()
        terms += [term for term in (near, far) if term.item() > 0]
        boundaries.append(boundary)
    return (torch.stack(terms).sum() + nu * torch.stack(boundaries).sum()) / len(terms)


@pytest.mark.parametrize(("margin", "nu"), [(0.2, 0.0), (0.5, 0.01)])
def test_value_and_gradients_equal_the_loops_for_the_same_pairs(margin: float, nu: float) -> None:
    ours, theirs, loss = rows(), rows(), build(margin=margin, nu=nu)
    with torch.no_grad():
        loss.beta.copy_(torch.tensor([0.9, 1.2, 1.4]))
    value = loss.of_pairs(euclidean(unit(ours)), LABELS, *triplets())
    expected = by_loops(theirs, loss.beta, margin, nu)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
    found, wanted = torch.autograd.grad(value, [ours, loss.beta]), torch.autograd.grad(expected, [theirs, loss.beta])
    for gradient, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-6, atol=1e-10)


def chances(distances: Tensor, candidates: Tensor, dim: int) -> Tensor:
    """1 / q(D) written out."""
    weights = torch.zeros_like(distances)
    for a in range(len(distances)):
        for n in range(len(distances)):
            d = float(distances[a, n])
            if candidates[a, n] and d <= 1.4:
                d = max(d, 0.5)
                weights[a, n] = 1 / (d ** (dim - 2) * (1 - d * d / 4) ** ((dim - 3) / 2))
        if not weights[a].any():
            weights[a] = candidates[a].to(weights.dtype)
    return weights / weights.sum(1, keepdim=True)


@pytest.mark.parametrize("dim", [3, 5, 16])
def test_negatives_are_drawn_by_the_inverse_density(dim: int) -> None:
    _, negatives = pairs_of(LABELS)
    distances = euclidean(unit(rows().detach()))
    torch.testing.assert_close(distance_weighted(distances, negatives, dim), chances(distances, negatives, dim))


def test_the_density_is_that_of_distances_on_the_sphere() -> None:
    # Histogram of real distances in 8 dimensions against q.
    generator = torch.Generator().manual_seed(0)
    x, y = (unit(torch.randn(200_000, 8, generator=generator, dtype=torch.float64)) for _ in range(2))
    counts = torch.histc((x - y).norm(dim=1), bins=10, min=1.0, max=1.4)
    middles = torch.linspace(1.02, 1.38, 10, dtype=torch.float64)[:, None]
    weights = distance_weighted(middles.T.repeat(10, 1), torch.ones(10, 10, dtype=torch.bool), 8)[0]
    product = counts * weights
    torch.testing.assert_close(product / product.mean(), torch.ones(10, dtype=torch.float64), rtol=0.03, atol=0.03)


def test_negatives_beyond_the_cut_off_are_drawn_where_there_are_no_others() -> None:
    distances = torch.tensor([[0.0, 1.9, 1.8], [1.9, 0.0, 0.3], [1.8, 0.3, 0.0]])
    candidates = torch.tensor([[False, True, True], [True, False, False], [True, False, False]])
    assert distance_weighted(distances, candidates, 8)[0].tolist() == pytest.approx([0, 0.5, 0.5])


def test_a_large_dimension_overflows_nothing() -> None:
    _, negatives = pairs_of(LABELS)
    found = distance_weighted(euclidean(unit(rows(dim=5).detach().float())), negatives, 2048)
    assert found.isfinite().all()
    torch.testing.assert_close(found.sum(1), torch.ones(8))


def test_a_collapsed_batch_costs_margin_and_boundary() -> None:
    # Positives at 0 are within 1.2 - 0.2; every drawn negative costs 0.2 + 1.2.
    loss = build()
    assert loss(torch.ones(8, 5, dtype=torch.float64), LABELS).item() == pytest.approx(1.4)
    assert informative(loss) == 14


def test_classes_far_apart_cost_nothing() -> None:
    loss = build()
    x = torch.tensor([[1.0, 0], [-0.5, math.sqrt(0.75)], [-0.5, -math.sqrt(0.75)]], dtype=torch.float64)[LABELS]
    assert loss(x.requires_grad_(), LABELS).item() == 0
    assert informative(loss) == 0


def test_the_same_seed_draws_the_same() -> None:
    values = []
    for _ in range(2):
        torch.manual_seed(3)
        values.append(build()(rows().detach(), LABELS).item())
    assert values[0] == values[1]


def test_the_boundaries_have_a_rate_of_their_own_and_no_decay() -> None:
    (group,) = build().parameter_groups()
    assert (group.learning_rate, group.weight_decay) == (0.1, 0.0)
    assert build().beta.tolist() == pytest.approx([1.2] * 3)


def test_lengths_and_awkward_rows_do_no_harm() -> None:
    class Fixed(Margin):
        def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
            torch.manual_seed(0)
            return super().forward(embeddings, labels)

    ignores_lengths(Fixed(5, 3).double())
    is_finite_where_it_hurts(Fixed(5, 3).double())


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
def test_a_batch_without_pairs_is_refused(labels: list[int]) -> None:
    with pytest.raises(ValueError, match="a batch without"):
        build()(rows(3), torch.tensor(labels))


@pytest.mark.parametrize(("option", "value"), [("margin", -1), ("beta", 0), ("nu", -1), ("beta_learning_rate", 0)])
def test_an_option_out_of_range_is_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{option} is {value}"):
        build(**{option: value})


def test_negatives_count_as_0_5_away_up_to_there_and_no_farther() -> None:
    distances = torch.tensor([[0.0, 0.3, 0.5, 0.55]] * 4, dtype=torch.float64)
    candidates = torch.tensor([[False, True, True, True]] * 4)
    wanted = chances(distances, candidates, 8)
    assert wanted[0, 1] == wanted[0, 2] > wanted[0, 3]
    torch.testing.assert_close(distance_weighted(distances, candidates, 8), wanted)
