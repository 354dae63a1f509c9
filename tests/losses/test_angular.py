from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from layerprobe.losses.angular import Angular
from layerprobe.losses.n_pairs import NPairs
from tests.losses.pairwise import (
    LABELS,
    agrees,
    ignores_lengths,
    is_finite_where_it_hurts,
    is_the_same_in_any_order,
    normalised,
    rows,
)

PAIRS = torch.tensor([0, 0, 1, 1, 2, 2])


def by_loops(x: list[Tensor], labels: Tensor, alpha: float) -> Tensor:
    """Equations 4 and 5, a triplet at a time."""
    square = math.tan(math.radians(alpha)) ** 2
    losses = []
    for a in range(len(x)):
        for p in range(len(x)):
            if p != a and labels[p] == labels[a]:
                terms = [
                    (4 * square * (x[a] + x[p]) @ x[n] - 2 * (1 + square) * x[a] @ x[p]).exp()
                    for n in range(len(x))
                    if labels[n] != labels[a]
                ]
                losses.append((1 + torch.stack(terms).sum()).log())
    return torch.stack(losses).mean()


@pytest.mark.parametrize("labels", [PAIRS, LABELS])
@pytest.mark.parametrize("alpha", [45.0, 36.0])
@pytest.mark.parametrize("normalise", [False, True])
def test_value_and_gradient_equal_the_loops(labels: Tensor, alpha: float, normalise: bool) -> None:
    ours, theirs = rows(len(labels)), rows(len(labels))
    x = normalised(theirs) if normalise else list(theirs.unbind())
    value = Angular(5, 3, alpha=alpha, normalise=normalise)(ours, labels)
    agrees(value, by_loops(x, labels, alpha), ours, theirs)


def test_only_the_positives_of_other_classes_may_be_negatives() -> None:
    ours, theirs = rows(6), rows(6)
    pairs, losses = [(1, 3), (0, 5), (2, 4)], []  # alpha 45: tan^2 is 1
    for a, p in pairs:
        terms = [
            (4 * (theirs[a] + theirs[p]) @ theirs[n] - 4 * theirs[a] @ theirs[p]).exp() for _, n in pairs if n != p
        ]
        losses.append((1 + torch.stack(terms).sum()).log())
    value = Angular(5, 8, negatives="positives")(ours, torch.tensor([7, 2, 5, 2, 5, 7]))
    agrees(value, torch.stack(losses).mean(), ours, theirs)


def test_the_n_pairs_beside_it_have_the_same_negatives() -> None:
    x = rows(6).detach()
    alone = Angular(5, 3, negatives="positives")(x, PAIRS)
    both = Angular(5, 3, negatives="positives", n_pairs_weight=0.5)(x, PAIRS)
    torch.testing.assert_close(both - alone, 0.5 * NPairs(5, 3, l2=0, negatives="positives")(x, PAIRS))


def test_with_n_pairs_it_is_the_sum_of_both() -> None:
    x = rows().detach()
    wanted = Angular(5, 3)(x, LABELS) + 0.5 * NPairs(5, 3, l2=0)(x, LABELS)
    torch.testing.assert_close(Angular(5, 3, n_pairs_weight=0.5)(x, LABELS), wanted)


def test_the_lengths_are_those_of_the_pairs() -> None:
    x = rows(6).detach()
    added = Angular(5, 3, l2=0.5)(x, PAIRS) - Angular(5, 3)(x, PAIRS)
    of_pairs = [a @ a + p @ p for a, p in x.view(3, 2, 5)]
    torch.testing.assert_close(added, 0.5 * torch.stack(of_pairs).mean())


def test_a_collapsed_unit_batch_has_the_exponent_8_tan2_minus_2_minus_2_tan2() -> None:
    # alpha 45: 4 * 2 - 4 = 4, for 4 negatives.
    value = Angular(5, 3, normalise=True)(torch.ones(6, 5, dtype=torch.float64), PAIRS)
    assert value.item() == pytest.approx(math.log1p(4 * math.exp(4)), rel=1e-12)


def test_it_has_the_invariances_of_products() -> None:
    is_the_same_in_any_order(Angular(5, 3))
    ignores_lengths(Angular(5, 3, normalise=True))
    is_finite_where_it_hurts(Angular(5, 3))
    is_finite_where_it_hurts(Angular(5, 3, negatives="positives"))


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
def test_a_batch_without_pairs_is_refused(labels: list[int]) -> None:
    with pytest.raises(ValueError, match="a batch without"):
        Angular(5, 3)(rows(3), torch.tensor(labels))


@pytest.mark.parametrize(("option", "value"), [("alpha", 0), ("alpha", 90), ("n_pairs_weight", -1), ("l2", -1)])
def test_an_option_out_of_range_is_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{option} is {value}"):
        Angular(5, 3, **{option: value})  # type: ignore[arg-type] # a number
