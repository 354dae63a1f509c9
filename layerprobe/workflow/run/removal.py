"""runs remove: delete a run, or only its features or checkpoints."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from layerprobe.system.errors import DataError, RecipeError
from layerprobe.system.files import bytes_below
from layerprobe.workflow.run.kept import remove_checkpoints
from layerprobe.workflow.run.runs import Run, find_run, list_runs, locked, named_run

PARTS = ("features", "checkpoints")
# Runs are moved here before they are deleted, so that no partial run is ever listed.
_BIN = ".removed"


@dataclass(frozen=True)
class Removal:
    """Runs and parts to remove; no parts: all."""

    runs: tuple[Run, ...]
    parts: tuple[str, ...]
    size: int


def plan_removal(cache: Path, name: str, parts: Sequence[str] = ()) -> Removal:
    """Plan the removal of a run, and of an ensemble's members; a removal that was killed can be planned again."""
    unfinished = Run(cache / _BIN / named_run(cache, name).name)
    run = unfinished if unfinished.folder.is_dir() and not named_run(cache, name).exists() else find_run(cache, name)
    owners: dict[str, set[str]] = {}
    for other, record in list_runs(cache):
        for member in record.members:
            owners.setdefault(member, set()).add(other.name)
    if run is not unfinished and name in owners and tuple(parts) != ("features",):
        (owner, *_) = sorted(owners[name])
        raise RecipeError(
            f"{name} is a member of the ensemble {owner}, which needs it",
            fix=f"Remove {owner}, which removes its members too, or only the --features of {name}",
        )
    # Members that another ensemble shares, such as the new one after --fresh, stay.
    members = [
        named_run(cache, member) for member, names in owners.items() if names == {run.name} and run is not unfinished
    ]
    runs = (*(member for member in members if member.exists()), run)
    folders = [folder for removed_run in runs for folder in _folders(removed_run, parts)]
    for path in [*(removed_run.folder for removed_run in runs), *folders]:
        if path.is_symlink():
            raise DataError("a link is not followed", file=path, fix="Remove its target and the link yourself")
    return Removal(runs, tuple(parts), sum(map(bytes_below, folders)))


def remove(removal: Removal) -> None:
    """Execute a planned removal; after a kill, the same removal completes it."""
    with contextlib.ExitStack() as held:
        for run in removal.runs:
            held.enter_context(locked(run))
        if not removal.parts:
            _discard(removal.runs)
            return
        for run in removal.runs:
            # External weights stay.
            if "checkpoints" in removal.parts and not (record := run.read()).weights_files:
                remove_checkpoints(run, range(record.epochs_done + 1))
            for folder in _folders(run, removal.parts):
                if folder.exists():
                    shutil.rmtree(folder)


def _folders(run: Run, parts: Sequence[str]) -> list[Path]:
    return [run.folder / name for name in parts] or [run.folder]


def _discard(runs: Sequence[Run]) -> None:
    cache = runs[-1].folder.parent
    folder = cache if cache.name == _BIN else cache / _BIN
    with locked(Run(folder)):
        for run in runs:
            aside = folder / run.name
            if aside != run.folder:
                if aside.exists():
                    shutil.rmtree(aside)
                run.folder.rename(aside)
        shutil.rmtree(folder)
