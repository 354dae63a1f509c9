from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from layerprobe.system.errors import BusyError, DataError, RecipeError, UnknownNameError
from layerprobe.workflow.run.runs import Run, kept_epochs, list_runs, locked, plan_removal, remove
from tests.records import recorded

RECORD = {
    "state": "finished", "recipe_name": "netA", "recipe": {}, "experiment": "", "seed": 0, "epochs_done": 1,
    "hashes": {"epoch-0000.safetensors": "a", "epoch-0001.safetensors": "b", "resume.pt": "c"}, "manifests": {},
    "new_parameters": [],
}  # fmt: skip


def a_run(cache: Path, name: str, **fields: object) -> Run:
    """A run with a file of 1,000 bytes in each place."""
    run = Run(cache / name)
    for path in (
        run.checkpoint_file(0), run.checkpoint_file(1), run.resume_file(), run.feature_file(1, "test"),
        run.rank_file(1, "test"), run.scores_file,
    ):  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(1000))
    run.write(recorded(RECORD | fields))
    return run


def files(run: Run) -> list[str]:
    return sorted(str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file())


REST = [".lock", "ranks/epoch-0001.test.h5", "run.json", "scores.csv"]


def test_a_whole_run_is_removed_and_no_other(tmp_path: Path) -> None:
    run, other = a_run(tmp_path, "one"), a_run(tmp_path, "other")
    before = files(other)
    planned = plan_removal(tmp_path, "one")
    assert planned.size == 6000 + run.record_file.stat().st_size
    remove(planned)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert files(other) == before


def test_features_alone_leave_ranks_scores_and_checkpoints(tmp_path: Path) -> None:
    run = a_run(tmp_path, "one")
    planned = plan_removal(tmp_path, "one", ["features"])
    assert planned.size == 1000
    remove(planned)
    checkpoints = [f"checkpoints/{name}" for name in ("epoch-0000.safetensors", "epoch-0001.safetensors", "resume.pt")]
    assert files(run) == sorted([*checkpoints, *REST])


def test_checkpoints_alone_leave_features_and_the_hashes_by_which_they_hold(tmp_path: Path) -> None:
    run = a_run(tmp_path, "one")
    remove(plan_removal(tmp_path, "one", ["checkpoints"]))
    assert files(run) == sorted(["features/epoch-0001.test.h5", *REST])
    assert kept_epochs(run, run.read()) == []
    assert run.read().hashes == {"epoch-0000.safetensors": "a", "epoch-0001.safetensors": "b"}


def test_a_run_in_use_is_left_as_it_is(tmp_path: Path) -> None:
    run = a_run(tmp_path, "one")
    planned = plan_removal(tmp_path, "one")
    with locked(run), pytest.raises(BusyError, match="run is in use"):
        remove(planned)
    assert len(files(run)) == 8


def test_an_ensemble_goes_with_its_members_and_no_member_alone(tmp_path: Path) -> None:
    for name in ("e.1", "e.2", "e.2x"):
        a_run(tmp_path, name)
    a_run(tmp_path, "e", members=["e.1", "e.2"])
    for parts in ([], ["checkpoints"], ["features", "checkpoints"]):
        with pytest.raises(RecipeError, match="e.1 is a member of the ensemble e, which needs it. Remove e, which"):
            plan_removal(tmp_path, "e.1", parts)
    assert plan_removal(tmp_path, "e.1", ["features"]).size == 1000
    assert plan_removal(tmp_path, "e", ["features"]).size == 3000
    remove(plan_removal(tmp_path, "e"))
    assert [run.name for run, _ in list_runs(tmp_path)] == ["e.2x"]


def test_members_that_another_ensemble_has_stay(tmp_path: Path) -> None:
    a_run(tmp_path, "e.1")
    # `train --fresh` moved the old ensemble aside: its record names runs that are the new one's now.
    for name in ("e", "e~1"):
        a_run(tmp_path, name, members=["e.1"])
    remove(plan_removal(tmp_path, "e~1"))
    assert sorted(run.name for run, _ in list_runs(tmp_path)) == ["e", "e.1"]


@pytest.mark.parametrize("parts", [[], ["features"]])
def test_a_link_is_refused_and_what_it_leads_to_stays(tmp_path: Path, parts: list[str]) -> None:
    elsewhere = a_run(tmp_path / "elsewhere", "one")
    cache = tmp_path / "cache"
    if parts:
        run = a_run(cache, "one")
        shutil.rmtree(run.folder / "features")
        (run.folder / "features").symlink_to(elsewhere.folder / "features")
    else:
        cache.mkdir()
        (cache / "one").symlink_to(elsewhere.folder)
    before = files(elsewhere)
    with pytest.raises(DataError, match="link"):
        remove(plan_removal(cache, "one", parts))
    assert files(elsewhere) == before


def test_a_removal_that_was_killed_is_completed_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path) -> None:
        (path / "one" / "run.json").unlink()
        raise KeyboardInterrupt

    a_run(tmp_path, "one")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove(plan_removal(tmp_path, "one"))
    assert list_runs(tmp_path) == []
    planned = plan_removal(tmp_path, "one")
    assert planned.size > 6000  # and the locks
    remove(planned)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises((UnknownNameError, DataError)):
        plan_removal(tmp_path, "one")


def test_a_damaged_run_can_be_removed(tmp_path: Path) -> None:
    run = a_run(tmp_path, "one")
    run.record_file.write_text("{")
    remove(plan_removal(tmp_path, "one"))
    assert list(tmp_path.iterdir()) == []
