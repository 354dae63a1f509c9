from __future__ import annotations

import io
import re
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty. Download it again."),
        (b"<!DOCTYPE html><html>", "this is an HTML page, not weights. Download it again."),
        (b"\n <HTML><body>", "this is an HTML page, not weights. Download it again."),
        (b"version https://git-lfs.github.com/spec/v1\n", "this is a git-lfs pointer, not weights."),
        (truncated(), "truncated, or no weights file. Download it again."),
        (b"just some text", "truncated, or no weights file. Download it again."),
    ],
    ids=["empty", "html", "html-in-capitals", "lfs", "truncated", "text"],
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


@pytest.mark.parametrize("content", [{"epoch": 3, "history": [1.0]}, nn.Linear(2, 2), torch.ones(2), 3])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(
        DataError, match=r"does not hold tensors by their names\. Save the network's state_dict\(\) alone\."
    ):
        read_checkpoint(saved(tmp_path, content))
