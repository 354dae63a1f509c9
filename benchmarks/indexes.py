"""What faiss indexes cost: recall, bytes an image, milliseconds a query and seconds to build, beside the exact search.

    python benchmarks/indexes.py                                                       # 200,000 drawn vectors
    python benchmarks/indexes.py --vectors 20000 --queries 1000
    python benchmarks/indexes.py --run cache/netA --layer fc6/l2+whiten:128:0.5+l2     # a probed run's last epoch

Drawn vectors have 128 dimensions and 20 vectors a class. Classes differ in 48 directions and the vectors of a class in
as many others, with decaying variances, and a little in all 128. ivfpq is trained on a quarter as many vectors of other
classes. The queries are among the vectors, and no query finds itself. Of a run, each test image is searched among the
others, and ivfpq is trained on validation, or on train without it.

Everything is computed by one thread. The exact row has to equal `recall_at_k`, or the script ends with an error.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from layerprobe import open_run, recall_at_k
from layerprobe.cli.output import Terminal
from layerprobe.measure.analysis import Features
from layerprobe.measure.index_costs import Searched, index_costs
from layerprobe.post_processing.applying import Blocks, process_blocks
from layerprobe.post_processing.chain import parse_chain
from layerprobe.values.costs import KINDS
from layerprobe.workflow.choose.choose_text import index_table

DIM, RANK, PER_CLASS = 128, 48, 20
_CPU = torch.device("cpu")


def drawn(count: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(N, 128) vectors and (N,) their classes; other seeds draw other classes in the same directions."""
    directions, rng = np.random.default_rng(0), np.random.default_rng(seed)
    between, within = directions.standard_normal((2, RANK, DIM)) * np.exp(-np.arange(RANK) / 20)[:, None]
    labels = np.arange(count) // PER_CLASS
    vectors = (rng.standard_normal((labels[-1] + 1, RANK)) @ between)[labels]
    vectors += rng.standard_normal((count, RANK)) @ within + 0.1 * rng.standard_normal((count, DIM))
    return vectors.astype(np.float32), labels


def of_drawn(vectors: int, queries: int) -> Searched:
    values, labels = drawn(vectors, seed=1)
    ids = [str(row) for row in range(vectors)]
    asked = np.linspace(0, vectors - 1, queries).astype(int)
    some = Features(values[asked], labels[asked], [ids[row] for row in asked])
    return Searched(some, Features(values, labels, ids), "cosine", drawn(vectors // 4, seed=2)[0])


def of_run(path: str, layer: str) -> tuple[str, Searched]:
    run = open_run(path)
    scores = run.scores()
    epoch, splits = int(scores.epoch.max()), set(scores.split)
    name, _, post_processing = layer.partition("/")

    def features(split: str) -> Any:
        return run.features(epoch=epoch, split=split, layer=name)

    chain, train = parse_chain(post_processing or "none"), features("train")
    fit = chain.fit(Blocks(train, _CPU), train.shape[1], seed=0)
    test, training = (
        process_blocks(Blocks(values, _CPU), fit, len(values))
        for values in (features("test"), features("validation") if "validation" in splits else train)
    )
    labels = run.labels(epoch=epoch, split="test").astype(np.int64)
    queries = Features(test, labels, run.ids(epoch=epoch, split="test"))
    return f"{Path(path).name}#{epoch}:{layer}", Searched(queries, None, "cosine", training)


def main() -> None:
    """Print the table of drawn vectors, or of a run's layer."""
    parser = argparse.ArgumentParser(description="What faiss indexes cost.")
    parser.add_argument("--vectors", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=5_000)
    parser.add_argument("--run")
    parser.add_argument("--layer", default="fc6")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    name, searched = "drawn vectors", None
    if asked.run:
        name, searched = of_run(asked.run, asked.layer)
    searched = searched or of_drawn(asked.vectors, asked.queries)
    with threadpool_limits(1):
        costs = index_costs(searched, KINDS, layer=name)
    queries, others = searched.queries, dict[str, Any]()
    if gallery := searched.gallery:
        others = {"gallery": gallery.values, "gallery_labels": gallery.labels}
        others |= {"ids": queries.ids, "gallery_ids": gallery.ids}
    engine = recall_at_k(cast("Any", queries.values), queries.labels, [1], **others)[1]
    Terminal().result({}, index_table(costs))
    if costs.rows[0].recall != engine:
        raise SystemExit(f"the exact row has {costs.rows[0].recall}, recall_at_k {engine}")
    print(f"exact = recall_at_k: {engine * len(queries.labels):g} of {len(queries.labels):,} queries")


if __name__ == "__main__":
    main()
