from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from layerprobe.losses.lifted_structure import LiftedStructure
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


def by_loops(x: list[Tensor], margin: float) -> Tensor:
    """Equation 2, a pair at a time."""

    def distance(i: int, j: int) -> Tensor:
        return (x[i] - x[j]).square().sum().sqrt()

    pairs = [(i, j) for i in range(len(x)) for j in range(i) if LABELS[i] == LABELS[j]]
    total = x[0].new_zeros(())
    for i, j in pairs:
        negatives = [(margin - distance(i, k)).exp() for k in range(len(x)) if LABELS[k] != LABELS[i]]
        negatives += [(margin - distance(j, k)).exp() for k in range(len(x)) if LABELS[k] != LABELS[j]]
        total = total + (torch.stack(negatives).sum().log() + distance(i, j)).clamp(min=0).square()
    return total / (2 * len(pairs))


@pytest.mark.parametrize("margin", [1.0, 0.0, 3.0])
@pytest.mark.parametrize("normalise", [False, True])
def test_value_and_gradient_equal_the_loops(margin: float, normalise: bool) -> None:
    ours, theirs = rows(), rows()
    x = normalised(theirs) if normalise else list(theirs.unbind())
    value = LiftedStructure(5, 3, margin=margin, normalise=normalise)(ours, LABELS)
    agrees(value, by_loops(x, margin), ours, theirs)


def test_it_is_pytorch_metric_learnings() -> None:
    from pytorch_metric_learning.losses import LiftedStructureLoss

    x = rows().detach()
    theirs = LiftedStructureLoss(neg_margin=1, pos_margin=0)(x, LABELS)
    torch.testing.assert_close(LiftedStructure(5, 3, normalise=True)(x, LABELS), theirs, rtol=1e-6, atol=1e-8)


def test_a_collapsed_batch_costs_the_negatives_alone() -> None:
    # Pairs of classes 0, 1, 2: 3, 1, 3; each image has 5, 6, 5 negatives.
    wanted = (3 * (math.log(10) + 1) ** 2 + (math.log(12) + 1) ** 2 + 3 * (math.log(10) + 1) ** 2) / 14
    value = LiftedStructure(5, 3)(torch.ones(8, 5, dtype=torch.float64), LABELS)
    assert value.item() == pytest.approx(wanted, rel=1e-12)


def test_classes_far_apart_cost_nothing() -> None:
    loss = LiftedStructure(5, 3)
    assert loss(100 * torch.eye(5, dtype=torch.float64)[LABELS], LABELS).item() == 0
    assert informative(loss) == 0


def test_it_has_the_invariances_of_distances() -> None:
    is_the_same_in_any_order(LiftedStructure(5, 3))
    ignores_lengths(LiftedStructure(5, 3, normalise=True))
    is_finite_where_it_hurts(LiftedStructure(5, 3))


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
def test_a_batch_without_pairs_is_refused(labels: list[int]) -> None:
    with pytest.raises(ValueError, match="a batch without"):
        LiftedStructure(5, 3)(rows(3), torch.tensor(labels))


def test_a_negative_margin_is_refused() -> None:
    with pytest.raises(ValueError, match="margin is -1"):
        LiftedStructure(5, 3, margin=-1)
