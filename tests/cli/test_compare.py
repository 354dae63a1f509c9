from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from layerprobe.cli import main
from tests.workflow.stored_ranks import INPUT, ranked, store_ranks, write_run

LABELS = np.repeat(np.arange(30), 2)
LAYERS = {ranked("c1@max"): 1 - np.arange(60) % 2, ranked("c2@max"): LABELS < 3, ranked("fc6@none"): LABELS < 25}

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run `layerprobe compare`: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    store_ranks(write_run(tmp_path / "cache", "netA"), LAYERS, LABELS.tolist())
    store_ranks(write_run(tmp_path / "cache", "wide"), LAYERS, LABELS.tolist(), transform=INPUT | {"resize": [64, 64]})

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["layerprobe", "compare", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return int(str(caught.value.code)), out, err

    return run


def test_a_person_reads_a_sentence(compare: Command) -> None:
    code, out, err = compare("netA:fc6", "netA:c1")
    assert (code, err, out.count("\n")) == (0, "", 2)
    assert out.splitlines()[1].startswith("the difference before training is not stored: run layerprobe probe netA")
    assert out.startswith(
        "fc6 retrieves unseen classes better than c1@max in this trained network (netA, epoch 2): R@1 83"
    )


def test_other_input_is_a_line_of_its_own(compare: Command) -> None:
    _, out, _ = compare("netA:fc6", "wide:fc6")
    assert out.splitlines()[1].startswith("the models have different input (netA against wide): resize 32 32")


def test_json_has_the_fields_of_a_comparison_or_a_list_of_them(compare: Command) -> None:
    fields = {"a", "b", "metric", "split", "difference", "low", "high", "p", "comparisons", "n", "classes", "note"}
    fields |= {"before_training", "added_by_training"}
    _, out, _ = compare("netA:fc6", "netA:c1", "--json")
    assert json.loads(out).keys() == {"schema", *fields}
    _, out, _ = compare("netA:c*", "netA:fc6", "--json")
    several = json.loads(out)
    assert several.keys() == {"schema", "comparisons", "results"}
    assert several["comparisons"] == 2
    assert [one.keys() for one in several["results"]] == [fields, fields]


def test_seeds_are_told_one_by_one(compare: Command, tmp_path: Path) -> None:
    store_ranks(write_run(tmp_path / "cache", "other", seed=1), LAYERS, LABELS)
    code, out, _ = compare("netA:fc6", "netA:c1", "--seeds")
    assert code == 0
    assert "(seed 0 +33.3, seed 1 +33.3)" in out
    assert "wide left out: netA has its seed 0" in out.splitlines()
    _, out, _ = compare("netA:fc6", "netA:c1", "--seeds", "--json")
    assert [one["seed"] for one in json.loads(out)["seeds"]] == [0, 1]
    assert json.loads(out)["schema"] == 3


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["netB:fc6", "netA:c1"], 2, "unknown run 'netB'. Did you mean 'netA'?"),
        (["netA:fc7", "netA:c1"], 2, "layer 'fc7' is not ranked. Did you mean 'fc6'?"),
        (["netA#9:fc6", "netA:c1"], 2, "netA has no epoch 9. Choose one from 0 to 2"),
        (["netA#1:fc6", "netA:c1"], 3, "Run layerprobe probe netA --epochs 1 --splits test"),
        (["netA:fc6", "netA:c1", "--metric", "mapr"], 2, "unknown metric 'mapr'"),
        (["netA:fc6", "netA:c1", "--split", "tset"], 2, "Did you mean 'test'?"),
        (["netA:fc6", "netA:c1", "--interval", "galery"], 2, "unknown interval 'galery'. Did you mean 'gallery'?"),
        (["netA:fc6", ":c1"], 2, "':c1' names no run"),
        (["netA:fc6"], 2, "compare takes two layers. Name both"),
        (["netA", "netA", "--paper", "vo-hays-2019:table3"], 2, "--paper has the table's own metrics and splits"),
        (["netA", "--seeds", "--paper", "vo-hays-2019:table3"], 2, "--paper has the table's own metrics and splits"),
        (["netA", "--paper", "vohays"], 2, "unknown paper 'vohays'. Did you mean 'vo-hays-2019'?"),
        (["netA", "--paper", "vo-hays-2019"], 2, "Choose one of vo-hays-2019:table1 (R@K of NetA:pool5.3"),
        (["netB", "--paper", "vo-hays-2019:table1"], 2, "unknown run, or layer of netA, 'netB'"),
        (["netA", "--paper", "vo-hays-2019:table1"], 3, "no scores yet. Run layerprobe probe netA first"),
    ],
)
def test_a_wrong_word_is_one_line(compare: Command, words: list[str], code: int, message: str) -> None:
    found, out, err = compare(*words)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert message in err
