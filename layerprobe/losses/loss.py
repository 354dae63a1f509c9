"""Loss: what training minimises, with the parameters it learns beside the network's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from layerprobe.values.sections import Network, Problem, Train

# More than any data set has: a number of classes that no option is too large for.
_MANY_CLASSES = 2**31


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters of a loss that train at a rate or decay of their own.

    Args:
        parameters: the loss's own.
        learning_rate: absolute; None = that of the network's new layers.
        weight_decay: absolute; None = that of the network.
        rate_factor: multiple of the network's learning rate, in the place of `learning_rate`; None = no multiple.
    """

    parameters: list[nn.Parameter] = field(repr=False)
    learning_rate: float | None = None
    weight_decay: float | None = None
    rate_factor: float | None = None


class Loss(nn.Module):
    """Embeddings and labels -> a scalar to minimise.

    A subclass is built as `Subclass(embedding_dim, num_classes, *, its own options)` and raises ValueError for an
    option out of its range. What it draws comes from torch's default generator of the embeddings' device, which the
    trainer seeds for each epoch. A learnt or heated temperature is the tensor `scale`, a parameter or a buffer, so
    that a schedule can change it and a checkpoint keeps it.

    A recipe is checked before any data are read, with a loss that has no values (see `checked`); a subclass adds to
    `contradictions` what its options and the rest of the recipe rule out together.
    """

    sampler: ClassVar[str]  # the batches that suit it: classes | shuffled | n_pairs | episodes
    needs_positives: ClassVar[bool]  # every class of a batch at least twice
    images_per_class: ClassVar[int] = 4  # of such a batch, unless the recipe says otherwise
    # train.clip_gradient with SGD, unless the recipe says otherwise; None: no limit.
    clip_gradient: ClassVar[float | None] = None

    # How many pairs, triplets ... of the last batch had a loss above zero; None if the loss has no inactive ones.
    informative: Tensor | None = None

    @classmethod
    def without_values(cls, options: Mapping[str, Any]) -> Self:
        """The loss on torch's meta device, for any number of classes: it takes no memory and draws nothing.

        Raises:
            ValueError: an option out of its range.
        """
        with torch.device("meta"):
            return cls(1, _MANY_CLASSES, **options)

    def contradictions(self, train: Train, net: Network) -> list[Problem]:  # noqa: ARG002 - for a subclass
        """What a recipe asks for that this loss cannot train with.

        Args:
            train: sampler and images a class filled in.
            net: with the network's own options.
        """
        if not self.needs_positives:
            return []
        if train.sampler == "shuffled":
            text = 'the loss needs each class twice in a batch. Set sampler = "classes"'
            return [Problem("train", text, ("sampler", "loss.name"))]
        k = train.images_per_class or 0
        if k < 2:
            text = f"images_per_class = {k}: the loss needs each class twice. Set 2 or more"
            return [Problem("train", text, ("images_per_class", "loss.name"))]
        if train.batch_size < 2 * k:
            shortage = f"batch_size = {train.batch_size} holds fewer than 2 classes of images_per_class = {k}"
            text = f"{shortage}, which the loss needs. Set at least {2 * k}"
            return [Problem("train", text, ("batch_size", "images_per_class", "loss.name"))]
        return []

    def effective_after(self) -> Mapping[str, int]:
        """Options that change the loss in the course of training -> after how many batches they do."""
        return {}

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings and (B,) labels in 0 ... num_classes - 1 -> scalar."""
        raise NotImplementedError

    def learnt_numbers(self) -> Mapping[str, str]:
        """Trained parameters that are no weights, one number or one for each class -> what a plot calls them."""
        return {}

    def parameter_groups(self) -> list[ParameterGroup]:
        """All parameters of the loss, each in exactly one group."""
        parameters = list(self.parameters())
        return [ParameterGroup(parameters)] if parameters else []
