from __future__ import annotations

import numpy as np
import pytest

from layerprobe.ranking.items import Items


@pytest.mark.parametrize("spread", [1, 2**13, 2**57])
def test_rows_are_sorted_by_class_and_keep_their_order_in_it(spread: int) -> None:
    labels = np.random.default_rng(0).integers(-4, 5, 300) * spread
    order = Items(np.zeros((300, 1)), labels).by_class
    assert order.tolist() == sorted(range(300), key=lambda row: (labels[row], row))
