"""Estimates of the time, memory and disk space that a run needs."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from layerprobe.errors import EnvironmentFault
from layerprobe.files import free_bytes
from layerprobe.runs import Run
from layerprobe.training.loop import Trainer
from layerprobe.wording import as_size

_LONG_ENOUGH = 0.5  # seconds of steps that are timed; no further step begins after them


@dataclass(frozen=True)
class Estimate:
    """Seconds of work, bytes of peak memory, bytes on disk, and bytes free on that disk."""

    seconds: float
    memory: int
    disk: int
    free: int


def require_space(run: Run, trainer: Trainer, *, fresh: bool) -> None:
    """Check that the run's checkpoints fit on its disk before the first one is written.

    Raises:
        EnvironmentFault: they do not; with both numbers.
    """
    left = _epochs_left(run, trainer, fresh)
    needed, free = _disk(trainer, len(left)), free_bytes(run.folder)
    if left and needed > free:
        raise EnvironmentFault(
            f"{len(left)} checkpoints need {as_size(needed)}, {as_size(free)} are free",
            file=run.folder,
            fix="Free space, choose another --cache, or train fewer epochs",
        )


def estimate_training(run: Run, trainer: Trainer, *, fresh: bool) -> Estimate:
    """Time up to three training steps and extrapolate to the epochs left; the trainer cannot be used afterwards."""
    marks: list[float] = []

    def a_few_steps(loss: float) -> bool:  # noqa: ARG001 - the trainer's callback
        marks.append(time.perf_counter())
        return len(marks) < 4 and marks[-1] - marks[0] < _LONG_ENOUGH

    for _ in trainer.epochs(after_step=a_few_steps):
        pass
    # The first step is left out: it also sets things up.
    step = (marks[-1] - marks[0]) / max(1, len(marks) - 1) if marks else 0.0
    left = _epochs_left(run, trainer, fresh)
    steps = sum(len(trainer.plan.batches(epoch)) for epoch in left if epoch > 0)
    disk = _disk(trainer, len(left))
    return Estimate(step * steps, peak_memory(trainer.device), disk, free_bytes(run.folder))


def _epochs_left(run: Run, trainer: Trainer, fresh: bool) -> list[int]:
    return [epoch for epoch in range(trainer.plan.epochs + 1) if fresh or not run.checkpoint_file(epoch).exists()]


def _disk(trainer: Trainer, checkpoints: int) -> int:
    """Bytes of a number of checkpoints and of two resume states, which hold the optimiser's memory of each weight."""
    tensors: list[torch.Tensor] = [*trainer.net.module.state_dict().values(), *trainer.loss.state_dict().values()]
    weights: int = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    kept = 2 if trainer.plan.optimizer in ("adam", "adamw") else 1
    return weights * (checkpoints + 2 * kept) if checkpoints else 0


def peak_memory(device: torch.device) -> int:
    """Peak memory of this process in bytes; on a GPU, the peak that torch allocated there."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kilobytes


def feature_disk(dims: Iterable[int], images: int) -> int:
    """Bytes of float32 features of so many images."""
    return 4 * images * sum(dims)
