from __future__ import annotations

from pathlib import Path

import pytest

from layerprobe.encoder.manifest import EXPORT, is_export, read_manifest, write_manifest
from layerprobe.system.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "map.npz").write_bytes(b"arrays")
    (tmp_path / "example.py").write_bytes(b"print()")
    write_manifest(tmp_path, {"layer": "fc6", "check": {"sha256": ""}}, ["map.npz", "example.py"])
    return tmp_path


def test_what_is_written_is_read(folder: Path) -> None:
    found = read_manifest(folder)
    assert (found["schema"], found["layer"], found["files"]["map.npz"]["bytes"]) == (1, "fc6", 6)


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
    write_manifest(folder, {}, names)
    with pytest.raises(DataError, match="names no file of an encoder, or one outside its folder"):
        read_manifest(folder)


def test_a_folder_without_an_export_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"export\.json: there is no export"):
        read_manifest(tmp_path / "gone")


def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, {}, [])
    text = (tmp_path / EXPORT).read_text()
    assert text.count('"schema": 1') == 1
    later = tmp_path / "later"
    later.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("layerprobe.encoder.manifest.SCHEMA", 2)
        write_manifest(later, {}, [])
    with pytest.raises(DataError, match="a later version of layerprobe wrote it"):
        read_manifest(later)


def test_a_folder_with_another_file_is_not_an_export_alone(folder: Path) -> None:
    assert is_export(folder)
    (folder / "__pycache__").mkdir()  # by `import example`
    assert is_export(folder)
    (folder / "notes.txt").touch()
    assert not is_export(folder)
