from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from layerprobe.losses.multi_similarity import MultiSimilarity, mine_pairs
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


def build(**options: float) -> MultiSimilarity:
    return MultiSimilarity(5, 3, **options)


def mined_by_loops(x: list[Tensor], epsilon: float) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Positive and negative pairs that the paper's mining keeps."""
    near, far = set(), set()
    x = [row.detach() for row in x]
    everything = range(len(x))
    for i in everything:
        positives = [k for k in everything if k != i and LABELS[k] == LABELS[i]]
        negatives = [k for k in everything if LABELS[k] != LABELS[i]]
        for k in negatives:
            if float(x[i] @ x[k]) + epsilon > min(float(x[i] @ x[p]) for p in positives):
                far.add((i, k))
        for k in positives:
            if float(x[i] @ x[k]) - epsilon < max(float(x[i] @ x[n]) for n in negatives):
                near.add((i, k))
    return near, far


def by_loops(features: Tensor, alpha: float, beta: float, base: float, epsilon: float) -> Tensor:
    x = normalised(features)
    near, far = mined_by_loops(x, epsilon)
    total = features.new_zeros(())
    for i in range(len(x)):
        attracted = [(-alpha * (x[i] @ x[k] - base)).exp() for j, k in near if j == i]
        repelled = [(beta * (x[i] @ x[k] - base)).exp() for j, k in far if j == i]
        total = total + sum(attracted, features.new_ones(())).log() / alpha
        total = total + sum(repelled, features.new_ones(())).log() / beta
    return total / len(x)


@pytest.mark.parametrize("options", [(2.0, 50.0, 0.5, 0.1), (1.0, 5.0, 1.0, 0.0), (3.0, 10.0, 0.2, 2.0)])
def test_value_and_gradient_equal_the_loops(options: tuple[float, float, float, float]) -> None:
    alpha, beta, base, epsilon = options
    ours, theirs = rows(), rows()
    value = build(alpha=alpha, beta=beta, base=base, epsilon=epsilon)(ours, LABELS)
    agrees(value, by_loops(theirs, *options), ours, theirs)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 2.0])
def test_the_kept_pairs_are_the_loops(epsilon: float) -> None:
    x = torch.stack(normalised(rows().detach()))
    near, far = mine_pairs(x @ x.T, LABELS, epsilon)
    found = tuple({(int(i), int(k)) for i, k in mask.nonzero()} for mask in (near, far))
    assert found == mined_by_loops(list(x), epsilon)


def test_it_is_pytorch_metric_learnings() -> None:
    from pytorch_metric_learning.losses import MultiSimilarityLoss
    from pytorch_metric_learning.miners import MultiSimilarityMiner

    x = rows().detach().float()
    pairs = MultiSimilarityMiner(epsilon=0.1)(x, LABELS)
    theirs = MultiSimilarityLoss(alpha=2, beta=50, base=0.5)(x, LABELS, pairs)
    torch.testing.assert_close(build()(x, LABELS), theirs, rtol=1e-5, atol=1e-6)


def test_a_collapsed_batch_keeps_every_pair() -> None:
    loss = build()
    value = loss(torch.ones(8, 5, dtype=torch.float64), LABELS).item()
    p, n = [2, 2, 2, 1, 1, 2, 2, 2], [5, 5, 5, 6, 6, 5, 5, 5]
    wanted = sum(
        math.log1p(a * math.exp(-1)) / 2 + math.log1p(b * math.exp(25)) / 50 for a, b in zip(p, n, strict=True)
    )
    assert value == pytest.approx(wanted / 8, rel=1e-12)
    assert informative(loss) == sum(p) + sum(n)


def test_classes_far_apart_leave_nothing_to_learn() -> None:
    loss = build()
    apart = torch.eye(5, dtype=torch.float64)[LABELS].requires_grad_()
    value = loss(apart, LABELS)
    assert (value.item(), informative(loss)) == (0, 0)
    assert not torch.autograd.grad(value, [apart])[0].any()


def test_an_image_without_a_positive_counts_nothing() -> None:
    labels = torch.tensor([0, 0, 1])
    loss = build(epsilon=2.0)
    x = rows(3).detach()
    alone = loss(x, labels)
    near, far = mine_pairs(torch.stack(normalised(x)) @ torch.stack(normalised(x)).T, labels, 2.0)
    assert not near[2].any()
    assert not far[2].any()
    assert alone.isfinite()


def test_it_has_the_invariances_of_cosines() -> None:
    is_the_same_in_any_order(build())
    ignores_lengths(build())
    is_finite_where_it_hurts(build())


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
def test_a_batch_without_both_kinds_of_pairs_is_refused(labels: list[int]) -> None:
    with pytest.raises(ValueError, match="a batch without pairs to compare"):
        build()(rows(3), torch.tensor(labels))


@pytest.mark.parametrize("option", ["alpha", "beta"])
def test_a_weight_of_zero_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} is 0"):
        build(**{option: 0})
    with pytest.raises(ValueError, match="epsilon is -1"):
        build(epsilon=-1)
