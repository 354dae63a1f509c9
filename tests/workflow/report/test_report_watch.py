from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from layerprobe.system.errors import InterruptedRun
from layerprobe.values.scores import ScoreTable
from layerprobe.workflow.report import report_watch as module
from layerprobe.workflow.report.report_watch import watch_report
from layerprobe.workflow.run.runs import Run, locked
from tests.workflow.conftest import Silent
from tests.workflow.rank_files import FC6, first_hit, stored, written

REFRESH = '<meta http-equiv="refresh"'


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE", 0.0)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    found = Run(tmp_path / "one")
    written(found, stored(found, 5, "test", {FC6: first_hit(6)}), state="training")
    return found


@pytest.fixture
def lock(run: Run) -> Iterator[contextlib.ExitStack]:
    """The lock of whoever works on the run, until it is closed."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(run))
        yield stack


def next_epoch(run: Run) -> None:
    table = ScoreTable(run.scores())
    table.add([replace(score, epoch=6) for score in run.scores()])
    table.write(run.scores_file)


def test_the_page_is_written_after_every_epoch_until_nobody_works_on_the_run(
    run: Run, lock: contextlib.ExitStack, tmp_path: Path
) -> None:
    out, pages = tmp_path / "page.html", list[str]()

    def act(text: str) -> None:
        pages.append(out.read_text(encoding="utf-8"))
        next_epoch(run) if "epoch 5" in text else lock.close()

    listener = Silent(act)
    last = watch_report([run], out, listener)
    assert listener.heard == [f"{out}: one epoch 5", f"{out}: one epoch 6"]
    assert [REFRESH in page for page in pages] == [True, True]
    assert REFRESH not in out.read_text(encoding="utf-8")
    assert max(score.epoch for score in last.runs[0].scores) == 6


def test_a_page_is_not_written_again_while_nothing_changes(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    looks = iter([True, True, True, True, False])
    monkeypatch.setattr(module, "is_worked_on", lambda run: next(looks))
    listener = Silent()
    watch_report([run], tmp_path / "page.html", listener)
    assert listener.heard == [f"{tmp_path / 'page.html'}: one epoch 5"]


def test_a_page_without_images_says_that_they_come(run: Run, lock: contextlib.ExitStack, tmp_path: Path) -> None:
    out, pages = tmp_path / "page.html", list[str]()

    def act(text: str) -> None:
        pages.append(out.read_text(encoding="utf-8"))
        lock.close()

    watch_report([run], out, Silent(act))
    coming = "images and their neighbours are shown once no process uses the runs"
    assert coming in pages[0]
    assert coming not in out.read_text(encoding="utf-8")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_leaves_a_whole_page_that_is_not_read_again(
    number: signal.Signals, run: Run, lock: contextlib.ExitStack, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    with pytest.raises(InterruptedRun, match="stopped watching; .*page.html is complete") as raised:
        watch_report([run], out, Silent(lambda text: signal.raise_signal(number)))
    assert raised.value.exit_code == 128 + number
    page = out.read_text(encoding="utf-8")
    assert page.rstrip().endswith("</html>")
    assert REFRESH not in page
    assert list(tmp_path.glob(".*")) == []
    lock.close()


def test_the_first_scores_are_waited_for(run: Run, lock: contextlib.ExitStack, tmp_path: Path) -> None:
    text = run.scores_file.read_text()
    run.scores_file.unlink()
    out = tmp_path / "page.html"

    def act(told: str) -> None:
        if "no scores yet" in told:
            assert not out.exists()
            run.scores_file.write_text(text)
        else:
            lock.close()

    listener = Silent(act)
    watch_report([run], out, listener)
    assert listener.heard == [
        "no scores yet of one; layerprobe train --probe measures after every epoch",
        f"{out}: one epoch 5",
    ]


def test_a_run_that_nobody_works_on_is_written_once(run: Run, tmp_path: Path) -> None:
    listener = Silent()
    watch_report([run], tmp_path / "page.html", listener)
    assert listener.heard == ["no process trains or probes these runs: the page is written once"]
    assert REFRESH not in (tmp_path / "page.html").read_text(encoding="utf-8")
