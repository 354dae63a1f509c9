from __future__ import annotations

import doctest

import numpy as np
import pytest

import layerprobe
from layerprobe.ranking import recall_at_k
from layerprobe.ranking.recall import recall_at_k as from_module
from layerprobe.system.errors import DataError

ANGLES = np.radians([0, 10, 15, 90])
FEATURES = np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1)
LABELS = [0, 0, 1, 1]
LENGTHS = np.array([[1, 0], [2, 0], [5, 1], [5, 2]])


def test_every_k_comes_from_one_count() -> None:
    # Closer negatives: 0, 1, 2, 0.
    assert recall_at_k(FEATURES, LABELS, [1, 2, 3]) == {1: 2 / 4, 2: 3 / 4, 3: 1.0}


def test_ks_may_be_any_iterable_and_keep_their_order() -> None:
    assert list(recall_at_k(FEATURES, LABELS, iter([3, 1]))) == [3, 1]


def test_a_gallery_is_searched_instead_of_the_queries() -> None:
    assert recall_at_k(FEATURES[:1], [0], [1, 2], gallery=FEATURES[1:], gallery_labels=[1, 1, 0]) == {1: 0.0, 2: 0.0}


def test_ids_similarity_ties_and_lone_queries_are_passed_on() -> None:
    features = [[1.0, 0], [1, 0], [5, 1]]
    gallery = {"gallery": [[1.0, 0], [1, 0]], "gallery_labels": [0, 1]}
    call = {"features": features, "labels": [0, 0, 7], "ks": [1], **gallery}
    fair = recall_at_k(**call)  # type: ignore[arg-type] # a dict of arguments
    assert fair == {1: pytest.approx(1 / 3)}
    assert recall_at_k(**call, ties="optimistic")[1] == pytest.approx(2 / 3)  # type: ignore[arg-type] # as above
    assert recall_at_k(**call, lone="exclude")[1] == pytest.approx(1 / 2)  # type: ignore[arg-type] # as above
    named = recall_at_k(**call, ids=["a", "b", "c"], gallery_ids=["a", "x"])  # type: ignore[arg-type] # as above
    assert named[1] == pytest.approx((0 + 1 / 2 + 0) / 3)
    with pytest.raises(DataError, match="1 of 3 queries"):
        recall_at_k(**call, lone="error")  # type: ignore[arg-type] # as above
    # From (1, 0), the longer vector (5, 1) of the other class has the larger product only.
    assert recall_at_k(LENGTHS, [0, 0, 1, 1], [1])[1] == 1
    assert recall_at_k(LENGTHS, [0, 0, 1, 1], [1], similarity="dot")[1] == 1 / 2


@pytest.mark.parametrize("k", [0, -1, 4, 10_000])
def test_k_stays_below_the_number_of_items(k: int) -> None:
    with pytest.raises(ValueError, match=f"K = {k}: must be at least 1 and below the gallery's size, 4"):
        recall_at_k(FEATURES, LABELS, [1, k])


def test_k_stays_below_the_gallerys_size() -> None:
    with pytest.raises(ValueError, match="below the gallery's size, 2"):
        recall_at_k(FEATURES, LABELS, [2], gallery=FEATURES[:2], gallery_labels=[0, 1])


def test_all_but_the_query_is_a_valid_k() -> None:
    assert recall_at_k(FEATURES, LABELS, [3]) == {3: 1.0}


def test_the_package_offers_the_function_itself() -> None:
    assert layerprobe.recall_at_k is from_module
    assert recall_at_k is from_module


def test_the_package_refuses_other_names() -> None:
    with pytest.raises(AttributeError, match=r"'layerprobe\.ranking' has no attribute 'recall_at'"):
        layerprobe.ranking.recall_at  # noqa: B018 - the look-up is the fact


def test_without_ks_they_are_those_of_the_papers_tables() -> None:
    features = np.random.default_rng(0).normal(size=(9, 2))
    assert list(recall_at_k(features, np.arange(9) % 2)) == [1, 2, 4, 8]


def test_the_docstrings_example_is_true() -> None:
    (example,) = doctest.DocTestFinder().find(recall_at_k, "recall_at_k", globs={})
    assert doctest.DocTestRunner().run(example) == doctest.TestResults(failed=0, attempted=5)
