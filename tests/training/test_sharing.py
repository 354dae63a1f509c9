"""Several processes against one, in float64: every loss, BatchNorm, dropout, warm-ups, accumulated batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from layerprobe.registry import LOSSES
from tests.launches import run_launch
from tests.training.shared_training import trainings

PROGRAM = """
import os
import torch
import torch.distributed as dist
from tests.training.shared_training import trainings

dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
torch.save(trainings(dist.group.WORLD), f"{dist.get_rank()}.pt")
dist.barrier()
"""
Trainings = dict[str, tuple[list[float], dict[str, Tensor]]]


@pytest.fixture(scope="module")
def alone() -> Trainings:
    return trainings(None)


@pytest.fixture(scope="module", params=[2, 3])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Trainings]:
    """The trainings of each process."""
    folder = tmp_path_factory.mktemp("shared")
    root = str(Path(__file__).parents[2])
    ended = run_launch(f"import sys; sys.path.append({root!r})\n{PROGRAM}", size=request.param, folder=folder)
    assert [process.returncode for process in ended] == [0] * request.param, ended
    return [torch.load(folder / f"{rank}.pt") for rank in range(request.param)]


@pytest.mark.parametrize("loss", LOSSES)
def test_processes_train_as_one_does(loss: str, alone: Trainings, shared: list[Trainings]) -> None:
    losses, weights = alone[loss]
    shared_losses, shared_weights = shared[0][loss]
    assert len(losses) == 4
    assert shared_losses == pytest.approx(losses, rel=1e-10, abs=1e-10)
    for name, weight in weights.items():
        torch.testing.assert_close(shared_weights[name], weight, rtol=1e-10, atol=1e-10)


def test_all_processes_end_with_the_same_bits(shared: list[Trainings]) -> None:
    for loss, (losses, weights) in shared[0].items():
        for other in shared[1:]:
            assert other[loss][0] == losses
            assert all(weight.equal(other[loss][1][name]) for name, weight in weights.items())
