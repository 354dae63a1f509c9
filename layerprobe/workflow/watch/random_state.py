"""Random state that a measurement leaves as it was."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def keep_random_state() -> Iterator[None]:
    """Restore the generators of torch (CPU and CUDA), numpy and Python at the end of the block."""
    # Before CUDA is initialised, nothing here draws from its generators, and its seed waits to be set.
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    of_numpy, of_python = np.random.get_state(), random.getstate()  # noqa: NPY002 - the user's
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)


def seed_transforms(seed: int) -> None:
    """Seed the generators that transforms of images draw from on the CPU.

    Not `torch.manual_seed`, which would also set the seed that CUDA is initialised with later.
    """
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - transforms draw from the global generator
    random.seed(seed)
