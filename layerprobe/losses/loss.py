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

    A subclass is built as `Subclass(embedding_dim, num_classes, *, its own options)` and raises ValueError for an
    option out of its range. What it draws comes from torch's default generator of the embeddings' device, which the
    trainer seeds for each epoch. A learnt or heated temperature is the tensor `scale`, a parameter or a buffer, so
    that a schedule can change it and a checkpoint keeps it.
    """

    sampler: ClassVar[str]  # the batches that suit it: classes | shuffled | n_pairs | episodes
    needs_positives: ClassVar[bool]  # every class of a batch at least twice
    images_per_class: ClassVar[int] = 4  # of such a batch, unless the recipe says otherwise
    similarity: ClassVar[str] = "cosine"  # what it trains, and so what to search by: cosine | dot | euclidean

    # Of the last batch: pairs, triplets ... whose loss was not zero; None where every one always counts.
    informative: Tensor | None = None

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings and (B,) labels in 0 ... num_classes - 1 -> scalar."""
        raise NotImplementedError

    def parameter_groups(self) -> list[ParameterGroup]:
        """All parameters of the loss, each in exactly one group."""
        parameters = list(self.parameters())
        return [ParameterGroup(parameters)] if parameters else []
