"""Which classes are found in place of which, from the nearest item of each query by a layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerprobe.values.retrieval import FloatArray, IntArray

Pair = tuple[int, int]  # of labels

# Of the images of two classes that are one: the share that find one of the two; and how often they find the other, as a
# share of how often they would if the images had been divided between the names at random.
_COMPLETE = 0.9
_MIXED = 0.5


@dataclass(frozen=True, eq=False)
class NearestItem:
    """The nearest item of each of Q queries by a layer, among G items.

    Args:
        hits: (Q,) probability of a right nearest item; a fraction where it ties with a wrong one.
        rows: (Q,) of the nearest item; the first of tied ones; -1 where the search rules leave none.
        right_items: (Q,) how many items are right.
        labels: (Q,)
        searched_labels: (G,)
    """

    hits: FloatArray
    rows: IntArray
    right_items: IntArray
    labels: IntArray
    searched_labels: IntArray

    @property
    def is_confused(self) -> NDArray[np.bool_]:
        """(Q,) whether the nearest item is of another class, and wrong; not of queries that have no right item."""
        is_other = self.searched_labels[self.rows] != self.labels
        is_confused: NDArray[np.bool_] = (self.hits == 0) & (self.right_items > 0) & (self.rows >= 0) & is_other
        return is_confused

    def confusions(self) -> dict[Pair, IntArray]:
        """Class and the class found in its place -> the rows of the queries, ascending."""
        rows = np.flatnonzero(self.is_confused)
        pairs = np.stack([self.labels[rows], self.searched_labels[self.rows[rows]]], axis=1)
        order = np.lexsort((rows, pairs[:, 1], pairs[:, 0]))
        starts = np.flatnonzero((np.diff(pairs[order], axis=0, prepend=-1) != 0).any(1))
        return {
            (int(a), int(b)): queries
            for (a, b), queries in zip(pairs[order][starts], np.split(rows[order], starts)[1:], strict=True)
        }

    def two_names(self) -> list[Pair]:
        """The pairs of classes that the layer does not tell apart, the smaller label first.

        The nearest item of nearly all images of either class is of one of the two, and of the other one at least half
        as often as if the images had been divided between the two names at random.
        """
        confusions = self.confusions()
        counted = self.right_items > 0
        sizes = dict(zip(*(x.tolist() for x in np.unique(self.searched_labels, return_counts=True)), strict=True))

        def is_mixed(name: int, other: int) -> bool:
            queries = np.flatnonzero(counted & (self.labels == name))
            confused, right = len(confusions[name, other]), float(self.hits[queries].sum())
            expected = float((sizes[other] / (self.right_items[queries] + sizes[other])).sum())
            return confused + right >= _COMPLETE * len(queries) and confused >= _MIXED * expected

        mutual = [(a, b) for a, b in confusions if a < b and (b, a) in confusions]
        return [(a, b) for a, b in mutual if is_mixed(a, b) and is_mixed(b, a)]
