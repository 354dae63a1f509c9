from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from layerprobe.losses.triplet import Mining, Triplet, mine_triplets
from tests.losses.pairwise import (
    LABELS,
    agrees,
    ignores_lengths,
    informative,
    is_finite_where_it_hurts,
    is_the_same_in_any_order,
    normalised,
    rows,
)

Triplets = list[tuple[int, int, int]]


def build(**options: object) -> Triplet:
    return Triplet(5, 3, **options)  # type: ignore[arg-type] # options of one test each


def every_triplet(labels: Tensor = LABELS) -> Triplets:
    everything = range(len(labels))
    return [
        (a, p, n)
        for a, p, n in product(everything, repeat=3)
        if a != p and labels[a] == labels[p] and labels[a] != labels[n]
    ]


def semi_hard(distances: Tensor) -> Triplets:
    found = []
    for a, p in dict.fromkeys((a, p) for a, p, _ in every_triplet()):
        negatives = [n for n in range(len(LABELS)) if LABELS[n] != LABELS[a]]
        farther = [n for n in negatives if distances[a, n] > distances[a, p]]
        if farther:
            found.append((a, p, min(farther, key=lambda n: float(distances[a, n]))))
        else:
            found.append((a, p, max(negatives, key=lambda n: float(distances[a, n]))))
    return found


def by_loops(x: list[Tensor], triplets: Triplets, margin: float) -> Tensor:
    losses = []
    for a, p, n in triplets:
        loss = (x[a] - x[p]).square().sum() - (x[a] - x[n]).square().sum() + margin
        if loss.item() > 0:
            losses.append(loss)
    return torch.stack(losses).mean()


def as_list(mined: tuple[Tensor, Tensor, Tensor]) -> Triplets:
    return [(int(a), int(p), int(n)) for a, p, n in zip(*mined, strict=True)]


def squares(x: Tensor) -> Tensor:
    return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square()


def test_semi_hard_triplets_are_the_loops() -> None:
    for seed in range(5):
        distances = squares(torch.stack(normalised(rows(seed=seed).detach())))
        assert sorted(as_list(mine_triplets(distances, LABELS, "semi_hard"))) == sorted(semi_hard(distances))


def test_a_positive_beyond_all_negatives_gets_the_farthest() -> None:
    line = torch.tensor([0.0, 10.0, 1.0, 2.0])
    distances = (line[:, None] - line[None]).square()
    assert (0, 1, 3) in as_list(mine_triplets(distances, torch.tensor([0, 0, 1, 1]), "semi_hard"))


def test_all_triplets_are_all() -> None:
    assert sorted(as_list(mine_triplets(squares(rows().detach()), LABELS, "all"))) == sorted(every_triplet())


def test_random_triplets_have_each_pair_once_and_any_negative() -> None:
    torch.manual_seed(0)
    distances, seen = squares(rows().detach()), set()
    for _ in range(60):
        found = as_list(mine_triplets(distances, LABELS, "random"))
        assert [(a, p) for a, p, _ in found] == list(dict.fromkeys((a, p) for a, p, _ in every_triplet()))
        seen |= set(found)
    assert seen == set(every_triplet())


@pytest.mark.parametrize("mining", ["semi_hard", "all", "random"])
@pytest.mark.parametrize("normalise", [True, False])
def test_value_and_gradient_equal_the_loops_for_the_same_triplets(mining: Mining, normalise: bool) -> None:
    ours, theirs = rows(), rows()
    x = normalised(theirs) if normalise else list(theirs.unbind())
    torch.manual_seed(4)
    triplets = as_list(mine_triplets(squares(torch.stack(x).detach()), LABELS, mining))
    torch.manual_seed(4)
    value = build(mining=mining, normalise=normalise, margin=0.3)(ours, LABELS)
    agrees(value, by_loops(x, triplets, 0.3), ours, theirs)


def test_it_is_pytorch_metric_learnings() -> None:
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import TripletMarginLoss

    x = rows().detach()
    theirs = TripletMarginLoss(margin=0.2, distance=LpDistance(power=2))(x, LABELS)
    torch.testing.assert_close(build(mining="all")(x, LABELS), theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("mining", ["semi_hard", "random", "all"])
def test_a_collapsed_batch_costs_the_margin(mining: Mining) -> None:
    value = build(mining=mining, margin=0.3)(torch.ones(8, 5, dtype=torch.float64), LABELS)
    assert value.item() == pytest.approx(0.3)


def test_triplets_without_loss_leave_a_zero_gradient() -> None:
    loss = build(mining="all")
    apart = torch.eye(5, dtype=torch.float64)[LABELS].requires_grad_()
    value = loss(apart, LABELS)
    assert (value.item(), informative(loss)) == (0, 0)
    assert not torch.autograd.grad(value, [apart])[0].any()


def test_it_has_the_invariances_of_distances() -> None:
    is_the_same_in_any_order(build())
    ignores_lengths(build())
    is_finite_where_it_hurts(build())
    is_finite_where_it_hurts(build(normalise=False))


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
def test_a_batch_without_triplets_is_refused(labels: list[int]) -> None:
    with pytest.raises(ValueError, match="a batch without"):
        build()(rows(3), torch.tensor(labels))


def test_a_negative_margin_is_refused() -> None:
    with pytest.raises(ValueError, match="margin is -1"):
        build(margin=-1)


def test_a_negative_as_far_as_the_positive_is_not_semi_hard() -> None:
    line = torch.tensor([0.0, 2.0, -2.0, 3.0])
    distances = (line[:, None] - line[None]).square()
    assert (0, 1, 3) in as_list(mine_triplets(distances, torch.tensor([0, 0, 1, 1]), "semi_hard"))


def test_random_draws_every_negative_equally_often() -> None:
    torch.manual_seed(0)
    distances = squares(rows().detach())
    draws = [t for _ in range(600) for t in as_list(mine_triplets(distances, LABELS, "random"))]
    shares = [draws.count((0, 1, n)) / 600 for n in range(3, 8)]
    assert max(abs(part - 1 / 5) for part in shares) < 0.065  # four standard deviations


def test_an_unknown_mining_is_refused() -> None:
    with pytest.raises(ValueError, match="mining is hard"):
        build(mining="hard")
