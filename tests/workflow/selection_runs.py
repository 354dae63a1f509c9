"""Runs that hold a record, features, ranks and scores, for selection: hits by hand, or ranks of given features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe import store
from layerprobe.measure.analysis import Features, rank, search_sha256
from layerprobe.measure.extraction import side_by_side
from layerprobe.values.layers import LayerKey, RankedLayer, members_of
from layerprobe.values.retrieval import Ranks
from layerprobe.values.scores import Score, ScoreTable, Subject
from layerprobe.workflow.run.runs import SCHEMA, Run
from tests.records import recorded
from tests.workflow.stored_ranks import ranked, ranks_of

C1, C2, FC6 = ranked("c1@max"), ranked("c2@max"), ranked("fc6@none")
DIMS = {"c1@max": 2, "c2@max": 3, "fc6@none": 4}
PER = 4  # images of a class
FIRST = {"train": 0, "validation": 100, "test": 200}  # class of each split
Hits = Mapping[RankedLayer, ArrayLike]


def labels_of(split: str, classes: int = 20, fold: int = 0) -> NDArray[np.int64]:
    """(Q,) four images of each class; splits and folds share no class."""
    return FIRST[split] + 30 * fold + np.repeat(np.arange(classes), PER)


def hits(*counts: int) -> NDArray[np.float64]:
    """(Q,) of each class so many of the four images hit."""
    return (np.arange(PER)[None] < np.array(counts)[:, None]).astype(float).ravel()


def write_run(
    cache: Path,
    name: str,
    ranked_on: Mapping[str, Hits],
    *,
    epochs: Sequence[int] = (2,),
    features: Mapping[str, Mapping[str, NDArray[np.float32]]] | None = None,
    data: Mapping[str, Any] | None = None,
    net: Mapping[str, Any] | None = None,
    fold: int = 0,
    identical: NDArray[np.bool_] | None = None,
    **more: object,
) -> Run:
    """A run that was probed.

    Args:
        cache: folder of runs.
        name: the run's.
        ranked_on: split -> layer -> hits of its queries; the same at each epoch.
        epochs: that are ranked.
        features: split -> layer and pool -> (Q, D); ranks of layers without post-processing are then made of these.
        data: of the recipe.
        net: likewise.
        fold: whose classes validation has.
        identical: (Q,) the test queries with an identical image.
        more: fields of the record.
    """
    run, scores = Run(cache / name), list[Score]()
    recipe = {"data": dict(data or {}), "net": dict(net or {}), "train": {"epochs": max(epochs)}}
    record = {
        "schema": SCHEMA, "state": "finished", "recipe_name": "netA", "recipe": recipe, "experiment": "e", "seed": 0,
        "epochs_done": max(epochs), "hashes": {}, "new_parameters": [], "layer_order": ["c1", "c2", "fc6"],
        "manifests": dict.fromkeys(ranked_on, "m"), "command": "layerprobe train netA --seed 0 --run old --fresh",
    } | more  # fmt: skip
    run.folder.mkdir(parents=True)
    run.write(recorded(record))
    for split, of_split in ranked_on.items():
        size = len(next(iter(of_split.values()))) // PER  # type: ignore[arg-type] # arrays
        labels = labels_of(split, size, fold if split == "validation" else 0)
        ids = [f"{split}{label}-{i}" for i, label in enumerate(labels)]
        own = (features or {}).get(split) or {
            text: np.ones((len(labels), dim), np.float32) for text, dim in DIMS.items()
        }
        for epoch in epochs:
            key = store.FeatureKey(name, epoch, split, "w", "{}", "m")
            _write_features(run, key, store.Rows(labels, ids), own)
            every = Features(np.empty(0, np.float32), labels, ids)
            made = store.RankKey(key, None, search_sha256(every, None), 1e-12, engine=1)
            found = {
                layer: _ranks(layer, of_layer, replace(every, values=_values(layer, own)) if features else None)
                for layer, of_layer in of_split.items()
            }
            fitted = f"{replace(key, split='train')} seed 0"
            entries = {
                layer: store.RankEntry(
                    replace(made, post_processing=fitted if "whiten" in layer.post_processing else ""), ranks
                )
                for layer, ranks in found.items()
            }
            path = run.rank_file(epoch, split)
            path.parent.mkdir(exist_ok=True)
            store.write_ranks(path, store.Rows(labels, ids), entries, identical=identical if split == "test" else None)
            for layer, ranks in found.items():
                subject = Subject(name, str(record["experiment"]), 0, epoch, split, layer)
                scores.append(subject.score("R@1", ranks.recall(1), len(labels)))
    ScoreTable(scores).write(run.scores_file)
    return run


def _values(layer: RankedLayer, own: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    members = [own[key.stored] for key in members_of(layer.layer, [LayerKey.parse(text) for text in own])]
    return members[0] if len(members) == 1 else side_by_side(members)


def _ranks(layer: RankedLayer, of_layer: ArrayLike, features: Features | None) -> Ranks:
    if features is None or layer.post_processing != "none":
        return ranks_of(np.asarray(of_layer).astype(int))
    return rank(features, None, layer.similarity)


def _write_features(run: Run, key: store.FeatureKey, rows: store.Rows, own: Mapping[str, NDArray[np.float32]]) -> None:
    layers = {LayerKey.parse(text): values for text, values in own.items()}
    columns = store.Columns({layer: values.shape[1] for layer, values in layers.items()}, "cpu", 8)
    path = run.feature_file(key.epoch, key.split)
    path.parent.mkdir(exist_ok=True)
    store.write_features(path, key, rows, columns, [layers])
