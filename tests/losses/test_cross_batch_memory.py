from __future__ import annotations

import pytest
import torch
from torch import Tensor

from layerprobe.losses.cross_batch_memory import CrossBatchMemory
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


def build(**options: float) -> CrossBatchMemory:
    return CrossBatchMemory(5, 3, **{"warmup": 0, "size": 12, **options}).double()  # type: ignore[arg-type] # options of one test each


def by_loops(features: Tensor, remembered: list[tuple[Tensor, int]], margin: float = 0.5) -> Tensor:
    """The batch against itself and what is remembered, a pair at a time."""
    x = normalised(features)
    total = features.new_zeros(())
    for i in range(len(x)):
        others = [(x[j], int(LABELS[j])) for j in range(len(x)) if j != i] + remembered
        for other, label in others:
            s = x[i] @ other
            total = total + (1 - s if label == LABELS[i] else (s - margin).clamp(min=0))
    return total / len(x)


def test_the_first_batch_equals_the_loops() -> None:
    ours, theirs = rows(), rows()
    agrees(build()(ours, LABELS), by_loops(theirs, []), ours, theirs)


def test_the_third_batch_is_compared_with_the_last_ones_that_fit() -> None:
    loss, batches = build(), [rows(seed=seed) for seed in (1, 2)]
    for batch in batches:
        loss(batch, LABELS)
    everything = [(x.detach(), int(y)) for batch in batches for x, y in zip(normalised(batch), LABELS, strict=True)]
    ours, theirs = rows(), rows()
    agrees(loss(ours, LABELS), by_loops(theirs, everything[-12:]), ours, theirs)


def test_the_memory_waits_for_the_end_of_the_warm_up_and_is_filled_by_then() -> None:
    loss = build(warmup=2)
    first, second, third = (rows(seed=seed).detach() for seed in (1, 2, 3))
    loss(first, LABELS)
    torch.testing.assert_close(loss(second, LABELS), by_loops(second, []))
    before = [(x, int(y)) for batch in (first, second) for x, y in zip(normalised(batch), LABELS, strict=True)]
    torch.testing.assert_close(loss(third, LABELS), by_loops(third, before[-12:]))


def test_a_batch_larger_than_the_memory_leaves_its_last() -> None:
    loss = build(size=3)
    x = rows().detach()
    loss(x, LABELS)
    torch.testing.assert_close(loss.memory, torch.stack(normalised(x))[-3:])
    assert loss.labels.tolist() == LABELS[-3:].tolist()


def test_evaluation_remembers_nothing() -> None:
    loss = build().eval()
    loss(rows(), LABELS)
    assert (loss.labels == -1).all()


def test_a_checkpoint_keeps_the_memory() -> None:
    one, two = build(), build()
    for seed in (1, 2):
        one(rows(seed=seed).detach(), LABELS)
    two.load_state_dict(one.state_dict())
    assert torch.equal(one(rows().detach(), LABELS), two(rows().detach(), LABELS))
    assert torch.equal(one.memory, two.memory)


def test_a_class_once_in_the_batch_and_once_in_the_memory_is_a_pair() -> None:
    loss = build()
    loss(rows(8).detach(), LABELS)
    assert loss(rows(3, seed=1).detach(), torch.tensor([0, 1, 2])).isfinite()


def test_a_first_batch_without_positives_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch without positive pairs"):
        build()(rows(3), torch.tensor([0, 1, 2]))


def test_what_counts_is_counted() -> None:
    loss = build()
    loss(torch.eye(5, dtype=torch.float64)[LABELS], LABELS)
    assert informative(loss) == 0


def test_it_has_the_invariances_of_cosines() -> None:
    is_the_same_in_any_order(build().eval())
    ignores_lengths(build().eval())
    is_finite_where_it_hurts(build().eval())


@pytest.mark.parametrize(("option", "value"), [("size", 0), ("warmup", -1), ("margin", 1.0), ("margin", -1.0)])
def test_an_option_out_of_range_is_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{option} is {value}"):
        build(**{option: value})
