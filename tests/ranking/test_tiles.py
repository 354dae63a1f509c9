from __future__ import annotations

import pytest
import torch

from layerprobe.ranking.tiles import Thresholds, count_columns, count_rows, cuts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [512, 500])
def test_more_marks_than_bfloat16_holds_are_counted(dtype: torch.dtype, size: int) -> None:
    similarities = torch.ones(size, size, dtype=dtype)
    similarities[:, :3] = 0
    half = torch.full((size,), 0.5, dtype=dtype)
    bounds = Thresholds(half, half)
    assert count_rows(similarities, bounds).tolist() == [[size - 3] * size] * 2
    assert count_columns(similarities, bounds).tolist() == [[0] * 3 + [size] * (size - 3)] * 2


def test_cuts_cover_all_rows_once() -> None:
    for count in (1, 767, 768, 769, 5924):
        assert [i for part in cuts(count, 768) for i in range(part.start, part.stop)] == list(range(count))
