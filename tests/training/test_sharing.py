"""Several processes against one, in float64: every loss, BatchNorm, dropout, warm-ups, accumulated batches, chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from layerprobe.registry import LOSSES
from layerprobe.training.sharing import Sharing
from tests.launches import run_launch
from tests.training.shared_training import vgg16_bn_training

BEGIN = f"""
import os, sys
import torch
import torch.distributed as dist
sys.path.append({str(Path(__file__).parents[2])!r})
from tests.training.shared_training import vgg16_bn_training, trainings

dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
rank = dist.get_rank()
"""
# The third process trains alone while the others train together, then all three do.
PROGRAM = f"""{BEGIN}
pair = dist.new_group([0, 1])
torch.save(trainings(pair if rank < 2 else None), f"{{'alone' if rank == 2 else f'2-{{rank}}'}}.pt")
torch.save(trainings(dist.group.WORLD), f"3-{{rank}}.pt")
dist.barrier()
"""
VGG16_BN = f"""{BEGIN}
torch.save(vgg16_bn_training(dist.group.WORLD), f"{{rank}}.pt")
dist.barrier()
"""
Training = tuple[list[float], dict[str, Tensor]]
Trainings = dict[str, Training]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process has trained alone, two together and three together."""
    folder = tmp_path_factory.mktemp("shared")
    ended = run_launch(PROGRAM, size=3, folder=folder)
    assert [process.returncode for process in ended] == [0] * 3, ended
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path) -> Trainings:
    loaded: Trainings = torch.load(folder / "alone.pt")
    return loaded


@pytest.fixture(scope="module", params=[2, 3])
def shared(request: pytest.FixtureRequest, folder: Path) -> list[Trainings]:
    """The trainings of each process."""
    return [torch.load(folder / f"{request.param}-{rank}.pt") for rank in range(request.param)]


def assert_equal(shared: Training, alone: Training) -> None:
    """Assert that losses and weights agree to 1e-10."""
    (shared_losses, shared_weights), (losses, weights) = shared, alone
    assert shared_losses == pytest.approx(losses, rel=1e-10, abs=1e-10)
    for name, weight in weights.items():
        torch.testing.assert_close(shared_weights[name], weight, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("loss", LOSSES)
def test_processes_train_as_one_does(loss: str, alone: Trainings, shared: list[Trainings]) -> None:
    assert len(alone[loss][0]) == 4
    assert_equal(shared[0][loss], alone[loss])


def test_all_processes_end_with_the_same_bits(shared: list[Trainings]) -> None:
    for loss, (losses, weights) in shared[0].items():
        for other in shared[1:]:
            assert other[loss][0] == losses
            assert all(weight.equal(other[loss][1][name]) for name, weight in weights.items())


def test_every_chunk_is_shared_equally() -> None:
    class Group:
        def __init__(self, rank: int) -> None:
            self.rank, self.size = lambda: rank, lambda: 2

    parts = [Sharing(nn.Module(), Group(rank)).part(np.arange(10), chunk=4).tolist() for rank in range(2)]  # type: ignore[arg-type] # what it asks of a group
    assert parts == [[0, 1, 4, 5, 8], [2, 3, 6, 7, 9]]


@pytest.mark.slow
def test_two_processes_train_vgg16_bn_as_one_does(tmp_path: Path) -> None:
    alone = vgg16_bn_training(None)
    ended = run_launch(VGG16_BN, size=2, folder=tmp_path)
    assert [process.returncode for process in ended] == [0, 0], ended
    assert len(alone[0]) == 4
    assert_equal(torch.load(tmp_path / "0.pt"), alone)
