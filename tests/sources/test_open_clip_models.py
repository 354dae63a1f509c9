"""Small architectures that are added to open_clip's list on the spot, against open_clip's own models."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from layerprobe.sources.hub import quiet
from layerprobe.system.errors import EnvironmentFault, RecipeError, UnknownNameError
from layerprobe.values.network_input import OwnInput
from tests.sources.conftest import build, embeddings, noise, source

with quiet():
    import open_clip
    from open_clip import factory, pretrained

TEXT = {"context_length": 8, "vocab_size": 100, "width": 32, "heads": 2, "layers": 1}
VISION: dict[str, Any] = {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8}
HALF = (0.5, 0.5, 0.5)
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The architecture `small`, with the tags `plain`, whose file is absent, and `mine`."""
    monkeypatch.setattr(factory, "_MODEL_CONFIG_PATHS", list(factory._MODEL_CONFIG_PATHS))
    configurations = dict(factory._MODEL_CONFIGS)
    file = tmp_path / "small.json"
    file.write_text(json.dumps({"embed_dim": 16, "vision_cfg": VISION, "text_cfg": TEXT}))
    open_clip.add_model_config(file)
    tags = {
        "plain": {"hf_hub": "org/small/"},
        "mine": {
            "file": str(tmp_path / "mine.pt"),
            "quick_gelu": True,
            "interpolation": "bilinear",
            "mean": (0.5,) * 3,
        },
    }
    monkeypatch.setitem(pretrained._PRETRAINED, "small", tags)
    yield
    factory._MODEL_CONFIGS.clear()
    factory._MODEL_CONFIGS.update(configurations)


def saved(tmp_path: Path) -> Any:
    """open_clip's own model of these weights, which are saved for `mine`."""
    with quiet():
        model = open_clip.create_model("small", force_quick_gelu=True).eval()
    torch.save(model.state_dict(), tmp_path / "mine.pt")
    return model


def test_its_own_weights_give_what_open_clip_gives_with_their_activation(tmp_path: Path) -> None:
    model = saved(tmp_path)
    net = build("open_clip:small/mine", weights="model", fc=[4])
    with torch.inference_mode():
        expected = model.encode_image(noise(32))
    given = embeddings(build("open_clip:small/mine", weights="model"), noise(32))
    torch.testing.assert_close(given, expected)
    assert list(net.layers) == ["transformer.resblocks.0", "transformer.resblocks.1", "output", "fc6"]
    assert net.new_parameters == {"fc6.weight", "fc6.bias"}
    assert net.final_norm == "model.ln_post"
    assert not any("text" in name or "token" in name for name in net.module.state_dict())


def test_another_size_has_open_clips_own_interpolation_and_a_note(tmp_path: Path) -> None:
    saved(tmp_path)
    with quiet():
        other = open_clip.create_model(
            "small", pretrained=str(tmp_path / "mine.pt"), force_quick_gelu=True, force_image_size=48
        ).eval()
    net = build("open_clip:small/mine", weights="model", image_size=48)
    with torch.inference_mode():
        torch.testing.assert_close(embeddings(net, noise(48)), other.encode_image(noise(48)))
    assert net.notes == ("open_clip:small/mine is made for 32 px: its position embeddings are interpolated to 48 px",)


def test_an_architecture_alone_is_drawn_from_the_seed_and_a_tag_has_its_structure(tmp_path: Path) -> None:
    one, same, other = (build("open_clip:small", seed=seed).module.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["model.proj"], other["model.proj"])
    saved(tmp_path)
    untrained, trained = (build("open_clip:small/mine", weights=weights).module for weights in (None, "model"))
    assert str(untrained) == str(trained)


def test_an_architecture_alone_has_no_weights() -> None:
    with pytest.raises(RecipeError, match=re.escape("names no weights. Give open_clip:small/TAG, or use --weights")):
        build("open_clip:small", weights="model")


def test_absent_weights_name_the_file_and_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    names = "open_clip_model.safetensors or open_clip_pytorch_model.bin of org/small"
    with pytest.raises(EnvironmentFault, match=re.escape(f"needs {names}, which is not in {tmp_path} and cannot")):
        build("open_clip:small/plain", weights="model")


def test_unknown_names_have_their_near_misses() -> None:
    with pytest.raises(RecipeError, match="unknown model open_clip:ViT-B-33/x. Did you mean 'ViT-B-32'"):
        build("open_clip:ViT-B-33/x")
    with pytest.raises(UnknownNameError, match="unknown weights of open_clip:small 'min'. Did you mean 'mine'"):
        build("open_clip:small/min")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("small", OwnInput(32, 32, "bicubic", MEAN, STD)),
        ("small/mine", OwnInput(32, 32, "bilinear", HALF, STD)),
        ("ViT-B-16-SigLIP/webli", OwnInput(224, None, "bicubic", HALF, HALF)),
    ],
)
def test_the_own_input_is_open_clips(name: str, expected: OwnInput) -> None:
    found, argument = source(f"open_clip:{name}")
    assert found.own_input(argument) == expected


def test_the_package_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(EnvironmentFault, match=re.escape("pip install 'open-clip-torch>=")):
        build("open_clip:small")
