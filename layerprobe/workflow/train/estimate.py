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
from layerprobe.values.costs import Estimate
from layerprobe.values.sections import Keep
from layerprobe.workflow.run.runs import Run, kept_epochs, wanted_epochs

if TYPE_CHECKING:
    import torch

    from layerprobe.workflow.train.building import Built

_LONG_ENOUGH = 0.5  # seconds of steps that are timed; no further step begins after them


def require_space(run: Run, built: Built, keep: Keep, *, fresh: bool) -> None:
    """Check that the disk has room for a run before anything is written."""
    require_writable(run.folder)
    count = _count_checkpoints(_remaining_epochs(run, built.trainer, fresh), keep)
    needed, free = _disk_bytes(run, built, keep, fresh), free_bytes(run.folder)
    if needed > free:
        checkpoints = [f"{count} checkpoints"] if count else []
        contents = " and ".join([*checkpoints, *(["the features of the layers to probe"] if built.features else [])])
        raise EnvironmentFault(
            f"{contents} need {as_size(needed)}, {as_size(free)} are free",
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
    epochs = _remaining_epochs(run, trainer, fresh)
    steps = sum(len(trainer.plan.batches(epoch)) for epoch in epochs if epoch > 0)
    return Estimate(
        step * steps, peak_memory(trainer.device), _disk_bytes(run, built, keep, fresh), free_bytes(run.folder)
    )


def _remaining_epochs(run: Run, trainer: Trainer, fresh: bool) -> list[int]:
    epochs = range(trainer.plan.epochs + 1)
    if fresh or not run.exists():
        return [*epochs]
    record = run.read()
    removed = {*range(record.epochs_done + 1)} - {*kept_epochs(run, record)}
    return [epoch for epoch in epochs if epoch not in removed and not run.checkpoint_file(epoch).exists()]


def _count_checkpoints(epochs: Sequence[int], keep: Keep) -> int:
    """The most checkpoints on disk at once: those that `keep` retains, and two that go when the next is written."""
    permanent = wanted_epochs(keep, epochs[-1]) if epochs else set()
    return min(len(epochs), len(permanent.intersection(epochs)) + 2)


def _disk_bytes(run: Run, built: Built, keep: Keep, fresh: bool) -> int:
    """Bytes that are still to be written: checkpoints, states to resume from, and the features of `--probe`.

    Two states are kept while a third is written; each holds the optimiser's memory of every trained number.
    """
    trainer, epochs = built.trainer, _remaining_epochs(run, built.trainer, fresh)
    tensors: list[torch.Tensor] = [*trainer.net.module.state_dict().values(), *trainer.loss.state_dict().values()]
    weights: int = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    momentum = 1 if trainer.plan.momentum else 0
    # Numbers that the optimiser keeps for each weight: adam and adamw have two.
    numbers_per_weight = {"sgd": momentum, "rmsprop": 1 + momentum}.get(trainer.plan.optimizer, 2)
    stored_states = 0 if fresh else sum(run.resume_file(previous=previous).exists() for previous in (False, True))
    states = 3 - stored_states if epochs else 0
    features = sum(
        size
        for epoch in range(trainer.plan.epochs + 1)
        for split, size in built.features.items()
        if fresh or not run.has_features(epoch, split)
    )
    return weights * (_count_checkpoints(epochs, keep) + states * numbers_per_weight) + features
