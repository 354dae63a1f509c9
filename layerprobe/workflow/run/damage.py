"""Damaged checkpoints and inapplicable reductions: they are reported, and all else is measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from layerprobe.reductions.reduction import NotApplicableError
from layerprobe.system.errors import DataError
from layerprobe.system.progress import Listener
from layerprobe.values.scores import Score
from layerprobe.workflow.run.checkpoints import require_unchanged
from layerprobe.workflow.run.features import RunFeatures
from layerprobe.workflow.run.kept import kept_epochs
from layerprobe.workflow.run.runs import Run


class PartlyMeasuredError(DataError):
    """Epochs with damaged checkpoints, with the scores of the others."""

    def __init__(self, message: str, *, file: object = None, fix: str = "", scores: Iterable[Score] = ()) -> None:
        super().__init__(message, file=file, fix=fix)
        self.scores = list(scores)


class PartlyReducedError(NotApplicableError):
    """A reduction that is applicable to no layer, with the scores of the others."""

    def __init__(self, message: str, *, file: object = None, fix: str = "", scores: Iterable[Score] = ()) -> None:
        super().__init__(message, file=file, fix=fix)
        self.scores = list(scores)


def whole_epochs(features: RunFeatures, epochs: Sequence[int], listener: Listener | None, *, alone: bool) -> list[int]:
    """The epochs whose checkpoints are unchanged or were removed on purpose; the others are reported.

    Args:
        epochs: whose checkpoints will be loaded.
        alone: whether nothing else is measured, so that the first error is raised where none is whole.
    """
    intact, damaged = [], []
    for epoch in epochs:
        try:
            features.require_weights(epoch)
            intact.append(epoch)
        except DataError as error:
            if listener is not None:
                listener.say(f"epoch {epoch} is skipped: {error}")
            damaged.append(error)
    if damaged and not intact and alone:
        raise damaged[0]
    return intact


def require_measured(run: Run, damaged: Sequence[int], scores: Iterable[Score] = ()) -> None:
    """Raise an error if there are damaged epochs, after all others were measured."""
    if damaged:
        raise PartlyMeasuredError(
            f"not measured: epochs with a damaged checkpoint ({', '.join(map(str, damaged))})",
            file=run.folder,
            fix="Restore these checkpoints from a copy; all other epochs are measured",
            scores=scores,
        )


def damaged_epochs(run: Run, listener: Listener) -> list[int]:
    """The epochs of a run with damaged checkpoints, reported except the last, which resumed training replaces."""
    damaged: list[int] = []
    if not run.exists():
        return damaged
    record = run.read()
    for epoch in kept_epochs(run, record):
        path = run.checkpoint_file(epoch)
        try:
            require_unchanged(path, [record.hashes.get(path.name, "")])
        except DataError as error:
            if epoch < record.epochs_done:
                listener.say(str(error))
            damaged.append(epoch)
    return damaged
