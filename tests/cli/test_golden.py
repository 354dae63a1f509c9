"""What each command prints at 80 columns, as texts to be read: tests/cli/golden, which `--update-golden` rewrites.

Images, model and runs are made such that no number hangs on the last digits of a float, and what a machine decides is
masked.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from layerprobe.cli import main, output
from tests.workflow.selection_runs import C1, C2, hits, write_run
from tests.workflow.stored_ranks import INPUT, ranked, store_ranks
from tests.workflow.stored_ranks import write_run as write_ranked

GOLDEN = Path(__file__).parent / "golden"
# What the machine or the version of a package decides -> what stands for it.
MASKS = {
    r"about .*? of memory, .*? on disk \(.*? free\)": "about TIME, MEMORY of memory, SIZE on disk (SIZE free)",
    r"loss \d+\.\d+, \d+ images/s": "loss LOSS, N images/s",
    r"\([\d,]+ bytes\)": "(N bytes)",
    r"\d\.\de[+-]\d\d": "X",
    r"\d+ of \d+ nearest neighbours": "N of N nearest neighbours",
}
# Its weights are small binary fractions. The last layer throws two of three colours away, so that it is worse.
MODEL = """
import torch
from torch import nn

def build():
    model = nn.Sequential(
        nn.AvgPool2d(4), nn.Conv2d(3, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    with torch.no_grad():
        weights = torch.tensor([[4.0, -2, 0], [0, 4, -2], [-2, 0, 4], [1, 1, 1]])
        model[1].weight.copy_(weights.reshape(4, 3, 1, 1) / 4)
        model[1].bias.fill_(4)
        model[5].weight.copy_(torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 1]]))
        model[5].bias.zero_()
    return model, {"size": 16, "mean": [0.5] * 3, "std": [0.25] * 3}
"""
MODEL_WORDS = "--model python:net.py:build --data folder:images --device cpu --workers 0"
PROBE = f"probe {MODEL_WORDS} --run frozen --not-trained-on-these --k 1,2 --metrics MAP@R --post none,l2+pca:2"
TRAIN = (
    "train quick --data folder:images --set net.name=lenet --set data.image_size=28 --set train.epochs=1"
    " --set train.batch_size=8 --set train.images_per_class=2 --run trained --device cpu --workers 0"
)
# Verb -> its command lines, run one after the other in a folder of their own that has the run `frozen` of PROBE.
COMMANDS = {
    "train": [f"{TRAIN} --dry-run", TRAIN, TRAIN, f"{TRAIN} --set train.epochs=3"],
    "probe": [
        f"{PROBE} --dry-run",
        PROBE,
        "probe frozen --full --k 1 --layers output",
        "probe frozen --layers outputs",
    ],
    "summary": ["summary", "summary frozen --metric MAP@R"],
    "compare": [
        "compare ranked:fc6 ranked:c1",
        "compare ranked:c2 ranked:fc6",
        "compare ranked:c* ranked:fc6",
        "compare ranked:fc6 ranked:c1 --seeds",
        "compare ranked:fc6 other-input:fc6",
        "compare frozen:2 frozen:output --interval redraw",
    ],
    "choose": [
        "choose held",
        "choose held --full",
        "choose open --within 5",
        "choose frozen",
        "choose frozen --within 0",
        "choose features.npz",
    ],
    "export": [f"export frozen --layer output --format npz --out {name}" for name in ("exported", "exported")],
    "threshold": ["threshold features.npz", "threshold features.npz --layer noise --far 1e-2,1e-1"],
    "classes": ["classes frozen", "classes frozen --layers 2,output --sort gain"],
    "labels": ["labels frozen", "labels frozen --splits nope", "labels frozen --layers 2/l2"],
    "features": [
        "features frozen --layers 2,output --out table.npz",
        "features frozen --out table.csv",
        "features frozen --layers 2,output --out table.csv",
        "features ranked --out table.npz",
    ],
    "explain": ["explain frozen --layers 2,output --model python:net.py:build"],
    "plot": ["plot layers", "plot train-vs-test frozen --csv points.csv", "plot curves frozen held"],
    "report": ["report", "report held open"],
    "study": ["study --list", "study vo-hays-fig1 --dry-run", "study dimension --small --dry-run --device cpu"],
    "data": ["data list", "data check folder:images --workers 0", "data check folder:broken --workers 0"],
    "layers": ["layers frozen --model python:net.py:build", "layers lenet"],
    "recipes": ["recipes"],
}


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, sound and broken ones, a model, a file of features, and runs."""
    root, rng = tmp_path_factory.mktemp("golden"), np.random.default_rng(0)
    for label in range(24):
        (root / "images" / f"class{label:02}").mkdir(parents=True)
        colour = rng.integers(40, 216, 3)
        for i in range(4):
            pixels = (colour + rng.integers(-25, 26, 3) + rng.integers(-40, 41, (16, 16, 3))).clip(0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(root / "images" / f"class{label:02}" / f"{i}.png")
    (root / "net.py").write_text(MODEL)
    broken = root / "broken"
    for name in ("a", "b", "c", "d"):
        (broken / name).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(broken / name / f"{i}.png")
    (broken / "a" / "0.png").write_bytes((broken / "a" / "1.png").read_bytes()[:99])
    (broken / "b" / "0.png").write_bytes((broken / "c" / "0.png").read_bytes())
    cache = root / "cache"
    labels = np.repeat(np.arange(30), 2)
    layers = {ranked("c1@max"): 1 - np.arange(60) % 2, ranked("c2@max"): labels < 24, ranked("fc6@none"): labels < 25}
    for name, seed, transform in (
        ("ranked", 0, INPUT), ("ranked-s1", 1, INPUT), ("other-input", 2, INPUT | {"resize": [64, 64]}),
    ):  # fmt: skip
        store_ranks(write_ranked(cache, name, seed=seed), layers, labels, transform=transform)
    good, fair = hits(*[4] * 20), hits(*[3] * 20)
    write_run(cache, "held", {"validation": {C1: fair, C2: good}, "test": {C1: good, C2: fair}})
    first, second = hits(*[3, 4] * 10), hits(*[4, 3] * 10)
    write_run(cache, "open", {"validation": {C1: first, C2: second}, "test": {C1: good, C2: fair}})
    labels = np.repeat(np.arange(20), 3)
    clear = rng.normal(size=(20, 8))[labels] + 0.1 * rng.normal(size=(60, 8))
    np.savez(root / "features.npz", labels=labels, noise=rng.normal(size=(60, 4)), clear=clear)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setattr(sys, "argv", ["layerprobe", *shlex.split(PROBE), "--quiet"])
        with pytest.raises(SystemExit, match="0"):
            main()
    return root


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_command_prints_its_golden_text(
    verb: str,
    material: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pytestconfig: pytest.Config,
) -> None:
    shutil.copytree(material, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")  # no colours
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(output, "_PLAIN_INTERVAL", 1e9)  # a slow machine would print lines of progress
    printed = []
    for line in COMMANDS[verb]:
        monkeypatch.setattr(sys, "argv", ["layerprobe", *shlex.split(line)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        printed += [f"$ layerprobe {line}", *(text.rstrip() for text in out.splitlines())]
        printed += [f"(stderr) {text}" for text in err.splitlines()]
        printed += [f"(exit code {ended.value.code})"] * bool(ended.value.code) + [""]
    text = "\n".join(printed)
    for pattern, name in MASKS.items():
        text = re.sub(pattern, name, text)
    file = GOLDEN / f"{verb}.txt"
    if pytestconfig.getoption("--update-golden"):
        file.write_text(text)
    assert text == file.read_text()


# A command on the run `frozen`, up to the sentence that goes on.
HINT = re.compile(r"layerprobe [a-z]+ frozen(?: [^\s;]+)*?(?= or | says| makes |;|\.?$)", re.MULTILINE)


def printed_hints() -> list[str]:
    """The commands on `frozen` that the golden texts name, each once."""
    texts = [re.sub(r"^\$ .*$", "", file.read_text(), flags=re.MULTILINE) for file in sorted(GOLDEN.glob("*.txt"))]
    return [*dict.fromkeys(hint for text in texts for hint in HINT.findall(text))]


@pytest.mark.parametrize("hint", printed_hints())
def test_a_command_that_a_golden_text_names_is_run_as_printed(
    hint: str, material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(material, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    # The copy of the model's file is another file, which is to be named once.
    for command in ("layerprobe layers python:net.py:build", hint):
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
