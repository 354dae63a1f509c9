from __future__ import annotations

import re
from pathlib import Path

import pytest

from layerprobe.scores import read_scores
from layerprobe.workflow import demo as module
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
        if score.epoch == 1 and score.metric == "R@1"
    }
    figures = re.search(r"R@1 (\S+) % against (\S+) %.*training classes (\S+) % against (\S+) %", shown.finding)
    assert figures is not None
    pairs = [("test", "c5"), ("test", "fc6"), ("train", "c5"), ("train", "fc6")]
    assert list(figures.groups()) == [f"{100 * (value[pair] or 0):.1f}" for pair in pairs]
    assert "fc6" in shown.finding
    assert "c5" in shown.finding
    assert [path.name for path in shown.plots] == ["train-vs-test.png", "curves.png", "layers.png", "cka.png"]
    assert all(path.stat().st_size > 10_000 for path in shown.plots)


@pytest.mark.parametrize(
    ("low", "high", "claim"),
    [
        (0.01, 0.09, "pool5.3, the layer before the embedding, retrieves unseen classes better than fc6: R@1 55.0 %"),
        (-0.09, -0.01, "The embedding fc6 retrieves unseen classes better than pool5.3 before it: R@1 55.0 %"),
        (-0.01, 0.09, "pool5.3 and the embedding fc6 are not distinguishable here on unseen classes: R@1 55.0 %"),
    ],
)
def test_a_claim_needs_an_interval_that_leaves_out_zero(low: float, high: float, claim: str) -> None:
    test, train = module.Pair(0.55, 0.5, low, high), module.Pair(0.9, 0.95, -0.1, 0.0)
    assert module.sentence("pool5.3", "fc6", test, train).startswith(claim)
