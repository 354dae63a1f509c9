from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import pdist
from sklearn import decomposition

from layerprobe.post_processing.applying import Blocks
from layerprobe.post_processing.chain import parse_chain
from layerprobe.post_processing.pca import leading_of, moments_of, partial_whitening, spectrum_of
from layerprobe.post_processing.post_processing import NotApplicableError
from layerprobe.post_processing.unfitted import unit
from layerprobe.system.errors import NotFiniteError, RecipeError
from tests.post_processing.fitting import features, fitted


@pytest.mark.parametrize("mean", [0.5, 1e4])
def test_distances_are_those_of_scikit_learn(mean: float) -> None:
    train, test = features(90, 12, mean=mean), features(40, 12, seed=1, mean=mean)
    expected = decomposition.PCA(5, svd_solver="full").fit(train).transform(test)
    assert pdist(fitted("pca:5", train, test)) == pytest.approx(pdist(expected), rel=1e-10)


def test_all_dimensions_keep_all_distances() -> None:
    train, test = features(90, 12), features(40, 12, seed=1)
    assert pdist(fitted("pca:12", train, test)) == pytest.approx(pdist(test), rel=1e-12)


def test_the_axes_are_orthonormal() -> None:
    train = features(90, 12)
    axes = fitted("pca:7", train, train.mean(0) + np.eye(12))  # mean + basis vector -> a row of the axes
    assert np.abs(axes.T @ axes - np.eye(7)).max() < 1e-12


def test_the_longest_entry_of_an_axis_is_positive() -> None:
    train = features(90, 12)
    axes = fitted("pca:7", train, train.mean(0) + np.eye(12))
    assert (axes[np.abs(axes).argmax(0), np.arange(7)] > 0).all()


def test_what_is_post_processed_does_not_change_how() -> None:
    train, test = features(90, 12), features(40, 12, seed=1)
    together = fitted("l2+pca:5+l2", train, np.concatenate([test, 100 * train]))
    assert together[:40] == pytest.approx(fitted("l2+pca:5+l2", train, test), abs=1e-14)


def test_more_dimensions_than_there_are_do_not_apply() -> None:
    with pytest.raises(NotApplicableError, match="pca:13: the features have 12 dimensions. Use at most 12"):
        parse_chain("pca:13").dim(12)


@pytest.mark.parametrize(("count", "rank"), [(6, 5), (1, 0)])  # the mean takes one direction of N
def test_more_dimensions_than_directions_do_not_apply(count: int, rank: int) -> None:
    with pytest.raises(NotApplicableError, match=f"pca:8: the features that it is fitted on have rank {rank}"):
        fitted("pca:8", features(count, 12), features(4, 12))


@pytest.mark.parametrize("name", ["pca:0", "pca:x", "pca:-1", "pca:08", "pca:1.5"])
def test_a_number_that_is_none_is_told_by_its_name(name: str) -> None:
    with pytest.raises(RecipeError, match=rf"{name}: .* is no number of dimensions. Give a whole number, as in pca:64"):
        parse_chain(f"l2+{name}")


def test_distances_at_full_power_are_those_of_scikit_learn() -> None:
    train, test = features(90, 12), features(40, 12, seed=1)
    expected = decomposition.PCA(5, svd_solver="full", whiten=True).fit(train).transform(test)
    assert pdist(fitted("whiten:5:1", train, test)) == pytest.approx(pdist(expected), rel=1e-10)


def test_full_power_leaves_the_identity_as_covariance() -> None:
    train = features(90, 12)
    assert np.cov(fitted("whiten:12:1", train, train).T) == pytest.approx(np.eye(12), abs=1e-10)


def test_half_power_leaves_the_root_of_every_variance() -> None:
    train = features(90, 12)
    variances = decomposition.PCA(5, svd_solver="full").fit(train).explained_variance_
    assert fitted("whiten:5:0.5", train, train).var(0, ddof=1) == pytest.approx(variances**0.5, rel=1e-10)


def test_no_power_is_pca() -> None:
    train, test = features(90, 12), features(40, 12, seed=1)
    assert (fitted("whiten:5:0", train, test) == fitted("pca:5", train, test)).all()


def test_partial_whitening_of_unit_vectors_is_the_one_of_released_code() -> None:
    # pcawhitenlearn_shrinkage(X, s) and whitenapply of github.com/gtolias/how, in numpy; it divides by N, which scales
    # all directions alike, and normalises by length + 1e-6.
    train, test = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (features(90, 12), features(40, 12, seed=1)))
    values, vectors = np.linalg.eigh(np.cov(train.T, bias=True))
    expected = (test - train.mean(0)) @ (vectors[:, ::-1] / values[::-1] ** 0.25)[:, :5]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert pdist(fitted("l2+whiten:5:0.5+l2", train, test)) == pytest.approx(pdist(expected), rel=1e-10)


def test_directions_without_variance_are_not_divided_by_it() -> None:
    train = np.hstack([features(90, 5), np.ones((90, 1))])
    with pytest.raises(NotApplicableError, match="whiten:6:0.5: .* have rank 5. Use at most 5"):
        fitted("whiten:6:0.5", train, train)


@pytest.mark.parametrize("name", ["whiten:64:2", "whiten:64", "whiten:64:", "whiten:64:-1", "whiten:64:nan"])
def test_a_power_outside_of_0_to_1_is_refused(name: str) -> None:
    with pytest.raises(RecipeError, match=rf"{re.escape(name)}: .* no power from 0 to 1. .*whiten:64:0.5"):
        parse_chain(name)


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


CPU = torch.device("cpu")


def test_a_fit_without_a_fold_is_that_of_the_chain_on_the_other_rows() -> None:
    rng = np.random.default_rng(0)
    values, folds = rng.normal(1, 1, (5000, 6)) * np.arange(1, 7), rng.integers(3, size=5000)
    found = partial_whitening(Blocks(values, CPU), folds, [0, 2, None])
    assert found is not None
    assert found.dim == 6
    some = torch.from_numpy(values[:50])
    for left in found.fits:
        rows = values if left is None else values[folds != left]
        expected = parse_chain("l2+whiten:6:0.5+l2").fit([torch.from_numpy(rows)], 6, seed=0)
        assert (found.onto(6, unit)(left)(some) - expected(some)).abs().max() < 1e-10


def test_the_dimensions_are_the_least_rank_of_the_fits() -> None:
    values = np.random.default_rng(0).normal(size=(9, 6))  # without fold 0 three rows are left, of rank 2
    found = partial_whitening(Blocks(values, CPU), np.array([0] * 6 + [1] * 3), [0, 1, None])
    assert found is not None
    assert found.dim == 2


def test_features_that_are_all_the_same_have_none() -> None:
    assert partial_whitening(Blocks(np.ones((9, 6)), CPU), np.zeros(9, np.int64)) is None
