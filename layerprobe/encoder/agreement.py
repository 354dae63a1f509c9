"""Whether exported files give the features of the probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.system.errors import NumericError

TOLERANCE = 1e-5  # of 1 - cosine, of similarities of neighbours, and of numbers whose signs become bits
_BEFORE_ROUNDING = 1e-4  # of numbers that become float16 or int8, as a share of the largest of their row
_LENGTHS = 1e-3  # of the ratio of two lengths, where the similarity depends on them
Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class CheckSamples:
    """What an export is checked on: what it takes, and the features that it should give of that.

    Args:
        name: `64 test images against the probe's features`.
        images: uint8 (N, H, W, C); None where there is no network.
        pooled: (N, D) float32, features before the map.
        features: (N, D') float32, float16 or int8, or uint8 of packed bits: those after it.
        similarity: by which they are searched.
        numbers: (N, D') those that are rounded to float16 or int8, or whose signs are the bits; None for float32.
    """

    name: str
    images: NDArray[np.uint8] | None
    pooled: NDArray[np.float32]
    features: Array
    similarity: str
    numbers: Array | None = None

    @property
    def dim(self) -> int:
        """Numbers, or bits, of an image's vector."""
        return int((self.features if self.numbers is None else self.numbers).shape[1])


@dataclass(frozen=True)
class FeatureAgreement:
    """How closely a file gives the expected features.

    Args:
        difference: the largest of any number; of float16, int8 and bits the share of those that differ.
        cosine: the least; None of float16, int8 and bits.
        compared: neighbours or bits that had to be the same, or float16 or int8 numbers.
    """

    difference: float
    cosine: float | None
    compared: int


def agreement(name: str, features: Array, expected: CheckSamples) -> FeatureAgreement:
    """Compare the features of a file with the expected ones.

    Args:
        features: as `expected.features`.

    Raises:
        NumericError: they differ by more than rounding may explain.
    """
    if features.shape != expected.features.shape or features.dtype != expected.features.dtype:
        difference = f"gives {features.dtype} {features.shape}, not {expected.features.dtype} {expected.features.shape}"
        raise NumericError(f"{name} {difference}")
    if expected.numbers is not None:
        compare = _compare_bits if features.dtype == np.uint8 else _compare_rounded
        return compare(name, features, expected.features, expected.numbers)
    return _compare_vectors(name, features, expected)


def _compare_bits(name: str, codes: Array, bits: Array, numbers: Array) -> FeatureAgreement:
    unlike: NDArray[np.uint8] = np.bitwise_xor(codes, bits)
    differ = np.unpackbits(unlike, axis=1)[:, : numbers.shape[1]].astype(bool)
    clear = np.abs(numbers) > TOLERANCE
    if wrong := int((differ & clear).sum()):
        raise NumericError(f"{name} gives {wrong:,} of {int(clear.sum()):,} bits wrong whose numbers are not near 0")
    return FeatureAgreement(float(differ.mean()), None, int(clear.sum()))


def _compare_rounded(name: str, codes: Array, expected: Array, numbers: Array) -> FeatureAgreement:
    """Check that each number is one that a number near the expected one is rounded to."""
    largest = np.abs(numbers).max(1, keepdims=True)
    if codes.dtype == np.int8:
        numbers, largest = numbers / np.where(largest == 0, 1, largest) * 127, np.where(largest == 0, 0, 127)
    low, high = (
        np.rint(end) if codes.dtype == np.int8 else end.astype(np.float16)
        for end in (numbers - _BEFORE_ROUNDING * largest, numbers + _BEFORE_ROUNDING * largest)
    )
    if wrong := int((~((low <= codes) & (codes <= high))).sum()):  # NaN, too
        raise NumericError(f"{name} gives {wrong:,} of {codes.size:,} numbers that rounding does not explain")
    return FeatureAgreement(float((codes != expected).mean()), None, codes.size)


def _compare_vectors(name: str, features: Array, expected: CheckSamples) -> FeatureAgreement:
    a, b = features.astype(np.float64), expected.features.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
    product = lengths[0] * lengths[1]
    both_zero = (lengths[0] == 0) & (lengths[1] == 0)
    cosines = np.where(both_zero, 1.0, (a * b).sum(1) / np.where(product == 0, 1, product))
    least = float(cosines.min())
    if not least >= 1 - TOLERANCE:  # NaN, too
        raise NumericError(f"{name} gives features whose cosine with the probe's is {least:.7f}, below 1 - {TOLERANCE}")
    longer = np.abs(lengths[0] - lengths[1]) > _LENGTHS * lengths[1]
    if longer.any() and expected.similarity != "cosine":
        raise NumericError(f"{name} gives features of other lengths than the probe's")
    compared = _compare_neighbours(name, a, b, expected.similarity)
    return FeatureAgreement(float(np.abs(a - b).max()), least, compared)


def _compare_neighbours(name: str, features: Array, expected: Array, similarity: str) -> int:
    """Check that the nearest neighbour of each row is the expected one, or as near as that within rounding.

    Returns:
        How many rows were compared.
    """
    if len(expected) < 3:
        return 0
    similar = _similarities(expected, similarity)
    nearest = similar.max(1)
    reached = similar[np.arange(len(similar)), _similarities(features, similarity).argmax(1)]
    other = nearest - reached > TOLERANCE * max(1.0, float(np.abs(nearest).max()))
    if wrong := int(other.sum()):
        raise NumericError(f"{name} gives other nearest neighbours for {wrong} of {len(expected)} images")
    return len(expected)


def _similarities(features: Array, similarity: str) -> Array:
    if similarity == "cosine":
        lengths = np.linalg.norm(features, axis=1, keepdims=True)
        features = features / np.where(lengths == 0, 1, lengths)
    products: Array = features @ features.T
    if similarity == "euclidean":
        squares = (features**2).sum(1)
        products = -np.sqrt(np.maximum(squares[:, None] + squares - 2 * products, 0))
    np.fill_diagonal(products, -np.inf)
    return products
