from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from layerprobe import store
from layerprobe.errors import DataError, LayerprobeError, UnknownNameError
from layerprobe.plots import curves
from layerprobe.runs import Run
from layerprobe.scores import Score, write_scores
from layerprobe.workflow.plot import PlotRequest, plot

SCORE = Score("one", "abc", 0, 1, "test", "fc6", "none", "none", "cosine", "R@1", 0.5, None, None, 4, "")


def run_with(cache: Path, name: str, splits: dict[str, list[int]]) -> Run:
    """A run with a score for each split, and features with these labels."""
    run = Run(cache / name)
    write_scores(run.scores, [replace(SCORE, run=name, split=split) for split in splits])
    for split, labels in splits.items():
        ids = [f"{split}{i}" for i in range(len(labels))]
        columns = store.Columns({"fc6@none": 1}, "cpu", 1)
        key = store.FeatureKey(name, 1, split, "", "", "")
        batch = {"fc6@none": np.zeros((len(labels), 1), np.float32)}
        store.write_features(run.features(1, split), key, store.Rows(np.array(labels), ids), columns, [batch])
    return run


def chance_drawn(monkeypatch: pytest.MonkeyPatch, *runs: Run) -> dict[str, float]:
    """What the drawing function is given as chance levels."""
    given: dict[str, float] = {}
    real = curves.draw

    def draw(scores: list[Score], *, chance: dict[str, float]) -> Figure:
        given.update(chance)
        return real(scores, chance=chance)

    monkeypatch.setattr(curves, "draw", draw)
    plot(PlotRequest("curves", runs))
    return given


def test_chance_is_that_of_the_stored_labels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = run_with(tmp_path, "one", {"train": [0, 0, 1, 1], "test": [0, 0, 0, 1, 1, 1]})
    # another of the class among the others: 1 of 3, and 2 of 5
    assert chance_drawn(monkeypatch, run) == pytest.approx({"train": 1 / 3, "test": 2 / 5})


def test_a_split_of_the_second_run_alone_has_its_chance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = (run_with(tmp_path, name, {split: [0, 0, 1, 1]}) for name, split in (("a", "test"), ("b", "train")))
    assert chance_drawn(monkeypatch, first, second) == pytest.approx({"test": 1 / 3, "train": 1 / 3})


def test_runs_on_other_data_have_no_common_chance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = run_with(tmp_path, "a", {"test": [0, 0, 1, 1]})
    second = run_with(tmp_path, "b", {"test": [0, 0, 0, 1, 1, 1]})
    assert chance_drawn(monkeypatch, first, second) == {}


def test_a_run_without_scores_says_to_probe(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no scores yet. Run layerprobe probe first"):
        plot(PlotRequest("curves", [Run(tmp_path / "one")]))


def test_an_unknown_plot_has_the_near_miss(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="unknown plot 'curve'. Did you mean 'curves'"):
        plot(PlotRequest("curve", [Run(tmp_path / "one")]))


def test_another_suffix_names_the_three_and_writes_nothing(tmp_path: Path) -> None:
    run = run_with(tmp_path, "one", {"test": [0, 0, 1, 1]})
    with pytest.raises(LayerprobeError, match="Name it .png, .pdf or .svg"):
        plot(PlotRequest("curves", [run], tmp_path / "x.gif"))
    assert not list(tmp_path.glob("*.gif*"))
