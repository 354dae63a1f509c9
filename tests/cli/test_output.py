from __future__ import annotations

import io
import json
import re
import signal
import sys

import pytest
from rich.console import Console

from layerprobe.cli import output
from layerprobe.cli.output import Terminal, show_error
from layerprobe.system.errors import DataError, InterruptedRun, RecipeError
from layerprobe.tables.tables import TextTable


def test_an_interruption_is_told_without_the_word_error(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(InterruptedRun("netA: stopped after epoch 4 (SIGINT)", signal_number=signal.SIGINT), as_json=False)
    assert capsys.readouterr().err == "netA: stopped after epoch 4 (SIGINT).\n"


def test_each_problem_of_a_recipe_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(RecipeError("first", problems=["first", "second. Known: a"]), as_json=False)
    assert capsys.readouterr().err == "error: first.\nerror: second. Known: a.\n"


def test_an_error_as_json_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(DataError("empty", file="a.png", fix="Mend it"), as_json=True)
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out)["error"] == {"code": "data", "file": "a.png", "message": "empty", "fix": "Mend it"}


def test_quiet_says_nothing_and_still_gives_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(quiet=True)
    terminal.say("epoch 1")
    with terminal.task("training", 10, "images") as task:
        task.advance(10, loss=1.0)
    terminal.result({}, "cache/netA")
    assert capsys.readouterr() == ("cache/netA\n", "")


@pytest.mark.parametrize(("interval", "lines"), [(0.0, 2), (60.0, 0)])
def test_without_a_terminal_progress_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, interval: float, lines: int
) -> None:
    monkeypatch.setattr(output, "_PLAIN_INTERVAL", interval)
    with Terminal().task("training netA", 100, "images") as task:
        task.advance(20, loss=0.7)
        task.advance(20, loss=0.6)
    err = capsys.readouterr().err
    assert err.count("\n") == lines
    if lines:
        assert re.search(r"^training netA: 40/100 images, \d+/s, loss 0.600, \d+\.\d min left$", err, re.MULTILINE)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_message_is_shown_as_it_is(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    Terminal().say("run [red]a[/] :smile: " + "x" * 200)
    assert capsys.readouterr().err == "run [red]a[/] :smile: " + "x" * 200 + "\n"


def test_on_a_terminal_progress_is_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with Terminal().task("probing [red]a[/]", 4, "images") as task:
        task.advance(4, loss=0.5)
    err = capsys.readouterr().err
    assert "probing [red]a[/]" in err
    assert "4/4" in err
    assert "loss 0.500" in err


def test_at_80_columns_the_bar_gives_way_to_the_numbers() -> None:
    console = Console(file=io.StringIO(), width=80)
    bars = output._bars(console)
    name, figures = "probing timm-tf_efficientnet_lite0-0682eb", "53/s 1.2 min left"
    bars.add_task(name, total=4525, completed=735, unit="images", figures=figures)
    with console.capture() as shown:
        console.print(bars.get_renderable())
    assert f" 735/4525 images {figures}" in shown.get()


def test_of_two_tasks_at_once_the_outer_one_alone_has_an_estimate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_PLAIN_INTERVAL", 0.0)
    terminal = Terminal()
    with terminal.task("training", 4, "images") as outer:
        outer.advance(1)
        with terminal.task("probing", 4, "images") as inner:
            inner.advance(1)
        outer.advance(1)
    with terminal.task("probing", 4, "images") as alone:
        alone.advance(1)
    lines = capsys.readouterr().err.splitlines()
    assert ["min left" in line for line in lines] == [True, False, True, True]


def test_two_tasks_on_a_terminal_share_a_display_with_one_estimate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    terminal = Terminal()
    with terminal.task("training", 4, "images") as outer, terminal.task("probing", 4, "images") as inner:
        outer.advance(2)
        inner.advance(2)
        assert terminal._bars is not None
        terminal._bars.refresh()
        last = capsys.readouterr().err.split("training")[-1]
    assert "probing" in last
    assert last.count("min left") == 1
    assert terminal._bars is None


def test_a_narrow_terminal_wraps_notes_and_cuts_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    Terminal().result({}, TextTable(("a",), (("b",),), notes=("n" * 90,)))
    assert capsys.readouterr().out.count("n") == 90


def test_a_line_feed_in_a_name_makes_no_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\nerror: forged"
    terminal = Terminal()
    terminal.say(f"run {name}")
    terminal.result({}, f"ship {name}", TextTable(("b", "c"), ((name, name),), heading=(name,), notes=(name,)))
    show_error(DataError("empty", file=name), as_json=False)
    out, err = capsys.readouterr()
    assert err.count("\n") == 2
    assert [line for line in out.splitlines() if line.startswith("error: forged")] == []


def test_json_is_ascii_and_has_every_name_whole(capsys: pytest.CaptureFixture[str]) -> None:
    name = "\x9b\u202e\x7f\u2028" + "\N{LATIN SMALL LETTER A WITH DIAERESIS}" * 5000
    Terminal(as_json=True).result({"layer": name})
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out)["layer"] == name
