from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.linalg import lstsq, null_space
from scipy.spatial.distance import pdist

from layerprobe.post_processing.chain import parse_chain
from layerprobe.post_processing.post_processing import NotApplicableError
from tests.post_processing.fitting import features

CLASSES, DIM = 7, 12


def weights(classes: int = CLASSES, dim: int = DIM) -> NDArray[np.float64]:
    return np.random.default_rng(3).normal(size=(classes, dim)) * np.arange(1, classes + 1)[:, None]


def shifted(
    asked: NDArray[np.float64], weight: NDArray[np.float64] | None, chain: str = "shift"
) -> NDArray[np.float64]:
    given = None if weight is None else torch.from_numpy(weight)
    post_process = parse_chain(chain).fit([], asked.shape[1], seed=0, classifier_weight=given)
    return post_process(torch.from_numpy(asked)).numpy()


def probabilities(asked: NDArray[np.float64]) -> NDArray[np.float64]:
    scores = np.exp(asked @ weights().T)
    normed: NDArray[np.float64] = scores / scores.sum(1, keepdims=True)
    return normed


def test_distances_are_the_least_over_all_shifts() -> None:
    # equation 5: the least over c of |x1 - x2 - A c|, the columns of A being W^T (W W^T)^-1 1 and null(W)
    asked, weight = features(15, DIM), weights()
    away = weight.T @ np.linalg.inv(weight @ weight.T) @ np.ones((CLASSES, 1))
    directions = np.hstack([away, null_space(weight)])
    expected = []
    for i in range(len(asked)):
        for other in asked[i + 1 :]:
            constants, *_ = lstsq(directions, asked[i] - other)
            expected.append(np.linalg.norm(asked[i] - other - directions @ constants))
    assert np.abs(pdist(shifted(asked, weight)) - expected).max() < 1e-10


def test_features_of_the_same_probabilities_become_equal() -> None:
    asked = features(9, DIM) / 30
    away = np.linalg.pinv(weights()).sum(1) * 5 + null_space(weights()).sum(1)
    assert probabilities(asked + away) == pytest.approx(probabilities(asked), rel=1e-10)
    assert shifted(asked + away, weights()) == pytest.approx(shifted(asked, weights()), abs=1e-12)


def test_what_is_left_has_one_dimension_less_than_there_are_classes() -> None:
    assert np.linalg.matrix_rank(shifted(np.eye(DIM), weights())) == CLASSES - 1


def test_it_asks_for_the_classifier_alone() -> None:
    chain = parse_chain("shift+l2")
    assert (chain.needs_classifier, chain.fits, chain.draws) == (True, False, False)


def test_no_classifier_is_told() -> None:
    with pytest.raises(NotApplicableError, match="shift: it needs the weights of a classifier"):
        shifted(features(9, DIM), None)


@pytest.mark.parametrize("classes", [12, 13])
def test_no_more_dimensions_than_classes_are_refused(classes: int) -> None:
    with pytest.raises(NotApplicableError, match=f"12 dimensions and the classifier {classes} classes; only where"):
        shifted(features(9, DIM), weights(classes))


def test_dependent_weights_are_refused() -> None:
    with pytest.raises(NotApplicableError, match="follow from those of others"):
        shifted(features(9, DIM), weights(4)[[0, 1, 2, 3, 1]])


def test_the_weights_must_be_of_these_features() -> None:
    with pytest.raises(NotApplicableError, match="takes features of 12 dimensions, these have 8. Put shift before"):
        shifted(features(9, DIM), weights(), "random:8+shift")
