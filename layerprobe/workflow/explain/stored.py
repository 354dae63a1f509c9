"""The figure of an explanation that a run keeps."""

from __future__ import annotations

from layerprobe.system.errors import DataError
from layerprobe.workflow.run.runs import Run

KIND = "explain"  # of the figure among the run's plots


def stored_figure(run: Run) -> bytes | None:
    """The PNG that `explain` wrote last without --out; None if there is none."""
    path = run.plot_file(KIND)
    if not path.is_file():
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError.unreadable(error, file=path) from error
