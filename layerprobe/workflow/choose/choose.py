"""choose: the stored ranks of runs -> which layer to ship, without looking at the test classes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np

from layerprobe.system.progress import Listener
from layerprobe.values.choice import Choice
from layerprobe.values.facts import CHOOSING, WITHIN_FOLDS, assumed_text, chosen_on_text, identical_text
from layerprobe.values.layers import RankedLayer, spoken_name
from layerprobe.values.scores import is_recall
from layerprobe.workflow.choose.candidates import (
    CandidateKey,
    CandidateRun,
    Group,
    group_by_experiment,
    open_candidates,
)
from layerprobe.workflow.choose.choosing import choose_among
from layerprobe.workflow.choose.indexed_layer import measure_indexes, require_test_classes
from layerprobe.workflow.choose.refits import Refits, Refitted
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.choose.run_candidates import candidate_set_of, complete_choice, group_of
from layerprobe.workflow.probe.reducing import FITTED_ON
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.facts import identical_facts
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import cross_fitted_as_seen, instead_of_test, unverified_weights
from layerprobe.workflow.run.units import folders_note_of_run

_MOST_NAMES = 4  # layers that a note names


def choose_runs(
    runs: Sequence[Run], request: ChooseRequest, listener: Listener, further: Iterable[RankedLayer] = ()
) -> Choice:
    """Choose a layer, with its epoch, pool and reduction, among all that is ranked of some runs.

    On validation classes; without these on training classes that the network has not seen; else on test classes,
    cross-fitted over 5 folds of them, with reductions fitted on the training classes if there are any. Where reductions
    are fitted on the classes that are chosen on, every candidate is searched within folds of these classes, by a fit on
    the others.

    Args:
        runs: at least one, each once. The trainings of one experiment are chosen among as one, by their mean.
        further: fitted candidates that are not stored, of a cross-fitted choice.

    Raises:
        DataError: a run has no classes to choose on, or no candidate is above chance.
        RecipeError: the metric is not a mean over queries, or runs cannot be compared.
        UnknownNameError: `layers` name no candidate.
    """
    return choose_candidates([open_candidates(run, request) for run in runs], request, listener, further)


def choose_candidates(
    candidate_runs: Sequence[CandidateRun],
    request: ChooseRequest,
    listener: Listener,
    further: Iterable[RankedLayer] = (),
) -> Choice:
    """As `choose_runs`, among the candidates of runs."""
    groups: Sequence[Group] = group_by_experiment(candidate_runs)
    first_run = groups[0].runs[0]
    require_test_classes(first_run.test, request.indexes)
    seed, device = int(first_run.record.seed), from_recipe.choose_device(request.device)
    notes = [note for group in groups for note in _note_origins(group)]
    refitted = Refitted(groups)
    further = list(further)
    if first_run.is_fitted_on or (further and FITTED_ON not in first_run.record.manifests):
        refitted = Refits(device, seed, request.metric, listener).search_within_folds(groups, further)
        groups = refitted.groups
        where = "" if first_run.split == "test" else f"{chosen_on_text(first_run.split)}: "
        notes += [f"{where}{WITHIN_FOLDS}"] * refitted.folded + list(refitted.notes)
    if first_run.split == "test" and not refitted.folded:
        notes.append("every fold searches the whole gallery")
    if request.cluster is None and (
        note := folders_note_of_run(first_run.run, first_run.choosing.last_split.epoch, first_run.split)
    ):
        notes.append(note)
    notes += [note for group in groups for note in _note_skipped(group)]
    finer, missing = None, list[str]()
    if is_recall(request.metric):
        refits = Refits(device, seed, request.metric, listener)
        finer = refits.measure_average_precisions(groups, refitted.folded, missing)
    candidates = candidate_set_of(groups, seed, folded=refitted.folded)
    choice = choose_among(
        replace(candidates, cluster=request.cluster, finer=finer, metric=request.metric),
        notes,
        within=request.within,
        seed=seed,
    )
    notes = [*dict.fromkeys(missing), *_note_identical(group_of(groups, choice.run), choice, folded=refitted.folded)]
    choice = replace(complete_choice(choice, groups), notes=(*choice.notes, *notes), basis=_explain_basis(first_run))
    if not request.indexes:
        return choice
    run = group_of(groups, choice.run).runs[0].run
    return replace(choice, indexes=measure_indexes(run, choice, request.indexes, device))


def _note_identical(group: Group, choice: Choice, *, folded: bool) -> list[str]:
    """The notes on identical images among those chosen on and tested on, with the choice's values without them.

    Of several trainings, and of a candidate that is measured anew, the number of queries alone.
    """
    run, notes = group.runs[0], []
    key = (choice.chosen.epoch, choice.chosen.ranked)
    for stored in (run.choosing, run.test):
        if stored is None or (identical := stored.identical()) is None:
            continue
        in_fifths = ", in fifths of the classes," * (folded and stored.last_split.split == run.split)
        name = f"{spoken_name(key[1])}{in_fifths}"
        values = stored.query_values[key].values if key in stored.query_values and len(group.runs) == 1 else None
        facts = identical_facts(name, values, identical, metric=choice.chosen.metric)
        if facts:
            text = identical_text(replace(facts, item=stored.item), len(identical))
            notes.append(f"{chosen_on_text(stored.last_split.split)}: {text}")
    return list(dict.fromkeys(filter(None, notes)))


def _note_origins(group: Group) -> list[str]:
    """Where the hits of a group come from."""
    first_run = group.runs[0]
    stored_values = [
        stored for candidate_run in group.runs for stored in (candidate_run.choosing, candidate_run.test) if stored
    ]
    notes = [note for stored in stored_values for note in stored.notes]
    if len(group.runs) > 1:
        notes.append(f"experiment {group.name}: mean of {group.run_names}")
    if first_run.fold is not None:
        notes.append("each class is scored by the runs that held it out")
        count = first_run.record.data["validation_folds"]
        if missing := [str(fold) for fold in range(count) if fold not in group.folds]:
            notes.append(f"missing of {count} folds: {', '.join(missing)}; name their runs to choose on every class")
    if first_run.split == "train":
        notes.append(f"{CHOOSING}: those of train, which the network has not seen at these epochs")
    if weights := unverified_weights(first_run.record):
        values_by_split = {first_run.split: first_run.choosing, "test": first_run.test}
        classes = {split: len(np.unique(stored.labels)) for split, stored in values_by_split.items() if stored}
        notes.append(assumed_text(weights, classes))
    if _is_seen(first_run):
        notes += instead_of_test(first_run.run, first_run.record)
    return notes


def _is_seen(candidate_run: CandidateRun) -> bool:
    """Whether a run is chosen on test classes because it has, or may have, seen its training classes."""
    return candidate_run.split == "test" and not candidate_run.is_fitted_on


def _explain_basis(candidate_run: CandidateRun) -> str:
    test_classes = len(np.unique(candidate_run.choosing.labels))
    return (
        cross_fitted_as_seen(candidate_run.run, candidate_run.record, test_classes) if _is_seen(candidate_run) else ""
    )


def _note_skipped(group: Group) -> list[str]:
    """What is not ranked everywhere."""
    shared_keys, split = set(group.keys), chosen_on_text(group.runs[0].split)
    partial = [key for candidate_run in group.runs for key in candidate_run.keys if key not in shared_keys]
    notes = []
    if partial:
        names = _list_names(partial, group.runs[0].run.name)
        notes.append(f"skipped: not ranked in every one of {group.run_names}: {names}")
    for candidate_run in group.runs:
        if keys := candidate_run.untested:
            run = candidate_run.run.name
            notes.append(f"skipped: ranked on {split} but not on test in {run}: {_list_names(keys, run)}")
    return notes


def _list_names(keys: Collection[CandidateKey], run: str) -> str:
    epochs = {epoch for epoch, _ in keys}
    names = list(dict.fromkeys(f"{run}#{epoch}:{ranked}" if len(epochs) > 1 else str(ranked) for epoch, ranked in keys))
    suffix = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + suffix
