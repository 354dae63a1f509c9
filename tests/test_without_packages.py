"""With typer, what it brings (pydantic, rich) and nothing else, commands say what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Runs a command line where other requirements cannot be imported; prints its exit code and its text.
PROGRAM = """
import contextlib, io, json, sys
for name in ("torch", "torchvision", "captum", "h5py", "faiss", "safetensors", "numpy", "PIL", "matplotlib", "sklearn",
             "scipy", "threadpoolctl", "jinja2"):
    sys.modules[name] = None
from layerprobe.cli import main
sys.argv = ["layerprobe", *sys.argv[1:]]
text = io.StringIO()
with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
    try:
        main()
    except SystemExit as ended:
        code = ended.code
print(json.dumps([code, text.getvalue()]), file=sys.__stdout__)
"""


def run(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.stdout, done.stderr
    code, text = json.loads(done.stdout)
    return code, " ".join(text.split())


@pytest.mark.parametrize("word", ["--help", "--version", "recipes"])
def test_what_needs_no_other_package_works(word: str) -> None:
    code, text = run(word)
    assert (code, "Error" in text) == (0, False)


@pytest.mark.parametrize("command", ["demo", "probe x", "choose x.npz", "data list", "train netA"])
def test_a_command_says_which_package_to_install(command: str) -> None:
    code, text = run(*command.split())
    assert code != 0
    assert "pip install" in text
    assert "a bug in layerprobe" not in text


@pytest.mark.parametrize(
    ("options", "text"), [([], "error: typer is not installed."), (["--json"], '"message": "typer')]
)
def test_without_typer_one_line_says_so(options: list[str], text: str) -> None:
    program = "import sys; sys.modules['typer'] = None; from layerprobe.__main__ import main; main()"
    command = [sys.executable, "-c", program, "probe", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    (line,) = (done.stdout + done.stderr).splitlines()
    assert (done.returncode, text in line, "pip install typer" in line) == (5, True, True)
