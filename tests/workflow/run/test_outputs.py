"""Where a page, figure or table may be written."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from layerprobe.system.errors import EnvironmentFault, LayerprobeError
from layerprobe.workflow.run.outputs import require_output, stream_of, write_output
from layerprobe.workflow.run.runs import Run
from tests.no_files import NO_FILES, identity

FORMATS = ("html", "csv", "png")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path / "cache" / "m")
    for folder in (*run.written_folders, run.folder / "plots"):
        folder.mkdir(parents=True)
    run.record_file.write_text("{}")
    return run


@pytest.mark.parametrize("write", [lambda x: require_output(x, *FORMATS), lambda x: write_output(x, b"new")])
@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_refused_before_the_work_and_after(
    tmp_path: Path, kind: str, write: Callable[[Path], None]
) -> None:
    path = tmp_path / "x.csv"
    NO_FILES[kind](path)
    before = identity(path)
    with pytest.raises(LayerprobeError, match=f"/x.csv: {kind}, not a file") as caught:
        write(path)
    assert caught.value.exit_code == 2
    assert identity(path) == before
    assert [each.name for each in tmp_path.iterdir()] == ["x.csv"]


def test_a_linked_parent_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to("real")
    require_output(tmp_path / "linked" / "x.csv", *FORMATS)
    write_output(tmp_path / "linked" / "x.csv", b"new")
    assert (tmp_path / "real" / "x.csv").read_bytes() == b"new"


@pytest.mark.parametrize(
    ("name", "formats", "message"),
    [
        ("x.gif", ("png", "pdf", "svg"), "cannot be written as '.gif'. Name it .png, .pdf or .svg."),
        ("x", ("html",), "cannot be written as a file without a suffix. Name it .html."),
        ("run.json", ("csv",), "cannot be written as '.json'. Name it .csv."),
    ],
)
def test_another_suffix_is_refused(tmp_path: Path, name: str, formats: tuple[str, ...], message: str) -> None:
    with pytest.raises(LayerprobeError, match=re.escape(f"/{name}: {message}")):
        require_output(tmp_path / name, *formats)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["x" * 240 + ".csv", "x" * 300 + "/x.csv"])
def test_a_name_that_the_disk_does_not_take_is_told_before_the_work(tmp_path: Path, name: str) -> None:
    with pytest.raises(LayerprobeError, match="its name is longer than 240 bytes"):
        require_output(tmp_path / name, *FORMATS)


def test_the_longest_name_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 236 + ".csv")
    require_output(path, *FORMATS)
    write_output(path, b"new")
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_suffix_in_capitals_is_known(tmp_path: Path) -> None:
    require_output(tmp_path / "PLOT.PNG", *FORMATS)


def test_a_folder_that_takes_no_files_is_told_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFault, match=r"/file: cannot be written to. Choose a path you may write to"):
        require_output(tmp_path / "file" / "x.csv", *FORMATS)


@pytest.mark.parametrize(
    "name", ["scores.csv", "new.html", "features/x.png", "ranks/x.csv", "plots/../scores.csv", "../m/scores.csv"]
)
def test_no_file_of_a_run_is_replaced(run: Run, name: str) -> None:
    message = "in the folder of the run m, where only plots/ and report.html are replaced. Choose another folder"
    with pytest.raises(LayerprobeError, match=message):
        require_output(run.folder / name, *FORMATS)
    with pytest.raises(LayerprobeError, match=message):
        write_output(run.folder / name, b"new")


def test_no_file_of_a_run_is_replaced_through_a_linked_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(run.folder)
    (tmp_path / "other" / "deep").mkdir(parents=True)
    (tmp_path / "other" / "into").symlink_to(run.folder / "features")
    for path in (tmp_path / "linked" / "scores.csv", tmp_path / "other" / "into" / ".." / "scores.csv"):
        with pytest.raises(LayerprobeError, match="in the folder of the run m"):
            require_output(path, *FORMATS)


@pytest.mark.parametrize("name", ["report.html", "plots/layers.png", "plots/layers.csv", "plots/mine/layers.png"])
def test_plots_and_the_report_of_a_run_are_replaced(run: Run, name: str) -> None:
    for content in (b"old", b"new"):
        require_output(run.folder / name, *FORMATS)
        write_output(run.folder / name, content)
    assert (run.folder / name).read_bytes() == b"new"


@pytest.mark.parametrize(
    ("path", "number"),
    [("-", 1), ("/dev/stdout", 1), ("/dev/stderr", 2), ("/dev/fd/7", 7), ("/proc/self/fd/63", 63), ("a/-", None),
     ("/dev/null", None), ("/dev/fd/x", None), ("stdout", None)],
)  # fmt: skip
def test_a_path_that_means_a_stream_is_known(path: str, number: int | None) -> None:
    assert stream_of(Path(path)) == number


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Its ends, as a caller opens them for this process."""
    ends = os.pipe()
    for end in ends:
        os.set_inheritable(end, True)
    yield ends
    for end in ends:
        os.close(end)


def test_a_stream_is_written_to(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    path = Path(f"/dev/fd/{sink}")
    require_output(path, "html")
    write_output(path, b"page")
    assert os.read(source, 100) == b"page"


def test_a_reader_that_has_gone_is_no_error() -> None:
    source, sink = os.pipe()
    os.close(source)
    write_output(Path(f"/dev/fd/{sink}"), b"page")
    os.close(sink)


def test_a_descriptor_is_refused_that_is_closed_or_read_from_or_this_processes_own(
    pipe: tuple[int, int], tmp_path: Path
) -> None:
    own = os.open(tmp_path / "own", os.O_RDWR | os.O_CREAT)
    for number in (pipe[0], own, 999_999):
        with pytest.raises(LayerprobeError, match=f"/dev/fd/{number}: is not open to write to") as caught:
            require_output(Path(f"/dev/fd/{number}"), "html")
        assert caught.value.exit_code == 2
    os.close(own)
