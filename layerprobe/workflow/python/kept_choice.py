"""The choice of a result of `layerprobe.probe`, as its run keeps it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from layerprobe.values.choice import Choice, Ship
from layerprobe.values.layers import NO_REDUCTION, RankedLayer
from layerprobe.values.records import RunRecord
from layerprobe.values.scores import Score
from layerprobe.workflow.choose.choose_once import request_of
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.python.probe_inputs import EPOCH, SEED
from layerprobe.workflow.python.stored_probe import MemoryProbe
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.stored_choice import RULE, StoredChoice, run_state, store_choice


def keep_choice(measurement: MemoryProbe, choice: Choice, request: ChooseRequest, *, seen: bool, seed: int) -> None:
    """Store the choice of a result in the run that keeps it; nothing where none does.

    A run of more layers or reductions than the result has keeps the names of the layers that were candidates.
    """
    run = measurement.features.run
    if not (measurement.cached and run.exists()):
        return
    ranked_layers = _list_ranked_layers(measurement.results.scores, choice.chosen.split)
    single = {x for x in ranked_layers if x.reduction == NO_REDUCTION and "+" not in x.layer.layer}
    if not request.layers and single != set(_list_ranked_layers(run.scores(), choice.chosen.split)):
        request = replace(request, layers=tuple(str(x.layer) for x in ranked_layers if x in single))
    options = {**request_of(request), **({} if seen else {"seen": seen}), **({} if seed == SEED else {"seed": seed})}
    states = {run.name: run_state(run, request.metric)}
    stored = StoredChoice(RULE, options, True, states, _assign_to_run(choice, run, run.read()))
    store_choice(stored, [run], lambda text: warnings.warn(text, stacklevel=4))


def _list_ranked_layers(scores: Sequence[Score], split: str) -> dict[RankedLayer, None]:
    return dict.fromkeys(score.ranked for score in scores if score.split == split)


def _assign_to_run(value: Any, run: Run, record: RunRecord) -> Any:
    """A choice of features as one of a run: with its name, experiment, seed and epoch."""
    if isinstance(value, Ship):
        return replace(value, epoch=EPOCH)
    if isinstance(value, Score):
        return replace(value, run=run.name, experiment=record.experiment, seed=record.seed)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    names = [field.name for field in fields(value)]
    changed = replace(value, **{name: _assign_to_run(getattr(value, name), run, record) for name in names})
    return replace(changed, run=run.name) if isinstance(changed, Choice) else changed
