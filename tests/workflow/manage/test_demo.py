from __future__ import annotations

import re
from pathlib import Path

import pytest

from layerprobe.registry import PLOTS
from layerprobe.values.scores import read_scores
from layerprobe.workflow.manage import demo as module
from tests.workflow.conftest import Silent

TINY = """# tiny: the demo, small enough for a test
[data]
name = "glyphs"
train_classes = 4
test_classes = 4
images_per_class = 4
image_size = 28
[net]
name = "lenet"
fc = [8]
[loss]
name = "smooth_triplet"
[train]
epochs = 1
batch_size = 8
images_per_class = 2
[probe]
layers = ["c3", "c5", "fc6"]
k = [1, 2]
"""


def test_the_finding_is_computed_from_the_runs_own_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY)
    monkeypatch.setattr(module, "RECIPE", str(recipe))
    shown = module.demo(tmp_path / "cache", Silent())

    value = {
        (score.split, score.layer): score.value
        for score in read_scores(shown.run.scores_file)
        if (score.epoch, score.metric, score.reduction) == (1, "R@1", "none")
    }
    numbers = r"R@1 (\S+) % against (\S+) %.*On the training classes they reach (\S+) % against (\S+) %\."
    figures = re.search(numbers, shown.finding)
    assert figures is not None
    pairs = [("test", "c5"), ("test", "fc6"), ("train", "c5"), ("train", "fc6")]
    assert list(figures.groups()) == [f"{100 * (value[pair] or 0):.1f}" for pair in pairs]
    assert "c5@max, the last layer probed before the embedding," in shown.finding  # pool5 lies between
    assert "fc6" in shown.finding
    assert [path.name for path in shown.plots] == [f"{kind}.png" for kind in PLOTS]
    assert all(path.stat().st_size > 10_000 for path in shown.plots)
