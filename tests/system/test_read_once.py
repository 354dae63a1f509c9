from __future__ import annotations

from pathlib import Path

import pytest

from layerprobe.system.files import ReadOnce


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files were written long ago."""
    monkeypatch.setattr("layerprobe.system.files.time.time_ns", lambda: 2**63)


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


def test_a_file_that_was_just_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # written to again within a tick of the clock, it would have the same size and times
    (tmp_path / "a").write_text("1")
    changed = (tmp_path / "a").stat().st_ctime_ns
    reader = Reader()
    once = ReadOnce(reader, limit=10)
    for later, read in (0, 1), (10_000_000, 2), (21_000_000, 3), (0, 3):
        monkeypatch.setattr("layerprobe.system.files.time.time_ns", lambda now=changed + later: now)
        once(tmp_path / "a")
        assert len(reader.read) == read


def test_a_forgotten_file_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    reader = Reader()
    once = ReadOnce(reader, limit=10)
    once(tmp_path / "a")
    once.forget(tmp_path / "a")
    once.forget(tmp_path / "b")
    once(tmp_path / "a")
    assert reader.read == ["a", "a"]
