"""The error rates of a layer over all thresholds, and those of thresholds set on other classes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from layerprobe.measure.pair_thresholds import PairCounts, count_accepted, count_pairs, thresholds_at
from layerprobe.ranking.all_pairs import AllPairs
from layerprobe.system.errors import DataError, NumericError
from layerprobe.values.scores import Subject
from layerprobe.values.thresholds import FALSE_ACCEPT_RATES
from layerprobe.values.views import ErrorRates, SetThreshold


def error_rates(subject: Subject, pairs_of: Callable[[str], AllPairs], set_on: str | None) -> ErrorRates:
    """The error rates of a split's pairs, and of thresholds that were set at false accept rates of 0.1 and 1 %.

    Args:
        subject: the layer and split, with its notes.
        pairs_of: split -> its pairs.
        set_on: the split that thresholds are set on; None for no thresholds.

    Returns:
        Without rates, and with the reason as a note, where there is no genuine or no impostor pair, or NaN or Inf.
    """
    pairs_of = functools.cache(pairs_of)
    split_rates, measured = _rates(subject, lambda: [pairs_of(subject.split)])
    if set_on is None or not measured:
        return split_rates
    pairs = pairs_of(subject.split)
    try:
        setting = pairs_of(set_on)
        thresholds = thresholds_at(setting, count_pairs(setting), FALSE_ACCEPT_RATES)
    except (DataError, NumericError) as error:
        return replace(split_rates, notes=(*split_rates.notes, f"no thresholds set on {set_on}: {error.message}"))
    counts = count_accepted(pairs, thresholds)
    placed = [
        SetThreshold(rate, impostor.sum() / counts.impostor_pairs.sum(), 1 - genuine.sum() / counts.genuine_pairs.sum())
        for rate, impostor, genuine in zip(FALSE_ACCEPT_RATES, counts.impostor, counts.genuine, strict=True)
    ]
    return replace(split_rates, set_on=set_on, thresholds=tuple(placed))


def error_rates_within_folds(subject: Subject, folds: Callable[[], Sequence[AllPairs]]) -> ErrorRates:
    """The error rates of the pairs within folds, of all folds together; as `error_rates` without thresholds.

    Args:
        folds: gives the pairs of each fold, all by the same similarity.
    """
    return _rates(subject, folds)[0]


def _rates(subject: Subject, parts: Callable[[], Sequence[AllPairs]]) -> tuple[ErrorRates, bool]:
    """The rates of all parts together, or the reason why there are none; and whether there are any."""
    split_rates = ErrorRates(
        subject.run, subject.epoch, subject.split, subject.ranked, (), (), None, 0, notes=subject.notes
    )
    try:
        pairs = parts()
        split_rates = replace(split_rates, n=sum(len(part_pairs.queries) for part_pairs in pairs))
        counted = [count_pairs(part_pairs) for part_pairs in pairs]
        counts = PairCounts(
            np.sum([counts_of_part.genuine for counts_of_part in counted], axis=0),
            np.sum([counts_of_part.impostor for counts_of_part in counted], axis=0),
        )
        accepts, rejects = counts.thinned()
    except (DataError, NumericError) as error:
        return replace(split_rates, notes=(*split_rates.notes, error.message)), False
    equal = counts.equal_error_rate()
    if counts.collapsed:
        return replace(
            split_rates, equal_error_rate=equal, notes=(*split_rates.notes, "all similarities are equal to 1e-6")
        ), False
    rates = tuple(accepts.tolist()), tuple(rejects.tolist())
    return replace(split_rates, false_accepts=rates[0], false_rejects=rates[1], equal_error_rate=equal), True
