"""Loss: what training minimises, with the parameters it learns beside the network's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters of a loss that train at a rate or decay of their own.

    Args:
        parameters: the loss's own.
        learning_rate: absolute; None = that of the network's new layers.
        weight_decay: absolute; None = that of the network.
    """

    parameters: list[nn.Parameter] = field(repr=False)
    learning_rate: float | None = None
    weight_decay: float | None = None


class Loss(nn.Module):
    """Embeddings and labels -> a scalar to minimise.

    A subclass is built as `Subclass(embedding_dim, num_classes, *, its own options)`.
    """

    sampler: ClassVar[str]  # the batches that suit it: classes | shuffled
    needs_positives: ClassVar[bool]  # every class of a batch at least twice

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings and (B,) labels in 0 ... num_classes - 1 -> scalar."""
        raise NotImplementedError

    def parameter_groups(self) -> list[ParameterGroup]:
        """All parameters of the loss, each in exactly one group."""
        parameters = list(self.parameters())
        return [ParameterGroup(parameters)] if parameters else []
