from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from layerprobe.losses.supcon import SupCon
from tests.losses.pairwise import (
    LABELS,
    agrees,
    ignores_lengths,
    is_finite_where_it_hurts,
    is_the_same_in_any_order,
    normalised,
    rows,
)


def build(temperature: float = 0.1) -> SupCon:
    return SupCon(5, 3, temperature=temperature).double()


def by_loops(features: Tensor, temperature: float, labels: Tensor = LABELS) -> Tensor:
    x = normalised(features)
    totals = []
    for i in range(len(x)):
        others = [a for a in range(len(x)) if a != i]
        positives = [p for p in others if labels[p] == labels[i]]
        if not positives:
            continue
        denominator = sum(((x[i] @ x[a]) / temperature).exp() for a in others)
        terms = [-(((x[i] @ x[p]) / temperature).exp() / denominator).log() for p in positives]
        totals.append(torch.stack(terms).mean())
    return torch.stack(totals).mean()


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_value_and_gradient_equal_the_loops(temperature: float) -> None:
    ours, theirs = rows(), rows()
    agrees(build(temperature)(ours, LABELS), by_loops(theirs, temperature), ours, theirs)


def test_images_without_a_positive_are_no_anchors() -> None:
    labels = torch.tensor([0, 0, 1, 2, 2])
    ours, theirs = rows(5), rows(5)
    agrees(build()(ours, labels), by_loops(theirs, 0.1, labels), ours, theirs)


def test_it_is_pytorch_metric_learnings() -> None:
    from pytorch_metric_learning.losses import SupConLoss

    x = rows().detach()
    torch.testing.assert_close(build()(x, LABELS), SupConLoss(temperature=0.1)(x, LABELS), rtol=1e-6, atol=1e-8)


def test_a_collapsed_batch_costs_ln_of_the_others() -> None:
    assert build()(torch.ones(8, 5, dtype=torch.float64), LABELS).item() == pytest.approx(math.log(7), rel=1e-12)


def test_it_has_the_invariances_of_cosines() -> None:
    is_the_same_in_any_order(build())
    ignores_lengths(build())
    is_finite_where_it_hurts(build())


def test_a_batch_without_positives_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch without positive pairs"):
        build()(rows(3), torch.tensor([0, 1, 2]))


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature is 0"):
        build(0)
