"""The choice of a request, kept by its runs or new; also of a pretrained model and a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any

from layerprobe.system.errors import DataError, UnknownNameError
from layerprobe.system.progress import Listener
from layerprobe.values.choice import Choice
from layerprobe.values.layers import NO_POST_PROCESSING, RankedLayer
from layerprobe.values.records import RunRecord
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.refits import ranked_raw, whitened_layers
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.probe.chains import FITTED_ON
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
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
from layerprobe.workflow.train.frozen import frozen_run
from layerprobe.workflow.train.frozen_request import FrozenRequest

_SELECT_NOTHING = ("device", "indexes", "memory")  # options of `choose`
_TEST = "test"


def choose_once(
    runs: Sequence[Run], request: ChooseRequest, listener: Listener, further: Sequence[RankedLayer] | None = None
) -> Choice:
    """The choice of `choose_runs`: the stored one if it holds and answers the same request, else a new one.

    A new one is stored; a line says what it replaces. Indexes are not stored, so that they are measured each time.

    Args:
        further: as in `choose_runs`; None: whitened layers, where they were candidates of a stored choice.
    """
    previous_choices = {run: previous for run in runs if (previous := stored_choice(run, listener.say)) is not None}
    options, names = request_of(request), [run.name for run in runs]
    whitened = request.budget is None and (bool(further) if further is not None else any(map(_has_whitened, runs)))
    for previous in previous_choices.values():
        if not request.indexes and not _list_changes(previous, options, names, whitened):
            listener.say(f"{', '.join(previous.states)}: the stored choice, as what it rests on has not changed")
            return previous.choice
    if further is None and request.budget is not None:
        further = list(dict.fromkeys(x for run in runs for x in _measure_within_budget(run, request, listener)))
    elif further is None:
        further = whitened_of(runs, request, listener)
    states = _read_states(runs, request.metric)
    choice = choose_runs(runs, request, listener, further)
    new = StoredChoice(RULE, options, bool(further) and request.budget is None, states, choice)
    for run in store_choice(new, runs, listener.say):
        if run in previous_choices and (changes := _list_changes(previous_choices[run], options, names, new.whitened)):
            before = previous_choices[run].choice.selected.name
            listener.say(f"{run.name}: replaces the stored choice of {before}, made with {', '.join(changes)}")
    return choice


def choice_to_take(run: Run, listener: Listener, require_ready: Callable[[], object]) -> tuple[Choice, str]:
    """The stored choice of a run; without one the one that `choose` makes at the last epoch, which is not stored.

    Args:
        require_ready: raises before a choice is made where that is in vain.

    Returns:
        The choice, and which of both it is, for `taken_text`.
    """
    stored = stored_choice(run, listener.say)
    if stored is not None:
        return stored.choice, "the stored choice"
    require_ready()
    choice = choose_runs([run], ChooseRequest(epochs="last"), listener)
    return choice, f"as {run.command('choose', '--epochs', 'last')} says; it is not stored"


def whitened_of(runs: Sequence[Run], request: ChooseRequest, listener: Listener) -> list[RankedLayer]:
    """The whitened layers of runs, where they were candidates of a stored choice, be it stale; else none."""
    if not any(map(_has_whitened, runs)):
        return []
    return list(dict.fromkeys(ranked for run in runs for ranked in _find_whitened(run, request, listener)))


def request_of(request: ChooseRequest) -> Mapping[str, Any]:
    """The options that decide what is selected, as they are stored."""
    options = {name: value for name, value in asdict(request).items() if name not in _SELECT_NOTHING}
    stored: dict[str, Any] = json.loads(json.dumps(options))
    return stored


def _list_changes(stored: StoredChoice, options: Mapping[str, Any], runs: Sequence[str], whitened: bool) -> list[str]:
    """What a stored choice was made with and another request is not."""
    changes = [
        _format_option(name, stored.request.get(name))
        for name in dict.fromkeys([*options, *stored.request])
        if options.get(name) != stored.request.get(name)
    ]
    if set(stored.states) != set(runs):
        changes.append(f"the runs {', '.join(stored.states)}" if len(stored.states) > 1 else "this run alone")
    if stored.whitened != whitened:
        changes.append("whitened layers" if stored.whitened else "no whitened layers")
    return changes


def _format_option(name: str, value: Any) -> str:
    """`--within 1`, `--layers c1,c2`, `no --cluster`."""
    if isinstance(value, int | float):
        return f"--{name} {value:g}"
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value or "")
    return f"--{name} {text}" if text else f"no --{name}"


def _has_whitened(run: Run) -> bool:
    """Whether whitened layers were candidates of the choice that a run keeps, which may be stale."""
    try:
        stored = read_choice(run)
    except DataError:
        return False
    return stored is not None and stored.whitened


def _find_whitened(run: Run, request: ChooseRequest, listener: Listener) -> list[RankedLayer]:
    """The whitened layers of a run that is chosen on test classes, or a line on why there are none."""
    record = run.read()
    epochs = epochs_to_choose_among(run, record, request.epochs)
    ranked = [epoch for epoch in run.ranked_epochs(_TEST) if epoch in epochs]
    try:
        if split_to_choose_on(run, record, epochs) == _TEST and ranked:
            layers = ranked_raw(run, _TEST)
            return whitened_layers(run, _TEST, layers, ranked[-1], cluster=request.cluster, budget=request.budget)
        reason = "none is ranked"
    except DataError as error:
        reason = str(error).rstrip(".")
    listener.say(f"{run.name}: whitened layers were candidates of the stored choice, and are not now: {reason}")
    return []


def _read_states(runs: Sequence[Run], metric: str) -> Mapping[str, RunState]:
    """The states before a choice; none where something is missing, which `choose_runs` tells."""
    try:
        return {run.name: run_state(run, metric) for run in runs}
    except DataError:
        return {}


def choose_model(frozen: FrozenRequest, request: ChooseRequest, listener: Listener) -> tuple[Run, Choice]:
    """Measure a model on images, as `layerprobe probe --model` does, and choose one of its layers.

    Candidates are all its layers with their default pools, raw and by `whitened_layers`: partially whitened, after
    learned whitening where there are classes enough, and within a budget of bytes if there is one. What is stored is
    not computed again.

    Returns:
        The model's run, and the choice.
    """
    run = frozen_run(frozen, listener)
    record = run.read()
    require_layers(record, request.layers)
    epochs_to_choose_among(run, record, request.epochs)
    split = split_to_choose_on(run, record, record.epochs)
    raw = ProbeRequest(
        layers=("*",), epochs=request.epochs, device=request.device, workers=frozen.workers, post=(NO_POST_PROCESSING,)
    )
    scores = probe(run, raw, listener)
    layers = list(dict.fromkeys(score.ranked for score in scores if score.value is not None))
    epoch = max((score.epoch for score in scores), default=0)
    further = _measure_whitened(run, split, layers, epoch, request, listener)
    return run, choose_once([run], request, listener, further or None)


def _measure_whitened(  # noqa: PLR0913 - the layers of a run, and how they are chosen
    run: Run, split: str, layers: Sequence[RankedLayer], epoch: int, request: ChooseRequest, listener: Listener
) -> list[RankedLayer]:
    """Probe whitened layers by maps that are fitted on train.

    Args:
        split: that is chosen on.
        layers: without post-processing.

    Returns:
        The layers instead, where they are to be searched within folds: those of a budget, and all where there is no
        train to fit on.
    """
    fitted_on = FITTED_ON if FITTED_ON in run.read().manifests else split
    further = whitened_layers(run, fitted_on, layers, epoch, cluster=request.cluster, budget=request.budget)
    if fitted_on != FITTED_ON or (split == FITTED_ON and request.budget is not None):
        return further
    for post_processing in dict.fromkeys(ranked.post_processing for ranked in further):
        expressions = tuple(str(ranked.layer) for ranked in further if ranked.post_processing == post_processing)
        by_map = ProbeRequest(layers=expressions, epochs=str(epoch), device=request.device, post=(post_processing,))
        probe(run, by_map, listener)
    return []


def _measure_within_budget(run: Run, request: ChooseRequest, listener: Listener) -> list[RankedLayer]:
    """As `_measure_whitened`, of the layers of a run that are ranked at its last candidate epoch."""
    record = run.read()
    epochs = epochs_to_choose_among(run, record, request.epochs)
    split = split_to_choose_on(run, record, epochs)
    ranked = [epoch for epoch in run.ranked_epochs(split) if epoch in epochs]
    if record.from_python or not ranked:
        return []
    return _measure_whitened(run, split, ranked_raw(run, split), ranked[-1], request, listener)


def require_layers(record: RunRecord, candidates: Sequence[str]) -> None:
    """Check that names of candidates mean layers of the network, whatever their pools and post-processing."""
    network_layers = () if record.network is None else record.network.layers
    for text in candidates:
        layer = re.split("[@/~]", text)[0]
        if not any(fnmatchcase(name, layer) for name in network_layers):
            raise UnknownNameError("layer", layer, network_layers)
