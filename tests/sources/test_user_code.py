from __future__ import annotations

import importlib.util
import os
import py_compile
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from layerprobe.sources.python_file import import_file
from layerprobe.system.errors import RecipeError
from layerprobe.system.naming import name_model

Value = Callable[[], object]
pytestmark = pytest.mark.usefixtures("nothing_named")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file whose function says what it and a module beside it hold."""
    folder = tmp_path / "mine"
    (folder / "parts").mkdir(parents=True)
    (folder / "parts/__init__.py").write_text("")
    (folder / "parts/beside.py").write_text("VALUE = 1\n")
    path = folder / "net.py"
    path.write_text("from parts import beside\n\ndef build():\n    return beside.VALUE\n")
    return path


@pytest.fixture
def value(file: Path) -> Value:
    def call() -> object:
        with import_file(file, "build") as (module, _):
            return module.build()

    return call


@pytest.fixture
def later(file: Path, value: Value, monkeypatch: pytest.MonkeyPatch) -> Value:
    """The same in a later process, after the user has named the file once."""
    name_model(f"python:{file}:build")
    assert value() == 1
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
    return value


def test_a_file_that_nobody_named_is_refused(value: Value) -> None:
    with pytest.raises(RecipeError, match=r"net.py:build \(sha256 [0-9a-f]{12}\) is a Python file that you have not"):
        value()


def test_a_file_that_was_named_once_is_imported_again(later: Value) -> None:
    assert later() == 1


def test_another_function_of_it_is_not(later: Value, file: Path) -> None:
    with pytest.raises(RecipeError, match="net.py:other .* you have not named"), import_file(file, "other"):
        pass


@pytest.mark.parametrize("name", ["net.py", "parts/beside.py", "parts/__init__.py"])
def test_a_file_or_module_that_was_swapped_is_refused(later: Value, file: Path, name: str) -> None:
    path = file.parent / name
    path.write_text(f"{path.read_text()}# swapped\n")
    with pytest.raises(RecipeError, match=r"has changed since you named it. Read it. If you trust it, name it by"):
        later()


def test_naming_it_again_takes_the_new_content(later: Value, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file.parent / "parts/beside.py").write_text("VALUE = 2\n")
    name_model(f"python:{file}:build")
    assert later() == 2
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
    assert later() == 2


@pytest.mark.parametrize("caught", ["ImportError", "Exception"])
def test_a_module_that_was_not_there_is_refused_though_the_code_catches_it(
    file: Path, value: Value, monkeypatch: pytest.MonkeyPatch, caught: str
) -> None:
    file.write_text(
        f"VALUE = 1\ntry:\n    from extra import VALUE\nexcept {caught}:\n    pass\n\ndef build():\n    return VALUE\n"
    )
    name_model(f"python:{file}:build")
    assert value() == 1
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
    (file.parent / "extra.py").write_text("VALUE = 3\n")
    with pytest.raises(RecipeError, match=r"extra.py: was not imported when you named the model that imports it"):
        value()


def test_a_module_that_is_imported_while_building_is_checked_too(
    file: Path, value: Value, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("def build():\n    from parts.beside import VALUE\n    return VALUE\n")
    name_model(f"python:{file}:build")
    assert value() == 1
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
    (file.parent / "parts/beside.py").write_text("VALUE = 4\n")
    with pytest.raises(RecipeError, match="has changed since you named it"):
        value()


@pytest.mark.parametrize("name", ["net.py", "parts/beside.py"])
def test_no_forged_bytecode_runs(file: Path, value: Value, name: str) -> None:
    path = file.parent / name
    content, times = path.read_text(), path.stat()
    path.write_text(content.replace("VALUE = 1", "VALUE = 9").replace("beside.VALUE", "len(__file__)"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    cached = Path(importlib.util.cache_from_source(path))
    py_compile.compile(str(path), cfile=str(cached))
    path.write_text(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    name_model(f"python:{file}:build")
    assert value() == 1


def test_bytecode_without_its_source_is_refused(file: Path, value: Value) -> None:
    beside = file.parent / "parts/beside.py"
    py_compile.compile(str(beside), cfile=str(beside.with_suffix(".pyc")))
    beside.unlink()
    name_model(f"python:{file}:build")
    with pytest.raises(RecipeError, match=r"beside.pyc: neither Python source nor an extension module"):
        value()


def test_a_link_is_the_file_that_it_leads_to(file: Path, later: Value, tmp_path: Path) -> None:
    run = tmp_path / "cache/m"
    run.mkdir(parents=True)
    (run / "run.json").touch()
    file.rename(run / "net.py")
    file.symlink_to(run / "net.py")
    with pytest.raises(
        RecipeError, match=r"net.py: lies in the run folder .*/cache/m \(by its run.json\), of which nothing"
    ):
        import_file(file.resolve(), "build").__enter__()


def test_a_module_in_a_run_folder_is_refused_though_the_user_names_the_file(file: Path, value: Value) -> None:
    (file.parent / "parts/run.json").touch()
    name_model(f"python:{file}:build")
    with pytest.raises(RecipeError, match=r"lies in the run folder .*/parts \(by its run.json\), of which nothing"):
        value()


def test_what_was_imported_is_told_with_its_hash(file: Path) -> None:
    name_model(f"python:{file}:build")
    with import_file(file, "build") as (_, taken):
        assert set(taken) == {"", "parts/__init__.py", "parts/beside.py"}


def test_of_all_imports_only_the_last_one_checks(file: Path, value: Value) -> None:
    name_model(f"python:{file}:build")
    value()
    before = list(sys.path), len(sys.meta_path)
    value()
    assert (list(sys.path), len(sys.meta_path)) == before


def test_what_a_forward_imports_is_checked_too(file: Path, value: Value, monkeypatch: pytest.MonkeyPatch) -> None:
    (file.parent / "parts/model.py").write_text("def forward():\n    from .extra import VALUE\n    return VALUE\n")
    extra = file.parent / "parts/extra.py"
    extra.write_text("VALUE = 1\n")
    file.write_text("from parts import model\n\ndef build():\n    return model.forward\n")

    def forward() -> object:
        built = value()
        assert callable(built)
        return built()

    name_model(f"python:{file}:build")
    assert forward() == 1
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
    assert forward() == 1
    extra.write_text("VALUE = 2\n")
    with pytest.raises(RecipeError, match="extra.py: was not imported when you named the model"):
        forward()


@pytest.mark.parametrize("place", ["common", "cache/m"])
def test_a_linked_module_is_checked_as_the_file_it_leads_to(
    file: Path, value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    folder = tmp_path / place
    folder.mkdir(parents=True)
    if place == "cache/m":
        (folder / "run.json").touch()
    beside = file.parent / "parts/beside.py"
    beside.rename(folder / "beside.py")
    beside.symlink_to(folder / "beside.py")
    name_model(f"python:{file}:build")
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
    file: Path, value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache/m"
    folder.mkdir(parents=True)
    (folder / "run.json").touch()
    (folder / "theirs.py").write_text("VALUE = 6\n")
    monkeypatch.syspath_prepend(folder)
    file.write_text("import theirs\n\ndef build():\n    return theirs.VALUE\n")
    name_model(f"python:{file}:build")
    with pytest.raises(RecipeError, match="theirs.py: lies in the run folder"):
        value()


def test_files_beside_a_module_can_be_read(file: Path, value: Value) -> None:
    (file.parent / "parts/sizes.txt").write_text("7")
    file.write_text(
        "import importlib.resources, parts\n\ndef build():\n"
        "    return importlib.resources.files('parts').joinpath('sizes.txt').read_text()\n"
    )
    name_model(f"python:{file}:build")
    assert value() == "7"


def test_two_files_with_a_module_of_the_same_name_take_their_own(file: Path, value: Value, tmp_path: Path) -> None:
    other = tmp_path / "other/net.py"
    (other.parent / "parts").mkdir(parents=True)
    (other.parent / "parts/beside.py").write_text("VALUE = 7\n")
    other.write_text(file.read_text())
    for path in (file, other):
        name_model(f"python:{path}:build")
    assert value() == 1
    with import_file(other, "build") as (module, _):
        assert module.build() == 7
