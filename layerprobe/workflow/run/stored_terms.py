"""Equal terms: the number of classes and images on which a run's splits can be compared, and the stored draws.

offered = offered_terms(run)            # .terms (None: see .reasons), .splits
stored_terms(run, epoch, split, terms)  # the draws and each layer's values
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from layerprobe.measure.analysis import search_sha256
from layerprobe.statistics.draws import Rows, common_terms, draws, times_drawn, too_small
from layerprobe.values.keys import RankedLayer
from layerprobe.values.metric_names import Terms
from layerprobe.values.scores import SPLITS
from layerprobe.workflow.run.runs import Run


@dataclass(frozen=True, eq=False)
class SplitImages:
    """(Q,) stored classes and Q names of a split's images."""

    labels: NDArray[np.int64]
    ids: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Offered:
    """The terms on which the splits of a run can be compared; `reasons` for skipped splits or missing terms."""

    terms: Terms | None
    splits: Mapping[str, SplitImages] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class DrawnTerms:
    """The draws of an epoch and split.

    Args:
        items: the Q images of the split.
        values: layer with stored draws -> (Q,) mean hits of a query over its draws, NaN without a draw.
    """

    items: SplitImages
    rows: list[Rows]
    values: Mapping[RankedLayer, NDArray[np.float64]]

    @cached_property
    def weights(self) -> NDArray[np.int64]:
        """(Q,) how often each query was drawn: `unit_sums(values, labels, weights)` gives the means over the draws."""
        return times_drawn(self.rows, len(self.items.labels))


def offered_terms(run: Run) -> Offered:
    """The terms of the ranked splits that are searched in themselves, without groups or lists."""
    splits, reasons, from_python = {}, [], run.read().from_python
    for split in SPLITS:
        epochs = run.ranked_epochs(split)
        if not epochs:
            continue
        ranks = run.ranks(epochs[-1], split)
        items = _items(*ranks.rows)
        if not ranks.searched_itself:
            reasons.append(f"no equal terms for {split}: it is searched in a gallery")
        # Runs from Python have no rules, and other class numbers in the file.
        elif not from_python and ranks.search_sha256 != search_sha256(items, None):
            reasons.append(
                f"no equal terms for {split}: groups, lists or sets of labels decide what its images may find"
            )
        else:
            splits[split] = items
    if len(splits) < 2:
        which = f"{next(iter(splits))} alone has" if splits else "none has"
        return Offered(None, splits, (*reasons, f"no equal terms: {which} ranks that can be drawn again"))
    terms = common_terms({split: items.labels for split, items in splits.items()})
    if terms is None:
        reasons.append("no equal terms: a split has fewer than 2 classes of 2 images")
    elif single := {split: count for split, items in splits.items() if (count := too_small(items.labels))}:
        counted = ", ".join(f"{count} of {split}" for split, count in single.items())
        reasons.append(f"equal terms leave out classes of a single image: {counted}")
    return Offered(terms, splits, tuple(reasons))


def stored_terms(run: Run, epoch: int, split: str, terms: Terms) -> DrawnTerms | None:
    """The draws of an epoch and split; None if it is not ranked, or has too few images."""
    if not run.rank_file(epoch, split).exists():
        return None
    stored = run.ranks(epoch, split).stored
    items = _items(stored.labels, stored.ids)
    try:
        rows = draws(items.labels, terms, seed=run.read().seed, split=split)
    except ValueError:
        return None
    name = terms.name()
    return DrawnTerms(items, rows, {ranked: each[name] for ranked, each in stored.values.items() if name in each})


def _items(labels: NDArray[np.int32], ids: tuple[str, ...]) -> SplitImages:
    return SplitImages(labels.astype(np.int64), ids)
