"""The choice that a run keeps, what it rests on, and why a table may mark another layer.

stored = stored_choice(run)          # None: there is none that holds
stored.choice.chosen.ranked    # the selected layer, at stored.choice.selected.epoch
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from layerprobe.system.errors import DataError, EnvironmentFault, RecipeError
from layerprobe.system.files import require_file, write_text
from layerprobe.values.choice import Choice
from layerprobe.values.facts import at_epoch_text
from layerprobe.values.layers import NO_POST_PROCESSING, RankedLayer, spoken_name
from layerprobe.values.scores import SPLITS
from layerprobe.workflow.run.runs import Run, named_run
from layerprobe.workflow.run.seen import weights_text

# Raised with every change of what is chosen from the same values, and of the fields of a `Choice`.
RULE = 6


@dataclass(frozen=True)
class RunState:
    """What a choice rests on of a run.

    Args:
        images: hash of those that its record names.
        seen: `data.seen`.
        epochs: split -> the ranked epochs.
        scores: split -> hash of its scores by Recall@1 and by the metric that decides.
    """

    images: str
    seen: bool
    epochs: Mapping[str, tuple[int, ...]]
    scores: Mapping[str, str]


@dataclass(frozen=True)
class StoredChoice:
    """A choice, with what it answers and rests on.

    Args:
        rule: `RULE` when it was made.
        request: option of `choose` -> its value, of the options that decide what is selected.
        whitened: whether whitened layers that are not ranked were candidates, too.
        states: run that was chosen among -> its state.
    """

    rule: int
    request: Mapping[str, Any]
    whitened: bool
    states: Mapping[str, RunState]
    choice: Choice


def stored_choice(run: Run, say: Callable[[str], None] | None = None) -> StoredChoice | None:
    """The choice that a run keeps, if it holds.

    None if nothing was chosen of the run; if the file is damaged or by another rule; or if the choice is stale: images,
    `data.seen`, ranked epochs or scores of one of its runs have changed, or the run has another name. Ranks and
    features are not read.

    Args:
        say: is given a line that says why a choice is not taken.
    """
    if (folder := run.in_folder) is None:
        return None
    run = folder
    try:
        stored = read_choice(run)
    except DataError as error:
        reason = f"{error.file}: {error.message}; it is not taken"
    else:
        if stored is None:
            return None
        reason = why_stale(stored, run)
        if not reason:
            return stored
        reason = f"{run.name}: the stored choice no longer holds: {reason}"
    if say is not None:
        say(reason)
    return None


def read_choice(run: Run) -> StoredChoice | None:
    """The choice that a run keeps, whether or not it holds; None without one.

    Raises:
        DataError: it cannot be read, or another version wrote it.
    """
    path = run.choice_file
    try:
        require_file(path)
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError.unreadable(error, file=path) from error
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError("not a stored choice", file=path) from error
    if isinstance(values, dict) and values.get("rule") != RULE and isinstance(values.get("rule"), int):
        raise DataError(f"chosen by rule {values['rule']}, and this version has rule {RULE}", file=path)
    try:
        return TypeAdapter(StoredChoice).validate_json(text)
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise DataError(f"not a stored choice{f': {key}' if key else ''}", file=path) from error


def why_stale(stored: StoredChoice, run: Run) -> str:
    """What of its runs has changed since it was made, in a few words; empty where it holds."""
    if run.name not in stored.states:
        return f"it is that of {', '.join(stored.states)}"
    splits = {stored.choice.chosen.split, "test"}
    for name, state in stored.states.items():
        try:
            other = run if name == run.name else named_run(run.folder.parent, name)
            now = run_state(other, str(stored.request.get("metric")))
        except (DataError, RecipeError) as error:
            return str(error).rstrip(".")
        if changed := _change(state, now, splits):
            return changed if len(stored.states) == 1 else f"of {name}, {changed}"
    return ""


def _change(before: RunState, now: RunState, splits: set[str]) -> str:
    if before.images != now.images:
        return "its images are others now"
    if before.seen != now.seen:
        return f"data.seen is now {str(now.seen).lower()}"
    for split in sorted(splits):
        if before.epochs.get(split) != now.epochs.get(split):
            return f"other epochs are ranked on {split} now"
        if before.scores.get(split) != now.scores.get(split):
            return f"its layers have other scores on {split} now"
    return ""


def run_state(run: Run, metric: str) -> RunState:
    """What a choice by a metric rests on of a run now."""
    record = run.read()
    rows: dict[str, list[str]] = {split: [] for split in SPLITS}
    for score in run.scores():
        if score.metric in ("R@1", metric):
            rows[score.split].append(f"{score.epoch} {score.ranked.full_name} {score.metric} {score.value!r}")
    return RunState(
        _sha256(json.dumps([dict(record.manifests), dict(record.contents)], sort_keys=True)),
        bool(record.data.get("seen", True)),
        {split: tuple(run.ranked_epochs(split)) for split in SPLITS},
        {split: _sha256("\n".join(sorted(of_split))) for split, of_split in rows.items()},
    )


def store_choice(stored: StoredChoice, runs: Sequence[Run], say: Callable[[str], None]) -> list[Run]:
    """Write a choice to the folders of the runs that it selects from, each file whole.

    Args:
        runs: that were chosen among; the others than the selected network, or its trainings, do not keep it.
        say: is given a line for each folder that cannot be written to.

    Returns:
        The runs that keep it.
    """
    without_indexes = replace(stored, choice=replace(stored.choice, indexes=None))  # they are of a call, with its times
    text = json.dumps(asdict(without_indexes), indent=1) + "\n"
    written = []
    for run in runs:
        if without_indexes.choice.run not in (run.name, run.read().experiment):
            continue
        try:
            write_text(run.choice_file, text)
            written.append(run)
        except (OSError, EnvironmentFault) as error:
            reason = error.message if isinstance(error, EnvironmentFault) else error.strerror
            say(f"{run.choice_file}: the choice could not be stored ({reason})")
    return written


def taken_text(run: Run, choice: Choice, why: str) -> str:
    """Which layer a command takes, and why."""
    network = weights_text(run.read()) or f"epoch {choice.selected.epoch}"
    return f"{run.name}: layer {choice.selected.name} of {network}, {why}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def selected_line(run: Run, sign: str, marked: RankedLayer, epoch: int) -> str:
    """`* is the best raw layer at the last epoch; choose selected pool5, partially whitened to 64 (...)`.

    Args:
        sign: by which the table marks the layer, or its name.
        epoch: of the table.

    Returns:
        Empty without a stored choice, and where it is the marked layer.
    """
    stored = stored_choice(run)
    if stored is None:
        return ""
    chosen = stored.choice.chosen
    if (chosen.ranked, chosen.epoch) == (marked, epoch):
        return ""
    raw = "raw " * (marked.post_processing == NO_POST_PROCESSING)
    when = "" if chosen.epoch == epoch else f", epoch {chosen.epoch}"
    name = f"{spoken_name(chosen.ranked)}{when}"
    at = at_epoch_text(epoch, weights_text(run.read()))
    return f"{sign} is the best {raw}layer {at}; choose selected {name} ({run.command('choose')})"
