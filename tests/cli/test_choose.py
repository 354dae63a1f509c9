from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from layerprobe.cli import main
from layerprobe.values.choice import Choice
from layerprobe.values.models import ModelTable
from layerprobe.workflow.choose import choose_models
from layerprobe.workflow.train.frozen_request import FrozenRequest
from tests.values.test_models import table_of
from tests.workflow.selection_runs import C1, C2, hits, write_run

GOOD, FAIR = hits(*[4] * 20), hits(*[3] * 20)
TWO = ["--model", "timm:a", "--model", "timm:b"]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run `layerprobe choose` on a run with validation classes, `held`, and one without, `seen`."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "cache", "seen", {"train": {C1: GOOD}, "test": {C1: GOOD}})
    layers = {"validation": {C1: FAIR, C2: GOOD}, "test": {C1: GOOD, C2: FAIR}}
    write_run(tmp_path / "cache", "held", layers)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["layerprobe", "choose", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return int(str(caught.value.code)), out, err

    return run


def test_a_person_reads_what_is_selected_and_what_to_do_next(choose: Command) -> None:
    code, out, err = choose("held")
    assert code == 0
    assert out.splitlines() == [
        "held: Selected: c2. Switch? Inconclusive: the embedding is not known, or not",
        "  ranked on test.",
        "Which layer exactly? c2: significant, better than the other.",
        "",
        "                 selected",
        "layer            c2",
        "post-processing  none",
        "dimension        3",
        "bytes an image   12",
        "R@1 on test, %   75.0",
        "",
        "How sure: 2 candidates, compared on 20 validation classes. Expected loss of c2",
        "  against the best candidate, in a gallery of 20 classes: 0.0 points; upper 95 %",
        "  bound 0.0.",
    ]
    assert err == "next: layerprobe export held --epoch 2 --layer c2@max --out held-export\n"


def test_full_shows_the_best_on_test_and_the_resamples(choose: Command) -> None:
    shown, full = (choose("held", *words)[1] for words in ([], ["--full"]))
    assert full.startswith(shown)
    assert full.removeprefix(shown).splitlines() == [
        "",
        "on validation: c2@max, R@1 100.0 %",
        "on test: R@1 75.0 %",
        "best on test, chosen by looking: held#2:c1@max, R@1 100.0 %; regret +25.0 points; optimism +0.0 points",
        "chosen in resamples of the classes: c2@max 100 %",
        "equivalent within 1 points (95 %), the cheapest first: c2@max",
    ]


def test_json_has_the_fields_of_the_choice(choose: Command) -> None:
    code, out, _ = choose("--json")  # the run touched last
    found = json.loads(out)
    assert (code, found["schema"]) == (0, 4)
    assert found.keys() == {"schema", *(field.name for field in fields(Choice))} - {"test_values"}
    assert (found["advice"], found["verdict"], found["max_loss"], found["gain"]) == (
        "inconclusive",
        "significant",
        0.0,
        None,
    )
    assert found["cost"] == {"bytes": 12, "share_of_multiply_adds": None}
    assert (
        found["selected"]
        == found["preferred"]
        == {
            "layer": "c2",
            "pool": "max",
            "post_processing": "none",
            "epoch": 2,
            "dim": 3,
            "bytes_per_image": 12,
        }
    )
    assert (found["run"], found["chosen"]["split"], found["regret"]) == ("held", "validation", 0.25)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["gone"], 2, "unknown run 'gone'"),
        (["held", "--within", "-1"], 2, "within -1: not a number of points from 0 to 100"),
        (["held", "--metric", "NMI"], 2, "NMI is not the mean of a value for each query"),
        (["held", "--metric", "MAP@R"], 3, "no MAP@R of each query is stored"),
        (["held", "--layers", "c9"], 2, "unknown candidate of held 'c9'"),
        (["held", "--epochs", "soon"], 2, "'soon' is neither all, last nor an epoch"),
        (["held", "--index", "ivf"], 2, "unknown kind of index 'ivf'. Did you mean 'ivfpq'? Known: flat, ivfpq, hnsw"),
        (["held", "--epochs", "1"], 3, "epoch 1 is not ranked on the validation split"),
    ],
)
def test_what_cannot_be_chosen_ends_in_one_line(choose: Command, words: list[str], code: int, message: str) -> None:
    found, out, err = choose(*words)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert message in err


def test_an_open_choice_says_what_would_settle_it(choose: Command, tmp_path: Path) -> None:
    # c1 and c2 miss one image each of ten classes, of others: equal means
    first, second = hits(*[3, 4] * 10), hits(*[4, 3] * 10)
    layers = {"validation": {C1: first, C2: second}, "test": {C1: GOOD, C2: FAIR}}
    write_run(tmp_path / "cache", "open", layers)
    _, out, err = choose("open", "--within", "5")
    text = " ".join(out.split())
    assert (
        "Which layer exactly? c1: inconclusive, another layer may be better by up to 10.9 points (95 %). 1 other has"
        in text
    )
    assert "upper 95 % bound 10.9. About 100 classes would make it conclusive: hold more out, or use folds." in text
    assert err.startswith("next: layerprobe export open ")


def test_layers_and_the_metric_can_be_named(choose: Command) -> None:
    code, out, _ = choose("held", "--layers", "c1", "--metric", "R@2", "--json")
    found = json.loads(out)
    assert (code, found["selected"]["layer"], found["chosen"]["metric"], found["candidates"]) == (0, "c1", "R@2", 1)


def test_the_next_step_names_a_run_of_the_chosen_experiment(choose: Command, tmp_path: Path) -> None:
    for name, seed in (("x", 0), ("y", 1)):
        own = {"validation": {C1: FAIR}, "test": {C1: FAIR}}
        write_run(tmp_path / "cache", name, own, experiment="f", seed=seed)
    _, out, err = choose("x", "y", "--cache", "cache")
    assert out.startswith("f: Selected: c1. Switch? Inconclusive")
    assert err == "next: layerprobe export x --epoch 2 --layer c1@max --out x-export\n"


def test_a_file_of_features_is_enough(choose: Command, tmp_path: Path) -> None:
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(20), 3)
    clear = rng.normal(size=(20, 8))[labels] + 0.1 * rng.normal(size=(60, 8))
    np.savez(tmp_path / "f.npz", labels=labels, noise=rng.normal(size=(60, 4)), clear=clear)
    code, out, err = choose("f.npz", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert (found["run"], found["selected"]["layer"], found["test"]["value"], found["test"]["split"]) == (
        "",
        "clear",
        1,
        "test",
    )
    assert found["selected"]["epoch"] is None
    assert not any(name.startswith("#") for name in found["shares"])


@pytest.mark.usefixtures("faiss")
def test_indexes_of_the_choice_are_a_table_and_a_field_of_json(choose: Command, tmp_path: Path) -> None:
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(20), 3)
    clear = rng.normal(size=(20, 8))[labels] + 0.1 * rng.normal(size=(60, 8))
    np.savez(tmp_path / "f.npz", labels=labels, clear=clear)
    code, out, err = choose("f.npz", "--index", "hnsw,flat")
    assert (code, err) == (0, "")
    assert "indexes of clear: 60 test images, 60 queries for 2 neighbours each\n" in out
    rows = [line.split() for line in out.splitlines() if line.startswith(("exact", "flat", "hnsw "))]
    assert [row[:4] for row in rows] == [
        ["exact", "100.0", "100.0", "33"],  # 8 float32, and what the file has besides
        ["flat", "100.0", "+0.00", "100.0"],
        ["hnsw", "100.0", "+0.00", "100.0"],
    ]
    found = json.loads(choose("f.npz", "--index", "hnsw", "--json")[1])["indexes"]
    assert ([row["kind"] for row in found["rows"]], found["threads"]) == (["exact", "hnsw"], 1)


def test_train_rows_of_a_file_do_not_choose(choose: Command, tmp_path: Path) -> None:
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(40), 3)
    splits = np.array(["train", "test"])[labels // 20]
    clear = rng.normal(size=(40, 8))[labels] + 0.5 * rng.normal(size=(120, 8))
    np.savez(tmp_path / "f.npz", labels=labels, split=splits, a=clear)
    np.savez(tmp_path / "train.npz", labels=labels, split=np.full(120, "train"), a=rng.normal(size=(120, 8)))
    code, out, _ = choose("f.npz")
    assert code == 0
    assert out.startswith(
        "Cross-fitted on the 20 test classes, as the network may have been trained on the\n  20 train"
    )
    assert "How sure: 3 candidates, compared on 20 test classes." in out
    assert "\nevery fold searches the whole gallery\n" in out
    code, out, err = choose("train.npz")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: train.npz: all are train rows, on which the network may have been trained. Give")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["gone.npz"], 3, "gone.npz: no such file"),
        (["gone.npz", "held"], 2, "gone.npz and 1 more. Name one file of features, or runs"),
        (["f.npz", "--epochs", "0"], 2, "--epochs 0: f.npz has one epoch only"),
        (["held", "--weights", "none"], 2, "--weights is for a model that is named by --model"),
        (["--model", "timm:resnet18"], 2, "needs images. Add --data"),
        (
            [*TWO, "--weights", "none"],
            2,
            "2 --model and 1 --weights. Give --weights for each --model, in the same order",
        ),
        (["--model", "timm:a", "--weights", "none", "--weights", "none"], 2, "1 --model and 2 --weights. Give"),
        ([*TWO, *TWO], 2, "--model timm:a is named twice. Name it once, or with other --weights"),
        ([*TWO, "--run", "x"], 2, "--run x is the name of one run, and there are 2 models. Leave it out, or name each"),
        ([*TWO, "--export", "out"], 2, "--export is for a single model. Leave --export out, then name one of the runs"),
        ([*TWO, "--index", "flat"], 2, "--index is for a single model"),
        ([*TWO, "--full"], 2, "--full is for a single model"),
        (["held", "--format", "csv"], 2, "--format csv: a single choice is no table. Name several models, or use"),
        (["held", *TWO, "--data", "folder:x"], 2, "held and --model timm:a: one of them"),
        ([*TWO, "--models", "m.csv"], 2, "--model and --models m.csv: one of them. Leave --model out"),
        (["--models", "m.csv", "--run", "x"], 2, "--run and --models m.csv: one of them. Leave --run out"),
        (["--models", "m.csv"], 3, "m.csv: cannot be read (No such file or directory)"),
    ],
)
def test_words_that_do_not_go_together_are_told(choose: Command, words: list[str], code: int, message: str) -> None:
    found, out, err = choose(*words)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert message in err


@pytest.fixture
def asked(choose: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[FrozenRequest]:
    """The requests of `choose_models`, whose place gives a table of two models; `images` is a folder of images."""
    for place in range(8):
        folder = tmp_path / "images" / f"class{place // 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(folder / f"{place}.png")
    requests: list[FrozenRequest] = []

    def measured(frozen: list[FrozenRequest], *_: object) -> ModelTable:
        requests.extend(frozen)
        return table_of((0,), (0,))

    monkeypatch.setattr(choose_models, "choose_models", measured)
    return requests


def test_several_models_are_one_table_and_the_next_step_is_their_page(
    choose: Command, asked: list[FrozenRequest]
) -> None:
    code, out, err = choose(*TWO, "--weights", "none", "--weights", "model", "--data", "folder:images", "--seed", "3")
    assert (code, err) == (0, "next: layerprobe report r r\n")
    assert out.startswith("No model differs significantly from another. Highest: timm:a, R@1 60.0 [50.0, 70.0] %.\n")
    shared = {(request.data, request.seed, request.settings) for request in asked}
    assert shared == {("folder:images", 3, ())}
    assert [(request.model, request.weights) for request in asked] == [("timm:a", "none"), ("timm:b", "model")]


def test_models_of_a_table_have_weights_and_runs_of_their_own(
    choose: Command, asked: list[FrozenRequest], tmp_path: Path
) -> None:
    (tmp_path / "m.csv").write_text("model,weights,run\ntimm:a,none,\ntimm:b,,mine\n")
    code, out, _ = choose("--models", "m.csv", "--data", "folder:images", "--not-trained-on-these", "--format", "csv")
    assert (code, len(out.splitlines())) == (0, 3)
    assert out.startswith("model,layer,test R@1,")
    assert [(x.model, x.weights, x.run, x.settings) for x in asked] == [
        ("timm:a", "none", None, ("data.seen=false",)),
        ("timm:b", "model", "mine", ("data.seen=false",)),
    ]


def test_json_of_several_models_has_a_row_for_each(choose: Command, asked: list[FrozenRequest]) -> None:
    found = json.loads(choose(*TWO, "--data", "folder:images", "--json")[1])
    assert [(row["name"], row["test"]["value"], row["groups"]) for row in found["models"]] == [
        ("timm:a", 0.6, [0]),
        ("timm:b", pytest.approx(0.59), [0]),
    ]
    assert (found["left_out"], found["count"], len(asked)) == ([], 20, 2)


def test_a_file_that_is_missing_is_told_before_anything_is_measured(
    choose: Command, asked: list[FrozenRequest]
) -> None:
    words = [*TWO, "--weights", "none", "--weights", "gone.pth", "--data", "folder:images"]
    code, out, err = choose(*words)
    assert (code, out, asked, err.count("\n")) == (3, "", [], 1)
    assert "gone.pth" in err
