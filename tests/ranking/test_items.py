from __future__ import annotations

import numpy as np
import pytest
import torch

from layerprobe import nearest_positive_ranks
from layerprobe.ranking.items import Items, cuts
from tests.ranking.conftest import counts
from tests.ranking.test_search import Table


@pytest.mark.parametrize("spread", [1, 2**13, 2**57])
def test_rows_are_sorted_by_class_and_keep_their_order_in_it(spread: int) -> None:
    labels = np.random.default_rng(0).integers(-4, 5, 300) * spread
    order = Items(np.zeros((300, 1)), labels).by_class
    assert order.tolist() == sorted(range(300), key=lambda row: (labels[row], row))


class TableWithADevice(Table):
    """One that computes on a device, as post-processed rows do."""

    device = torch.device("cpu")


def test_a_table_that_has_a_device_is_read_in_slices() -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(50, 3)), rng.integers(7, size=50)
    expected = counts(nearest_positive_ranks(features, labels))
    assert counts(nearest_positive_ranks(TableWithADevice(features), labels)) == expected


def test_cuts_cover_all_rows_once() -> None:
    for count in (1, 767, 768, 769, 5924):
        assert [i for part in cuts(count, 768) for i in range(part.start, part.stop)] == list(range(count))
