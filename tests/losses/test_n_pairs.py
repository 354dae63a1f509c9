from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from layerprobe.losses.n_pairs import NPairs
from tests.losses.pairwise import LABELS, agrees, is_finite_where_it_hurts, is_the_same_in_any_order, rows

PAIRS = torch.tensor([0, 0, 1, 1, 2, 2])


def by_loops(x: Tensor, labels: Tensor, l2: float) -> Tensor:
    """Equation 3 with products in the place of the printed distances."""
    losses = []
    for a in range(len(x)):
        for p in range(len(x)):
            if p != a and labels[p] == labels[a]:
                terms = [(x[a] @ x[n] - x[a] @ x[p]).exp() for n in range(len(x)) if labels[n] != labels[a]]
                losses.append((1 + torch.stack(terms).sum()).log())
    return torch.stack(losses).mean() + l2 * 2 * torch.stack([row @ row for row in x]).mean()


@pytest.mark.parametrize("labels", [PAIRS, LABELS])
@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_value_and_gradient_equal_the_loops(labels: Tensor, l2: float) -> None:
    ours, theirs = rows(len(labels)), rows(len(labels))
    agrees(NPairs(5, 3, l2=l2)(ours, labels), by_loops(theirs, labels, l2), ours, theirs)


def test_near_positives_cost_less_than_far_ones() -> None:
    # The printed distances would have it the other way round.
    near = 3 * torch.eye(3, dtype=torch.float64)[PAIRS]
    assert NPairs(3, 3, l2=0)(near, PAIRS) < NPairs(3, 3, l2=0)(near[[0, 2, 4, 1, 3, 5]], PAIRS)


def test_a_collapsed_batch_costs_ln_of_the_negatives_and_1() -> None:
    value = NPairs(5, 3, l2=0)(torch.ones(6, 5, dtype=torch.float64), PAIRS)
    assert value.item() == pytest.approx(math.log(5), rel=1e-12)


def test_it_has_the_invariances_of_products() -> None:
    is_the_same_in_any_order(NPairs(5, 3))
    is_finite_where_it_hurts(NPairs(5, 3))
    is_finite_where_it_hurts(NPairs(5, 3, negatives="positives"))


# Pairs (1, 3), (0, 5) and (2, 4): the first image of a class is the anchor, the second the positive.
MIXED = torch.tensor([7, 2, 5, 2, 5, 7])


def of_positives(x: Tensor, pairs: list[tuple[int, int]]) -> Tensor:
    """Sohn's sum: the negatives of a pair are the positives of the others."""
    losses = []
    for a, p in pairs:
        terms = [(x[a] @ x[n] - x[a] @ x[p]).exp() for _, n in pairs if n != p]
        losses.append((1 + torch.stack(terms).sum()).log())
    return torch.stack(losses).mean()


def test_only_the_positives_of_other_classes_may_be_negatives() -> None:
    ours, theirs = rows(6), rows(6)
    value = NPairs(5, 8, l2=0, negatives="positives")(ours, MIXED)
    agrees(value, of_positives(theirs, [(1, 3), (0, 5), (2, 4)]), ours, theirs)


def test_with_the_positives_alone_it_is_pytorch_metric_learnings() -> None:
    from pytorch_metric_learning.distances import DotProductSimilarity
    from pytorch_metric_learning.losses import NPairsLoss

    library = NPairsLoss(distance=DotProductSimilarity(normalize_embeddings=False))
    x = rows(6).detach()
    torch.testing.assert_close(NPairs(5, 8, l2=0, negatives="positives")(x, MIXED), library(x, MIXED))


@pytest.mark.parametrize("labels", [[0, 0, 1], [0, 1, 2]])
def test_positives_of_other_classes_need_two_pairs(labels: list[int]) -> None:
    with pytest.raises(ValueError, match="two classes twice"):
        NPairs(5, 3, negatives="positives")(rows(3), torch.tensor(labels))


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
def test_a_batch_without_pairs_is_refused(labels: list[int]) -> None:
    with pytest.raises(ValueError, match="a batch without"):
        NPairs(5, 3)(rows(3), torch.tensor(labels))


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="l2 is -1"):
        NPairs(5, 3, l2=-1)


def test_the_lengths_are_those_of_both_images_of_a_pair() -> None:
    x = torch.arange(12, dtype=torch.float64).view(6, 2) / 10
    of_pairs = [a @ a + p @ p for a, p in (x[label == PAIRS] for label in PAIRS.unique())]
    added = NPairs(2, 3, l2=0.5)(x, PAIRS) - NPairs(2, 3, l2=0)(x, PAIRS)
    torch.testing.assert_close(added, 0.5 * torch.stack(of_pairs).mean())
