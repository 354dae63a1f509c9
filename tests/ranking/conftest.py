"""Sets that ranking must not stumble over, and an independent oracle: two loops, one pair at a time."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.values.retrieval import Ranks

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


@pytest.fixture(scope="session", params=["torch", "faiss"])
def backend(request: pytest.FixtureRequest) -> Any:
    if request.param == "faiss":
        request.getfixturevalue("faiss")
    return request.param


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Of random numbers, another one for each case of a test: sizes and classes differ from case to case."""
    return zlib.crc32(request.node.name.encode())


def counts(found: Ranks) -> list[tuple[int, int, int]]:
    assert (found.closer == found.closer_high).all()
    return list(zip(found.closer.tolist(), found.tied_negatives.tolist(), found.tied_positives.tolist(), strict=True))


def alike(a: Array, b: Array, similarity: str) -> float:
    if similarity == "hamming":
        return -float(np.unpackbits(a.astype(np.uint8) ^ b.astype(np.uint8)).sum())
    if similarity == "euclidean":
        return -float(((a - b) ** 2).sum())
    if similarity == "dot":
        return float(a @ b)
    lengths = float(np.sqrt(a @ a) * np.sqrt(b @ b))
    return float(a @ b) / lengths if lengths else 0.0


def window(query: Array, gallery: Array, similarity: str) -> float:
    if similarity == "hamming":
        return 0.0
    if similarity == "cosine":
        return 1e-12
    if similarity == "dot":
        return 1e-12 * float(np.linalg.norm(query) * np.linalg.norm(gallery, axis=1).max())
    centre = gallery.mean(0)
    return 1e-12 * float(np.linalg.norm(query - centre) + np.linalg.norm(gallery - centre, axis=1).max()) ** 2


def loop(
    features: Array, labels: Labels, gallery: Array, gallery_labels: Labels, own: list[int], similarity: str
) -> list[tuple[int, int, int]]:
    found = []
    for query, label, itself in zip(features, labels, own, strict=True):
        others = [
            (alike(query, item, similarity), other == label)
            for j, (item, other) in enumerate(zip(gallery, gallery_labels, strict=True))
            if j != itself
        ]
        positives = [value for value, same in others if same]
        negatives = [value for value, same in others if not same]
        if not positives:
            found.append((len(negatives), 0, 0))
            continue
        nearest, width = max(positives), window(query, gallery, similarity)
        found.append(
            (
                sum(value > nearest + width for value in negatives),
                sum(abs(value - nearest) <= width for value in negatives),
                sum(value >= nearest - width for value in positives),
            )
        )
    return found


Kind = Callable[[np.random.Generator, Labels, int], Array]


def clustered(rng: np.random.Generator, labels: Labels, d: int) -> Array:
    return rng.normal(size=(labels.max() + 1, d))[labels] + 0.6 * rng.normal(size=(len(labels), d))


def duplicated(rng: np.random.Generator, labels: Labels, d: int) -> Array:
    few = rng.normal(size=(max(2, len(labels) // 3), d))
    return few[rng.integers(len(few), size=len(labels))]


KINDS: dict[str, Kind] = {
    "random": lambda rng, labels, d: rng.normal(size=(len(labels), d)),
    "clustered": clustered,
    "offset": lambda rng, labels, d: np.maximum(rng.normal(size=(len(labels), d)), 0) + 100,
    "unnormalised": lambda rng, labels, d: clustered(rng, labels, d) * rng.lognormal(0, 3, (len(labels), 1)),
    "duplicated": duplicated,
    "small whole numbers": lambda rng, labels, d: rng.integers(-1, 2, (len(labels), d)).astype(float),
    "signs": lambda rng, labels, d: np.sign(rng.normal(size=(len(labels), d))),
    "near-collapsed": lambda rng, labels, d: 1 + 1e-4 * rng.normal(size=(len(labels), d)),
    "collapsed": lambda rng, labels, d: np.ones((len(labels), d)) * rng.normal(size=d),
    "zero rows": lambda rng, labels, d: rng.normal(size=(len(labels), d)) * (rng.random((len(labels), 1)) < 0.7),
}


def rotated(rng: np.random.Generator, labels: Labels, d: int) -> Array:
    """A few large variances, in directions of no axis."""
    turned: Array = clustered(rng, labels, d) * 0.4 ** np.arange(d) @ np.linalg.qr(rng.normal(size=(d, d)))[0]
    return turned


def tied_but_for_the_rest(rng: np.random.Generator, labels: Labels, d: int) -> Array:
    """Equal in the leading directions, with differences of a few tie windows or of float32's rounding beside them."""
    leading = duplicated(rng, labels, d) * 10.0 ** -np.arange(d)
    size = rng.choice([1e-13, 1e-12, 1e-7, 1e-4])
    apart: Array = leading + size * rng.normal(size=leading.shape)
    return apart


SPECTRA: dict[str, Kind] = {
    "low rank": lambda rng, labels, d: clustered(rng, labels, 2) @ rng.normal(size=(2, d)),
    "rank one": lambda rng, labels, d: clustered(rng, labels, 1) @ rng.normal(size=(1, d)),
    "flat": lambda rng, labels, d: rng.normal(size=(len(labels), d)),
    "rotated": rotated,
    "near-ties across the truncation": tied_but_for_the_rest,
    # All residuals point the same way.
    "tight": lambda rng, labels, d: np.c_[10 * clustered(rng, labels, 2), np.full((len(labels), d), rng.normal())],
    "within rounding": lambda rng, labels, d: 1 + 1e-7 * rng.normal(size=(len(labels), d)),
}


def exponential_labels(rng: np.random.Generator, n: int, classes: int) -> Labels:
    """Classes of very different sizes, singletons among them; neither sorted nor from 0."""
    return rng.choice(classes, n, p=(p := 0.6 ** np.arange(classes)) / p.sum()) * 7 - 20


def make(kind: str, rng: np.random.Generator, labels: Labels, d: int) -> Array:
    return (KINDS | SPECTRA)[kind](rng, np.unique(labels, return_inverse=True)[1], d)
