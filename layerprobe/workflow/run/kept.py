"""The checkpoints that a run keeps, and those that were removed on purpose."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from layerprobe.system.errors import RecipeError
from layerprobe.values.records import RunRecord
from layerprobe.values.sections import Keep
from layerprobe.workflow.run.runs import Run, named_run


def wanted_epochs(keep: Keep, last_epoch: int) -> set[int]:
    """The epochs whose checkpoints `train.keep` keeps: all, last, or N for the epochs 0, N, 2N ... and the last."""
    if keep == "last":
        return {last_epoch}
    return {*range(0, last_epoch + 1, 1 if keep == "all" else keep), last_epoch}


def kept_epochs(run: Run, record: RunRecord) -> list[int]:
    """The epochs whose checkpoints were not removed, ascending; of an ensemble, from no member."""
    records = [record, *(named_run(run.folder.parent, name).read() for name in record.members)]
    removed = {epoch for member in records for epoch in member.checkpoints_removed}
    return [epoch for epoch in record.epochs if epoch not in removed]


def require_kept(run: Run, record: RunRecord, epoch: int) -> None:
    """Check that the checkpoint of an epoch was not removed."""
    epochs = kept_epochs(run, record)
    if epoch not in epochs:
        fix = f"Kept: epochs {', '.join(map(str, epochs))}" if epochs else "Train it again with --fresh"
        raise RecipeError(f"the checkpoint of epoch {epoch} was removed", file=run.folder, fix=fix)


def unwanted_epochs(run: Run, keep: Keep, *, finished: bool) -> list[int]:
    """The epochs whose checkpoints exist although `train.keep` does not keep them."""
    done: int = run.read().epochs_done
    stay = wanted_epochs(keep, done) | (set() if finished else {done - 1, done})
    return [epoch for epoch in range(done + 1) if epoch not in stay and run.checkpoint_file(epoch).exists()]


def remove_checkpoints(run: Run, epochs: Iterable[int]) -> None:
    """Remove checkpoints and their resume states; for the holder of the lock.

    run.json is written first: the next call removes what a kill left.
    """
    record = run.read()
    removed = tuple(sorted({*record.checkpoints_removed, *epochs}))
    done = record.epochs_done
    states = [run.resume_file(previous=epoch < done) for epoch in (done - 1, done) if epoch in removed]
    if removed != record.checkpoints_removed:
        names = {state.name for state in states}
        hashes = {name: digest for name, digest in record.hashes.items() if name not in names}
        run.write(replace(record, checkpoints_removed=removed, hashes=hashes))
    # The states first: `unwanted_epochs` finds the checkpoints that a kill left.
    for path in [*states, *map(run.checkpoint_file, removed)]:
        path.unlink(missing_ok=True)
