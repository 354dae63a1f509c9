"""Ranks: what ranking gives and metrics and statistics take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CountArray = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Ranks:
    """Where each query's nearest same-class item stands. Filled in by ranking."""

    closer: CountArray
    closer_high: CountArray
    tied_negatives: CountArray
    tied_positives: CountArray
