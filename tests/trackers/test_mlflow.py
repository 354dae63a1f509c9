from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.trackers.material import log_all

mlflow = pytest.importorskip("mlflow")


def test_the_local_store_has_numbers_figure_page_and_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # artifacts lie in ./mlruns
    log_all("mlflow:sqlite:///runs.db", tmp_path, pytest.fail)
    client = mlflow.MlflowClient("sqlite:///runs.db")
    (run,) = client.search_runs([client.get_experiment_by_name("layerprobe").experiment_id])
    assert (run.info.run_name, run.info.status) == ("mine", "FINISHED")
    assert run.data.params == {"train.epochs": "1", "net.name": "lenet"}
    history = client.get_metric_history(run.info.run_id, "test_R_1/fc6_max")
    assert [(x.step, x.value) for x in history] == [(0, 0.25), (1, 0.5)]
    assert run.data.metrics["loss"] == 2
    files = [file.path for place in ("", "figures") for file in client.list_artifacts(run.info.run_id, place)]
    assert files == ["figures", "report.html", "figures/layers.png"]


def test_a_run_that_failed_is_recorded_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log_all("mlflow:sqlite:///failed.db", tmp_path, pytest.fail, failed=True)
    client = mlflow.MlflowClient("sqlite:///failed.db")
    (run,) = client.search_runs([client.get_experiment_by_name("layerprobe").experiment_id])
    assert run.info.status == "FAILED"


def test_a_server_that_does_not_answer_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.getproxies", dict)
    lines: list[str] = []
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        name = f"mlflow:http://127.0.0.1:{unheard.getsockname()[1]}"
        log_all(name, tmp_path, lines.append)
    reason = "no connection to 127.0.0.1 (Connection refused)"
    assert lines == [f"--log {name}: nothing more is logged there: {reason}"]
