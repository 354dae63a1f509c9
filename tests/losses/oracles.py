"""What the tests of losses share: losses written out one number at a time, and comparisons with them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from layerprobe.losses.loss import Loss

Rows = list[Tensor]


def embeddings(rows: int = 6, dim: int = 5, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, dim, generator=generator, dtype=torch.float64, requires_grad=True)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Of two vectors, one product at a time."""
    dot = sum((x * y for x, y in zip(a, b, strict=True)), a.new_zeros(()))
    lengths = [sum((x * x for x in vector), a.new_zeros(())).sqrt() for vector in (a, b)]
    return dot / (lengths[0] * lengths[1])


def log_sum_exp(values: Rows) -> Tensor:
    """Written out, without the shift by the largest that our code must have."""
    return torch.stack([value.exp() for value in values]).sum().log()


def agrees(loss: Loss, labels: Tensor, expected: Callable[[Tensor], Tensor], rows: Tensor | None = None) -> None:
    """Value and every gradient, of the embeddings and of the loss's parameters, to 1e-6 relative of the oracle's."""
    ours = (embeddings(len(labels)) if rows is None else rows).detach().requires_grad_()
    variables = [ours, *loss.parameters()]
    value = loss(ours, labels)
    oracle = expected(ours)
    assert value.dtype == torch.float64
    assert value.dim() == 0
    torch.testing.assert_close(value, oracle, rtol=1e-9, atol=1e-12)
    found = torch.autograd.grad(value, variables, allow_unused=True)
    wanted = torch.autograd.grad(oracle, variables, allow_unused=True)
    for gradient, right in zip(found, wanted, strict=True):
        assert gradient is not None
        assert right is not None
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        torch.testing.assert_close(dense, right, rtol=1e-6, atol=1e-9)


def finite_where_it_hurts(loss: Loss, labels: Tensor, dim: int = 5) -> None:
    """Finite value and gradients, none of them huge, for zero rows, equal rows, and rows on their class's proxy."""
    awkward = [torch.zeros(len(labels), dim), torch.ones(len(labels), dim)]
    awkward += [parameter.detach()[labels] for name, parameter in loss.named_parameters() if name == "proxies"]
    awkward += [-rows for rows in awkward[2:]]
    for rows in awkward:
        leaf = rows.to(next(loss.parameters()).dtype).requires_grad_()
        value = loss(leaf, labels)
        gradients = torch.autograd.grad(value, [leaf, *loss.parameters()])
        assert value.isfinite()
        for gradient in gradients:
            values = gradient.to_dense() if gradient.is_sparse else gradient
            assert values.isfinite().all()
            assert values.abs().max() < 1e4
