"""What was chosen of the runs of a report: the choices that they keep, else those that `choose` would make."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from layerprobe.reductions.chain import parse_chain
from layerprobe.report.values import ShownChoice
from layerprobe.system.errors import LayerprobeError
from layerprobe.system.progress import Silent
from layerprobe.values.choice import Choice, Gain, Ship, advice_text, verdict_text
from layerprobe.values.facts import WITHIN_FOLDS
from layerprobe.values.keys import NO_REDUCTION, RankedLayer
from layerprobe.values.pooling import NO_POOL
from layerprobe.values.scores import Score
from layerprobe.values.spoken_names import spoken_name, spoken_reduction
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.request import ChooseRequest
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
    """

    shown: tuple[ShownChoice, ...] = ()
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
    return _joined([_of_group(group, ChooseRequest(device="cpu", metric=metric)) for group in groups.values()])


def told(runs: Sequence[str], choose: Callable[[], Choice]) -> Choices:
    """What is shown of a choice of some runs, or why there is none."""
    called = ", ".join(runs)
    try:
        choice = choose()
    except LayerprobeError as error:
        return Choices(missing=(f"{called}: no layer is chosen: {error}",))
    return Choices((_shown(called, choice),), dict.fromkeys(runs, choice.chosen.ranked_layer))


def _of_group(group: Sequence[Run], request: ChooseRequest) -> Choices:
    """What is shown of the trainings of an experiment, which may keep a choice each, or one for all."""
    found, stale = list[tuple[list[str], Choice]](), list[str]()
    lacking = []
    for run in group:
        stored = stored_choice(run, stale.append)
        if stored is None:
            lacking.append(run)
            continue
        known = next((names for names, choice in found if choice == stored.choice), None)
        if known is None:
            found.append(([run.name], stored.choice))
        else:
            known.append(run.name)
    parts = [told(names, lambda choice=choice: choice) for names, choice in found]  # type: ignore[misc] # bound now
    if not found:
        parts.append(_made(group, request))
    elif lacking:
        names = ", ".join(run.name for run in lacking)
        parts.append(Choices(missing=(f"{names}: no choice is stored; {lacking[0].command('choose')} makes one",)))
    return _joined([Choices(missing=tuple(stale)), *parts])


def _made(group: Sequence[Run], request: ChooseRequest) -> Choices:
    """The choice that `choose` makes of some runs, or why it is not made here."""
    first, names = group[0], [run.name for run in group]
    try:
        record = first.read()
        split_to_choose_on(first, record, epochs_to_choose_among(first, record, request.epochs))
    except LayerprobeError as error:
        helps = f"{first.command('choose')} says what helps"
        return Choices(missing=(f"{', '.join(names)}: no layer is chosen: {error.message}; {helps}",))
    if _is_long(group):
        command = first.command("choose")
        return Choices(missing=(f"{', '.join(names)}: no choice is stored, and it takes a while; {command} makes one",))
    return told(names, lambda: choose_runs(group, request, Silent()))


def _is_long(group: Sequence[Run]) -> bool:
    """Whether choosing would rank layers anew."""
    if "validation" in group[0].read().manifests:
        return False
    return any(parse_chain(score.reduction).fits_on_train for run in group for score in run.scores())


def _joined(parts: Sequence[Choices]) -> Choices:
    return Choices(
        tuple(choice for part in parts for choice in part.shown),
        {run: layer for part in parts for run, layer in part.selected.items()},
        tuple(line for part in parts for line in part.missing),
    )


def _shown(called: str, choice: Choice) -> ShownChoice:
    """A choice with the table of the current embedding and what is selected, in as many columns as there are two."""
    current = choice.embedding
    both = [] if current is None else [(current.layer, current.test)]
    kept = current is not None and choice.ship == current.layer
    columns = both if kept else [*both, (choice.ship, choice.test or choice.chosen)]
    titles = ["current, selected"] if kept else [*["current"] * len(both), "selected"]
    two, split = len(columns) == 2, "test" if choice.test is not None else choice.chosen.split
    ships = [ship for ship, _ in columns]
    share = choice.price.share_of_multiply_adds
    costs = [*["" for _ in columns[1:]], "unknown" if share is None else f"{100 * share:.0f} %"]
    folded = ", each fifth of the classes searched in itself" * (WITHIN_FOLDS in choice.notes)
    fewer = f"{_percent_change(*(ship.bytes_per_image for ship in ships))}" if two else ""
    epochs = ["" if ship.epoch is None else str(ship.epoch) for ship in ships]
    rows = [
        ("layer", *(ship.layer for ship in ships), ""),
        ("post-processing", *map(_processing, ships), ""),
        ("pool", *("" if ship.pool == NO_POOL else ship.pool for ship in ships), ""),
        ("epoch", *epochs, ""),
        ("dimensions", *(f"{ship.dim:,}" for ship in ships), ""),
        ("bytes an image", *(f"{ship.bytes_per_image:,}" for ship in ships), fewer),
        (
            f"{choice.chosen.metric} on {split} [95 %]{folded}",
            *(_value(score) for _, score in columns),
            _gain(choice.gain) if two else "",
        ),
        ("share of the network's multiply-adds", *costs, ""),
    ]
    width = len(titles) + 2 if two else len(titles) + 1
    head = ("", *titles, *["difference"] * two)
    kept_rows = tuple(row[:width] for row in rows if any(row[1:width]))
    return ShownChoice(f"{called}: {advice_text(choice)} {verdict_text(choice)}", head, kept_rows, _notes(choice))


def _notes(choice: Choice) -> tuple[str, ...]:
    """The best on test, which nobody may choose, and what the numbers are conditional on."""
    best = choice.best_on_test
    if best is None:
        return choice.notes
    likewise = " (likewise in fifths)" * (WITHIN_FOLDS in choice.notes)
    looked = f"Best on test, chosen by looking: {spoken_name(best.ranked_layer)}, {_value(best)}{likewise}"
    return (looked, *choice.notes)


def _processing(ship: Ship) -> str:
    return "none" if ship.reduction == NO_REDUCTION else spoken_reduction(ship.reduction, dimensions=True)


def _value(score: Score) -> str:
    if score.value is None:
        return "no valid number"
    ends = "" if score.low is None or score.high is None else f" [{100 * score.low:.1f}, {100 * score.high:.1f}]"
    return f"{100 * score.value:.1f} %{ends}"


def _gain(gain: Gain | None) -> str:
    if gain is None:
        return ""
    ends = "" if gain.low is None or gain.high is None else f" [{100 * gain.low:.1f}, {100 * gain.high:.1f}]"
    return f"{100 * gain.difference:+.1f} points{ends}"


def _percent_change(before: int, after: int) -> str:
    return "" if before == after else f"{100 * (after / before - 1):+.0f} %"
