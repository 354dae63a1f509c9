from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torchvision import models

from layerprobe.nets.resnet50 import build
from layerprobe.nets.weights import imagenet_weights, weights_file
from layerprobe.system.errors import DataError, EnvironmentFault, UnknownNameError
from layerprobe.system.files import sha256

WEIGHTS = {"conv1.weight": torch.arange(6.0).reshape(2, 3), "bn1.num_batches_tracked": torch.tensor(4)}


def equal(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
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
    assert equal(weights.tensors, state)
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
