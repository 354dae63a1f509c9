"""Estimates of the time, memory and disk space that a run needs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from layerprobe.system.errors import EnvironmentFault
from layerprobe.system.files import free_bytes, require_writable
from layerprobe.system.memory import peak_memory
from layerprobe.system.wording import as_size
from layerprobe.training.loop import Trainer
from layerprobe.values.estimate import Estimate
from layerprobe.values.sections import Keep
from layerprobe.workflow.run.kept import kept_epochs, wanted_epochs
from layerprobe.workflow.run.runs import Run

if TYPE_CHECKING:
    import torch

    from layerprobe.workflow.train.building import Built

_LONG_ENOUGH = 0.5  # seconds of steps that are timed; no further step begins after them


def require_space(run: Run, built: Built, keep: Keep, *, fresh: bool) -> None:
    """Check that the disk has room for a run before anything is written."""
    require_writable(run.folder)
    count = _checkpoints(_epochs_left(run, built.trainer, fresh), keep)
    needed, free = _disk(run, built, keep, fresh), free_bytes(run.folder)
    if needed > free:
        checkpoints = [f"{count} checkpoints"] if count else []
        what = " and ".join([*checkpoints, *(["the features of the layers to probe"] if built.features else [])])
        raise EnvironmentFault(
            f"{what} need {as_size(needed)}, {as_size(free)} are free",
            file=run.folder,
            fix="Free space, choose another --cache, or train fewer epochs",
        )


def estimate_training(run: Run, built: Built, keep: Keep, *, fresh: bool) -> Estimate:
    """Time up to three training steps and extrapolate to the epochs left; the trainer cannot be used afterwards."""
    require_writable(run.folder)
    trainer = built.trainer
    marks: list[float] = []

    def a_few_steps(loss: float) -> bool:  # noqa: ARG001 - the trainer's callback
        marks.append(time.perf_counter())
        return len(marks) < 4 and marks[-1] - marks[0] < _LONG_ENOUGH

    for _ in trainer.epochs(after_step=a_few_steps):
        pass
    # The first step is skipped: it includes the setup.
    step = (marks[-1] - marks[0]) / max(1, len(marks) - 1) if marks else 0.0
    left = _epochs_left(run, trainer, fresh)
    steps = sum(len(trainer.plan.batches(epoch)) for epoch in left if epoch > 0)
    return Estimate(step * steps, peak_memory(trainer.device), _disk(run, built, keep, fresh), free_bytes(run.folder))


def _epochs_left(run: Run, trainer: Trainer, fresh: bool) -> list[int]:
    epochs = range(trainer.plan.epochs + 1)
    if fresh or not run.exists():
        return [*epochs]
    record = run.read()
    removed = {*range(record.epochs_done + 1)} - {*kept_epochs(run, record)}
    return [epoch for epoch in epochs if epoch not in removed and not run.checkpoint_file(epoch).exists()]


def _checkpoints(left: Sequence[int], keep: Keep) -> int:
    """How many checkpoints lie on the disk at once: those kept, and two that are removed when the next is written."""
    wanted = wanted_epochs(keep, left[-1]) if left else set()
    return min(len(left), len(wanted.intersection(left)) + 2)


def _disk(run: Run, built: Built, keep: Keep, fresh: bool) -> int:
    """Bytes that are still to be written: checkpoints, states to resume from, and the features of `--probe`.

    Two states are kept while a third is written; each holds the optimiser's memory of every trained number.
    """
    trainer, left = built.trainer, _epochs_left(run, built.trainer, fresh)
    tensors: list[torch.Tensor] = [*trainer.net.module.state_dict().values(), *trainer.loss.state_dict().values()]
    weights: int = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    momentum = 1 if trainer.plan.momentum else 0
    kept = {"sgd": momentum, "rmsprop": 1 + momentum}.get(trainer.plan.optimizer, 2)  # adam and adamw have two
    there = 0 if fresh else sum(run.resume_file(previous=previous).exists() for previous in (False, True))
    states = 3 - there if left else 0
    features = sum(
        size
        for epoch in range(trainer.plan.epochs + 1)
        for split, size in built.features.items()
        if fresh or not run.has_features(epoch, split)
    )
    return weights * (_checkpoints(left, keep) + states * kept) + features
