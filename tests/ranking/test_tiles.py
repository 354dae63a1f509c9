from __future__ import annotations

import numpy as np
import pytest
import torch

from layerprobe.ranking.tiles import Thresholds, count_columns, count_rows, mask_classes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [512, 500])
def test_more_marks_than_bfloat16_holds_are_counted(dtype: torch.dtype, size: int) -> None:
    similarities = torch.ones(size, size, dtype=dtype)
    similarities[:, :3] = 0
    half = torch.full((size,), 0.5, dtype=dtype)
    bounds = Thresholds(half, half)
    assert count_rows(similarities, bounds).tolist() == [[size - 3] * size] * 2
    assert count_columns(similarities, bounds).tolist() == [[0] * 3 + [size] * (size - 3)] * 2


@pytest.mark.parametrize("classes", [1, 3, 40, 600])
def test_pairs_of_one_class_are_masked(classes: int) -> None:
    rng = np.random.default_rng(classes)
    rows, columns = (np.sort(rng.integers(classes, size=count)) for count in (300, 200))
    similarities = torch.zeros(300, 200)
    mask_classes(similarities, rows, columns)
    assert (similarities.isneginf().numpy() == (rows[:, None] == columns)).all()
    assert int((similarities == 0).sum()) == (rows[:, None] != columns).sum()
