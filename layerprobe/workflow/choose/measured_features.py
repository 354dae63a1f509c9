"""Given features -> each candidate's values of each query, by reductions that are fitted on other classes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.measure.analysis import Features
from layerprobe.measure.choosing_folds import FoldSearch, QueryValues, query_values_of
from layerprobe.reductions.applying import Blocks, reduce_blocks
from layerprobe.reductions.half_whitening import HalfWhitening, half_whitening
from layerprobe.reductions.reduction import Reduce
from layerprobe.values.choice import Candidate
from layerprobe.values.keys import NO_REDUCTION, RankedLayer
from layerprobe.values.retrieval import SearchRules
from layerprobe.workflow.choose.row_splits import Rows, RowSplits

SIMILARITY = "cosine"
_CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Measured:
    """A candidate with its values.

    Args:
        member: index of its layer.
        choosing: (Q,) of the rows that are chosen on.
        test: (T,) of the test rows; None without these.
        identity: equal for candidates that rank every query alike.
    """

    candidate: Candidate
    member: int
    choosing: QueryValues
    test: QueryValues | None
    identity: tuple[bytes, str]


def searches(row_splits: RowSplits) -> int:
    """How many rankings `measured` makes of a layer in one reduction."""
    of_test = 1 if len(row_splits.test) else 0
    return of_test + (len(np.unique(row_splits.folds)) if row_splits.fitted_on is None else 1)


def measured(
    row_splits: RowSplits,
    member: int,
    reductions: Sequence[bool] = (False, True),
    *,
    metric: str = "R@1",
    advance: Callable[[int], None] = lambda _: None,
) -> list[Measured]:
    """Measure a layer.

    Args:
        member: index of the layer.
        reductions: whether half-whitened, for each candidate; none of a layer that cannot be half-whitened.
    """
    layer, values = list(row_splits.given.features.items())[member]
    identity = hashlib.sha256(np.ascontiguousarray(values[row_splits.choosing]).data).digest()
    found = []
    for whitened in reductions:
        reduction, dim = NO_REDUCTION, values.shape[1]
        fits: Mapping[int | None, Reduce] = {}
        if whitened:
            fitted = _fitted(row_splits, values)
            if fitted is None:
                advance(searches(row_splits))
                continue
            reduction, dim, fits = fitted.name, fitted.dim, fitted.fits
        candidate = Candidate(row_splits.given.epoch, RankedLayer(layer, reduction, SIMILARITY), dim, member)
        parts = _searched(row_splits, values, fits, metric, advance)
        found.append(Measured(candidate, member, *parts, (identity, reduction)))
    return found


def _fitted(row_splits: RowSplits, values: NDArray[Any]) -> HalfWhitening | None:
    if row_splits.fitted_on is not None:
        rows = values[row_splits.fitted_on]
        return half_whitening(Blocks(rows, _CPU), np.zeros(len(rows), np.int64))
    left_out: list[int | None] = [*np.unique(row_splits.folds).tolist(), *([None] if len(row_splits.test) else [])]
    return half_whitening(Blocks(values[row_splits.choosing], _CPU), row_splits.folds, left_out)


def _searched(
    row_splits: RowSplits,
    values: NDArray[Any],
    fits: Mapping[int | None, Reduce],
    metric: str,
    advance: Callable[[int], None],
) -> tuple[QueryValues, QueryValues | None]:
    """The values of the rows that are chosen on, and of the test rows."""

    def whole(rows: Rows) -> QueryValues:
        features, rules = _rows(row_splits, values, rows)
        if reduce := fits.get(None):
            features = replace(features, values=reduce_blocks(Blocks(features.values, _CPU), reduce, len(rows)))
        found = query_values_of(features, None, SIMILARITY, metric=metric, rules=rules)
        advance(1)
        return found

    test = whole(row_splits.test) if len(row_splits.test) else None
    if row_splits.fitted_on is not None:
        return whole(row_splits.choosing), test
    features, rules = _rows(row_splits, values, row_splits.choosing)
    search = FoldSearch(features, None, row_splits.folds, SIMILARITY, _CPU, metric, rules)

    def of_fold(fold: int) -> tuple[Rows, QueryValues]:
        found = search.of_fold(fold, fits.get(fold))
        advance(1)
        return found

    return search.join([of_fold(fold) for fold in np.unique(row_splits.folds).tolist()]), test


def searched_whole(row_splits: RowSplits, member: int, metric: str) -> QueryValues:
    """(Q,) the values of a layer's rows that are chosen on, searched among all of these."""
    values = list(row_splits.given.features.values())[member]
    features, rules = _rows(row_splits, values, row_splits.choosing)
    return query_values_of(features, None, SIMILARITY, metric=metric, rules=rules)


def _rows(row_splits: RowSplits, values: NDArray[Any], rows: Rows) -> tuple[Features, SearchRules | None]:
    given = row_splits.given
    rules = None if given.groups is None else SearchRules(groups=given.groups[rows])
    some = values if len(rows) == len(values) else values[rows]
    return Features(some, given.labels[rows], [str(row) for row in rows.tolist()]), rules
