"""Loss: what training minimises, the checks of its options, and losses by registered name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerprobe.losses.vectors import unit
from layerprobe.registry import LOSSES, load
from layerprobe.system.errors import RecipeError
from layerprobe.values.sections import Network, Problem, Train


def positive(name: str, value: float, meaning: str) -> float:
    """The value; ValueError unless it is a finite number above 0."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} is {value}; it is {meaning}, a number above 0")
    return float(value)


def at_least_zero(name: str, value: float, meaning: str) -> float:
    """The value; ValueError unless it is a finite number of at least 0."""
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{name} is {value}; it is {meaning}, a number of at least 0")
    return float(value)


def share(name: str, value: float) -> float:
    """The value; ValueError unless it is in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} is {value}; it is a share, at least 0 and below 1")
    return float(value)


def rate(name: str, value: float | None) -> float | None:
    """The value; ValueError unless it is None or a finite number above 0."""
    return None if value is None else positive(name, value, "a learning rate")


def parameter_rate(
    prefix: str, learning_rate: float | None, rate_factor: float | None, *, default: float
) -> tuple[float | None, float | None]:
    """The learning rate of a loss's own parameters, absolute or as a multiple of the network's: one of the two is None.

    Args:
        prefix: what the options `PREFIX_learning_rate` and `PREFIX_rate_factor` begin with.
        learning_rate: the first option; None for that of the network's new layers.
        rate_factor: the second; None: not given.
        default: of the first option. A factor replaces it.

    Raises:
        ValueError: one of them is not a finite number above 0, or both are given.
    """
    rate(f"{prefix}_learning_rate", learning_rate)
    if rate_factor is None:
        return learning_rate, None
    positive(f"{prefix}_rate_factor", rate_factor, "a multiple of the learning rate")
    if learning_rate not in (None, default):
        both = f"{prefix}_learning_rate is {learning_rate} and {prefix}_rate_factor is {rate_factor}"
        raise ValueError(f"{both}; both say how fast it trains, keep one")
    return None, rate_factor


def several_classes(num_classes: int) -> int:
    """The value; ValueError for a single class, since a loss needs another class."""
    if num_classes < 2:
        raise ValueError(f"num_classes is {num_classes}; telling classes apart needs at least 2")
    return num_classes


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

    def contradictions(self, train: Train, net: Network) -> list[Problem]:
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


class ProxyLoss(Loss):
    """A loss with a learnt proxy for each class; the logits are cosines times `scale`, unless it has others."""

    scale: Tensor
    proxies: nn.Parameter

    def logits(self, embeddings: Tensor) -> Tensor:
        """(B, D) -> (B, C), of all classes, without a margin."""
        return self.scale * F.linear(unit(embeddings), unit(self.proxies))

    @property
    def classifier_weight(self) -> Tensor:
        """(C, D) proxies of length 1, without gradient."""
        return unit(self.proxies.detach())


def loss(name: str, embedding_dim: int, num_classes: int, *, seed: int = 0, **options: Any) -> Loss:
    """Build a registered loss, such as `proxy_anchor`, with its own options.

    >>> import torch, layerprobe
    >>> triplet = layerprobe.loss("triplet", embedding_dim=2, num_classes=2, margin=0.5)
    >>> triplet(torch.eye(2).repeat(2, 1), torch.tensor([0, 1, 0, 1])).item()
    0.0
    >>> sorted(name for name in layerprobe.registry.LOSSES if "proxy" in name)
    ['proxy_anchor', 'proxy_nca', 'proxy_triplet']

    Args:
        name: a key of `layerprobe.registry.LOSSES`.
        embedding_dim: D.
        num_classes: C, the number of training classes; labels are 0 ... C - 1.
        seed: of the parameters that the loss draws; torch's own generators are unchanged.
        options: keyword arguments of the loss; see its class for the defaults.

    Returns:
        A module: embeddings (B, D) and labels (B,) -> a scalar to minimise. Its parameters, if it has any, are trained
        with the network's.

    Raises:
        UnknownNameError: no such loss, with the near miss.
        RecipeError: an option that is out of its range.
    """
    factory = load("loss", LOSSES, name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            built: Loss = factory(embedding_dim, num_classes, **options)
        except ValueError as error:
            raise RecipeError(f"loss {name}: {error}", fix="Change the option, or leave it out") from error
    return built
