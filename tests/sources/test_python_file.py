from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from layerprobe.system.errors import DataError, LayerprobeError, RecipeError, UnknownNameError
from layerprobe.system.naming import name_model
from layerprobe.taps import list_layers
from layerprobe.values.network_input import OwnInput
from tests.sources.conftest import build, embeddings, noise, source

CODE = """
from dataclasses import dataclass
import torch
import beside

@dataclass
class Options:
    width: "int" = 6

def build():
    return torch.nn.Sequential(torch.nn.Conv2d(3, Options().width, 3), torch.nn.ReLU(), torch.nn.Conv2d(6, 4, 3))

def with_input():
    return build(), {"size": 32, "filter": "bicubic", "crop": 0.875, "mean": [0.5, 0.5, 0.5]}

def grey():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU())

def grey_with_input():
    return grey(), {"size": (32, 16), "crop": 0.8, "mean": 0.5, "std": [0.25]}

def five():
    return torch.nn.Conv2d(5, 4, 3)

def of_any_channels():
    class Mean(torch.nn.Module):
        def forward(self, x):
            return x.mean((1, 2))
    return Mean(), {"size": 32, "mean": 0.5, "std": 0.5}

def fails():
    return beside.division(1)

def a_number():
    return 3

def ends():
    raise SystemExit(0)

def wrong_input():
    return build(), {"size": "32"}

def unknown_input():
    return build(), {"sise": 32}

class Classifying(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.classifier = build(), torch.nn.Linear(4, 9)

    def forward(self, images):
        return self.classifier(self.body(images).mean((2, 3)))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("def division(x):\n    return x / 0\n")
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


def test_the_function_gives_the_model(file: Path) -> None:
    net = build(f"python:{file}:build", fc=[2])
    assert list(net.layers) == ["1", "2", "output", "fc6"]  # after the ReLU, as a plain network's blocks are
    model = net.module.get_submodule("model")
    with torch.inference_mode():
        expected = model(noise(16)).mean((2, 3))
    torch.testing.assert_close(net.module.get_submodule("readout")(model(noise(16))), expected)
    assert embeddings(net, noise(16)).shape == (2, 2)


def test_the_function_may_state_the_input(file: Path) -> None:
    net = build(f"python:{file}:with_input")
    assert net.own_input == OwnInput(32, 36, "bicubic", mean=(0.5, 0.5, 0.5), kept=0.875)
    name_model(f"python:{file}:build")
    found, argument = source(f"python:{file}:build")
    assert found.own_input(argument) is None


def test_a_model_of_one_channel_takes_grey_images(file: Path) -> None:
    net = build(f"python:{file}:grey", image_size=(24, 16))
    assert (net.channels, net.image_size) == (1, (24, 16))
    assert [(info.name, info.layout.shape) for info in list_layers(net, (24, 16))] == [
        ("1", (4, 24, 16)),
        ("output", (4, 24, 16)),
    ]
    assert build(f"python:{file}:build").channels == 3


def test_the_function_may_state_height_and_width_and_one_mean(file: Path) -> None:
    net = build(f"python:{file}:grey_with_input")
    # 32 / 0.8 = 40, 16 / 0.8 = 20
    assert net.own_input == OwnInput((32, 16), (40, 20), "bilinear", (0.5,), (0.25,), kept=0.8)
    assert (net.channels, net.image_size) == (1, (32, 16))


def test_one_mean_decides_for_a_model_that_takes_any_channels(file: Path) -> None:
    assert build(f"python:{file}:of_any_channels").channels == 1


def test_a_model_of_neither_3_channels_nor_1_is_told_where_it_can_be_measured(file: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"of 3 channels: .*; of 1 channel: .* or measure a model of neither 3 channel"
    ):
        build(f"python:{file}:five", image_size=16)


def test_a_changed_file_is_another_version(file: Path) -> None:
    found, argument = source(f"python:{file}:build")
    before = found.origin(argument)
    file.write_text(f"{CODE}\n# changed\n")
    assert before.keys() == found.origin(argument).keys() == {"mine.py"}
    assert before != found.origin(argument)


def test_the_seed_decides_what_the_function_draws(file: Path) -> None:
    one, same, other = (build(f"python:{file}:build", seed=seed).module.state_dict() for seed in (1, 1, 2))
    assert torch.equal(one["model.0.weight"], same["model.0.weight"])
    assert not torch.equal(one["model.0.weight"], other["model.0.weight"])


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        ("fails", RecipeError, "mine.py: line 33: ZeroDivisionError: division by zero. Correct the file"),
        ("buil", UnknownNameError, "mine.py: unknown function 'buil'. Did you mean 'build'? Known: "),
        ("ends", RecipeError, "mine.py: line 39: SystemExit: 0. Correct the file"),
        ("a_number", RecipeError, "mine.py:a_number gives int. Return a torch.nn.Module, or (module, {size, ...})"),
        ("wrong_input", RecipeError, "states its input as {'size': '32'}. size is a number of pixels"),
        ("unknown_input", RecipeError, "states its input as {'sise': 32}. Give a dict with size"),
    ],
)
def test_an_error_of_the_users_code_is_told_with_its_line(
    file: Path, function: str, kind: type[LayerprobeError], message: str
) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        build(f"python:{file}:{function}")


def test_a_syntax_error_is_told_with_its_line(file: Path) -> None:
    file.write_text("import torch\ndef build(:\n")
    with pytest.raises(RecipeError, match=r"mine.py: line 2: SyntaxError: invalid syntax"):
        build(f"python:{file}:build")


@pytest.mark.parametrize("name", ["mine:build", "mine.py", "mine.py:", "mine.py:a.b"])
def test_a_name_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(RecipeError, match="is not of the form python:FILE.py:FUNCTION"):
        build(f"python:{name}")


@pytest.mark.parametrize("name", ["none.py", "no\0ne.py", f"{'n' * 5000}.py"])
def test_a_file_that_is_absent_is_said(tmp_path: Path, name: str) -> None:
    found, argument = source(f"python:{tmp_path}/{name}:build")
    with pytest.raises(DataError, match="no such file. Give .* to a run whose file has moved, by --model"):
        found.files(argument)


def test_its_classifier_is_left_out_as_from_the_models_of_libraries(file: Path) -> None:
    name_model(f"python:{file}:Classifying")
    net = build(f"python:{file}:Classifying")
    assert net.embedding_dim == 4
    assert embeddings(net, noise(32)).shape[1] == 4
    assert net.notes == ("output is the input of the model's classifier (classifier), which is left out",)
