"""How far a choice among given features is, and how long it takes, by some of its queries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.measure.analysis import Features, rank
from layerprobe.reductions.half_whitening import MOST_DIMENSIONS
from layerprobe.system.progress import Listener
from layerprobe.system.threads import in_threads
from layerprobe.system.wording import as_duration
from layerprobe.workflow.choose.measured_features import SIMILARITY, RowSplits

_FEW, _MANY = 64, 1024  # queries that are timed: the difference is theirs, the rest the gallery's
_LONG = 10.0  # seconds: of a shorter choice nothing is said


@contextmanager
def counted(listener: Listener | None, name: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how many rankings are done as long as the block lasts.

    Yields:
        A function to be told of some more, from any thread.
    """
    if listener is None:
        yield lambda _: None
        return
    lock = Lock()
    with listener.task(name, total, "rankings") as task:

        def tell(count: int) -> None:
            with lock:
                task.advance(count)

        yield tell


def say_how_long(division: RowSplits, listener: Listener | None) -> None:
    """Say about how long the rankings of single layers take, where that is long.

    Some queries of the widest layer are timed in the whole gallery, as they are and with as many dimensions as are left
    after half-whitening; layers between the two take a time between these.
    """
    rows, dims = len(division.choosing), [values.shape[1] for values in division.given.features.values()]
    if listener is None or rows <= _MANY:
        return
    threads = min(torch.get_num_threads(), len(dims))
    widest, narrow = max(dims), min(max(dims), MOST_DIMENSIONS)
    values = list(division.given.features.values())[dims.index(widest)]
    values = values if rows == len(values) else values[division.choosing]
    with in_threads():  # as the choice does, one thread for each ranking
        slow, fast = (_seconds(division, values[:, :width]) for width in (widest, narrow))
    of_test = (len(division.test) / rows) ** 2
    slope = (slow - fast) / max(1, widest - narrow)
    as_it_is = sum(fast + slope * (dim - narrow) for dim in dims)
    seconds = (as_it_is * (1 + of_test) + fast * len(dims) * (_fits(division) + of_test)) / threads
    if seconds >= _LONG:
        listener.say(
            f"ranking {rows:,} rows by {len(dims)} layer{'s' * (len(dims) > 1)}, as they are and half-whitened: about"
            f" {as_duration(seconds)}; layers side by side come after it"
        )


def _seconds(division: RowSplits, values: NDArray[Any]) -> float:
    """The time of one ranking of all rows among themselves, half of whose pairs are computed."""
    rows = len(values)
    gallery = Features(values, division.labels, [str(row) for row in range(rows)])
    taken = []
    for count in (_FEW, _MANY):
        some = np.linspace(0, rows - 1, count).astype(np.intp)
        queries = Features(values[some], division.labels[some], [gallery.ids[row] for row in some.tolist()])
        started = time.perf_counter()
        rank(queries, gallery, SIMILARITY, ks=[1])
        taken.append(time.perf_counter() - started)
    few, many = taken
    return few + max(0.0, many - few) / (_MANY - _FEW) * rows / 2


def _fits(division: RowSplits) -> float:
    """How often half-whitened rows are ranked, in units of rows that search each other."""
    if division.fitted_on is not None:
        return 1.0
    return float(len(np.unique(division.folds))) if division.crossed else 2.0
