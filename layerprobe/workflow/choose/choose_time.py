"""The progress of a choice among given features, and its estimated duration."""

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
from layerprobe.workflow.choose.measured_features import SIMILARITY
from layerprobe.workflow.choose.row_splits import RowSplits

_FEW, _MANY = 64, 1024  # queries that are timed: their difference is the time of queries, the rest the gallery's
_LONG = 10.0  # seconds; the duration of a shorter choice is not printed


@contextmanager
def counted(listener: Listener | None, name: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show progress in rankings; yields a function that advances it, from any thread."""
    if listener is None:
        yield lambda _: None
        return
    lock = Lock()
    with listener.task(name, total, "rankings") as task:

        def advance(count: int) -> None:
            with lock:
                task.advance(count)

        yield advance


def say_how_long(row_splits: RowSplits, listener: Listener | None) -> None:
    """Print about how long the rankings of single layers take, if that is long.

    Some queries of the widest layer are timed in the whole gallery, raw and with the dimensions left by half-whitening;
    the times of other layers are interpolated.
    """
    rows, dims = len(row_splits.choosing), [values.shape[1] for values in row_splits.given.features.values()]
    if listener is None or rows <= _MANY:
        return
    threads = min(torch.get_num_threads(), len(dims))
    widest, narrow = max(dims), min(max(dims), MOST_DIMENSIONS)
    values = list(row_splits.given.features.values())[dims.index(widest)]
    values = values if rows == len(values) else values[row_splits.choosing]
    with in_threads():  # one thread for each ranking, as in the choice
        slow, fast = (_seconds(row_splits, values[:, :width]) for width in (widest, narrow))
    of_test = (len(row_splits.test) / rows) ** 2
    slope = (slow - fast) / max(1, widest - narrow)
    raw = sum(fast + slope * (dim - narrow) for dim in dims)
    seconds = (raw + fast * len(dims)) * (_share(row_splits) + of_test) / threads
    if seconds >= _LONG:
        layers = f"{len(dims)} layer{'s' * (len(dims) > 1)}"
        listener.say(f"ranking {rows:,} rows in {layers}, raw and half-whitened: about {as_duration(seconds)}")


def _seconds(row_splits: RowSplits, values: NDArray[Any]) -> float:
    """The time of ranking all rows among themselves, which computes half of the pairs."""
    rows = len(values)
    gallery = Features(values, row_splits.labels, [str(row) for row in range(rows)])
    taken = []
    for count in (_FEW, _MANY):
        some = np.linspace(0, rows - 1, count).astype(np.intp)
        queries = Features(values[some], row_splits.labels[some], [gallery.ids[row] for row in some.tolist()])
        started = time.perf_counter()
        rank(queries, gallery, SIMILARITY, ks=[1])
        taken.append(time.perf_counter() - started)
    few, many = taken
    return few + max(0.0, many - few) / (_MANY - _FEW) * rows / 2


def _share(row_splits: RowSplits) -> float:
    """How many rankings of all rows among themselves the rows that are chosen on cost: fewer within folds."""
    return 1.0 if row_splits.fitted_on is not None else 1 / len(np.unique(row_splits.folds))
