"""Networks from elsewhere, made tiny, with random weights and as they are after `eval()`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Layers:
    """The least that has named layers."""

    module: nn.Module
    layers: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    root: str = ""
    final_norm: str | None = None
    prefix_tokens: int | None = None


def images(size: int, count: int = 2) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def timm_vit(**options: Any) -> nn.Module:
    """32 px, 4 x 4 patches after 1 class token, 2 blocks of 32 channels; it takes other sizes only if told to."""
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    fixed = dict[str, Any](img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=0)
    model: nn.Module = VisionTransformer(**{**fixed, **options})
    return model.eval()


def timm_swin() -> nn.Module:
    """64 px only; maps (16, 16, 24) and (8, 8, 48), with their channels last."""
    from timm.models.swin_transformer import SwinTransformer

    torch.manual_seed(0)
    model: nn.Module = SwinTransformer(
        img_size=64, window_size=4, embed_dim=24, depths=(2, 2), num_heads=(2, 4), num_classes=0
    )
    return model.eval()
