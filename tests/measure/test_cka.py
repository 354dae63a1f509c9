from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.measure import cka
from layerprobe.measure.cka import EpochFeatures, epoch_cka, layer_cka, run_cka
from layerprobe.system.errors import DataError
from layerprobe.values.layers import LayerKey
from layerprobe.values.scores import Matrix
from tests.metrics.oracles import direct_cka

LAYERS = [LayerKey("pool1", "max"), LayerKey("pool1", "avg"), LayerKey("fc6", "none")]


@pytest.fixture
def stored() -> dict[tuple[int, LayerKey], NDArray[np.float32]]:
    """Features of 40 images at three layers and epochs 0, 2 and 3, all having something in common."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(40, 5))
    return {
        (epoch, layer): (shared @ rng.normal(size=(5, 4)) + rng.normal(size=(40, 4))).astype(np.float32)
        for epoch in (0, 2, 3)
        for layer in LAYERS
    }


Stored = dict[tuple[int, LayerKey], NDArray[np.float32]]


def of_layers(stored: Stored) -> Matrix:
    return layer_cka(EpochFeatures("one", 3, LAYERS, lambda layer: stored[3, layer]), split="test")


def of_epochs(stored: Stored) -> Matrix:
    epochs = sorted({epoch for epoch, _ in stored})
    layers = {epoch: [layer for layer in LAYERS if (epoch, layer) in stored] for epoch in epochs}
    return epoch_cka(layers, lambda epoch, layer: stored[epoch, layer], run="one", split="test")


def test_every_two_layers_are_compared(stored: Stored) -> None:
    matrix = of_layers(stored)
    expected = [[direct_cka(stored[3, a], stored[3, b]) for b in LAYERS] for a in LAYERS]
    assert np.array(matrix.values) == pytest.approx(np.array(expected), abs=1e-10)
    assert matrix.title == "linear CKA of the layers at epoch 3"
    assert max(value or 0.0 for row in matrix.values for value in row) <= 1
    assert (matrix.rows, matrix.row_axis) == (matrix.columns, matrix.column_axis)
    assert (matrix.run, matrix.split, matrix.n, matrix.notes) == ("one", "test", 40, ())


def test_every_epoch_is_compared_with_the_last(stored: Stored) -> None:
    matrix = of_epochs(stored)
    expected = [[direct_cka(stored[epoch, layer], stored[3, layer]) for epoch in (0, 2, 3)] for layer in LAYERS]
    assert np.array(matrix.values) == pytest.approx(np.array(expected), abs=1e-10)
    assert matrix.title == "linear CKA of each layer with itself at epoch 3"
    assert (matrix.columns, matrix.column_axis) == (("0", "2", "3"), "epoch")
    assert (matrix.rows, matrix.row_axis, matrix.notes) == (("pool1@max", "pool1@avg", "fc6"), "layer", ())


@pytest.mark.parametrize("measure", [of_layers, of_epochs])
def test_a_pool_is_named_where_the_layer_has_several(measure: Callable[[Stored], Matrix], stored: Stored) -> None:
    assert measure(stored).rows == ("pool1@max", "pool1@avg", "fc6")


def test_a_layer_with_nan_has_no_values(stored: Stored) -> None:
    stored[3, LayerKey("fc6", "none")][[1, 5], 2] = np.nan
    matrix = of_layers(stored)
    assert [[value is None for value in row] for row in matrix.values] == [[0, 0, 1], [0, 0, 1], [1, 1, 1]]
    assert matrix.notes == ("fc6: 2 of 40 feature rows hold NaN or Inf (epoch 3)",)


def test_a_layer_that_collapses_has_no_value_there(stored: Stored) -> None:
    for epoch in (0, 2):
        stored[epoch, LayerKey("fc6", "none")][:] = 0.1
    matrix = of_epochs(stored)
    assert [[value is None for value in row] for row in matrix.values] == [[0, 0, 0], [0, 0, 0], [1, 1, 0]]
    assert matrix.notes == ("fc6: the features do not vary (epochs 0, 2)",)


def test_a_layer_without_a_last_epoch_has_no_values_at_all(stored: Stored) -> None:
    stored[3, LayerKey("fc6", "none")][:] = 0.1
    matrix = of_epochs(stored)
    assert matrix.values[2] == (None, None, None)
    assert matrix.notes == ("fc6: the features do not vary (epoch 3)",)


def test_a_layer_that_was_not_probed_has_no_value(stored: Stored) -> None:
    del stored[0, LayerKey("pool1", "avg")]
    matrix = of_epochs(stored)
    assert [value is None for value in matrix.values[1]] == [True, False, False]
    assert matrix.notes == ("pool1@avg: not probed (epoch 0)",)


def test_a_layer_of_an_older_epoch_alone_is_left_out(stored: Stored) -> None:
    del stored[3, LayerKey("pool1", "avg")]
    assert of_epochs(stored).rows == ("pool1@max", "fc6")


def test_of_many_images_the_same_some_are_taken(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cka, "MAX_IMAGES", 30)
    layers, epochs = of_layers(stored), of_epochs(stored)
    assert layers.notes == epochs.notes == ("30 of 40 images, drawn at random",)
    assert layers.n == epochs.n == 30
    assert layers.values != of_layers({key: values[::-1] for key, values in stored.items()}).values
    # Were each layer's images others, even a copy of it would be unlike it.
    stored[3, LayerKey("pool1", "max")] = stored[3, LayerKey("fc6", "none")] * 2
    assert of_layers(stored).values[0][2] == pytest.approx(1)


def test_many_images_are_compared_in_batches_close_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    # the oracle takes time and memory with the square of the images: 600, of which 500 are compared
    monkeypatch.setattr(cka, "MAX_IMAGES", 500)
    monkeypatch.setattr(cka, "BATCH_SIZE", 64)
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(600, 20))
    layers = {name: shared @ rng.normal(size=(20, 20)) + rng.normal(size=(600, 20)) for name in LAYERS}
    own = EpochFeatures("", 0, LAYERS, lambda name: layers[name].astype(np.float32))
    matrix = layer_cka(own, split="test")
    assert matrix.values[0][1] == pytest.approx(direct_cka(layers[LAYERS[0]], layers[LAYERS[1]]), abs=0.01)


def test_too_few_images_are_an_error(stored: Stored) -> None:
    with pytest.raises(DataError, match="linear CKA needs 4 rows, there are 3"):
        of_layers({key: values[:3] for key, values in stored.items()})


def test_the_layers_of_two_runs_are_compared(stored: Stored) -> None:
    first = EpochFeatures("one", 3, LAYERS, lambda layer: stored[3, layer])
    second = EpochFeatures("two", 2, LAYERS[1:], lambda layer: stored[2, layer])
    matrix = run_cka(first, second, split="test")
    expected = [[direct_cka(stored[3, a], stored[2, b]) for b in LAYERS[1:]] for a in LAYERS]
    assert np.array(matrix.values) == pytest.approx(np.array(expected), abs=1e-10)
    assert (matrix.run, matrix.title) == ("one and two", "linear CKA of the layers of two runs")
    assert (matrix.row_axis, matrix.column_axis) == ("layer of one, epoch 3", "layer of two, epoch 2")
    assert (matrix.rows, matrix.columns) == (("pool1@max", "pool1@avg", "fc6"), ("pool1@avg", "fc6"))
    assert (matrix.n, matrix.notes) == (40, ())


def test_a_layer_of_either_run_that_has_no_number_is_told_with_its_run(stored: Stored) -> None:
    bad = dict(stored)
    bad[3, LAYERS[0]] = np.full((40, 4), np.nan, np.float32)
    sides = [EpochFeatures(run, 3, LAYERS, lambda layer: bad[3, layer]) for run in ("one", "two")]
    matrix = run_cka(*sides, split="test")
    assert np.array([[value is None for value in row] for row in matrix.values]).sum() == 5
    told = "pool1@max: 40 of 40 feature rows hold NaN or Inf (epoch 3)"
    assert matrix.notes == (f"one: {told}", f"two: {told}")


def test_the_weights_of_one_file_are_named_instead_of_an_epoch(stored: Stored) -> None:
    bad = dict(stored)
    bad[0, LAYERS[0]] = np.full((40, 4), np.nan, np.float32)
    given, trained = (
        EpochFeatures(run, epoch, LAYERS, lambda layer, epoch=epoch: bad[epoch, layer], weights)  # type: ignore[misc]
        for run, epoch, weights in (("given", 0, "weights of own.pth"), ("trained", 3, ""))
    )
    alone, both = layer_cka(given, split="test"), run_cka(given, trained, split="test")
    assert alone.title == "linear CKA of the layers with weights of own.pth"
    assert alone.notes == ("pool1@max: 40 of 40 feature rows hold NaN or Inf (weights of own.pth)",)
    assert (both.row_axis, both.column_axis) == ("layer of given, weights of own.pth", "layer of trained, epoch 3")
