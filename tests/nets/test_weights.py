from __future__ import annotations

import io
import os
import pickle
import re
import shutil
import urllib.request
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor
from torchvision import models

from layerprobe.errors import DataError, EnvironmentFault, NumericError, UnknownNameError
from layerprobe.files import sha256
from layerprobe.nets.resnet50 import build
from layerprobe.nets.weights import file_weights, imagenet_weights, weights_file

WEIGHTS = {"conv1.weight": torch.arange(6.0).reshape(2, 3), "bn1.num_batches_tracked": torch.tensor(4)}


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty TORCH_HOME on a machine without network; the folder that torchvision's files are in."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # discard: nothing listens
    monkeypatch.setattr(urllib.request, "_opener", None)  # it remembers the proxies of its first use
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


def saved(folder: Path, content: object, name: str = "w.pt") -> Path:
    torch.save(content, folder / name)
    return folder / name


# --- torchvision's


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("vgg16_bn", "vgg16_bn-6c64b313.pth"),
        ("resnet50", "resnet50-0676ba61.pth"),
        ("googlenet", "googlenet-1378be20.pth"),
        ("resnet18", "resnet18-f37072fd.pth"),
    ],
)
def test_the_files_are_torchvisions_version_1(home: Path, name: str, file: str) -> None:
    assert weights_file(name) == home / file


def test_a_file_with_the_hash_in_its_name_is_loaded_without_network(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    state = models.resnet50(weights=None).state_dict()
    path = saved(home, state, "resnet50.pth")
    named = f"resnet50-{sha256(path)[:8]}.pth"
    path.rename(home / named)

    url = f"https://download.pytorch.org/models/{named}"
    monkeypatch.setitem(imagenet_weights.__globals__, "_url", lambda name: url)
    weights = imagenet_weights("resnet50")
    assert equal(weights, state)
    assert build(weights=weights).new_parameters == {"fc6.weight", "fc6.bias"}


def test_a_file_whose_hash_is_not_the_one_in_its_name_is_refused(home: Path) -> None:
    path = saved(home, WEIGHTS, "resnet50-0676ba61.pth")
    with pytest.raises(
        DataError, match=re.escape(f"{path}: sha256 differs from the one in its name. Delete it.")
    ) as caught:
        imagenet_weights("resnet50")
    assert caught.value.exit_code == 3


def test_an_absent_file_without_network_names_file_folder_and_ways_out(home: Path) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        imagenet_weights("googlenet")
    text = str(caught.value)
    assert text.startswith(f"{home}: googlenet-1378be20.pth is not there and https://download.pytorch.org/models/")
    assert text.endswith("Put the file there, or use --set net.weights=none, or --set net.weights=PATH.")
    assert caught.value.exit_code == 5
    assert not list(home.iterdir())


def test_a_network_without_imagenet_weights_is_unknown() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown network with ImageNet weights 'resnet51'\. Did you mean 'resn"
    ):
        imagenet_weights("resnet51")


# --- files of others


def test_a_torch_file_and_a_safetensors_file_give_the_same(tmp_path: Path) -> None:
    safetensors.torch.save_file(WEIGHTS, tmp_path / "w.safetensors")
    assert equal(file_weights(tmp_path / "w.safetensors").tensors, WEIGHTS)
    assert equal(file_weights(saved(tmp_path, WEIGHTS)).tensors, WEIGHTS)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_prefixes_of_wrappers_are_taken_off(tmp_path: Path, prefix: str) -> None:
    wrapped = {prefix + name: value for name, value in WEIGHTS.items()}
    found = file_weights(saved(tmp_path, wrapped))
    assert equal(found.tensors, WEIGHTS)
    assert found.notes == (f"w.pt: {prefix!r} is taken off the names of {len(WEIGHTS)} tensors",)


def test_of_a_layerprobe_checkpoint_the_network_is_taken_and_the_loss_left(tmp_path: Path) -> None:
    checkpoint = {f"net.{name}": value for name, value in WEIGHTS.items()} | {"loss.scale": torch.tensor(4.0)}
    safetensors.torch.save_file(checkpoint, tmp_path / "epoch-0001.safetensors")
    assert equal(file_weights(tmp_path / "epoch-0001.safetensors").tensors, WEIGHTS)


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_weights_beside_an_optimisers_state_are_found(tmp_path: Path, key: str) -> None:
    assert equal(file_weights(saved(tmp_path, {"epoch": 3, key: WEIGHTS})).tensors, WEIGHTS)


class Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch executed",)


@pytest.mark.parametrize("as_zip", [True, False])
def test_code_in_a_file_is_named_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_zip: bool) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "best.pt"
    torch.save({"a": Malicious()}, path, _use_new_zipfile_serialization=as_zip)
    with pytest.raises(DataError, match=r"best\.pt: holds Python code \(posix\.system\); layerprobe does not run it\."):
        file_weights(path)
    assert not Path("executed").exists()


def test_code_in_a_plain_pickle_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "best.pt").write_bytes(pickle.dumps({"a": Malicious()}))
    with pytest.raises(DataError, match=r"best\.pt: truncated, or no weights file"):
        file_weights(tmp_path / "best.pt")
    assert not Path("executed").exists()


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
        file_weights(tmp_path / "w.pt")


def test_a_truncated_safetensors_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(WEIGHTS, path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"w\.safetensors: truncated, or no safetensors file"):
        file_weights(path)


def test_an_absent_file_is_an_error_with_the_ways_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"w\.pt: no readable weights file: No such file .* net\.weights=none"):
        file_weights(tmp_path / "w.pt")


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"does not hold tensors by their names\. Save the network's state_dict\(\) alone\."
    ):
        file_weights(saved(tmp_path, {"epoch": 3, "history": [1.0]}))


def test_a_small_file_that_claims_many_numbers_is_refused_before_they_are_made(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the file holds fewer numbers than conv1\.weight has by its shape\. Download"):
        file_weights(saved(tmp_path, {"conv1.weight": torch.zeros(1).expand(10**6, 10**4)}))


def test_a_compressed_file_is_refused_before_it_unfolds(tmp_path: Path) -> None:
    path = saved(tmp_path, WEIGHTS)
    shutil.move(path, tmp_path / "stored.pt")
    with (
        zipfile.ZipFile(tmp_path / "stored.pt") as stored,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as deflated,
    ):
        for part in stored.namelist():
            deflated.writestr(part, stored.read(part))
    with pytest.raises(DataError, match=r"compressed, which torch\.save never does"):
        file_weights(path)


@pytest.mark.parametrize(("value", "word"), [(float("nan"), "NaN"), (float("inf"), "infinite")])
def test_weights_that_are_not_finite_are_refused_by_tensor(tmp_path: Path, value: float, word: str) -> None:
    with pytest.raises(NumericError, match=rf"w\.pt: conv1\.weight has {word} values") as caught:
        file_weights(saved(tmp_path, WEIGHTS | {"conv1.weight": torch.tensor([1.0, value])}))
    assert caught.value.exit_code == 4
