"""Runs that hold nothing but rank files, made up query by query, and their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from layerprobe import store
from layerprobe.measure.analysis import Features, search_sha256
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.retrieval import Ranks
from layerprobe.values.scores import Score, ScoreTable, Subject
from layerprobe.workflow.run.runs import Run
from tests.records import recorded

FC6 = RankedLayer(LayerKey("fc6", "none"), "none", "cosine")
POOL5 = RankedLayer(LayerKey("pool5", "max"), "none", "cosine")
RECORD = {
    "state": "finished", "recipe_name": "netA", "experiment": "abc", "seed": 0, "epochs_done": 5, "hashes": {},
    "manifests": {}, "new_parameters": [],
    "network": {"layers": ["pool5", "fc6"], "embedding": ["fc6", "none"], "cuts": {}, "input": None, "files": {}},
    "recipe": {"data": {"name": "glyphs"}, "train": {"epochs": 5}},
}  # fmt: skip
CLASSES = 12
LABELS = {"train": np.repeat(np.arange(CLASSES), 2), "test": np.repeat(np.arange(CLASSES, 2 * CLASSES), 2)}


def ranks_of(hits: Sequence[float], *, lone: int = 0, tied: int = 0, zeros: int = 0) -> Ranks:
    """Ranks in which a query's nearest item is right or wrong; its first queries are lone, or tied with a negative."""
    closer = np.array([0 if hit else 1 for hit in hits], np.int32)
    positives = np.array([0] * lone + [1] * (len(hits) - lone), np.int32)
    negatives = np.array([1] * tied + [0] * (len(hits) - tied), np.int32)
    return Ranks(closer, closer, negatives, positives, zeros)


def first_hit(count: int) -> Ranks:
    """Of two queries of each of 12 classes, the first one of so many classes hits, and no other."""
    return ranks_of([float(i % 2 == 0 and i // 2 < count) for i in range(2 * CLASSES)])


def stored(
    run: Run,
    epoch: int,
    split: str,
    entries: Mapping[RankedLayer, Ranks | str],
    *,
    values: Mapping[str, np.ndarray[Any, np.dtype[np.float64]]] | None = None,
    labels: np.ndarray[Any, np.dtype[np.int64]] | None = None,
) -> list[Score]:
    """Write a rank file and give its scores."""
    feature_key = store.FeatureKey(run.name, epoch, split, "", "", "")
    own = LABELS[split] if labels is None else labels
    ids = [f"{split}{i}" for i in range(len(own))]
    search = search_sha256(Features(np.zeros((len(own), 1), np.float32), own, ids), None)
    key = store.RankKey(feature_key, None, search, 0.0)
    made, scores = {}, []
    for ranked, ranks in entries.items():
        invalid, found = (ranks, None) if isinstance(ranks, str) else ("", ranks)
        made[ranked] = store.RankEntry(key, found, invalid, values=values or {})
        subject = Subject(run.name, "abc", 0, epoch, split, ranked)
        scores.append(subject.score("R@1", found.recall(1) if found else None, len(own)))
        scores += [subject.score(metric, 0.5, len(own)) for metric in values or ()]
    store.write_ranks(run.rank_file(epoch, split), store.Rows(own, ids), made)
    return scores


def written(run: Run, *scores: Sequence[Score], **record: object) -> None:
    run.write(recorded(RECORD | record))
    ScoreTable([score for some in scores for score in some], layer_order=["pool5", "fc6"]).write(run.scores_file)
