"""The planted candidates themselves, on features small enough to search by brute force."""

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.planted import hits, memorised, nearest_by_class, shrinking, unit
from layerprobe import recall_at_k


@pytest.fixture
def features() -> NDArray[np.float64]:
    """Of 30 classes of 4 images."""
    rng = np.random.default_rng(0)
    return unit(rng.normal(size=(30, 1, 8)) + 0.7 * rng.normal(size=(30, 4, 8)))


def recall(features: NDArray[np.float64]) -> float:
    labels = np.repeat(np.arange(len(features)), features.shape[1])
    return recall_at_k(features.reshape(len(labels), -1), labels, ks=[1])[1]


def test_hits_of_drawn_classes_are_those_of_a_search_among_them(features: NDArray[np.float64]) -> None:
    drawn = np.array([3, 17, 8, 22, 29, 0])
    found = hits(nearest_by_class(features), drawn)
    assert found.shape == (6, 4)
    assert found.mean() == recall(features[drawn]) < 1


def test_a_copy_in_another_basis_hits_the_same_images(features: NDArray[np.float64]) -> None:
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(8, 8)))[0]
    everyone = np.arange(30)
    copy = hits(nearest_by_class(features @ basis), everyone)
    assert np.array_equal(copy, hits(nearest_by_class(features), everyone))


def test_the_memory_finds_every_training_image_and_fewer_of_other_classes(features: NDArray[np.float64]) -> None:
    train, others = features[:15], features[15:]
    outputs = memorised(train)
    assert recall(outputs(train)) == 1 > recall(train)
    assert recall(outputs(others)) < recall(others)


def test_shrinking_takes_the_classes_own_directions_away_by_an_amount(features: NDArray[np.float64]) -> None:
    shrink = shrinking(features)
    assert np.array_equal(shrink(features, 0.0), features)
    # The rank of the classes' means is 8; the 5th to the 8th of the directions are gone.
    centres = shrink(features, 1.0).mean(1)
    assert np.linalg.matrix_rank(centres - centres.mean(0), tol=1e-10) == 4
