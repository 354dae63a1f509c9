"""What `layerprobe report` prints and writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from layerprobe.cli import main
from layerprobe.workflow.run.runs import Run
from tests.cli.test_streams import LAYERPROBE, bash
from tests.no_files import NO_FILES, identity
from tests.records import rewrite
from tests.workflow.rank_files import FC6, POOL5, first_hit, stored, written

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run the command in an empty folder that has a run in its cache: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    run = Run(Path("cache") / "one")
    written(run, stored(run, 5, "test", {POOL5: first_hit(9), FC6: first_hit(6)}))
    rewrite(run, network=None)

    def command(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["layerprobe", "report", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return int(str(caught.value.code)), out, err

    return command


def test_the_page_of_the_most_recent_run_is_in_its_folder_by_default(report: Command) -> None:
    code, out, err = report()
    assert (code, out) == (0, "cache/one/report.html\n")
    assert err.splitlines()[0] == "run one"
    assert [path.name for path in Path().iterdir()] == ["cache"]
    assert Path("cache/one/report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_json_is_one_object_with_the_file_and_what_was_found(report: Command) -> None:
    code, out, _ = report("one", "--json", "--out", "new/folder/page.html")
    values = json.loads(out)
    assert (code, values["schema"], values["runs"], values["file"]) == (0, 2, ["one"], "new/folder/page.html")
    assert values["findings"] == []
    assert [note.split(": ")[1] for note in values["notes"][:2]] == ["no layer is chosen", "no finding"]
    assert Path("new/folder/page.html").exists()


def test_quiet_prints_the_result_alone(report: Command) -> None:
    assert report("--quiet", "--watch") == (0, "cache/one/report.html\n", "")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["oen"], 2, "unknown run 'oen'. Did you mean 'one'?"),
        (["--out", "cache"], 2, "cache: a folder, not a file. Name a file."),
        (["--out", "page.txt"], 2, "page.txt: cannot be written as '.txt'. Name it .html."),
        (["--out", "cache/one/run.json"], 2, "cache/one/run.json: in the folder of the run one, where only plots/ and"),
        (["--out", "-", "--watch"], 2, "--watch replaces the page, and - is a stream. Name a file, or drop --watch."),
        (["--cache", "nowhere"], 3, "there is no run yet"),
    ],
)
def test_what_cannot_be_is_one_line(report: Command, words: list[str], code: int, message: str) -> None:
    found, out, err = report(*words)
    assert (found, out) == (code, "")
    assert message in err.splitlines()[-1]
    assert [path.name for path in Path().iterdir()] == ["cache"]


@pytest.mark.parametrize("watch", [(), ("--watch",)])
@pytest.mark.parametrize("kind", NO_FILES)
def test_a_page_takes_the_place_of_files_alone(report: Command, kind: str, watch: Sequence[str]) -> None:
    NO_FILES[kind](Path("x.html"))
    before = identity(Path("x.html"))
    code, out, err = report("--out", "x.html", *watch)
    assert (code, out, err.splitlines()) == (2, "", ["run one", f"error: x.html: {kind}, not a file. Name a file."])
    assert identity(Path("x.html")) == before
    assert sorted(path.name for path in Path().iterdir()) == ["cache", "x.html"]


def test_what_a_killed_report_left_beside_the_page_is_removed_by_the_next(report: Command) -> None:
    Path(".report.html.4711.tmp").write_text("half")
    assert report("--out", "report.html")[0] == 0
    assert sorted(path.name for path in Path().iterdir()) == ["cache", "report.html"]


def test_the_report_of_a_run_lies_in_its_folder(report: Command) -> None:
    for _ in range(2):
        assert report("--out", "cache/one/report.html")[:2] == (0, "cache/one/report.html\n")


@pytest.mark.parametrize("stream", ["-", "/dev/fd/3"])
def test_a_stream_gets_the_page_and_nothing_else(report: Command, stream: str) -> None:
    del report  # its folder
    place = "> page" if stream == "-" else "3> page > printed"
    result = bash(f"{LAYERPROBE} report --out {stream} {place}", Path())
    assert result.returncode == 0, result.stderr
    page = Path("page").read_text(encoding="utf-8")
    assert (page[:15], page[-8:]) == ("<!doctype html>", "</html>\n")
    printed = result.stderr if stream == "-" else Path("printed").read_bytes()
    assert printed.splitlines()[-1] == stream.encode()
    assert not {Path("-"), Path("report.html")} & set(Path().iterdir())
