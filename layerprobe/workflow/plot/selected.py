"""The selected candidate of the choice that runs keep, with the score that figures show of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from layerprobe.plots.plot import PlotOptions
from layerprobe.plots.selected import selected_text
from layerprobe.plots.values import metric_of
from layerprobe.system.errors import LayerprobeError
from layerprobe.values.layers import NO_POOL, spoken_name
from layerprobe.values.scores import Score
from layerprobe.values.views import ErrorRates, Histogram, Selected
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.stored_choice import stored_choice

S = TypeVar("S", bound=Histogram | ErrorRates)
SelectedOfRun = tuple[Run, Sequence[Score], Selected]  # with the run's scores


def stored_selected(name: str, runs: Sequence[Run], scores: Sequence[Score]) -> Selected | None:
    """The selected candidate of a run, or of several trainings that keep one choice; None without one.

    Args:
        name: of the run, or of the mean over trainings, in the scores.
        scores: of one metric, or R@1 among others.
    """
    stored = [stored_choice(run) for run in runs]
    first_stored = stored[0]
    if first_stored is None or any(
        other is None or other.choice.chosen != first_stored.choice.chosen for other in stored
    ):
        return None
    choice, metric = first_stored.choice, metric_of(scores)
    epoch, ranked = choice.chosen.epoch, choice.chosen.ranked
    has_several_pools = (
        len({score.ranked.layer.pool for score in scores if score.ranked.layer.layer == ranked.layer.layer} - {NO_POOL})
        > 1
    )
    layer_text, dim = spoken_name(ranked, pool=has_several_pools), choice.ship.dim
    for split in ("test", choice.chosen.split):
        for score in scores:
            key = (score.run, score.epoch, score.split, score.ranked, score.metric)
            if key == (name, epoch, split, ranked, metric) and score.value is not None:
                return Selected(layer_text, score, dim)
    # Without such a score, the score of the choice is shown, if the choice is of exactly these trainings.
    of_choice = choice.test or choice.chosen
    if of_choice.metric != metric or set(first_stored.states) != {run.name for run in runs}:
        return None
    is_within_folds = choice.test is not None and choice.within_folds
    embedding = choice.embedding.test if choice.embedding is not None and is_within_folds else None
    return Selected(layer_text, replace(of_choice, run=name), dim, is_within_folds, embedding)


def add_selected(
    values: Sequence[S],
    options: PlotOptions,
    selected: Sequence[SelectedOfRun],
    values_of: Callable[[Run, Sequence[Score], Selected], Sequence[S]],
) -> list[S]:
    """The values of a plot, then those of the selected candidates that it lacks, unless layers are requested.

    Args:
        values_of: gives the values of a selected candidate. If it raises, a note on all other values says why.
    """
    drawn = {(value.run, value.epoch, value.ranked) for value in values}
    added: list[S] = []
    notes: list[str] = []
    for run, scores, candidate in selected if options.layers is None else ():
        epoch, ranked = candidate.score.epoch, candidate.score.ranked
        if options.epoch in (None, epoch) and (run.name, epoch, ranked) not in drawn:
            try:
                added += values_of(run, scores, candidate)
            except LayerprobeError as error:
                notes.append(f"{run.name}: {selected_text(candidate, epoch)} is not drawn: {error.message}")
    return [*(replace(value, notes=(*value.notes, *notes)) for value in values), *added]
