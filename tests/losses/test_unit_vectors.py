from __future__ import annotations

import torch

from layerprobe.losses.unit_vectors import unit
from tests.losses.oracles import embeddings


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
