from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.neighbors import KNeighborsClassifier

from layerprobe.metrics.knn import WeightedVotes
from layerprobe.ranking import retrieval
from layerprobe.system.errors import DataError, NumericError, RecipeError
from layerprobe.values.retrieval import SearchRules
from layerprobe.workflow.probe.measures import build_measures


def on_circle(*degrees: float) -> NDArray[np.float64]:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], 1)


def values(k: int, features: Any, labels: Any, **keywords: Any) -> list[float]:
    made = retrieval(np.asarray(features), labels, **keywords)
    found: list[float] = WeightedVotes(k).of_queries(made)[f"kNN@{k}"].tolist()
    assert WeightedVotes(k)(made) == {f"kNN@{k}": pytest.approx(np.mean(found))}
    return found


@pytest.mark.parametrize("k", [1, 10, 59])
def test_in_a_gallery_it_is_what_scikit_learn_gives(k: int) -> None:
    rng = np.random.default_rng(0)
    gallery, queries = rng.standard_normal((60, 8)), rng.standard_normal((40, 8))
    labels, gallery_labels = rng.integers(5, size=40), rng.integers(5, size=60)
    theirs = KNeighborsClassifier(k, weights=lambda d: np.exp((1 - d) / 0.07), metric="cosine", algorithm="brute")
    expected = theirs.fit(gallery, gallery_labels).predict(queries) == labels
    assert values(k, queries, labels, gallery=gallery, gallery_labels=gallery_labels) == expected.tolist()


def test_within_a_split_a_query_does_not_vote_for_itself() -> None:
    rng = np.random.default_rng(1)
    features, labels = rng.standard_normal((30, 4)), rng.integers(3, size=30)
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    expected = []
    for query in range(30):
        others = sorted((i for i in range(30) if i != query), key=lambda i: -units[query] @ units[i])
        votes = dict.fromkeys(range(3), 0.0)
        for i in others[:7]:
            votes[labels[i]] += np.exp(units[query] @ units[i] / 0.07)
        expected.append(float(max(votes, key=votes.__getitem__) == labels[query]))
    assert values(7, features, labels) == expected


@pytest.mark.parametrize(("behind", "right"), [(0.0480, 0.0), (0.0490, 1.0)])
def test_one_near_item_outvotes_two_that_are_ln_2_times_the_temperature_behind(behind: float, right: float) -> None:
    # 2 exp((s - behind) / 0.07) = exp(s / 0.07) where behind = 0.07 ln 2 = 0.04852.
    degrees = np.degrees(np.arccos(1 - behind))
    gallery, labels = on_circle(0, degrees, -degrees, 180), [7, 8, 8, 8]
    assert values(3, on_circle(0), [7], gallery=gallery, gallery_labels=labels) == [right]


def test_of_classes_with_equally_many_votes_one_is_drawn() -> None:
    assert values(2, on_circle(0), [1], gallery=on_circle(10, -10, 90), gallery_labels=[1, 2, 3]) == [0.5]


def test_tied_neighbours_vote_in_the_order_of_their_rows() -> None:
    # Collapsed: all see the three other items of the lowest rows, two at least of class 0.
    assert values(3, np.ones((8, 2)), [0, 0, 0, 0, 1, 1, 1, 1]) == [1, 1, 1, 1, 0, 0, 0, 0]


def test_a_duplicate_of_the_query_votes() -> None:
    assert values(1, on_circle(0, 0, 5, 5), [0, 0, 1, 1]) == [1, 1, 1, 1]


def test_a_query_without_another_item_of_its_class_counts_as_wrong() -> None:
    assert values(2, on_circle(0, 10, 12, 14), [9, 0, 0, 0]) == [0, 1, 1, 1]


def test_the_query_itself_in_its_gallery_does_not_vote() -> None:
    named: dict[str, Any] = {"ids": ["a"], "gallery_ids": ["a", "b", "c"]}
    assert values(1, on_circle(0), [0], gallery=on_circle(0, 10, 50), gallery_labels=[0, 1, 0], **named) == [0]


def test_what_the_rules_take_out_does_not_vote() -> None:
    rules = SearchRules(groups=np.array([0, 0, 1, 1]))
    # 0 degrees: the item at 1 degree is of its class and group, so that the nearest is of class 1.
    assert values(1, on_circle(0, 1, 2, 40), [0, 0, 1, 0], rules=rules)[0] == 0
    out = SearchRules(ignored=np.array([[0, 1], [0, 2], [0, 3]]))
    assert values(1, on_circle(0, 1, 2, 40), [0, 0, 1, 0], rules=out)[0] == 0


def test_packed_bits_vote_as_vectors_of_plus_and_minus_1() -> None:
    rng = np.random.default_rng(2)
    bits, labels = rng.integers(2, size=(40, 64)), rng.integers(4, size=40)
    assert values(9, np.packbits(bits, axis=1), labels, similarity="hamming") == values(9, 2.0 * bits - 1, labels)


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
def test_the_cosine_decides_whatever_the_features_are_searched_by(similarity: Any) -> None:
    rng = np.random.default_rng(3)
    features, labels = rng.standard_normal((30, 4)) * np.arange(1, 31)[:, None], rng.integers(3, size=30)
    assert values(5, features, labels, similarity=similarity) == values(5, features, labels)


def test_a_row_that_is_not_finite_is_refused() -> None:
    with pytest.raises(NumericError, match="1 of 3"):
        values(1, [[np.nan, 0], [1, 0], [0, 1]], [0, 0, 1])


def test_lists_of_right_items_are_refused() -> None:
    with pytest.raises(DataError, match="classes do not say which items are right"):
        values(1, on_circle(0, 1, 2), [0, 0, 1], rules=SearchRules(positives=np.array([[0, 1]])))


def test_sets_of_labels_are_refused() -> None:
    with pytest.raises(DataError, match="classes do not say which items are right"):
        values(1, on_circle(0, 1, 2), [0, 0, 1], rules=SearchRules(label_sets=np.array([[0, 0], [1, 0]])))


def test_k_is_below_the_number_of_images() -> None:
    with pytest.raises(DataError, match="K = 3 is not below the 3 images searched"):
        values(3, on_circle(0, 1, 2), [0, 0, 1])


@pytest.mark.parametrize("images", [200, 201])
def test_a_probe_refuses_k_as_for_recall(images: int) -> None:
    def build() -> Any:
        return build_measures(["kNN@200"], [1], {"test": images}, options={}, may_drop=True)

    if images > 200:
        assert build().names == ["R@1", "kNN@200"]
    else:
        with pytest.raises(RecipeError, match="K = 200 is not below the 200 images of the test split"):
            build()
