"""What the tests of post-processing share: features, and fitting a chain by its name."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.post_processing.applying import Blocks, process_blocks
from layerprobe.post_processing.chain import parse_chain

CPU = torch.device("cpu")


def features(count: int, dim: int, seed: int = 0, *, mean: float = 0.5) -> NDArray[np.float64]:
    """(count, dim) whose directions are correlated and vary by different amounts."""
    random = np.random.default_rng(seed)
    mixed: NDArray[np.float64] = random.normal(size=(count, dim)) @ random.normal(size=(dim, dim)) + mean
    return mixed


def fitted(text: str, train: NDArray[Any], asked: NDArray[Any], *, seed: int = 0) -> NDArray[np.float64]:
    """`asked` in float64 through the chain, fitted on `train`."""
    post_process = parse_chain(text).fit(Blocks(train, CPU), train.shape[1], seed=seed)
    return post_process(torch.from_numpy(asked)).numpy()


def stored(text: str, train: NDArray[Any], asked: NDArray[Any]) -> NDArray[Any]:
    """`asked` as it is ranked, through the chain fitted on `train`."""
    post_process = parse_chain(text).fit(Blocks(train, CPU), train.shape[1], seed=0)
    return process_blocks(Blocks(asked, CPU), post_process, len(asked)).numpy()
