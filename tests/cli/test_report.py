"""What `layerprobe report` prints and writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from layerprobe.cli import main
from layerprobe.runs import Run
from tests.workflow.rank_files import FC6, POOL5, first_hit, stored, written

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run the command in an empty folder that has a run in its cache: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    run = Run(Path("cache") / "one")
    written(run, stored(run, 5, "test", {POOL5: first_hit(9), FC6: first_hit(6)}))

    def command(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["layerprobe", "report", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return int(str(caught.value.code)), out, err

    return command


def test_the_page_of_the_most_recent_run_is_here_by_default(report: Command) -> None:
    code, out, err = report()
    assert (code, out) == (0, "report.html\n")
    assert err.splitlines()[0] == "run one"
    assert Path("report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_json_is_one_object_with_the_file_and_what_was_found(report: Command) -> None:
    code, out, _ = report("one", "--json", "--out", "new/folder/page.html")
    values = json.loads(out)
    assert (code, values["schema"], values["runs"], values["file"]) == (0, 1, ["one"], "new/folder/page.html")
    assert values["findings"] == []
    assert values["notes"][0].startswith("one: no finding: ")  # the record names no network
    assert Path("new/folder/page.html").exists()


def test_quiet_prints_the_result_alone(report: Command) -> None:
    assert report("--quiet", "--watch") == (0, "report.html\n", "")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["oen"], 2, "unknown run 'oen'. Did you mean 'one'?"),
        (["--out", "cache"], 2, "--out cache is a folder. Name a file, such as cache/report.html."),
        (["--cache", "nowhere"], 3, "there is no run yet"),
    ],
)
def test_what_cannot_be_is_one_line(report: Command, words: list[str], code: int, message: str) -> None:
    found, out, err = report(*words)
    assert (found, out) == (code, "")
    assert message in err.splitlines()[-1]
    assert [path.name for path in Path().iterdir()] == ["cache"]
