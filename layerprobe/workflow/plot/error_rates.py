"""Error rates of a run's layers on test, from stored features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from layerprobe.measure.pair_thresholds import error_rates, error_rates_within_folds
from layerprobe.plots.drawn_scores import match_layers, resolve_epoch
from layerprobe.ranking.all_pairs import AllPairs, all_pairs
from layerprobe.system.errors import DataError
from layerprobe.values.facts import PAIRS_WITHIN_FOLDS
from layerprobe.values.scores import Score, Subject, shared_notes
from layerprobe.values.views import ErrorRates, Selected
from layerprobe.workflow.choose.features_run import require_one_map
from layerprobe.workflow.plot.feature_views import LayerSelection, few_layers
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import has_seen_train
from layerprobe.workflow.threshold.threshold import layer_pairs

SPLIT = "test"


def subjects_of(scores: Sequence[Score], selection: LayerSelection) -> list[Subject]:
    """The layers of a run to show, as measured on test classes.

    Args:
        scores: of one run, at least one.
    """
    epoch = resolve_epoch(scores, selection.options.epoch)
    epoch_scores = [score for score in scores if (score.epoch, score.split) == (epoch, SPLIT)]
    if not epoch_scores:
        message = f"{scores[0].run}: no layer was probed on the {SPLIT} split at epoch {epoch}"
        raise DataError(message, fix=f"Run layerprobe probe --epochs {epoch} --splits {SPLIT}")
    layers = list(dict.fromkeys(score.ranked for score in epoch_scores))
    requested = match_layers(selection.options.layers, layers)
    layers_drawn = (
        few_layers(layers, scores[0].run, selection) if requested is None else [x for x in layers if x in requested]
    )
    notes = shared_notes(score.notes for score in epoch_scores)
    score = epoch_scores[0]
    return [Subject(score.run, score.experiment, score.seed, epoch, SPLIT, ranked, notes) for ranked in layers_drawn]


def stored_error_rates(run: Run, scores: Sequence[Score], selection: LayerSelection) -> list[ErrorRates]:
    """The error rates of a run's layers on test, with thresholds set on other classes unseen by the network, if any.

    Args:
        scores: of this run, at least one.
    """
    return [_error_rates(run, scores, subject) for subject in subjects_of(scores, selection)]


def selected_error_rates(run: Run, scores: Sequence[Score], selected: Selected) -> list[ErrorRates]:
    """The error rates of a run's selected candidate at its epoch; within folds of test if its score is of folds."""
    score = selected.score
    ranked, epoch = score.ranked, score.epoch
    notes = [s.notes for s in scores if (s.epoch, s.split, s.ranked.layer) == (epoch, SPLIT, score.ranked.layer)]
    subject = Subject(run.name, score.experiment, score.seed, epoch, SPLIT, ranked, shared_notes(notes or [()]))
    if not selected.within_folds:
        return [_error_rates(run, scores, subject)]
    search = StoredSearch(run, epoch, SPLIT, torch.device("cpu"))

    def folds() -> list[AllPairs]:
        features_of_folds = search.in_folds(ranked, int(run.read().seed))
        return [all_pairs(fold.values, fold.labels, similarity=ranked.similarity) for fold in features_of_folds]  # type: ignore[arg-type] # text, checked there

    return [error_rates_within_folds(replace(subject, notes=(*subject.notes, PAIRS_WITHIN_FOLDS)), folds)]


def _error_rates(run: Run, scores: Sequence[Score], subject: Subject) -> ErrorRates:
    ranked, epoch = subject.ranked, subject.epoch
    require_one_map(ranked)
    searches = {split: StoredSearch(run, epoch, split, torch.device("cpu")) for split in (SPLIT, *_unseen_splits(run))}
    of_epoch = [score for score in scores if score.epoch == epoch]
    measured = {score.split for score in of_epoch if score.ranked == ranked}
    measured = measured or {score.split for score in of_epoch if score.ranked.layer == ranked.layer}
    unseen = [split for split in searches if split in measured and split != SPLIT]
    return error_rates(subject, lambda split: layer_pairs(searches[split], ranked), unseen[0] if unseen else None)


def _unseen_splits(run: Run) -> list[str]:
    record = run.read()
    seen = any(has_seen_train(record, epoch) for epoch in range(record.epochs_done + 1))
    return ["validation", *([] if seen else ["train"])]
