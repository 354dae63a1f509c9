"""What a run's scores were measured on, read from its record and its stored features; and their tables."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from layerprobe.metrics.recall import chance_recall
from layerprobe.store import read_chance, read_index
from layerprobe.system.errors import BusyError, DataError
from layerprobe.tables.tables import TextTable, layer_table, metric_table
from layerprobe.values.facts import EPOCH_0, DataFacts, SplitFacts
from layerprobe.values.keys import NO_REDUCTION
from layerprobe.values.metric_names import is_recall
from layerprobe.values.scores import SPLITS, Score
from layerprobe.values.sections import SEARCH_KEYS
from layerprobe.workflow.run.indistinguishable import Searches, alike_of, searches_of
from layerprobe.workflow.run.runs import Run


def data_facts(run: Run, scores: Sequence[Score]) -> DataFacts:
    """What the scores of a run were measured on; nothing of it is an error where it cannot be read."""
    own = [score for score in scores if score.run == run.name]
    splits = [split for split in SPLITS if any(score.split == split for score in own)]
    start = _start(run)
    held_out = start != EPOCH_0 and any(score.epoch > 0 for score in own)
    return DataFacts(_data_name(run), {split: _split_facts(run, split, own) for split in splits}, start, held_out)


def _start(run: Run) -> str:
    """What the network of epoch 0 is; the usual where the record cannot be read."""
    with contextlib.suppress(DataError):
        record = run.read()
        net = record.net
        # What a user's own function gives, only the user knows.
        if not record.untrained or str(net.get("name")).startswith("python:"):
            return EPOCH_0
        return "untrained" if net.get("weights", "none") == "none" else "pretrained"
    return DataFacts.start


def _data_name(run: Run) -> str:
    """`glyphs`, or with the last folder of the root `cub200:CUB_200_2011`."""
    with contextlib.suppress(DataError):
        data = run.read().data
        name, root = data.get("name", ""), data.get("root")
        return f"{name}:{Path(root).name}" if root else str(name)
    return ""


def _split_facts(run: Run, split: str, scores: Sequence[Score]) -> SplitFacts:
    measured = [score for score in scores if score.split == split]
    for epoch in sorted({score.epoch for score in measured}, reverse=True):
        queries, gallery = run.feature_file(epoch, split), run.feature_file(epoch, "gallery")
        with contextlib.suppress(DataError, BusyError):  # the next epoch has the same images
            labels, ids = read_index(queries)
            searched = read_index(gallery) if split == "test" and gallery.exists() else None
            facts = split_facts(labels) if searched is None else split_facts(labels, searched[0], (ids, searched[1]))
            return _by_rules(facts, run, epoch, split)
    return SplitFacts(measured[0].n)


def _by_rules(facts: SplitFacts, run: Run, epoch: int, split: str) -> SplitFacts:
    """The facts with the chance level that groups or lists decide, where there are any; unknown without their ranks."""
    with contextlib.suppress(DataError, BusyError):
        chance = read_chance(run.rank_file(epoch, split))
        return facts if chance is None else replace(facts, chance=chance)
    with contextlib.suppress(DataError):
        data = run.read().data
        return replace(facts, chance=None) if any(data.get(key) for key in SEARCH_KEYS) else facts
    return facts


def split_facts(
    labels: NDArray[np.integer],
    searched: NDArray[np.integer] | None = None,
    ids: tuple[Sequence[str], Sequence[str]] | None = None,
) -> SplitFacts:
    """What is known of a split.

    Args:
        labels: (Q,) classes of the queries.
        searched: (G,) classes of the gallery; None where the queries are searched among themselves.
        ids: names of the queries and of the gallery, in which a query does not find itself; None: none is in it.
    """
    own, gallery_ids = ids or (None, None)
    return SplitFacts(
        queries=len(labels),
        classes=len(np.unique(labels)),
        gallery=None if searched is None else len(searched),
        chance=chance_recall(labels, 1, searched, ids=own, gallery_ids=gallery_ids),
    )


def score_tables(run: Run, scores: Sequence[Score]) -> list[TextTable]:
    """The tables of the last epoch of a run's scores, as `epoch_tables` makes them.

    Args:
        scores: at least one is Recall@K.
    """
    last = max(score.epoch for score in scores)
    shown = [score for score in scores if score.epoch == last]
    untrained = [score for score in run.scores() if score.epoch == 0 < last]
    return epoch_tables(shown, data_facts(run, shown), searches_of(run), untrained)


def epoch_tables(
    scores: Sequence[Score], data: DataFacts, searches: Searches, untrained: Sequence[Score] = ()
) -> list[TextTable]:
    """The tables of an epoch: Recall by layer, and the further metrics if there are any; the same after each reduction.

    The layers as they are come first. Each reduction has tables of its own, whose best layer is the best after it.

    Args:
        scores: of one run and epoch, in network order; at least one is Recall@K.
        untrained: those of epoch 0, where these are of a later one.
    """
    recalls = [score.metric for score in scores if is_recall(score.metric)]
    first = "R@1" if "R@1" in recalls else recalls[0]
    reductions = dict.fromkeys(score.reduction for score in scores)
    found: list[TextTable] = []
    for reduction in sorted(reductions, key=lambda name: name != NO_REDUCTION):
        own = _unsaid([score for score in scores if score.reduction == reduction], scores)
        before = [score for score in untrained if score.reduction == reduction]
        facts = replace(data, splits={}) if found else data
        alike = alike_of(own, first, searches)
        found.append(layer_table(own, metric=first, data=facts, untrained=before, alike=alike))
        found += [table for table in [metric_table(own)] if table]
    return found


def _unsaid(own: Sequence[Score], scores: Sequence[Score]) -> list[Score]:
    """Reduced scores without the notes that a split has for its layers as they are, but what their intervals are."""
    said = {(s.split, s.layer_key, note) for s in scores if s.reduction == NO_REDUCTION for note in s.notes}
    found = []
    for score in own:
        kind = score.kind.notes
        kept = [note for note in score.notes if note in kind or (score.split, score.layer_key, note) not in said]
        found.append(score if score.reduction == NO_REDUCTION else replace(score, notes=tuple(kept)))
    return found
