"""Costs of a run (time, memory, disk space) and of an index (recall, size and time)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from layerprobe.system.errors import UnknownNameError

IndexKind = Literal["flat", "ivfpq", "hnsw"]
KINDS: tuple[IndexKind, ...] = get_args(IndexKind)
EXACT = "exact"


@dataclass(frozen=True)
class Estimate:
    """Seconds of work; bytes of peak memory, on disk, and free on that disk."""

    seconds: float
    memory: int
    disk: int
    free: int


def index_kinds(names: Sequence[str]) -> tuple[IndexKind, ...]:
    """The kinds that some names mean, each once."""
    for name in names:
        if name not in KINDS:
            raise UnknownNameError("kind of index", name, KINDS)
    return tuple(kind for kind in KINDS if kind in names)


@dataclass(frozen=True)
class IndexCost:
    """One index of a layer's test images, or the exact search.

    Args:
        kind: exact, flat, ivfpq or hnsw.
        parameters: as `ranking.index.build_index` chooses them.
        recall: Recall@K, in [0, 1].
        difference: from that of the exact search, as a share.
        nearest: share of the queries whose first result is the exact nearest neighbour, or tied with it.
        bytes_per_image: the size of the index file over its images; the exact search's is that of flat.
        ms_alone: median CPU time of a query that is searched alone, in milliseconds; the exact search's is that of
            flat.
        ms_batch: milliseconds a query where all are searched at once, likewise.
        build_seconds: training and adding, likewise.
    """

    kind: str
    parameters: Mapping[str, int]
    recall: float
    difference: float
    nearest: float
    bytes_per_image: float
    ms_alone: float
    ms_batch: float
    build_seconds: float


@dataclass(frozen=True)
class IndexCosts:
    """Indexes of a layer's test images, by one thread of faiss.

    Args:
        layer: as it is searched, with its post-processing.
        metric: R@K.
        items: images in an index.
        neighbours: that a query asks an index for.
        trained_on: the number of vectors that ivfpq is trained on; None if there are none, or no ivfpq.
        cpu: its name.
        rows: the exact search first.
    """

    layer: str
    metric: str
    queries: int
    items: int
    neighbours: int
    trained_on: int | None
    cpu: str
    rows: tuple[IndexCost, ...]
    threads: int = 1
    notes: tuple[str, ...] = ()
