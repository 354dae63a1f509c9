"""Images -> batches of pooled features per layer, and the features of `A+B`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from layerprobe.hooks import Hook, capture_layers
from layerprobe.ranking.items import Table
from layerprobe.system.computing import full_precision
from layerprobe.system.transfers import fetch, send
from layerprobe.values.layers import LayerKey

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch import distributed as dist
    from torch.distributed import ProcessGroup

Arrays = dict[LayerKey, NDArray[np.float32]]
# Images in a batch where nobody else makes them. Recorded with the features, since it may change their last bits; large
# enough for a GPU, small enough for a laptop.
BATCH_SIZE = 64


def extract(  # noqa: PLR0913 - what is run, on what, and how
    module: nn.Module,
    hooks: Sequence[Hook],
    batches: Iterable[Tensor],
    normalise: Callable[[Tensor], Tensor] | None = None,
    *,
    device: torch.device,
    bfloat16: bool = False,
) -> Iterator[Arrays]:
    """Run batches of images through a network and yield the features at its hooks.

    Between two batches the module is as it was: no hook, its own modes. Unless `bfloat16` is asked for, float32 is
    computed as float32: no TF32, no autocast. A GPU is given the next batch before the features of one are waited for;
    only GeM waits within the forward, to look for values below 0.

    Args:
        normalise: a batch on `device`, such as bytes (B, H, W, 3) -> float32 (B, 3, H, W); None where the batches are
            already the network's input.
        bfloat16: the network's products in bfloat16 (autocast); outputs are pooled in float32.

    Yields:
        For each batch {hook.key: float32 (B, dim)}.
    """
    import torch

    behind = 0 if device.type == "cpu" else 1
    launched: deque[Callable[[], Arrays]] = deque()
    for batch in batches:
        with full_precision(device), capture_layers(module, hooks) as features_of:
            placed = send(batch, device)
            images = normalise(placed) if normalise else placed
            with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                features = features_of(images)
        launched.append(copy_to_host(features))
        if len(launched) > behind:
            yield launched.popleft()()
    yield from (arrays() for arrays in launched)


def send_batches(batches: Iterable[Arrays], group: ProcessGroup | None) -> None:
    """Send batches to the first process of a group, which reads them by `gather_batches`."""
    import torch
    import torch.distributed as dist

    sent: deque[tuple[dist.Work | None, Tensor]] = deque()
    for arrays in batches:
        numbers = torch.from_numpy(np.concatenate([values.ravel() for values in arrays.values()]))
        sent.append((dist.isend(numbers, 0, group=group), numbers))
        if len(sent) > 1:  # the next is computed meanwhile
            _wait(sent.popleft()[0])
    for work, _ in sent:
        _wait(work)


def _wait(work: dist.Work | None) -> None:
    if work is not None:  # of a process outside the group
        work.wait()


def gather_batches(
    batches: Iterator[Arrays], dims: Mapping[LayerKey, int], rows: int, group: ProcessGroup | None
) -> Iterator[Arrays]:
    """All batches of some rows in their order, of which the processes of a group extract one in turn.

    Args:
        batches: those of this process, the first one.
        dims: D of each layer, in the order of `batches`.
    """
    import torch
    import torch.distributed as dist

    size = 1 if group is None else group.size()
    for number, start in enumerate(range(0, rows, BATCH_SIZE)):
        if number % size == 0:
            yield next(batches)
        else:
            count = min(BATCH_SIZE, rows - start)
            numbers = torch.empty(count * sum(dims.values()))
            dist.recv(numbers, number % size, group=group)
            parts = numbers.split([count * dim for dim in dims.values()])
            yield {key: part.view(count, -1).numpy() for key, part in zip(dims, parts, strict=True)}
    next(batches, None)  # the last batch is counted, and the data workers end


def copy_to_host(features: Mapping[LayerKey, Tensor]) -> Callable[[], Arrays]:
    """A function that waits for features as arrays; they leave each device in one copy."""
    keys = list(features)
    arrays = {key: tensor.numpy() for key, tensor in features.items() if tensor.device.type == "cpu"}
    devices = {tensor.device for tensor in features.values() if tensor.device.type != "cpu"}
    copies = [
        copy_at_once({key: tensor for key, tensor in features.items() if tensor.device == device}) for device in devices
    ]

    def wait() -> Arrays:
        for copy in copies:
            arrays.update(copy())
        return {key: arrays[key] for key in keys}

    return wait


def copy_at_once(features: Mapping[LayerKey, Tensor]) -> Callable[[], Arrays]:
    """A function that waits for features of one device as arrays of their own, so that each can be freed."""
    import torch

    shapes = {key: tensor.shape for key, tensor in features.items()}
    parts = fetch(torch.cat([tensor.flatten() for tensor in features.values()]))

    def wait() -> Arrays:
        flat = parts().split([shape.numel() for shape in shapes.values()])
        return {
            key: values.view(shape).clone().numpy() for (key, shape), values in zip(shapes.items(), flat, strict=True)
        }

    return wait


_ROWS = 4096  # normalised at once: 32 MiB at 2,048 dimensions


@dataclass(frozen=True, eq=False)
class SideBySide:
    """Features of the same images at several layers: each of length 1, one after the other in a row.

    They are made when rows are read. The cosine of two rows is the mean of the layers' cosines. A zero vector stays
    zero and adds nothing to its row.

    Args:
        members: (N, D) float32 features of each layer, in memory or on disk.
    """

    members: Sequence[Table]

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, the sum of the layers' dimensions)."""
        return len(self), sum(member.shape[1] for member in self.members)

    @property
    def dtype(self) -> np.dtype[np.float32]:
        """float32."""
        return np.dtype(np.float32)

    def __len__(self) -> int:
        return len(self.members[0])

    def __getitem__(self, rows: slice) -> NDArray[np.float32]:
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError("rows are read one after the other")
        joint = np.empty((max(0, stop - start), self.shape[1]), np.float32)
        for low in range(start, stop, _ROWS):
            high = min(low + _ROWS, stop)
            done = 0
            for member in self.members:
                block = np.asarray(member[low:high])
                _normalise(block, out=joint[low - start : high - start, done : done + block.shape[1]])
                done += block.shape[1]
        return joint


def side_by_side(members: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """(N, D) features of a layer, or (N, the sum of D) those of several as `SideBySide` has them.

    Args:
        members: (N, D) of each layer, at least one.
    """
    return SideBySide(members)[:] if len(members) > 1 else members[0]


def _normalise(features: NDArray[np.float32], *, out: NDArray[np.float32]) -> None:
    """Write (B, D) features of length 1, computed in float64; zero vectors stay, NaN and Inf give NaN."""
    lengths = np.sqrt(np.einsum("nd,nd->n", features, features, dtype=np.float64))
    lengths[lengths == 0] = 1
    with np.errstate(invalid="ignore"):  # Inf / Inf: the search tells of it
        np.divide(features, lengths[:, None], out=out, casting="same_kind")
