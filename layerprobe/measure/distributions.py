"""How a layer's cosines and variance are distributed: histograms of pairs, spectra."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from layerprobe.metrics.cka import unit_rows
from layerprobe.system.errors import NumericError
from layerprobe.values.layers import RankedLayer
from layerprobe.values.retrieval import FloatArray
from layerprobe.values.views import Curve, Histogram

SAME, DIFFERENT = "same class", "different class"
# Cosines are counted by steps of this many to 1, and bins are made of whole steps.
STEPS = 1_000_000
# About so many bins take the middle 98 % of all pairs of a layer, and of the kind that is closest together; and in all.
_BINS, _FEWEST_BINS, _MOST_BINS = 40, 16, 400
# Cosines held at once: 32 MiB.
_BLOCK = 2**22
_ONE_BIN = (0, 2 * STEPS)


@dataclass(frozen=True, eq=False)
class LabelledFeatures:
    """The features of a split.

    Args:
        labels: (N,) class indices.
        folds: (N,) two images of different folds are no pair; None without folds.
    """

    features: NDArray[np.floating]
    labels: NDArray[np.integer]
    notes: tuple[str, ...] = ()
    folds: NDArray[np.integer] | None = None


Counts = dict[str, NDArray[np.int64]]  # kind of pairs -> how many have a cosine in each step from -1 to 1


def pair_histograms(
    splits: Mapping[str, LabelledFeatures], *, run: str, epoch: int, ranked: RankedLayer
) -> list[Histogram]:
    """Two histograms for each split, of same-class and different-class pairs; all of a layer have the same bins.

    Zhang et al., Heated-Up Softmax Embedding (2018), Fig. 4. Every two images of a split are a pair, each counted once.
    Vectors are L2-normalised, whatever similarity they are searched by, and a zero vector has the cosine 0 with all.
    Medians are within 1e-6.

    Args:
        splits: split -> its features; of which none is searched in another.

    Returns:
        In the order of the splits. A split with NaN or Inf has counts of 0, and the reason as a note.
    """
    counted: dict[str, Counts] = {}
    notes = {split: labelled.notes for split, labelled in splits.items()}
    for split, labelled in splits.items():
        try:
            units = unit_rows(labelled.features)
            folds = np.zeros(len(units)) if labelled.folds is None else labelled.folds
            parts = [count_pairs(units[folds == fold], labelled.labels[folds == fold]) for fold in np.unique(folds)]
            counted[split] = {pairs: np.sum([part[pairs] for part in parts], axis=0) for pairs in (SAME, DIFFERENT)}
        except NumericError as error:
            notes[split] = (*notes[split], error.message)
    steps = _edges([counts for split_counts in counted.values() for counts in split_counts.values()])
    edges = tuple((step - STEPS) / STEPS for step in steps)
    histograms = []
    for split, labelled in splits.items():
        split_counts = counted.get(split, {})
        middle = _middle(split_counts[SAME]) if split_counts else None
        for pairs in (SAME, DIFFERENT):
            counts, own_middle = [0] * (len(steps) - 1), None
            if split_counts:
                counts = [int(split_counts[pairs][low:high].sum()) for low, high in pairwise(steps)]
                own_middle = _middle(split_counts[pairs])
            histograms.append(
                Histogram(
                    run=run,
                    epoch=epoch,
                    split=split,
                    ranked=ranked,
                    pairs=pairs,
                    edges=edges,
                    counts=tuple(counts),
                    n=len(labelled.labels),
                    median=None if own_middle is None else (sum(own_middle) + 1 - 2 * STEPS) / (2 * STEPS),
                    above=_above(split_counts[pairs], middle) if split_counts else None,
                    notes=notes[split],
                )
            )
    return histograms


def count_pairs(units: FloatArray, labels: NDArray[np.integer]) -> Counts:
    """How many pairs have a cosine in each step, of images of the same and of different classes.

    Args:
        units: (N, D) vectors of length 1 or 0.
        labels: (N,).

    Returns:
        (2,000,000,) each. A step has its lower end, not the upper one; the last one has both.
    """
    counts = {pairs: np.zeros(2 * STEPS, np.int64) for pairs in (SAME, DIFFERENT)}
    rows = max(1, _BLOCK // len(units))
    for start in range(0, len(units), rows):
        block = slice(start, start + rows)
        cosines = units[block] @ units[start:].T
        steps = np.clip(((cosines + 1) * STEPS).astype(np.int64), 0, 2 * STEPS - 1)
        later = np.triu(np.ones(steps.shape, bool), 1)  # each pair once, and no image with itself
        is_same_class = labels[block, None] == labels[None, start:]
        for pairs, kind in ((SAME, later & is_same_class), (DIFFERENT, later & ~is_same_class)):
            counts[pairs] += np.bincount(steps[kind], minlength=2 * STEPS)
    return counts


def _edges(counts: list[NDArray[np.int64]]) -> list[int]:
    """Ends of bins that hold all pairs, in steps; the bins' width is 1, 2 or 5 times a power of ten."""
    counts = [histogram for histogram in counts if histogram.any()]
    if not counts:
        return list(_ONE_BIN)
    extremes = [np.flatnonzero(histogram)[[0, -1]] for histogram in counts]
    middle = [np.searchsorted(np.cumsum(histogram), np.array([0.01, 0.99]) * histogram.sum()) for histogram in counts]
    (low, high), (inner_low, inner_high) = (
        (min(x[0] for x in ends), max(x[1] for x in ends) + 1) for ends in (extremes, middle)
    )
    narrowest = min(ends[1] - ends[0] + 1 for ends in middle)
    least_width = max(min((inner_high - inner_low) / _BINS, narrowest / _FEWEST_BINS), (high - low) / _MOST_BINS)
    power = 10 ** max(0, math.floor(math.log10(least_width))) if least_width > 1 else 1
    width = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least_width)
    # From a cosine of 0, so that the ends are round numbers.
    places = range((int(low) - STEPS) // width, -((STEPS - int(high)) // width) + 1)
    return [min(max(STEPS + multiple * width, 0), 2 * STEPS) for multiple in places]


def _middle(counts: NDArray[np.int64]) -> tuple[int, int] | None:
    """The steps of the two middle ones of all pairs; one and the same where their number is odd; None without pairs."""
    below = np.cumsum(counts)
    total = int(below[-1])
    if not total:
        return None
    lower, upper = np.searchsorted(below, [(total - 1) // 2, total // 2], side="right")
    return int(lower), int(upper)


def _above(counts: NDArray[np.int64], middle: tuple[int, int] | None) -> float | None:
    """Share of the pairs above the median step, and half of those in it; None without any pair."""
    total = int(counts.sum())
    if middle is None or not total:
        return None
    lower, upper = middle
    median = (lower + upper) / 2
    above = int(counts[math.floor(median) + 1 :].sum())
    tied = int(counts[int(median)]) if median == int(median) else 0
    return (above + tied / 2) / total


MEASURE, AXIS = "share of the variance", "dimension"
# Rows that a step of the decomposition adds, at least.
_ROWS = 4096


def spectrum(features: NDArray[np.floating], *, run: str, epoch: int, split: str, ranked: RankedLayer) -> Curve:
    """The variance along each principal direction, largest first, as a share of the whole.

    The vectors are L2-normalised and not centred, as for the metric `effective-rank`: variance is the mean square
    about 0, and the first direction is roughly that of the mean vector. With singular values s, the shares are
    s^2 / sum of s^2.

    Args:
        features: (N, D).

    Returns:
        Directions without variance are excluded: singular values that are at most max(N, D) times float64's epsilon of
        the largest. With NaN or Inf, or where all features are zero, one place without a value, and the reason as a
        note.
    """
    notes: tuple[str, ...] = ()
    try:
        shares = variance_shares(unit_rows(features))
        values: tuple[float | None, ...] = tuple(map(float, shares))
    except NumericError as error:
        values, notes = (None,), (error.message,)
    places = tuple(range(1, len(values) + 1))
    return Curve(run, epoch, split, ranked, MEASURE, AXIS, places, values, n=len(features), notes=notes)


def variance_shares(units: FloatArray) -> FloatArray:
    """(R,) shares of the variance about 0, descending, of the R directions that have any.

    Args:
        units: (N, D).
    """
    count, dim = units.shape
    # As for `effective-rank`: the eigenvalues of a (D, D) product would lose small singular values.
    factor: FloatArray = units[:0]
    rows = max(_ROWS, 2 * dim)
    for start in range(0, count, rows):
        factor = np.asarray(np.linalg.qr(np.concatenate([factor, units[start : start + rows]]), mode="r"), np.float64)
    values = np.asarray(np.linalg.svd(factor, compute_uv=False), np.float64)
    nonzero = values[values > values[0] * max(count, dim) * np.finfo(np.float64).eps]
    if not len(nonzero):
        raise NumericError("no spectrum: all features are zero")
    shares: FloatArray = nonzero**2 / (nonzero**2).sum()
    return shares
