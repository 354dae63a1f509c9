from __future__ import annotations

from dataclasses import replace

import pytest

from layerprobe.summary.processed import post_processing
from layerprobe.summary.reduced import PostProcessing
from tests.summary.made_up import FC6, POOL5
from tests.summary.test_reduced import FC6_PCA, LAYERS, PCA, POOL5_PCA, RAW, cells

RANDOM = PostProcessing("random:8x5", "cosine", 8, draws=5)


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


def test_nothing_is_chosen_where_no_reduction_is_measured_on_the_choosing_split() -> None:
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
