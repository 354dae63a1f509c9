from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score
from sklearn.neighbors import KNeighborsClassifier

from layerprobe.measure.analysis import score_metric
from layerprobe.metrics.classification import Accuracy, Prototypes, WeightedVotes
from layerprobe.ranking import retrieval
from layerprobe.system.errors import DataError, NumericError, RecipeError
from layerprobe.values.layers import NO_POST_PROCESSING, LayerKey, RankedLayer
from layerprobe.values.retrieval import Classifier, Retrieval, SearchRules
from layerprobe.values.scores import Subject
from layerprobe.workflow.probe.measures import build_measures

CLASSES = np.array([2, 5, 7])


def given(features: torch.Tensor, labels: list[int], weight: torch.Tensor) -> Retrieval:
    made = retrieval(features.numpy(), np.array(labels))
    return replace(made, classifier=Classifier(lambda rows: rows @ weight.T, CLASSES))


def test_it_is_scikit_learns_of_the_largest_logit() -> None:
    generator = torch.Generator().manual_seed(0)
    features, weight = torch.randn(9000, 4, generator=generator), torch.randn(3, 4, generator=generator)
    labels = CLASSES[torch.randint(3, (9000,), generator=generator).numpy()]
    wanted = accuracy_score(labels, CLASSES[(features @ weight.T).argmax(1).numpy()])
    assert Accuracy()(given(features, labels.tolist(), weight))["accuracy"] == pytest.approx(wanted, abs=1e-12)


def test_equal_logits_count_by_chance() -> None:
    features = torch.ones(4, 2)
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])  # the first two tie
    assert Accuracy()(given(features, [2, 5, 7, 7], weight))["accuracy"] == (0.5 + 0.5) / 4


def test_collapsed_logits_score_one_of_c() -> None:
    assert Accuracy()(given(torch.ones(3, 2), [2, 5, 7], torch.zeros(3, 2)))["accuracy"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("labels", [[2, 3], [1, 2], [9, 2]])
def test_classes_that_were_not_trained_have_none(labels: list[int]) -> None:
    assert Accuracy()(given(torch.ones(2, 2), labels, torch.ones(3, 2))) == {}


def test_a_layer_without_a_classifier_has_none() -> None:
    assert Accuracy()(retrieval(np.ones((2, 2), np.float32), np.array([2, 2]))) == {}


def test_logits_that_are_not_finite_are_told() -> None:
    weight = torch.full((3, 2), torch.inf)
    with pytest.raises(NumericError, match="a logit is not finite"):
        Accuracy()(given(torch.ones(2, 2), [2, 5], weight))


def on_circle(*degrees: float) -> NDArray[np.float64]:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], 1)


def shares_of_votes(k: int, features: Any, labels: Any, **keywords: Any) -> list[float]:
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
    assert shares_of_votes(k, queries, labels, gallery=gallery, gallery_labels=gallery_labels) == expected.tolist()


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
    assert shares_of_votes(7, features, labels) == expected


@pytest.mark.parametrize(("behind", "right"), [(0.0480, 0.0), (0.0490, 1.0)])
def test_one_near_item_outvotes_two_that_are_ln_2_times_the_temperature_behind(behind: float, right: float) -> None:
    # 2 exp((s - behind) / 0.07) = exp(s / 0.07) where behind = 0.07 ln 2 = 0.04852.
    degrees = np.degrees(np.arccos(1 - behind))
    gallery, labels = on_circle(0, degrees, -degrees, 180), [7, 8, 8, 8]
    assert shares_of_votes(3, on_circle(0), [7], gallery=gallery, gallery_labels=labels) == [right]


def test_of_classes_with_equally_many_votes_one_is_drawn() -> None:
    assert shares_of_votes(2, on_circle(0), [1], gallery=on_circle(10, -10, 90), gallery_labels=[1, 2, 3]) == [0.5]


def test_tied_neighbours_vote_in_the_order_of_their_rows() -> None:
    # Collapsed: all see the three other items of the lowest rows, two at least of class 0.
    assert shares_of_votes(3, np.ones((8, 2)), [0, 0, 0, 0, 1, 1, 1, 1]) == [1, 1, 1, 1, 0, 0, 0, 0]


def test_a_duplicate_of_the_query_votes() -> None:
    assert shares_of_votes(1, on_circle(0, 0, 5, 5), [0, 0, 1, 1]) == [1, 1, 1, 1]


def test_a_query_without_another_item_of_its_class_counts_as_wrong() -> None:
    assert shares_of_votes(2, on_circle(0, 10, 12, 14), [9, 0, 0, 0]) == [0, 1, 1, 1]


def test_the_query_itself_in_its_gallery_does_not_vote() -> None:
    named: dict[str, Any] = {"ids": ["a"], "gallery_ids": ["a", "b", "c"]}
    assert shares_of_votes(1, on_circle(0), [0], gallery=on_circle(0, 10, 50), gallery_labels=[0, 1, 0], **named) == [0]


def test_what_the_rules_take_out_does_not_vote() -> None:
    rules = SearchRules(groups=np.array([0, 0, 1, 1]))
    # 0 degrees: the item at 1 degree is of its class and group, so that the nearest is of class 1.
    assert shares_of_votes(1, on_circle(0, 1, 2, 40), [0, 0, 1, 0], rules=rules)[0] == 0
    out = SearchRules(ignored=np.array([[0, 1], [0, 2], [0, 3]]))
    assert shares_of_votes(1, on_circle(0, 1, 2, 40), [0, 0, 1, 0], rules=out)[0] == 0


def test_packed_bits_vote_as_vectors_of_plus_and_minus_1() -> None:
    rng = np.random.default_rng(2)
    bits, labels = rng.integers(2, size=(40, 64)), rng.integers(4, size=40)
    assert shares_of_votes(9, np.packbits(bits, axis=1), labels, similarity="hamming") == shares_of_votes(
        9, 2.0 * bits - 1, labels
    )


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
def test_the_cosine_decides_whatever_the_features_are_searched_by(similarity: Any) -> None:
    rng = np.random.default_rng(3)
    features, labels = rng.standard_normal((30, 4)) * np.arange(1, 31)[:, None], rng.integers(3, size=30)
    assert shares_of_votes(5, features, labels, similarity=similarity) == shares_of_votes(5, features, labels)


def test_votes_refuse_a_row_that_is_not_finite() -> None:
    with pytest.raises(NumericError, match="1 of 3"):
        shares_of_votes(1, [[np.nan, 0], [1, 0], [0, 1]], [0, 0, 1])


def test_votes_refuse_lists_of_right_items() -> None:
    with pytest.raises(DataError, match="classes do not say which items are right"):
        shares_of_votes(1, on_circle(0, 1, 2), [0, 0, 1], rules=SearchRules(positives=np.array([[0, 1]])))


def test_votes_refuse_sets_of_labels() -> None:
    with pytest.raises(DataError, match="classes do not say which items are right"):
        shares_of_votes(1, on_circle(0, 1, 2), [0, 0, 1], rules=SearchRules(label_sets=np.array([[0, 0], [1, 0]])))


def test_k_is_below_the_number_of_images() -> None:
    with pytest.raises(DataError, match="K = 3 is not below the 3 images searched"):
        shares_of_votes(3, on_circle(0, 1, 2), [0, 0, 1])


@pytest.mark.parametrize("images", [200, 201])
def test_a_probe_refuses_k_as_for_recall(images: int) -> None:
    def build() -> Any:
        return build_measures(["kNN@200"], [1], {"test": images}, options={}, may_drop=True)

    if images > 200:
        assert build().names == ["R@1", "kNN@200"]
    else:
        with pytest.raises(RecipeError, match="K = 200 is not below the 200 images of the test split"):
            build()


def made(features: Any, labels: Any, **keywords: Any) -> Retrieval:
    return retrieval(np.asarray(features), labels, **keywords)


def few_shot_values(n: int, features: Any, labels: Any, **keywords: Any) -> list[float]:
    found: list[float] = Prototypes(n).of_queries(made(features, labels, **keywords))[f"few-shot@{n}"].tolist()
    return found


def test_where_every_image_is_drawn_it_is_the_nearest_mean_of_unit_vectors() -> None:
    rng = np.random.default_rng(0)
    gallery, queries = rng.standard_normal((12, 5)), rng.standard_normal((40, 5))
    gallery_labels, labels = np.repeat([3, 7, 9, 11], 3), rng.choice([3, 7, 9, 11], 40)
    expected = []
    for query, label in zip(queries, labels, strict=True):
        cosines = {}
        for name in (3, 7, 9, 11):
            mean = sum(row / np.linalg.norm(row) for row in gallery[gallery_labels == name]) / 3
            cosines[name] = query @ mean / np.linalg.norm(query) / np.linalg.norm(mean)
        expected.append(float(max(cosines, key=cosines.__getitem__) == label))
    assert few_shot_values(3, queries, labels, gallery=gallery, gallery_labels=gallery_labels) == expected
    assert 0 < sum(expected) < 40


def test_a_query_is_never_its_own_prototype() -> None:
    # Of class 0 the other image lies opposite, further than class 1; of class 1 it is a degree away.
    given = made(on_circle(0, 180, 90, 91), [0, 0, 1, 1])
    assert Prototypes(1).of_queries(given)["few-shot@1"].tolist() == [0, 0, 1, 1]
    assert Prototypes(1)(given) == {"few-shot@1": 0.5}


def test_the_query_itself_in_its_gallery_does_not_count() -> None:
    named: dict[str, Any] = {"gallery": on_circle(0, 180, 90, 91), "gallery_labels": [0, 0, 1, 1]}
    named |= {"ids": ["a"], "gallery_ids": ["a", "b", "c", "d"]}
    assert few_shot_values(1, on_circle(0), [0], **named) == [0]


def test_each_draw_takes_other_images() -> None:
    # 0 degrees is right where the prototype of its class is at 5 degrees, not at 180: in about half of the draws.
    shares = few_shot_values(1, on_circle(0), [0], gallery=on_circle(5, 180, 90, 90), gallery_labels=[0, 0, 1, 1])
    assert shares[0] in [i / 10 for i in range(2, 9)]


def test_the_draws_of_a_class_do_not_depend_on_the_others() -> None:
    rng = np.random.default_rng(1)
    features, labels = rng.standard_normal((40, 3)), np.repeat([0, 1, 2, 3], 10)
    features[:30, 0] = np.abs(features[:30, 0]) + 9  # class 3 lies opposite, near no other query
    features[30:] = [-1, 0, 0]
    assert few_shot_values(2, features, labels)[:30] == few_shot_values(2, features[:30], labels[:30])


def test_a_collapsed_layer_has_one_over_the_number_of_classes() -> None:
    assert few_shot_values(2, np.ones((12, 3)), np.repeat([0, 1, 2], 4)) == pytest.approx([1 / 3] * 12)


def test_prototypes_that_cancel_out_have_cosine_0_with_everything() -> None:
    # At 180 degrees class 1 has the cosine of 100 degrees, below 0. The mean of 90 and -90 degrees is (6e-17, 0), whose
    # direction, 0 degrees, would be worse still.
    gallery, labels = on_circle(90, -90, 80, 80), [0, 0, 1, 1]
    assert few_shot_values(2, on_circle(180), [0], gallery=gallery, gallery_labels=labels) == [1]


def test_small_classes_are_left_out_with_a_note() -> None:
    given = made(on_circle(0, 1, 90, 91, 45, 44, 200), [0, 0, 1, 1, 2, 2, 3])
    subject = Subject("run", "x", 0, 0, "test", RankedLayer(LayerKey("fc6", "none"), NO_POST_PROCESSING, "cosine"))
    scored = score_metric(Prototypes(1), ["few-shot@1"], given, subject)
    assert np.isnan(scored.values["few-shot@1"]).tolist() == [False] * 6 + [True]
    assert scored.scores[0].value == 1.0
    assert scored.scores[0].notes == ("mean of 10 draws", "1 classes of fewer than 2 images left out")


def test_packed_bits_are_vectors_of_plus_and_minus_1() -> None:
    rng = np.random.default_rng(2)
    bits, labels = rng.integers(2, size=(30, 16)), np.repeat([0, 1, 2], 10)
    assert few_shot_values(3, np.packbits(bits, axis=1), labels, similarity="hamming") == few_shot_values(
        3, 2.0 * bits - 1, labels
    )


def test_two_classes_need_enough_images() -> None:
    with pytest.raises(DataError, match="two classes need 6 images, 1 have them"):
        few_shot_values(5, np.eye(8), [0] * 6 + [1] * 2)


def test_prototypes_refuse_lists_of_right_items() -> None:
    with pytest.raises(DataError, match="classes do not say which items are right"):
        few_shot_values(1, on_circle(0, 1, 2), [0, 0, 1], rules=SearchRules(positives=np.array([[0, 1]])))


def test_prototypes_refuse_sets_of_labels() -> None:
    with pytest.raises(DataError, match="classes do not say which items are right"):
        few_shot_values(1, on_circle(0, 1, 2), [0, 0, 1], rules=SearchRules(label_sets=np.array([[0, 0], [1, 0]])))


def test_prototypes_refuse_a_row_that_is_not_finite() -> None:
    with pytest.raises(NumericError, match="1 of 4"):
        few_shot_values(1, [[np.inf, 0], [1, 0], [0, 1], [0, 2]], [0, 0, 1, 1])
