"""MLflow: a run in the experiment `layerprobe` of a tracking URI; by default those of its settings."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from layerprobe.sources.hub import import_package, unreachable

_NO_NAME = re.compile(r"[^\w\-. :/]")  # MLflow's names have no @, + or ~
_BATCH = 100  # parameters, or numbers, that MLflow takes at once
_LONGEST = 6000  # characters of a parameter


class MLflow:
    """A run in MLflow; a `layerprobe.trackers.tracker.Tracker`."""

    def __init__(self, where: str, run: str, config: Mapping[str, object]) -> None:
        self._entities = import_package("mlflow.entities", "mlflow")
        self._client = import_package("mlflow", "mlflow").MlflowClient(tracking_uri=where or None)
        uri = self._client.tracking_uri
        if uri.startswith("http") and (reason := unreachable(uri)):  # MLflow itself would ask again for five minutes
            raise ConnectionError(reason)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "layerprobe")
        experiment = self._client.get_experiment_by_name(name)
        identity = experiment.experiment_id if experiment else self._client.create_experiment(name)
        self._run = self._client.create_run(identity, run_name=run).info.run_id
        params = [self._entities.Param(key, str(value)[:_LONGEST]) for key, value in config.items()]
        for start in range(0, len(params), _BATCH):
            self._client.log_batch(self._run, params=params[start : start + _BATCH])

    @staticmethod
    def require(where: str) -> None:  # noqa: ARG004 - of a tracker
        """Check the package."""
        import_package("mlflow", "mlflow")

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        """Log numbers of an epoch, `test_R_1/fc6_max` for `test_R@1/fc6@max`."""
        now = int(1000 * time.time())
        metrics = [self._entities.Metric(_NO_NAME.sub("_", name), x, now, epoch) for name, x in numbers.items()]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._run, metrics=metrics[start : start + _BATCH])

    def log_figure(self, name: str, file: Path, epoch: int) -> None:  # noqa: ARG002 - of a tracker
        """Keep a .png file as an artifact."""
        self._client.log_artifact(self._run, str(file), "figures")

    def log_file(self, file: Path) -> None:
        """Keep a file as an artifact."""
        self._client.log_artifact(self._run, str(file))

    def close(self, *, failed: bool) -> None:
        """Record the run as finished or failed."""
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")
