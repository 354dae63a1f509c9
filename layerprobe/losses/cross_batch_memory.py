"""Cross-batch memory: pairs between a batch and the embeddings of earlier ones."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from layerprobe.losses.loss import Loss
from layerprobe.losses.vectors import unit


class CrossBatchMemory(Loss):
    """Contrastive loss of a batch against itself and the last embeddings of earlier batches.

    Wang et al., Cross-Batch Memory for Embedding Learning, CVPR 2020: the mean over the batch's images i of the sum of
    1 - s_ij over their positives and of [s_ij - margin]_+ over their negatives, s the cosine, j the batch's other
    images and those remembered. No gradient flows through the memory. It is used after `warmup` batches, when the
    network changes slowly. `informative` counts the negatives above the margin and the positives below 1.

    The memory and its position are buffers, so that a checkpoint keeps them.

    Args:
        embedding_dim: D.
        num_classes: not used.
        size: M, embeddings remembered, at least 1; a share of the training set up to all of it in the paper.
        warmup: batches before the memory is used; 1,000 in the paper.
        margin: cosine below which a negative is far enough, in (-1, 1).
    """

    sampler = "classes"
    needs_positives = True
    memory: Tensor
    labels: Tensor
    position: Tensor
    batches: Tensor

    def __init__(
        self, embedding_dim: int, num_classes: int, *, size: int = 1024, warmup: int = 1000, margin: float = 0.5
    ) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"size is {size}; it is a number of embeddings, at least 1")
        if warmup < 0:
            raise ValueError(f"warmup is {warmup}; it is a number of batches, at least 0")
        if not -1 < margin < 1:
            raise ValueError(f"margin is {margin}; it is a cosine, above -1 and below 1")
        self.warmup, self.margin = warmup, margin
        self.register_buffer("memory", torch.zeros(size, embedding_dim))
        self.register_buffer("labels", torch.full((size,), -1))  # -1: nothing is there yet
        self.register_buffer("position", torch.tensor(0))
        self.register_buffer("batches", torch.tensor(0))

    def effective_after(self) -> Mapping[str, int]:
        """The memory, which waits for the warm-up."""
        return {"warmup": self.warmup}

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings of any length and (B,) labels -> scalar; while training, the batch is remembered.

        Raises:
            ValueError: no image has another one of its class, in the batch or in the memory.
        """
        x = unit(embeddings)
        remembered = (self.labels >= 0) & (self.batches >= self.warmup)
        references = torch.cat([x, self.memory.to(x.dtype)[remembered]])
        classes = torch.cat([labels, self.labels[remembered]])
        same = labels[:, None] == classes[None, :]
        itself = torch.zeros_like(same)
        itself[:, : len(x)].fill_diagonal_(True)
        if not bool((same & ~itself).any()):
            raise ValueError("a batch without positive pairs: it needs one class twice")
        cosines = x @ references.T
        losses = torch.where(same, 1 - cosines, F.relu(cosines - self.margin)).masked_fill(itself, 0.0)
        self.informative = (losses.detach() > 0).sum()
        if self.training:
            self._remember(x.detach(), labels)
        return losses.sum(1).mean()

    def _remember(self, x: Tensor, labels: Tensor) -> None:
        size = len(self.labels)
        x, labels = x[-size:], labels[-size:]  # of a larger batch the last ones
        places = (self.position + torch.arange(len(labels), device=labels.device)) % size
        self.memory[places] = x.to(self.memory.dtype)
        self.labels[places] = labels
        self.position.add_(len(labels)).remainder_(size)
        self.batches.add_(1)
