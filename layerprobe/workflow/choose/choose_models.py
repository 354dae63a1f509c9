"""Several models on the same images -> the choice of each, and which of them differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from layerprobe.statistics.all_pairs import groups_of, significant_pairs
from layerprobe.statistics.units import UnitSums, stack_means
from layerprobe.system.errors import DataError, InterruptedRun, LayerprobeError, RecipeError
from layerprobe.system.progress import Listener
from layerprobe.values.choice import Choice, UnitValues
from layerprobe.values.models import ChosenModel, LeftOut, ModelTable, model_name
from layerprobe.values.records import RunRecord
from layerprobe.workflow.choose.choose_once import choose_model
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.run.references import RankedSplit, open_ranked_split, require_same_queries
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import start_of, unverified_weights
from layerprobe.workflow.train.frozen_request import FrozenRequest

_TEST = "test"


def choose_models(requests: Sequence[FrozenRequest], request: ChooseRequest, listener: Listener) -> ModelTable:
    """Choose a layer of each of several models, as `choose_model` does, and compare what is preferred of each.

    A model that fails is left out, and the others are measured.

    Raises:
        DataError: every model is left out.
    """
    chosen, left_out = list[tuple[Run, Choice]](), list[LeftOut]()
    for number, frozen in enumerate(requests, 1):
        name = model_name(frozen.model, frozen.weights)
        listener.say(f"model {number} of {len(requests)}: {name}")
        try:
            run, choice = choose_model(frozen, request, listener)
            if run.name in (other.name for other, _ in chosen):
                raise RecipeError(f"it is {run.name}, which is compared already")
        except InterruptedRun:
            raise
        # A model's library, or the user's file that builds it, raises whatever it does, also for want of memory.
        except Exception as error:
            text = str(error) if isinstance(error, LayerprobeError) else f"{type(error).__name__}: {error}"
            left_out.append(LeftOut(name, text))
            listener.say(f"{name} is left out: {text}")
        else:
            chosen.append((run, choice))
    return compare_models(chosen, left_out)


def compare_models(chosen: Sequence[tuple[Run, Choice]], left_out: Sequence[LeftOut] = ()) -> ModelTable:
    """Compare what is preferred of several runs, by its values on test.

    A run whose choice was measured on other queries than that of the first one is left out.

    Args:
        chosen: runs, each once, with the choice of each alone.
        left_out: models that have no choice.

    Raises:
        DataError: every model is left out.
    """
    names = _names_of([run for run, _ in chosen])
    rows, left_out, reference, assumed = list[tuple[ChosenModel, UnitValues]](), list(left_out), None, list[str]()
    for name, (run, choice) in zip(names, chosen, strict=True):
        try:
            ranked_split, values = _measured_on_test(run, choice)
            reference = reference or (ranked_split, choice)
            _require_alike(reference, (ranked_split, choice))
            rows.append((_describe(name, ranked_split.record, choice), values))
            is_random = start_of(ranked_split.record) == "untrained"
            assumed += [name] * (bool(unverified_weights(ranked_split.record)) and not is_random)
        except LayerprobeError as error:
            left_out.append(LeftOut(name, str(error)))
    if not rows or reference is None:
        count = f"any of {len(left_out)} models; the first" if len(left_out) > 1 else "a model"
        raise DataError(f"no layer is chosen of {count}: {left_out[0].name}: {left_out[0].reason.rstrip('.')}")
    rows.sort(key=lambda row: (-(row[0].test.value or 0.0), row[0].layer.bytes_per_image))
    cells = stack_means([UnitSums(np.array([x.sums]), np.array([x.counts])) for _, x in rows])
    pairs = significant_pairs(cells, seed=int(reference[0].record.seed))
    groups = [] if pairs is None else groups_of(len(rows), pairs)
    models = [
        replace(model, groups=tuple(group for group, places in enumerate(groups) if place in places))
        for place, (model, _) in enumerate(rows)
    ]
    choice = reference[1]
    return ModelTable(
        tuple(models),
        tuple(left_out),
        choice.chosen.metric,
        choice.units,
        cells.units,
        choice.within_folds,
        tuple(assumed),
    )


def _names_of(runs: Sequence[Run]) -> list[str]:
    """The models of runs; the run's name where several have the same."""
    nets = [run.read().net for run in runs]
    names = [model_name(str(net.get("name")), str(net.get("weights", "none"))) for net in nets]
    return [run.name if names.count(name) > 1 else name for run, name in zip(runs, names, strict=True)]


def _measured_on_test(run: Run, choice: Choice) -> tuple[RankedSplit, UnitValues]:
    """The test split of a run, and the values of its preferred candidate there."""
    if choice.test_values is None:
        raise DataError(f"{run.name} has no value on test", fix="Give test classes, and layers with finite features")
    return open_ranked_split(run, choice.preferred.epoch, _TEST), choice.test_values


def _require_alike(a: tuple[RankedSplit, Choice], b: tuple[RankedSplit, Choice]) -> None:
    """Check that two choices are measured on the same queries, searched alike, by one metric."""
    (split_a, choice_a), (split_b, choice_b) = a, b
    require_same_queries(split_a, split_b)
    names, fix = f"{split_a.run.name} and {split_b.run.name}", "Choose both by one command"
    if choice_a.chosen.metric != choice_b.chosen.metric:
        raise RecipeError(f"{names} are chosen by {choice_a.chosen.metric} and {choice_b.chosen.metric}", fix=fix)
    if (choice_a.within_folds, choice_a.units) != (choice_b.within_folds, choice_b.units):
        raise RecipeError(f"{names} are searched, or resampled, in different units", fix=fix)
    values_a, values_b = choice_a.test_values, choice_b.test_values
    if values_a is not None and values_b is not None and values_a.counts != values_b.counts:
        raise RecipeError(f"{names} have different numbers of queries in their classes", fix=fix)


def _describe(name: str, record: RunRecord, choice: Choice) -> ChosenModel:
    """What is preferred of a model, without its groups."""
    if choice.preferred_test is None:
        raise DataError(f"{choice.run} has no value on test")
    share = choice.preferred_cost.share_of_multiply_adds
    total = None if record.network is None else record.network.multiply_adds
    return ChosenModel(
        name,
        choice.run,
        choice.preferred,
        choice.preferred_test,
        None if choice.embedding is None else choice.embedding.test,
        share,
        None if share is None or total is None else round(share * total),
        choice.advice,
        choice.chosen.split,
        choice.classes,
    )
