"""Folders as torch.distributed.checkpoint writes them in one process; attacks write a file where their code runs."""

from __future__ import annotations

import io
import re
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, distributed, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

from layerprobe.nets.checkpoint_files import read_checkpoint
from layerprobe.system.errors import DataError

WEIGHTS = {"conv1.weight": torch.arange(6.0).reshape(2, 3), "bn1.num_batches_tracked": torch.tensor(4)}


def equal(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def saved(folder: Path, content: object) -> Path:
    torch.save(content, folder / "w.pt")
    return folder / "w.pt"


def test_a_torch_file_and_a_safetensors_file_give_the_same(tmp_path: Path) -> None:
    safetensors.torch.save_file(WEIGHTS, tmp_path / "w.safetensors")
    assert equal(read_checkpoint(tmp_path / "w.safetensors").tensors, WEIGHTS)
    assert equal(read_checkpoint(saved(tmp_path, WEIGHTS)).tensors, WEIGHTS)


def test_the_keys_of_nested_dicts_stand_before_a_tensors_name(tmp_path: Path) -> None:
    content = {"epoch": 3, "model": {"net": WEIGHTS, "scale": torch.tensor(2.0)}, "optimizer": {0: {"exp_avg": 1}}}
    assert equal(
        read_checkpoint(saved(tmp_path, content)).tensors,
        {f"model.net.{name}": value for name, value in WEIGHTS.items()} | {"model.scale": torch.tensor(2.0)},
    )


def test_parameters_come_without_their_gradients_graph(tmp_path: Path) -> None:
    found = read_checkpoint(saved(tmp_path, {"a": nn.Parameter(torch.ones(2))})).tensors["a"]
    assert type(found) is Tensor
    assert not found.requires_grad


def test_a_dict_that_lies_in_itself_is_read_once(tmp_path: Path) -> None:
    content: dict[str, object] = dict(WEIGHTS)
    content["again"] = content
    assert equal(read_checkpoint(saved(tmp_path, content)).tensors, WEIGHTS)


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, {"a": {"b": torch.ones(1)}, "a.b": torch.zeros(1)})
    with pytest.raises(DataError, match=r"w\.pt: holds two tensors called a\.b\. Save the network's state_dict"):
        read_checkpoint(path)


class AttributedDict:
    """A dict with attributes of the names of methods."""

    def __reduce__(self) -> tuple[object, ...]:
        return (OrderedDict, (), {"items": 1, "keys": 1}, None, iter(WEIGHTS.items()))


class AttributedTensor:
    """A tensor with attributes of the names of methods."""

    def __reduce__(self) -> tuple[object, ...]:
        rebuild, arguments = torch.ones(2).__reduce_ex__(2)
        return (torch._tensor._rebuild_from_type_v2, (rebuild, Tensor, arguments, {"detach": 1, "isfinite": 1}))


def test_attributes_that_a_file_gives_its_dicts_and_tensors_hide_no_method(tmp_path: Path) -> None:
    found = read_checkpoint(saved(tmp_path, {"a": AttributedDict(), "t": AttributedTensor()})).tensors
    assert list(found) == ["a.conv1.weight", "a.bn1.num_batches_tracked", "t"]
    assert found["t"].isfinite().all()


def test_sparse_tensors_and_tensors_without_numbers_are_left_out(tmp_path: Path) -> None:
    content = {"a": torch.ones(1), "b": torch.eye(2).to_sparse(), "c": torch.empty(10**9, device="meta")}
    assert list(read_checkpoint(saved(tmp_path, content)).tensors) == ["a"]


def truncated() -> bytes:
    whole = io.BytesIO()
    torch.save(WEIGHTS, whole)
    return whole.getvalue()[:-100]


def archive(entry: str) -> bytes:
    with zipfile.ZipFile(content := io.BytesIO(), "w") as entries:
        entries.writestr(entry, b"")
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty. Download it again."),
        (b"<!DOCTYPE html><html>", "this is an HTML page, not weights. Download it again."),
        (b"\n <HTML><body>", "this is an HTML page, not weights. Download it again."),
        (b"version https://git-lfs.github.com/spec/v1\n", "this is a git-lfs pointer, not weights."),
        (truncated(), "truncated, or no weights file. Download it again."),
        (b"just some text", "no weights file of torch or safetensors. Give a file of torch.save or of safetensors."),
        (b'{"weight_map": {}}', "this is JSON, not weights. Name the weights themselves."),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras saves weights. Use the model's weights for PyTorch."),
        (b"GGUF\x03", "a GGUF file. Convert it by transformers: AutoModel.from_pretrained(FOLDER, gguf_file=FILE)"),
        (b"\x1f\x8b\x08", "compressed by gzip. Unpack it and name the file inside."),
        (archive("a.npy"), "arrays of NumPy (.npz), not torch's tensors. timm reads those of its models: model.load"),
        (
            archive("a/constants.pkl"),
            "holds a TorchScript program. Convert it by torch: torch.save(torch.jit.load(FILE)",
        ),
        (archive("a/archive_format"), "holds a program of torch.export (.pt2). Convert it by torch: torch.save(dict("),
        (archive("a/b.pth"), "a zip archive. Unpack it and name the file inside."),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_what_is_no_weights_file_is_said_to_be_what_it_is(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(DataError, match=re.escape(f"{tmp_path / 'w.pt'}: {message}")):
        read_checkpoint(tmp_path / "w.pt")


def test_a_truncated_safetensors_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(WEIGHTS, path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"w\.safetensors: truncated, or no safetensors file"):
        read_checkpoint(path)


def test_an_absent_file_is_an_error_with_the_ways_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"w\.pt: no readable weights file: No such file .* net\.weights=none"):
        read_checkpoint(tmp_path / "w.pt")


@pytest.mark.parametrize("content", [{"epoch": 3, "history": [1.0]}, torch.ones(2)])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(
        DataError, match=r"does not hold tensors by their names\. Save the network's state_dict\(\) alone\."
    ):
        read_checkpoint(saved(tmp_path, content))


@pytest.mark.parametrize("content", [nn.Linear(2, 2), {"epoch": 3, "model": nn.Linear(2, 2)}], ids=["alone", "nested"])
def test_a_whole_module_is_called_so_with_the_call_that_saves_its_state(tmp_path: Path, content: object) -> None:
    message = r"holds a Python object, such as a whole module, .* torch\.save\(torch\.load\(FILE, weights_only=False\)"
    with pytest.raises(DataError, match=message):
        read_checkpoint(saved(tmp_path, content))


@pytest.mark.parametrize("name", ["_fsdp_wrapped_module._flat_param", "layer1.flat_param"])
def test_flat_parameters_of_fsdp_are_called_so(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path, {"model": {name: torch.ones(9)}})
    message = rf"the part of FSDP's weights that one process has: model\.{name} is all .*get_model_state_dict"
    with pytest.raises(DataError, match=message):
        read_checkpoint(path)


@pytest.mark.filterwarnings("ignore:.*pickling/unpickling of the DeviceMesh")
def test_the_pieces_of_fsdps_tensors_are_called_so(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        piece = distribute_tensor(torch.ones(2), init_device_mesh("cpu", (1,)))
        saved(tmp_path, {"model": {"a": piece, "count": torch.ones(1)}})
    finally:
        distributed.destroy_process_group()
    (tmp_path / "sharded").mkdir()
    for path in (tmp_path / "w.pt", saved(tmp_path / "sharded", {"a": ShardedTensorMetadata()})):
        with pytest.raises(DataError, match=r"the part of FSDP's weights that one process has: .* Save the whole"):
            read_checkpoint(path)


@pytest.mark.parametrize(
    "name", ["zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt"]
)
def test_a_piece_of_zero_is_called_so_with_the_command_of_deepspeed(tmp_path: Path, name: str) -> None:
    (tmp_path / "latest").write_text("global_step3\n")
    (tmp_path / "global_step3").mkdir()
    torch.save({"module": {}}, tmp_path / "global_step3" / name)
    command = re.escape(f"python {tmp_path}/zero_to_fp32.py {tmp_path} OUT")
    with pytest.raises(DataError, match=rf"DeepSpeed's ZeRO, .*{command}"):
        read_checkpoint(tmp_path / "global_step3" / name)


def test_safetensors_are_read_under_any_name(tmp_path: Path) -> None:
    safetensors.torch.save_file(WEIGHTS, tmp_path / "a.bin")
    assert equal(read_checkpoint(tmp_path / "a.bin").tensors, WEIGHTS)


def test_a_file_of_torch_by_the_name_of_safetensors_is_called_so(tmp_path: Path) -> None:
    saved(tmp_path, WEIGHTS).rename(tmp_path / "w.safetensors")
    with pytest.raises(
        DataError, match=r"a file of torch\.save, not of safetensors\. Change its name to end in \.pt\."
    ):
        read_checkpoint(tmp_path / "w.safetensors")


def test_a_shard_is_read_with_the_others(tmp_path: Path) -> None:
    for place, (name, tensor) in enumerate(WEIGHTS.items(), 1):
        torch.save({name: tensor}, tmp_path / f"pytorch_model-{place:05}-of-00002.bin")
    assert equal(read_checkpoint(tmp_path / "pytorch_model-00002-of-00002.bin").tensors, WEIGHTS)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    for place in (1, 2):
        torch.save(WEIGHTS, tmp_path / f"m-{place}-of-2.bin")
    with pytest.raises(DataError, match=r"m-2-of-2\.bin: holds two tensors called conv1\.weight"):
        read_checkpoint(tmp_path / "m-1-of-2.bin")
