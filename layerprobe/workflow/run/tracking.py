"""What trackers are given of a run: its losses and scores by epoch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from layerprobe.trackers.tracker import Trackers
from layerprobe.values.scores import SEEN, UNSEEN, Score
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.training_log import logged_losses

# A run and its recipe, by section -> the trackers that it is logged to while it is worked on.
Tracking = Callable[[Run, Mapping[str, Mapping[str, Any]]], AbstractContextManager[Trackers]]


@contextlib.contextmanager
def untracked(run: Run, recipe: Mapping[str, Mapping[str, Any]]) -> Iterator[Trackers]:
    """No trackers."""
    yield Trackers((), run.name, recipe, print)


def numbers_of(scores: Sequence[Score], similarity: str) -> dict[str, float]:
    """The values of scores of one epoch by their names in trackers, `test_R@1/layer3@avg`.

    Args:
        similarity: the run's, which names omit, whatever else is measured at this epoch.
    """
    return {f"{x.split}_{x.metric}/{x.ranked.name(similarity)}": x.value for x in scores if x.value is not None}


def gaps_of(scores: Sequence[Score], similarity: str) -> dict[str, float]:
    """R@1 on train - R@1 on test of the layers of one epoch, as `plot gap` draws it: `gap_R@1/layer3@avg`."""
    values = {(x.split, x.ranked): x.value for x in scores if x.metric == "R@1" and x.value is not None}
    layers = [ranked for split, ranked in values if split == SEEN and (UNSEEN, ranked) in values]
    return {f"gap_R@1/{ranked.name(similarity)}": values[SEEN, ranked] - values[UNSEEN, ranked] for ranked in layers}


def log_epoch(trackers: Trackers, run: Run, epoch: int, scores: Sequence[Score], *, loss: float | None = None) -> None:
    """Log the scores of an epoch, and its loss if it has been trained."""
    if not trackers:
        return
    similarity = run.read().similarity
    numbers = {**numbers_of(scores, similarity), **gaps_of(scores, similarity)}
    if loss is not None:
        numbers["loss"] = loss
    if numbers:
        trackers.log(numbers, epoch)


def log_epochs(trackers: Trackers, run: Run) -> None:
    """Log every epoch of which a run has stored a score or a loss."""
    if not trackers:
        return
    losses = {epoch: loss for epoch, loss, _ in logged_losses(run)} if run.training_log_file.exists() else {}
    scores: dict[int, list[Score]] = {}
    for score in run.scores() if run.has_scores else ():
        scores.setdefault(score.epoch, []).append(score)
    for epoch in sorted({*losses, *scores}):
        log_epoch(trackers, run, epoch, scores.get(epoch, ()), loss=losses.get(epoch))
