"""Similarities of single pairs of queries and items, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from layerprobe.ranking.items import BLOCK_ROWS, Items
from layerprobe.ranking.positives import Chosen
from layerprobe.ranking.relevance import Pairs

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.ranking.vectors import Form

# Pairs computed together: their float64 vectors fit into the CPU's caches.
_PAIRS_TOGETHER = 512


def pair_similarities(queries: Chosen, gallery: Items, pairs: Pairs, form: Form, share: slice) -> tuple[Tensor, Tensor]:
    """Similarity of each pair.

    Args:
        queries: whose index the pairs' queries are.
        gallery: whose rows the pairs' items are; on disk only blocks that have a pair are read.
        pairs: in any order.
        form: of the vectors.
        share: which of the blocks of pairs to take.

    Returns:
        (S,) places of queries among `queries` and (S,) float64 similarities.
    """
    import torch

    places = np.empty(len(queries.index), np.intp)
    places[queries.index] = np.arange(len(places))
    of_pairs = places[pairs.queries]
    which, similarities = [np.zeros(0, np.intp)], [form.origin.new_zeros(0)]
    for some, items in islice(_blocks(gallery, pairs.items), share.start, share.stop, share.step):
        # A query comes several times in a row.
        query_rows, inverse = np.unique(of_pairs[some], return_inverse=True)
        similarities.append(form.of_pairs(queries.vectors(query_rows)[inverse], form.vectors(items)))
        which.append(of_pairs[some])
    return torch.from_numpy(np.concatenate(which)).to(form.origin.device), torch.cat(similarities)


def _blocks(gallery: Items, items: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.intp], Tensor]]:
    """Places among items (P,) and the raw rows there, a few at a time."""
    if not gallery.on_disk:
        for start in range(0, len(items), _PAIRS_TOGETHER):
            some = np.arange(start, min(start + _PAIRS_TOGETHER, len(items)))
            yield some, gallery.take(items[some])
        return
    order = np.argsort(items, kind="stable")
    starts = range(0, len(gallery), BLOCK_ROWS)
    bounds = np.searchsorted(items[order], [*starts, len(gallery)])
    for start, begin, end in zip(starts, bounds[:-1], bounds[1:], strict=True):
        if begin == end:
            continue
        rows = gallery.take(slice(start, start + BLOCK_ROWS))
        for offset in range(begin, end, _PAIRS_TOGETHER):
            some = order[offset : min(offset + _PAIRS_TOGETHER, end)]
            yield some, rows[items[some] - start]
