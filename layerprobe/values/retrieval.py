"""Types of arrays, and similarities, ranks and neighbours between ranking, metrics and statistics."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from layerprobe.system.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

FloatArray = NDArray[np.float64]
Precision = tuple[dict[str, FloatArray], NDArray[np.int64]]  # metric -> (Q,), and (Q,) the number of positives
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

CountArray = NDArray[np.int32]
Similarity = Literal["cosine", "dot", "euclidean", "hamming"]
SIMILARITIES: tuple[Similarity, ...] = get_args(Similarity)
Ties = Literal["expected", "optimistic", "pessimistic"]
Lone = Literal["miss", "exclude", "error"]
LONE_RULES: tuple[Lone, ...] = get_args(Lone)

# Above this share of tied queries a layer counts as collapsed: its order says little, whatever its recall.
COLLAPSED_SHARE = 0.5


@dataclass(frozen=True, eq=False)
class Ranks:
    """The rank of each query's nearest positive.

    Every Recall@K follows from it. Positives are the other items of its class, unless `SearchRules` say otherwise. A
    query without one is *lone*: `tied_positives` is 0, every negative is `closer`, and it never scores.

    Args:
        closer: (Q,) negatives strictly closer than the nearest positive.
        closer_high: (Q,) upper end of that count where it was not resolved; equal to `closer` where it was.
        tied_negatives: (Q,) negatives as close as the nearest positive.
        tied_positives: (Q,) positives at its similarity, itself included.
        zeros: zero vectors among queries and gallery; their cosine with everything is 0.

    Raises:
        ValueError: the counts are not four vectors of one length, at least 1.
    """

    closer: CountArray
    closer_high: CountArray
    tied_negatives: CountArray
    tied_positives: CountArray
    zeros: int = 0

    def __post_init__(self) -> None:
        shapes = {x.shape for x in (self.closer, self.closer_high, self.tied_negatives, self.tied_positives)}
        if len(shapes) != 1 or len(self.closer.shape) != 1 or not len(self.closer):
            raise ValueError(f"ranks need four vectors of one length, at least 1; got {sorted(shapes)}")

    def __len__(self) -> int:
        return len(self.closer)

    def open(self, ks: Collection[int] | None = None) -> NDArray[np.bool_]:
        """Queries whose counts are not exact but need to be.

        Args:
            ks: K of Recall@K; None if every count is needed.

        Returns:
            (Q,)
        """
        unlike: NDArray[np.bool_] = self.closer != self.closer_high
        if ks is None:
            return unlike
        inside = np.zeros(len(self), bool)
        for k in ks:
            inside |= (self.closer < k) & (self.closer_high + self.tied_negatives >= k)
        inside &= unlike
        return inside

    @property
    def lone(self) -> int:
        """The number of queries without a positive."""
        return int((self.tied_positives == 0).sum())

    @property
    def tied_share(self) -> float:
        """Share of the queries with a positive whose nearest one ties with a negative, in [0, 1]."""
        paired = self.tied_positives > 0
        return float((self.tied_negatives[paired] > 0).mean()) if paired.any() else 0.0

    @property
    def collapsed(self) -> bool:
        """Whether more than half of the queries with a positive are tied."""
        return self.tied_share > COLLAPSED_SHARE

    def hits(self, k: int, ties: Ties = "expected") -> NDArray[np.float64]:
        """Each query's probability that one of its `k` nearest items is a positive.

        With g negatives closer than the nearest positive, and t_n negatives and t_p positives tied with it, a random
        order of the tied fills m = k - g positions: the probability is 1 - C(t_n, m) / C(t_n + t_p, m), 0 where
        g >= k and 1 where m > t_n. Exact to 1e-12.

        Args:
            k: at least 1.
            ties: expected value under a random order of the tied, or positives first (optimistic) or last
                (pessimistic).

        Returns:
            (Q,) in [0, 1]; 0 for lone queries.

        Raises:
            ValueError: k below 1, an unknown rule for ties, or a k that falls inside an unresolved count.
        """
        if k < 1:
            raise ValueError(f"K = {k}: must be at least 1")
        unsettled = int(self.open([k]).sum())
        if unsettled:
            raise ValueError(f"K = {k} falls inside the unresolved counts of {unsettled} queries; resolve it")
        paired = self.tied_positives > 0
        if ties == "expected":
            return np.where(paired, 1 - self._missed(k), 0.0)
        if ties == "optimistic":
            return (paired & (self.closer < k)).astype(np.float64)
        if ties == "pessimistic":
            return (paired & (self.closer.astype(np.int64) + self.tied_negatives < k)).astype(np.float64)
        raise ValueError(f"unknown rule for ties {ties!r}: expected, optimistic or pessimistic")

    def hits_among_half(self, k: int) -> NDArray[np.float64]:
        """Each query's probability of a hit in a gallery that keeps each closer negative with a probability of 1/2.

        The kept ones of g closer negatives are binomial: P(Binomial(g, 1/2) < k). Where the query may hit in the whole
        gallery, ties are taken as there. Where a count is not resolved, its lower end is taken.

        Args:
            k: at least 1.

        Returns:
            (Q,) in [0, 1]; 0 for lone queries.
        """
        from scipy.special import bdtr  # most commands need none of it

        kept_few: NDArray[np.float64] = bdtr(float(k - 1), np.maximum(self.closer, k).astype(np.int64), 0.5)
        return np.where(self.closer < k, self.hits(k), np.where(self.tied_positives > 0, kept_few, 0.0))

    def _missed(self, k: int) -> NDArray[np.float64]:
        """(Q,) probability that the remaining positions hold only tied negatives."""
        places = k - self.closer.astype(np.float64)
        negatives, positives = self.tied_negatives.astype(np.float64), self.tied_positives.astype(np.float64)
        # C(t_n, m) / C(t_n + t_p, m) is symmetric in m and t_p, so the shorter product suffices. Its factors are
        # quotients of whole numbers: no cancellation, unlike differences of log-gammas at large counts.
        short, long = np.minimum(places, positives), np.maximum(places, positives)
        missed = np.where(places > negatives, 0.0, 1.0)
        open_ = np.flatnonzero((places > 0) & (places <= negatives))
        for i in range(int(short[open_].max(initial=0))):
            open_ = open_[short[open_] > i]
            tied_remaining = negatives[open_] + positives[open_] - i
            missed[open_] *= (tied_remaining - long[open_]) / tied_remaining
        return missed

    def recall(self, k: int, ties: Ties = "expected", lone: Lone = "miss") -> float:
        """Recall@K: the mean of `hits` over the queries.

        Args:
            k: at least 1; below the gallery's size, which is not checked.
            lone: lone queries count as misses, are excluded from the mean, or are an error.

        Returns:
            A fraction in [0, 1].

        Raises:
            DataError: a query is lone where that is an error, or all are where they are excluded.
            ValueError: see `hits`, or an unknown rule for lone queries.
        """
        counted = counted_queries(self.tied_positives > 0, lone)
        return float(self.hits(k, ties)[counted].mean())


def counted_queries(paired: NDArray[np.bool_], lone: Lone) -> NDArray[np.bool_]:
    """The queries that a mean over queries includes.

    Args:
        paired: (Q,) queries with a positive; the others are lone.
        lone: lone queries stay in the mean, where they score 0 ("miss"), are excluded, or are an error.

    Returns:
        (Q,)

    Raises:
        DataError: a query is lone where that is an error, or all are where they are excluded.
        ValueError: an unknown rule.
    """
    if lone not in LONE_RULES:
        raise ValueError(f"unknown rule for lone queries {lone!r}: {', '.join(LONE_RULES)}")
    alone = int((~paired).sum())
    if (lone == "error" and alone) or (lone == "exclude" and not paired.any()):
        raise DataError(
            f"{alone} of {len(paired)} queries have no other item of their class, or none by the rules of the search",
            fix="Count lone queries as misses, or give every class two items",
        )
    return paired if lone == "exclude" else np.ones_like(paired)


@dataclass(frozen=True, eq=False)
class SearchRules:
    """Which items are right for a query, and which are excluded from its results, beyond the class.

    Excluded items are neither right nor wrong nor neighbours: the query itself, items of its class and group, and
    ignored ones, even if `positives` list them. A query without a remaining right item is lone. All numbers from ranks
    or neighbours follow these rules; NMI, accuracy and the geometry of features do not rank and ignore them.

    >>> import numpy as np
    >>> from layerprobe import SearchRules, nearest_positive_ranks
    >>> angles = np.radians([0, 10, 25, 90])
    >>> features = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    >>> labels = [0, 0, 1, 0]
    >>> nearest_positive_ranks(features, labels).closer.tolist()[:2]
    [0, 0]
    >>> # Rows 0 and 1 are of one camera: only row 3 is right.
    >>> cameras = SearchRules(groups=np.array([0, 0, 0, 1]))
    >>> nearest_positive_ranks(features, labels, rules=cameras).closer.tolist()[:2]
    [1, 1]

    Args:
        groups: (Q,) group of each query, such as the camera that took it. Items of its class *and* group are excluded.
            None: no groups.
        gallery_groups: (G,) group of each item searched; None where the queries are searched among themselves.
        ignored: (P, 2) pairs of a query's row and a row of the searched items, without duplicates: excluded, whatever
            their class.
        positives: (P, 2) such pairs: exactly these items are right for a query, whatever their class, and every other
            item is wrong. None: the items of its class are right.
        label_sets: (M, 2) a class and a label that it holds, where a class is a set of labels: two classes that share
            a label count as one class wherever the arguments above say class. None: each class is a label.
    """

    groups: NDArray[np.int64] | None = None
    gallery_groups: NDArray[np.int64] | None = None
    ignored: NDArray[np.int64] | None = None
    positives: NDArray[np.int64] | None = None
    label_sets: NDArray[np.int64] | None = None

    def of_rows(self, rows: IntArray, items: IntArray | None = None) -> SearchRules:
        """The rules for some queries, among all searched items or some of them.

        Args:
            rows: (Q',) rows of the queries, each once; they are renumbered in this order.
            items: (G',) rows of the searched items, likewise; None for all.
        """
        searched = self.groups if self.gallery_groups is None else self.gallery_groups
        if searched is not None and items is not None:
            searched = searched[items]
        return SearchRules(
            groups=None if self.groups is None else self.groups[rows],
            gallery_groups=searched,
            ignored=_pairs_among(self.ignored, rows, items),
            positives=_pairs_among(self.positives, rows, items),
            label_sets=self.label_sets,
        )


def _pairs_among(pairs: IntArray | None, rows: IntArray, items: IntArray | None) -> IntArray | None:
    """(P', 2) the pairs of some queries and items, renumbered in their order."""
    if pairs is None:
        return None
    remaining = pairs
    for column, selection in enumerate((rows, items)):
        if selection is not None:
            remaining = remaining[np.isin(remaining[:, column], selection)]
            order = np.argsort(selection)
            remaining[:, column] = order[np.searchsorted(selection, remaining[:, column], sorter=order)]
    return remaining


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The nearest items of every query, closest first.

    Args:
        indices: (Q, k) int64, rows of the gallery, or of the queries where they were searched among themselves; -1 at
            the end of a row if `SearchRules` leave fewer items.
        similarities: (Q, k) float64, a higher one is closer: the cosine in [-1, 1], the dot product, minus the
            Euclidean distance, or minus the number of bits that differ. They descend along a row; tied items are in
            the order of their indices; -inf where the index is -1.
        backend: what proposed the candidates, torch or faiss.
    """

    indices: NDArray[np.int64]
    similarities: NDArray[np.float64]
    similarity: Similarity
    backend: Literal["torch", "faiss"]


@dataclass(frozen=True, eq=False)
class Classifier:
    """The trained classifier of a loss.

    Args:
        logits: (B, D) features of the layer that the classifier was trained on -> (B, C).
        classes: (C,) the label of each column, ascending.
    """

    logits: Callable[[Tensor], Tensor]
    classes: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Retrieval:
    """Queries and their gallery: the input of a metric.

    Args:
        features: (Q, D) of the queries, finite: an array, a tensor, or a table on disk that is read in slices.
        labels: (Q,) int64 class of each.
        gallery: (G, D) the searched items, likewise; None: the other queries.
        gallery_labels: (G,) int64; None without a gallery.
        similarity: cosine, dot, euclidean or hamming.
        own: (Q,) index in the gallery of the query itself, -1 if it is not there.
        count: returns the ranks; called at most once, at their first use.
        classifier: trained on this layer, if any.
        rules: which items are right or excluded beyond the class; None: the classes alone. Only metrics
            that rank follow them.
        memory: bytes that a search may take, as of `nearest_positive_ranks`; None: no limit.
        precision: what `precision_of_queries` gives, where the search for the ranks has given it; else None.
    """

    features: Any
    labels: NDArray[np.int64]
    gallery: Any
    gallery_labels: NDArray[np.int64] | None
    similarity: Similarity
    own: NDArray[np.intp]
    count: Callable[[], Ranks]
    classifier: Classifier | None = None
    rules: SearchRules | None = None
    memory: int | None = None
    precision: Precision | None = None

    @property
    def searched_labels(self) -> NDArray[np.int64]:
        """(G,) class of each searched item; of the queries themselves without a gallery."""
        return self.labels if self.gallery_labels is None else self.gallery_labels

    @cached_property
    def ranks(self) -> Ranks:
        """Rank of each query's nearest positive, every query resolved."""
        return self.count()
