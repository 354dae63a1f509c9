from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from layerprobe.losses.prototypical import Prototypical
from tests.losses.pairwise import agrees, is_finite_where_it_hurts, rows

# Class 2 has support alone; the classes' images are mixed.
EPISODE = torch.tensor([0, 1, 0, 2, 1, 0, 1, 0, 2])


def by_loops(features: Tensor, support: int, labels: Tensor = EPISODE) -> Tensor:
    of_class = {int(k): [i for i in range(len(labels)) if labels[i] == k] for k in labels.unique()}
    prototypes = {k: torch.stack([features[i] for i in images[:support]]).mean(0) for k, images in of_class.items()}
    losses = []
    for k, images in of_class.items():
        for a in images[support:]:
            distances = {c: (features[a] - p).square().sum() for c, p in prototypes.items()}
            losses.append(-((-distances[k]).exp() / sum((-d).exp() for d in distances.values())).log())
    return torch.stack(losses).mean()


@pytest.mark.parametrize("support", [1, 2, 3])
def test_value_and_gradient_equal_the_loops(support: int) -> None:
    ours, theirs = rows(9), rows(9)
    agrees(Prototypical(5, 3, support=support)(ours, EPISODE), by_loops(theirs, support), ours, theirs)


def test_a_collapsed_episode_costs_ln_of_its_classes() -> None:
    value = Prototypical(5, 3, support=2)(torch.ones(9, 5, dtype=torch.float64), EPISODE)
    assert value.item() == pytest.approx(math.log(3), rel=1e-12)


def test_queries_on_their_prototype_cost_little() -> None:
    value = Prototypical(5, 3, support=2)(10 * torch.eye(5, dtype=torch.float64)[EPISODE], EPISODE)
    assert 0 <= value.item() < 1e-20


def test_neither_a_rotation_nor_a_shift_of_the_space_matters() -> None:
    x, loss = rows(9).detach(), Prototypical(5, 3, support=2)
    turn, _ = torch.linalg.qr(rows(5, 5, seed=7).detach())
    torch.testing.assert_close(loss(x @ turn + 1, EPISODE), loss(x, EPISODE))


def test_it_is_finite_where_it_hurts() -> None:
    is_finite_where_it_hurts(Prototypical(5, 3, support=1), EPISODE)


@pytest.mark.parametrize(("labels", "support"), [([0, 0, 1, 1], 2), ([0, 0, 0], 1)])
def test_an_episode_without_queries_or_of_one_class_is_refused(labels: list[int], support: int) -> None:
    with pytest.raises(ValueError, match="an episode without queries"):
        Prototypical(5, 3, support=support)(rows(len(labels)), torch.tensor(labels))


def test_no_support_is_refused() -> None:
    with pytest.raises(ValueError, match="support is 0"):
        Prototypical(5, 3, support=0)
