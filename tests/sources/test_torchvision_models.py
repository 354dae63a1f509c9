from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision import models

from layerprobe.system.errors import DataError, EnvironmentFault, RecipeError, UnknownNameError
from layerprobe.values.network_input import OwnInput
from tests.sources.conftest import build, embeddings, noise, source

RESNET = "torchvision:resnet18/IMAGENET1K_V1"


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> models.ResNet:
    """A ResNet18 whose weights lie where torchvision's own would, under their hash."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    model = models.resnet18(weights=None)
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save(model.state_dict(), folder / "it.pth")
    digest = hashlib.sha256((folder / "it.pth").read_bytes()).hexdigest()[:8]
    (folder / "it.pth").rename(folder / f"resnet18-{digest}.pth")
    weights = models.ResNet18_Weights.IMAGENET1K_V1
    object.__setattr__(weights.value, "url", f"https://download.pytorch.org/models/resnet18-{digest}.pth")
    found: models.ResNet = model.eval()
    return found


@pytest.fixture(autouse=True)
def as_published() -> object:
    weights = models.ResNet18_Weights.IMAGENET1K_V1
    url = weights.url
    yield
    object.__setattr__(weights.value, "url", url)


def test_its_own_weights_come_from_torchs_cache_and_the_classifier_is_off(published: nn.Module) -> None:
    net = build(RESNET, weights="model", fc=[4])
    published.fc = nn.Identity()
    with torch.inference_mode():
        expected = published(noise(64))
    torch.testing.assert_close(embeddings(build(RESNET, weights="model"), noise(64)), expected)
    assert net.new_parameters == {"fc6.weight", "fc6.bias"}
    left_out = "output is the input of the model's classifier (fc), which is left out"
    assert net.notes == (left_out,)
    assert build("torchvision:resnet18", weights="model").notes == ("torchvision:resnet18: IMAGENET1K_V1", left_out)


def test_a_file_with_another_hash_is_refused(published: nn.Module, tmp_path: Path) -> None:
    (file,) = (tmp_path / "hub" / "checkpoints").iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match="sha256 differs from the one in its name"):
        build(RESNET, weights="model")


def test_absent_weights_name_the_file_and_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("layerprobe.sources.hub.unreachable", lambda url: "no connection to its host")
    named = f"{RESNET} needs resnet18-f37072fd.pth of https://download.pytorch.org/models/resnet18-f37072fd.pth, which"
    where = f" is not in {tmp_path}/hub/checkpoints and cannot be fetched: no connection to its host"
    with pytest.raises(EnvironmentFault, match=re.escape(named + where)):
        build(RESNET, weights="model")


def test_a_squeezenet_gives_its_last_map_as_a_vector() -> None:
    net = build("torchvision:squeezenet1_1")
    with torch.inference_mode():
        maps = net.module.get_submodule("model.features")(noise(64))
    torch.testing.assert_close(embeddings(net, noise(64)), maps.mean((2, 3)))


def test_of_a_classifier_of_several_layers_the_last_goes() -> None:
    net = build("torchvision:mobilenet_v3_small")
    kinds = [type(part).__name__ for part in net.module.get_submodule("model.classifier").children()]
    assert kinds == ["Linear", "Hardswish", "Dropout", "Identity"]
    assert net.embedding_dim == 1024


def test_a_vit_of_another_size_has_torchvisions_own_interpolation() -> None:
    net = build("torchvision:vit_b_16", image_size=32)
    assert net.module.get_parameter("model.encoder.pos_embedding").shape == (1, 5, 768)
    assert net.final_norm == "model.encoder.ln"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet18", OwnInput(224, 256)),
        ("resnet50/IMAGENET1K_V2", OwnInput(224, 232)),
        ("swin_v2_t", OwnInput(256, 260, "bicubic")),
        ("vit_b_16/IMAGENET1K_SWAG_E2E_V1", OwnInput(384, 384, "bicubic")),
    ],
)
def test_the_own_input_is_that_of_the_weights(name: str, expected: OwnInput) -> None:
    found, argument = source(f"torchvision:{name}")
    assert found.own_input(argument) == expected


def test_unknown_names_have_their_near_misses() -> None:
    with pytest.raises(RecipeError, match="unknown model torchvision:resnet19. Did you mean 'resnet18'"):
        build("torchvision:resnet19")
    with pytest.raises(UnknownNameError, match="unknown weights of torchvision:resnet18 'X'. Known: IMAGENET1K_V1"):
        build("torchvision:resnet18/X")
    with pytest.raises(RecipeError, match="unknown model torchvision:fcn_resnet50"):
        build("torchvision:fcn_resnet50")  # it segments


def test_a_vision_transformer_takes_squares_alone() -> None:
    message = "torchvision:vit_b_16 takes squares alone, not images of 64x32 px"
    with pytest.raises(RecipeError, match=message):
        build("torchvision:vit_b_16", image_size=(64, 32))


def test_its_version_is_told_without_importing_it() -> None:
    code = f"""
import sys
from layerprobe.sources.torchvision_models import SOURCE
print(*SOURCE.origin({RESNET!r}), {{"torch", "torchvision"}} & sys.modules.keys())
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "torchvision set()\n"
