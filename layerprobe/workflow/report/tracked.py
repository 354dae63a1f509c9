"""Trackers of a run while a command works on it; at its end they are given its figures and its page."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from layerprobe.plots.figure import encode_figure
from layerprobe.report.page import render
from layerprobe.system.errors import LayerprobeError
from layerprobe.trackers.tracker import Trackers
from layerprobe.workflow.plot.plot import draw_plot
from layerprobe.workflow.report.report import build_report
from layerprobe.workflow.run.runs import Run

FIGURES = ("loss", "layers", "train-vs-test", "gap", "curves")


@contextlib.contextmanager
def tracked(
    names: Sequence[str], say: Callable[[str], None], run: Run, recipe: Mapping[str, Mapping[str, Any]]
) -> Iterator[Trackers]:
    """The trackers of a run, which are closed after the block, and given its figures and page if that succeeds.

    Args:
        names: `KIND[:WHERE]` of each.
        say: shows a line.
    """
    trackers, failed = Trackers(names, run.name, recipe, say), True
    try:
        yield trackers
        failed = False
        log_artefacts(trackers, run, say)
    finally:
        trackers.close(failed=failed)


def log_artefacts(trackers: Trackers, run: Run, say: Callable[[str], None]) -> None:
    """Log the figures for which a run has the values, and its page if it has scores."""
    if not trackers:
        return
    try:
        epoch = run.read().epochs_done
        with tempfile.TemporaryDirectory() as folder:
            for kind in FIGURES:
                # A run that was not trained has no loss, and one that was not measured no recall.
                with contextlib.suppress(LayerprobeError):
                    figure = Path(folder, f"{kind}.png")
                    figure.write_bytes(encode_figure(draw_plot(kind, [run]).figure, "png"))
                    trackers.log_figure(kind, figure, epoch)
            if run.has_scores:
                page = Path(folder, "report.html")
                page.write_bytes(render(build_report([run])).encode())
                trackers.log_file(page)
    except (LayerprobeError, OSError) as error:  # the work is done and stored
        say(f"--log: not all figures of {run.name} are logged: {error}")
