from __future__ import annotations

import pytest
import torch
from torch import Tensor

from layerprobe.losses.contrastive import Contrastive
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


def by_loops(features: Tensor, margin: float, scale: float | None) -> Tensor:
    x = [*features] if scale is None else [scale * row for row in normalised(features)]
    near, far = [], []
    for i in range(len(x)):
        for j in range(len(x)):
            d = (x[i] - x[j]).square().sum()
            if i != j and LABELS[i] == LABELS[j]:
                near.append(d)
            if LABELS[i] != LABELS[j] and d.item() < margin:
                far.append(margin - d)
    return (torch.stack(near).mean() + (torch.stack(far).mean() if far else 0)) / 2


@pytest.mark.parametrize(("margin", "scale"), [(0.2, 3.0), (12.0, 3.0), (2.0, 1.0)])
def test_value_and_gradient_equal_the_loops(margin: float, scale: float) -> None:
    ours, theirs = rows(), rows()
    agrees(Contrastive(5, 3, margin=margin, scale=scale)(ours, LABELS), by_loops(theirs, margin, scale), ours, theirs)


@pytest.mark.parametrize("margin", [0.2, 12.0])
def test_without_normalisation_the_distances_are_of_the_embeddings_as_they_are(margin: float) -> None:
    ours, theirs = rows(), rows()
    loss = Contrastive(5, 3, margin=margin, normalise=False)
    agrees(loss(ours, LABELS), by_loops(theirs, margin, None), ours, theirs)
    is_finite_where_it_hurts(loss)
    is_the_same_in_any_order(loss)


def test_a_length_of_embeddings_that_are_not_normalised_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scale is 2.0 and normalise is false, .*; keep one"):
        Contrastive(5, 3, scale=2.0, normalise=False)


def test_a_collapsed_batch_costs_half_the_margin() -> None:
    loss = Contrastive(5, 3, margin=0.4)
    assert loss(torch.ones(8, 5, dtype=torch.float64), LABELS).item() == pytest.approx(0.2)
    assert informative(loss) == sum(1 for i in range(8) for j in range(8) if LABELS[i] != LABELS[j])


def test_orthogonal_classes_on_their_points_cost_nothing() -> None:
    loss = Contrastive(5, 3)
    assert loss(torch.eye(5, dtype=torch.float64)[LABELS], LABELS).item() == 0
    assert informative(loss) == 0


def test_it_has_the_invariances_of_distances() -> None:
    is_the_same_in_any_order(Contrastive(5, 3, margin=12))
    ignores_lengths(Contrastive(5, 3, margin=12))
    is_finite_where_it_hurts(Contrastive(5, 3, margin=12))


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
def test_a_batch_without_pairs_is_refused(labels: list[int]) -> None:
    with pytest.raises(ValueError, match="a batch without"):
        Contrastive(5, 3)(rows(3), torch.tensor(labels))


@pytest.mark.parametrize(("option", "value"), [("margin", -1.0), ("scale", 0.0)])
def test_an_option_out_of_range_is_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{option} is {value}"):
        Contrastive(5, 3, **{option: value})  # type: ignore[arg-type] # a number each
