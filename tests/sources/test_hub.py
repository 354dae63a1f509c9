from __future__ import annotations

from pathlib import Path

import pytest
import torch

from layerprobe.sources.hub import hub_file, url_file
from layerprobe.system.errors import EnvironmentFault, LayerprobeError, RecipeError
from layerprobe.system.naming import name_model
from tests.sources.conftest import source

URL = "https://127.0.0.1:9/weights-12345678.pth"


pytestmark = pytest.mark.usefixtures("nothing_named")


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: tmp_path)


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hosts that are about to be asked for a file; none can be reached."""
    begun: list[str] = []

    def unreachable(url: str = "") -> str:
        begun.append(url)
        return "no network here"

    for module in ("hub", "hugging_face", "open_clip_models"):
        monkeypatch.setattr(f"layerprobe.sources.{module}.unreachable", unreachable)
    return begun


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        ("timm:resnet50", lambda: hub_file("timm:resnet50", "org/never-there", ["model.safetensors"])),
        ("torchvision:resnet18", lambda: url_file("torchvision:resnet18", URL)),
        ("hf:org/never-there", lambda: source("hf:org/never-there")[0].own_input("org/never-there")),
        ("open_clip:RN50/openai", lambda: source("open_clip:RN50/openai")[0].build("RN50/openai", weights="model")),
    ],
)
def test_what_only_a_record_names_is_not_fetched(
    asked_for: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str, wanted: object
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert callable(wanted)
    with pytest.raises(RecipeError, match=rf"{model} needs .* would be fetched from .*, add --model {model}"):
        wanted()
    assert asked_for == []


def test_what_the_user_names_is_asked_for(asked_for: list[str]) -> None:
    name_model("torchvision:resnet18")
    with pytest.raises(EnvironmentFault, match="cannot be fetched: no network here"):
        url_file("torchvision:resnet18", URL)
    assert asked_for == [URL]


def test_a_file_in_the_cache_needs_no_naming(asked_for: list[str], tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    path = tmp_path / "checkpoints/weights-12345678.pth"
    path.write_bytes(b"x")
    with pytest.raises(LayerprobeError, match="sha256 differs from the one in its name"):  # it was looked at
        url_file("torchvision:resnet18", URL)
    assert asked_for == []


def test_a_folder_of_hugging_faces_is_read_when_the_user_has_named_it_with_these_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    own_input, name = source(f"hf:{folder}")[0].own_input, str(folder)
    unnamed = "is a folder that you have not named. Name it by --model hf:"
    with pytest.raises(RecipeError, match=unnamed):
        own_input(name)
    name_model(f"hf:{folder}")
    with pytest.raises(LayerprobeError, match="hf:.*/mine cannot be loaded"):  # transformers has read it
        own_input(name)
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
    with pytest.raises(LayerprobeError, match="hf:.*/mine cannot be loaded"):
        own_input(name)
    (folder / "config.json").write_text('{"backbone": "evil/backbone"}')
    with pytest.raises(RecipeError, match=unnamed):
        own_input(name)


def test_a_folder_of_hugging_faces_in_a_run_folder_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "m/hf"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (tmp_path / "m/run.json").touch()
    name_model(f"hf:{folder}")
    with pytest.raises(RecipeError, match="lies in the run folder"):
        source(f"hf:{folder}")[0].own_input(str(folder))
