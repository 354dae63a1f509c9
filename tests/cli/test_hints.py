"""Commands that a command prints, run as they are printed."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from layerprobe.cli import main

Command = Callable[..., tuple[int, str]]
CACHE = ("--cache", "my cache")
SETTINGS = (
    "data.image_size=28", "net.name=lenet", "train.batch_size=8", "train.images_per_class=2", "train.epochs=1",
    "data.validation_classes=0.5", "probe.k=[1]",
)  # fmt: skip
HINT = re.compile(r"layerprobe [a-z]+ (?:[^';]|'[^']*')*?(?=, if it| or layerprobe| says|; |\.?$)", re.MULTILINE)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a LeNet-5 trained for an epoch on images of 16 classes, and what training printed."""
    root, rng = tmp_path_factory.mktemp("hints"), np.random.default_rng(0)
    for label in range(16):
        (root / "images" / f"{label:02}").mkdir(parents=True)
        for i in range(4):
            pixels = (rng.normal(0, 40, (28, 28)) + 16 * label).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / "images" / f"{label:02}" / f"{i}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        words = [
            "train",
            "netA",
            "--data",
            "folder:images",
            "--device",
            "cpu",
            "--run",
            "try",
            "--workers",
            "0",
            *CACHE,
        ]
        assert called(patch, *words, *(word for setting in SETTINGS for word in ("--set", setting))) == 0
        words = ["probe", "try", "--layers", "c1@avg,fc6", "--epochs", "last", "--device", "cpu", "--workers", "0"]
        assert called(patch, *words, *CACHE) == 0
    return root


def called(patch: pytest.MonkeyPatch, *words: str) -> int:
    patch.setattr(sys, "argv", ["layerprobe", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(str(ended.value.code))


@pytest.fixture
def layerprobe(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The command, in a copy of that folder, with all that it prints on a line each."""
    shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")

    def run(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = called(monkeypatch, *words)
        return code, "".join(capsys.readouterr())

    return run


def typed(hint: str) -> list[str]:
    return shlex.split(hint)[1:]


@pytest.mark.parametrize(
    "words",
    [
        ["threshold", "try", "--layer", "c1@max"],
        ["threshold", "try", "--layer", "c3"],
        ["threshold", "try", "--layer", "c1@avg/l2+pca:2"],
        ["threshold", "try", "--layer", "c3/l2+pca:2+l2~euclidean"],
        ["classes", "try", "--layers", "c1@max,c3@avg"],
        ["compare", "try:c1@max", "try:c3@avg"],
        ["compare", "try:c3", "try:fc6/l2"],
        ["compare", "try#0:fc6", "try#1:c1@avg"],
        ["compare", "try:c1", "try:fc6", "--metric", "MAP@R"],
        ["choose", "try", "--metric", "MAP@R"],
        ["summary", "try", "--metric", "MRR"],
        ["export", "try", "--layer", "c3@max/l2", "--out", "out", "--format", "npz"],
        ["plot", "curves", "try", "--metric", "MAP@R", "--out", "curves.png"],
        ["plot", "layers", "try", "--metric", "mAP", "--out", "layers.png"],
        ["plot", "dims", "try", "--out", "dims.png"],
    ],
    ids=" ".join,
)
def test_a_refused_command_succeeds_after_the_commands_that_it_prints(layerprobe: Command, words: list[str]) -> None:
    code, told = layerprobe(*words, *CACHE)
    hints = HINT.findall(told)
    assert (code != 0, bool(hints)) == (True, True), told
    for hint in hints:
        assert layerprobe(*typed(hint), "--device", "cpu", "--workers", "0")[0] == 0, hint
    code, told = layerprobe(*words, *CACHE)
    assert code == 0, told


def test_both_layers_are_measured_before_training_by_the_command_that_compare_prints(layerprobe: Command) -> None:
    words = ["compare", "try:c1", "try:fc6", *CACHE]
    code, told = layerprobe(*words)
    (hint,) = HINT.findall(told)
    assert (code, "--layers c1@avg,fc6" in hint, layerprobe(*typed(hint))[0]) == (0, True, 0)
    assert "before training is not stored" not in layerprobe(*words)[1]


@pytest.mark.parametrize("words", [["probe", "try", "--epochs", "last"], ["choose", "try"], ["threshold", "try"]])
def test_the_next_commands_are_run_as_printed(layerprobe: Command, words: list[str]) -> None:
    code, told = layerprobe(*words, *CACHE)
    hints = HINT.findall(told)
    assert (code, bool(hints)) == (0, True), told
    for hint in hints:
        code, told = layerprobe(*typed(hint))
        assert code == 0, told


def caption(path: Path) -> str:
    """The text of a figure, which an SVG has in its comments, on one line. A comment cannot have `--`."""
    comments = " ".join(re.findall(r"<!--(.*?)-->", path.read_text(encoding="utf-8")))
    return " ".join(comments.split()).replace("- -", "--")


@pytest.mark.parametrize("kind", ["layers", "curves"])
def test_the_layers_that_a_caption_recommends_are_drawn(layerprobe: Command, kind: str) -> None:
    chains = ["none", "l2", *(f"l2+pca:{size}" for size in range(1, 6))]
    words = ["probe", "try", "--layers", "c3,fc6", "--post", ",".join(chains), "--device", "cpu", "--workers", "0"]
    assert layerprobe(*words, *CACHE)[0] == 0
    assert layerprobe("plot", kind, "try", "--out", "x.svg", *CACHE)[0] == 0
    (layers,) = re.findall(r"--layers '(\S+)' shows", caption(Path("x.svg")))
    code, told = layerprobe("plot", kind, "try", "--layers", layers, "--csv", "x.csv", *CACHE)
    assert code == 0, told
    assert layers.partition("/")[2] in Path("x.csv").read_text(encoding="utf-8")


def test_the_command_that_a_caption_recommends_for_the_gap_compares_galleries(layerprobe: Command) -> None:
    assert layerprobe("probe", "try", "--layers", "c3,fc6", "--device", "cpu", "--workers", "0", *CACHE)[0] == 0
    assert layerprobe("plot", "gap", "try", "--out", "x.svg", *CACHE)[0] == 0
    (command,) = re.findall(r"layerprobe ([a-z]+) compares them in galleries of one size", caption(Path("x.svg")))
    code, told = layerprobe(command, "try", *CACHE)
    assert code == 0, told
    assert re.search(r"\(G=\d+\)", told), told
