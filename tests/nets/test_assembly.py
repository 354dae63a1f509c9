from __future__ import annotations

import inspect
import re
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import get_type_hints

import pytest
import torch
from torch import Tensor, nn
from torchvision import models

from layerprobe.nets import lenet
from layerprobe.nets.assembly import FrozenBatchNorm, imagenet_weights, weights_file
from layerprobe.nets.resnet import build_resnet18, build_resnet50
from layerprobe.registry import NETS, load
from layerprobe.system.errors import DataError, EnvironmentFault, UnknownNameError
from layerprobe.system.files import sha256


@pytest.mark.parametrize("name", list(NETS))
def test_every_network_takes_the_same_keys_which_a_recipe_can_read(name: str) -> None:
    build = load("network", NETS, name)
    assert list(inspect.signature(build).parameters) == [
        "fc", "pool", "norm", "dropout", "fc_bias", "fc_norm", "fc_dropout", "freeze_bn", "weights", "from_scratch",
        "seed",
    ]  # fmt: skip
    assert get_type_hints(build).keys() == {*inspect.signature(build).parameters, "return"}


@pytest.mark.parametrize("name", list(NETS))
def test_layers_are_in_execution_order(name: str) -> None:
    net = load("network", NETS, name)(fc=[4], norm="layer")
    paths = [path for path, _ in net.module.named_modules()]
    places = [paths.index(path) for path in net.layers.values()]
    assert places == sorted(places)


def test_weights_that_are_not_used_are_named_with_their_shapes() -> None:
    given = dict(lenet.build(fc=[16]).module.state_dict())
    assert lenet.build(fc=[16], weights=given).notes == ()
    assert lenet.build(fc=[8], weights=given, from_scratch=["fc6"]).notes == ()  # the recipe says so
    assert lenet.build(fc=[8], weights=given | {"classifier.weight": given["fc6.bias"]}).notes == (
        "not used of the weights: classifier.weight (there is no such layer),"
        f" fc6.weight (shape {tuple(given['fc6.weight'].shape)}, not (8, {given['fc6.weight'].shape[1]})),"
        " fc6.bias (shape (16,), not (8,))",
    )
    more = {f"aux{i}.weight": given["fc6.bias"] for i in range(7)}
    assert (
        lenet.build(fc=[16], weights=given | more).notes[0].endswith("aux3.weight (there is no such layer) and 3 more")
    )


IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(2))
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def trained(module: nn.Module) -> dict[str, Tensor]:
    """The state after a step of training in which the whole network was told to learn."""
    module.requires_grad_(True).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=0.1)
    module(IMAGES).square().sum().backward()
    optimizer.step()
    return module.state_dict()


def is_norm(name: str) -> bool:
    return ".bn" in name or name.startswith("bn") or "downsample.1" in name


def test_statistics_weights_and_biases_stay_whatever_the_mode() -> None:
    net = build_resnet18(fc=[8], freeze_bn=True)
    before = {name: value.clone() for name, value in net.module.state_dict().items()}
    after = trained(net.module)
    assert any(is_norm(name) for name in before)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if not is_norm(name)}


def test_without_it_they_move() -> None:
    net = build_resnet18(fc=[8])
    before = {name: value.clone() for name, value in net.module.state_dict().items()}
    after = trained(net.module)
    assert not any(torch.equal(before[name], after[name]) for name in before)


def test_in_training_it_computes_what_a_plain_network_does_in_evaluation() -> None:
    weights = trained(build_resnet18(fc=[8], seed=1).module)
    frozen = build_resnet18(fc=[8], weights=weights, freeze_bn=True).module.train()
    assert torch.equal(frozen(IMAGES), build_resnet18(fc=[8], weights=weights).module.eval()(IMAGES))


def test_the_state_has_the_same_names_and_goes_from_one_to_the_other() -> None:
    plain, frozen = build_resnet18(fc=[8], seed=1).module, build_resnet18(fc=[8], seed=2, freeze_bn=True).module
    frozen.load_state_dict(trained(plain), strict=True)
    plain.load_state_dict(frozen.state_dict(), strict=True)
    assert torch.equal(frozen(IMAGES), plain.eval()(IMAGES))


def test_frozen_tensors_are_no_new_parameters() -> None:
    names = build_resnet18(fc=[8], freeze_bn=True).new_parameters
    assert "layer4.1.conv2.weight" in names
    assert not [name for name in names if is_norm(name)]


def test_a_block_from_scratch_learns_its_own() -> None:
    module = build_resnet18(fc=[8], freeze_bn=True, from_scratch=["layer4.1"]).module
    learning = [path for path, part in module.named_modules() if isinstance(part, nn.BatchNorm2d)]
    assert learning == ["layer4.1.bn1", "layer4.1.bn2"]


def test_the_heads_norm_goes_on_learning_its_statistics() -> None:
    module = build_resnet18(fc=[8], norm="batch", freeze_bn=True).module.train()
    module(IMAGES)
    assert module.state_dict()["norm5.num_batches_tracked"] == 1


def test_the_gradient_passes_through_to_what_lies_before() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3).eval()
    with torch.no_grad():
        norm.weight.uniform_(1, 2)
    images, copies = IMAGES.clone().requires_grad_(), IMAGES.clone().requires_grad_()
    FrozenBatchNorm(norm).train()(images).square().sum().backward()
    norm(copies).square().sum().backward()
    assert images.grad is not None
    assert copies.grad is not None
    torch.testing.assert_close(images.grad, copies.grad)


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
    assert build_resnet50(weights=weights).new_parameters == {"fc6.weight", "fc6.bias"}


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
