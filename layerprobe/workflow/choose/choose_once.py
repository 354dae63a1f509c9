"""The choice of a request: the one that the runs keep, or a new one, which they keep from then on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from layerprobe.system.errors import DataError
from layerprobe.system.progress import Listener
from layerprobe.values.choice import Choice
from layerprobe.values.layers import RankedLayer
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.half_whitened import half_whitened_layers, ranked_unreduced
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import epochs_to_choose_among, split_to_choose_on
from layerprobe.workflow.run.stored_choice import (
    RULE,
    RunState,
    StoredChoice,
    read_choice,
    run_state,
    store_choice,
    stored_choice,
)

_SELECT_NOTHING = ("device", "indexes")  # options of `choose`
_TEST = "test"


def choose_once(
    runs: Sequence[Run], request: ChooseRequest, listener: Listener, further: Sequence[RankedLayer] | None = None
) -> Choice:
    """The choice of `choose_runs`: the stored one if it holds and answers the same request, else a new one.

    A new one is stored; a line says what it replaces. Indexes are not stored, so that they are measured each time.

    Args:
        further: as in `choose_runs`; None: half-whitened layers, where they were candidates of a stored choice.
    """
    previous_choices = {run: previous for run in runs if (previous := stored_choice(run, listener.say)) is not None}
    options, names = request_of(request), [run.name for run in runs]
    half_whitened = bool(further) if further is not None else any(map(_has_half_whitened, runs))
    for previous in previous_choices.values():
        if not request.indexes and not _list_changes(previous, options, names, half_whitened):
            listener.say(f"{', '.join(previous.states)}: the stored choice, as what it rests on has not changed")
            return previous.choice
    if further is None:
        further = half_whitened_of(runs, request, listener)
    states = _read_states(runs, request.metric)
    choice = choose_runs(runs, request, listener, further)
    new = StoredChoice(RULE, options, bool(further), states, choice)
    for run in store_choice(new, runs, listener.say):
        if run in previous_choices and (
            changes := _list_changes(previous_choices[run], options, names, new.half_whitened)
        ):
            before = previous_choices[run].choice.ship.name
            listener.say(f"{run.name}: replaces the stored choice of {before}, made with {', '.join(changes)}")
    return choice


def half_whitened_of(runs: Sequence[Run], request: ChooseRequest, listener: Listener) -> list[RankedLayer]:
    """The half-whitened layers of runs, where they were candidates of a stored choice, be it stale; else none."""
    if not any(map(_has_half_whitened, runs)):
        return []
    return list(dict.fromkeys(ranked for run in runs for ranked in _find_half_whitened(run, request, listener)))


def request_of(request: ChooseRequest) -> Mapping[str, Any]:
    """The options that decide what is selected, as they are stored."""
    options = {name: value for name, value in asdict(request).items() if name not in _SELECT_NOTHING}
    stored: dict[str, Any] = json.loads(json.dumps(options))
    return stored


def _list_changes(
    stored: StoredChoice, options: Mapping[str, Any], runs: Sequence[str], half_whitened: bool
) -> list[str]:
    """What a stored choice was made with and another request is not."""
    changes = [
        _format_option(name, stored.request.get(name))
        for name in dict.fromkeys([*options, *stored.request])
        if options.get(name) != stored.request.get(name)
    ]
    if set(stored.states) != set(runs):
        changes.append(f"the runs {', '.join(stored.states)}" if len(stored.states) > 1 else "this run alone")
    if stored.half_whitened != half_whitened:
        changes.append("half-whitened layers" if stored.half_whitened else "no half-whitened layers")
    return changes


def _format_option(name: str, value: Any) -> str:
    """`--within 1`, `--layers c1,c2`, `no --cluster`."""
    if isinstance(value, int | float):
        return f"--{name} {value:g}"
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value or "")
    return f"--{name} {text}" if text else f"no --{name}"


def _has_half_whitened(run: Run) -> bool:
    """Whether half-whitened layers were candidates of the choice that a run keeps, which may be stale."""
    try:
        stored = read_choice(run)
    except DataError:
        return False
    return stored is not None and stored.half_whitened


def _find_half_whitened(run: Run, request: ChooseRequest, listener: Listener) -> list[RankedLayer]:
    """The half-whitened layers of a run that is chosen on test classes, or a line on why there are none."""
    record = run.read()
    epochs = epochs_to_choose_among(run, record, request.epochs)
    ranked = [epoch for epoch in run.ranked_epochs(_TEST) if epoch in epochs]
    try:
        if split_to_choose_on(run, record, epochs) == _TEST and ranked:
            layers = ranked_unreduced(run, _TEST)
            return half_whitened_layers(run, _TEST, layers, ranked[-1], cluster=request.cluster)
        reason = "none is ranked"
    except DataError as error:
        reason = str(error).rstrip(".")
    listener.say(f"{run.name}: half-whitened layers were candidates of the stored choice, and are not now: {reason}")
    return []


def _read_states(runs: Sequence[Run], metric: str) -> Mapping[str, RunState]:
    """The states before a choice; none where something is missing, which `choose_runs` tells."""
    try:
        return {run.name: run_state(run, metric) for run in runs}
    except DataError:
        return {}
