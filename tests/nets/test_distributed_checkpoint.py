"""Folders as torch.distributed.checkpoint writes them in one process; attacks write a file where their code runs."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_saver import save

from layerprobe.nets.checkpoint_files import read_checkpoint
from layerprobe.nets.distributed_checkpoint import read_distributed
from layerprobe.system.errors import DataError

STATE = {"conv.weight": torch.arange(24.0).reshape(2, 3, 4), "bn.count": torch.tensor(7), "h": torch.ones(3).bfloat16()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with torch.random.fork_rng(), pytest.warns(UserWarning, match="assuming the intent is to save in a single process"):
        save({"model": STATE, "epoch": 3, "optimiser": {"state": [Path("x")]}}, checkpoint_id=tmp_path / "step-100")
    return tmp_path / "step-100"


def holds_state(tensors: dict[str, Tensor]) -> bool:
    return tensors.keys() == {f"model.{name}" for name in STATE} and all(
        torch.equal(tensors[f"model.{name}"], value) and tensors[f"model.{name}"].dtype == value.dtype
        for name, value in STATE.items()
    )


@pytest.mark.parametrize("name", ["", ".metadata", "__0_0.distcp"])
def test_a_folder_and_each_of_its_files_give_all_tensors(folder: Path, name: str) -> None:
    assert holds_state(dict(read_checkpoint(folder / name).tensors))


def test_the_folder_that_accelerate_makes_around_it_is_found(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "checkpoint-9" / "pytorch_model_fsdp_0")
    assert holds_state(dict(read_checkpoint(tmp_path / "checkpoint-9").tensors))


class Attack:
    """Pickled, it is a call."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[object, ...]:
        return self.call


@pytest.mark.parametrize("function", [os.system, eval])
def test_no_code_of_the_metadata_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, function: Callable[..., object]
) -> None:
    monkeypatch.chdir(folder)
    code = "touch canary" if function is os.system else "open('canary', 'w')"
    (folder / ".metadata").write_bytes(pickle.dumps(Attack(function, code)))
    with pytest.raises(
        DataError, match=rf"\.metadata: holds Python code \(\w+\.{function.__name__}\); layerprobe does"
    ):
        read_distributed(folder)
    assert not (folder / "canary").exists()


def test_no_code_of_the_data_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    torch.save(Attack(os.system, "touch canary"), folder / "__0_0.distcp")
    with pytest.raises(DataError, match=r"a damaged folder of torch\.distributed\.checkpoint"):
        read_distributed(folder)
    assert not (folder / "canary").exists()


def test_metadata_that_name_a_file_elsewhere_are_refused(folder: Path) -> None:
    path = folder / ".metadata"
    path.write_bytes(path.read_bytes().replace(b"__0_0.distcp", b"../elsewhere"))
    with pytest.raises(DataError, match=r"names \.\./elsewhere, not a .distcp file beside it"):
        read_distributed(folder)


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_a_damaged_folder_is_called_so(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"step-100: a damaged folder of torch\.distributed\.checkpoint\. Copy or"):
        read_distributed(folder)


def test_a_pipe_in_the_place_of_a_part_is_not_waited_for(folder: Path) -> None:
    (folder / "__0_0.distcp").unlink()
    os.mkfifo(folder / "__0_0.distcp")
    with pytest.raises(DataError, match=r"__0_0\.distcp: a pipe, socket or device, not a file"):
        read_checkpoint(folder)


def test_a_file_without_its_metadata_asks_for_the_folder(folder: Path) -> None:
    (folder / ".metadata").unlink()
    with pytest.raises(DataError, match=r"whose \.metadata is not beside it\. Copy the whole folder"):
        read_checkpoint(folder / "__0_0.distcp")


def test_metadata_leave_torchs_own_classes_alone(folder: Path) -> None:
    before = dict(vars(TensorStorageMetadata))
    read_distributed(folder)
    assert dict(vars(TensorStorageMetadata)) == before


def test_parts_that_do_not_make_up_a_tensor_are_refused(folder: Path) -> None:
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    entry = metadata.state_dict_metadata["model.conv.weight"]
    entry.size = torch.Size([4, 3, 4])
    path.write_bytes(pickle.dumps(metadata))
    with pytest.raises(DataError, match="its parts of model.conv.weight have 24 of 48 numbers"):
        read_distributed(folder)
