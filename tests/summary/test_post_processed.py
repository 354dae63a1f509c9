from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from layerprobe.summary.cells import Cells
from layerprobe.summary.post_processed import Processing, post_processed_sections, post_processing
from layerprobe.values.layers import RankedLayer
from tests.summary.made_up import CLASSES, FC6, POOL5

RAW, PCA, L2 = Processing("none", "cosine"), Processing("pca:8", "cosine", 8), Processing("l2", "cosine")
FC6_PCA, POOL5_PCA = PCA.of(FC6.layer), PCA.of(POOL5.layer)
LAYERS = [POOL5, POOL5_PCA, FC6, FC6_PCA]


def cells(values: Mapping[RankedLayer, float], epoch: int = 3, known: Cells | None = None) -> Cells:
    """40 classes of one query each, whose values scatter by 0.02 around a mean that is exact."""
    rng = np.random.default_rng(0)
    made = {}
    for ranked, value in values.items():
        scatter = 0.02 * rng.standard_normal(CLASSES)
        made[ranked] = value + scatter - scatter.mean()
    return (known or Cells()).with_epoch(epoch, made, np.arange(CLASSES))


def test_post_processing_is_compared_with_those_of_their_dimension() -> None:
    processings = [RAW, PCA, L2, Processing("pca:4", "cosine", 4)]
    layers = [processing.of(layer.layer) for layer in (POOL5, FC6) for processing in processings]
    found = post_processed_sections(layers, processings, {"test": cells(dict.fromkeys(layers, 0.5))})
    assert [(each.dim, [processing.post_processing for processing in each.processings]) for each in found] == [
        (4, ["none", "pca:4"]),
        (8, ["none", "pca:8"]),
        (None, ["none", "l2"]),
    ]


def test_without_post_processing_there_is_nothing_to_compare() -> None:
    assert post_processed_sections([POOL5, FC6], [RAW], {"test": cells({POOL5: 0.5, FC6: 0.5})}) == ()


def test_values_are_of_the_last_epoch_at_which_a_layer_is_post_processed() -> None:
    known = cells({POOL5: 0.5, POOL5_PCA: 0.6}, epoch=3, known=cells({POOL5: 0.3, POOL5_PCA: 0.4}, epoch=1))
    (found,) = post_processed_sections(LAYERS, [RAW, PCA], {"test": cells({POOL5: 0.9}, epoch=7, known=known)})
    assert found.epoch == 3
    assert found.values["test"] == pytest.approx({POOL5: 0.5, POOL5_PCA: 0.6})


def test_the_best_layer_of_each_post_processing_is_chosen_on_validation() -> None:
    test = cells({POOL5: 0.7, POOL5_PCA: 0.7, FC6: 0.6, FC6_PCA: 0.9})
    validation = cells({POOL5: 0.5, POOL5_PCA: 0.9, FC6: 0.6, FC6_PCA: 0.6})
    (found,) = post_processed_sections(LAYERS, [RAW, PCA], {"validation": validation, "test": test})
    best = {processing: found.best(processing) for processing in (RAW, PCA)}
    assert {processing.post_processing: (b.split, found.layers[b.place]) for processing, b in best.items() if b} == {
        "none": ("validation", FC6.layer),
        "pca:8": ("validation", POOL5.layer),
    }
    assert found.indistinguishable == {RAW: (), PCA: ()}


RANDOM = Processing("random:8x5", "cosine", 8, draws=5)


def test_post_processing_is_chosen_for_each_layer_without_test() -> None:
    validation = cells({POOL5: 0.7, POOL5_PCA: 0.6, FC6: 0.5, FC6_PCA: 0.6})
    test = cells({POOL5: 0.6, POOL5_PCA: 0.9, FC6: 0.5, FC6_PCA: 0.8})
    found = post_processing(LAYERS, [RAW, PCA], {"validation": validation, "test": test}, "validation")
    assert found is not None
    assert [layer.ranked for layer in found.layers] == [POOL5, FC6_PCA]
    assert [layer.value for layer in found.layers] == pytest.approx([0.7, 0.6])
    assert [layer.test for layer in found.layers] == pytest.approx([0.6, 0.8])
    assert found.indistinguishable == ()  # 0.7 and 0.6 on validation
    gain = found.layers[1].gain
    assert gain is not None
    assert gain.value == pytest.approx(0.3)
    # 40 differences that scatter by 0.028: 0.3 +- 2 x 0.0045
    assert (gain.low, gain.high) == pytest.approx((0.291, 0.309), abs=0.003)


def test_the_mean_of_draws_cannot_be_chosen() -> None:
    values = cells({POOL5: 0.5, RANDOM.of(POOL5.layer): 0.9, POOL5_PCA: 0.6})
    layers = [POOL5, POOL5_PCA, RANDOM.of(POOL5.layer)]
    found = post_processing(layers, [RAW, PCA, RANDOM], {"validation": values}, "validation")
    assert found is not None
    assert [layer.ranked for layer in found.layers] == [POOL5_PCA]


def test_nothing_is_chosen_where_no_post_processing_is_measured_on_the_selection_split() -> None:
    splits = {"validation": cells({POOL5: 0.5}), "test": cells({POOL5: 0.5, POOL5_PCA: 0.6})}
    found = post_processing(LAYERS, [RAW, PCA], splits, "validation")
    assert found is None


@pytest.mark.parametrize("first", ["cosine", "dot"])
def test_the_gain_is_over_the_layer_compared_in_the_same_way(first: str) -> None:
    cosine, dot = FC6, replace(FC6, similarity="dot")
    rows = {cosine: 0.5, dot: 0.1} if first == "cosine" else {dot: 0.1, cosine: 0.5}
    splits = {"validation": cells({FC6_PCA: 0.9} | rows), "test": cells(rows | {FC6_PCA: 0.8})}
    processings = [RAW, replace(RAW, similarity="dot"), PCA]
    found = post_processing([*rows, FC6_PCA], processings, splits, "validation")
    assert found is not None
    assert found.layers[0].gain is not None
    assert found.layers[0].gain.value == pytest.approx(0.3)


def test_what_is_fitted_with_the_classes_of_train_is_not_chosen_on_them() -> None:
    supervised = Processing("lda:8", "cosine", 8, needs_labels=True)
    layers = [FC6, FC6_PCA, supervised.of(FC6.layer)]
    values = {FC6: 0.5, FC6_PCA: 0.6, layers[2]: 0.9}
    chosen = {}
    for split in ("train", "validation"):
        found = post_processing(layers, [RAW, PCA, supervised], {split: cells(values)}, split)
        assert found is not None
        chosen[split] = [layer.ranked for layer in found.layers]
    assert chosen == {"train": [FC6_PCA], "validation": [layers[2]]}
