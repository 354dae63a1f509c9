"""A reduction that tests register: features less the mean of the training features."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


class Centred:
    def fit(self, batches: Iterable[tuple[Tensor, Tensor]], *, seed: int) -> Callable[[Tensor], Tensor]:
        mean = torch.cat([features for features, _ in batches]).mean(0)
        return lambda features: features - mean
