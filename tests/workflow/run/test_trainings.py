from __future__ import annotations

from pathlib import Path

import pytest

from layerprobe.system.errors import RecipeError
from layerprobe.workflow.run.trainings import pair_trainings
from tests.workflow.stored_ranks import write_run


def test_the_runs_of_two_experiments_are_paired_by_seed(tmp_path: Path) -> None:
    a = [write_run(tmp_path, f"a{seed}", experiment="a", seed=seed) for seed in (2, 0, 1)]
    b = [write_run(tmp_path, f"b{seed}", experiment="b", seed=seed) for seed in (0, 2, 5)]
    found = pair_trainings(tmp_path, a[0], b[0], (None, None))
    assert found.seeds == (0, 2)
    assert found.pairs == ((a[1], b[0]), (a[0], b[1]))
    assert found.left_out == (
        "a1 left out: the other experiment has no training with seed 1",
        "b5 left out: the other experiment has no training with seed 5",
    )


def test_a_run_without_the_epoch_and_a_second_one_of_a_seed_are_left_out(tmp_path: Path) -> None:
    named = write_run(tmp_path, "m", seed=0)
    for name, seed, epochs in (("a", 0, 2), ("b", 1, 1), ("c", 1, 2), ("d", 2, 2)):
        write_run(tmp_path, name, seed=seed, epochs_done=epochs)
    found = pair_trainings(tmp_path, named, named, (None, None))
    assert [pair[0].name for pair in found.pairs] == ["m", "c", "d"]
    assert found.left_out == ("a left out: m has its seed 0", "b left out: it has no epoch 2")
    assert [pair[0].name for pair in pair_trainings(tmp_path, named, named, (1, 1)).pairs] == ["m", "b", "d"]


def test_runs_on_other_images_are_no_seeds_of_the_experiment(tmp_path: Path) -> None:
    a = [write_run(tmp_path, f"a{seed}", seed=seed, contents={"test": "x"}) for seed in (0, 1)]
    others = [write_run(tmp_path, f"b{seed}", seed=seed, contents={"test": "y"}) for seed in (1, 2)]
    found = pair_trainings(tmp_path, a[0], a[0], (None, None))
    assert found.seeds == (0, 1)
    assert found.left_out == ("b1, b2 left out: other test images than a0 has",)
    assert found.one
    with pytest.raises(
        RecipeError, match="with 1 seed, and it takes 2; b1, b2 left out: other test images than a1 has"
    ):
        pair_trainings(tmp_path, a[1], others[0], (None, None))
    write_run(tmp_path, "b0", seed=0, contents={"test": "y"})
    assert not pair_trainings(tmp_path, a[1], others[0], (None, None)).one


def test_a_single_seed_is_refused(tmp_path: Path) -> None:
    a = write_run(tmp_path, "a")
    write_run(tmp_path, "other", experiment="x", seed=1)
    with pytest.raises(RecipeError, match="a's experiment was trained to that epoch with 1 seed, and it takes 2"):
        pair_trainings(tmp_path, a, a, (None, None))
