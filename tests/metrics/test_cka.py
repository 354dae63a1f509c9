from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from layerprobe.metrics import cka
from layerprobe.metrics.cka import cka_vector
from layerprobe.system.errors import DataError, NumericError
from tests.metrics.oracles import direct_cka, hsic_1, units

Array = NDArray[np.float64]
RNG = np.random.default_rng


def biased_cka(x: Array, y: Array) -> float:
    x, y = x - x.mean(0), y - y.mean(0)
    return float(
        np.linalg.norm(x.T @ y) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)),
    )


def linear_cka(first: ArrayLike, second: ArrayLike, batch_size: int = 1000) -> float:
    """The product of two layers' vectors."""
    x = cka_vector(first, batch_size=batch_size, name="first")
    return float(x @ cka_vector(second, batch_size=batch_size, name="second"))


def layers(count: int, first: int, second: int, seed: int = 0) -> tuple[Array, Array]:
    """Two layers that share something, both off the origin."""
    rng = RNG(seed)
    x = rng.normal(size=(count, first)) + 3
    return x, x @ rng.normal(size=(first, second)) + rng.normal(size=(count, second))


@pytest.mark.parametrize("shape", [(40, 3, 5), (12, 30, 30), (4, 2, 2), (9, 2, 50)])
def test_it_is_the_direct_formula(shape: tuple[int, int, int]) -> None:
    x, y = layers(*shape)
    assert linear_cka(x, y) == pytest.approx(direct_cka(x, y), abs=1e-10)


@pytest.mark.parametrize("batch_size", [40, 63])
def test_a_single_batch_is_all_rows_at_once(batch_size: int) -> None:
    x, y = layers(40, 3, 5)
    assert linear_cka(x, y, batch_size=batch_size) == pytest.approx(direct_cka(x, y), abs=1e-10)


def test_batches_are_averaged_before_the_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = layers(23, 6, 5)
    parts = cka._batches(23, 5)
    assert [len(rows) for rows in parts] == [6, 6, 6, 5]
    u, v = units(x), units(y)
    xy, xx, yy = (np.mean([hsic_1(a[rows], b[rows]) for rows in parts]) for a, b in ((u, v), (u, u), (v, v)))
    assert linear_cka(x, y, batch_size=5) == pytest.approx(xy / np.sqrt(xx * yy), abs=1e-10)


@pytest.mark.parametrize("count", [4, 7, 8, 9, 1000])
def test_every_row_is_in_one_batch_of_at_least_the_size(count: int) -> None:
    parts = cka._batches(count, 4)
    assert sorted(np.concatenate(parts)) == list(range(count))
    assert min(map(len, parts)) >= 4


def test_batches_of_sorted_classes_hold_several_classes() -> None:
    classes = np.repeat(np.arange(10), 50)
    assert all(len(np.unique(classes[rows])) == 10 for rows in cka._batches(500, 100))


def test_batches_estimate_the_whole() -> None:
    x, y = layers(1000, 20, 20)
    assert linear_cka(x, y, batch_size=64) == pytest.approx(direct_cka(x, y), abs=0.01)


@pytest.mark.parametrize("batch_size", [1000, 8])
def test_rotation_and_the_lengths_of_rows_do_not_matter(batch_size: int) -> None:
    x, y = layers(30, 6, 5)
    rotation = np.linalg.qr(RNG(1).normal(size=(6, 6))).Q
    turned = RNG(2).uniform(1e-3, 1e3, (30, 1)) * x @ rotation
    assert linear_cka(turned, y, batch_size=batch_size) == pytest.approx(
        linear_cka(x, y, batch_size=batch_size), abs=1e-10
    )


def test_features_that_differ_in_length_alone_do_not_vary() -> None:
    x, y = layers(30, 6, 5)
    with pytest.raises(NumericError, match="^first: the features do not vary"):
        linear_cka(x[:1] * np.arange(1.0, 31)[:, None], y)


def test_a_zero_row_stays_zero() -> None:
    # As `test_by_hand`, with other lengths.
    assert linear_cka([[0], [0], [2], [7]], [[0], [1], [0], [3]]) == pytest.approx(-0.5)


@pytest.mark.parametrize("batch_size", [1000, 8])
def test_it_is_symmetric_and_1_for_equal_layers(batch_size: int) -> None:
    x, y = layers(30, 6, 5)
    assert linear_cka(x, y, batch_size=batch_size) == pytest.approx(linear_cka(y, x, batch_size=batch_size), abs=1e-12)
    assert linear_cka(x, 2 * x, batch_size=batch_size) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("batch_size", [1000, 50])
def test_independent_layers_share_nothing_on_average(batch_size: int) -> None:
    values, plain = [], []
    for seed in range(20):
        x, y = RNG(seed).normal(size=(2, 100, 400))
        values.append(linear_cka(x, y, batch_size=batch_size))
        plain.append(biased_cka(x, y))
    assert abs(np.mean(values)) < 0.01
    assert min(values) < 0 < max(values)
    assert min(plain) > 0.7


def test_by_hand() -> None:
    # Centred and times 4, the products of an item with the three others are 1 -1 -1 in the first layer and -1 1 -1 in
    # the second. Shifted to sum 0: 4/3 -2/3 -2/3 and -2/3 4/3 -2/3, whose product is -12/9, with themselves 24/9.
    assert linear_cka([[0], [0], [1], [1]], [[0], [1], [0], [1]]) == pytest.approx(-0.5)


def test_float32_is_computed_in_float64() -> None:
    x, y = (values.astype(np.float32) for values in layers(300, 8, 8))
    assert linear_cka(x, y) == pytest.approx(direct_cka(x.astype(np.float64), y.astype(np.float64)), abs=1e-10)


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e300])
def test_very_small_and_large_features(scale: float) -> None:
    x, y = layers(30, 6, 5)
    assert linear_cka(x * scale, y) == pytest.approx(linear_cka(x, y), abs=1e-10)


def test_the_features_are_left_as_they_are() -> None:
    x, y = layers(30, 6, 5)
    before = x.copy()
    linear_cka(x, y)
    assert (x == before).all()


@pytest.mark.parametrize("batch_size", [1000, 4])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_is_an_error_that_says_where(batch_size: int, bad: float) -> None:
    x, y = layers(30, 6, 5)
    y[3, 1] = y[7, 0] = y[7, 4] = bad
    with pytest.raises(NumericError, match="^second: 2 of 30 feature rows hold NaN or Inf"):
        linear_cka(x, y, batch_size=batch_size)


@pytest.mark.parametrize("batch_size", [1000, 4])
@pytest.mark.parametrize("value", [0.0, 0.1])
def test_features_that_do_not_vary_are_an_error_that_says_where(batch_size: int, value: float) -> None:
    x, y = layers(30, 6, 5)
    with pytest.raises(NumericError, match="^first: the features do not vary"):
        linear_cka(np.full_like(x, value), y, batch_size=batch_size)


@pytest.mark.parametrize("value", [np.nan, 0.1])
def test_a_vectors_error_has_the_name_given(value: float) -> None:
    with pytest.raises(NumericError, match="^fc6: "):
        cka_vector(np.full((8, 2), value), batch_size=4, name="fc6")


@pytest.mark.parametrize("batch_size", [1000, 8])
@pytest.mark.parametrize("features", [np.eye(16), np.eye(16)[:, :1], np.eye(16) * 0.1 + 0.7])
def test_items_all_equally_unlike_are_an_error(batch_size: int, features: Array) -> None:
    with pytest.raises(NumericError, match="^second: the features do not tell which items are alike"):
        linear_cka(RNG(0).normal(size=(16, 3)), features, batch_size=batch_size)


def test_a_batch_in_which_nothing_varies_is_no_error() -> None:
    x, y = layers(40, 6, 5)
    x[cka._batches(40, 10)[1]] = 0.3
    assert abs(linear_cka(x, y, batch_size=10)) < 1


def test_dimensions_that_are_0_change_nothing() -> None:
    x, y = layers(30, 6, 5)
    wider = np.concatenate([x, np.zeros((30, 4))], 1)
    assert linear_cka(wider, y) == pytest.approx(linear_cka(x, y), abs=1e-12)


def test_three_rows_are_too_few() -> None:
    with pytest.raises(DataError, match="linear CKA needs 4 rows, there are 3"):
        cka_vector(layers(3, 2, 2)[0], batch_size=4)


@pytest.mark.parametrize(
    ("features", "batch_size", "message"),
    [
        (np.ones(5), 4, r"fc6: expected \(N, D\), neither 0, got \(5,\)"),
        (np.ones((5, 0)), 4, r"fc6: expected \(N, D\), neither 0, got \(5, 0\)"),
        (np.ones((5, 2)), 3, "batch size 3: must be at least 4"),
    ],
)
def test_a_callers_mistakes(features: Array, batch_size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cka_vector(features, batch_size=batch_size, name="fc6")
