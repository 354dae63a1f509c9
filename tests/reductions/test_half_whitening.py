from __future__ import annotations

import numpy as np
import torch

from layerprobe.reductions.applying import Blocks
from layerprobe.reductions.chain import parse_chain
from layerprobe.reductions.half_whitening import half_whitening

CPU = torch.device("cpu")


def test_a_fit_without_a_fold_is_that_of_the_chain_on_the_other_rows() -> None:
    rng = np.random.default_rng(0)
    values, folds = rng.normal(1, 1, (5000, 6)) * np.arange(1, 7), rng.integers(3, size=5000)
    found = half_whitening(Blocks(values, CPU), folds, [0, 2, None])
    assert found is not None
    assert (found.dim, found.name) == (6, "l2+whiten:6:0.5+l2")
    some = torch.from_numpy(values[:50])
    for left, reduce in found.fits.items():
        rows = values if left is None else values[folds != left]
        expected = parse_chain(found.name).fit([torch.from_numpy(rows)], 6, seed=0)
        assert (reduce(some) - expected(some)).abs().max() < 1e-10


def test_the_dimensions_are_the_least_rank_of_the_fits() -> None:
    values = np.random.default_rng(0).normal(size=(9, 6))  # without fold 0 three rows are left, of rank 2
    found = half_whitening(Blocks(values, CPU), np.array([0] * 6 + [1] * 3), [0, 1, None])
    assert found is not None
    assert found.dim == 2


def test_features_that_are_all_the_same_have_none() -> None:
    assert half_whitening(Blocks(np.ones((9, 6)), CPU), np.zeros(9, np.int64)) is None
