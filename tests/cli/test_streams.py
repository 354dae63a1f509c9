"""Standard streams whose reader has gone, or that were closed: the command ends with its own exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

LAYERPROBE = f"{sys.executable} -m layerprobe"


def bash(command: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(["bash", "-c", command], capture_output=True, check=False, cwd=folder, env=environment)


def test_a_closed_pipe_ends_quietly_with_the_commands_own_code(tmp_path: Path) -> None:
    # Only once the reader has gone does the writer start. Table, list, text, help, JSON, error as JSON.
    words = ["runs", "recipes", "recipes netA", "--help", "train --help", "recipes --json", "runs nope --json"]
    command = "\n".join(
        f"(sleep 1; {LAYERPROBE} {line}; exit $?) | true; echo ${{PIPESTATUS[0]}} {line}" for line in words
    )
    result = bash(command, tmp_path)
    found = result.stdout.decode().splitlines()
    assert found == [f"{3 if 'nope' in line else 0} {line}" for line in words]
    assert result.stderr == b""


@pytest.mark.parametrize(("words", "code"), [("trian", 2), ("runs nope", 3)])
def test_an_error_that_nobody_reads_keeps_its_code(tmp_path: Path, words: str, code: int) -> None:
    assert bash(f"{LAYERPROBE} {words} 2>&-", tmp_path).returncode == code
    command = f"(sleep 1; {LAYERPROBE} {words} 2>&1; exit $?) | true; exit ${{PIPESTATUS[0]}}"
    assert bash(command, tmp_path).returncode == code


@pytest.mark.parametrize("words", ["recipes", "recipes --json", "train --help"])
def test_a_closed_stdout_is_no_error(tmp_path: Path, words: str) -> None:
    result = bash(f"{LAYERPROBE} {words} >&-", tmp_path)
    assert (result.returncode, result.stderr) == (0, b"")


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    program = (
        "import os, sys; from layerprobe.cli.streams import prepare_streams; prepare_streams();"
        "print('lost'); sys.stdout.flush(); stream = open('x', 'w'); stream.write(str(stream.fileno()))"
    )
    bash(f'{sys.executable} -c "{program}" <&- >&- 2>&-', tmp_path)
    assert (tmp_path / "x").read_text() == "3"


def test_a_full_disk_is_told_once(tmp_path: Path) -> None:
    result = bash(f"{LAYERPROBE} recipes > /dev/full", tmp_path)
    assert result.returncode == 5
    assert result.stderr.startswith(b"error: disk full")
    assert result.stderr.count(b"\n") == 1


@pytest.mark.parametrize("as_json", [False, True])
def test_a_path_that_is_not_utf8_keeps_its_bytes(tmp_path: Path, as_json: bool) -> None:
    program = (
        "import os; from layerprobe.cli.output import Terminal; from layerprobe.cli.streams import prepare_streams;"
        f"prepare_streams(); path = os.fsdecode(b'caf\\xe9'); Terminal({as_json}).result({{'path': path}}, path)"
    )
    out = bash(f'{sys.executable} -c "{program}"', tmp_path).stdout
    assert (os.fsencode(json.loads(out)["path"]) + b"\n" if as_json else out) == b"caf\xe9\n"


def test_ctrl_c_while_the_command_line_is_imported_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])}
    command = [sys.executable, "-c", "import sys; sys.argv += ['runs']; from layerprobe.__main__ import main; main()"]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whatever a shell left here
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "interrupted.\n")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_whoever_writes_a_control_character_writes_none(tmp_path: Path, stream: str) -> None:
    # a colour too, which only rich may write; the bytes 9B and E9 are those of a path
    program = (
        "import os, sys; from layerprobe.cli.streams import prepare_streams; prepare_streams();"
        f"print('a\\x1b[31m\\x9b\\u202e\\t' + os.fsdecode(b'\\x9b\\xe9'), file=sys.{stream})"
    )
    replaced = "\N{REPLACEMENT CHARACTER}".encode()
    expected = b"a" + replaced + b"[31m" + 2 * replaced + b"\t" + replaced + b"\xe9\n"
    assert getattr(bash(f'{sys.executable} -c "{program}"', tmp_path), stream) == expected
