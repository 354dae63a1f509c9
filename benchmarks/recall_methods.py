"""The problems that `benchmarks/recall.py` poses and the methods that it compares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Recalls = dict[int, float]


@dataclass(frozen=True)
class Case:
    """What is ranked; R@1 is between 40 % and 80 %.

    Args:
        closeness: sets how near a class lies together where all directions have the same variance.
        noise: standard deviation inside a class, of class means of 1, where the k-th variance is k^-DECAY.
        goals: peer's CPU seconds / layerprobe's at least, by method.
    """

    queries: int
    classes: int
    ks: tuple[int, ...]
    closeness: float = 0
    noise: float = 0
    gallery: int = 0  # 0: the queries themselves
    dims: tuple[int, ...] = (512,)  # of each layer
    goals: dict[str, float] = field(default_factory=dict)


# VGG16-BN's 13 convolutions and 5 pools, then fc6 and fc7 of 512.
_VGG16 = (64,) * 3 + (128,) * 3 + (256,) * 4 + (512,) * 10
_CUB = (1, 2, 4, 8, 16, 32)
# The effective rank of pooled features of a trained VGG is about 10, of 512: that of these variances is 9.4.
DECAY = 1.7
_SHOP = (1, 10, 20, 30, 40, 50)
_SOP = (1, 10, 100, 1000)
CASES = {
    "cub": Case(5_924, 100, _CUB, 1.65, goals={"faiss": 2}),
    "inshop": Case(14_218, 3_985, _SHOP, 3.45, gallery=12_612),
    "sop": Case(60_502, 11_316, _SOP, 3.55),
    "vgg": Case(5_924, 100, _CUB, 1.65, dims=_VGG16),
    "cub-trained": Case(5_924, 100, _CUB, noise=1, goals={"faiss": 2}),
    "inshop-trained": Case(14_218, 3_985, _SHOP, noise=0.6, gallery=12_612, goals={"faiss": 1.3}),
    "sop-trained": Case(60_502, 11_316, _SOP, noise=0.7, goals={"faiss": 3.5}),
    "vgg-trained": Case(5_924, 100, _CUB, noise=1, dims=_VGG16, goals={"faiss": 2.5}),
}


@dataclass(frozen=True)
class Problem:
    """Queries (Q, D) and, unless they are searched themselves, a gallery (G, D), with the class of each row."""

    features: Floats
    labels: Ints
    gallery: Floats | None = None
    gallery_labels: Ints | None = None

    def unit(self) -> tuple[Floats, Floats]:
        """Unit vectors of the queries and of what is searched."""
        queries = normalised(self.features)
        return queries, queries if self.gallery is None else normalised(self.gallery)

    @property
    def searched_labels(self) -> Ints:
        """The class of each row of what is searched."""
        return self.labels if self.gallery_labels is None else self.gallery_labels


def normalised(features: Floats) -> Floats:
    unit: Floats = features / np.linalg.norm(features, axis=1, keepdims=True)
    return unit


def write(case: Case, offset: bool, folder: Path) -> None:
    """The case's arrays as layer 0, 1 ... of the folder."""
    for layer, dim in enumerate(case.dims):
        rng = np.random.default_rng(layer)
        if case.noise:
            noise = np.float32(case.noise)
            turned = np.linalg.qr(rng.standard_normal((dim, dim)))[0] * np.arange(1, dim + 1)[:, None] ** (-DECAY / 2)
            axes = turned.astype(np.float32)
        else:
            # The cosine inside a class is 1 / (1 + noise^2), between classes it varies by 1 / sqrt(dim).
            noise = np.float32(max(dim**0.5 / case.closeness - 1, 0) ** 0.5)
            axes = None
        means = rng.standard_normal((case.classes, dim), dtype=np.float32)
        for name, count in (("", case.queries), ("gallery-", case.gallery)):
            if not count:
                continue
            labels = rng.integers(case.classes, size=count)
            features = means[labels] + noise * rng.standard_normal((count, dim), dtype=np.float32)
            if axes is not None:
                features = features @ axes
            if offset:
                features = np.maximum(features + 2 * features.std(), 0)
            np.save(folder / f"{layer}-{name}features.npy", features)
            np.save(folder / f"{layer}-{name}labels.npy", labels)


def given(file: Path, folder: Path) -> Case:
    """The layers of an .npz, as `layerprobe choose` takes it, written for `read`: arrays (N, D) and `labels` (N,)."""
    layers = np.load(file)
    names = [name for name in layers.files if name != "labels"]
    for layer, name in enumerate(names):
        np.save(folder / f"{layer}-features.npy", layers[name].astype(np.float32))
        np.save(folder / f"{layer}-labels.npy", layers["labels"].astype(np.int64))
    count = len(layers["labels"])
    return Case(count, len(np.unique(layers["labels"])), _CUB, dims=tuple(layers[name].shape[1] for name in names))


def read(folder: Path) -> list[Problem]:
    """What `write` or `given` wrote, in memory."""
    names = ("features", "labels", "gallery-features", "gallery-labels")
    problems = []
    for layer in range(len(list(folder.glob("*[0-9]-features.npy")))):
        files = (folder / f"{layer}-{name}.npy" for name in names)
        problems.append(Problem(*(np.load(file) for file in files if file.exists())))
    return problems


# Methods: problem, K -> R@K. Their libraries are imported inside, by the call that warms up.


def by_layerprobe(problem: Problem, ks: Sequence[int]) -> Recalls:
    from layerprobe import recall_at_k

    gallery, gallery_labels = problem.gallery, problem.gallery_labels
    return recall_at_k(problem.features, problem.labels, ks, gallery=gallery, gallery_labels=gallery_labels)


def by_faiss(problem: Problem, ks: Sequence[int]) -> Recalls:
    import faiss

    queries, searched = problem.unit()
    index = faiss.IndexFlatIP(searched.shape[1])
    index.add(searched)
    return hits(index.search(queries, wanted(problem, ks))[1], problem, ks)


def by_pytorch_metric_learning(problem: Problem, _ks: Sequence[int]) -> Recalls:
    """It has no Recall@K but precision@1, which is R@1 where no query is lone, and needs one neighbour."""
    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    calculator = AccuracyCalculator(include=("precision_at_1",), k=1, device=torch.device("cpu"))
    queries, searched = problem.unit()
    reference = () if problem.gallery is None else (searched, problem.searched_labels)
    value = calculator.get_accuracy(queries, problem.labels, *reference)["precision_at_1"]
    # It leaves out the lone queries, which are misses here.
    counts = np.bincount(problem.searched_labels, minlength=problem.labels.max() + 1)[problem.labels]
    return {1: float(value * (counts > (problem.gallery is None)).mean())}


def by_torch_topk(problem: Problem, ks: Sequence[int]) -> Recalls:
    import torch

    queries, searched = map(torch.from_numpy, problem.unit())
    found = [(block @ searched.T).topk(wanted(problem, ks)).indices for block in queries.split(1024)]
    return hits(torch.cat(found).numpy(), problem, ks)


def by_open_metric_learning(problem: Problem, ks: Sequence[int]) -> Recalls:
    import torch

    knn = import_module("oml.functional.knn")  # by name: what is not installed has no types to check
    metrics = import_module("oml.functional.metrics")
    queries, searched = map(torch.from_numpy, problem.unit())
    ids = torch.arange(len(queries)) if problem.gallery is None else None
    _, found, positives = knn.batched_knn_qg(
        queries,
        searched,
        max(ks),
        labels_query=torch.from_numpy(problem.labels),
        labels_gallery=torch.from_numpy(problem.searched_labels),
        ids_query=ids,
        ids_gallery=ids,
    )
    values = metrics.calc_retrieval_metrics(
        found, positives, cmc_top_k=tuple(ks), precision_top_k=(), map_top_k=(), verbose=False
    )
    return {k: float(values["cmc"][k]) for k in ks}


def by_scikit_learn(problem: Problem, ks: Sequence[int]) -> Recalls:
    from sklearn.neighbors import NearestNeighbors

    queries, searched = problem.unit()
    neighbours = NearestNeighbors(algorithm="brute", metric="euclidean").fit(searched)
    found = neighbours.kneighbors(queries, wanted(problem, ks), return_distance=False)
    return hits(found, problem, ks)


def at_one(run: Callable[[Problem, Sequence[int]], Recalls]) -> Callable[[Problem, Sequence[int]], Recalls]:
    """The same for K = 1 alone."""

    def first(problem: Problem, ks: Sequence[int]) -> Recalls:
        return run(problem, ks[:1])

    return first


METHODS: dict[str, Callable[[Problem, Sequence[int]], Recalls]] = {
    "layerprobe": by_layerprobe,
    "faiss": by_faiss,
    "layerprobe, K = 1": at_one(by_layerprobe),
    "faiss, K = 1": at_one(by_faiss),
    "pytorch-metric-learning": by_pytorch_metric_learning,
    "torch-topk": by_torch_topk,
    "open-metric-learning": by_open_metric_learning,
    "scikit-learn": by_scikit_learn,
}


def wanted(problem: Problem, ks: Sequence[int]) -> int:
    """Neighbours to ask for; one more where the query is among them."""
    return max(ks) + (problem.gallery is None)


def hits(found: NDArray[np.integer[Any]], problem: Problem, ks: Sequence[int]) -> Recalls:
    """Neighbours (Q, k), nearest first -> R@K, the query removed by its index."""
    reached = np.zeros(len(ks), np.int64)
    for start in range(0, len(found), 4096):
        rows = found[start : start + 4096]
        own = rows == np.arange(start, start + len(rows))[:, None]
        if problem.gallery is not None:
            own[:] = False
        positive = (problem.searched_labels[rows] == problem.labels[start : start + len(rows), None]) & ~own
        first = positive.argmax(1)
        place = first - (own.any(1) & (own.argmax(1) < first))
        reached += [int((positive.any(1) & (place < k)).sum()) for k in ks]
    return {k: count / len(found) for k, count in zip(ks, reached.tolist(), strict=True)}
