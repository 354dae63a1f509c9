from __future__ import annotations

from pathlib import Path

import pytest

from layerprobe.system.read_once import ReadOnce


class Text(str):
    @property
    def nbytes(self) -> int:
        return len(self)


class Reader:
    """Reads text, and counts."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __call__(self, path: Path) -> Text:
        self.read.append(path.name)
        return Text(path.read_text())


def test_a_file_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    reader = Reader()
    once = ReadOnce(reader, limit=10)
    assert [once(tmp_path / "a"), once(tmp_path / "a")] == ["1", "1"]
    assert reader.read == ["a"]


def test_a_file_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    once = ReadOnce(Reader(), limit=10)
    once(tmp_path / "a")
    (tmp_path / "b").write_text("2")
    (tmp_path / "b").rename(tmp_path / "a")
    assert once(tmp_path / "a") == "2"


def test_a_file_that_is_gone_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    once = ReadOnce(Reader(), limit=10)
    once(tmp_path / "a")
    (tmp_path / "a").unlink()
    with pytest.raises(FileNotFoundError):
        once(tmp_path / "a")


def test_files_beyond_the_limit_are_not_kept(tmp_path: Path) -> None:
    reader = Reader()
    once = ReadOnce(reader, limit=5)
    for name in ("a", "b"):
        (tmp_path / name).write_text("123")
    for name in ("a", "b", "a", "b"):
        once(tmp_path / name)
    assert reader.read == ["a", "b", "b"]
