"""report --watch: the page is written again whenever the files of its runs change, until no run is worked on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from layerprobe.report.page import render
from layerprobe.report.values import Report
from layerprobe.system.errors import RecipeError
from layerprobe.system.progress import Listener, stoppable
from layerprobe.workflow.compare.finding import METRIC
from layerprobe.workflow.report.report import build_report, is_training
from layerprobe.workflow.run.outputs import require_output, stream_of, write_output
from layerprobe.workflow.run.runs import Run

REFRESH = 10  # seconds between two readings by the browser
_PAUSE = 1.0  # seconds between two looks at the files

_State = tuple[tuple[int, int] | None, ...]  # time of change and size of each file; None where it is absent


def watch_report(runs: Sequence[Run], out: Path, listener: Listener, metric: str = METRIC) -> Report:
    """Write the page of some runs, and again when their scores or records change, until nobody works on them.

    While a run is worked on, the page has no gallery, and a browser reads it again by itself. Runs that have no scores
    yet are waited for.

    Args:
        runs: at least one.

    Returns:
        What the last page shows.
    """
    require_output(out, "html")
    if stream_of(out) is not None:
        raise RecipeError(f"--watch replaces the page, and {out} is a stream", fix="Name a file, or drop --watch")
    last_state, report = None, None
    with stoppable() as stop:
        if not any(map(is_worked_on, runs)):
            listener.say("no process trains or probes these runs: the page is written once")
        while any(map(is_worked_on, runs)):
            if (state := _state(runs)) != last_state:
                report, last_state = _write_page(runs, out, listener, metric) or report, state
            time.sleep(_PAUSE)
            if stop and report:
                write_output(out, render(replace(report, refresh=None)).encode())
            stop.raise_if_asked(f"stopped watching; {out} is complete" if report else f"{out} was not written yet")
    final = build_report(runs, metric=metric)
    write_output(out, render(final).encode())
    return final


def _write_page(runs: Sequence[Run], out: Path, listener: Listener, metric: str) -> Report | None:
    """Write the page of the runs that have scores; None where none has."""
    absent = [run.name for run in runs if not run.has_scores]
    if absent:
        listener.say(f"no scores yet of {', '.join(absent)}; layerprobe train --probe measures after every epoch")
    measured = [run for run in runs if run.name not in absent]
    if not measured:
        return None
    report = build_report(measured, gallery=False, refresh=REFRESH, metric=metric)
    report = replace(
        report, notes=(*report.notes, "images and their neighbours are shown once no process uses the runs")
    )
    write_output(out, render(report).encode())
    listener.say(f"{out}: {_progress(report)}")
    return report


def _progress(report: Report) -> str:
    """`netA epoch 7, netB epoch 3`."""
    return ", ".join(f"{page.name} epoch {max(score.epoch for score in page.scores)}" for page in report.runs)


def _state(runs: Sequence[Run]) -> _State:
    return tuple(_stamp(path) for run in runs for path in (run.scores_file, run.record_file))


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size


def is_worked_on(run: Run) -> bool:
    """Whether a process trains or probes a run; where nobody can tell, whether its record says that it is training."""
    is_held = run.is_held()
    return is_training(run) if is_held is None else is_held
