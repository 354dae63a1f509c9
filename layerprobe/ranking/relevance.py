"""Which items are right for a query and which are taken out of its results: classes, labels, groups, lists of pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.values.retrieval import SearchRules

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Labels = NDArray[np.int64]
_NO_RULES = SearchRules()
# Integers that spread over no more than so many times their number are counted in a table.
_SPREAD = 4
# Pairs whose kind is held at once: 4 MiB of Booleans.
_CELLS = 2**22


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of a query and an item that is searched, sorted by query.

    Args:
        queries: (P,) int64, ascending.
        items: (P,) int64.
    """

    queries: Labels
    items: Labels

    def __len__(self) -> int:
        return len(self.queries)

    def where(self, chosen: NDArray[np.bool_]) -> Pairs:
        """The chosen (P,) of the pairs."""
        return Pairs(self.queries[chosen], self.items[chosen])

    def among(self, rows: NDArray[Any]) -> Pairs:
        """The pairs of some queries (R,), which are called by their place among them."""
        starts = np.searchsorted(self.queries, rows, "left")
        lengths = np.searchsorted(self.queries, rows, "right") - starts
        # Places of all runs, one run after the other.
        places = np.arange(int(lengths.sum())) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
        return Pairs(np.repeat(np.arange(len(rows)), lengths), self.items[places])

    def per_query(self, count: int) -> Labels:
        """(count,) how many pairs each query has."""
        return np.bincount(self.queries, minlength=count)


_NO_PAIRS = Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True, eq=False)
class HeldLabels:
    """The labels of queries and items whose classes are sets of labels.

    Args:
        queries: sparse (Q, L), above 0 where a query has a label.
        gallery: sparse (G, L), likewise.
    """

    queries: Any
    gallery: Any

    @classmethod
    def of(cls, label_sets: ArrayLike, labels: Labels, gallery_labels: Labels) -> HeldLabels | None:
        """Of queries and items by their classes; None where no two classes of these share a label.

        Raises:
            ValueError: pairs of another shape or type, or a class without a label.
        """
        pairs = _integer_array(label_sets, (*np.shape(label_sets)[:1], 2), "label_sets")
        pairs = pairs[np.isin(pairs[:, 0], np.union1d(labels, gallery_labels))]
        classes, rows = np.unique(pairs[:, 0], return_inverse=True)
        names, columns = np.unique(pairs[:, 1], return_inverse=True)
        for label in np.setdiff1d(np.union1d(labels, gallery_labels), classes)[:1]:
            raise ValueError(f"label_sets: class {label} has no label")
        if len(names) == len(pairs):
            return None
        from scipy.sparse import csr_array  # only this waits for it

        shape = len(classes), len(names)
        holds = csr_array((np.ones(len(pairs), np.int32), (rows.reshape(-1), columns.reshape(-1))), shape=shape)
        return cls(*(holds[np.searchsorted(classes, some)] for some in (labels, gallery_labels)))

    def shared(self, columns: slice | Labels) -> NDArray[np.bool_]:
        """(Q, C) whether queries share a label with the items of a slice or an index."""
        shared: NDArray[np.bool_] = (self.queries @ self.gallery[columns].T).toarray() > 0
        return shared

    def shared_by_pairs(self, queries: Labels, items: Labels) -> NDArray[np.bool_]:
        """(P,) whether the query and the item of each pair share a label."""
        shared: NDArray[np.bool_] = self.queries[queries].multiply(self.gallery[items]).sum(axis=1) > 0
        return shared


@dataclass(frozen=True, eq=False)
class Relevance:
    """The right and the excluded items of each query; every other item is wrong.

    Args:
        labels: (Q,) class of each query.
        gallery_labels: (G,) class of each item.
        self_indices: (Q,) place of the item that is the query, -1 where none is; taken out.
        groups: (Q,) group of each query, None without groups: items of its class and group are taken out.
        gallery_groups: (G,) group of each item.
        ignored: what else is taken out: neither the query's own item nor of its class and group.
        positives: the right items, none of which is taken out; None: those of the query's class that are not.
        held_labels: where classes are sets of labels: items that share a label with a query count as of its class.
    """

    labels: Labels
    gallery_labels: Labels
    self_indices: NDArray[np.intp]
    groups: Labels | None = None
    gallery_groups: Labels | None = None
    ignored: Pairs = _NO_PAIRS
    positives: Pairs | None = None
    held_labels: HeldLabels | None = None

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> Relevance:
        """That of some queries."""
        index = np.arange(len(self.labels))[rows]
        return Relevance(
            self.labels[rows],
            self.gallery_labels,
            self.self_indices[rows],
            None if self.groups is None else self.groups[rows],
            self.gallery_groups,
            self.ignored.among(index) if len(self.ignored) else self.ignored,
            None if self.positives is None else self.positives.among(index),
            None if self.held_labels is None else replace(self.held_labels, queries=self.held_labels.queries[index]),
        )

    def of_one_class(self, columns: slice | Labels = slice(None)) -> NDArray[np.bool_]:
        """(Q, C) whether the items of a slice or an index have the query's class."""
        if self.held_labels is not None:
            return self.held_labels.shared(columns)
        same: NDArray[np.bool_] = self.labels[:, None] == self.gallery_labels[None, columns]
        return same

    def pairs_of_one_class(self, queries: Labels, items: Labels) -> NDArray[np.bool_]:
        """(P,) whether the item of each pair has the query's class."""
        if self.held_labels is not None:
            return self.held_labels.shared_by_pairs(queries, items)
        same: NDArray[np.bool_] = self.labels[queries] == self.gallery_labels[items]
        return same

    def grouped(self, pairs: Pairs) -> NDArray[np.bool_]:
        """(P,) whether an item has the query's class and group."""
        if self.groups is None or self.gallery_groups is None:
            return np.zeros(len(pairs), bool)
        queries, items = pairs.queries, pairs.items
        same_class = self.pairs_of_one_class(queries, items)
        grouped: NDArray[np.bool_] = same_class & (self.groups[queries] == self.gallery_groups[items])
        return grouped

    @property
    def self_pairs(self) -> Pairs:
        """Each query with the item that it is."""
        queries = np.flatnonzero(self.self_indices >= 0)
        return Pairs(queries, self.self_indices[queries].astype(np.int64))

    @property
    def marks(self) -> tuple[Labels, Labels]:
        """(Q,) and (G,): an item with the query's mark is no negative of it.

        The classes, unless the right items are listed: then class and group, or without groups the item itself.
        """
        if self.positives is None:
            return self.labels, self.gallery_labels
        if self.groups is None or self.gallery_groups is None:
            return self.self_indices.astype(np.int64), np.arange(len(self.gallery_labels))
        return self._class_and_group(self.groups, self.gallery_groups)

    def _class_and_group(self, groups: Labels, gallery_groups: Labels) -> tuple[Labels, Labels]:
        """(Q,) and (G,) a number for each class and group."""
        _, classes = np.unique(np.concatenate([self.labels, self.gallery_labels]), return_inverse=True)
        names, places = np.unique(np.concatenate([groups, gallery_groups]), return_inverse=True)
        codes = classes * len(names) + places
        return codes[: len(groups)], codes[len(groups) :]

    def no_negatives(self) -> Pairs:
        """Pairs that are no negatives, beside those of one class or group; in no order."""
        parts = [self.self_pairs, self.ignored, *([] if self.positives is None else [self.positives])]
        return Pairs(
            np.concatenate([pairs.queries for pairs in parts]), np.concatenate([pairs.items for pairs in parts])
        )

    def counts(self) -> tuple[Labels, Labels]:
        """(Q,) how many items are right for each query, and how many are wrong."""
        if self.held_labels is not None:
            return self._counts_of_pairs()
        self_pairs = self.self_pairs
        excluded_pairs = self.ignored, self_pairs.where(~self.grouped(self_pairs))
        num_excluded = np.sum([pairs.per_query(len(self.labels)) for pairs in excluded_pairs], axis=0)
        grouped = np.zeros_like(num_excluded)
        if self.groups is not None and self.gallery_groups is not None:
            grouped = _occurrences(*self._class_and_group(self.groups, self.gallery_groups))
        if self.positives is not None:
            right = self.positives.per_query(len(self.labels))
        else:
            right = _occurrences(self.labels, self.gallery_labels) - grouped
            for pairs in excluded_pairs:
                same = self.labels[pairs.queries] == self.gallery_labels[pairs.items]
                right -= pairs.where(same).per_query(len(self.labels))
        return right, len(self.gallery_labels) - grouped - num_excluded - right

    def _counts_of_pairs(self) -> tuple[Labels, Labels]:
        """The same from every pair."""
        import torch

        size, counts = len(self.gallery_labels), np.zeros((2, len(self.labels)), np.int64)
        step = max(1, _CELLS // size)
        for start in range(0, len(self.labels), step):
            some = self[start : start + step]
            exclusions = torch.zeros(len(some.labels), size)
            some.take_out(exclusions)
            right = some.right(exclusions.device)
            for row, kind in enumerate((right, ~right)):
                counts[row, start : start + step] = np.count_nonzero((kind & (exclusions == 0)).numpy(), axis=1)
        return counts[0], counts[1]

    def excluded_counts(self) -> Labels:
        """(Q,) how many items are taken out of each query's results."""
        right, wrong = self.counts()
        return len(self.gallery_labels) - right - wrong

    def take_out(self, similarities: Tensor) -> None:
        """Set excluded items to -inf in the similarities (Q, G) of all queries to the whole gallery."""
        import torch

        device = similarities.device
        if self.groups is not None and self.gallery_groups is not None:
            same = self._of_one_class(device) & _equal(self.groups, self.gallery_groups, device)
            similarities.masked_fill_(same, -torch.inf)
        for pairs in (self.self_pairs, self.ignored):
            similarities[_index(pairs, device)] = -torch.inf

    def right(self, device: torch.device) -> Tensor:
        """(Q, G) Booleans: which items are right, among those that are not taken out."""
        import torch

        if self.positives is None:
            return self._of_one_class(device)
        right = torch.zeros(len(self.labels), len(self.gallery_labels), dtype=torch.bool, device=device)
        right[_index(self.positives, device)] = True
        return right

    def _of_one_class(self, device: torch.device) -> Tensor:
        import torch

        if self.held_labels is None:
            return _equal(self.labels, self.gallery_labels, device)
        return torch.from_numpy(self.of_one_class()).to(device)

    def is_excluded(self, candidates: Tensor) -> Tensor:
        """(Q, C) Booleans: which of some items (Q, C) of each query are taken out."""
        import torch

        items = candidates.cpu().numpy()
        out = items == self.self_indices[:, None]
        if self.groups is not None and self.gallery_groups is not None:
            queries = np.repeat(np.arange(len(items)), items.shape[1])
            same_class = self.pairs_of_one_class(queries, items.ravel()).reshape(items.shape)
            out |= same_class & (self.gallery_groups[items] == self.groups[:, None])
        if len(self.ignored):
            size = len(self.gallery_labels)
            keys = np.arange(len(items))[:, None] * size + items
            out |= np.isin(keys, self.ignored.queries * size + self.ignored.items)
        return torch.from_numpy(out).to(candidates.device)


def relevance_of(
    labels: Labels, gallery_labels: Labels | None, self_indices: NDArray[np.intp], rules: SearchRules | None
) -> Relevance:
    """Check the rules of a search.

    Args:
        labels: (Q,) class of each query.
        gallery_labels: (G,) class of each item; None where the queries are searched among themselves.
        self_indices: (Q,) as from `find_self_indices`.
        rules: None for none.

    Raises:
        ValueError: groups or pairs of another shape or type, a row that there is not, or a pair that is there twice.
    """
    itself, rules = gallery_labels is None, rules or _NO_RULES
    searched = labels if gallery_labels is None else gallery_labels
    if rules.gallery_groups is not None and (itself or rules.groups is None):
        raise ValueError("gallery_groups need groups and a gallery")
    groups = gallery_groups = None
    if rules.groups is not None:
        groups = gallery_groups = _integer_array(rules.groups, (len(labels),), "groups")
        if not itself:
            if rules.gallery_groups is None:
                raise ValueError("groups need gallery_groups where a gallery is searched")
            gallery_groups = _integer_array(rules.gallery_groups, (len(searched),), "gallery_groups")
    held = None
    if rules.label_sets is not None:
        held = HeldLabels.of(rules.label_sets, labels, searched)
    plain = Relevance(labels, searched, self_indices, groups, gallery_groups, held_labels=held)
    ignored = _pairs(rules.ignored, plain, "ignored")
    if rules.positives is None:
        return replace(plain, ignored=ignored)
    positives = _pairs(rules.positives, plain, "positives")
    keys, ignored_keys = (pairs.queries * len(searched) + pairs.items for pairs in (positives, ignored))
    positives = positives.where(~np.isin(keys, ignored_keys))
    return replace(plain, ignored=ignored, positives=positives)


def _pairs(values: ArrayLike | None, relevance: Relevance, name: str) -> Pairs:
    """Pairs of one rule that groups and the query itself do not take out."""
    if values is None:
        return _NO_PAIRS
    pairs = _integer_array(values, (*np.shape(values)[:1], 2), name)
    size = len(relevance.gallery_labels)
    for column, count, kind in ((0, len(relevance.labels), "query"), (1, size, "item")):
        for row in np.flatnonzero((pairs[:, column] < 0) | (pairs[:, column] >= count))[:1]:
            raise ValueError(f"{name}, row {row}: {kind} {pairs[row, column]} is not one of {count}, counted from 0")
    keys = pairs[:, 0] * size + pairs[:, 1]
    order = np.argsort(keys, kind="stable")
    for position in np.flatnonzero(np.diff(keys[order]) == 0)[:1]:
        earlier_row, row = order[position], order[position + 1]
        raise ValueError(
            f"{name}, row {row}: query {pairs[row, 0]} and item {pairs[row, 1]} stand in row {earlier_row}, too"
        )
    sorted_pairs = Pairs(pairs[order, 0], pairs[order, 1])
    return sorted_pairs.where(
        ~relevance.grouped(sorted_pairs) & (relevance.self_indices[sorted_pairs.queries] != sorted_pairs.items)
    )


def _integer_array(values: Any, shape: tuple[int, ...], name: str) -> Labels:
    """Values as int64 of a shape."""
    array = np.asarray(values)
    if array.shape != shape or array.dtype.kind not in "iu":
        raise ValueError(f"{name}: expected integers of shape {shape}, got {array.dtype} of {array.shape}")
    return array.astype(np.int64)


def _occurrences(values: Labels, among: Labels) -> Labels:
    """How often each value is among others."""
    lowest, highest = int(among.min()), int(among.max())
    if highest - lowest > _SPREAD * len(among):
        ordered = np.sort(among)
        return np.searchsorted(ordered, values, "right") - np.searchsorted(ordered, values)
    inside = (values >= lowest) & (values <= highest)
    counts: Labels = np.bincount(among - lowest)[(values - lowest).clip(0, highest - lowest)] * inside
    return counts


def _equal(rows: Labels, columns: Labels, device: torch.device) -> Tensor:
    import torch

    return torch.from_numpy(rows).to(device)[:, None] == torch.from_numpy(columns).to(device)


def _index(pairs: Pairs, device: torch.device) -> tuple[Tensor, Tensor]:
    import torch

    return torch.from_numpy(pairs.queries).to(device), torch.from_numpy(pairs.items).to(device)
