"""The run of a watched training: begun, continued, its epochs stored and in a line each."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from layerprobe.store import RankEntry
from layerprobe.summary.cells import Cells, Faults, SplitCells
from layerprobe.summary.layers import layer_summaries
from layerprobe.system.errors import BusyError, DataError, RecipeError
from layerprobe.values.best import best_layer, tied_text
from layerprobe.values.layers import RankedLayer
from layerprobe.values.records import RunRecord
from layerprobe.values.scores import SPLITS, Score, ScoreTable, read_scores
from layerprobe.workflow.python.loaders import ProbeInputs
from layerprobe.workflow.run.runs import WATCHED, Run, locked, set_aside

COMMAND = "layerprobe.Watch"


def continue_run(run: Run, epoch: int, say: Callable[[str], None]) -> RunRecord | None:
    """The record of the run that a training continues at an epoch; None for a new run.

    A training that begins at epoch 0 is a new one: a run that has its name is moved aside.
    """
    if not run.exists():
        if epoch > 0:
            say(
                f"no epoch 0, which shows what training changes and when the gap opens: call watch(model, 0) before"
                f" training, now begun at epoch {epoch}"
            )
        return None
    record = run.read()
    if record.command != COMMAND:
        raise RecipeError(f"{run.name} is a run of {record.command}", file=run.folder, fix="Watch by another name=")
    if run.is_held():
        raise BusyError("run is in use by another training or command", file=run.folder, fix="Watch by another name=")
    if epoch == 0:
        say(f"{run.name} had epochs 0 to {record.epochs_done}, and is now {set_aside(run).name}")
        return None
    note = f"; epochs {epoch} to {record.epochs_done} are measured again" if record.epochs_done >= epoch else ""
    say(f"{run.name} is continued at epoch {epoch}{note}")
    return record


def read_stored_counts(run: Run, split: str) -> dict[str, int] | None:
    """Class -> number of its stored images of a split; None where none are stored."""
    for epoch in reversed(run.ranked_epochs(split)):
        with contextlib.suppress(DataError):
            head = run.feature_head(epoch, split)
            return {head.class_names[label]: count for label, count in Counter(head.labels.tolist()).items()}
    return None


def require_same_images(run: Run, record: RunRecord, inputs: ProbeInputs) -> None:
    """Check that a run is continued on its images."""
    for split in {**record.contents, **inputs.images}:
        sha256 = record.contents.get(split)
        if split not in inputs.images or sha256 != inputs.contents(split):
            raise RecipeError(
                f"has other {split} images than are given now", file=run.folder, fix="Give its images, or another name="
            )


def forget_from(run: Run, epoch: int) -> None:
    """Remove the stored values of an epoch and of those after it."""
    if not run.exists():
        return
    with locked(run):
        if run.scores_file.exists():
            scores = read_scores(run.scores_file)
            earlier_scores = [score for score in scores if score.epoch < epoch]
            ScoreTable(earlier_scores, layer_order=run.read().layer_order, stored=scores).write(run.scores_file)
        for split in SPLITS:
            for ranked_epoch in [number for number in run.ranked_epochs(split) if number >= epoch]:
                run.rank_file(ranked_epoch, split).unlink(missing_ok=True)
                run.remove_features(ranked_epoch, split)


def remove_features(run: Run, splits: Sequence[str], epoch: int) -> None:
    """Remove the features of an epoch; its ranks and scores are kept."""
    with locked(run):
        for split in splits:
            run.remove_features(epoch, split)


def epoch_record(record: RunRecord, epoch: int, experiment: str, watched: Mapping[str, object]) -> RunRecord:
    """The record of a watched training after an epoch, from that of a probe."""
    return replace(
        record,
        state="training",
        command=COMMAND,
        untrained=True,
        recipe={**record.recipe, "train": {"epochs": epoch}},
        experiment=experiment,
        epochs_done=epoch,
        notes=tuple(f"{split}: {images}" for split, images in watched.items()),
    )


def mark_watched(run: Run) -> int:
    """Mark a run as worked on until the process ends; the descriptor of the mark."""
    run.folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(run.folder / WATCHED, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def finish(run: Run, descriptor: int, process: int) -> None:
    """End the mark, and record the run as finished."""
    if os.getpid() != process:  # a data worker, which holds the mark too
        return
    os.close(descriptor)
    with contextlib.suppress(DataError, BusyError):  # removed, or used by a command meanwhile
        if run.exists():
            with locked(run):
                run.write(replace(run.read(), state="finished"))


@dataclass(frozen=True, eq=False)
class LayerEpochs:
    """Recall@1 of a layer at the epochs so far.

    Args:
        units: split -> (Q,) classes of its queries.
        cells: split -> its recalls.
    """

    ranked: RankedLayer
    units: Mapping[str, NDArray[np.int64]]
    cells: Mapping[str, Cells] = field(default_factory=dict)

    def with_epoch(self, epoch: int, entries: Mapping[str, RankEntry]) -> LayerEpochs:
        """These epochs and a further one."""
        hits = {split: entry.ranks.hits(1) for split, entry in entries.items() if entry.ranks is not None}
        return self._with(epoch, hits)

    def with_stored(self, run: Run, epoch: int) -> LayerEpochs:
        """These epochs and one that a run has stored."""
        stored = {split: run.ranks(epoch, split).stored for split in self.units}
        hits = {split: x.ranks[self.ranked].hits(1) for split, x in stored.items() if self.ranked in x.ranks}
        return self._with(epoch, hits)

    def _with(self, epoch: int, hits: Mapping[str, NDArray[np.float64]]) -> LayerEpochs:
        new = {
            split: self.cells.get(split, Cells()).with_epoch(epoch, {self.ranked: values}, self.units[split])
            for split, values in hits.items()
        }
        return LayerEpochs(self.ranked, self.units, {**self.cells, **new})

    def text(self, epoch: int) -> str:
        """`fc1 train 81.2 %, test 40.1 %, gap +41.1 (opens at epoch 1)`."""
        splits = {
            split: SplitCells(
                cells, Cells(), dict.fromkeys(cells.rows, Faults()), frozenset(self.units[split].tolist())
            )
            for split, cells in self.cells.items()
            if (self.ranked, epoch) in cells
        }
        if not splits:
            return f"{self.ranked} has no value"
        (row,) = layer_summaries([self.ranked], splits, from_start=True)
        values = {split: level.value for split, level in row.levels.items()}
        parts = [f"{split} {100 * value:.1f} %" for split, value in values.items() if value is not None]
        if row.gap:
            parts.append(f"gap {100 * row.gap.value:+.1f}")
        opens = f" (opens at epoch {row.opening.epoch})" if row.opening and row.opening.epoch is not None else ""
        return f"{self.ranked} {', '.join(parts)}{opens}"


def best_words(scores: Sequence[Score], metric: str, shown_layer: RankedLayer) -> str:
    """`; best on test: conv2@max 55.0 %`; empty where that layer is shown already."""
    values: dict[str, dict[RankedLayer, float | None]] = {}
    for score in scores:
        if score.metric == metric:
            values.setdefault(score.split, {})[score.ranked] = score.value
    test_values = {split: list(by_layer.values()) for split, by_layer in values.items() if split != "train"}
    best = best_layer(test_values)
    if best is None:
        return ""
    ranked, value = list(values[best.split].items())[best.place]
    tied = f", {tied_text(best.equals)}" if best.equals > 1 else ""
    return (
        "" if ranked == shown_layer or value is None else f"; best on {best.split}: {ranked} {100 * value:.1f} %{tied}"
    )
