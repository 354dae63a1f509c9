from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerprobe.training.optimizers import RowSGD, build_optimizer, gradients


def weight(rows: int = 6) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))


def loss_of(table: Tensor, rows: list[int], *, sparse: bool) -> Tensor:
    """A function of some rows alone."""
    return F.embedding(torch.tensor(rows), table, sparse=sparse).square().sum()


def trained(draws: list[list[int]], *, sparse: bool, **options: float) -> Tensor:
    table = weight()
    kind: Any = RowSGD if sparse else torch.optim.SGD
    optimizer = kind([table], lr=0.1, **options)
    for rows in draws:
        optimizer.zero_grad()
        loss_of(table, rows, sparse=sparse).backward()
        optimizer.step()
    return table.detach()


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "weight_decay": 0.01}])
def test_with_every_row_drawn_it_is_torchs_sgd(options: dict[str, float]) -> None:
    draws = [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5]]
    torch.testing.assert_close(trained(draws, sparse=True, **options), trained(draws, sparse=False, **options))


def test_a_row_that_is_drawn_twice_has_both_gradients() -> None:
    torch.testing.assert_close(trained([[1, 1, 2]], sparse=True), trained([[1, 1, 2]], sparse=False))


def test_rows_that_are_not_drawn_stay_to_the_bit() -> None:
    after = trained([[0, 1], [1]], sparse=True, momentum=0.9, weight_decay=0.1)
    assert torch.equal(after[2:], weight().detach()[2:])
    assert not torch.equal(after[:2], weight().detach()[:2])


def test_momentum_waits_until_a_row_is_drawn_again() -> None:
    # By hand for one row x with gradient 2x: drawn, not drawn, drawn.
    x = weight().detach()[0]
    first = 2 * x
    moved = x - 0.1 * first
    second = 0.9 * first + 2 * moved
    torch.testing.assert_close(trained([[0], [1], [0]], sparse=True, momentum=0.9)[0], moved - 0.1 * second)


def test_state_goes_through_a_checkpoint() -> None:
    table, other = weight(), weight()
    one, two = RowSGD([table], lr=0.1, momentum=0.9), RowSGD([other], lr=0.1, momentum=0.9)
    loss_of(table, [0, 1], sparse=True).backward()
    one.step()
    with torch.no_grad():
        other.copy_(table)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for parameter, optimizer in ((table, one), (other, two)):
        optimizer.zero_grad()
        loss_of(parameter, [0], sparse=True).backward()
        optimizer.step()
    assert torch.equal(table, other)


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("sgd", torch.optim.SGD, {"momentum": 0.9}),
        ("adam", torch.optim.Adam, {"eps": 0.01}),
        ("adamw", torch.optim.AdamW, {"eps": 0.01}),
        ("rmsprop", torch.optim.RMSprop, {"eps": 0.01, "momentum": 0.5}),
    ],
)
def test_each_name_is_torchs_optimizer(name: str, kind: Any, options: dict[str, float]) -> None:
    ours, theirs = weight(), weight()
    built = build_optimizer(
        name,
        [{"params": [ours], "lr": 0.1, "weight_decay": 0.01}],
        learning_rate=0.1,
        momentum=options.get("momentum"),
        epsilon=options.get("eps"),
    )
    reference = kind([theirs], lr=0.1, weight_decay=0.01, **options)
    for _ in range(3):
        for parameter, optimizer in ((ours, built), (theirs, reference)):
            optimizer.zero_grad()
            loss_of(parameter, [0, 1, 2], sparse=False).backward()
            optimizer.step()
    assert torch.equal(ours, theirs)


def test_gradients_of_rows_are_their_values() -> None:
    table, unused = weight(), weight()
    loss_of(table, [1, 1], sparse=True).backward()
    (values,) = gradients([table, unused])
    torch.testing.assert_close(values, 4 * table.detach()[1:2])
