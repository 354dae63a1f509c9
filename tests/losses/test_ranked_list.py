from __future__ import annotations

import pytest
import torch
from torch import Tensor

from layerprobe.losses.ranked_list import RankedList
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

DEFAULTS = {"alpha": 1.2, "margin": 0.4, "temperature": 10.0, "weight": 1.0}


def by_loops(features: Tensor, alpha: float, margin: float, temperature: float, weight: float) -> Tensor:
    """Equations 6 to 9, a pair at a time."""
    x = normalised(features)
    total = features.new_zeros(())
    for a in range(len(x)):
        pulled, pushed, weights = [], [], []
        for j in range(len(x)):
            if j == a:
                continue
            d = (x[a] - x[j]).square().sum().sqrt()
            if LABELS[j] == LABELS[a] and d.item() > alpha - margin:
                pulled.append(d - (alpha - margin))
            if LABELS[j] != LABELS[a] and d.item() < alpha:
                pushed.append(alpha - d)
                weights.append((temperature * (alpha - d.detach())).exp())
        if pulled:
            total = total + torch.stack(pulled).mean()
        if pushed:
            w = torch.stack(weights)
            total = total + weight * (w * torch.stack(pushed)).sum() / w.sum()
    return total / len(x)


@pytest.mark.parametrize(
    "options",
    [DEFAULTS, DEFAULTS | {"temperature": 0.0}, DEFAULTS | {"weight": 0.5, "alpha": 1.6}, DEFAULTS | {"alpha": 0.7}],
)
def test_value_and_gradient_equal_the_loops(options: dict[str, float]) -> None:
    ours, theirs = rows(), rows()
    agrees(RankedList(5, 3, **options)(ours, LABELS), by_loops(theirs, **options), ours, theirs)


def test_a_collapsed_batch_costs_alpha() -> None:
    value = RankedList(5, 3)(torch.ones(8, 5, dtype=torch.float64), LABELS)
    assert value.item() == pytest.approx(1.2)


def test_orthogonal_classes_on_their_points_cost_nothing() -> None:
    loss = RankedList(5, 3)
    assert loss(torch.eye(5, dtype=torch.float64)[LABELS], LABELS).item() == 0
    assert informative(loss) == 0


def test_what_counts_is_counted() -> None:
    loss = RankedList(5, 3)
    loss(torch.ones(8, 5, dtype=torch.float64), LABELS)
    assert informative(loss) == sum(1 for i in range(8) for j in range(8) if LABELS[i] != LABELS[j])


def test_it_has_the_invariances_of_distances() -> None:
    is_the_same_in_any_order(RankedList(5, 3))
    ignores_lengths(RankedList(5, 3))
    is_finite_where_it_hurts(RankedList(5, 3))


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
def test_a_batch_without_pairs_is_refused(labels: list[int]) -> None:
    with pytest.raises(ValueError, match="a batch without"):
        RankedList(5, 3)(rows(3), torch.tensor(labels))


@pytest.mark.parametrize(
    ("option", "value"),
    [("alpha", 0), ("alpha", 2), ("margin", 1.3), ("margin", -1), ("temperature", -1), ("weight", -1)],
)
def test_an_option_out_of_range_is_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{option} is {value}"):
        RankedList(5, 3, **{option: value})
