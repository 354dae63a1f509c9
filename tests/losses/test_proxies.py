from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from layerprobe.losses.loss import Loss
from layerprobe.losses.proxies import at_least_zero, normal, positive, rate, several_classes, share, uniform, unit

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


def test_unit_rows_have_length_1() -> None:
    torch.testing.assert_close(unit(embeddings()).norm(dim=1), torch.ones(6, dtype=torch.float64))


def test_unit_has_the_gradient_of_the_quotient() -> None:
    assert torch.autograd.gradcheck(unit, embeddings())


def test_a_zero_row_stays_zero_with_a_gradient_of_1() -> None:
    rows = torch.zeros(2, 3, requires_grad=True)
    result = unit(rows)
    result.sum().backward()
    assert not result.any()
    assert rows.grad is not None
    assert (rows.grad == 1).all()


def test_first_values_are_spread_as_named() -> None:
    torch.manual_seed(0)
    bounded, gaussian = uniform(2000, 16), normal(2000, 16)
    assert bounded.abs().max().item() == pytest.approx(0.25, rel=1e-3)
    assert bounded.abs().max() <= 0.25
    assert gaussian.norm(dim=1).square().mean().item() == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_what_is_not_positive_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=rf"^scale is {value}; it is a factor, a number above 0$"):
        positive("scale", value, "a factor")
    with pytest.raises(ValueError, match="a learning rate"):
        rate("proxy_learning_rate", value)


def test_no_rate_is_a_rate() -> None:
    assert rate("proxy_learning_rate", None) is None
    assert rate("proxy_learning_rate", 0.1) == 0.1


@pytest.mark.parametrize("value", [-0.1, math.inf, math.nan])
def test_what_is_below_zero_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=rf"^margin is {value}; it is a distance, a number of at least 0$"):
        at_least_zero("margin", value, "a distance")
    assert at_least_zero("margin", 0, "a distance") == 0


@pytest.mark.parametrize("value", [-0.1, 1.0, math.nan])
def test_what_is_no_share_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=rf"^label_smoothing is {value}; it is a share, at least 0 and below 1$"):
        share("label_smoothing", value)


def test_one_class_cannot_be_told_apart() -> None:
    with pytest.raises(ValueError, match=r"^num_classes is 1; telling classes apart needs at least 2$"):
        several_classes(1)
