from __future__ import annotations

import csv
import io
from pathlib import Path

import h5py
import numpy as np
import pytest

from layerprobe.plots.plot import PlotOptions
from layerprobe.system.errors import UnknownNameError
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.plot.plot import drawn
from layerprobe.workflow.run.runs import Run
from tests.workflow.choosing_runs import C1, C2, labels_of, write_run
from tests.workflow.conftest import Silent

CLASSES = 12


def run_with_two_halves(cache: Path) -> Run:
    """c1 and c2 each tell the classes apart by one of two digits; no score of both is stored."""
    rng, features = np.random.default_rng(0), {}
    for split in ("validation", "test"):
        digits = labels_of(split, CLASSES) - labels_of(split, CLASSES).min()
        halves = 0.3 * rng.standard_normal((2, len(digits), 4)) + np.stack(
            [np.eye(4)[digits % 4], np.eye(4)[digits // 4]]
        )
        features[split] = dict(zip(("c1@max", "c2@max"), halves.astype(np.float32), strict=True))
    ranked_on = {split: dict.fromkeys((C1, C2), np.ones(4 * CLASSES)) for split in features}
    return write_run(cache, "a", ranked_on, features=features)


def test_a_plot_has_a_layer_that_choose_alone_has_ranked(tmp_path: Path) -> None:
    run = run_with_two_halves(tmp_path)
    choice = choose_runs([run], ChooseRequest(device="cpu", combine=True), Silent())
    assert choice.ship.name == "c1+c2@max" not in {str(score.ranked_layer) for score in run.scores()}
    drawing = drawn("curves", [run], PlotOptions(layers=(choice.ship.name,)))
    (row,) = csv.DictReader(io.StringIO(drawing.csv))
    assert choice.test is not None
    assert choice.test.value is not None
    assert row["layer"] == "c1+c2"
    assert float(row["test R@1"]) == choice.test.value < 1


def test_stale_ranks_of_concatenated_layers_are_unknown(tmp_path: Path) -> None:
    run = run_with_two_halves(tmp_path)
    choose_runs([run], ChooseRequest(device="cpu", combine=True), Silent())
    for split in ("validation", "test"):
        with h5py.File(run.rank_file(2, split), "a") as file:
            file["c1+c2@max/none/cosine"].attrs["queries"] = "{}"
    with pytest.raises(UnknownNameError):
        drawn("layers", [run], PlotOptions(layers=("c1+c2@max",)))
