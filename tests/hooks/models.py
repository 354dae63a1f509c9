"""Networks from elsewhere, made tiny, with random weights and as they are after `eval()`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
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
    classifier: str | None = None
    own_pool: bool = False
    channels: int = 3


def images(size: int, count: int = 2) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def timm_vit(**options: Any) -> Any:
    """32 px, 4 x 4 patches after 1 class token, 2 blocks of 32 channels; it takes other sizes only if told to."""
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    fixed = dict[str, Any](img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=0)
    return VisionTransformer(**{**fixed, **options}).eval()


def timm_swin() -> nn.Module:
    """64 px only; maps (16, 16, 24) and (8, 8, 48), with their channels last."""
    from timm.models.swin_transformer import SwinTransformer

    torch.manual_seed(0)
    model: nn.Module = SwinTransformer(
        img_size=64, window_size=4, embed_dim=24, depths=(2, 2), num_heads=(2, 4), num_classes=0
    )
    return model.eval()


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor | None]]:
        return x, {"half": x[:, :1], "none": None}


class Tokens(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2)


class Small(nn.Module):
    """(B, 3, 8, 8) -> conv -> norm -> relu -> relu -> (B, 4): modules of every kind that a hook may meet."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(4, 4)
        self.fc6 = nn.Linear(4, 4)  # registered before it runs
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.norm.bias.data = torch.tensor([-9.0, 0.0, 0.5, 1.0])  # the first channel is negative everywhere
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.pair = Pair()
        self.tokens = Tokens()
        self.last = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.conv(x)))
        x = self.drop(self.relu(F.max_pool2d(x, 2) - 0.5))
        self.pair(x)
        self.tokens(x)
        embeddings: Tensor = self.last(self.fc6(x.mean((2, 3))))
        return embeddings


class TorchEncoder(nn.Module):
    """(B, 3, 32, 32) -> 16 tokens of 32 channels through torch's own encoder layer -> their mean."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, 32, 8, 8)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.encoder(self.patches(x).flatten(2).transpose(1, 2))
        return tokens.mean(1)
