"""What was chosen of the runs of a report: the choices that they keep, else those that `choose` would make."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from layerprobe.post_processing.chain import parse_chain
from layerprobe.report.values import ShownChoice
from layerprobe.system.errors import LayerprobeError
from layerprobe.system.progress import Silent
from layerprobe.tables.tables import TextTable, answer_sentence, answer_table, how_sure
from layerprobe.values.choice import (
    Choice,
    advice_text,
    certainty_text,
    choice_figures,
    choice_table,
    verdict_text,
)
from layerprobe.values.layers import RankedLayer, spoken_name
from layerprobe.values.records import RunRecord
from layerprobe.values.scores import is_recall
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.choose_text import next_command
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.compare.answer import answer_of
from layerprobe.workflow.run.experiments import experiments_of
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import epochs_to_choose_among, split_to_choose_on
from layerprobe.workflow.run.stored_choice import stored_choice


@dataclass(frozen=True)
class Choices:
    """What was chosen of the runs of a page.

    Args:
        selected: run -> the selected layer.
        missing: why nothing was chosen of a run, or what was stored does not hold, a line each.
        answers: of the runs of which nothing was chosen.
    """

    shown: tuple[ShownChoice, ...] = ()
    answers: tuple[ShownChoice, ...] = ()
    selected: Mapping[str, RankedLayer] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was chosen, a text each."""
        return tuple(choice.text for choice in self.shown)


def choices(runs: Sequence[Run], metric: str = "R@1") -> Choices:
    """The choices that runs keep; without one that of `choose` by a metric, unless layers would be ranked anew."""
    names = experiments_of(runs).names
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run in names:  # its record can be read
            groups[names[run]].append(run)
    return _join([_choices_of_group(group, ChooseRequest(device="cpu", metric=metric)) for group in groups.values()])


def describe_choice(
    runs: Sequence[str], choose: Callable[[], Choice], next_of: Callable[[Choice], str] = lambda _: ""
) -> Choices:
    """Describe the choice of some runs, or say why there is none.

    Args:
        next_of: the next command after a choice; empty for none.
    """
    names = ", ".join(runs)
    try:
        choice = choose()
    except LayerprobeError as error:
        return Choices(missing=(f"{names}: no layer is chosen: {error}",))
    head, *rows = map(tuple, choice_table(choice))
    notes = choice.notes
    if (best := choice.best_on_test) is not None:  # which nobody may choose
        value = "no valid number" if best.value is None else f"{100 * best.value:.1f} %"
        if best.value is not None and best.interval is not None:
            value += " [{:.1f}, {:.1f}]".format(*best.interval.percent)
        likewise = " (likewise in fifths)" * choice.within_folds
        notes = (f"Best on test, chosen by looking: {spoken_name(best.ranked)}, {value}{likewise}", *notes)
    sure = tuple(filter(None, (verdict_text(choice), certainty_text(choice))))
    card = ShownChoice(
        advice_text(choice), head, tuple(rows), names, sure, choice_figures(choice), next_of(choice), notes
    )
    return Choices((card,), selected=dict.fromkeys(runs, choice.chosen.ranked))


def _choices_of_group(group: Sequence[Run], request: ChooseRequest) -> Choices:
    """The choices that the trainings of an experiment keep: one each, or one for all."""
    names_of_choices, stale_lines = list[tuple[list[str], Choice]](), list[str]()
    runs_without_choice = []
    for run in group:
        stored = stored_choice(run, stale_lines.append)
        if stored is None:
            runs_without_choice.append(run)
            continue
        sharing = next((names for names, choice in names_of_choices if choice == stored.choice), None)
        if sharing is None:
            names_of_choices.append(([run.name], stored.choice))
        else:
            sharing.append(run.name)
    by_name = {run.name: run for run in group}
    groups = [
        describe_choice(
            names,
            lambda choice=choice: choice,  # type: ignore[misc] # bound now
            partial(_export, by_name[names[0]]),
        )
        for names, choice in names_of_choices
    ]
    if not names_of_choices:
        groups.append(_make_choice(group, request))
    elif runs_without_choice:
        names = ", ".join(run.name for run in runs_without_choice)
        groups.append(
            Choices(missing=(f"{names}: no choice is stored; {runs_without_choice[0].command('choose')} makes one",))
        )
    return _join([Choices(missing=tuple(stale_lines)), *groups])


def _make_choice(group: Sequence[Run], request: ChooseRequest) -> Choices:
    """The choice that `choose` makes of some runs, or why it is not made here."""
    first_run, names = group[0], [run.name for run in group]
    try:
        record = first_run.read()
        split_to_choose_on(first_run, record, epochs_to_choose_among(first_run, record, request.epochs))
    except LayerprobeError as error:
        advice = f"{first_run.command('choose')} says what helps"
        missing = f"{', '.join(names)}: no layer is chosen: {error.message}; {advice}"
        return Choices(answers=_answers(first_run), missing=(missing,))
    if ranks_anew(group, record):
        command = first_run.command("choose")
        missing = f"{', '.join(names)}: no choice is stored, and it takes a while; {command} makes one"
        return Choices(answers=_answers(first_run), missing=(missing,))
    made = describe_choice(
        names, lambda: choose_runs(group, request, Silent()), lambda _: first_run.command("choose", *names[1:])
    )
    return made if made.shown else replace(made, answers=_answers(first_run))


def _export(run: Run, choice: Choice) -> str:
    """The command that exports a stored choice; none of a run from Python, whose model cannot be built again."""
    return "" if run.read().from_python else next_command(choice, run)


def _answers(run: Run) -> tuple[ShownChoice, ...]:
    """The answer of a run's probe as a card, with the command that chooses; none where it cannot be shown."""
    try:
        scores = run.scores()
        if not any(is_recall(score.metric) for score in scores):
            return ()
        answer = replace(answer_of(run, scores), full=True)
        table = answer_table(answer)
    except LayerprobeError:
        return ()
    rows = tuple(
        tuple(_cell(table, row, column) for column in range(len(table.columns))) for row in range(len(table.rows))
    )
    head = tuple(name.replace("\n", " ") for name in table.columns)
    sentences = how_sure(answer)
    return (ShownChoice(answer_sentence(answer), head, rows, sure=sentences, command=run.command("choose")),)


def _cell(table: TextTable, row: int, column: int) -> str:
    """A cell with the ends of its interval."""
    ends = table.intervals[column][row] if column in table.intervals else None
    return table.rows[row][column] + (f" [{ends[0]}, {ends[1]}]" if ends else "")


def ranks_anew(runs: Sequence[Run], record: RunRecord) -> bool:
    """Whether a choice of some runs would rank layers anew: those after post-processing that are fitted on train.

    Args:
        record: of one of them.
    """
    return "validation" not in record.manifests and any(
        parse_chain(score.ranked.post_processing).fits_on_train for run in runs for score in run.scores()
    )


def _join(results: Sequence[Choices]) -> Choices:
    return Choices(
        tuple(choice for result in results for choice in result.shown),
        tuple(answer for result in results for answer in result.answers),
        {run: layer for result in results for run, layer in result.selected.items()},
        tuple(line for result in results for line in result.missing),
    )
