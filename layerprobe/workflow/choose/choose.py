"""choose: the stored ranks of runs -> which layer to ship, without looking at the test classes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from layerprobe.reductions.chain import parse_chain
from layerprobe.statistics.choice import folds_of
from layerprobe.statistics.units import UnitSums, mean_of, stack_means
from layerprobe.system.errors import BusyError, DataError, RecipeError
from layerprobe.system.progress import Listener
from layerprobe.values.choice import FOLDS, Candidate, Choice, Price, Ship, TruncationSavings, replace_parts
from layerprobe.values.facts import CHOOSING, WITHIN_FOLDS, assumed_text, chosen_on_text, identical_text
from layerprobe.values.layers import NO_REDUCTION, LayerKey, RankedLayer, members_of, spoken_name
from layerprobe.values.records import RunRecord
from layerprobe.values.scores import SPLITS, Score, Subject, is_recall, shared_notes
from layerprobe.workflow.choose.candidates import (
    CandidateKey,
    CandidateRun,
    Group,
    candidates_of,
    group_by_experiment,
    group_of,
    open_candidates,
)
from layerprobe.workflow.choose.choosing import Baseline, CandidateSet, choose_among, list_names
from layerprobe.workflow.choose.indexed_layer import measure_indexes
from layerprobe.workflow.choose.refits import Refits
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.probe.reducing import FITTED_ON
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.facts import identical_facts
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import cross_fitted_as_seen, instead_of_test, unverified_weights
from layerprobe.workflow.run.units import folders_note_of_run


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
    first_run, further = groups[0].runs[0], list(further)
    if request.indexes and first_run.test is None:
        message = "--index shows recall on test, and there are no test classes"
        raise RecipeError(message, fix="Leave it out, or give a split test")
    seed, device = int(first_run.record.seed), from_recipe.choose_device(request.device)
    refits = Refits(device, seed, request.metric, listener)
    notes, folded = [note for group in groups for note in _note_origins(group)], False
    if first_run.is_fitted_on or (further and FITTED_ON not in first_run.record.manifests):
        groups, folded, left_out = refits.search_within_folds(groups, further)
        where = "" if first_run.split == "test" else f"{chosen_on_text(first_run.split)}: "
        notes += [f"{where}{WITHIN_FOLDS}"] * folded + left_out
    if first_run.split == "test" and not folded:
        notes.append("every fold searches the whole gallery")
    if request.cluster is None:
        folders = folders_note_of_run(first_run.run, first_run.choosing.last_split.epoch, first_run.split)
        notes += [] if folders is None else [folders]
    notes += [note for group in groups for note in _note_skipped(group)]
    candidates, unmeasured = candidate_set_of(groups, request, seed, folded=folded), list[str]()
    if is_recall(request.metric):
        candidates = replace(candidates, finer=refits.measure_average_precisions(groups, folded, unmeasured))
    choice = choose_among(candidates, notes, within=request.within, seed=seed)
    group, basis = group_of(groups, choice.run), ""
    if first_run.chooses_on_test_as_seen:
        basis = cross_fitted_as_seen(first_run.run, first_run.record, first_run.choosing.classes)
    notes = [*dict.fromkeys(unmeasured), *_note_identical(group, choice, folded=folded)]
    choice = replace(complete_choice(choice, groups), notes=(*choice.notes, *notes), basis=basis)
    if not request.indexes:
        return choice
    return replace(choice, indexes=measure_indexes(group.runs[0].run, choice, request.indexes, device))


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


def candidate_set_of(
    groups: Sequence[Group], request: ChooseRequest, seed: int, *, folded: bool = False
) -> CandidateSet:
    """The candidates of groups of runs, in the order of `candidates_of`; cross-fitted if test classes are chosen on.

    Args:
        folded: whether each fold of classes was searched in itself.
    """
    first_run, rows = groups[0].runs[0], candidates_of(groups)
    choosing, test = first_run.choosing, first_run.test
    names = {group: group.name if len(groups) > 1 else "" for group in groups}
    described = {group: _describe_candidates(group, name) for group, name in names.items()}

    def subject_of(candidate: Candidate, split: str) -> Subject:
        """What is scored of a candidate; without a seed if its group has several trainings."""
        group = group_of(groups, candidate.run)
        record, key = group.runs[0].record, (candidate.epoch or 0, candidate.ranked)
        stored = [run.choosing if split == first_run.split else run.test for run in group.runs]
        notes_by_key = [values.score_notes for values in stored if values is not None]
        notes = shared_notes([by_key.get(key) or shared_notes(by_key.values() or [()]) for by_key in notes_by_key])
        seed = record.seed if len(group.runs) == 1 else None
        return Subject(group.name, str(record.experiment), seed, key[0], split, candidate.ranked, notes)

    def sums(sums_of: Callable[[Group, Sequence[CandidateKey]], UnitSums]) -> UnitSums:
        return stack_means([sums_of(group, [*group.keys, *group.embeddings]) for group in groups])

    values = sums(Group.choosing_sums)
    crossed = first_run.split == "test"
    return CandidateSet(
        candidates=[described[group][key] for group, key in rows],
        split=first_run.split,
        subject_of=subject_of,
        choosing=values,
        above_chance=sums(Group.above_chance),
        identities=[_identify(group, key) for group, key in rows],
        among_half=np.array([group.among_half(key) for group, key in rows]),
        classes=choosing.classes // (FOLDS if folded else 1),
        gallery_classes=(choosing if test is None else test).classes,
        test=None if crossed or test is None else sums(Group.test_sums),
        folds=folds_of(range(values.sums.shape[1]), seed=seed) if crossed else None,
        baselines={
            names[group]: baseline
            for group in groups
            if (baseline := _find_baseline(group, described[group])) is not None
        },
        only_compared=frozenset(index for index, (group, key) in enumerate(rows) if key in group.embeddings),
        cluster=request.cluster,
        within_folds=folded,
        metric=request.metric,
    )


def _describe_candidates(group: Group, name: str) -> dict[CandidateKey, Candidate]:
    """The candidates of a group and its embeddings, with their dimensions from all feature files of the first run.

    Args:
        name: of the group if several compete; else empty.
    """
    run, order = group.runs[0].run, group.runs[0].record.layer_order
    dims: dict[LayerKey, int] = {}
    for epoch, split in product(run.read().epochs, SPLITS):
        if run.has_features(epoch, split):
            with contextlib.suppress(DataError, BusyError):
                dims |= {layer: dim for layer, (dim, _) in run.feature_head(epoch, split).columns.items()}
    candidates = {}
    for epoch, ranked in filter(None, dict.fromkeys([*group.keys, *group.embeddings, group.baseline])):
        members = members_of(ranked.layer, dims)
        if not members:
            fix = f"Run {run.command('probe', '--layers', str(ranked.layer))}"
            raise DataError(f"the features of {ranked.layer} are gone", file=run.folder, fix=fix)
        dim = parse_chain(ranked.reduction).dim(sum(dims[member] for member in members))
        # The position of A+B is that of the last of them.
        names = [ranked.layer.layer] if ranked.layer.layer in order else ranked.layer.layer.split("+")
        position = max((order.index(layer) for layer in names if layer in order), default=len(order))
        candidates[epoch, ranked] = Candidate(epoch, ranked, dim, position, name)
    return candidates


def _find_baseline(group: Group, described: Mapping[CandidateKey, Candidate]) -> Baseline | None:
    """The embedding of a group; None unless all its runs have it at one epoch."""
    key = group.baseline
    if key is None:
        return None
    whole_galleries = [run.whole_gallery.sums([key]) for run in group.runs if run.whole_gallery is not None]
    return Baseline(described[key], group.test_sums([key]), mean_of(whole_galleries) if whole_galleries else None)


def _identify(group: Group, key: CandidateKey) -> tuple[Hashable, ...]:
    """Equal for candidates that rank every query alike: those of their ranks, or of the layer before a new fit."""
    epoch, ranked = key
    raw, identities = (epoch, replace(ranked, reduction=NO_REDUCTION)), list[Hashable]()
    for candidate_run in group.runs:
        rank_hashes = candidate_run.choosing.identities
        identities.append(rank_hashes.get(key) or (rank_hashes.get(raw) or key, ranked.reduction))
    return tuple(identities)


def complete_choice(choice: Choice, groups: Sequence[Group]) -> Choice:
    """The choice with the number of trainings as the n of its scores, as in every mean over seeds, and with costs."""

    def add_trainings(score: Score) -> Score:
        trainings = len(group_of(groups, score.run).runs)
        return score if trainings == 1 else replace(score, n=trainings)

    def price(ship: Ship) -> Price:
        cut = cut_after(record, ship.ranked.layer)
        return Price(ship.bytes_per_image, None if cut is None or cut.operations is None else 1 - cut.operations)

    record, embedding = group_of(groups, choice.run).runs[0].record, choice.embedding
    completed = replace(
        choice,
        embedding=embedding and replace(embedding, price=price(embedding.layer)),
        price=price(choice.ship),
        preferred_price=price(choice.preferred),
        cut=cut_after(record, choice.ship.ranked.layer),
    )
    return replace_parts(completed, Score, add_trainings)


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
    parts = [stored for candidate_run in group.runs for stored in (candidate_run.choosing, candidate_run.test)]
    notes = [note for stored in parts if stored is not None for note in stored.notes]
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
        stored_by_split = {first_run.split: first_run.choosing, "test": first_run.test}
        classes = {split: stored.classes for split, stored in stored_by_split.items() if stored is not None}
        notes.append(assumed_text(weights, classes))
    if first_run.chooses_on_test_as_seen:
        notes += instead_of_test(first_run.run, first_run.record)
    return notes


def _note_skipped(group: Group) -> list[str]:
    """What is not ranked everywhere."""
    shared_keys, split = set(group.keys), chosen_on_text(group.runs[0].split)
    notes = []
    if partial := [key for candidate_run in group.runs for key in candidate_run.keys if key not in shared_keys]:
        names = _list_candidates(partial, group.runs[0].run.name)
        notes.append(f"skipped: not ranked in every one of {group.run_names}: {names}")
    for candidate_run in group.runs:
        run, untested = candidate_run.run.name, candidate_run.candidates.difference(candidate_run.stored_keys)
        if keys := [key for key in candidate_run.choosing.query_values if key in untested]:
            notes.append(f"skipped: ranked on {split} but not on test in {run}: {_list_candidates(keys, run)}")
    return notes


def _list_candidates(keys: Sequence[CandidateKey], run: str) -> str:
    has_epochs = len({epoch for epoch, _ in keys}) > 1
    return list_names(
        list(dict.fromkeys(f"{run}#{epoch}:{ranked}" if has_epochs else str(ranked) for epoch, ranked in keys))
    )
