"""Recall@1 of concatenated layers on a sample of the queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MOST_QUERIES = 1000
_MEMORY = 2**30  # bytes of similarities, of all layers
_ROWS = 4096


@dataclass(frozen=True, eq=False)
class SampledCosines:
    """Cosines of some queries with all items, for each of several layers.

    Where layers are normalised and put side by side, the similarity of two images is the mean of their cosines in each.
    So any set of layers is tried out without a further product of matrices. Sums are of float32, without a rule for
    ties: to find candidates, not to score them.

    Args:
        queries: (S,) rows of the items.
        cosines: layer -> (S, N) float32; -inf for items excluded from a query's results.
        right: (S, N) whether an item is of the query's class.
    """

    queries: NDArray[np.intp]
    cosines: tuple[Tensor, ...]
    labels: NDArray[np.int64]

    def hits(self, members: Sequence[int]) -> NDArray[np.float64]:
        """(S,) whether the nearest item of each query is of its class, by some layers side by side."""
        total = self.cosines[members[0]].clone()
        for member in members[1:]:
            total += self.cosines[member]
        nearest = self.labels[total.argmax(1).numpy()]
        found: NDArray[np.float64] = (nearest == self.labels[self.queries]).astype(np.float64)
        return found


def sampled_cosines(
    layers: Sequence[NDArray[Any]], labels: NDArray[np.int64], groups: NDArray[np.int64] | None, seed: int
) -> SampledCosines:
    """Compare at most 1,000 of the items with all of them.

    Args:
        layers: (N, D) each.
        labels: (N,) class of each item.
        groups: (N,) items of one class and group are taken out of each other's results; None for no groups.
        seed: of the sample.
    """
    most = max(1, min(MOST_QUERIES, _MEMORY // (4 * len(labels) * len(layers))))
    queries = np.sort(np.random.default_rng(seed).permutation(len(labels))[:most])
    out = np.zeros((len(queries), len(labels)), bool)
    out[np.arange(len(queries)), queries] = True
    if groups is not None:
        out |= (groups[queries, None] == groups) & (labels[queries, None] == labels)
    taken_out = torch.from_numpy(out)
    found = tuple(_cosines(values, queries).masked_fill_(taken_out, -torch.inf) for values in layers)
    return SampledCosines(queries, found, labels)


def _cosines(values: NDArray[Any], queries: NDArray[np.intp]) -> Tensor:
    first = _units(values[queries])
    return torch.cat([first @ _units(values[start : start + _ROWS]).T for start in range(0, len(values), _ROWS)], 1)


def _units(values: NDArray[Any]) -> Tensor:
    rows = torch.from_numpy(np.ascontiguousarray(values)).double()
    lengths = rows.norm(dim=1, keepdim=True)
    return rows.div_(lengths.masked_fill_(lengths == 0, 1)).float()
