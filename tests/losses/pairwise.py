"""What the tests of losses on pairs share: batches, and the faults that none of them may have."""

from __future__ import annotations

import torch
from torch import Tensor

from layerprobe.losses.loss import Loss

LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])


def rows(count: int = len(LABELS), dim: int = 5, seed: int = 0) -> Tensor:
    """(count, dim) float64, of any length."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=generator, dtype=torch.float64, requires_grad=True)


def normalised(x: Tensor) -> list[Tensor]:
    """Each row at length 1, one at a time."""
    return [row / row.square().sum().sqrt() for row in x.unbind()]


def agrees(value: Tensor, expected: Tensor, ours: Tensor, theirs: Tensor) -> None:
    """Value and gradient to 1e-6 relative."""
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
    (found,), (wanted,) = torch.autograd.grad(value, [ours]), torch.autograd.grad(expected, [theirs])
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-10)


def is_finite_where_it_hurts(loss: Loss, labels: Tensor = LABELS, dim: int = 5) -> None:
    """Finite value and gradient for zero rows, equal rows, two equal rows among others, and opposite ones."""
    twins = rows(len(labels), dim).detach()
    twins[1] = twins[0]
    twins[-1] = -twins[0]
    for awkward in (torch.zeros(len(labels), dim), torch.ones(len(labels), dim), twins, 1e4 * twins, 1e-6 * twins):
        leaf = awkward.double().clone().requires_grad_()
        value = loss(leaf, labels)
        (gradient,) = torch.autograd.grad(value, [leaf])
        assert value.isfinite()
        assert gradient.isfinite().all()


def is_the_same_in_any_order(loss: Loss, labels: Tensor = LABELS, *, rotated: bool = True) -> None:
    """Neither the order of the images nor a rotation of the space matters."""
    x = rows(len(labels)).detach()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(loss(x[order], labels[order]), loss(x, labels))
    if rotated:
        turn, _ = torch.linalg.qr(rows(5, 5, seed=7).detach())
        torch.testing.assert_close(loss(x @ turn, labels), loss(x, labels))


def ignores_lengths(loss: Loss, labels: Tensor = LABELS) -> None:
    """Only the embeddings' directions matter."""
    x = rows(len(labels)).detach()
    torch.testing.assert_close(loss(3 * x, labels), loss(x, labels))


def informative(loss: Loss) -> int:
    """What the loss says of its last batch."""
    assert loss.informative is not None
    return int(loss.informative)
