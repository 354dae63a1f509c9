"""A search: each method has as many trials, validation classes select one of them, and it is trained anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from layerprobe.system.errors import DataError, RecipeError
from layerprobe.system.progress import Listener
from layerprobe.system.wording import command_text
from layerprobe.values.costs import Estimate
from layerprobe.values.sections import Train
from layerprobe.workflow.run.runs import named_run
from layerprobe.workflow.study.over import Over, over_trainings
from layerprobe.workflow.study.plan import (
    Cell,
    Roots,
    StudyTraining,
    lacking_data,
    plan_training,
    roots_of,
    scores_on,
)
from layerprobe.workflow.study.request import StudyRequest
from layerprobe.workflow.study.search_space import SAMPLERS, Sampler, Search
from layerprobe.workflow.study.selection import Curve, Selected, regret, select
from layerprobe.workflow.study.study import estimate_cells, train_missing
from layerprobe.workflow.study.study_file import Study, Variant
from layerprobe.workflow.train.train import DIVERGED, is_done

_WORST = 0.0  # of a share
_CALM = "train.learning_rate=1e-9"
_HELD_OUT = "data.validation_classes"


@dataclass(frozen=True)
class Trial:
    """The values that were drawn for a trial, and its training on the classes that are not held out."""

    values: Mapping[str, Any]
    training: StudyTraining


@dataclass(frozen=True)
class Method:
    """A variant at a cell of the grid, with its trials so far; two trials of the same values are one training."""

    variant: Variant
    values: Mapping[str, Any]
    trials: tuple[Trial, ...] = ()

    @property
    def cell(self) -> Cell:
        """Its cell, with the trainings of the trials."""
        return Cell(self.values, tuple(trial.training for trial in self.trials), self.variant.name)


@dataclass(frozen=True)
class Outcome:
    """What the trials of a budget select, and how it is trained anew on all training classes.

    Args:
        selected: None where no trial has a value; nothing is trained then.
        trainings: one for each seed.
        test: of these trainings at their last epoch; None before they are trained.
        before: of these trainings before their first epoch.
        regret: None where trials are not measured on test.
    """

    budget: int
    selected: Selected | None
    trainings: tuple[StudyTraining, ...] = ()
    test: Over | None = None
    before: Over | None = None
    regret: float | None = None


@dataclass(frozen=True)
class Searched:
    """A method with all its trials, and the outcome of each budget."""

    method: Method
    curves: tuple[Curve, ...]
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True)
class SearchTable:
    """What a search found for each method."""

    study: Study
    search: Search
    methods: tuple[Searched, ...]


@dataclass(frozen=True)
class SearchPlan:
    """The trials that can be told before any is trained, and whether each has ended.

    Args:
        lacking: the data sets whose folder is not given.
        estimate: of the trials that are missing; None where data sets are lacking.
        retrainings: how many follow, at most.
    """

    study: Study
    search: Search
    methods: tuple[Method, ...]
    ended: frozenset[str]
    lacking: tuple[str, ...]
    retrainings: int
    estimate: Estimate | None = None


def search_of(study: Study) -> Search:
    """The [search] of a study that has one."""
    if study.search is None:
        raise ValueError("the study has no search")
    return study.search


def run_search(request: StudyRequest, listener: Listener) -> SearchTable:
    """Train the trials that are missing, select, train what is selected anew, and return the table."""
    study = request.study
    search, roots, methods, samplers = _begin(request)
    while len(methods[0].trials) < search.budgets[-1]:
        count = 1 if samplers[0].sequential else search.budgets[-1]
        methods = [_with_trials(study, *pair, count, roots) for pair in zip(methods, samplers, strict=True)]
        _train(request, _trials_in_turn(methods, -count), roots, listener, kind="trials")
        if samplers[0].sequential:
            for method, sampler in zip(methods, samplers, strict=True):
                selected = select([_curve(study, method.trials[-1].training)])
                sampler.tell(_WORST if selected is None else selected.validation)
    searched = [_searched(study, method, roots) for method in methods]
    retrainings = [training for item in searched for outcome in item.outcomes for training in outcome.trainings]
    _train(request, retrainings, roots, listener, kind="retrainings")
    measured = [
        replace(item, outcomes=tuple(_measured(study, outcome) for outcome in item.outcomes)) for item in searched
    ]
    return SearchTable(study, search, tuple(measured))


def plan_search(request: StudyRequest, listener: Listener) -> SearchPlan:
    """What a search would train; of a sampler that goes by earlier trials only the first trial of each method."""
    study = request.study
    search, roots, methods, samplers = _begin(request)
    count = 1 if samplers[0].sequential else search.budgets[-1]
    methods = [_with_trials(study, *pair, count, roots) for pair in zip(methods, samplers, strict=True)]
    trainings = _trials_in_turn(methods, 0)
    missing = [training for training in trainings if not has_ended(study, training)]
    ended = frozenset(training.run for training in trainings) - {training.run for training in missing}
    retrainings = len(methods) * len(search.budgets) * len(study.runs.seeds)
    plan = SearchPlan(study, search, tuple(methods), ended, tuple(roots.lacking), retrainings)
    if roots.lacking:
        return plan
    # A trial that diverges cannot be timed.
    timed = {training.run: replace(training, settings=(*training.settings, _CALM)) for training in missing}
    cells = [Cell(x.values, tuple(timed.get(training.run, training) for training in x.cell.trainings)) for x in methods]
    estimate = estimate_cells(request, cells, list(timed.values()), listener)
    scale = search.budgets[-1] // count  # the trials that are still to be suggested take as long
    return replace(plan, estimate=replace(estimate, seconds=scale * estimate.seconds, disk=scale * estimate.disk))


def _begin(request: StudyRequest) -> tuple[Search, Roots, list[Method], list[Sampler]]:
    study = request.study
    search = search_of(study)
    if request.scores is not None:
        raise RecipeError("a search needs the runs, not their scores", file=study.name, fix="Leave out --scores")
    roots = roots_of(study, request.cache, request.data)
    methods = [Method(variant, values) for values, variant in product(study.cells, study.variants)]
    samplers = [SAMPLERS[search.sampler](study.domains[x.variant.name], search.seed, x.variant.name) for x in methods]
    for method in methods[: len(study.variants)]:
        _require_domains(study, method, roots)
    roots.require_used()
    return search, roots, methods, samplers


def _require_domains(study: Study, method: Method, roots: Roots) -> None:
    """Check that a method's recipe takes the ends of each range, and each choice, with the middle of the others."""
    domains, name = study.domains[method.variant.name], method.variant.name
    middle = {key: domain.at(0.5) for key, domain in domains.items()}
    further = [(key, {**middle, key: end}) for key, domain in domains.items() for end in domain.ends]
    for key, values in (("", middle), *further):
        try:
            _trial(study, method, values, roots)
        except RecipeError as error:
            where = " of ".join(filter(None, (key, name)))
            text = ": ".join(filter(None, (where, str(error).removeprefix(f"study {study.name}: ").rstrip("."))))
            raise RecipeError(f"[search]: {text}", file=study.name) from error


def _with_trials(study: Study, method: Method, sampler: Sampler, count: int, roots: Roots) -> Method:
    further = [_trial(study, method, sampler.ask(), roots) for _ in range(count)]
    return replace(method, trials=(*method.trials, *further))


def _trial(study: Study, method: Method, values: Mapping[str, Any], roots: Roots) -> Trial:
    search, seed = search_of(study), study.runs.seeds[0]
    keys = {**method.values, **values, _HELD_OUT: search.validation_classes}
    training = plan_training(study, method.variant, keys, seed, roots)
    splits = ("validation", "test") if search.trials_on_test else ("validation",)
    return Trial(values, replace(training, splits=splits))


def _retrainings(study: Study, method: Method, selected: Selected, roots: Roots) -> tuple[StudyTraining, ...]:
    """The selected trial on all training classes, to the selected epoch, with each seed."""
    trial = method.trials[selected.trial - 1]
    epochs = {"train.epochs": selected.epoch, **_kept_schedule(trial.training.loaded().train, selected.epoch)}
    keys = {**method.values, **trial.values, **epochs, _HELD_OUT: 0.0}
    trainings = [plan_training(study, method.variant, keys, seed, roots) for seed in study.runs.seeds]
    return tuple(replace(training, splits=("test",)) for training in trainings)


def _kept_schedule(train: Train, epochs: int) -> dict[str, list[float]]:
    """The keys by which the learning rate falls at the same epochs in a training that ends earlier."""
    schedules = {"train.decay_at": train.decay_at, "train.heat_at": train.heat_at}
    shares = {
        key: [round(share * train.epochs / epochs, 6) for share in fractions] for key, fractions in schedules.items()
    }
    return {key: [share for share in later if share < 1] for key, later in shares.items() if schedules[key]}


def _trials_in_turn(methods: Sequence[Method], start: int) -> list[StudyTraining]:
    """A trial of every method before the next, from a place on; of the same values one."""
    in_turn = zip(*(method.trials[start:] for method in methods), strict=True)
    return list({trial.training.run: trial.training for trials in in_turn for trial in trials}.values())


def _train(
    request: StudyRequest, trainings: Sequence[StudyTraining], roots: Roots, listener: Listener, *, kind: str
) -> None:
    is_ended = partial(has_ended, request.study)
    different = list({training.run: training for training in trainings}.values())
    if roots.lacking and not all(map(is_ended, different)):
        raise lacking_data(request.study, tuple(roots.lacking))
    train_missing(request, different, is_ended, listener, kind=kind)


def has_ended(study: Study, training: StudyTraining) -> bool:
    """Whether a training of a search is trained and measured to its end, or has diverged."""
    if has_diverged(training):
        return True
    if not is_done(named_run(training.cache, training.run), training.loaded()):
        return False
    return all(_by_epoch(study, training, split) is not None for split in training.splits or ())


def has_diverged(training: StudyTraining) -> bool:
    """Whether a loss, a gradient or a weight of it was not finite."""
    run = named_run(training.cache, training.run)
    if not run.exists():
        return False
    record = run.read()
    return record.state == DIVERGED and not training.loaded().changes_since(record)


def _by_epoch(study: Study, training: StudyTraining, split: str) -> tuple[float | None, ...] | None:
    """The metric from epoch 0 on; None where an epoch is not measured."""
    scores, values = training.scores(), []
    for epoch in range(training.loaded().train.epochs + 1):
        if (of_epoch := scores_on(study, training, epoch, scores, split)) is None:
            return None
        values.append(of_epoch[0].value)
    return tuple(values)


def _curve(study: Study, training: StudyTraining) -> Curve:
    if has_diverged(training):
        return Curve()
    values = {}
    for split in training.splits or ():
        if (of_split := _by_epoch(study, training, split)) is None:
            remove = command_text("runs", "remove", training.run, cache=training.cache)
            fix = f"Remove the run, and run the study again: {remove}"
            raise DataError(f"was not measured on {split} after each epoch", file=training.run, fix=fix)
        values[split] = of_split[1:]
    return Curve(**values)


def _searched(study: Study, method: Method, roots: Roots) -> Searched:
    curves = tuple(_curve(study, trial.training) for trial in method.trials)
    outcomes = []
    for budget in search_of(study).budgets:
        if (selected := select(curves[:budget])) is None:
            outcomes.append(Outcome(budget, None))
            continue
        trainings = _retrainings(study, method, selected, roots)
        outcomes.append(Outcome(budget, selected, trainings, regret=regret(curves[:budget], selected)))
    return Searched(method, curves, tuple(outcomes))


def _measured(study: Study, outcome: Outcome) -> Outcome:
    if outcome.selected is None:
        return outcome
    test, before = (_over(study, outcome.trainings, epoch) for epoch in (outcome.selected.epoch, 0))
    return replace(outcome, test=test, before=before)


def _over(study: Study, trainings: Sequence[StudyTraining], epoch: int) -> Over:
    scores = []
    for training in trainings:
        of_epoch = scores_on(study, training, epoch, training.scores())
        if of_epoch is None:
            if has_diverged(training):
                return Over(None, None, (None,) * len(trainings), ("diverged",))
            raise DataError("its scores are gone", file=training.run, fix="Run the study again")
        scores += of_epoch
    return over_trainings(scores)
