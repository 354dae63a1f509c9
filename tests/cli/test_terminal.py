"""Every command on names that would steer a terminal: none of their control characters reaches one, nor a pipe."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
import typer
from PIL import Image

from layerprobe import store
from layerprobe.cli import command_line
from layerprobe.values.layers import LayerKey
from tests.processes import run_python
from tests.store.test_features import KEY

# Clears the screen, sets the title, a colour by C1, turns the text round, deletes, overwrites, makes a line of its own.
EVIL = "a\x1b[2J\x1b]0;t\x07\x9b31m\u202e\u2066\u200e\u061c\u2028\x7f\x08\rb\nerror: forged"
LONG = "L" * 5000
# What rich writes for colours and progress bars.
OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\d*A|\x1b\[2K|\x1b\[\?25[lh]")
SMALL = ("net.name=lenet", "data.image_size=28", "net.fc=[8]", "train.batch_size=4", "train.images_per_class=2")
TAMPER, INTO_PIPE = ["tamper"], ["into a pipe"]
# What is not a command: the run is tampered with; from then on stdout and stderr are a pipe in the place of a terminal.
DRIVER = """
import json, os, sys
from pathlib import Path
from layerprobe.cli import main

def speak(place):
    sys.stdout.flush()
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(place, os.O_WRONLY), number)
        stream = open(number, "w", buffering=1, closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)  # those of the process: layerprobe replaces no others

terminal, pipe = sys.argv[1:]
os.dup2(os.open(terminal, os.O_RDONLY), 0)
sys.stdin = open(0, closefd=False)
speak(terminal)
for words in json.load(open("commands.json")):
    if words == ["tamper"]:
        from tests.cli.test_terminal import tampered
        tampered(Path())
        continue
    if words == ["into a pipe"]:
        speak(pipe)
        continue
    print("::", ascii(words)[:300], flush=True)
    sys.argv = ["layerprobe", *words]
    try:
        main()
    except SystemExit as ended:
        print("::", ended.code, flush=True)
"""


def images(root: Path) -> Path:
    rng = np.random.default_rng(0)
    for label in range(8):
        (root / f"{label}{EVIL}").mkdir(parents=True)
        for i in range(4):
            pixels = rng.integers(0, 256, (16, 16, 3), np.uint8)
            Image.fromarray(pixels).save(root / f"{label}{EVIL}" / f"{i}{EVIL}.png")
    return root


def material(folder: Path) -> None:
    """Files with such names in them, and a run that is trained on such images."""
    images(folder / "images")
    broken = images(folder / "broken")
    next(broken.rglob("*.png")).write_bytes(b"")
    (folder / "recipes").mkdir()
    recipe = folder / "recipes" / "evil.toml"
    recipe.write_text(f"# {EVIL.partition(chr(10))[0]}\n[data]\nname = {json.dumps(EVIL)}\n")
    labels, rng = np.arange(24) % 6, np.random.default_rng(0)
    layers = {name: rng.normal(size=(24, 4)).astype(np.float32) + labels[:, None] for name in (EVIL, LONG)}
    arrays: dict[str, Any] = {"labels": labels, **layers}
    np.savez(folder / "evil.npz", **arrays)
    np.savez(folder / "odd.npz", **{**arrays, EVIL: np.zeros((3, 2))})
    found = {LayerKey(name, "max"): values for name, values in layers.items()}
    columns = store.Columns(dict.fromkeys(found, 4), device="cpu", batch_size=24)
    rows = store.Rows(labels, [f"{i}{EVIL}" for i in range(24)], [EVIL] * 6)
    store.write_features(folder / "evil.h5", KEY, rows, columns, [found])
    safetensors.numpy.save_file({EVIL: np.zeros(2, np.float32), LONG: np.zeros(2)}, folder / "evil.safetensors")
    torch.save({f"model.{EVIL}": torch.zeros(2), f"ema.{EVIL}": torch.zeros(2)}, folder / "evil.pt")
    (folder / EVIL.replace("/", "")).write_text("no folder")


def tampered(folder: Path) -> None:
    """What somebody could write into a run that they give away; its log stays beside it as it was."""
    run = folder / "cache" / "tiny"
    shutil.copy(run / "log.txt", folder)
    record = json.loads((run / "run.json").read_text())
    named = {"recipe_name": EVIL, "state": EVIL, "command": EVIL, "notes": [EVIL, LONG], EVIL: {EVIL: EVIL}, "x": LONG}
    (run / "run.json").write_text(json.dumps(record | named))
    scores = run / "scores.csv"
    lines = scores.read_text().splitlines(keepends=True)
    quoted = f'"{EVIL}"'
    scores.write_text("".join([*lines, *(line.replace(",fc6,", f",{quoted},") for line in lines if ",fc6," in line)]))
    for about in (folder / "cache" / "images").glob("*/about.json"):
        about.write_text(json.dumps(json.loads(about.read_text()) | {"data": EVIL, "split": LONG}))
    (folder / "cache" / "bad").mkdir()
    (folder / "cache" / "bad" / "run.json").write_text(json.dumps(record | {"epochs_done": EVIL}))


def commands() -> tuple[list[list[str]], list[list[str]]]:
    """Those that make a run, and those that follow once it is tampered with."""
    settings = [word for setting in (*SMALL, "train.epochs=1") for word in ("--set", setting)]
    train = ["train", "netA", "--data", "folder:images", "--device", "cpu", "--run", "tiny", *settings]
    probe = ["probe", "tiny", "--layers", "pool5,fc6", "--metrics", "MRR", "--workers", "0"]
    return [train, probe], [
        train,
        [*train, "--seed", "1", "--run", EVIL],
        ["train", "recipes/evil.toml"],
        ["train", "netA", "--set", f"{EVIL}=1", "--set", f"train.{EVIL}=2"],
        ["train", "netA", "--data", f"folder:{EVIL}"],
        [*train, "--run", "other", "--set", "net.weights=evil.safetensors", "--debug"],
        [*train, "--run", "other", "--set", "net.weights=evil.pt", "--json"],
        probe,
        [*probe, "--format", "markdown"],
        ["probe", "tiny", "--layers", EVIL],
        ["probe", "--model", f"python:{EVIL}.py:f", "--data", "folder:images"],
        ["summary", "tiny"],
        *(["summary", "tiny", "--format", form] for form in ("markdown", "latex", "csv")),
        ["summary", "tiny", "--json"],
        ["compare", "tiny:fc6", f"tiny:{EVIL}"],
        ["compare", "tiny:fc6", "tiny:*"],
        ["compare", "tiny", "--paper", "vo-hays-2019:table3"],
        ["compare", "tiny", "--paper", EVIL],
        ["choose", "evil.npz"],
        ["choose", "evil.npz", "--json"],
        ["choose", "odd.npz"],
        ["choose", "evil.h5"],
        ["choose", "tiny"],
        ["export", "tiny", "--layer", "fc6", "--format", "npz", "--out", "exported"],
        ["export", "tiny", "--layer", EVIL, "--out", EVIL],
        ["export", "tiny", "--layer", "fc6", "--format", EVIL, "--out", "exported", "--json"],
        ["threshold", "tiny", "--layer", EVIL],
        ["classes", "tiny"],
        ["classes", "tiny", "--layers", f"fc6,{EVIL}"],
        ["labels", "tiny"],
        ["labels", "tiny", "--layers", f"fc6,{EVIL}", "--splits", EVIL],
        ["features", "tiny", "--out", "features.npz"],
        ["features", "tiny", "--layers", f"fc6,{EVIL}", "--out", EVIL],
        ["threshold", "tiny", "--far", EVIL],
        ["plot", "layers", "tiny"],
        ["plot", "panels", "tiny", "--query", EVIL],
        ["plot", EVIL],
        ["explain", "tiny", "--layers", "fc6"],
        ["explain", "tiny", "--query", EVIL],
        ["explain", "tiny", "--layers", EVIL],
        ["report", "tiny", "--out", "page.html"],
        ["report", "tiny", "--out", f"{EVIL}/page.html"],
        ["layers", "tiny"],
        ["layers", EVIL, "--debug"],
        ["study", EVIL],
        ["study", "recipes/evil.toml"],
        ["study", "--list"],
        ["recipes"],
        ["recipes", "evil"],
        ["recipes", "--json"],
        ["runs"],
        ["runs", "--format", "csv"],
        ["runs", "--json"],
        ["runs", "tiny"],
        ["runs", "bad"],
        ["doctor", "--cache", EVIL],
        ["data", "list"],
        ["data", "check", "folder:broken", "--workers", "0"],
        ["data", "check", "folder:broken", "--workers", "0", "--json"],
        ["cache", "list"],
        ["cache", "clean", EVIL],
        ["demo", "--cache", EVIL],
        ["runs", "remove", "tiny"],
        ["runs", "remove", EVIL],
        [EVIL],
        ["train", f"--{EVIL}"],
        ["runs", "--format", EVIL],
    ]


def printed_by(lines: Sequence[Sequence[str]], folder: Path) -> tuple[str, str]:
    """What a terminal, and then a pipe, is sent by a process that runs the commands."""
    (folder / "commands.json").write_text(json.dumps(lines))
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "99"}
    ours, its = pty.openpty()
    os.mkfifo(folder / "pipe")
    reader = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(folder / "pipe", os.O_WRONLY)
    os.set_blocking(reader, True)
    sent: dict[int, list[bytes]] = {ours: [], reader: []}

    def listen(stream: int) -> None:
        while True:
            try:
                data = os.read(stream, 65536)
            except OSError:  # the other end of the terminal is closed
                return
            if not data:  # that of the pipe
                return
            sent[stream].append(data)

    listeners = [threading.Thread(target=listen, args=(stream,), daemon=True) for stream in sent]
    for listener in listeners:
        listener.start()
    os.write(ours, b"n\n" * 9)  # to what is asked
    ended = run_python(DRIVER, os.ttyname(its), str(folder / "pipe"), folder=folder, environment=environment)
    os.close(its)
    os.close(writer)
    for listener in listeners:
        listener.join()
    shown, piped = (b"".join(parts) for parts in sent.values())
    for stream in sent:
        os.close(stream)
    assert ended.returncode == 0, (shown + piped)[-3000:]
    return shown.decode(), piped.decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("material")
    material(folder)
    return folder


def forbidden(text: str) -> list[str]:
    """The control characters of a text, each with what stands around it."""
    places = [place for place, character in enumerate(text) if not character.isprintable() and character not in "\n\t"]
    return [ascii(text[max(0, place - 60) : place + 20]) for place in places]


def test_no_control_character_of_a_name_reaches_a_terminal_or_a_pipe(folder: Path) -> None:
    first, further = commands()
    again = [words for words in further if words[0] not in ("train", "probe", "plot", "report", "demo")]
    shown, piped = printed_by([*first, TAMPER, *further, INTO_PIPE, *again], folder)
    log = (folder / "log.txt").read_text()
    assert piped.count("::") > len(again)
    text = OWN.sub("", shown).replace("\r", "")  # of a terminal's line ends, and of progress bars
    assert forbidden(text) == []
    assert forbidden(piped) == []
    assert forbidden(log) == []
    for lines in (text, piped, log):
        assert [line for line in lines.splitlines() if line.strip().startswith("error: forged")] == []
        assert LONG not in "".join(line for line in lines.splitlines() if not line.startswith("{"))


def test_every_command_is_tried() -> None:
    def names(of: typer.Typer) -> set[str]:
        return {info.name or info.callback.__name__ for info in of.registered_commands if info.callback}

    tried = {tuple(words[:2]) for words in [*commands()[0], *commands()[1]]}
    app = command_line()
    assert names(app) <= {words[0] for words in tried}
    for group in app.registered_groups:
        assert group.typer_instance is not None
        assert {(group.typer_instance.info.name, name) for name in names(group.typer_instance)} <= tried
