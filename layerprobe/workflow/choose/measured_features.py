"""Given features -> each candidate's Recall@1 of each query, by fits on other queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.measure.analysis import Features, rank
from layerprobe.measure.choosing_folds import Refitting
from layerprobe.measure.concatenated import side_by_side
from layerprobe.reductions.applying import Blocks
from layerprobe.reductions.half_whitening import HalfWhitening, half_whitening
from layerprobe.system.threads import OfEach, in_turn
from layerprobe.values.choice import Candidate
from layerprobe.values.keys import NO_REDUCTION, RankedLayer, concatenated_key
from layerprobe.values.retrieval import SearchRules
from layerprobe.workflow.choose.row_splits import Rows, RowSplits

SIMILARITY = "cosine"
_CPU = torch.device("cpu")
Hits = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CandidateHits:
    """A candidate's Recall@1 of each query.

    Args:
        hits: (Q,) on the rows that are chosen on; of a reduction that is fitted on these, out of fold.
        test: (T,) on the test rows.
        refitted: fold -> (Q,) with a reduction that was fitted without this fold; empty if `hits` holds for all folds.
        only_without: the folds without which it was found, None for without none; empty: always.
    """

    candidate: Candidate
    members: tuple[int, ...]
    hits: Hits
    test: Hits
    refitted: Mapping[int, Hits] = field(default_factory=dict)
    only_without: frozenset[int | None] = frozenset()

    def found_without(self, fold: int | None) -> bool:
        """Whether it is a candidate where a fold is left out."""
        return not self.only_without or fold in self.only_without

    def without(self, fold: int) -> Hits:
        """(Q,) by a fit without a fold."""
        return self.refitted.get(fold, self.hits)


def searches(row_splits: RowSplits, whitened: bool) -> int:
    """How many rankings `measured` makes of a layer, raw or half-whitened."""
    of_test = 1 if len(row_splits.test) else 0
    return of_test + (len(np.unique(row_splits.folds)) if whitened and row_splits.fitted_on is None else 1)


def measured(
    row_splits: RowSplits,
    members: Sequence[int],
    reductions: Sequence[bool] = (False, True),
    of_each: OfEach = in_turn,
    advance: Callable[[int], None] = lambda _: None,
) -> list[CandidateHits]:
    """Measure a layer, or several concatenated.

    Args:
        members: indices of the layers, ascending.
        reductions: whether half-whitened, for each candidate; none of a layer that cannot be half-whitened.
    """
    layers = [list(row_splits.given.features)[member] for member in members]
    layer, arrays = concatenated_key(layers), [row_splits.given.features[each] for each in layers]
    if layer is None:
        raise ValueError(f"{layers} cannot be concatenated")
    values = arrays[0] if len(arrays) == 1 else side_by_side(arrays)
    found = []
    for whitened in reductions:
        reduction, dim = NO_REDUCTION, values.shape[1]
        if whitened:
            fitted = _fitted(row_splits, values, of_each)
            if fitted is None:
                advance(searches(row_splits, whitened))
                continue
            reduction, dim = fitted.name, fitted.dim
            parts = _half_whitened(row_splits, values, fitted, of_each, advance)
        else:
            hits, test = (_raw(row_splits, values, rows, advance) for rows in (row_splits.choosing, row_splits.test))
            parts = hits, test, {}
        candidate = Candidate(row_splits.given.epoch, RankedLayer(layer, reduction, SIMILARITY), dim, max(members))
        found.append(CandidateHits(candidate, tuple(members), *parts))
    return found


def _fitted(row_splits: RowSplits, values: NDArray[Any], of_each: OfEach) -> HalfWhitening | None:
    if row_splits.fitted_on is not None:
        rows = values[row_splits.fitted_on]
        return half_whitening(Blocks(rows, _CPU), np.zeros(len(rows), np.int64))
    left_out: list[int | None] = [*np.unique(row_splits.folds).tolist(), *([None] if len(row_splits.test) else [])]
    return half_whitening(Blocks(values[row_splits.choosing], _CPU), row_splits.folds, left_out, of_each)


def _half_whitened(
    row_splits: RowSplits, values: NDArray[Any], fitted: HalfWhitening, of_each: OfEach, advance: Callable[[int], None]
) -> tuple[Hits, Hits, dict[int, Hits]]:
    def hits_of(search: Refitting, fold: int | None, rows: Rows | None = None) -> Hits:
        hits = search.hits(fitted.fits[fold], rows)
        advance(1)
        return hits

    search = _search(row_splits, values, row_splits.choosing)
    test = hits_of(_search(row_splits, values, row_splits.test), None) if len(row_splits.test) else np.zeros(0)
    if row_splits.fitted_on is not None:
        return hits_of(search, None), test, {}
    folds = np.unique(row_splits.folds).tolist()
    own = {fold: np.flatnonzero(row_splits.folds == fold) for fold in folds}
    # Cross-fitting needs the hits of the other folds' queries, too: the choice is made on them.
    rows = dict.fromkeys(folds) if row_splits.crossed else own
    found = dict(zip(folds, of_each(lambda fold: hits_of(search, fold, rows[fold]), folds), strict=True))
    hits = np.zeros(len(row_splits.choosing))
    for fold in folds:
        hits[own[fold]] = found[fold][own[fold]] if row_splits.crossed else found[fold]
    return hits, test, found if row_splits.crossed else {}


def _raw(row_splits: RowSplits, values: NDArray[Any], rows: Rows, advance: Callable[[int], None]) -> Hits:
    if not len(rows):
        return np.zeros(0)
    search = _search(row_splits, values, rows)
    queries = Features(search.queries.values, search.queries.labels, ())
    ranks = rank(queries, None, SIMILARITY, ks=[1], rules=search.rules)
    advance(1)
    return ranks.hits(1)


def _search(row_splits: RowSplits, values: NDArray[Any], rows: Rows) -> Refitting:
    """Some rows, searched among themselves."""
    given = row_splits.given
    rules = None if given.groups is None else SearchRules(groups=given.groups[rows])
    some = values if len(rows) == len(values) else values[rows]
    features = Features(some, given.labels[rows], [str(row) for row in rows.tolist()])
    folds = row_splits.folds if rows is row_splits.choosing else np.zeros(len(rows), np.int64)
    return Refitting(features, None, folds, SIMILARITY, _CPU, rules=rules)
