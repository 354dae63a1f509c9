"""What `layerprobe plot` prints and writes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from layerprobe.cli import main
from layerprobe.workflow.run.runs import Run
from tests.cli.test_streams import LAYERPROBE, bash
from tests.no_files import NO_FILES, identity
from tests.workflow.rank_files import FC6, POOL5, first_hit, stored, written

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def plot(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Draw `layers` in an empty folder that has a run in its cache: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    run = Run(Path("cache") / "one")
    written(run, stored(run, 5, "test", {POOL5: first_hit(9), FC6: first_hit(6)}))

    def command(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["layerprobe", "plot", "layers", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return int(str(caught.value.code)), out, err

    return command


@pytest.mark.parametrize("words", [("--out", "x.png"), ("--csv", "x.csv")])
@pytest.mark.parametrize("kind", NO_FILES)
def test_a_figure_and_its_numbers_take_the_place_of_files_alone(plot: Command, kind: str, words: Sequence[str]) -> None:
    path = Path(words[1])
    NO_FILES[kind](path)
    before = identity(path)
    code, out, err = plot(*words)
    assert (code, out, err.splitlines()) == (2, "", ["run one", f"error: {path}: {kind}, not a file. Name a file."])
    assert identity(path) == before
    assert sorted(each.name for each in Path().iterdir()) == ["cache", path.name]
    assert not Path("cache/one/plots").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "x.gif"], "x.gif: cannot be written as '.gif'. Name it .png, .pdf or .svg."),
        (["--csv", "x.png"], "x.png: cannot be written as '.png'. Name it .csv."),
        (["--csv", "cache/one/scores.csv"], "cache/one/scores.csv: in the folder of the run one, where only plots/"),
    ],
)
def test_what_cannot_be_is_one_line(plot: Command, words: Sequence[str], message: str) -> None:
    scores = Path("cache/one/scores.csv").read_bytes()
    code, out, err = plot(*words)
    assert (code, out, len(err.splitlines())) == (2, "", 2)
    assert message in err
    assert Path("cache/one/scores.csv").read_bytes() == scores
    assert [path.name for path in Path().iterdir()] == ["cache"]


def test_what_a_killed_plot_left_beside_its_files_is_removed_by_the_next(plot: Command) -> None:
    for name in ("x.pdf", "x.csv"):
        Path(f".{name}.4711.tmp").write_text("half")
    assert plot("--out", "x.pdf", "--csv", "x.csv")[0] == 0
    assert sorted(path.name for path in Path().iterdir()) == ["cache", "x.csv", "x.pdf"]


def test_streams_get_the_figure_and_the_numbers_and_nothing_else(plot: Command) -> None:
    del plot  # its folder
    result = bash(f"{LAYERPROBE} plot layers --out - --csv /dev/fd/3 > figure 3> numbers", Path())
    assert (result.returncode, result.stderr) == (0, b"run one\n-\n")
    assert Path("figure").read_bytes().startswith(b"\x89PNG")
    assert Path("figure").read_bytes().endswith(b"IEND\xaeB`\x82")
    assert Path("numbers").read_text().splitlines()[0].startswith("run,")
