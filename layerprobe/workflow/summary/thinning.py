"""The gap in galleries of one size: to what size the gallery of which split is thinned, and why none can be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerprobe.measure.analysis import ItemCounts, search_sha256
from layerprobe.metrics.recall import positives_and_negatives, thinned_hits
from layerprobe.store import StoredRanks
from layerprobe.summary.layers import SEEN, UNSEEN
from layerprobe.values.layers import RankedLayer
from layerprobe.values.scores import Recall, recall_of
from layerprobe.workflow.run.references import mean_of_queries, ranked_as

NO_GALLERIES = "no gap in galleries of one size"


@dataclass(frozen=True, eq=False)
class SplitItems:
    """The images of a split as they were ranked.

    Args:
        labels: (Q,) their classes.
        ids: their Q names.
        itself: whether they are searched among themselves.
        search_sha256: hash of what decides which items each query may find.
    """

    labels: NDArray[np.int64]
    ids: tuple[str, ...]
    itself: bool
    search_sha256: str


@dataclass(frozen=True, eq=False)
class Thinning:
    """The split with more items, and how its gallery is thinned to the size of the other's.

    Args:
        other: the other split.
        metric: Recall@K with the number of items that a query searches then.
        items: (Q,) right and wrong items of each query in the whole gallery.
        note: what is compared.
    """

    split: str
    other: str
    metric: Recall
    items: ItemCounts
    note: str

    def hits(self, stored: StoredRanks, ranked: RankedLayer) -> NDArray[np.float64] | None:
        """(Q,) each query's chance of a hit in the thinned gallery; None where the ranks are exact only up to a K."""
        members = ranked_as(ranked, stored.ranks)
        if any(stored.ranks[member].open().any() for member in members):
            return None
        k, size = self.metric.k, self.metric.gallery or 0
        return mean_of_queries(members, lambda member: thinned_hits(stored.ranks[member], k, size, *self.items))


def thinning_of(
    splits: Mapping[str, SplitItems], metric: str, *, from_python: bool
) -> tuple[Thinning | None, tuple[str, ...]]:
    """How train and test are brought to one size of gallery.

    Returns:
        None where they have one, or cannot be brought to one, with a line that says why.
    """
    recall, pair = recall_of(metric), {split: splits[split] for split in (SEEN, UNSEEN) if split in splits}
    if len(pair) < 2 or (recall and recall.gallery):
        return None, ()
    for name, images in pair.items():
        if not images.itself:
            return None, (f"{NO_GALLERIES}: {name} is searched in a gallery of its own",)
        # Runs from Python have no rules, and other class numbers in the file.
        if not from_python and images.search_sha256 != search_sha256(images, None):
            return None, (f"{NO_GALLERIES}: groups, lists or sets of labels decide what an image of {name} may find",)
    smaller, larger = sorted(pair, key=lambda name: len(pair[name].ids))
    size = len(pair[smaller].ids) - 1
    if len(pair[larger].ids) - 1 == size:
        return None, ()
    if recall is None:
        return None, (f"{NO_GALLERIES}: only Recall@K can be thinned",)
    items = positives_and_negatives(pair[larger].labels)
    most = int(items[0].max())
    if most + recall.k > size:
        searches = f"a query of {smaller} searches {size:,} items"
        return None, (f"{NO_GALLERIES}: {searches}, and one of {larger} keeps {most:,} right ones",)
    thinned = Recall(recall.k, size)
    return Thinning(larger, smaller, thinned, items, _note(pair, larger, smaller, thinned)), ()


def _note(splits: Mapping[str, SplitItems], larger: str, smaller: str, thinned: Recall) -> str:
    by_image = f"thinned by image to {thinned.gallery:,} items, as many as a query of {smaller} searches"
    classes = {split: len(np.unique(splits[split].labels)) for split in (SEEN, UNSEEN)}
    counts = ", ".join(f"{split} {count:,}" for split, count in classes.items())
    differ = f"; the number of classes still differs ({counts})" if len(set(classes.values())) > 1 else ""
    return f"{thinned}: the gallery of {larger} is {by_image}{differ}"
