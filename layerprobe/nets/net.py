"""Net: a network whose layers have the papers' names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, eq=False)
class Net:
    """A network that maps images to embeddings.

    Args:
        module: (B, 3, H, W) -> (B, D).
        layers: the papers' names -> module paths, in execution order.
        embedding_dim: D.
        new_parameters: names of the module's parameters that were not loaded from anywhere.
        notes: what was done to its weights that a user may not expect.
    """

    module: nn.Module
    layers: Mapping[str, str]
    embedding_dim: int
    new_parameters: frozenset[str]
    notes: tuple[str, ...] = ()
