"""Losses by their registered names."""

from __future__ import annotations

from typing import Any

import torch

from layerprobe.losses.loss import Loss
from layerprobe.registry import LOSSES, load
from layerprobe.system.errors import RecipeError


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
