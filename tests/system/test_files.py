from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import NoReturn

import pytest

from layerprobe.data import csv_file
from layerprobe.data.annotation_files import read_rows
from layerprobe.data.images import read_image
from layerprobe.data.pixel_cache import Entry
from layerprobe.nets.checkpoint_files import read_checkpoint
from layerprobe.store import read_features
from layerprobe.system.errors import DataError, EnvironmentFault, LayerprobeError
from layerprobe.system.files import (
    ReadOnce,
    disk_fault,
    folder_written_whole,
    put_back,
    remove_leftovers,
    require_file,
    require_replaceable,
    require_writable,
    sha256,
    write_text,
    written_whole,
)
from layerprobe.values.layers import LayerKey
from layerprobe.values.scores import read_scores
from layerprobe.workflow.run.runs import Run
from tests.no_files import NO_FILES


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_text(path, "old")

    def fail() -> None:
        with written_whole(path) as aside:
            aside.write_text("half")
            raise KeyError("no such tensor")

    with pytest.raises(KeyError, match="no such tensor"):
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


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (
            errno.ENOSPC,
            r"/new\.txt: disk full: \S+ has \S+ [MG]B free, this file needs 7 MB; the files already",
        ),
        (errno.EDQUOT, r"/new\.txt: your quota on \S+ is used up; the files already written are complete"),
        (errno.EFBIG, r"/new\.txt: the file is larger than its disk allows; the files already written are complete"),
        (errno.EIO, r"/new\.txt: \S+ reports an input/output error; the files already written are complete"),
    ],
)
def test_a_disk_that_takes_no_file_is_told_with_the_disk_and_the_file(
    tmp_path: Path, number: int, message: str
) -> None:
    with pytest.raises(EnvironmentFault, match=message), written_whole(tmp_path / "new.txt", needed=7_000_000):
        raise OSError(number, os.strerror(number))
    assert list(tmp_path.iterdir()) == []


def test_a_small_file_that_does_not_fit_is_told_in_bytes(tmp_path: Path) -> None:
    fault = disk_fault(OSError(errno.ENOSPC, ""), tmp_path / "new.txt", 41_000)
    assert "this file needs 41,000 bytes;" in str(fault)


@pytest.mark.skipif(not Path("/proc").is_mount(), reason="needs a small file system that every machine has")
def test_the_disk_is_the_one_that_the_file_would_lie_on(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc")
    fault = disk_fault(OSError(errno.ENOSPC, ""), tmp_path / "link/no/such/file")
    assert "disk full: /proc has 0 MB free;" in str(fault)


def test_an_error_of_another_kind_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), written_whole(tmp_path / "new.txt"):
        raise PermissionError(errno.EACCES, "Permission denied")


def test_a_name_that_is_too_long_is_no_fault_of_a_disk(tmp_path: Path) -> None:
    assert disk_fault(OSError(errno.ENAMETOOLONG, "File name too long"), tmp_path / ("a" * 300)) is None


LIMITED = """
import resource, sys
from pathlib import Path
from layerprobe.system.files import write_text
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    write_text(Path(sys.argv[1]), "x" * 1001)
except Exception as error:
    print(error)
"""


def test_a_limit_on_the_size_of_files_is_not_told_as_a_full_disk(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path / "new.txt"], check=True, capture_output=True, text=True
    )
    assert "new.txt: the file is larger than the 1,000 bytes that `ulimit -f` allows;" in result.stdout
    assert "disk full" not in result.stdout


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_under_the_temporary_name_is_not_written_through(
    tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    (tmp_path / "precious").write_text("precious")
    link(tmp_path / "precious", tmp_path / f".run.json.{os.getpid()}.tmp")
    write_text(tmp_path / "run.json", "new")
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "run.json").read_text() == "new"


def test_leftovers_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / ".epoch-0001.test.h5.4711.tmp").write_text("half")
    (tmp_path / "keep.h5").write_text("whole")
    remove_leftovers(tmp_path, tmp_path / "features", tmp_path / "absent")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["keep.h5"]


def test_only_files_with_our_temporary_names_are_leftovers(tmp_path: Path) -> None:
    for name in (".x.tmp", ".run.json.old.tmp", "run.json.4711.tmp", ".run.json.4711.tmp2"):
        (tmp_path / name).write_text("somebody's")
    (tmp_path / ".folder.4711.tmp").mkdir()
    (tmp_path / ".link.4711.tmp").symlink_to(tmp_path / ".x.tmp")
    remove_leftovers(tmp_path)
    assert len(list(tmp_path.iterdir())) == 6


def test_the_next_writer_of_a_name_removes_what_a_killed_one_left_and_nothing_else(tmp_path: Path) -> None:
    for name in (".x.html.4711.tmp", ".y.html.4711.tmp", ".x.htmlx.4711.tmp"):
        (tmp_path / name).write_text("half")
    write_text(tmp_path / "x.html", "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".x.htmlx.4711.tmp", ".y.html.4711.tmp", "x.html"]


def test_a_file_that_is_being_written_is_no_leftover(tmp_path: Path) -> None:
    with written_whole(tmp_path / "x.html") as aside:
        aside.write_text("first")
        remove_leftovers(tmp_path)
        assert aside.exists()
    assert (tmp_path / "x.html").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]


def test_two_writers_of_one_process_number_do_not_meet(tmp_path: Path) -> None:
    # As on two machines that share a disk.
    with written_whole(tmp_path / "x.html") as aside:
        aside.write_text("first")
        write_text(tmp_path / "x.html", "second")
        assert (tmp_path / "x.html").read_text() == "second"
    assert (tmp_path / "x.html").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]


def test_writers_at_the_same_time_end_with_one_whole_file(tmp_path: Path) -> None:
    def write(letter: str) -> None:
        for _ in range(50):
            write_text(tmp_path / "x.html", letter * 1000)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, "abcd"))
    assert (tmp_path / "x.html").read_text() in {letter * 1000 for letter in "abcd"}
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_not_replaced(tmp_path: Path, kind: str) -> None:
    require_replaceable(tmp_path / "free")
    (tmp_path / "file").touch()
    require_replaceable(tmp_path / "file")
    NO_FILES[kind](tmp_path / "x")
    with pytest.raises(LayerprobeError, match=f"/x: {kind}, not a file. Name a file"):
        require_replaceable(tmp_path / "x")


def test_sha256_is_the_standards(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    # FIPS 180-4, the one-block example
    assert sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    """A pipe that nobody writes to; a test that waits for it fails."""

    def fail(number: int, frame: FrameType | None) -> NoReturn:
        raise AssertionError("it waited for the pipe")

    os.mkfifo(path := tmp_path / "run.json")
    former = signal.signal(signal.SIGALRM, fail)
    signal.alarm(10)
    yield path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, former)


@pytest.mark.parametrize(
    "read",
    [
        require_file, sha256, read_image, read_scores, read_checkpoint, csv_file.load,
        lambda path: read_checkpoint(path.rename(path.with_suffix(".safetensors"))),
        lambda path: read_rows(path, {"a": str}), lambda path: Run(path.parent).read(),
        lambda path: read_features(path, LayerKey("fc6", "none")),
    ],
)  # fmt: skip
def test_a_pipe_is_refused_by_its_name_before_it_is_opened(pipe: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(DataError, match=r"run\.\w+: a pipe, socket or device, not a file. Put a file in its place"):
        read(pipe)


def test_a_pipe_in_the_place_of_a_cache_entrys_description_is_none(pipe: Path) -> None:
    pipe.rename(pipe.with_name("about.json"))
    assert Entry(pipe.parent).about() == {}


def test_a_device_is_refused_and_a_file_is_not(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    require_file(tmp_path / "file")
    with pytest.raises(DataError, match="/dev/zero: a pipe, socket or device"):
        require_file(Path("/dev/zero"))


def test_a_place_that_takes_no_files_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match=r"file: cannot be written to. Choose another --cache"):
        require_writable(tmp_path / "file" / "b")
    # As /proc is, which lets an administrator write.
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=0))
    with pytest.raises(EnvironmentFault, match=f"{tmp_path}: cannot be written to"):
        require_writable(tmp_path / "a")


def test_a_folder_appears_only_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "new" / "export"
    with folder_written_whole(path) as aside:
        (aside / "x.txt").write_text("whole")
        assert not path.exists()
        assert aside.parent == path.parent
    assert (path / "x.txt").read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_folder_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "export"
    path.mkdir()
    (path / "x.txt").write_text("old")

    def fail() -> None:
        with folder_written_whole(path, replace=True) as aside:
            (aside / "x.txt").write_text("half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(EnvironmentFault, match="disk full"):
        fail()
    assert [file.read_text() for file in tmp_path.rglob("*.txt")] == ["old"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_replaced_only_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "export"
    for text in ("old", "new"):
        with folder_written_whole(path, replace=True) as aside:
            (aside / f"{text}.txt").touch()
    with pytest.raises(LayerprobeError, match="export: it exists already"), folder_written_whole(path) as aside:
        (aside / "newer.txt").touch()
    assert [file.name for file in path.iterdir()] == ["new.txt"]
    assert list(tmp_path.iterdir()) == [path]


KILLED_AFTER_RENAMES = """
import os, signal, sys
from pathlib import Path
from layerprobe.system.files import folder_written_whole
count, rename = int(sys.argv[2]), Path.rename
def killed(path, target):
    global count
    renamed, count = rename(path, target), count - 1
    if not count:
        os.kill(os.getpid(), signal.SIGKILL)
    return renamed
Path.rename = killed
with folder_written_whole(Path(sys.argv[1]), replace=True) as aside:
    (aside / "new.txt").touch()
"""


# The old folder is moved aside, the new one gets its name, and the old one that of a temporary folder.
@pytest.mark.parametrize(("renames", "left", "whole"), [(1, [], "old"), (2, ["new"], "new"), (3, ["new"], "new")])
def test_a_folder_that_is_replaced_is_whole_whenever_its_writer_is_killed(
    tmp_path: Path, renames: int, left: list[str], whole: str
) -> None:
    path = tmp_path / "export"
    path.mkdir()
    (path / "old.txt").touch()
    killed = subprocess.run([sys.executable, "-c", KILLED_AFTER_RENAMES, path, str(renames)])
    assert killed.returncode == -signal.SIGKILL
    assert [file.stem for file in path.glob("*")] == left
    put_back(path)
    assert [file.stem for file in path.iterdir()] == [whole]
    with folder_written_whole(path, replace=True) as aside:
        (aside / "newer.txt").touch()
    assert [file.stem for file in path.iterdir()] == ["newer"]
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_folder_of_a_living_writer_is_not_put_back(tmp_path: Path) -> None:
    old = tmp_path / ".export.7.old"
    old.mkdir()
    descriptor = os.open(old, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    put_back(tmp_path / "export")
    assert old.exists()
    os.close(descriptor)
    put_back(tmp_path / "export")
    assert list(tmp_path.iterdir()) == [tmp_path / "export"]


KILLED_IN_FOLDER = """
import os, signal, sys
from pathlib import Path
from layerprobe.system.files import folder_written_whole
with folder_written_whole(Path(sys.argv[1])) as aside:
    (aside / "half.txt").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_kill_left_of_a_folder_is_removed_by_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "export"
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", KILLED_IN_FOLDER, path]).returncode == -signal.SIGKILL
        assert not path.exists()
        assert len(list(tmp_path.iterdir())) == 1
    with folder_written_whole(path), folder_written_whole(tmp_path / "other") as others:
        assert len(list(tmp_path.iterdir())) == 2  # that of a living writer stays
        with folder_written_whole(tmp_path / "other"):
            assert others.exists()
        (tmp_path / "other").rmdir()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["export", "other"]


@pytest.fixture
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


@pytest.mark.usefixtures("settled")
def test_a_file_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    reader = Reader()
    once = ReadOnce(reader, limit=10)
    assert [once(tmp_path / "a"), once(tmp_path / "a")] == ["1", "1"]
    assert reader.read == ["a"]


@pytest.mark.usefixtures("settled")
def test_a_file_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    once = ReadOnce(Reader(), limit=10)
    once(tmp_path / "a")
    (tmp_path / "b").write_text("2")
    (tmp_path / "b").rename(tmp_path / "a")
    assert once(tmp_path / "a") == "2"


@pytest.mark.usefixtures("settled")
def test_a_file_that_is_gone_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    once = ReadOnce(Reader(), limit=10)
    once(tmp_path / "a")
    (tmp_path / "a").unlink()
    with pytest.raises(FileNotFoundError):
        once(tmp_path / "a")


@pytest.mark.usefixtures("settled")
def test_files_beyond_the_limit_are_not_kept(tmp_path: Path) -> None:
    reader = Reader()
    once = ReadOnce(reader, limit=5)
    for name in ("a", "b"):
        (tmp_path / name).write_text("123")
    for name in ("a", "b", "a", "b"):
        once(tmp_path / name)
    assert reader.read == ["a", "b", "b"]


@pytest.mark.usefixtures("settled")
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


@pytest.mark.usefixtures("settled")
def test_a_forgotten_file_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    reader = Reader()
    once = ReadOnce(reader, limit=10)
    once(tmp_path / "a")
    once.forget(tmp_path / "a")
    once.forget(tmp_path / "b")
    once(tmp_path / "a")
    assert reader.read == ["a", "a"]
