from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layerprobe.reductions.moments import leading_of, moments_of, spectrum_of
from layerprobe.system.errors import NotFiniteError
from tests.reductions.fitting import features


def badly_scaled(count: int) -> NDArray[np.float64]:
    """Means up to a million standard deviations from 0, deviations from a millionth to a thousand, and a trend."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(count, 6)) * [1e3, 1e2, 1.0, 1e-2, 1e-4, 1e-6]
    rows += np.array([1e6, -3e5, 1e6, 1.0, 1e-3, 0.0])
    trended: NDArray[np.float64] = rows + np.linspace(0, 5, count)[:, None]
    return trended


def exact(rows: NDArray[np.float64]) -> tuple[NDArray[np.longdouble], NDArray[np.longdouble]]:
    """Mean and covariance of all rows at once, in the longest floating-point type there is."""
    wide = rows.astype(np.longdouble)
    centred = wide - wide.mean(0)
    return wide.mean(0), np.einsum("ni,nj->ij", centred, centred) / (len(rows) - 1)


@pytest.mark.parametrize("ends", [[], [1], [999], [7, 8, 400, 999], range(1, 1000), range(0, 1000, 37)[1:]])
def test_mean_and_covariance_over_parts_are_those_over_the_whole(ends: Sequence[int]) -> None:
    rows = torch.from_numpy(badly_scaled(1000))
    batches = rows.tensor_split(list(ends))
    found = moments_of(batches, 6)
    mean, covariance = exact(rows.numpy())
    assert np.abs(found.mean.numpy() - mean).max() <= 1e-12 * np.abs(mean).max()
    assert np.abs(found.covariance.numpy() - covariance).max() <= 1e-12 * np.abs(covariance).max()
    assert found.count == 1000


@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_a_large_mean_costs_no_digits_of_the_covariance(offset: float) -> None:
    rows = np.round(features(1000, 6) * 64) / 64  # the sum with 1e8 is exact
    found = moments_of(torch.from_numpy(rows + offset).split(17), 6).covariance.numpy()
    expected = exact(rows)[1]
    assert np.abs(found - expected).max() <= 1e-12 * np.abs(expected).max()


def test_rows_that_are_not_finite_are_counted() -> None:
    rows = torch.ones(9, 3, dtype=torch.float64)
    rows[1, 0], rows[7] = float("nan"), float("inf")
    with pytest.raises(NotFiniteError, match="2 of 9 feature rows"):
        moments_of(rows.split(4), 3)


@pytest.mark.parametrize(("count", "dim", "directions"), [(50, 12, 12), (50, 12, 4), (8, 12, 12), (3000, 12, 11)])
def test_the_rank_is_the_one_that_numpy_finds(count: int, dim: int, directions: int) -> None:
    rows = features(count, dim)[:, :directions] @ np.random.default_rng(2).normal(size=(directions, dim))
    expected = np.linalg.matrix_rank(np.cov(rows.T), hermitian=True)
    found = spectrum_of(moments_of(torch.from_numpy(rows).split(11), dim)).rank
    assert found == expected == min(directions, count - 1)


def test_equal_features_have_rank_0() -> None:
    assert spectrum_of(moments_of([torch.full((5, 3), 0.1, dtype=torch.float64)], 3)).rank == 0


@pytest.mark.parametrize("count", [1, 3, 8])
def test_the_leading_axes_are_the_first_of_all(count: int) -> None:
    # 8 dimensions of which 5 vary: the rank is told as far as it was asked for.
    random = np.random.default_rng(1)
    rows = torch.from_numpy(random.normal(size=(60, 5)) * [9, 5, 3, 2, 1] @ random.normal(size=(5, 8)))
    moments = moments_of([rows], 8)
    every, found = spectrum_of(moments).first(count), leading_of(moments, count)
    assert found.axes.shape == (8, count)
    kept = min(count, 5)
    torch.testing.assert_close(found.axes[:, :kept], every.axes[:, :kept], atol=1e-12, rtol=0)
    torch.testing.assert_close(found.variances, every.variances, atol=1e-12, rtol=1e-12)
    assert (every.rank, found.rank) == (5, kept)
