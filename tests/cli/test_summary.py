"""What `layerprobe summary` prints of a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from layerprobe.cli import main
from layerprobe.workflow.run.runs import Run
from tests.workflow.rank_files import FC6, first_hit, stored, written


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    run = Run(tmp_path / "one")
    written(run, stored(run, 5, "train", {FC6: first_hit(9)}), stored(run, 5, "test", {FC6: first_hit(6)}))
    return tmp_path


def printed(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["layerprobe", "summary", "--cache", str(runs), *words])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(str(caught.value.code)), capsys.readouterr().out


def test_the_most_recent_run_is_summed_up(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = printed(runs, monkeypatch, capsys, "--format", "csv")
    assert code == 0
    # 9 and 6 of 24 queries
    header, row = out.splitlines()
    assert header.startswith(",layer,train R@1,train R@1 low,")
    assert row.startswith("*,fc6,37.5,")


def test_json_is_one_object_with_the_splits_and_layers(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = printed(runs, monkeypatch, capsys, "one", "--json")
    values = json.loads(out)
    assert (code, values["schema"], values["run"]) == (0, 2, "one")
    assert values["splits"]["test"]["queries"] == 24
    assert [layer["test"]["value"] for layer in values["layers"]] == [6 / 24]
