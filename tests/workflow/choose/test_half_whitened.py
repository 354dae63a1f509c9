from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from layerprobe.values.scores import ScoreTable
from layerprobe.workflow.choose.half_whitened import half_whitened_layers, ranked_unreduced
from tests.scores import with_layer
from tests.workflow.choosing_runs import C1, C2, write_run


def test_a_layer_is_half_whitened_to_the_rank_that_its_features_have_in_all_folds(tmp_path: Path) -> None:
    # 12 classes of 4 images; the second layer has 3 directions among its 6 numbers.
    features = np.random.default_rng(0).standard_normal((48, 6)).astype(np.float32)
    flat = features @ np.diag([1, 1, 1, 0, 0, 0]).astype(np.float32)
    values = {"test": {"c1@max": features, "c2@max": flat}}
    run = write_run(tmp_path, "a", {"test": {C1: np.ones(48), C2: np.ones(48)}}, features=values, epochs=(0,))
    found = half_whitened_layers(run, "test", [C1, C2], 0)
    assert [str(ranked) for ranked in found] == ["c1@max/l2+whiten:6:0.5+l2", "c2@max/l2+whiten:3:0.5+l2"]


def test_reduced_and_concatenated_layers_are_not_half_whitened(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", {"test": {C1: np.ones(80)}})
    (score,) = run.scores()
    others = [
        with_layer(score, layer="c1+c2"),
        with_layer(score, reduction="l2"),
        replace(with_layer(score, layer="c2"), value=None),
    ]
    ScoreTable([score, *others], stored=[]).write(run.scores_file)
    assert ranked_unreduced(run, "test") == [C1]
