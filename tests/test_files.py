from __future__ import annotations

from pathlib import Path

import pytest

from layerprobe.files import remove_leftovers, sha256, write_text, written_whole


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_text(path, "old")

    def fail() -> None:
        with written_whole(path) as aside:
            aside.write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_final_name_appears_only_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.txt"
    with written_whole(path) as aside:
        aside.write_text("whole")
        assert not path.exists()
        assert aside.parent == path.parent
    assert path.read_text() == "whole"


def test_leftovers_of_a_killed_run_are_removed_and_counted(tmp_path: Path) -> None:
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / ".epoch-0001.test.h5.4711.tmp").write_text("half")
    (tmp_path / "keep.h5").write_text("whole")
    assert remove_leftovers(tmp_path, tmp_path / "features") == 1
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["keep.h5"]


def test_sha256_is_the_standards(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    # FIPS 180-4, the one-block example
    assert sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
