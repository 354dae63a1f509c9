"""Equal terms: Recall@1 in draws of equally many classes and images, from stored features, stored as scores.

    found = equal_terms(run, epochs, listener)       # found.offered.terms, found.scores, found.reasons

No image is read, and no checkpoint except for `shift`: rank files list the layers and the origin of their ranks,
feature files hold the features, and the draws follow from the run's seed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.measure.analysis import layer_notes, recall_notes
from layerprobe.ranking.in_draws import hits_in_draws
from layerprobe.recipe.recipe import recorded_recipe
from layerprobe.reductions.chain import parse_chain
from layerprobe.statistics.draws import Rows
from layerprobe.statistics.means import intervals
from layerprobe.statistics.units import unit_sums
from layerprobe.system.progress import Listener, Task
from layerprobe.system.signals import Stop, stoppable
from layerprobe.values.intervals import FEWEST_UNITS, IntervalKind, SamplingUnits
from layerprobe.values.keys import RankedLayer
from layerprobe.values.metric_names import Terms, is_recall
from layerprobe.values.records import RunRecord
from layerprobe.values.retrieval import Ranks
from layerprobe.values.scores import Score, ScoreTable, Subject, in_network_order, read_scores
from layerprobe.workflow.probe.classifiers import RunClassifier, classifier_of
from layerprobe.workflow.probe.reduced_features import are_stored, stored_features
from layerprobe.workflow.probe.reducing import FITTED_ON
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.reduction_draws import draws_of, mean_of_queries, ranked_as
from layerprobe.workflow.run.runs import Run, locked
from layerprobe.workflow.run.stored_terms import DrawnTerms, Offered, offered_terms, stored_terms

if TYPE_CHECKING:
    import torch

_STOPPED = "drawing stopped; stored results are complete, the same command resumes"

Units = Callable[[str], NDArray[np.int64]]
_Place = tuple[int, str, RankedLayer]  # epoch, split and layer


@dataclass(frozen=True, eq=False)
class EqualTerms:
    """The values of a run on equal terms.

    Args:
        scores: those of the requested epochs, of every layer whose draws are stored.
        reasons: why there are no terms, what they skip, and how to restore removed features; a line each.
    """

    offered: Offered
    scores: Sequence[Score] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class _Cell:
    """An epoch and split, its draws, and the layers with features but without these draws."""

    epoch: int
    split: str
    drawn: DrawnTerms
    missing: Sequence[RankedLayer]


def equal_terms(  # noqa: PLR0913 - the draws and the units of their intervals
    run: Run,
    epochs: Sequence[int],
    listener: Listener,
    *,
    device: str = "auto",
    kind: IntervalKind | None = None,
    units: Units | None = None,
) -> EqualTerms:
    """Make and store the missing draws of some epochs, for all layers with stored ranks.

    Each query's value goes into the rank files, the scores into scores.csv. Their intervals resample classes, each
    query weighted by the number of its draws; the draws are fixed, as the gallery is for other scores.

    Args:
        kind: units of the intervals, against the gallery; None for the classes.
        units: split -> (Q,) the unit of each of its images, in the order of the rank file; None for the classes.
    """
    with locked(run), stoppable() as stop:
        run.remove_leftovers()
        offered, record, raw = offered_terms(run), run.read(), run.scores()
        if offered.terms is None:
            return EqualTerms(offered, reasons=offered.reasons)
        notes = _notes_of(raw)
        cells, reasons = _cells(run, offered, offered.terms, epochs, notes)
        steps = sum(len(cell.missing) * len(cell.drawn.rows) for cell in cells)
        if steps:
            chosen = from_recipe.choose_device(device)
            with listener.task(f"equal terms of {run.name}", steps, "draws") as task:
                for _, of_epoch in groupby(cells, key=lambda cell: cell.epoch):
                    _draw(run, list(of_epoch), offered.terms, chosen, _advancing(stop, task))
        rating = _Rating(run, record, offered.terms, kind or IntervalKind(), units, notes)
        order = record.layer_order
        scores = [score for cell in cells for score in in_network_order(rating.scores(cell), order)]
        table = ScoreTable(raw, layer_order=order, stored=read_scores(run.scores_file))
        table.add(scores)
        table.write(run.scores_file)
    return EqualTerms(offered, scores, (*offered.reasons, *reasons))


def _cells(
    run: Run, offered: Offered, terms: Terms, epochs: Sequence[int], scored: Collection[_Place]
) -> tuple[list[_Cell], list[str]]:
    """The missing draws of the scored layers, and why some of them cannot be made.

    Ranks of layers without scores are stale: their scores were removed from scores.csv.
    """
    cells, reasons = [], []
    gone: dict[int, dict[str, None]] = defaultdict(dict)
    for epoch, split in ((epoch, split) for epoch in sorted(set(epochs)) for split in offered.splits):
        drawn = stored_terms(run, epoch, split, terms)
        if drawn is None or drawn.items.ids != offered.splits[split].ids:
            why = "is not probed there" if not run.rank_file(epoch, split).exists() else "had other images then"
            reasons.append(f"no equal terms at epoch {epoch}: {split} {why}")
            continue
        drawable = {draw for at, name, layer in scored if (at, name) == (epoch, split) for draw in draws_of(layer)}
        known = [ranked for ranked in run.ranks(epoch, split).stored.ranks if ranked in drawable]
        absent = [ranked for ranked in known if ranked not in drawn.values]
        there = [ranked for ranked in absent if are_stored(run, epoch, split, split, ranked)]
        gone[epoch] |= {str(ranked.layer): None for ranked in absent if ranked not in there}
        cells.append(_Cell(epoch, split, drawn, there))
    python = run.read().from_python
    for epoch, layers in gone.items():
        if layers:
            command = run.command("probe", "--epochs", str(epoch), "--layers", ",".join(layers))
            again = "probe the model from Python again" if python else f"{command} brings them back"
            reasons.append(f"no equal terms at epoch {epoch} where features are gone: {again}")
    return cells, reasons


def _advancing(stop: Stop, task: Task) -> Callable[[Sequence[Rows]], Iterator[Rows]]:
    def tell(drawn: Sequence[Rows]) -> Iterator[Rows]:
        for rows in stop.between(drawn, _STOPPED):
            yield rows
            task.advance()

    return tell


def _draw(
    run: Run,
    cells: Sequence[_Cell],
    terms: Terms,
    device: torch.device,
    tell: Callable[[Sequence[Rows]], Iterator[Rows]],
) -> None:
    """Rank the missing layers of an epoch in every draw, and store each when it is complete."""
    missing = list(dict.fromkeys(ranked for cell in cells for ranked in cell.missing))
    needed = any(parse_chain(ranked.reduction).needs_classifier for ranked in missing)
    trained = _classifier(run, cells[0].epoch, device) if needed else None
    features = stored_features(run, lambda split: split, device, trained)
    new: dict[str, dict[RankedLayer, Mapping[str, NDArray[np.float64]]]] = {cell.split: {} for cell in cells}
    try:
        for ranked, cell in ((ranked, cell) for ranked in missing for cell in cells if ranked in cell.missing):
            layer = features.layer(cell.epoch, cell.split, ranked)
            hits = hits_in_draws(layer.values, layer.labels, cell.drawn.rows, ranked.similarity, progress=tell)  # type: ignore[arg-type] # in memory
            new[cell.split][ranked] = {terms.name(): hits}
    finally:
        for cell in cells:
            if new[cell.split]:
                store.add_values(run.rank_file(cell.epoch, cell.split), new[cell.split])


def _classifier(run: Run, epoch: int, device: torch.device) -> RunClassifier:
    labels, _ = store.read_index(run.feature_file(epoch, FITTED_ON))
    return classifier_of(run, recorded_recipe(run.read(), run.record_file), labels, lambda: device)


def _notes_of(raw: Sequence[Score]) -> dict[_Place, tuple[str, ...]]:
    """The notes on Recall@K of a whole split, except those on its interval."""
    return {(score.epoch, score.split, score.ranked): score.notes for score in raw if is_recall(score.metric)}


def _notes_on(ranks: Sequence[Ranks]) -> list[str]:
    """The caveats on a layer, or on all its draws."""
    return list(dict.fromkeys(note for each in ranks for note in layer_notes(each)))


@dataclass(frozen=True, eq=False)
class _Rating:
    """Makes scores of stored draws."""

    run: Run
    record: RunRecord
    terms: Terms
    kind: IntervalKind
    units: Units | None
    notes: Mapping[_Place, tuple[str, ...]]

    def scores(self, cell: _Cell) -> list[Score]:
        """The scores of an epoch and split, of all layers whose draws are stored."""
        drawn = stored_terms(self.run, cell.epoch, cell.split, self.terms)
        stored = self.run.ranks(cell.epoch, cell.split).stored
        if drawn is None:
            return []
        name, count = self.terms.name(), int((drawn.weights > 0).sum())
        scored = [ranked for epoch, split, ranked in self.notes if (epoch, split) == (cell.epoch, cell.split)]
        found = [
            self._subject(cell, ranked).score(name, None, count, [stored.invalid[ranked]])
            for ranked in scored
            if ranked in stored.invalid
        ]
        draws = {ranked: layers for ranked in scored if (layers := ranked_as(ranked, drawn.values))}
        values = {ranked: mean_of_queries(layers, drawn.values.__getitem__) for ranked, layers in draws.items()}
        if not values:
            return found
        units = drawn.items.labels if self.units is None else self.units(cell.split)
        sums = unit_sums(np.stack(list(values.values())), units, drawn.weights)
        how = "equal terms: " + (f"mean of {len(drawn.rows)} draws" if len(drawn.rows) > 1 else "all images, one draw")
        for ranked, value, interval in zip(values, sums.means.tolist(), intervals(sums), strict=True):
            ranks = [stored.ranks[draw] for draw in draws[ranked]]
            of_whole = {note for each in ranks for note in recall_notes(each)}
            shared = [note for note in self.notes[cell.epoch, cell.split, ranked] if note not in of_whole]
            units_of = SamplingUnits(self.kind, sums.units) if interval or sums.units < FEWEST_UNITS else None
            subject = replace(self._subject(cell, ranked), notes=tuple(shared))
            found.append(subject.score(name, value, count, [how, *_notes_on(ranks)], interval=interval, units=units_of))
        return found

    def _subject(self, cell: _Cell, ranked: RankedLayer) -> Subject:
        experiment, seed = self.record.experiment, self.record.seed
        return Subject(self.run.name, experiment, seed, cell.epoch, cell.split, ranked)
