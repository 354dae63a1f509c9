"""ProbeInputs: the model and the images of a probe from Python, as hashes by which a run of them is found again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

EPOCH, SEED = 0, 0  # in scores: nothing is trained, and reductions draw from this seed


@dataclass(frozen=True)
class ProbeInputs:
    """What a probe measures: a model, and the images of each split.

    Args:
        weights_sha256: hash of the module; empty where nothing is stored.
        images: split -> hash of each image and its label, in the loader's order; none where nothing is stored.
    """

    model: str
    weights_sha256: str
    images: Mapping[str, tuple[str, ...]]

    @property
    def sha256(self) -> str:
        """Hash of all of it, whatever the order of the images."""
        parts = (f"{split} {self.contents(split)}" for split in self.images)
        return hashlib.sha256("\0".join([self.model, self.weights_sha256, *parts]).encode()).hexdigest()

    def contents(self, split: str) -> str:
        """Hash of a split's images, whatever their order; empty where nothing is stored."""
        return (
            "" if not self.images[split] else hashlib.sha256("".join(sorted(self.images[split])).encode()).hexdigest()
        )

    def in_order(self, split: str) -> str:
        """Hash of a split's images in the loader's order, which is that of the features."""
        return hashlib.sha256("".join(self.images[split]).encode()).hexdigest()

    @property
    def run_name(self) -> str:
        """The name of the run, `ResNet-1a2b3c`."""
        return f"{folder_name(self.model)}-{self.sha256[:6]}"

    @property
    def experiment(self) -> str:
        """As in scores; empty where nothing is stored."""
        return self.sha256[:12] if self.weights_sha256 else ""


def folder_name(model: str) -> str:
    """A model's name with the characters that the name of a run may have."""
    return re.sub("[^A-Za-z0-9._-]+", "-", model).lstrip("._-") or "model"


def image_digests(images: Tensor, labels: NDArray[Any]) -> list[str]:
    """A hash of each image and its label."""
    rows = images.detach().cpu().contiguous().view(torch.uint8).flatten(1).numpy()
    return [
        f"{hashlib.blake2b(row.data, digest_size=16).hexdigest()} {label}\n"
        for row, label in zip(rows, labels.tolist(), strict=True)
    ]


def weights_sha256(module: nn.Module) -> str:
    """Hash of a module's `repr`, parameters and buffers.

    The `repr` belongs to it, as an activation or a stride changes features and has no parameter. Models that differ
    only in the code of a `forward` have the same hash.
    """
    # A part may print an object's address.
    digest = hashlib.sha256(re.sub(r" at 0x[0-9a-fA-F]+", "", repr(module)).encode())
    for name, value in module.state_dict().items():
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\0".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
