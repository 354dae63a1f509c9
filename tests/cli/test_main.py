"""What a user gets for a wrong word, file or flag: one line, the right exit code, nothing lost."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

from layerprobe import __version__ as version
from layerprobe import registry
from layerprobe.cli import main
from layerprobe.data.pixel_cache import entries
from layerprobe.system.errors import EnvironmentFault
from layerprobe.system.files import sha256
from layerprobe.workflow.run.runs import Run
from tests.processes import run_python
from tests.records import rewrite
from tests.workflow.conftest import NARROW_VGG

Outcome = tuple[int, str, str]


@pytest.fixture
def layerprobe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Outcome]:
    """Run a command line in this process, in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["layerprobe", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return int(str(caught.value.code)), out, err

    return run


Command = Callable[..., Outcome]


def folder(root: Path, classes: int, *, images: int = 4) -> Path:
    rng = np.random.default_rng(0)
    for label in range(classes):
        (root / f"c{label}").mkdir(parents=True)
        for i in range(images):
            pixels = rng.integers(0, 256, (16, 16, 3), np.uint8)
            Image.fromarray(pixels).save(root / f"c{label}" / f"{i}.png")
    return root


MODEL = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()), {"size": 16}
"""
SMALL = ["net.fc=[8]", "train.batch_size=4", "train.images_per_class=2", "train.epochs=1"]
LENET = ["net.name=lenet", "data.image_size=28"]


def train_words(root: Path, *more: str, net: list[str] = LENET) -> list[str]:
    settings = [word for setting in [*SMALL, *net] for word in ("--set", setting)]
    return ["train", "netA", "--data", f"folder:{root}", "--run", "tiny", "--device", "cpu", *settings, *more]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["trian"], 2, "No such command 'trian'. Did you mean 'train'?"),
        (["train", "netA", "--sed", "1"], 2, "No such option: --sed"),
        (["probe", "netA", "--export-index"], 2, "No such option: --export-index"),
        (["probe", "netA", "--interval", "redraw"], 2, "No such option: --interval"),
        (["choose", "netA", "--combine"], 2, "No such option: --combine"),
        (["train", "neta"], 2, "unknown recipe 'neta'. Did you mean 'netA'?"),
        (["train", "x.toml"], 2, "x.toml: no such recipe"),
        (["train", "netA", "--set", "train.epohcs=3"], 2, "[train]: unknown key 'epohcs'. Did you mean 'epochs'?"),
        (["train", "netA", "--set", "tain.epochs=3"], 2, "unknown section in --set tain.epochs=3: 'tain'"),
        (["train", "netA", "--data", "folders:x"], 2, "[data]: unknown data set 'folders'. Did you mean 'folder'?"),
        (["train", "netA", "--set", "train.learning_rate=inf"], 2, "[train]: learning_rate"),
        (["probe", "--layers", ""], 2, "no names in ''. Write names separated by commas"),
        (["probe", "--k", "\N{SUPERSCRIPT TWO}"], 2, "not whole numbers above 0"),
        (["probe", "--memory", "4 elephants"], 2, "--memory 4 elephants: not a size. Write one like 4GB or 500MB"),
        (["train", "netA", "--log", "tensorbord:x"], 2, "unknown tracker 'tensorbord'. Did you mean 'tensorboard'?"),
        (["probe", "--log", "wanb"], 2, "unknown tracker 'wanb'. Did you mean 'wandb'?"),
        (["train", "netA", "--device", "gpu"], 2, "unknown device 'gpu'. Known: auto, cpu, cuda, cuda:0, mps"),
        (["train", "netA", "--data", "folder:absent"], 3, "absent"),
        (["probe"], 3, "there is no run yet. Train one: layerprobe train quick"),
        (["probe", "netA"], 3, "there is no run yet"),
        (["plot", "train-vs-tset"], 2, "unknown plot 'train-vs-tset'. Did you mean 'train-vs-test'?"),
        (["plot", "curves"], 3, "there is no run yet"),
        (["layers", "vgg16"], 2, "unknown network, recipe, run or source 'vgg16'. Did you mean 'vgg16_bn'?"),
        (["recipes", "netX"], 2, "unknown recipe 'netX'. Did you mean 'net"),
        (["runs", "nope"], 3, "there is no run yet"),
    ],
)
def test_a_wrong_word_is_one_line_with_its_exit_code(
    layerprobe: Command, tmp_path: Path, words: list[str], code: int, message: str
) -> None:
    found, out, err = layerprobe(*words)
    assert (found, out) == (code, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert not (tmp_path / "cache").exists()


def test_no_words_at_all_show_the_help(layerprobe: Command) -> None:
    code, out, err = layerprobe()
    assert (code, err) == (0, "")
    assert "\nMeasure:\n" in out


def test_a_section_that_is_no_table_is_told_with_overrides_too(layerprobe: Command, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("train = 5\n")
    code, _, err = layerprobe("train", "x.toml", "--seed", "1", "--set", "train.epochs=3")
    assert code == 2
    assert "x.toml [train]: not a section. Write [train]" in err


def test_a_recipe_that_cannot_be_read_hides_no_other(layerprobe: Command, tmp_path: Path) -> None:
    (tmp_path / "recipes" / "folder.toml").mkdir(parents=True)
    (tmp_path / "recipes" / "bytes.toml").write_bytes(b"# \xff\xfe\n")
    code, out, _ = layerprobe("recipes", "--json")
    assert code == 0
    assert {"netA", "bytes"} <= set(json.loads(out)["recipes"])
    assert "folder" not in json.loads(out)["recipes"]


def test_an_error_is_json_where_json_was_asked_for(layerprobe: Command) -> None:
    code, out, err = layerprobe("probe", "--json")
    assert (code, err) == (3, "")
    assert json.loads(out) == {
        "schema": 2,
        "error": {
            "code": "data", "file": "cache", "message": "there is no run yet",
            "fix": "Train one: layerprobe train quick, or measure a model: layerprobe probe --model SOURCE --data"
            " folder:DIR",
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "out", "err"),
    [
        ((), "", "interrupted.\n"),
        (
            ("--json",),
            '{"schema": 2, "error": {"code": "interrupted", "file": null, "message": "interrupted", "fix": ""}}\n',
            "",
        ),
    ],
)
def test_an_interrupt_is_told(
    layerprobe: Command, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], out: str, err: str
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("layerprobe.recipe.recipe_files.list_recipes", interrupted)
    assert layerprobe("recipes", *more) == (130, out, err)


def test_an_interrupted_command_that_keeps_its_work_says_so(
    layerprobe: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("layerprobe.recipe.recipe.load_recipe", interrupted)
    monkeypatch.setattr("layerprobe.recipe.recipe_files.list_recipes", interrupted)
    told = "interrupted; the same command goes on from what is stored.\n"
    assert layerprobe("train", "quick") == (130, "", told)


def test_an_interrupt_while_waiting_for_another_process_is_told(layerprobe: Command, tmp_path: Path) -> None:
    # Data workers read from disk: what they read is decoded to there.
    words = train_words(folder(tmp_path / "root", 4), "--workers", "1", "--json")
    assert layerprobe(*words)[0] == 0
    with contextlib.ExitStack() as held:
        for entry in entries(tmp_path / "cache" / "images"):
            entry.remove()
            held.enter_context(entry.locked())
        waiting = subprocess.Popen(
            [sys.executable, "-m", "layerprobe", *words, "--fresh"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whatever a shell left here
        )
        assert waiting.stderr is not None
        while "waiting for another process" not in (line := waiting.stderr.readline()):
            assert line
        waiting.send_signal(signal.SIGINT)
        out, err = waiting.communicate(timeout=300)
    assert (waiting.returncode, json.loads(out)["error"]["code"], err) == (130, "interrupted", "")


def test_all_problems_of_a_recipe_are_told_at_once(layerprobe: Command) -> None:
    code, _, err = layerprobe("train", "netA", "--set", "train.epohcs=3", "--set", "net.fcs=[1]")
    assert code == 2
    lines = err.splitlines()
    assert lines[0].startswith("error: --set net.fcs=[1] [net]: unknown key 'fcs'. Did you mean 'fc'?")
    assert lines[1].startswith("error: --set train.epohcs=3 [train]: unknown key 'epohcs'. Did you mean 'epochs'?")


@pytest.mark.parametrize(("classes", "message"), [(0, "root"), (1, "1 class"), (2, "class"), (3, "class")])
def test_too_few_classes_are_a_data_error(layerprobe: Command, tmp_path: Path, classes: int, message: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    code, _, err = layerprobe(*train_words(folder(root, classes)))
    assert code == 3
    assert message in err
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(("content", "message"), [(b"", "the file is empty"), (None, "truncated")])
def test_a_bad_image_is_named_and_the_run_can_go_on(
    layerprobe: Command, tmp_path: Path, content: bytes | None, message: str
) -> None:
    root = folder(tmp_path / "root", 4)
    victim = root / "c1" / "2.png"
    good = victim.read_bytes()
    victim.write_bytes(good[: len(good) // 2] if content is None else content)
    code, _, err = layerprobe(*train_words(root))
    assert code == 3
    assert "c1/2.png" in err
    assert err.splitlines()[-1].startswith("error: ")
    victim.write_bytes(good)
    code, out, _ = layerprobe(*train_words(root, "--fresh"))
    assert (code, out) == (0, "cache/tiny\n")


@pytest.mark.parametrize("victim", ["c1/2.png", "c3/0.png"])  # of the training classes, and of the test classes
def test_a_damaged_image_that_is_removed_as_told_stops_no_second_probe(
    layerprobe: Command, tmp_path: Path, victim: str
) -> None:
    root = folder(tmp_path / "root", 4)
    (root / victim).write_bytes((root / victim).read_bytes()[:99])
    (tmp_path / "net.py").write_text(MODEL)
    words = ["--model", "python:net.py:build", "--data", "folder:root", "--device", "cpu"]
    assert layerprobe("probe", *words)[0] == 3
    (root / victim).unlink()
    assert layerprobe("probe", *words)[0] == 0
    images = {score.split: score.n for score in Run(next((tmp_path / "cache").glob("python*"))).scores()}
    assert images == {"train": 8 - (victim[1] == "1"), "test": 8 - (victim[1] == "3")}


def test_a_damaged_image_that_is_removed_as_told_stops_no_second_training(layerprobe: Command, tmp_path: Path) -> None:
    root = folder(tmp_path / "root", 4)
    victims = [root / "c0" / "1.png", root / "c2" / "1.png"]  # a training image and a test image
    for victim in victims:
        victim.write_bytes(victim.read_bytes()[:99])
    assert layerprobe(*train_words(root))[0] == 3
    victims[0].unlink()
    assert layerprobe(*train_words(root))[0] == 0
    assert layerprobe("probe", "tiny", "--device", "cpu")[0] == 3
    victims[1].unlink()
    assert layerprobe("probe", "tiny", "--device", "cpu")[0] == 0
    (root / "c2" / "2.png").unlink()  # what is measured keeps its images
    code, _, err = layerprobe("probe", "tiny", "--metrics", "NMI", "--device", "cpu")
    assert (code, "the test images are not those of the run" in err) == (3, True)


def test_a_pipe_among_the_images_is_named_and_not_waited_for(layerprobe: Command, tmp_path: Path) -> None:
    victim = folder(tmp_path / "root", 4) / "c1" / "2.png"
    victim.unlink()
    os.mkfifo(victim)
    code, out, err = layerprobe(*train_words(tmp_path / "root"))
    assert (code, out) == (3, "")
    assert err.splitlines()[-1].startswith(f"error: {victim}: a pipe, socket or device, not a file. ")


def test_train_probe_plot_and_a_second_time(
    layerprobe: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.NETS, "narrow_vgg", NARROW_VGG)
    words = train_words(folder(tmp_path / "root", 8), net=["net.name=narrow_vgg", "data.image_size=16"])
    code, out, err = layerprobe(*words)
    assert (code, out) == (0, "cache/tiny\n")
    assert "epoch 1/1: loss" in err
    assert "nothing to do" in layerprobe(*words)[2]

    code, out, err = layerprobe("probe", "--layers", "pool5.3,fc6", "--k", "1,2")
    assert code == 0
    assert err.startswith("run tiny\n")
    shown_words = ("tiny", "pool5.3", "fc6", "R@1", "train", "test", "best", "embedding")
    assert [word in out for word in shown_words] == [True] * 8
    assert "summary of tiny" not in out
    assert "summary of tiny" in layerprobe("probe", "--layers", "pool5.3,fc6", "--k", "1,2", "--full")[1]
    code, out, _ = layerprobe("probe", "tiny", "--layers", "fc6", "--json")
    shown = json.loads(out)
    assert (code, shown["schema"], shown["run"]) == (0, 2, "tiny")
    assert set(shown["scores"][0]) == {
        "run", "experiment", "seed", "epoch", "split", "layer", "pool", "post_processing", "similarity", "metric",
        "value", "low", "high", "interval", "n", "note",
    }  # fmt: skip
    assert [layer["layer"] for layer in shown["summary"]["layers"]] == ["pool5.3", "fc6"]

    code, out, err = layerprobe(
        "probe", "tiny", "--layers", "fc6", "--k", "1", "--metrics", "MRR", "--format", "csv", "--full"
    )
    tables = [list(csv.reader(part.splitlines())) for part in out.split("\n\n")]
    assert [[line[:2] for line in table] for table in tables] == [
        [["layer", "train R@1"], ["fc6", tables[0][1][1]]],
        [["", "layer"], ["*", "fc6"]],
        [["metric", "layer"], ["MRR", "fc6"]],
        [["", "layer"], ["*", "pool5.3@max"], ["", "fc6"]],  # all that is stored
    ]
    assert "tiny, epoch 1, R@1 in %, cosine" in err
    assert layerprobe("probe", "tiny", "--json", "--format", "csv")[0] == 2
    assert layerprobe("runs", "--format", "latex")[1].startswith(r"\begin{tabular}{")

    code, out, _ = layerprobe("plot", "train-vs-test", "--csv", "points.csv")
    assert (code, out) == (0, "cache/tiny/plots/train-vs-test.png\n")
    assert Path("cache/tiny/plots/train-vs-test.png").read_bytes().startswith(b"\x89PNG")
    assert Path("points.csv").read_text().count("\n") > 4
    assert layerprobe("plot", "layers", "--out", "x.gif")[0] == 2
    Path("folder.png").mkdir()
    code, _, err = layerprobe("plot", "layers", "--out", "folder.png")
    assert code == 2
    assert err.splitlines()[-1].startswith("error: ")

    code, out, _ = layerprobe("report")
    assert (code, out.splitlines()[-1]) == (0, "cache/tiny/report.html")
    assert "pool5.3@max, the layer before the embedding," in out
    assert "data:image/" in Path("cache/tiny/report.html").read_text(encoding="utf-8")

    code, out, _ = layerprobe("layers", "tiny", "--json")
    rows = json.loads(out)["layers"]
    assert rows[-1] == {
        "layer": "fc6", "module": "fc6", "dim": 8, "kind": "vector", "size": "", "pools": ["none"], "weights": "new"
    }  # fmt: skip
    assert json.loads(layerprobe("runs", "--json")[1])["runs"][0]["run"] == "tiny"


def test_train_and_probe_log_and_print_results_alone_on_stdout(
    layerprobe: Command, tmp_path: Path, tracker_calls: list[tuple[object, ...]]
) -> None:
    words = train_words(folder(tmp_path / "root", 8))
    code, out, err = layerprobe(*words, "--log", "kept:there", "--log", "raising")
    assert (code, out) == (0, "cache/tiny\n")
    assert err.count("--log raising: nothing more is logged there: no network") == 1
    expected = [("begin", "there"), ("log", 1), ("figure", "loss"), ("close", "finished")]
    assert [call[:2] for call in tracker_calls] == expected
    tracker_calls.clear()
    code, out, _ = layerprobe(
        "probe", "tiny", "--layers", "fc6", "--k", "1", "--log", "kept", "--log", "raising", "--json"
    )
    assert (code, json.loads(out)["run"]) == (0, "tiny")
    logged = [(call[1], sorted(call[2])) for call in tracker_calls if call[0] == "log"]  # type: ignore[call-overload]
    names = ["gap_R@1/fc6", "test_R@1/fc6", "train_R@1/fc6"]
    assert logged == [(0, names), (1, sorted([*names, "loss"]))]
    assert ("file", "report.html", "<!doctype html>") in tracker_calls


def test_images_that_are_no_squares_are_trained_on_probed_and_drawn(layerprobe: Command, tmp_path: Path) -> None:
    root = folder(tmp_path / "root", 8)
    assert layerprobe(*train_words(root, net=["net.name=lenet", "data.image_size=[40,28]"]))[0] == 0
    code, out, _ = layerprobe("probe", "tiny", "--layers", "*", "--pool", "max,grid:2", "--k", "1", "--json")
    shown = json.loads(out)["scores"]
    assert code == 0
    assert {score["value"] is not None for score in shown} == {True}
    sizes = {row["layer"]: row["size"] for row in json.loads(layerprobe("layers", "tiny", "--json")[1])["layers"]}
    assert sizes["c1"] == "40x28"
    assert layerprobe("plot", "panels")[0] == layerprobe("report")[0] == 0


GREY = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
"""


def test_a_model_of_one_channel_is_measured_chosen_and_drawn(layerprobe: Command, tmp_path: Path) -> None:
    root = tmp_path / "root"
    rng = np.random.default_rng(0)
    for label in range(8):
        (root / f"c{label}").mkdir(parents=True)
        for i in range(4):
            Image.fromarray(rng.integers(0, 256, (30, 20), np.uint8)).save(root / f"c{label}" / f"{i}.png")
    Path("grey.py").write_text(GREY)
    words = ["probe", "--model", "python:grey.py:build", "--data", f"folder:{root}", "--not-trained-on-these"]
    words += ["--set", "data.transform=square", "--set", "data.mean=[0.5]", "--k", "1", "--device", "cpu", "--run", "g"]
    code, _, err = layerprobe(*words, "--set", "data.image_size=[24,16]")
    assert code == 0
    assert "note: the network takes grey images: colours are converted to luma" in err
    record = json.loads(Path("cache/g/run.json").read_text())
    assert (record["network"]["channels"], json.loads(record["transform"])["mean"]) == (1, [0.5])
    assert layerprobe("choose", "g")[0] == 0
    assert layerprobe("plot", "panels", "g")[0] == layerprobe("report", "g")[0] == 0
    code, _, err = layerprobe(*words, "--set", "data.transform=D1", "--set", "data.image_size=[24,16]")
    assert code == 2
    assert 'transform = "D1" crops a square' in err


def test_only_features_that_are_nan_fail_a_probe(layerprobe: Command, tmp_path: Path) -> None:
    root = folder(tmp_path / "root", 8)
    # Of 16 test images two are equal: the rank of 120 numbers is 15 and not 16, so rho is infinite.
    (root / "c7" / "1.png").write_bytes((root / "c7" / "0.png").read_bytes())
    assert layerprobe(*train_words(root))[0] == 0
    words = ("probe", "--layers", "pool5,fc6", "--epochs", "last", "--metrics", "rho")
    code, out, err = layerprobe(*words)
    assert code == 0
    assert "rho is infinite" in out
    assert "without a value: 1 of these; the notes say why" in err

    run = Run(Path("cache/tiny"))
    weights = safetensors.numpy.load_file(run.checkpoint_file(1))
    weights["net.fc6.weight"][:] = np.nan
    safetensors.numpy.save_file(weights, run.checkpoint_file(1))
    hashes = {run.checkpoint_file(1).name: sha256(run.checkpoint_file(1))}
    rewrite(run, hashes={**run.read().hashes, **hashes})
    code, out, _ = layerprobe(*words)
    assert code == 4
    assert "NaN (16 rows)" in out


def test_a_dry_run_of_training_writes_nothing(layerprobe: Command, tmp_path: Path) -> None:
    code, out, _ = layerprobe(*train_words(folder(tmp_path / "root", 8), "--dry-run"))
    assert code == 0
    assert out.startswith("tiny: about ")
    assert "on disk" in out
    assert not (tmp_path / "cache").exists()


def test_a_changed_learning_rate_tells_what_does_not_follow_it(layerprobe: Command, tmp_path: Path) -> None:
    words = train_words(folder(tmp_path / "root", 8), "--set", "loss.name=proxy_anchor", "--dry-run")
    assert "note:" not in layerprobe(*words)[2]
    _, _, err = layerprobe(*words, "--set", "train.learning_rate=0.1")
    assert err.splitlines()[0].startswith("note: the learning rate of the loss's proxies is 0.01,")


def test_a_busy_run_is_exit_6(layerprobe: Command, tmp_path: Path) -> None:
    root = folder(tmp_path / "root", 8)
    layerprobe(*train_words(root))
    holder = (
        "import time, sys; from pathlib import Path; from layerprobe.workflow.run.runs import Run, locked\n"
        "with locked(Run(Path('cache/tiny'))): print(1, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        code, _, err = layerprobe("probe", "tiny")
        process.kill()
    assert code == 6
    assert f"run is in use by pid {process.pid} on " in err


def test_a_name_with_control_characters_cannot_steer_the_terminal(layerprobe: Command) -> None:
    _, _, err = layerprobe("layers", "\x1b[31mred")
    assert "\x1b" not in err


def test_a_usage_error_names_the_help_of_its_command(layerprobe: Command) -> None:
    assert layerprobe("data", "lst")[2].endswith("Did you mean 'list'? layerprobe data --help shows what there is.\n")
    assert layerprobe("train", "--sed", "1")[2].endswith(" layerprobe train --help shows what there is.\n")
    assert layerprobe("trian")[2].endswith("Did you mean 'train'? layerprobe --help shows what there is.\n")


@pytest.mark.parametrize("words", ["", "train", "data", "data check", "cache", "cache list"])
def test_every_help_is_plain_text_under_its_full_name(layerprobe: Command, words: str) -> None:
    code, out, err = layerprobe(*words.split(), "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: {' '.join(['layerprobe', *words.split()])} ")
    assert out.isascii()


@pytest.mark.parametrize(("words", "title"), [("", "Start:"), ("data", "Commands:"), ("cache", "Commands:")])
def test_the_list_of_commands_cuts_no_line_short(layerprobe: Command, words: str, title: str) -> None:
    _, _, listed = layerprobe(*words.split(), "--help")[1].partition(title)
    assert listed
    assert "..." not in listed


def test_a_shell_completes_commands(layerprobe: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "_LAYERPROBE_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "layerprobe pl", "COMP_WORDS": "layerprobe pl",
        "COMP_CWORD": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    assert "plot" in layerprobe()[1]


def test_the_recipes_are_listed_with_what_they_train(layerprobe: Command) -> None:
    code, out, _ = layerprobe("recipes", "--json")
    listed = json.loads(out)["recipes"]
    assert code == 0
    assert {"netA", "netB", "netC", "netD", "netE", "netF", "netA-softmax", "quick"} <= set(listed)
    assert all(listed.values())


def test_a_damaged_run_is_listed_as_such_and_the_others_are_too(layerprobe: Command, tmp_path: Path) -> None:
    for name, epochs in (("good", 1), ("bad", "1")):
        (tmp_path / "cache" / name).mkdir(parents=True)
        record = {
            "schema": 2, "state": "finished", "recipe_name": "x", "recipe": {}, "experiment": "", "seed": 0,
            "epochs_done": epochs, "hashes": {}, "manifests": {}, "new_parameters": [],
        }  # fmt: skip
        (tmp_path / "cache" / name / "run.json").write_text(json.dumps(record))
    code, out, _ = layerprobe("runs", "--json")
    listed = [(run["run"], run["state"]) for run in json.loads(out)["runs"]]
    assert (code, listed) == (0, [("good", "finished"), ("bad", "damaged")])
    assert [line for line in layerprobe("runs")[1].splitlines() if "bad" in line and "damaged" in line]
    code, _, err = layerprobe("runs", "bad")
    assert code == 3
    assert "cache/bad/run.json: epochs_done is '1', expected a whole number" in err


def test_a_recipe_is_listed_without_its_name_before_what_it_trains(layerprobe: Command) -> None:
    listed = json.loads(layerprobe("recipes", "--json")[1])["recipes"]
    assert listed["netA"].startswith("VGG16-BN, max-pooled pool5.3,")
    assert [name for name, said in listed.items() if said.casefold().startswith(f"{name.casefold()}:")] == []


def test_the_version_is_told(layerprobe: Command) -> None:
    assert layerprobe("--version") == (0, f"layerprobe {version}\n", "")
    assert "--version" in layerprobe("--help")[1]


def test_the_next_command_names_the_cache_that_was_given(
    layerprobe: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = folder(tmp_path / "root", 8)
    _, _, err = layerprobe(*train_words(root, "--cache", "my runs"))
    assert err.splitlines()[-1] == "next: layerprobe probe tiny --cache 'my runs'"
    _, _, err = layerprobe("probe", "tiny", "--epochs", "last", "--layers", "fc6", "--cache", "my runs")
    assert err.splitlines()[-1].endswith(
        "next: layerprobe choose tiny --cache 'my runs' or layerprobe report tiny --cache 'my runs'"
    )
    monkeypatch.setenv("LAYERPROBE_CACHE", "my runs")
    _, _, err = layerprobe(*train_words(root))
    assert err.splitlines() == ["nothing to do: tiny has all its 1 epochs", "next: layerprobe probe tiny"]
    _, _, err = layerprobe(*train_words(root, "--probe", "fc6"))
    assert "nothing to train: tiny has all its 1 epochs" in err.splitlines()


def test_a_damaged_checkpoint_is_3_and_the_rest_is_shown(layerprobe: Command, tmp_path: Path) -> None:
    layerprobe(*train_words(folder(tmp_path / "root", 8)))
    checkpoint = Run(Path("cache/tiny")).checkpoint_file(0)
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1] + b"\x55")
    code, out, err = layerprobe("probe", "--layers", "fc6", "--k", "1")
    assert code == 3
    assert "fc6" in out
    assert "epoch 0 is skipped: " in err
    assert "cache/tiny: not measured: epochs with a damaged checkpoint (0). Restore these" in err.splitlines()[-1]
    code, out, _ = layerprobe("probe", "--layers", "fc6", "--k", "1", "--json")
    assert code == 3
    assert {score["epoch"] for score in json.loads(out)["scores"]} == {1}
    assert json.loads(out)["error"]["message"] == "not measured: epochs with a damaged checkpoint (0)"
    _, _, err = layerprobe("probe", "--layers", "fc6", "--k", "1", "--quiet")
    assert err.startswith("error: cache/tiny: not measured: epochs with a damaged checkpoint (0). Restore these")


def test_too_little_memory_names_the_file_and_no_key_of_a_training_that_there_is_not(tmp_path: Path) -> None:
    # the array of 24 MB fits below the limit; what is computed of it does not
    labels, rng = np.arange(3000) % 30, np.random.default_rng(0)
    np.savez(tmp_path / "f.npz", labels=labels, a=rng.normal(size=(3000, 2000)).astype(np.float32))
    program = """
import resource, sys
from pathlib import Path
import layerprobe.workflow.choose.choose_features
from layerprobe.cli import main
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 50_000_000, taken + 50_000_000))
sys.argv = ["layerprobe", "choose", "f.npz"]
main()
"""
    told = run_python(program, folder=tmp_path)
    assert (told.returncode, told.stdout) == (5, "")
    assert told.stderr.splitlines()[-1] == "error: f.npz: out of memory. Free memory, or run it where there is more."


@pytest.mark.parametrize(("command", "fix"), [("train", "Lower train.batch_size"), ("summary", "Free memory,")])
def test_only_a_training_is_told_of_its_batches(
    layerprobe: Command, monkeypatch: pytest.MonkeyPatch, command: str, fix: str
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")

    monkeypatch.setattr("layerprobe.recipe.recipe.load_recipe", fail)
    monkeypatch.setattr("layerprobe.workflow.run.runs.find_run", fail)
    code, _, err = layerprobe(command, "netA")
    assert (code, err.split(". ")[0], err.split(". ")[1].startswith(fix)) == (5, "error: out of memory", True)


def test_a_thread_that_cannot_be_started_is_no_bug(layerprobe: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("layerprobe.workflow.run.runs.find_run", fail)
    code, _, err = layerprobe("summary")
    assert (code, err.startswith("error: no further thread can be started.")) == (5, True)


@pytest.mark.parametrize(
    "words",
    ["runs", "summary", "cache list", "choose --model python:x.py:f --data folder:d", "train netA --data folder:d"],
)
@pytest.mark.parametrize("cache", ["loop", "loop/below"])
def test_a_cache_that_is_a_link_in_a_circle_is_told(
    layerprobe: Command, tmp_path: Path, words: str, cache: str
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "x.py").touch()
    folder(tmp_path / "d", 4)
    code, out, err = layerprobe(*words.split(), "--cache", cache)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "loop: a link that leads nowhere. Choose another --cache." in err


def test_a_link_in_a_circle_among_the_images_is_told(layerprobe: Command, tmp_path: Path) -> None:
    folder(tmp_path / "d", 4)
    (tmp_path / "d" / "c0" / "loop.png").symlink_to("loop.png")
    code, _, err = layerprobe("data", "check", "folder:d")
    assert code == 3
    assert "bug" not in err


def test_a_working_directory_that_is_gone_is_told(layerprobe: Command, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert layerprobe("runs") == (3, "", "error: the working directory is gone. Change to another one.\n")


def test_a_working_directory_that_cannot_be_read_is_told(
    layerprobe: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "cache")

    monkeypatch.setattr(os, "lstat", denied)  # root may read whatever its mode is
    monkeypatch.setattr(Path, "is_symlink", denied)
    monkeypatch.setattr(os, "access", lambda *_: False)
    code, _, err = layerprobe("runs")
    assert (code, err) == (3, f"error: {tmp_path}: the working directory cannot be read. Change to another one.\n")


@pytest.mark.parametrize("command", ["probe", "choose"])
def test_a_table_without_a_right_item_is_refused_before_anything_is_extracted(
    layerprobe: Command, tmp_path: Path, command: str
) -> None:
    folder(tmp_path / "d", 4)
    (tmp_path / "net.py").write_text(MODEL)
    rows = [f"d/c{c}/{i}.png,ID{c:02},test,{i < 2},{i > 1}" for c in range(4) for i in range(4)]
    lowered = [row.replace("ID", "id") if row.endswith("True") else row for row in rows]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,split,is_query,is_gallery", *lowered]))
    words = ["--model", "python:net.py:build", "--data", "csv:t.csv", "--device", "cpu"]
    code, out, err = layerprobe(command, *words)
    assert (code, out) == (3, "")
    assert "t.csv: no query of test has a right item to find: labels of the queries ('ID00' and 'ID01')" in err
    assert "are equal but for case, such as 'ID00' and 'id00'" in err
    assert list(tmp_path.glob("cache/*/features")) == []


def test_identical_images_are_noted_by_probe_choose_and_the_check(layerprobe: Command, tmp_path: Path) -> None:
    root = folder(tmp_path / "d", 4)
    (root / "c3" / "again.png").write_bytes((root / "c3" / "1.png").read_bytes())
    (tmp_path / "net.py").write_text(MODEL)
    words = ["--model", "python:net.py:build", "--data", "folder:d", "--device", "cpu"]
    line = "2 of 9 queries have an identical image in what they search"
    assert f"test: {line}; without those R@1 of " in " ".join(layerprobe("probe", *words)[1].split())
    code, out, _ = layerprobe("probe", *words)  # nothing to do
    assert (code, f"test: {line}; without those R@1 of " in " ".join(out.split())) == (0, True)
    chosen = " ".join(layerprobe("choose", *words)[1].split())  # lines are wrapped
    assert f"test: {line}; without those R@1 of " in chosen
    assert f"note: test: {line}" in layerprobe("data", "check", "folder:d")[1]


@pytest.mark.parametrize(
    ("module", "package", "words"),
    [
        ("torch", "torch", ("layers", "lenet")),
        ("numpy", "numpy", ("choose", "f.npz")),
        ("pydantic", "pydantic", ("train", "netA")),
        ("sklearn", "scikit-learn", ("data", "check", "digits", "--workers", "0")),
    ],
)
def test_a_package_that_is_absent_is_named(tmp_path: Path, module: str, package: str, words: tuple[str, ...]) -> None:
    (tmp_path / "cache" / "a").mkdir(parents=True)
    code = f"import sys; sys.modules[{module!r}] = None; sys.argv[1:] = {[*words]!r}\n"
    code += "import layerprobe.cli; layerprobe.cli.main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        f"error: {package} is not installed. pip install {package}; layerprobe doctor lists the others."
    )
    assert done.returncode == EnvironmentFault("").exit_code
