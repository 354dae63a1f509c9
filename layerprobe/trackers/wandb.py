"""Weights & Biases: a run in the project [ENTITY/]PROJECT; by default in that of its settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from layerprobe.sources.hub import import_package


class WandB:
    """A run in Weights & Biases; a `layerprobe.trackers.tracker.Tracker`."""

    def __init__(self, where: str, run: str, config: Mapping[str, object]) -> None:
        self._wandb = _package()
        entity, _, project = where.rpartition("/")
        # The user may have a run of her own, which stays the current one.
        self._run = self._wandb.init(
            entity=entity or None,
            project=project or None,
            name=run,
            config=dict(config),
            reinit="create_new",
            settings=self._wandb.Settings(console="off", quiet=True),  # the streams are left as they are
        )
        self._run.define_metric("*", step_metric="epoch")

    @staticmethod
    def require(where: str) -> None:  # noqa: ARG004 - of a tracker
        """Check the package."""
        _package()

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        """Log numbers of an epoch."""
        self._run.log({"epoch": epoch, **numbers})

    def log_figure(self, name: str, file: Path, epoch: int) -> None:
        """Log a .png file."""
        self._run.log({"epoch": epoch, name: self._wandb.Image(str(file))})

    def log_file(self, file: Path) -> None:
        """Keep a file as an artifact."""
        self._run.log_artifact(str(file), type=file.stem)

    def close(self, *, failed: bool) -> None:
        """Send what is left, and record the run as finished or failed."""
        self._run.finish(exit_code=int(failed))


def _package() -> ModuleType:
    return import_package("wandb", "wandb")
