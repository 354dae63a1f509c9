from __future__ import annotations

import itertools

import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

from layerprobe.losses.structured_clustering import StructuredClustering, best_medoids, nmi, worst_medoids
from layerprobe.losses.vectors import euclidean, unit
from tests.losses.pairwise import (
    LABELS,
    agrees,
    ignores_lengths,
    informative,
    is_finite_where_it_hurts,
    normalised,
    rows,
)

GAMMA = 2.0


def distance(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).square().sum().sqrt()


def score(x: list[Tensor], medoids: tuple[int, ...]) -> Tensor:
    """F(X, S): minus the sum of distances to the nearest medoid."""
    total = x[0].new_zeros(())
    for i in range(len(x)):
        if i not in medoids:
            total = total - torch.stack([distance(x[i], x[j]) for j in medoids]).min()
    return total


def margin(x: list[Tensor], medoids: tuple[int, ...], labels: Tensor) -> float:
    clusters = [min(medoids, key=lambda j: float(distance(x[i], x[j]).detach())) for i in range(len(x))]
    return 1 - float(normalized_mutual_info_score(labels.numpy(), clusters, average_method="geometric"))


def of_classes(x: list[Tensor], labels: Tensor) -> Tensor:
    """F of the classes, each with its best medoid."""
    total = x[0].new_zeros(())
    for k in labels.unique():
        members = [i for i in range(len(x)) if labels[i] == k]
        sums = [sum((distance(x[i], x[j]) for i in members if i != j), x[0].new_zeros(())) for j in members]
        total = total - torch.stack(sums).min()
    return total


def by_loops(features: Tensor, medoids: tuple[int, ...], gamma: float) -> Tensor:
    x = normalised(features)
    return (score(x, medoids) + gamma * margin(x, medoids, LABELS) - of_classes(x, LABELS)).clamp(min=0)


def medoids_of(features: Tensor, gamma: float) -> tuple[int, ...]:
    """Those that the loss chooses, from its own distances: a last bit may decide between equally bad ones."""
    distances = euclidean(unit(features.detach()))
    found: list[int] = worst_medoids(distances, LABELS, gamma).tolist()
    return tuple(found)


@pytest.mark.parametrize("gamma", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_value_and_gradient_equal_the_loops_for_the_medoids_found(gamma: float, seed: int) -> None:
    ours, theirs = rows(seed=seed), rows(seed=seed)
    value = StructuredClustering(5, 3, gamma=gamma)(ours, LABELS)
    agrees(value, by_loops(theirs, medoids_of(ours, gamma), gamma), ours, theirs)


@pytest.mark.parametrize("seed", range(8))
def test_the_medoids_found_are_nearly_the_best_of_all(seed: int) -> None:
    x = normalised(rows(seed=seed).detach())

    def objective(medoids: tuple[int, ...]) -> float:
        return float(score(x, medoids)) + GAMMA * margin(x, medoids, LABELS)

    best = max(objective(medoids) for medoids in itertools.combinations(range(8), 3))
    found = objective(medoids_of(rows(seed=seed), GAMMA))
    assert found <= best + 1e-9
    assert found >= best - 0.15 * abs(best)


def test_medoids_are_different_images() -> None:
    for seed in range(8):
        assert len(set(medoids_of(rows(seed=seed), GAMMA))) == 3


def test_a_class_has_its_own_best_medoid() -> None:
    line = torch.tensor([0.0, 1.0, 5.0, 10.0, 11.0, 20.0, 21.0, 30.0])
    distances = (line[:, None] - line[None]).abs()
    assert best_medoids(distances, LABELS).tolist() == [1, 3, 6]


def test_nmi_is_scikit_learns() -> None:
    generator = torch.Generator().manual_seed(0)
    clusters = torch.randint(4, (20, 30), generator=generator)
    places = torch.randint(3, (30,), generator=generator)
    clusters[0], clusters[1] = places, 0
    wanted = [normalized_mutual_info_score(places.numpy(), row.numpy(), average_method="geometric") for row in clusters]
    torch.testing.assert_close(nmi(clusters, places), torch.tensor(wanted, dtype=torch.float64), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", range(4, 60))
def test_nmi_of_one_group_with_several_classes_is_exactly_0(count: int) -> None:
    # Shares of a count do not always add up to 1, and what is left would be divided by an entropy of 0.
    places = torch.arange(count).square() % 7 % 4
    assert nmi(torch.zeros(1, count, dtype=torch.int64), places).item() == 0
    assert nmi(places[None], torch.zeros(count, dtype=torch.int64)).item() == 0


def test_one_group_of_each_agrees() -> None:
    assert nmi(torch.zeros(1, 5, dtype=torch.int64), torch.zeros(5, dtype=torch.int64)).item() == 1


def test_classes_far_apart_cost_nothing() -> None:
    loss = StructuredClustering(5, 3)
    apart = torch.eye(5, dtype=torch.float64)[LABELS].requires_grad_()
    value = loss(apart, LABELS)
    assert (value.item(), informative(loss)) == (0, 0)
    assert not torch.autograd.grad(value, [apart])[0].any()


def test_a_collapsed_batch_costs_the_margin_of_one_cluster() -> None:
    value = StructuredClustering(5, 3, gamma=3.0)(torch.ones(8, 5, dtype=torch.float64), LABELS)
    assert value.item() == pytest.approx(3.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_value_is_of_the_embeddings_type(dtype: torch.dtype) -> None:
    assert StructuredClustering(5, 3)(rows().detach().to(dtype), LABELS).dtype == dtype


def test_lengths_and_awkward_rows_do_no_harm() -> None:
    ignores_lengths(StructuredClustering(5, 3))
    is_finite_where_it_hurts(StructuredClustering(5, 3))


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of one class cannot be clustered"):
        StructuredClustering(5, 3)(rows(3), torch.tensor([1, 1, 1]))


def test_a_negative_gamma_is_refused() -> None:
    with pytest.raises(ValueError, match="gamma is -1"):
        StructuredClustering(5, 3, gamma=-1)
