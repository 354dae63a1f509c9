"""Rows of features wherever they lie: a tensor, an array, or a table on disk that is read in slices."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.system.computing import require_default_device, with_float64

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from layerprobe.values.retrieval import Similarity

# Rows prepared at once: with 512 dimensions 4 MiB in float64, which fit into the CPU's caches.
BLOCK_ROWS = 1024
# On a GPU few large blocks are faster: each operation has to be launched.
_NUMBERS_OF_A_GPU_BLOCK = 2**25


class Table(Protocol):
    """Rows that are read in slices, like those of an HDF5 data set."""

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102 - numpy's
    @property
    def dtype(self) -> Any: ...  # noqa: D102 - numpy's
    def __getitem__(self, rows: slice) -> Any: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, eq=False)
class Items:
    """Features (N, D) and labels (N,) of queries or of a gallery.

    Args:
        rows: tensor, array or table.
        labels: int64.
    """

    rows: Tensor | NDArray[Any] | Table
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def dim(self) -> int:
        """Numbers in a row."""
        return int(self.rows.shape[1])

    @cached_property
    def by_class(self) -> NDArray[np.intp]:
        """(N,) index that sorts the rows by class and keeps the order in it."""
        lowest = int(self.labels.min())
        if int(self.labels.max()) - lowest < 2**16:  # numbers of 16 bits are sorted several times as fast
            return np.argsort((self.labels - lowest).astype(np.uint16), kind="stable")
        return np.argsort(self.labels, kind="stable")

    @property
    def on_disk(self) -> bool:
        """Whether only slices can be read."""
        import torch

        return not isinstance(self.rows, (torch.Tensor, np.ndarray))  # a table may have a device, too

    @property
    def device(self) -> torch.device:
        """The device that computes with the rows: their own, unless it has no float64."""
        import torch

        device = getattr(self.rows, "device", None)
        return with_float64(device) if isinstance(device, torch.device) else torch.device("cpu")

    def take(self, index: NDArray[np.intp] | slice) -> Tensor:
        """The rows of an index or slice, of their own type; only slices where the rows are on disk."""
        import torch

        if isinstance(self.rows, torch.Tensor):
            rows = self.rows.detach()
            if isinstance(index, slice):
                return rows[index].to(self.device)
            # An index in brackets takes six times as long on a CPU.
            return rows.index_select(0, torch.from_numpy(index).to(rows.device)).to(self.device)
        if isinstance(index, np.ndarray) and self.on_disk:
            raise ValueError("rows on disk are read in slices")
        # torch warns of arrays that are read-only, as those of a memory map are; nothing writes to this one.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            array = np.asarray(self.rows[index])  # type: ignore[index] # an index only where numpy
            # torch takes neither other byte orders nor negative strides.
            return torch.from_numpy(np.ascontiguousarray(array, array.dtype.newbyteorder("=")))

    def blocks(self) -> Iterator[Tensor]:
        """All rows in order, a block at a time."""
        size = block_rows(self.device, self.dim)
        for start in range(0, len(self), size):
            yield self.take(slice(start, start + size))


def block_rows(device: torch.device, dim: int) -> int:
    """Rows of so many numbers that a device prepares at once."""
    return BLOCK_ROWS if device.type == "cpu" else max(BLOCK_ROWS, _NUMBERS_OF_A_GPU_BLOCK // dim)


def cuts(count: int, size: int) -> list[slice]:
    """Slices of at most `size` that cover `count` rows, as even as possible."""
    number = -(-count // size)
    # Multiples of 256 are counted faster; the last slice takes the rest.
    step = -(-count // number)
    step += -step % 256 if size % 256 == 0 else 0
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def items_of(features: ArrayLike | Tensor | Table, labels: Any, name: str, similarity: Similarity) -> Items:
    """Features and labels, their shapes and types checked.

    Args:
        features: (N, D), or (N, ceil(D / 8)) uint8 of packed bits for hamming.
        labels: (N,) integers.
        name: of the features in an error.
        similarity: the features are compared by it.

    Raises:
        ValueError: of another shape or type.
    """
    require_default_device()
    rows: Any = features
    if not all(hasattr(features, word) for word in ("shape", "dtype", "__getitem__")):
        rows = np.asarray(features)
    if len(rows.shape) != 2 or 0 in rows.shape:
        raise ValueError(f"{name}: expected (N, D), neither 0, got {tuple(rows.shape)}")
    kind = "c" if str(rows.dtype).startswith("torch.complex") else getattr(rows.dtype, "kind", "f")
    if kind not in "biuf" or str(rows.dtype) in ("float128", "longdouble"):
        raise ValueError(f"{name}: expected real numbers of at most 64 bits, got {rows.dtype}")
    if similarity == "hamming" and str(rows.dtype).removeprefix("torch.") != "uint8":
        raise ValueError(f"{name}: hamming needs packed bits of uint8, got {rows.dtype}")
    return Items(rows, label_array(labels, len(rows), name))


def unlabelled_items(features: ArrayLike | Tensor | Table, name: str, similarity: Similarity) -> Items:
    """As `items_of`, where no label matters."""
    return items_of(features, np.zeros(np.shape(features)[:1], np.int64), name, similarity)


def label_array(labels: ArrayLike | Tensor | None, count: int, name: str) -> NDArray[np.int64]:
    """(count,) int64 labels.

    Raises:
        ValueError: absent, not that many, or no integers.
    """
    if labels is None:
        raise ValueError(f"{name} needs labels")
    classes = np.asarray(labels.detach().cpu() if hasattr(labels, "detach") else labels)
    if classes.dtype.kind not in "iub":
        # Beyond 2**24 classes float32 labels collide in silence.
        raise ValueError(f"labels of {name}: expected integers, got {classes.dtype}")
    if classes.shape != (count,):
        raise ValueError(f"labels of {name}: expected ({count},), got {classes.shape}")
    return classes.astype(np.int64)


def find_self_indices(
    queries: int, ids: Sequence[str] | None, gallery: int | None, gallery_ids: Sequence[str] | None
) -> NDArray[np.intp]:
    """(Q,) index in the gallery of the item that is the query, -1 where none is.

    Args:
        queries: Q.
        ids: Q names, used with `gallery_ids` only.
        gallery: G; None where the queries are searched among themselves.
        gallery_ids: G different names.

    Raises:
        ValueError: ids that do not fit together.
    """
    if gallery is None:
        if gallery_ids is not None:
            raise ValueError("gallery_ids need a gallery")
        return np.arange(queries)
    if ids is None and gallery_ids is None:
        return np.full(queries, -1)
    if ids is None or gallery_ids is None:
        raise ValueError("ids and gallery_ids need each other")
    different = len(set(gallery_ids))
    if len(ids) != queries or len(gallery_ids) != gallery or different != gallery:
        raise ValueError(
            f"expected {queries} ids and {gallery} different gallery_ids,"
            f" got {len(ids)} and {len(gallery_ids)}, {different} of them different"
        )
    searched = set(ids)
    index_by_id = {name: i for i, name in enumerate(gallery_ids) if name in searched}
    return np.array([index_by_id.get(name, -1) for name in ids], np.intp)
