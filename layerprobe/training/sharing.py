"""Training by several processes on one batch: embeddings of all, statistics of all, and one process's random numbers.

The loss of the whole batch is computed in every process. Its gradient reaches each process's own embeddings alone, and
is multiplied by the number of processes, of which DistributedDataParallel takes the mean.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Buffers are equal in all processes; from torch 2.14 on the option has another name.
_OPTIONS = inspect.signature(DistributedDataParallel).parameters
_NO_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _OPTIONS else "broadcast_buffers": False
}
# Those that multiply by a mask.
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class Sharing:
    """A network that some processes train together.

    Args:
        group: the processes; each has this network, and the same random state.
    """

    def __init__(self, module: nn.Module, group: ProcessGroup) -> None:
        self.module, self.group, self.rank = module, group, group.rank()
        self._parallel: DistributedDataParallel | None = None
        self._trained: list[bool] = []

    def part(self, indices: NDArray[np.int64], chunk: int) -> NDArray[np.int64]:
        """(B / W,) this process's part of a batch (B,): an equal part of each of its chunks."""
        chunks = [indices[start : start + chunk] for start in range(0, len(indices), chunk)]
        return np.concatenate([np.split(images, self.group.size())[self.rank] for images in chunks])

    @property
    def network(self) -> nn.Module:
        """What a part of the batch is forwarded through; made anew where other parameters are trained than before."""
        trained = [parameter.requires_grad for parameter in self.module.parameters()]
        if trained != self._trained:
            self._trained, self._parallel = trained, None  # the hooks of the former go first
            if any(trained):
                self._parallel = DistributedDataParallel(
                    self.module, process_group=self.group, init_sync=False, static_graph=True, **_NO_BUFFERS
                )
        return self._parallel or self.module

    def gather(self, embeddings: Tensor) -> Tensor:
        """(n, D) the embeddings of a batch or of a chunk of it, from those (n / W, D) of each part."""
        gathered: Tensor = _Gather.apply(embeddings, self.group)
        return gathered

    @contextmanager
    def whole_batch(self) -> Iterator[None]:
        """Inside the block BatchNorms normalise by the whole batch, and dropout masks are drawn for all of it."""
        with ExitStack() as stack:
            for layer in self.module.modules():
                if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                    stack.enter_context(_replaced_forward(layer, partial(_batch_norm, layer, group=self.group)))
                elif isinstance(layer, _DROPOUTS):
                    forward = partial(_dropout, layer, layer.forward, group=self.group)
                    stack.enter_context(_replaced_forward(layer, forward))
            yield

    def equalise(self, tensors: Sequence[Tensor]) -> bool:
        """Give tensors the values of the first process; whether any had others, in whatever process."""
        differs = torch.zeros((), dtype=torch.int64)
        for tensor in tensors:
            first = tensor.detach().clone(memory_format=torch.contiguous_format)
            dist.broadcast(first, 0, group=self.group)
            if not torch.equal(first, tensor):
                differs += 1
                tensor.copy_(first)
        dist.all_reduce(differs, group=self.group)
        return bool(differs)

    def state_of_first(self, state: dict[str, Any], device: torch.device) -> dict[str, Any]:
        """The state of the first process, on this one's device."""
        stream = io.BytesIO()
        if self.rank == 0:
            torch.save(state, stream)
        values = [stream.getvalue()]
        dist.broadcast_object_list(values, 0, group=self.group)
        loaded: dict[str, Any] = torch.load(io.BytesIO(values[0]), map_location=device, weights_only=True)
        return loaded


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        own = own.contiguous()
        parts = [torch.empty_like(own) for _ in range(group.size())]
        dist.all_gather(parts, own, group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        group = ctx.group
        return gradients[0].chunk(group.size())[group.rank()] * group.size(), None


@contextmanager
def _replaced_forward(layer: nn.Module, forward: Any) -> Iterator[None]:
    replaced = layer.__dict__.get("forward")
    layer.forward = forward
    try:
        yield
    finally:
        if replaced is None:
            del layer.forward  # the class's is seen again
        else:
            layer.forward = replaced


def _dropout(layer: nn.Module, forward: Any, images: Tensor, *, group: ProcessGroup) -> Tensor:
    """Dropout of this process's part of the batch, by the mask that one process draws for all of it."""
    if not layer.training:
        output: Tensor = forward(images)
        return output
    size = (len(images) * group.size(), *images.shape[1:])
    # The order in memory decides which number is whose: that of the whole batch has the part's.
    order = sorted(range(images.dim()), key=lambda axis: (-images.stride()[axis], axis))
    ones = images.new_ones([size[axis] for axis in order]).permute([order.index(axis) for axis in range(images.dim())])
    mask: Tensor = forward(ones)
    return images * mask.chunk(group.size())[group.rank()]


def _batch_norm(layer: nn.modules.batchnorm._BatchNorm, images: Tensor, *, group: ProcessGroup) -> Tensor:
    """BatchNorm by mean and variance of the whole batch."""
    if not (layer.training or layer.running_mean is None):
        return F.batch_norm(
            images, layer.running_mean, layer.running_var, layer.weight, layer.bias, training=False, eps=layer.eps
        )
    normalised, mean, variance = _Normalise.apply(images, layer.eps, group)
    if layer.training and layer.running_mean is not None and layer.running_var is not None:
        with torch.no_grad():
            rate = layer.momentum
            if layer.num_batches_tracked is not None:
                layer.num_batches_tracked.add_(1)
                rate = 1 / float(layer.num_batches_tracked) if rate is None else rate
            count = images.numel() // images.shape[1] * group.size()
            layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), rate or 0.0)
            layer.running_var.lerp_((variance * count / (count - 1)).to(layer.running_var.dtype), rate or 0.0)
    if not layer.affine:
        return cast(Tensor, normalised.to(images.dtype))
    shape = (1, -1, *[1] * (images.dim() - 2))
    output = normalised * layer.weight.view(shape) + layer.bias.view(shape)
    return cast(Tensor, output.to(images.dtype))


class _Normalise(Function):
    """(B, C, ...) less the mean, over the deviation, of each channel in all processes' parts of the batch."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, eps: float, group: ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
        axes = [0, *range(2, images.dim())]
        numbers = images if images.dtype == torch.float64 else images.float()
        variance, mean = torch.var_mean(numbers, axes, correction=0)
        own = torch.stack([mean, variance])
        parts = [torch.empty_like(own) for _ in range(group.size())]
        dist.all_gather(parts, own, group=group)
        means, variances = torch.stack(parts).unbind(1)
        mean = means.mean(0)
        variance = variances.mean(0) + means.var(0, correction=0)
        normalised = F.batch_norm(numbers, mean, variance, training=False, eps=eps)
        ctx.group, ctx.axes, ctx.dtype = group, axes, images.dtype
        ctx.save_for_backward(normalised, (variance + eps).rsqrt())
        ctx.mark_non_differentiable(mean, variance)
        return normalised, mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        normalised, scale = ctx.saved_tensors
        gradient = gradients[0]
        sums = torch.stack([gradient.mean(ctx.axes), (gradient * normalised).mean(ctx.axes)])
        dist.all_reduce(sums, group=ctx.group)
        shape = (1, -1, *[1] * (gradient.dim() - 2))
        along, slope = (sums / ctx.group.size()).view(2, *shape).unbind(0)
        return ((gradient - along - normalised * slope) * scale.view(shape)).to(ctx.dtype), None, None
