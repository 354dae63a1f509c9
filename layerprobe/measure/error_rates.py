"""The error rates of a layer over all thresholds, and those of thresholds set on other classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from layerprobe.measure.pair_thresholds import accepted, count_pairs, thresholds_at
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
    found = ErrorRates(subject.run, subject.epoch, subject.split, subject.ranked, (), (), None, 0, notes=subject.notes)
    try:
        pairs = pairs_of(subject.split)
        found = replace(found, n=len(pairs.queries))
        counts = count_pairs(pairs)
        accepts, rejects = counts.thinned()
    except (DataError, NumericError) as error:
        return replace(found, notes=(*found.notes, error.message))
    equal = counts.equal_error_rate()
    if counts.collapsed:
        return replace(found, equal_error_rate=equal, notes=(*found.notes, "all similarities are equal to 1e-6"))
    found = replace(
        found,
        false_accepts=tuple(accepts.tolist()),
        false_rejects=tuple(rejects.tolist()),
        equal_error_rate=equal,
    )
    if set_on is None:
        return found
    try:
        setting = pairs_of(set_on)
        thresholds = thresholds_at(setting, count_pairs(setting), FALSE_ACCEPT_RATES)
    except (DataError, NumericError) as error:
        return replace(found, notes=(*found.notes, f"no thresholds set on {set_on}: {error.message}"))
    of = accepted(pairs, thresholds)
    placed = [
        SetThreshold(asked, impostor.sum() / of.impostor_pairs.sum(), 1 - genuine.sum() / of.genuine_pairs.sum())
        for asked, impostor, genuine in zip(FALSE_ACCEPT_RATES, of.impostor, of.genuine, strict=True)
    ]
    return replace(found, set_on=set_on, thresholds=tuple(placed))
