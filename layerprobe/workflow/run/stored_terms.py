"""Equal terms as they are stored: which terms a run's splits can meet, and what its draws gave; nothing is written.

offered = offered_terms(run)              # Offered: .terms (None: see .reasons), .splits
stored_terms(run, epoch, split, terms)    # Drawn: labels, ids, weights and the values of each layer
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.measure.analysis import search_sha256
from layerprobe.statistics.draws import Rows, common_terms, draws, times_drawn, too_small
from layerprobe.values.keys import RankedLayer
from layerprobe.values.metric_names import Terms
from layerprobe.values.scores import SPLITS
from layerprobe.workflow.run.runs import Run


@dataclass(frozen=True, eq=False)
class SplitImages:
    """The images of a split, as stored: what `analysis.Labelled` needs.

    Args:
        labels: (Q,) their classes.
        ids: their Q names.
    """

    labels: NDArray[np.int64]
    ids: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Offered:
    """On which terms the splits of a run can be compared.

    Args:
        terms: None if there are none.
        reasons: why a split is left out, or why there are no terms, in a line each.
    """

    terms: Terms | None
    splits: Mapping[str, SplitImages] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class DrawnTerms:
    """The draws of an epoch and split.

    Args:
        items: the Q images of the split.
        values: layer -> (Q,) the mean of a query's hits over the draws that it was in, NaN where it was in none; only
            layers whose draws are stored.
    """

    items: SplitImages
    rows: list[Rows]
    values: Mapping[RankedLayer, NDArray[np.float64]]

    @cached_property
    def weights(self) -> NDArray[np.int64]:
        """(Q,) how often each query was drawn: `unit_sums(values, labels, weights)` gives the means over the draws."""
        return times_drawn(self.rows, len(self.items.labels))


def offered_terms(run: Run) -> Offered:
    """The terms of the splits that have stored ranks and are searched in themselves, without groups or lists."""
    splits, reasons, python = {}, [], bool(run.read().from_python)
    for split in SPLITS:
        epochs = ranked_epochs(run, split)
        if not epochs:
            continue
        path = run.rank_file(epochs[-1], split)
        items = _items(*store.read_index(path, holds="labels"))
        if not store.searched_itself(path):
            reasons.append(f"no equal terms for {split}: it is searched in a gallery")
        # What Python measures has no rules, and its classes are numbered anew in the file.
        elif not python and store.read_search(path) != search_sha256(items, None):
            reasons.append(f"no equal terms for {split}: groups or lists decide what its images may find")
        else:
            splits[split] = items
    if len(splits) < 2:
        found = f"{next(iter(splits))} alone has" if splits else "none has"
        return Offered(None, splits, (*reasons, f"no equal terms: {found} ranks that can be drawn again"))
    terms = common_terms({split: items.labels for split, items in splits.items()})
    if terms is None:
        reasons.append("no equal terms: a split has fewer than 2 classes of 2 images")
    elif single := {split: count for split, items in splits.items() if (count := too_small(items.labels))}:
        counted = ", ".join(f"{count} of {split}" for split, count in single.items())
        reasons.append(f"equal terms leave out classes of a single image: {counted}")
    return Offered(terms, splits, tuple(reasons))


def ranked_epochs(run: Run, split: str) -> list[int]:
    """The epochs of which a split has a rank file, ascending."""
    names = (path.name for path in run.rank_file(0, split).parent.glob(f"epoch-*.{split}.h5"))
    return sorted(int(found[1]) for name in names if (found := re.fullmatch(r"epoch-(\d+)\.\w+\.h5", name)))


def stored_terms(run: Run, epoch: int, split: str, terms: Terms) -> DrawnTerms | None:
    """What the draws of an epoch and split gave.

    Args:
        epoch: 0 = before any step.

    Returns:
        None where nothing is ranked, or the split does not have so many images.
    """
    path = run.rank_file(epoch, split)
    if not path.exists():
        return None
    stored = store.read_stored_ranks(path)
    items = _items(stored.labels, stored.ids)
    with contextlib.suppress(ValueError):
        rows = draws(items.labels, terms, seed=run.read().seed, split=split)
        values = {ranked: each[terms.name()] for ranked, each in stored.values.items() if terms.name() in each}
        return DrawnTerms(items, rows, values)
    return None


def _items(labels: NDArray[np.int32], ids: tuple[str, ...]) -> SplitImages:
    return SplitImages(labels.astype(np.int64), ids)
