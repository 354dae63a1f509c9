from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.encoder.agreement import CheckSamples, agreement
from layerprobe.system.errors import NumericError

ANGLES = np.radians([0, 10, 15, 90])
VECTORS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1).astype(np.float32)


def turned(degrees: float) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """The vectors, the second one turned."""
    angles = ANGLES + np.radians([0, degrees, 0, 0])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def expected(
    features: NDArray[Any], similarity: str = "cosine", numbers: NDArray[np.float64] | None = None
) -> CheckSamples:
    return CheckSamples("4 vectors", None, np.empty((len(features), 0), np.float32), features, similarity, numbers)


def test_equal_features_agree() -> None:
    found = agreement("f", VECTORS, expected(VECTORS))
    assert (found.difference, found.compared) == (0, 4)
    assert found.cosine == pytest.approx(1)


def test_a_cosine_below_1_less_the_tolerance_is_refused() -> None:
    # cos(0.25 degrees) = 1 - 9.5e-6, cos(0.27 degrees) = 1 - 1.11e-5
    assert agreement("f", turned(0.25), expected(VECTORS)).cosine == pytest.approx(1 - 9.5e-6, abs=1e-7)
    with pytest.raises(NumericError, match="f gives features whose cosine with the probe's is 0.99998"):
        agreement("f", turned(0.27), expected(VECTORS))


def test_nan_is_refused() -> None:
    with pytest.raises(NumericError, match="cosine"):
        agreement("f", np.full_like(VECTORS, np.nan), expected(VECTORS))


def test_another_nearest_neighbour_is_refused() -> None:
    # at 0, 10 and 20.2 degrees the second one's nearest is the first; turned by 0.2 degrees, the third
    both = np.radians([[0, 10, 20.2], [0, 10.2, 20.2]])
    first, found = (np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32) for angles in both)
    with pytest.raises(NumericError, match="f gives other nearest neighbours for 1 of 3 images"):
        agreement("f", found, expected(first))


def test_any_of_equally_near_neighbours_agrees() -> None:
    # the second one is nearly as far from the first as from the third; a turn by 0.0001 degrees changes which is nearer
    both = np.radians([[0, 10, 20.0001], [0, 10.0001, 20.0001]])
    first, turned = (np.stack([np.cos(angles), np.sin(angles)], 1) for angles in both)
    assert agreement("f", turned, expected(first)).compared == 3


def test_lengths_count_unless_the_similarity_is_the_cosine() -> None:
    agreement("f", VECTORS * np.float32(1.01), expected(VECTORS))
    with pytest.raises(NumericError, match="other lengths"):
        agreement("f", VECTORS * np.float32(1.01), expected(VECTORS, "euclidean"))


def test_bits_may_differ_only_where_the_number_is_near_0() -> None:
    numbers = np.array([[1e-6, 0.5, -0.5]])
    bits = np.array([[0b11000000]], np.uint8)
    found = agreement("f", np.array([[0b01000000]], np.uint8), expected(bits, "hamming", numbers))
    assert found.difference == pytest.approx(1 / 3)
    assert (found.cosine, found.compared) == (None, 2)
    with pytest.raises(NumericError, match="1 of 2 bits wrong"):
        agreement("f", np.array([[0b11100000]], np.uint8), expected(bits, "hamming", numbers))


def test_codes_may_differ_only_where_the_number_is_near_the_middle_of_two() -> None:
    # of the largest, 127, shares of 1e-4 are 0.0127: 1.49 may be 1 or 2, 1.4 only 1
    numbers = np.array([[127.0, 1.49, 1.4]])
    codes = np.array([[127, 1, 1]], np.int8)
    found = agreement("f", np.array([[127, 2, 1]], np.int8), expected(codes, numbers=numbers))
    assert found.difference == pytest.approx(1 / 3)
    assert (found.cosine, found.compared) == (None, 3)
    with pytest.raises(NumericError, match="f gives 1 of 3 numbers that rounding does not explain"):
        agreement("f", np.array([[127, 1, 2]], np.int8), expected(codes, numbers=numbers))


def test_codes_are_compared_with_numbers_of_any_length() -> None:
    codes = np.array([[127, -64, 0], [0, 0, 0]], np.int8)
    numbers = np.array([[2e9, -1e9, 0], [0, 0, 0]])  # -127 / 2 = -63.5, to even
    assert agreement("f", codes, expected(codes, numbers=numbers)).difference == 0


def test_float16_may_differ_by_its_rounding() -> None:
    # 2^-10 apart at 1: 1.00048 is nearly the middle, 1.0002 is not
    numbers = np.array([[1.00048, 1.0002]])
    rounded = numbers.astype(np.float16)
    upper = np.array([[1 + 2.0**-10, 1]], np.float16)
    assert agreement("f", upper, expected(rounded, numbers=numbers)).difference == 1 / 2
    with pytest.raises(NumericError, match="1 of 2 numbers"):
        agreement("f", upper[:, ::-1], expected(rounded, numbers=numbers))
    with pytest.raises(NumericError, match="2 of 2 numbers"):
        agreement("f", np.full((1, 2), np.nan, np.float16), expected(rounded, numbers=numbers))


def test_another_shape_is_refused() -> None:
    with pytest.raises(NumericError, match=r"f gives float32 \(3, 2\), not float32 \(4, 2\)"):
        agreement("f", VECTORS[:3], expected(VECTORS))
