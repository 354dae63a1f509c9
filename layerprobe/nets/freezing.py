"""Batch normalisation that no longer learns."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class FrozenBatchNorm(nn.Module):
    """A BatchNorm in evaluation mode, whatever the module's mode.

    Mean, variance, weight and bias keep their names in the state but are all buffers: neither `train()` nor
    `requires_grad_(True)` of a network around it sets them moving, and no optimiser sees them.
    """

    running_mean: Tensor
    running_var: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.eps = norm.eps
        for name, tensor in norm.state_dict().items():
            self.register_buffer(name, tensor)

    def forward(self, maps: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        return F.batch_norm(maps, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


def freeze_batch_norm(module: nn.Module, learning: tuple[str, ...]) -> bool:
    """Freeze every BatchNorm of maps; returns whether there was one."""
    has_batch_norm = False
    for path, norm in list(module.named_modules()):
        if isinstance(norm, nn.BatchNorm2d):
            has_batch_norm = True
            if not f"{path}.".startswith(learning):
                module.set_submodule(path, FrozenBatchNorm(norm))
    return has_batch_norm
