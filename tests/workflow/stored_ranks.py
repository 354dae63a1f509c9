"""Runs of nothing but a record and rank files, whose hits are written down by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from layerprobe.store import FeatureKey, RankEntry, RankKey, Rows, write_ranks
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.retrieval import Ranks
from layerprobe.workflow.run.runs import SCHEMA, Run

INPUT = {"resize": [32, 32, "bilinear"], "invert": False}
INVALID = "NaN (3 rows)"


def ranked(text: str, post_processing: str = "none", similarity: str = "cosine") -> RankedLayer:
    """`fc6@none` as it is searched."""
    return RankedLayer(LayerKey.parse(text), post_processing, similarity)


def ranks_of(hits: ArrayLike) -> Ranks:
    """Ranks whose Recall@1 is the mean of these 0 and 1: a miss has one negative closer."""
    closer = 1 - np.asarray(hits, np.int32)
    return Ranks(closer, closer, np.zeros_like(closer), np.ones_like(closer))


def write_run(
    cache: Path, name: str, *, experiment: str = "e", seed: int = 0, epochs_done: int = 2, **more: object
) -> Run:
    """A run's record."""
    run = Run(cache / name)
    run.folder.mkdir(parents=True)
    record = {
        "schema": SCHEMA, "state": "finished", "recipe_name": "netA", "recipe": {"probe": {"similarity": "cosine"}},
        "experiment": experiment, "seed": seed, "epochs_done": epochs_done, "hashes": {}, "new_parameters": [],
        "manifests": {"train": "t", "test": "x"}, "layer_order": ["c1", "c2", "fc6"],
    }  # fmt: skip
    run.record_file.write_text(json.dumps(record | more))
    return run


def store_ranks(
    run: Run,
    hits: Mapping[RankedLayer, ArrayLike | None],
    labels: ArrayLike,
    *,
    epoch: int = 2,
    ids: Sequence[str] | None = None,
    transform: Mapping[str, object] = INPUT,
    search: str = "s",
    values: Mapping[str, ArrayLike] | None = None,
) -> None:
    """Write the test ranks of an epoch; None for a layer whose features were not finite."""
    key = RankKey(FeatureKey(run.name, epoch, "test", "w", json.dumps(transform), "m"), None, search, 1e-12)
    of_each = {name: np.asarray(numbers, np.float64) for name, numbers in (values or {}).items()}
    entries = {
        layer: RankEntry(key, None, INVALID) if found is None else RankEntry(key, ranks_of(found), values=of_each)
        for layer, found in hits.items()
    }
    classes = np.asarray(labels)
    names = ids or [f"{i}.png" for i in range(len(classes))]
    path = run.rank_file(epoch, "test")
    path.parent.mkdir(exist_ok=True)
    write_ranks(path, Rows(classes, names), entries)
