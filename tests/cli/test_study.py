from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from layerprobe import cli

Layerprobe = Callable[..., tuple[int, str, str]]


@pytest.fixture
def layerprobe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Layerprobe:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["layerprobe", "study", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (ended.value.code, *capsys.readouterr())  # type: ignore[return-value] # main ends with a number

    return run


def test_the_list_names_the_studies_with_title_and_paper(layerprobe: Layerprobe) -> None:
    code, out, _ = layerprobe("--list", "--json")
    (study,) = [study for study in json.loads(out)["studies"] if study["study"] == "dimension"]
    assert (code, study["small"]) == (0, True)
    assert study["paper"].startswith("after Vo & Hays 2019")
    assert study["title"] in layerprobe("--list")[1]


def test_a_figure_says_what_the_paper_claims_and_whose_claim_it_is(
    layerprobe: Layerprobe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layerprobe.workflow.study.study.run_study", lambda *_: (Path("figure.png"), Path("other.png")))
    code, out, err = layerprobe("vo-hays-fig6")
    assert (code, out) == (0, "figure.png\nother.png\n")
    assert "the paper says: pool5.3 is best, and fc6 is better where it is not next to the loss (Vo & Hays 2019" in err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "error: no study is named. layerprobe study --list lists the known ones."),
        (["dimensio"], "error: unknown study 'dimensio'. Did you mean 'dimension'? Known: dimension, "),
        (["none.toml"], "error: none.toml: no such study. layerprobe study --list lists the known ones."),
        (["dimension", "--jobs", "0"], "error: Invalid value for '--jobs'"),
        (["dimension", "--device", "cuda:0,gpu"], "error: unknown device 'gpu'. Known: auto, cpu, cuda, cuda:0, mps."),
        (["dimension", "--device", "cpu,"], "error: unknown device ''. Known: auto, cpu, cuda, cuda:0, mps."),
    ],
)
def test_a_wrong_name_or_number_is_refused_in_one_line(layerprobe: Layerprobe, words: list[str], line: str) -> None:
    code, out, err = layerprobe(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(line)


def test_a_dry_run_without_data_lists_the_cells_and_what_is_missing(layerprobe: Layerprobe) -> None:
    code, out, _ = layerprobe("vo-hays-fig1", "--dry-run")
    assert code == 0
    assert "9 trainings; time, memory and disk need --data cars196:DIR --data cub200:DIR --data sop:DIR" in out
    found = json.loads(layerprobe("vo-hays-fig1", "--dry-run", "--json")[1])
    assert (found["estimate"], len(found["cells"]), len(found["cells"][0]["runs"])) == (None, 3, 3)


def test_a_dry_run_estimates_all_trainings_and_makes_no_cache(layerprobe: Layerprobe, tmp_path: Path) -> None:
    code, out, _ = layerprobe("dimension", "--small", "--dry-run", "--json", "--device", "cpu")
    found = json.loads(out)
    assert (code, found["run"]) == (0, "dimension-small")
    assert found["estimate"]["disk"] > 0
    assert not (tmp_path / "cache").exists()
