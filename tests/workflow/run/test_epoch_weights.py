from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from layerprobe.nets.net import Net
from layerprobe.system import memory
from layerprobe.system.errors import DataError, EnvironmentFault
from layerprobe.workflow.run.epoch_weights import (
    load_file,
    load_state,
    load_weights,
    read_tensors,
    save_state,
    save_weights,
)


class Turned(nn.Linear):
    """Its first version stored the weight transposed; it turns that of a file which does not say its version."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: dict[str, int], *rest: Any) -> None:
        if metadata.get("version", 1) < 2:
            state[f"{prefix}weight"] = state[f"{prefix}weight"].T
        super()._load_from_state_dict(state, prefix, metadata, *rest)


def test_weights_of_a_file_are_not_taken_for_those_of_an_older_class(tmp_path: Path) -> None:
    weight: Tensor = torch.arange(9.0).reshape(3, 3)
    torch.save({"state_dict": {"model.part.weight": weight, "model.part.bias": torch.zeros(3)}}, tmp_path / "their.pt")
    model = nn.Sequential()
    model.add_module("part", Turned(3, 3))
    load_file(Net(model, {}, 3, frozenset()), "mine", tmp_path / "their.pt", None)
    assert torch.equal(model.state_dict()["part.weight"], weight)


STATE = {"epoch": 3, "iteration": 6, "optimizer": {"state": {0: {"momentum_buffer": torch.ones(10_000)}}}}


def weights(path: Path) -> str:
    return save_weights(path, {"net": nn.Linear(100, 100)})


def state(path: Path) -> str:
    return save_state(path, path.with_name("resume.previous.pt"), STATE, recorded=())


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may have more than 20 kB; the files here have 40."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("save", [weights, state])
def test_a_disk_that_takes_no_more_is_told_and_leaves_the_old_file(tmp_path: Path, save: Callable[[Path], str]) -> None:
    path = tmp_path / "epoch-0003"
    path.write_text("old")
    with pytest.raises(EnvironmentFault, match="epoch-0003: the file is larger than the 20,000 bytes"):
        save(path)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("save", [weights, state])
def test_the_files_are_open_to_whom_the_umask_lets(tmp_path: Path, save: Callable[[Path], str]) -> None:
    save(tmp_path / "saved")
    (tmp_path / "other").touch()
    assert stat.S_IMODE((tmp_path / "saved").stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


def test_the_weights_have_the_bytes_of_safetensors(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    save_weights(tmp_path / "ours", {"net": module})
    safetensors.torch.save_file({f"net.{k}": v for k, v in module.state_dict().items()}, tmp_path / "theirs")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_the_state_has_the_same_bytes_whoever_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = state(tmp_path / "resume.pt")
    monkeypatch.setattr("os.getpid", lambda: 4711)
    assert state(tmp_path / "again.pt") == first
    assert load_state(tmp_path / "resume.pt", expected=[first])["epoch"] == 3


KILLED = """
import resource, signal, sys
from pathlib import Path
from torch import nn
from layerprobe.workflow.run.epoch_weights import save_weights
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the system kills at the write that passes the limit
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
save_weights(Path(sys.argv[1]), {"net": nn.Linear(100, 100)})
"""


def test_a_kill_in_mid_write_leaves_no_temporary_file_but_our_own(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, tmp_path / "epoch-0001.safetensors"])
    assert process.wait() == -signal.SIGXFSZ
    assert [path.name for path in tmp_path.iterdir()] == [f".epoch-0001.safetensors.{process.pid}.tmp"]


def test_weights_are_read_from_a_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9") / "epoch-0000.safetensors"
    saved, read = nn.Linear(2, 3), nn.Linear(2, 3)
    digest = save_weights(path, {"net": saved})
    load_weights(path, {"net": read}, expected=[digest])
    assert torch.equal(read.weight, saved.weight)


class OfKind(nn.Module):
    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(2, dtype=kind))


def test_complex_numbers_are_no_weights_of_a_real_network(tmp_path: Path) -> None:
    path = tmp_path / "epoch-0000.safetensors"
    save_weights(path, {"net": OfKind(torch.complex64)})
    with pytest.raises(DataError, match="epoch-0000.safetensors: scale holds complex numbers. Train it again"):
        load_weights(path, {"net": OfKind(torch.float32)}, expected=[])
    load_weights(path, {"net": OfKind(torch.complex64)}, expected=[])


def test_weights_are_not_written_where_memory_does_not_suffice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 3000 x 1000 numbers and 3000 of a bias, 4 bytes each, twice
    monkeypatch.setattr(memory, "free_memory", lambda: 20_000_000)
    with pytest.raises(EnvironmentFault, match="a.safetensors: needs 24 MB of memory, 20 MB are free"):
        save_weights(tmp_path / "a.safetensors", {"net": nn.Linear(1000, 3000)})
    assert list(tmp_path.iterdir()) == []


def test_single_tensors_are_read_by_their_names_in_the_module(tmp_path: Path) -> None:
    path, layer = tmp_path / "w", nn.Linear(2, 1)
    digest = save_weights(path, {"net": nn.Linear(3, 3), "loss": layer})
    found = read_tensors(path, "loss", ["bias"], expected=[digest])
    assert {name: tensor.tolist() for name, tensor in found.items()} == {"bias": layer.bias.tolist()}
    with pytest.raises(DataError, match=r"it has no loss\.scale\. Train it again"):
        read_tensors(path, "loss", ["scale"], expected=[])
    with pytest.raises(DataError, match="is not the file that the run wrote"):
        read_tensors(path, "loss", ["bias"], expected=["another"])
