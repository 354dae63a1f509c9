"""Candidates for nearest neighbours from faiss, where it can be imported."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from layerprobe.system.errors import EnvironmentFault

if TYPE_CHECKING:
    from torch import Tensor

# (B, P) float32 queries -> the largest inner products (B, C) with a gallery and its rows (B, C) int64, in any order.
Finder = Callable[["Tensor"], tuple["Tensor", "Tensor"]]

# On a GPU faiss finds at most so many neighbours.
_MOST_ON_GPU = 2048


def import_faiss() -> Any:
    """The faiss module.

    Raises:
        EnvironmentFault: it is absent or broken.
    """
    # In forked workers faiss hangs for ever if it was imported before torch.
    import torch  # noqa: F401

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import faiss
        # After one of two faiss packages in one folder is removed, an empty module is left that can be imported.
        faiss.IndexFlatIP  # noqa: B018
    except Exception as fault:  # a broken library raises whatever its loader does
        reason = (str(fault).splitlines() or [type(fault).__name__])[0]
        raise EnvironmentFault(
            f"faiss cannot be imported ({reason})",
            fix="pip install faiss-cpu, unless faiss-gpu or faiss-gpu-cuvs is there; only indexes need faiss",
        ) from fault
    return faiss


@contextmanager
def threads_of_torch(faiss: Any) -> Iterator[None]:
    """Give faiss as many threads as torch has, for as long as the block lasts."""
    import torch

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(torch.get_num_threads())
    try:
        yield
    finally:
        # Where both use one OpenMP, this is torch's number too.
        faiss.omp_set_num_threads(before)


def faiss_finder(faiss: Any, gallery: Tensor, count: int) -> Finder:
    """Find `count` items a query, on a GPU if faiss has one that can.

    Args:
        faiss: the module.
        gallery: (G, P) float32, finite.
        count: C, at most G.
    """
    import torch

    rows, index = gallery.cpu().numpy(), None
    if faiss.get_num_gpus() and count <= _MOST_ON_GPU:
        # If the GPU is out of memory, or faiss was built for other GPUs, the CPU searches.
        with suppress(RuntimeError):
            index = faiss.GpuIndexFlatIP(faiss.StandardGpuResources(), rows.shape[1])
            index.add(rows)

    def find(queries: Tensor) -> tuple[Tensor, Tensor]:
        vectors = queries.cpu().numpy()
        with threads_of_torch(faiss):
            if index is None:
                neighbours = faiss.knn(vectors, rows, count, metric=faiss.METRIC_INNER_PRODUCT)
            else:
                neighbours = index.search(vectors, count)
        scores, places = (torch.from_numpy(array).to(gallery.device) for array in neighbours)
        return scores, places

    return find
