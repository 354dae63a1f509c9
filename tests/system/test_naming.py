from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from layerprobe.system.naming import NamedFile, keep_named, name_model, named_before, run_folder_of, user_named

pytestmark = pytest.mark.usefixtures("nothing_named")
MINE = NamedFile("/home/me/mine.py", "build", {"/home/me/mine.py": "ab"})


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    return tmp_path / "state/layerprobe/python-files.jsonl"


def test_a_naming_holds_in_this_process_and_in_its_children() -> None:
    name_model("timm:resnet50")
    program = (
        "from layerprobe.system.naming import user_named; "
        "print(user_named('timm:resnet50'), user_named('timm:resnet18'))"
    )
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (user_named("timm:resnet50"), user_named("timm:resnet18"), child.stdout) == (True, False, "True False\n")


def test_a_file_is_named_by_all_its_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").touch()
    (tmp_path / "link.py").symlink_to(tmp_path / "mine.py")
    monkeypatch.chdir(tmp_path)
    name_model("python:link.py:build")
    assert user_named(f"python:{tmp_path}/../{tmp_path.name}/mine.py:build")
    assert not user_named("python:mine.py:other")


def test_the_list_is_the_users_alone_and_has_each_file_once(listed: Path) -> None:
    for _ in range(2):
        keep_named(MINE)
    assert listed.stat().st_mode & 0o777 == 0o600
    assert named_before(Path(MINE.file), "build") == [MINE]
    assert named_before(Path(MINE.file), "other") == []


def test_the_latest_naming_comes_first() -> None:
    now = NamedFile(MINE.file, "build", {MINE.file: "cd"})
    keep_named(MINE)
    keep_named(now)
    assert named_before(Path(MINE.file), "build") == [now, MINE]


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o640])
def test_a_list_that_others_can_open_counts_for_nothing(listed: Path, mode: int) -> None:
    keep_named(MINE)
    listed.chmod(mode)
    assert named_before(Path(MINE.file), "build") == []


def test_a_list_that_is_a_link_counts_for_nothing_and_is_not_written_through(listed: Path, tmp_path: Path) -> None:
    keep_named(MINE)
    listed.rename(tmp_path / "theirs")
    listed.symlink_to(tmp_path / "theirs")
    before = (tmp_path / "theirs").read_bytes()
    keep_named(NamedFile(MINE.file, "other", {}))
    assert (named_before(Path(MINE.file), "build"), (tmp_path / "theirs").read_bytes()) == ([], before)


def test_a_torn_line_takes_no_other_with_it(listed: Path) -> None:
    keep_named(MINE)
    listed.write_bytes(listed.read_bytes() + b'{"file": "/home/me')
    other = NamedFile(MINE.file, "other", {})
    keep_named(other)
    listed.write_bytes(listed.read_bytes() + b"[1]\n{}\n" + json.dumps({"file": "a", "function": "b"}).encode())
    assert (named_before(Path(MINE.file), "build"), named_before(Path(MINE.file), "other")) == ([MINE], [other])


def test_where_no_list_can_be_kept_nothing_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    keep_named(MINE)
    assert named_before(Path(MINE.file), "build") == []


def test_eight_processes_that_name_at_once_lose_no_line() -> None:
    program = (
        "import sys; from layerprobe.system.naming import NamedFile, keep_named\n"
        "for i in range(20): keep_named(NamedFile(f'/{sys.argv[1]}/{i}.py', 'build', {}))"
    )
    children = [subprocess.Popen([sys.executable, "-c", program, str(number)]) for number in range(8)]
    assert [child.wait(timeout=120) for child in children] == [0] * 8
    assert all(named_before(Path(f"/{number}/{i}.py"), "build") for number in range(8) for i in range(20))


def test_the_run_folder_of_a_file_is_found_through_links(tmp_path: Path) -> None:
    (tmp_path / "cache/m/deep").mkdir(parents=True)
    (tmp_path / "cache/m/run.json").touch()
    (tmp_path / "deep").symlink_to(tmp_path / "cache/m/deep")
    assert run_folder_of(tmp_path / "deep/net.py") == tmp_path / "cache/m"
    assert run_folder_of(tmp_path / "cache/net.py") is None
