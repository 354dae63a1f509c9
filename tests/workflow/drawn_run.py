"""A probed run without a network: features of two layers by random numbers, their ranks and scores, in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.measure.analysis import Features, rank, score_recall, search_sha256
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.retrieval import SearchRules
from layerprobe.values.scores import Score, ScoreTable, Subject
from layerprobe.workflow.run.runs import Run
from tests.records import recorded

FC6 = RankedLayer(LayerKey("fc6", "none"), "none", "cosine")
POOL = RankedLayer(LayerKey("pool5.3", "max"), "none", "euclidean")
SEED = 3
# split -> images of each class; 11 classes, so that there are intervals; class 0 of train has a single image
SIZES: Mapping[str, Sequence[int]] = {"train": [1, *range(4, 9), *[5] * 6], "test": [4, 5, *[6] * 9]}


def labels_of(sizes: Sequence[int]) -> NDArray[np.int64]:
    """(Q,) shuffled."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))


def features_of(labels: NDArray[np.int64], epoch: int, ranked: RankedLayer) -> NDArray[np.float32]:
    """(Q, 3) whole numbers near those of the class: with ties, duplicates and zero vectors."""
    rng = np.random.default_rng([epoch, len(ranked.layer.layer), len(labels)])
    values = rng.integers(-2, 3, (labels.max() + 1, 3))[labels] + rng.integers(-1, 2, (len(labels), 3))
    return values.astype(np.float32)


def write_run(
    cache: Path,
    *,
    epochs: Sequence[int] = (1,),
    layers: Sequence[RankedLayer] = (POOL, FC6),
    sizes: Mapping[str, Sequence[int]] = SIZES,
    rules: Mapping[str, SearchRules] | None = None,
) -> Run:
    """The run, as a probe would have left it.

    Args:
        cache: folder of runs.
        epochs: those that are probed.
        layers: of these two.
        sizes: split -> images of each class.
        rules: split -> which items are right, or taken out.
    """
    run = Run(cache / "drawn")
    record = {"state": "finished", "recipe_name": "x", "recipe": {}, "experiment": "e", "seed": SEED}
    run.write(recorded(record | {"layer_order": ["pool5.3", "fc6"], "epochs_done": max(epochs)}))
    scores: list[Score] = []
    for epoch in epochs:
        for split, of_split in sizes.items():
            scores += _write(run, epoch, split, layers, labels_of(of_split), (rules or {}).get(split))
    table = ScoreTable(scores, layer_order=["pool5.3", "fc6"])
    table.write(run.scores_file)
    return run


def _write(
    run: Run,
    epoch: int,
    split: str,
    layers: Sequence[RankedLayer],
    labels: NDArray[np.int64],
    rules: SearchRules | None,
) -> list[Score]:
    ids = [f"{split}/{i}.png" for i in range(len(labels))]
    key, rows = store.FeatureKey(run.name, epoch, split, f"w{epoch}", "resize", "m"), store.Rows(labels, ids)
    values = {ranked: features_of(labels, epoch, ranked) for ranked in layers}
    columns = store.Columns({ranked.layer: 3 for ranked in values}, "cpu", 8)
    store.write_features(run.feature_file(epoch, split), key, rows, columns, [{r.layer: v for r, v in values.items()}])
    entries: dict[RankedLayer, store.RankEntry] = {}
    scores: list[Score] = []
    for ranked, found in values.items():
        items = Features(found, labels, ids)
        ranks = rank(items, None, ranked.similarity, rules=rules)
        rank_key = store.RankKey(key, None, search_sha256(items, None, rules), 1e-12)
        entries[ranked] = store.RankEntry(rank_key, ranks, values={"MAP@R": np.zeros(len(labels))})
        subject = Subject(run.name, "e", SEED, epoch, split, ranked, notes=("12 files are absent",))
        scores += score_recall(ranks, subject, [1, 2]).scores
    store.write_ranks(run.rank_file(epoch, split), rows, entries)
    return scores


def change_entry(run: Run, epoch: int, split: str, ranked: RankedLayer, **facts: object) -> None:
    """Write a rank file again, with another fact of one layer."""
    path = run.rank_file(epoch, split)
    labels, ids = store.read_rank_file(path).rows
    stored = store.read_rank_file(path).stored
    gone = {name: value for name, value in facts.items() if name == "invalid"}
    entries = {}
    for each, ranks in stored.ranks.items():
        of_split = store.FeatureKey(run.name, epoch, split, f"w{epoch}", "resize", "m")
        key = store.RankKey(of_split, None, stored.search_sha256, 1e-12)
        entries[each] = store.RankEntry(key, ranks)
        if each == ranked and gone:
            entries[each] = store.RankEntry(key, None, str(gone["invalid"]))
        elif each == ranked:
            entries[each] = replace(entries[each], key=replace(key, **facts))  # type: ignore[arg-type] # facts of a key
    store.write_ranks(path, store.Rows(labels, ids), entries)
