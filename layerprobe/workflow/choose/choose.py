"""choose: the stored ranks of runs -> which layer to use, without looking at the test classes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from layerprobe.post_processing.chain import parse_chain
from layerprobe.statistics.choice import folds_of
from layerprobe.statistics.units import mean_of
from layerprobe.system.computing import with_float64
from layerprobe.system.errors import BusyError, DataError, RecipeError
from layerprobe.system.progress import Listener
from layerprobe.values.choice import FOLDS, Choice, TruncationSavings
from layerprobe.values.facts import SELECTION, WITHIN_FOLDS, assumed_text, chosen_on_text, identical_text
from layerprobe.values.layers import NO_POST_PROCESSING, LayerKey, RankedLayer, members_of, spoken_name
from layerprobe.values.records import RunRecord
from layerprobe.values.scores import Subject, is_recall, shared_notes
from layerprobe.workflow.choose.candidates import (
    CandidateKey,
    CandidateRun,
    StoredValues,
    group_by_experiment,
    mean_over_trainings,
    open_candidates,
    run_names,
    runs_by_fold,
    shared_keys,
)
from layerprobe.workflow.choose.choose_among import Candidate, Candidates, choose_among, list_names
from layerprobe.workflow.choose.indexed_layer import measure_indexes
from layerprobe.workflow.choose.refits import Refits
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.probe.chains import FITTED_ON
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.facts import identical_facts
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import cross_fitted_as_seen, instead_of_test, unverified_weights
from layerprobe.workflow.run.units import folders_note_of_run


def choose_runs(
    runs: Sequence[Run], request: ChooseRequest, listener: Listener, further: Iterable[RankedLayer] = ()
) -> Choice:
    """Choose a layer, with its epoch, pool and post-processing, among all that is ranked of some runs.

    On validation classes; without these on training classes that the network has not seen; else on test classes,
    cross-fitted over 5 folds of them, with post-processing fitted on the training classes if there are any. Where
    post-processing are fitted on the classes that are chosen on, every candidate is searched within folds of these
    classes, by a fit on the others.

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
    experiments: Mapping[str, Sequence[CandidateRun]] = group_by_experiment(candidate_runs)
    first_run, further = candidate_runs[0], list(further)
    if request.indexes and first_run.test is None:
        message = "--index shows recall on test, and there are no test classes"
        raise RecipeError(message, fix="Leave it out, or give a split test")
    seed, device = int(first_run.record.seed), with_float64(from_recipe.choose_device(request.device))
    refits = Refits(device, seed, request.metric, listener, request.memory)
    notes = [note for name, trainings in experiments.items() for note in _note_origins(name, trainings)]
    folded = False
    if first_run.is_fitted_on or (further and FITTED_ON not in first_run.record.manifests):
        experiments, folded, lost = refits.search_within_folds(experiments, further)
        if lost and not all(map(shared_keys, experiments.values())):
            fix = f"Run {first_run.run.command('probe')}, which stores features to fit on"
            more = f"; and {len(lost) - 1} more" if len(lost) > 1 else ""
            raise DataError(f"no layer can be chosen: {lost[0]}{more}", file=first_run.run.folder, fix=fix)
        where = "" if first_run.split == "test" else f"{chosen_on_text(first_run.split)}: "
        notes += [f"{where}{WITHIN_FOLDS}"] * folded + lost
    if first_run.split == "test" and not folded:
        notes.append("every fold searches the whole gallery")
    if request.cluster is None:
        folders = folders_note_of_run(first_run.run, first_run.selection.last_split.epoch, first_run.split)
        notes += [] if folders is None else [folders]
    notes += [note for trainings in experiments.values() for note in _note_skipped(trainings)]
    candidates, unmeasured = candidates_of(experiments, request, folded=folded), list[str]()
    if request.budget is not None:
        candidates = _keep_within(request.budget, candidates, notes)
    if is_recall(request.metric):
        average_precisions = refits.measure_average_precisions(experiments, folded, unmeasured)
        candidates = replace(candidates, average_precisions=average_precisions)
    candidates = replace(
        candidates,
        permuted=refits.measure_permuted(experiments, folded),
        labelled_classes=_count_labelled_classes(first_run),
    )
    choice = choose_among(candidates, notes, within=request.within, seed=seed)
    trainings, basis = experiments[choice.run], ""
    if first_run.chooses_on_test_as_seen:
        basis = cross_fitted_as_seen(first_run.run, first_run.record, first_run.selection.classes)
    notes = [*dict.fromkeys(unmeasured), *_note_identical(trainings, choice, folded=folded)]
    choice = replace(choice, notes=(*choice.notes, *notes), basis=basis)
    if not request.indexes:
        return choice
    return replace(choice, indexes=measure_indexes(trainings[0].run, choice, request.indexes, device))


def _keep_within(budget: int, candidates: Candidates, notes: list[str]) -> Candidates:
    """The candidates of at most so many bytes an image; a note says how many take more.

    Raises:
        RecipeError: all take more.
    """
    sizes = [candidate.layer.bytes_per_image for candidate in candidates.competing]
    if min(sizes) > budget:
        message = f"budget {budget:,}: every candidate takes more bytes an image, {min(sizes):,} at least"
        fix = f"Probe codes or maps, as in layerprobe probe --post layernorm+binary,l2+whiten:{budget}:0.5+int8"
        raise RecipeError(message, fix=fix)
    competing = [x for x, size in zip(candidates.competing, sizes, strict=True) if size <= budget]
    over = [x for x, size in zip(candidates.competing, sizes, strict=True) if size > budget]
    if over:
        notes.append(f"of more than {budget:,} bytes an image: {len(over):,} candidates, which are left out")
    return replace(candidates, competing=competing, compared=[*candidates.compared, *over], budget=budget)


def _count_labelled_classes(candidate_run: CandidateRun) -> int:
    """The number of classes that maps of a run are fitted with; 0 where their features are gone."""
    if candidate_run.is_fitted_on:
        return candidate_run.selection.classes
    try:
        epoch = candidate_run.selection.last_split.epoch
        return len(np.unique(candidate_run.run.feature_head(epoch, FITTED_ON).labels))
    except (DataError, BusyError):
        return 0


def cut_after(record: RunRecord, layer: LayerKey) -> TruncationSavings | None:
    """What comes after a layer; of `A+B` after the last of them.

    Returns:
        None if run.json does not say it: of a run from Python, or of an ensemble.
    """
    cuts = record.network.cuts if record.network else {}
    names = [layer.layer] if layer.layer in cuts else layer.layer.split("+")
    layer_cuts = [cuts[name] for name in names if name in cuts]
    if len(layer_cuts) < len(names):
        return None
    parameters, operations = zip(*layer_cuts, strict=True)
    return TruncationSavings(min(parameters), None if None in operations else min(operations))


def candidates_of(
    experiments: Mapping[str, Sequence[CandidateRun]], request: ChooseRequest, *, folded: bool = False
) -> Candidates:
    """The candidates of runs by experiment; cross-fitted if test classes are chosen on.

    Args:
        folded: whether each fold of classes was searched in itself.
    """
    first_run = next(iter(experiments.values()))[0]
    selection, gallery = first_run.selection, first_run.selection if first_run.test is None else first_run.test
    competing, compared, embeddings = [], [], {}
    for name, trainings in experiments.items():
        keys = shared_keys(trainings)
        shared = set.intersection(*(set(candidate_run.embeddings) for candidate_run in trainings))
        compared_keys = [key for key in trainings[0].embeddings if key in shared]
        baselines = {candidate_run.baseline for candidate_run in trainings}
        embedding = baselines.pop() if len(baselines) == 1 else None  # else it is not that of all trainings
        described = _describe_candidates(name, trainings, [*keys, *compared_keys], embedding)
        competing += [described[key] for key in keys]
        compared += [described[key] for key in compared_keys]
        if embedding is not None:
            embeddings[name] = described[embedding]
    candidates = Candidates(
        competing,
        split=first_run.split,
        classes=selection.classes // (FOLDS if folded else 1),
        gallery_classes=gallery.classes,
        compared=compared,
        embeddings=embeddings,
        cluster=request.cluster,
        within_folds=folded,
        metric=request.metric,
    )
    if first_run.split != "test":
        return candidates
    return replace(candidates, folds=folds_of(selection.units, seed=int(first_run.record.seed)))


def _describe_candidates(
    name: str, trainings: Sequence[CandidateRun], keys: Sequence[CandidateKey], embedding: CandidateKey | None
) -> dict[CandidateKey, Candidate]:
    """Candidates of an experiment, and its embedding, with dimensions from all feature files of the first run.

    Args:
        keys: of what is measured on the classes that are chosen on, the embedding perhaps among them.
    """
    run, record, split = trainings[0].run, trainings[0].record, trainings[0].split
    described = list(dict.fromkeys([*keys, *([] if embedding is None else [embedding])]))
    dims = _read_dims(run, [ranked for _, ranked in described])
    selection = mean_over_trainings(trainings, lambda candidate_run: candidate_run.selection.sums(keys))
    above_chance = mean_over_trainings(trainings, lambda candidate_run: candidate_run.selection.above_chance(keys))
    tests = [candidate_run.test for candidate_run in trainings if candidate_run.test is not None]
    test = mean_of([stored.sums(described) for stored in tests]) if tests else None
    galleries = [candidate_run.whole_gallery for candidate_run in trainings if candidate_run.whole_gallery is not None]
    candidates = {}
    for index, (key, dim) in enumerate(zip(described, dims, strict=True)):
        (epoch, ranked), is_chosen_on = key, index < len(keys)
        notes = _notes_of_scores([candidate_run.selection for candidate_run in trainings], key)
        seed = record.seed if len(trainings) == 1 else None
        candidates[key] = Candidate(
            Subject(name, str(record.experiment), seed, epoch, split, ranked, notes),
            dim,
            _find_position(ranked.layer, record.layer_order),
            selection[[index]] if is_chosen_on else None,
            above_chance[[index]] if is_chosen_on else None,
            _average_among_half(trainings, key) if is_chosen_on else np.nan,
            _identify(trainings, key),
            None if test is None else test[[index]],
            _notes_of_scores(tests, key),
            mean_of([stored.sums([key]) for stored in galleries]) if galleries and key == embedding else None,
            cut_after(record, ranked.layer),
            len(trainings),
        )
    return candidates


def _read_dims(run: Run, layers: Sequence[RankedLayer]) -> list[int]:
    """The dimensions of layers, by those of the stored features."""
    dims, post_processed = run.layer_dims(), []
    for ranked in layers:
        members = members_of(ranked.layer, dims)
        if not members:
            fix = f"Run {run.command('probe', '--layers', str(ranked.layer))}"
            raise DataError(f"the features of {ranked.layer} are gone", file=run.folder, fix=fix)
        post_processed.append(parse_chain(ranked.post_processing).dim(sum(dims[member] for member in members)))
    return post_processed


def _notes_of_scores(parts: Sequence[StoredValues], key: CandidateKey) -> tuple[str, ...]:
    """The notes of a candidate's scores that its trainings share; of one without a score those of all scores."""
    return shared_notes([stored.score_notes.get(key) or stored.shared_notes for stored in parts] or [()])


def _find_position(layer: LayerKey, order: Sequence[str]) -> int:
    """The position of a layer in the network; of `A+B` that of the last of them."""
    names = [layer.layer] if layer.layer in order else layer.layer.split("+")
    return max((order.index(name) for name in names if name in order), default=len(order))


def _average_among_half(trainings: Sequence[CandidateRun], key: CandidateKey) -> float:
    """Mean Recall@K of a candidate among half of the negatives, where it is chosen on; NaN if unknown."""
    values = [candidate_run.selection.query_values[key].among_half for candidate_run in trainings]
    return float(np.mean([np.nan if hits is None else np.nanmean(hits) for hits in values]))


def _identify(trainings: Sequence[CandidateRun], key: CandidateKey) -> tuple[Hashable, ...]:
    """Equal for candidates that rank every query alike: those of their ranks, or of the layer before a new fit."""
    epoch, ranked = key
    raw, identities = (epoch, replace(ranked, post_processing=NO_POST_PROCESSING)), list[Hashable]()
    for candidate_run in trainings:
        rank_hashes = candidate_run.selection.identities
        identities.append(rank_hashes.get(key) or (rank_hashes.get(raw) or key, ranked.post_processing))
    return tuple(identities)


def _note_identical(trainings: Sequence[CandidateRun], choice: Choice, *, folded: bool) -> list[str]:
    """The notes on identical images among those chosen on and tested on, with the choice's values without them.

    Of several trainings, and of a candidate that is measured anew, the number of queries alone.
    """
    run, notes = trainings[0], []
    key = (choice.chosen.epoch, choice.chosen.ranked)
    for stored in (run.selection, run.test):
        if stored is None or (identical := stored.identical()) is None:
            continue
        in_fifths = ", in fifths of the classes," * (folded and stored.last_split.split == run.split)
        name = f"{spoken_name(key[1])}{in_fifths}"
        values = stored.query_values[key].values if key in stored.query_values and len(trainings) == 1 else None
        facts = identical_facts(name, values, identical, metric=choice.chosen.metric)
        if facts:
            text = identical_text(replace(facts, item=stored.item), len(identical))
            notes.append(f"{chosen_on_text(stored.last_split.split)}: {text}")
    return list(dict.fromkeys(filter(None, notes)))


def _note_origins(name: str, trainings: Sequence[CandidateRun]) -> list[str]:
    """Where the hits of an experiment's trainings come from."""
    first_run = trainings[0]
    parts = [stored for candidate_run in trainings for stored in (candidate_run.selection, candidate_run.test)]
    notes = [note for stored in parts if stored is not None for note in stored.notes]
    if len(trainings) > 1:
        notes.append(f"experiment {name}: mean of {run_names(trainings)}")
    if first_run.fold is not None:
        notes.append("each class is scored by the runs that held it out")
        count = first_run.record.data["validation_folds"]
        folds = runs_by_fold(trainings)
        if missing := [str(fold) for fold in range(count) if fold not in folds]:
            notes.append(f"missing of {count} folds: {', '.join(missing)}; name their runs to choose on every class")
    if first_run.split == "train":
        notes.append(f"{SELECTION}: those of train, which the network has not seen at these epochs")
    if weights := unverified_weights(first_run.record):
        stored_by_split = {first_run.split: first_run.selection, "test": first_run.test}
        classes = {split: stored.classes for split, stored in stored_by_split.items() if stored is not None}
        notes.append(assumed_text(weights, classes))
    if first_run.chooses_on_test_as_seen:
        notes += instead_of_test(first_run.run, first_run.record)
    return notes


def _note_skipped(trainings: Sequence[CandidateRun]) -> list[str]:
    """What is not ranked everywhere."""
    shared, split = set(shared_keys(trainings)), chosen_on_text(trainings[0].split)
    notes = []
    if partial := [key for candidate_run in trainings for key in candidate_run.keys if key not in shared]:
        names = _list_candidates(partial, trainings[0].run.name)
        notes.append(f"skipped: not ranked in every one of {run_names(trainings)}: {names}")
    for candidate_run in trainings:
        run, untested = candidate_run.run.name, candidate_run.candidates.difference(candidate_run.stored_keys)
        if keys := [key for key in candidate_run.selection.query_values if key in untested]:
            notes.append(f"skipped: ranked on {split} but not on test in {run}: {_list_candidates(keys, run)}")
    return notes


def _list_candidates(keys: Sequence[CandidateKey], run: str) -> str:
    has_epochs = len({epoch for epoch, _ in keys}) > 1
    return list_names(
        list(dict.fromkeys(f"{run}#{epoch}:{ranked}" if has_epochs else str(ranked) for epoch, ranked in keys))
    )
