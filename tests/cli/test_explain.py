"""What `layerprobe explain` prints and writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from layerprobe.cli import main
from layerprobe.workflow.run.runs import Run
from tests.workflow.conftest import images, narrow_vgg, tiny  # noqa: F401 - fixtures
from tests.workflow.plot.test_neighbours import made
from tests.workflow.rank_files import FC6, POOL5, first_hit, stored, written

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def explain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run `layerprobe explain` in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def command(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["layerprobe", "explain", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return int(str(caught.value.code)), out, err

    return command


@pytest.fixture
def probed(images: Path, tmp_path: Path) -> Run:  # noqa: F811 - a fixture
    return made(f"folder:{images}", tmp_path, layers=("fc6",), post=("none", "binary"))


def test_a_person_reads_a_table_and_the_figures_file(explain: Command, probed: Run) -> None:
    code, out, err = explain("--query", "class5/1.png")
    assert (code, err.splitlines()[0]) == (0, "run tiny")
    lines = out.splitlines()
    assert lines[0] == "tiny, epoch 0: test image class5/1.png"
    assert lines[-1] == str(Path("cache/tiny/plots/explain.png"))
    assert Path(lines[-1]).stat().st_size > 1000


def test_json_is_one_object(explain: Command, probed: Run) -> None:
    code, out, _ = explain("tiny", "--layers", "fc6", "--out", "why.svg", "--json", "--quiet")
    values = json.loads(out)
    assert (code, values["schema"], values["run"], values["file"]) == (0, 2, "tiny", "why.svg")
    (layer,) = values["layers"]
    assert layer["layer"] == "fc6"
    assert set(layer["query"]) == {"difference", "error", "steps", "random", "random_grad_cam"}
    assert Path("why.svg").exists()
    assert not Path("cache/tiny/plots").exists()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--out", "why.gif"], 2, "why.gif: cannot be written as '.gif'. Name it .png, .pdf or .svg."),
        (["--layers", ","], 2, "no names in ','. Write names separated by commas, or leave the flag out."),
        (["--layers", "fc7"], 2, "unknown layer 'fc7'. Did you mean 'fc6'?"),
        (["nope"], 2, "unknown run 'nope'. Known: one."),
        ([], 3, "cache/one/run.json: [net]: name is missing."),
    ],
)
def test_what_cannot_be_is_one_line(explain: Command, words: list[str], code: int, message: str) -> None:
    run = Run(Path("cache") / "one")
    written(run, stored(run, 5, "test", {POOL5: first_hit(9), FC6: first_hit(6)}))
    found, out, err = explain(*words)
    assert (found, out) == (code, "")
    (error,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert message in error


def test_a_missing_cache_is_one_line(explain: Command) -> None:
    code, _, err = explain("--cache", "gone")
    assert code == 3
    assert err.startswith("error: gone: there is no run yet. ")
