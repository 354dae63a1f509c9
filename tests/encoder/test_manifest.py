from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from layerprobe.encoder.manifest import EXPORT, is_export, read_manifest, write_manifest
from layerprobe.system.errors import DataError

FACTS = {"name": "tiny#1:fc6", "dim": 2, "input": None, "map": {"dim": 3, "steps": ["l2"]}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "map.npz").write_bytes(b"arrays")
    (tmp_path / "example.py").write_bytes(b"print()")
    write_manifest(tmp_path, FACTS | {"layer": "fc6", "check": {"sha256": ""}}, ["map.npz", "example.py"])
    return tmp_path


def test_what_is_written_is_read(folder: Path) -> None:
    found = read_manifest(folder)
    assert (found["schema"], found["layer"], found["files"]["map.npz"]["bytes"]) == (2, "fc6", 6)


def test_any_changed_byte_of_any_file_is_refused(folder: Path) -> None:
    for name in ("map.npz", "example.py", EXPORT):
        whole = (folder / name).read_bytes()
        for place in range(len(whole)):
            (folder / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(DataError):
                read_manifest(folder)
        (folder / name).write_bytes(whole)
    read_manifest(folder)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "map.npz").unlink()
    with pytest.raises(DataError, match=r"map\.npz: is missing. Get the folder again"):
        read_manifest(folder)


@pytest.mark.parametrize("names", [["map.npz", "../outside"], ["example.py"]])
def test_only_an_encoders_own_files_are_read(folder: Path, names: list[str]) -> None:
    (folder.parent / "outside").touch()
    write_manifest(folder, FACTS, names)
    with pytest.raises(DataError, match="names no file of an encoder, or one outside its folder"):
        read_manifest(folder)


def test_a_folder_without_an_export_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"export\.json: there is no export"):
        read_manifest(tmp_path / "gone")


@pytest.mark.parametrize("schema", [1, 3])
def test_a_file_of_another_version_is_refused(tmp_path: Path, schema: int) -> None:
    write_manifest(tmp_path, {}, [])
    text = (tmp_path / EXPORT).read_text()
    assert text.count('"schema": 2') == 1
    other = tmp_path / "other"
    other.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("layerprobe.encoder.manifest.SCHEMA", schema)
        write_manifest(other, {}, [])
    with pytest.raises(DataError, match="another version of layerprobe wrote it"):
        read_manifest(other)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"map": None}, r"map is null, expected what map\.npz takes"),
        ({"map": {"dim": 3}}, r"map\.steps: field required"),
        ({"map": {"dim": 3, "steps": ["cube"]}}, r"map\.steps\.0: input should be 'l2', "),
        ({"dim": True}, r"dim: input should be a valid integer"),
        ({"dim": 0}, r"dim: input should be greater than or equal to 1"),
        ({"name": 7}, r"name: input should be a valid string"),
        ({"input": {"size": [4], "channels": 3}}, r"input\.size\.1: field required"),
        ({"input": {"size": [4, 4], "channels": 2}}, r"input\.channels: input should be 1 or 3"),
    ],
)
def test_a_value_that_no_export_has_is_told_with_its_key(folder: Path, changed: dict[str, Any], message: str) -> None:
    write_manifest(folder, FACTS | changed, ["map.npz"])
    with pytest.raises(DataError, match=rf"export\.json: {message}"):
        read_manifest(folder)


def test_a_value_of_any_type_in_the_place_of_any_other_is_refused(folder: Path) -> None:
    for key in ("name", "dim", "input", "map"):
        facts: dict[str, Any] = {name: value for name, value in FACTS.items() if name != key}
        write_manifest(folder, facts, ["map.npz"])
        with pytest.raises(DataError, match=key):
            read_manifest(folder)
        values: list[Any] = [None, -1, 1.5, True, "", [], {}, [[]], {"": {}}]
        for value in values:
            write_manifest(folder, facts | {key: value}, ["map.npz"])
            if value != FACTS[key] and (key, value) != ("name", ""):
                with pytest.raises(DataError, match=key):
                    read_manifest(folder)


def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    (folder / EXPORT).unlink()
    os.mkfifo(folder / EXPORT)
    with pytest.raises(DataError, match=r"export\.json: a pipe, socket or device, not a file"):
        read_manifest(folder)


def test_a_text_nested_without_end_is_refused(folder: Path) -> None:
    (folder / EXPORT).write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"export\.json: has changed since it was exported"):
        read_manifest(folder)


def test_a_folder_with_another_file_is_not_an_export_alone(folder: Path) -> None:
    assert is_export(folder)
    (folder / "__pycache__").mkdir()  # by `import example`
    assert is_export(folder)
    (folder / "notes.txt").touch()
    assert not is_export(folder)
