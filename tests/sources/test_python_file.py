from __future__ import annotations

import importlib.util
import os
import py_compile
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from layerprobe.hooks import list_layers
from layerprobe.sources.python_file import import_file
from layerprobe.system.errors import DataError, LayerprobeError, RecipeError, UnknownNameError
from layerprobe.system.naming import name_model
from layerprobe.values.network_input import OwnInput
from tests.sources.conftest import build, embeddings, noise, source

pytestmark = pytest.mark.usefixtures("nothing_named")

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


Value = Callable[[], object]


@pytest.fixture
def net_file(tmp_path: Path) -> Path:
    """A file whose function says what it and a module beside it hold."""
    folder = tmp_path / "mine"
    (folder / "parts").mkdir(parents=True)
    (folder / "parts/__init__.py").write_text("")
    (folder / "parts/beside.py").write_text("VALUE = 1\n")
    path = folder / "net.py"
    path.write_text("from parts import beside\n\ndef build():\n    return beside.VALUE\n")
    return path


@pytest.fixture
def value(net_file: Path) -> Value:
    def call() -> object:
        with import_file(net_file, "build") as (module, _):
            return module.build()

    return call


@pytest.fixture
def later(net_file: Path, value: Value, monkeypatch: pytest.MonkeyPatch) -> Value:
    """The same in a later process, after the user has named the file once."""
    name_model(f"python:{net_file}:build")
    assert value() == 1
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
    return value


def test_a_file_that_nobody_named_is_refused(value: Value) -> None:
    with pytest.raises(RecipeError, match=r"net.py:build \(sha256 [0-9a-f]{12}\) is a Python file that you have not"):
        value()


def test_a_file_that_was_named_once_is_imported_again(later: Value) -> None:
    assert later() == 1


def test_another_function_of_it_is_not(later: Value, net_file: Path) -> None:
    with pytest.raises(RecipeError, match="net.py:other .* you have not named"), import_file(net_file, "other"):
        pass


@pytest.mark.parametrize("name", ["net.py", "parts/beside.py", "parts/__init__.py"])
def test_a_file_or_module_that_was_swapped_is_refused(later: Value, net_file: Path, name: str) -> None:
    path = net_file.parent / name
    path.write_text(f"{path.read_text()}# swapped\n")
    with pytest.raises(RecipeError, match=r"has changed since you named it. Read it. If you trust it, name it by"):
        later()


def test_naming_it_again_takes_the_new_content(later: Value, net_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (net_file.parent / "parts/beside.py").write_text("VALUE = 2\n")
    name_model(f"python:{net_file}:build")
    assert later() == 2
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
    assert later() == 2


@pytest.mark.parametrize("caught", ["ImportError", "Exception"])
def test_a_module_that_was_not_there_is_refused_though_the_code_catches_it(
    net_file: Path, value: Value, monkeypatch: pytest.MonkeyPatch, caught: str
) -> None:
    net_file.write_text(
        f"VALUE = 1\ntry:\n    from extra import VALUE\nexcept {caught}:\n    pass\n\ndef build():\n    return VALUE\n"
    )
    name_model(f"python:{net_file}:build")
    assert value() == 1
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
    (net_file.parent / "extra.py").write_text("VALUE = 3\n")
    with pytest.raises(RecipeError, match=r"extra.py: was not imported when you named the model that imports it"):
        value()


def test_a_module_that_is_imported_while_building_is_checked_too(
    net_file: Path, value: Value, monkeypatch: pytest.MonkeyPatch
) -> None:
    net_file.write_text("def build():\n    from parts.beside import VALUE\n    return VALUE\n")
    name_model(f"python:{net_file}:build")
    assert value() == 1
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
    (net_file.parent / "parts/beside.py").write_text("VALUE = 4\n")
    with pytest.raises(RecipeError, match="has changed since you named it"):
        value()


@pytest.mark.parametrize("name", ["net.py", "parts/beside.py"])
def test_no_forged_bytecode_runs(net_file: Path, value: Value, name: str) -> None:
    path = net_file.parent / name
    content, times = path.read_text(), path.stat()
    path.write_text(content.replace("VALUE = 1", "VALUE = 9").replace("beside.VALUE", "len(__file__)"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    cached = Path(importlib.util.cache_from_source(path))
    py_compile.compile(str(path), cfile=str(cached))
    path.write_text(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    name_model(f"python:{net_file}:build")
    assert value() == 1


def test_bytecode_without_its_source_is_refused(net_file: Path, value: Value) -> None:
    beside = net_file.parent / "parts/beside.py"
    py_compile.compile(str(beside), cfile=str(beside.with_suffix(".pyc")))
    beside.unlink()
    name_model(f"python:{net_file}:build")
    with pytest.raises(RecipeError, match=r"beside.pyc: neither Python source nor an extension module"):
        value()


def test_a_link_is_the_file_that_it_leads_to(net_file: Path, later: Value, tmp_path: Path) -> None:
    run = tmp_path / "cache/m"
    run.mkdir(parents=True)
    (run / "run.json").touch()
    net_file.rename(run / "net.py")
    net_file.symlink_to(run / "net.py")
    with pytest.raises(
        RecipeError, match=r"net.py: lies in the run folder .*/cache/m \(by its run.json\), of which nothing"
    ):
        import_file(net_file.resolve(), "build").__enter__()


def test_a_module_in_a_run_folder_is_refused_though_the_user_names_the_file(net_file: Path, value: Value) -> None:
    (net_file.parent / "parts/run.json").touch()
    name_model(f"python:{net_file}:build")
    with pytest.raises(RecipeError, match=r"lies in the run folder .*/parts \(by its run.json\), of which nothing"):
        value()


def test_what_was_imported_is_told_with_its_hash(net_file: Path) -> None:
    name_model(f"python:{net_file}:build")
    with import_file(net_file, "build") as (_, taken):
        assert set(taken) == {"", "parts/__init__.py", "parts/beside.py"}


def test_of_all_imports_only_the_last_one_checks(net_file: Path, value: Value) -> None:
    name_model(f"python:{net_file}:build")
    value()
    before = list(sys.path), len(sys.meta_path)
    value()
    assert (list(sys.path), len(sys.meta_path)) == before


def test_what_a_forward_imports_is_checked_too(net_file: Path, value: Value, monkeypatch: pytest.MonkeyPatch) -> None:
    (net_file.parent / "parts/model.py").write_text("def forward():\n    from .extra import VALUE\n    return VALUE\n")
    extra = net_file.parent / "parts/extra.py"
    extra.write_text("VALUE = 1\n")
    net_file.write_text("from parts import model\n\ndef build():\n    return model.forward\n")

    def forward() -> object:
        built = value()
        assert callable(built)
        return built()

    name_model(f"python:{net_file}:build")
    assert forward() == 1
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
    assert forward() == 1
    extra.write_text("VALUE = 2\n")
    with pytest.raises(RecipeError, match="extra.py: was not imported when you named the model"):
        forward()


@pytest.mark.parametrize("place", ["common", "cache/m"])
def test_a_linked_module_is_checked_as_the_file_it_leads_to(
    net_file: Path, value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    folder = tmp_path / place
    folder.mkdir(parents=True)
    if place == "cache/m":
        (folder / "run.json").touch()
    beside = net_file.parent / "parts/beside.py"
    beside.rename(folder / "beside.py")
    beside.symlink_to(folder / "beside.py")
    name_model(f"python:{net_file}:build")
    if place == "cache/m":
        with pytest.raises(RecipeError, match="beside.py: lies in the run folder"):
            value()
        return
    assert value() == 1
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
    (folder / "beside.py").write_text("VALUE = 5\n")
    with pytest.raises(RecipeError, match="has changed since you named it"):
        value()


def test_a_module_elsewhere_on_the_path_is_not_taken_from_a_run_folder(
    net_file: Path, value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache/m"
    folder.mkdir(parents=True)
    (folder / "run.json").touch()
    (folder / "theirs.py").write_text("VALUE = 6\n")
    monkeypatch.syspath_prepend(folder)
    net_file.write_text("import theirs\n\ndef build():\n    return theirs.VALUE\n")
    name_model(f"python:{net_file}:build")
    with pytest.raises(RecipeError, match="theirs.py: lies in the run folder"):
        value()


def test_files_beside_a_module_can_be_read(net_file: Path, value: Value) -> None:
    (net_file.parent / "parts/sizes.txt").write_text("7")
    net_file.write_text(
        "import importlib.resources, parts\n\ndef build():\n"
        "    return importlib.resources.files('parts').joinpath('sizes.txt').read_text()\n"
    )
    name_model(f"python:{net_file}:build")
    assert value() == "7"


def test_two_files_with_a_module_of_the_same_name_take_their_own(net_file: Path, value: Value, tmp_path: Path) -> None:
    other = tmp_path / "other/net.py"
    (other.parent / "parts").mkdir(parents=True)
    (other.parent / "parts/beside.py").write_text("VALUE = 7\n")
    other.write_text(net_file.read_text())
    for path in (net_file, other):
        name_model(f"python:{path}:build")
    assert value() == 1
    with import_file(other, "build") as (module, _):
        assert module.build() == 7
