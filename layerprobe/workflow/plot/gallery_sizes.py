"""Recall@1 by the number of items that each query searches, from stored ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from layerprobe.measure.analysis import ItemCounts
from layerprobe.metrics.recall import positives_and_negatives, thinned_hits
from layerprobe.plots.drawn_scores import match_layers
from layerprobe.recipe.recipe import recorded_recipe
from layerprobe.statistics.units import intervals, unit_sums
from layerprobe.store import StoredRanks
from layerprobe.system.errors import DataError
from layerprobe.values.intervals import IntervalKind, SamplingUnits
from layerprobe.values.layers import NO_POST_PROCESSING, RankedLayer, headline_layers
from layerprobe.values.retrieval import Ranks
from layerprobe.values.scores import Score, recall_of, shared_notes, trainings
from layerprobe.values.views import Curve
from layerprobe.workflow.run.references import ranked_as
from layerprobe.workflow.run.runs import Run

SPLIT = "test"
RECALL = "R@1"
AXIS = "items searched"

_STEPS = (1, 1.5, 2, 3, 4, 5, 7)  # of each power of ten: as even on a logarithmic axis as round numbers can be
_ROUNDING = 1e-6  # allowed difference of Recall@1 by the ranks from the score


def last_scores(scores: Sequence[Score]) -> list[Score]:
    """The scores of the last epoch with Recall@1 on test; empty without such an epoch."""
    epoch = max((score.epoch for score in scores if (score.split, score.metric) == (SPLIT, RECALL)), default=0)
    return [score for score in scores if score.epoch == epoch]


def layers_shown(
    runs: Sequence[Sequence[Score]], names: Sequence[str] | None, embeddings: Mapping[str, RankedLayer]
) -> list[list[RankedLayer]]:
    """The layers of each run that were requested, or are among the `headline_layers` of one run; in network order.

    Args:
        embeddings: run -> its embedding layer, where that is known.

    Returns:
        Empty for a run without Recall@1 on test.
    """
    measured = [[s.ranked for s in scores if (s.split, s.metric) == (SPLIT, RECALL)] for scores in runs]
    all_layers = [ranked for layers in measured for ranked in layers]
    requested = match_layers(names, all_layers) if all_layers else None
    if requested is None:
        requested = []
        for layers, scores in zip(measured, runs, strict=True):
            raw = [ranked for ranked in layers if ranked.post_processing == NO_POST_PROCESSING] or layers
            validation = [s for s in scores if (s.split, s.metric) == ("validation", RECALL) and s.ranked in raw]
            values = {s.ranked: s.value for s in validation if s.value is not None}
            requested += headline_layers(raw, values, embeddings.get(scores[0].run) if scores else None)
    return [[ranked for ranked in layers if ranked in requested] for layers in measured]


def stored_curves(
    runs: Sequence[Run],
    scores: Sequence[Score],
    names: Sequence[str] | None,
    embeddings: Mapping[str, RankedLayer],
) -> list[Curve]:
    """The curves of runs, each at its last epoch that has Recall@1 on test; trainings of one experiment as one.

    Args:
        names: the requested layers; None for a few, the same for all runs.
        embeddings: run -> its embedding layer, where that is known.
    """
    last_by_run = [last_scores([score for score in scores if score.run == run.name]) for run in runs]
    run_layers = zip(runs, last_by_run, layers_shown(last_by_run, names, embeddings), strict=True)
    curves = {run.name: _run_curves(run, run_scores, layers) for run, run_scores, layers in run_layers}
    merged = []
    for name, members in trainings([score for run_scores in last_by_run for score in run_scores]).items():
        mean_curves = curves_over_seeds(name, [curves[run] for run in members]) if len(members) > 1 else []
        merged += mean_curves or [curve for run in members for curve in curves[run]]
    return merged


def curves_over_seeds(name: str, runs: Sequence[Sequence[Curve]]) -> list[Curve]:
    """The mean over trainings of one experiment and their range, as in `over_seeds`.

    Returns:
        Empty unless all have the same layers at the same sizes.
    """
    if any([(c.ranked, c.places) for c in curves] != [(c.ranked, c.places) for c in runs[0]] for curves in runs):
        return []
    means = []
    for layer_curves in zip(*runs, strict=True):
        columns = [
            [value for value in size_values if value is not None]
            for size_values in zip(*(c.values for c in layer_curves), strict=True)
        ]
        complete = [column if len(column) == len(layer_curves) else None for column in columns]
        notes = shared_notes(curve.notes for curve in layer_curves)
        means.append(
            replace(
                layer_curves[0],
                run=name,
                values=tuple(column and sum(column) / len(column) for column in complete),
                low=tuple(column and min(column) for column in complete),
                high=tuple(column and max(column) for column in complete),
                n=len(layer_curves),
                notes=(*notes, f"mean of {len(layer_curves)} trainings"),
                units=SamplingUnits(IntervalKind(trainings=True), len(layer_curves)),
            )
        )
    return means


def _run_curves(run: Run, scores: Sequence[Score], layers: Sequence[RankedLayer]) -> list[Curve]:
    """Recall@1 of some layers by the number of items searched, with intervals over classes.

    Each number is the expectation of `thinned_hits`. The sizes include those scored as `R@1(G=N)`.

    Args:
        scores: of the epoch.
    """
    layer_scores = {score.ranked: score for score in scores if (score.split, score.metric) == (SPLIT, RECALL)}
    if not layer_scores:
        fix = f"Run {run.command('probe', '--splits', SPLIT, '--k', '1')}"
        raise DataError(f"no {RECALL} on the {SPLIT} split", file=run.folder, fix=fix)
    epoch = scores[0].epoch
    probe = run.command("probe", "--epochs", str(epoch), "--splits", SPLIT)
    stored = run.ranks(epoch, SPLIT).stored
    ranks: dict[RankedLayer, list[Ranks]] = {}  # for a mean over draws those of each draw; empty if invalid
    for ranked in layers:
        members = ranked_as(ranked, stored.ranks)
        if not members and ranked not in stored.invalid:
            raise DataError(f"no ranks of {ranked.layer}", file=run.rank_file(epoch, SPLIT), fix=f"Run {probe}")
        ranks[ranked] = [stored.ranks[member] for member in members]
    items = _items(run, epoch, stored)
    sizes = _sizes(items, [score for score in scores if score.split == SPLIT])
    curves = []
    for ranked, layer_ranks in ranks.items():
        score = layer_scores[ranked]
        if any(draw.open().any() for draw in layer_ranks):
            fix = f"Run {probe} --layers {ranked.layer} --gallery-size {_largest(items)}"
            raise DataError(f"the stored ranks of {ranked.layer} are exact only up to its K", fix=fix)
        recall = float(np.mean([draw.recall(1) for draw in layer_ranks])) if layer_ranks else None
        if recall is not None and (score.value is None or abs(recall - score.value) > _ROUNDING):
            raise DataError(f"the stored ranks of {ranked.layer} do not agree with its scores", fix=f"Run {probe}")
        curve = Curve(
            run=score.run,
            epoch=epoch,
            split=SPLIT,
            ranked=ranked,
            measure=RECALL,
            axis=AXIS,
            places=tuple(map(float, sizes)),
            values=(None,) * len(sizes),
            n=len(stored.labels),
            notes=score.notes,
        )
        curves.append(_add_recalls(curve, layer_ranks, items, stored.labels) if layer_ranks else curve)
    return curves


def _items(run: Run, epoch: int, stored: StoredRanks) -> ItemCounts:
    """The number of positives and negatives that each query searches."""
    if run.ranks(epoch, SPLIT).chance is not None:  # groups or lists decide, which only the data set has
        from layerprobe.workflow.probe.measures import count_items
        from layerprobe.workflow.run.from_recipe import build_dataset  # it imports torch, which a plot does without

        dataset = build_dataset(recorded_recipe(run.read(), run.record_file), decode=False)
        if dataset.search_of(SPLIT)[0].ids != stored.ids:
            raise DataError("the data set has other images than the run", fix="Restore it as it was when it was probed")
        return count_items(dataset, SPLIT)
    if not run.has_features(epoch, "gallery"):
        return positives_and_negatives(stored.labels)
    labels, ids = run.feature_head(epoch, "gallery").rows
    return positives_and_negatives(stored.labels, labels, ids=stored.ids, gallery_ids=ids)


def _add_recalls(curve: Curve, ranks: Sequence[Ranks], items: ItemCounts, labels: NDArray[np.integer]) -> Curve:
    """The curve with the expected Recall@1 at each size, and its intervals over classes."""
    sizes = map(int, curve.places)
    hits = np.stack([np.mean([thinned_hits(draw, 1, size, *items) for draw in ranks], axis=0) for size in sizes])
    ends = intervals(unit_sums(hits, labels))
    return replace(
        curve,
        # over the queries, as scores are; not of the sums of classes
        values=tuple(hits.mean(1).tolist()),
        low=tuple(None if interval is None else interval.low for interval in ends),
        high=tuple(None if interval is None else interval.high for interval in ends),
        units=SamplingUnits(IntervalKind(), len(np.unique(labels))),
    )


def _sizes(items: ItemCounts, scores: Sequence[Score]) -> list[int]:
    """Round numbers of items that all queries can search, the extremes, and those scored."""
    low, high = int(items[0].max()) + 1, _largest(items)
    if low > high:
        message = f"a query has {low - 1:,} positives, and another searches only {high:,} items"
        raise DataError(f"no number of items suits all queries: {message}", fix="Balance the sizes of the classes")
    sizes = {low, high}
    step = 1
    while step <= high:
        sizes |= {int(factor * step) for factor in _STEPS}
        step *= 10
    recalls = (recall_of(score.metric) for score in scores)
    sizes |= {recall.gallery for recall in recalls if recall and recall.k == 1 and recall.gallery}
    return sorted(size for size in sizes if low <= size <= high)


def _largest(items: ItemCounts) -> int:
    """The most items that every query can search."""
    return int((items[0] + items[1]).min())
