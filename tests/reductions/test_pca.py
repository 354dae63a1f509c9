from __future__ import annotations

import re

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from sklearn import decomposition

from layerprobe.reductions.chain import parse_chain
from layerprobe.reductions.reduction import NotApplicableError
from layerprobe.system.errors import RecipeError
from tests.reductions.fitting import features, fitted


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


def test_what_is_reduced_does_not_change_how() -> None:
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


def test_half_whitening_of_unit_vectors_is_the_one_of_released_code() -> None:
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
