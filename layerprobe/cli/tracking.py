"""`--log`: the trackers of a command, whose modules are imported where one is named."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layerprobe.cli.output import Terminal
    from layerprobe.workflow.run.tracking import Tracking


def require_trackers(log: Sequence[str]) -> None:
    """Check the named trackers; see `layerprobe.trackers.tracker.require_trackers`."""
    if log:
        from layerprobe.trackers import tracker

        tracker.require_trackers(log)


def tracking_of(log: Sequence[str], terminal: Terminal) -> Tracking:
    """What logs the runs of a command to the named trackers."""
    if log:
        from layerprobe.workflow.report.tracked import tracked

        return partial(tracked, log, terminal.say)
    from layerprobe.workflow.run.tracking import untracked

    return untracked
