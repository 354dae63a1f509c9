"""trackio: a run in a project, by default `layerprobe`, in its folder or the Space that its settings name."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from layerprobe.sources.hub import import_package


class Trackio:
    """A run in trackio; a `layerprobe.trackers.tracker.Tracker`."""

    def __init__(self, where: str, run: str, config: Mapping[str, object]) -> None:
        self._trackio = import_package("trackio", "trackio")
        current = import_package("trackio.context_vars", "trackio").current_run
        before = current.get()
        with _faults_raised():
            self._run = self._trackio.init(where or "layerprobe", name=run, config=dict(config), embed=False)
        current.set(before)  # the user's own run, if any

    @staticmethod
    def require(where: str) -> None:  # noqa: ARG004 - of a tracker
        """Check the package."""
        import_package("trackio", "trackio")

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        """Log numbers of an epoch."""
        with _faults_raised():
            self._run.log(dict(numbers), step=epoch)

    def log_figure(self, name: str, file: Path, epoch: int) -> None:
        """Log a .png file."""
        with _faults_raised():
            self._run.log({name: self._trackio.Image(file)}, step=epoch)

    def log_file(self, file: Path) -> None:
        """Keep a file as an artifact."""
        self._run.log_artifact(file, type=file.stem)

    def close(self, *, failed: bool) -> None:  # noqa: ARG002 - it has no state of a run
        """Write what is left."""
        with _faults_raised():
            self._run.finish()


@contextlib.contextmanager
def _faults_raised() -> Iterator[None]:
    """Raise what trackio warns of where it could not log."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        yield
    for warning in shown:
        if str(warning.message).startswith("trackio."):
            raise RuntimeError(str(warning.message))
