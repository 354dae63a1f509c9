"""Which split a layer may be chosen on: one whose classes the network has not seen."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from layerprobe.system.errors import DataError, RecipeError
from layerprobe.values.epochs import named_epochs
from layerprobe.values.facts import AS_GIVEN, EPOCH_0, START, cross_fitted_text
from layerprobe.values.records import RunRecord
from layerprobe.workflow.run.runs import Run, command_line, locked, other_training

_OWN_WEIGHTS = ("none", "model", "imagenet")  # random, or the source's own
_SHARE = 0.2  # of the training classes that the suggested command holds out
_FEW = 10  # of fewer classes it holds out half


def has_seen_train(record: RunRecord, epoch: int) -> bool:
    """Whether the network of an epoch has, or may have, been trained on the training classes.

    Weights from files or of another run count as trained on them unless `data.seen = false`; so does a model that was
    measured from Python.
    """
    if not (record.weights_files or record.from_python):
        if epoch > 0:
            return True
        if record.net.get("weights", "none") in _OWN_WEIGHTS:
            return False
    return bool(record.data.get("seen", True))


def trains_on_train(record: RunRecord) -> bool:
    """Whether a network of the run is, or may have been, trained on the training classes."""
    epochs = record.recipe.get("train", {}).get("epochs", 0)
    return epochs > 0 or any(has_seen_train(record, epoch) for epoch in record.epochs)


def start_of(record: RunRecord) -> str:
    """The network of epoch 0, as in `DataFacts`."""
    # Only the user knows what their own function returns.
    if not record.untrained or str(record.net.get("name")).startswith("python:"):
        return EPOCH_0
    if record.from_python:
        return START
    return "untrained" if record.net.get("weights", "none") == "none" else "pretrained"


def state_seen(run: Run, seen: bool) -> None:
    """Write to a run's record whether its weights were trained on its training classes; features and ranks stay.

    Raises:
        RecipeError: it was trained here, or measured from Python.
    """
    record = run.read()
    if record.from_python or record.recipe["train"]["epochs"]:
        reason = "was measured from Python" if record.from_python else "was trained on its training classes"
        fix = _held_out_fix(run, record) if record.from_python else "Leave --not-trained-on-these out"
        raise RecipeError(f"--not-trained-on-these: {run.name} {reason}", fix=fix)
    if record.data.get("seen", True) != seen:
        with locked(run):
            run.write(replace(record, recipe={**record.recipe, "data": {**record.data, "seen": seen}}))
            run.log(f"data.seen = {str(seen).lower()}: {command_line()}")


def epochs_to_choose_among(run: Run, record: RunRecord, text: str) -> list[int]:
    """The epochs of `choose --epochs`, ascending."""
    every = record.epochs
    return named_epochs(text, {"all": lambda: every, "last": lambda: every[-1:]}, every, run.name)


def split_to_choose_on(run: Run, record: RunRecord, epochs: Collection[int]) -> str:
    """The split to choose on: validation, else train if its classes are unseen, else test, cross-fitted.

    Raises:
        RecipeError: there are no classes but those of train, which the network has or may have seen.
    """
    if "validation" in record.manifests:
        return "validation"
    if "train" not in record.manifests:
        return "test"
    if not any(has_seen_train(record, epoch) for epoch in epochs):
        return "train"
    if "test" in record.manifests:
        return "test"
    raise seen_train_error(run, record, "and there are no others")


def seen_train_error(run: Run, record: RunRecord, lacking: str) -> RecipeError:
    """That the training classes cannot be chosen on.

    Args:
        lacking: which others there are not: `and there are no others`.
    """
    verb = "has seen" if trained_here(record) else "counts as having seen"
    return RecipeError(f"{run.name} {verb} its training classes, {lacking}", fix=_held_out_fix(run, record))


def trained_here(record: RunRecord) -> bool:
    """Whether layerprobe trained the run, on its training classes."""
    return record.epochs_done > 0 and not record.weights_files and not record.from_python


def cross_fitted_as_seen(run: Run, record: RunRecord, test_classes: int) -> str:
    """Why a run with training classes is chosen on those of test: `cross-fitted on the 78 test classes, as ...`."""
    labels = _train_labels(run)
    train_classes = None if labels is None else len(np.unique(labels))
    return cross_fitted_text(test_classes, train_classes, sure=trained_here(record))


def instead_of_test(run: Run, record: RunRecord) -> list[str]:
    """What chooses on other classes than those of test, which are cross-fitted; none for a run from Python."""
    if record.from_python:
        return []
    if not trained_here(record):
        return ["if the weights were trained on other classes, --not-trained-on-these chooses on the training classes"]
    share, cost = _cost(run)
    return [f"to choose without the test classes, train with --set data.validation_classes={share:g}: {cost}"]


def weights_name(record: RunRecord) -> str:
    """The weights that a run was given: the name of a file, a folder or a pattern, or `run:NAME`."""
    weights = str(record.net.get("weights", "none"))
    return weights if weights.startswith("run:") else Path(weights).name


def weights_text(record: RunRecord) -> str:
    """`weights of own.pth` of a run of this one file, which says no epoch; empty where epochs have numbers."""
    if record.from_python:
        return "" if record.untrained else AS_GIVEN
    return f"weights of {weights_name(record)}" if [file.epoch for file in record.weights_files] == [0] else ""


def unverified_weights(record: RunRecord) -> str:
    """The weights of which only the user knows the classes that they were trained on; empty for other weights.

    These are files, weights of another run, what a user's function returns, and a model of `layerprobe.probe`.
    """
    if record.data.get("protocol") == "classification":  # there test has the training classes
        return ""
    if record.from_python:
        return "" if record.untrained else "the model"
    name = str(record.net.get("name", ""))
    if record.net.get("weights", "none") not in _OWN_WEIGHTS:
        return weights_name(record)
    is_stated = not record.data.get("seen", True)
    return name if (name.startswith("python:") or is_stated) and not trained_here(record) else ""


def _held_out_fix(run: Run, record: RunRecord) -> str:
    if record.from_python:
        return "Give classes that the model has not seen as a split: layerprobe.probe(model, {'validation': ..., ...})"
    if record.recipe["train"]["epochs"] == 0:
        stated = run.command("choose", "--not-trained-on-these")
        return (
            f"If the weights were trained on other classes, run {stated} first;"
            " else give a split of classes that they have not seen"
        )
    share, cost = _cost(run)
    change = f"{run.name}-v", f"data.validation_classes={share:g}"
    command = other_training(str(record.command), *change) or other_training(
        f"layerprobe train {shlex.quote(str(record.recipe_name))}", *change
    )
    training = f"Train with classes held out: {command}"
    folds = "or data.validation_folds=5 with data.validation_fold=0 to 4, five trainings that hold out each class once"
    untrained = "" if has_seen_train(record, 0) else f"; {run.command('choose', '--epochs', '0')} needs none"
    return f"{training} ({cost}), {folds}{untrained}"


def _cost(run: Run) -> tuple[float, str]:
    """The share of the training classes to hold out, and what training loses."""
    labels = _train_labels(run)
    if labels is None:
        return _SHARE, "it trains without a fifth of the classes and their images"
    classes = len(np.unique(labels))
    share = _SHARE if classes >= _FEW else 0.5
    held = round(share * classes)
    images = round(len(labels) * held / classes)
    return share, f"it trains without {held} of {classes} classes, about {images:,} of {len(labels):,} images"


def _train_labels(run: Run) -> NDArray[np.integer] | None:
    """The class of each training image; None where none of them is ranked."""
    for epoch in run.ranked_epochs("train")[-1:]:
        with contextlib.suppress(DataError):
            labels: NDArray[np.integer] = run.ranks(epoch, "train").rows[0]
            return labels
    return None
