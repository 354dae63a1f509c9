"""Post-processing that tests register: features less the mean of the training features."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from layerprobe.post_processing.post_processing import FitInputs


class Centred:
    fits = True
    draws = needs_classifier = needs_labels = False
    similarity = None
    number = "float32"
    members = ()

    def dim(self, dim: int) -> int:
        return dim

    def fit(self, batches: Iterable[Tensor], dim: int, inputs: FitInputs) -> Callable[[Tensor], Tensor]:
        mean = torch.cat(list(batches)).mean(0)
        return lambda features: features - mean
