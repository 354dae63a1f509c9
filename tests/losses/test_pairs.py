from __future__ import annotations

import pytest
import torch

from layerprobe.losses.pairs import euclidean, pairs_of, squared_euclidean
from tests.losses.pairwise import LABELS, rows


def test_distances_are_those_of_the_rows_one_at_a_time() -> None:
    x = rows().detach()
    wanted = torch.tensor([[float((a - b).norm()) for b in x] for a in x], dtype=torch.float64)
    torch.testing.assert_close(euclidean(x), wanted)
    torch.testing.assert_close(squared_euclidean(x), wanted.square())


def test_equal_rows_are_at_distance_0_and_have_no_gradient() -> None:
    x = torch.full((3, 4), 1e3, requires_grad=True)
    distances = euclidean(x)
    distances.sum().backward()
    assert not distances.any()
    assert x.grad is not None
    assert not x.grad.any()


def test_the_gradient_is_that_of_the_norm() -> None:
    assert torch.autograd.gradcheck(lambda x: euclidean(x)[0, 1:], rows(4))


def test_pairs_are_of_one_class_without_itself_or_of_two() -> None:
    positives, negatives = pairs_of(LABELS)
    for i in range(8):
        for j in range(8):
            assert bool(positives[i, j]) == (i != j and LABELS[i] == LABELS[j])
            assert bool(negatives[i, j]) == (LABELS[i] != LABELS[j])


@pytest.mark.parametrize(("labels", "kind"), [([0, 1, 2], "positive"), ([1, 1, 1], "negative")])
def test_a_batch_without_pairs_is_refused(labels: list[int], kind: str) -> None:
    with pytest.raises(ValueError, match=f"a batch without {kind} pairs"):
        pairs_of(torch.tensor(labels))


def test_rows_that_differ_little_keep_their_distance() -> None:
    x = rows().detach()
    x[1] = x[0] + torch.tensor([3e-4, 4e-4, 0.0, 0.0, 0.0], dtype=torch.float64)
    assert euclidean(x)[0, 1].item() == pytest.approx(5e-4, rel=1e-6)
    single = euclidean(x.float())[0, 1].item()
    assert single == pytest.approx(5e-4, rel=1e-3)
