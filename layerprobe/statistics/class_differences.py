"""Differences of two layers within each class: their intervals and tests, and how many classes lose by chance.

The units are here the images of a class, against the gallery that was searched; a class's images are taken as
independent, although each may be the nearest of another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerprobe.statistics.units import unit_sums
from layerprobe.values.intervals import FEWEST_UNITS, Interval
from layerprobe.values.retrieval import FloatArray

_DRAWS = 999
EQUAL = 1e-9  # differences of sums of expected hits, up to rounding


@dataclass(frozen=True, eq=False)
class PairedCounts:
    """In how many of each of C classes' images both, one or neither of two layers hit.

    Args:
        both: (C,)
        a_alone: (C,)
        b_alone: (C,)
        neither: (C,)
        undecided: (C,) images with a hit that ties make a probability; they are among no other.
    """

    both: NDArray[np.int64]
    a_alone: NDArray[np.int64]
    b_alone: NDArray[np.int64]
    neither: NDArray[np.int64]
    undecided: NDArray[np.int64]


def paired_counts(hits_a: FloatArray, hits_b: FloatArray, classes: NDArray[np.integer]) -> PairedCounts:
    """Count the images of each class, in ascending order of class.

    Args:
        hits_a: (Q,) in [0, 1], as `Ranks.hits`.
        hits_b: (Q,) likewise.
        classes: (Q,) of each image.
    """
    _, members = np.unique(classes, return_inverse=True)
    size = int(members.max(initial=-1)) + 1
    is_decided = np.isin(hits_a, (0, 1)) & np.isin(hits_b, (0, 1))
    a, b = hits_a == 1, hits_b == 1
    both, a_alone, b_alone, neither = (
        np.bincount(members[kind & is_decided], minlength=size) for kind in (a & b, a & ~b, ~a & b, ~a & ~b)
    )
    return PairedCounts(both, a_alone, b_alone, neither, np.bincount(members[~is_decided], minlength=size))


def sign_tests(counts: PairedCounts) -> list[float | None]:
    """(C,) exact two-sided p that a layer hits alone as often as the other, not corrected for several classes.

    McNemar's test, exact: of the images that one layer alone hits, those of either are binomial with 1/2. None where
    ties leave an image undecided.
    """
    from scipy.special import bdtr  # most commands need none of it

    fewer = np.minimum(counts.a_alone, counts.b_alone)
    p = np.minimum(1.0, 2 * bdtr(fewer.astype(np.float64), counts.a_alone + counts.b_alone, 0.5))
    return [None if undecided else float(x) for x, undecided in zip(p, counts.undecided.tolist(), strict=True)]


def paired_intervals(counts: PairedCounts) -> list[Interval | None]:
    """(C,) 95 % intervals of the difference of recalls, a - b, over other images of a class.

    Newcombe, Statistics in Medicine 17, 1998, 2635-2650, method 10: with theta the difference, l and u the ends of
    Wilson's intervals of either share p, and phi the correlation of the two, corrected for continuity,

        theta - sqrt((p_a - l_a)^2 - 2 phi (p_a - l_a) (u_b - p_b) + (u_b - p_b)^2)
        theta + sqrt((p_b - l_b)^2 - 2 phi (p_b - l_b) (u_a - p_a) + (u_a - p_a)^2)

    Returns:
        None for a class of fewer than 10 images, and where ties leave one undecided.
    """
    from scipy.special import ndtri

    both, a_alone, b_alone, neither = (
        x.astype(np.float64) for x in (counts.both, counts.a_alone, counts.b_alone, counts.neither)
    )
    images = np.maximum(both + a_alone + b_alone + neither, 1)
    square = float(ndtri(0.975)) ** 2

    def distances(hits: FloatArray) -> tuple[FloatArray, FloatArray]:
        """How far Wilson's ends lie below and above a share."""
        share = hits / images
        centre = (share + square / (2 * images)) / (1 + square / images)
        reach = np.sqrt(square * share * (1 - share) / images + (square / (2 * images)) ** 2) / (1 + square / images)
        return share - centre + reach, centre + reach - share

    covariance = both * neither - a_alone * b_alone
    covariance = np.where(covariance > 0, np.maximum(covariance - images / 2, 0), covariance)
    margins = (both + a_alone) * (b_alone + neither) * (both + b_alone) * (a_alone + neither)
    phi = np.divide(covariance, np.sqrt(margins), out=np.zeros_like(images), where=margins > 0)
    (below_a, above_a), (below_b, above_b) = distances(both + a_alone), distances(both + b_alone)
    difference = (a_alone - b_alone) / images
    low = difference - np.sqrt(np.maximum(below_a**2 - 2 * phi * below_a * above_b + above_b**2, 0))
    high = difference + np.sqrt(np.maximum(below_b**2 - 2 * phi * below_b * above_a + above_a**2, 0))
    have = (images >= FEWEST_UNITS) & (counts.undecided == 0)
    return [
        Interval(*ends) if there else None
        for *ends, there in zip(low.tolist(), high.tolist(), have.tolist(), strict=True)
    ]


def shrink_means(values: FloatArray, classes: NDArray[np.integer]) -> FloatArray | None:
    """(C,) the mean of each class, shrunk towards that of all: empirical Bayes, which a few images move less.

    Bühlmann and Straub, ASTIN Bulletin 5, 1970, 199-207. With n images of N in a class, the variance s^2 within classes
    and t^2 between them, both by moments, the mean of a class has the weight n t^2 / (n t^2 + s^2), and the mean of
    all, weighted likewise, the rest:

        s^2 = sum_i (x_i - m_c)^2 / (N - C),    t^2 = (sum_c n_c (m_c - m)^2 - (C - 1) s^2) / (N - sum_c n_c^2 / N)

    Args:
        values: (Q,) of images, such as differences of hits.
        classes: (Q,) of each image.

    Returns:
        In ascending order of class; the mean of all for each class where t^2 is at most 0; None for a single class, and
        where each has one image.
    """
    cells = unit_sums(values, classes)
    counts, means = cells.counts[0], cells.sums[0] / cells.counts[0]
    images, number = counts.sum(), len(counts)
    if number == 1 or images == number:
        return None
    _, members = np.unique(classes, return_inverse=True)
    within = ((values - means[members]) ** 2).sum() / (images - number)
    mean = float(cells.means[0])
    between = (counts * (means - mean) ** 2).sum() - (number - 1) * within
    between /= images - (counts**2).sum() / images
    if between <= EQUAL**2:
        return np.full(number, mean)
    weights = counts * between / (counts * between + within)
    centre = (weights * means).sum() / weights.sum()
    shrunk: FloatArray = weights * means + (1 - weights) * centre
    return shrunk


@dataclass(frozen=True)
class ChanceOfLosing:
    """How many classes would lose, if images of all classes had the same distribution of differences.

    Args:
        low: 2.5 % quantile of their number.
        high: 97.5 % quantile.
        p: one-sided, that as many lose as do.
    """

    low: int
    high: int
    p: float


def chance_of_losing(differences: FloatArray, classes: NDArray[np.integer], *, seed: int = 0) -> ChanceOfLosing:
    """How many classes lose where the differences are dealt to the classes anew: a permutation test of their number.

    Each of 999 draws permutes the differences over all images, and classes keep their sizes. A class loses where its
    sum is below 0. p is (1 + draws in which as many lose or more) / 1,000.

    Args:
        differences: (Q,) of hits.
        classes: (Q,) of each image.
        seed: of the draws.
    """
    ordered = differences[np.argsort(classes, kind="stable")]
    starts = np.flatnonzero(np.diff(np.sort(classes), prepend=np.min(classes) - 1))
    lose = int((np.add.reduceat(ordered, starts) < -EQUAL).sum())
    rng, numbers = np.random.default_rng(seed), np.empty(_DRAWS, np.int64)
    for draw in range(_DRAWS):
        numbers[draw] = (np.add.reduceat(rng.permutation(ordered), starts) < -EQUAL).sum()
    low, high = np.quantile(numbers, (0.025, 0.975), method="inverted_cdf").tolist()
    reached = int((numbers >= lose).sum())
    return ChanceOfLosing(int(low), int(high), (1 + reached) / (1 + _DRAWS))
