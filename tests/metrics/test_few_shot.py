from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.measure.analysis import score_metric
from layerprobe.metrics.few_shot import Prototypes
from layerprobe.ranking import retrieval
from layerprobe.system.errors import DataError, NumericError
from layerprobe.values.layers import NO_REDUCTION, LayerKey, RankedLayer
from layerprobe.values.retrieval import Retrieval, SearchRules
from layerprobe.values.scores import Subject


def on_circle(*degrees: float) -> NDArray[np.float64]:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], 1)


def made(features: Any, labels: Any, **keywords: Any) -> Retrieval:
    return retrieval(np.asarray(features), labels, **keywords)


def values(n: int, features: Any, labels: Any, **keywords: Any) -> list[float]:
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
    assert values(3, queries, labels, gallery=gallery, gallery_labels=gallery_labels) == expected
    assert 0 < sum(expected) < 40


def test_a_query_is_never_its_own_prototype() -> None:
    # Of class 0 the other image lies opposite, further than class 1; of class 1 it is a degree away.
    given = made(on_circle(0, 180, 90, 91), [0, 0, 1, 1])
    assert Prototypes(1).of_queries(given)["few-shot@1"].tolist() == [0, 0, 1, 1]
    assert Prototypes(1)(given) == {"few-shot@1": 0.5}


def test_the_query_itself_in_its_gallery_does_not_count() -> None:
    named: dict[str, Any] = {"gallery": on_circle(0, 180, 90, 91), "gallery_labels": [0, 0, 1, 1]}
    named |= {"ids": ["a"], "gallery_ids": ["a", "b", "c", "d"]}
    assert values(1, on_circle(0), [0], **named) == [0]


def test_each_draw_takes_other_images() -> None:
    # 0 degrees is right where the prototype of its class is at 5 degrees, not at 180: in about half of the draws.
    shares = values(1, on_circle(0), [0], gallery=on_circle(5, 180, 90, 90), gallery_labels=[0, 0, 1, 1])
    assert shares[0] in [i / 10 for i in range(2, 9)]


def test_the_draws_of_a_class_do_not_depend_on_the_others() -> None:
    rng = np.random.default_rng(1)
    features, labels = rng.standard_normal((40, 3)), np.repeat([0, 1, 2, 3], 10)
    features[:30, 0] = np.abs(features[:30, 0]) + 9  # class 3 lies opposite, near no other query
    features[30:] = [-1, 0, 0]
    assert values(2, features, labels)[:30] == values(2, features[:30], labels[:30])


def test_a_collapsed_layer_has_one_over_the_number_of_classes() -> None:
    assert values(2, np.ones((12, 3)), np.repeat([0, 1, 2], 4)) == pytest.approx([1 / 3] * 12)


def test_prototypes_that_cancel_out_have_cosine_0_with_everything() -> None:
    # At 180 degrees class 1 has the cosine of 100 degrees, below 0. The mean of 90 and -90 degrees is (6e-17, 0), whose
    # direction, 0 degrees, would be worse still.
    gallery, labels = on_circle(90, -90, 80, 80), [0, 0, 1, 1]
    assert values(2, on_circle(180), [0], gallery=gallery, gallery_labels=labels) == [1]


def test_small_classes_are_left_out_with_a_note() -> None:
    given = made(on_circle(0, 1, 90, 91, 45, 44, 200), [0, 0, 1, 1, 2, 2, 3])
    subject = Subject("run", "x", 0, 0, "test", RankedLayer(LayerKey("fc6", "none"), NO_REDUCTION, "cosine"))
    scored = score_metric(Prototypes(1), ["few-shot@1"], given, subject)
    assert np.isnan(scored.values["few-shot@1"]).tolist() == [False] * 6 + [True]
    assert scored.scores[0].value == 1.0
    assert scored.scores[0].notes == ("mean of 10 draws", "1 classes of fewer than 2 images left out")


def test_packed_bits_are_vectors_of_plus_and_minus_1() -> None:
    rng = np.random.default_rng(2)
    bits, labels = rng.integers(2, size=(30, 16)), np.repeat([0, 1, 2], 10)
    assert values(3, np.packbits(bits, axis=1), labels, similarity="hamming") == values(3, 2.0 * bits - 1, labels)


def test_two_classes_need_enough_images() -> None:
    with pytest.raises(DataError, match="two classes need 6 images, 1 have them"):
        values(5, np.eye(8), [0] * 6 + [1] * 2)


def test_lists_of_right_items_are_refused() -> None:
    with pytest.raises(DataError, match="classes do not say which items are right"):
        values(1, on_circle(0, 1, 2), [0, 0, 1], rules=SearchRules(positives=np.array([[0, 1]])))


def test_sets_of_labels_are_refused() -> None:
    with pytest.raises(DataError, match="classes do not say which items are right"):
        values(1, on_circle(0, 1, 2), [0, 0, 1], rules=SearchRules(label_sets=np.array([[0, 0], [1, 0]])))


def test_a_row_that_is_not_finite_is_refused() -> None:
    with pytest.raises(NumericError, match="1 of 4"):
        values(1, [[np.inf, 0], [1, 0], [0, 1], [0, 2]], [0, 0, 1, 1])
