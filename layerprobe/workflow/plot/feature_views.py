"""Histograms, spectra and error rates of features: their layers and splits, and the stored values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from layerprobe.measure.distributions import LabelledFeatures, pair_histograms, spectrum
from layerprobe.plots.drawn_scores import match_layers, resolve_epoch
from layerprobe.plots.plot import NotProbedError, PlotOptions
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.values.facts import PAIRS_WITHIN_FOLDS
from layerprobe.values.layers import NO_POST_PROCESSING, LayerKey, RankedLayer, headline_layers
from layerprobe.values.scores import GAP_SPLITS, Score, Subject, shared_notes
from layerprobe.values.views import Curve, ErrorRates, Histogram, Selected
from layerprobe.workflow.run.opened_run import read_layer
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import has_seen_train

TESTED = "test"  # whose error rates are shown

ReadFeatures = Callable[[str, RankedLayer], LabelledFeatures]  # split and layer -> its features


@dataclass(frozen=True)
class LayerSelection:
    """The layers and the epoch to show.

    Args:
        validation: Recall@1 of layers, by which one of the `headline_layers` is chosen.
        embeddings: run -> its embedding layer, where that is known.
    """

    options: PlotOptions
    validation: Mapping[RankedLayer, float]
    embeddings: Mapping[str, RankedLayer]


def select_layers(
    runs: Sequence[Sequence[Score]], options: PlotOptions, embeddings: Mapping[str, RankedLayer]
) -> LayerSelection:
    """The layers to show of some runs; runs with the same layers show the same ones.

    Args:
        runs: the scores of each, at least one.
        embeddings: run -> its embedding layer, where that is known.
    """
    values: dict[RankedLayer, list[float]] = {}
    for scores in runs:
        epoch = resolve_epoch(scores, options.epoch)
        for s in scores:
            if (s.epoch, s.split, s.metric) == (epoch, "validation", "R@1") and s.value is not None:
                values.setdefault(s.ranked, []).append(s.value)
    return LayerSelection(options, {ranked: fmean(recalls) for ranked, recalls in values.items()}, embeddings)


def histograms_of(scores: Sequence[Score], read: ReadFeatures, selection: LayerSelection) -> list[Histogram]:
    """The histograms of a run, layer by layer: similarities of images of the same and of different classes.

    Args:
        scores: of one run, at least one.
    """
    run, epoch = scores[0].run, resolve_epoch(scores, selection.options.epoch)
    return [
        histogram
        for ranked, splits in read_layers(scores, read, selection)
        for histogram in pair_histograms(splits, run=run, epoch=epoch, ranked=ranked)
    ]


def selected_histograms(run: Run, scores: Sequence[Score], selected: Selected) -> list[Histogram]:
    """The histograms of a run's selected candidate at its epoch; within folds of test if its score is of folds."""
    epoch, ranked = selected.score.epoch, selected.score.ranked
    require_vectors(ranked)
    if selected.within_folds:
        splits = {selected.score.split: _read_folds(run, epoch, selected.score.split, ranked)}
    else:
        stored_scores, read = open_stored(run, scores, epoch)
        measured = {
            score.split for score in stored_scores if (score.epoch, score.ranked.layer) == (epoch, ranked.layer)
        }
        splits = {split: read(split, ranked) for split in GAP_SPLITS if split in measured}
    if not splits:
        raise DataError(f"no scores of {ranked.layer} at epoch {epoch} are stored")
    return pair_histograms(splits, run=run.name, epoch=epoch, ranked=ranked)


def _read_folds(run: Run, epoch: int, split: str, ranked: RankedLayer) -> LabelledFeatures:
    """The features of a split; the map of each fold of classes is fitted on the other folds."""
    import torch

    from layerprobe.workflow.probe.rerank import StoredSearch  # it imports torch, which other plots do without

    folds = StoredSearch(run, epoch, split, torch.device("cpu")).in_folds(ranked, int(run.read().seed))
    return LabelledFeatures(
        np.concatenate([np.asarray(fold.values) for fold in folds]),
        np.concatenate([fold.labels for fold in folds]),
        (PAIRS_WITHIN_FOLDS,),
        np.repeat(np.arange(len(folds)), [len(fold.labels) for fold in folds]),
    )


def spectra_of(scores: Sequence[Score], read: ReadFeatures, selection: LayerSelection) -> list[Curve]:
    """The spectra of a run, layer by layer: the variance of unit vectors by dimension."""
    run, epoch = scores[0].run, resolve_epoch(scores, selection.options.epoch)
    curves = []
    for ranked, splits in read_layers(scores, read, selection):
        for split, features in splits.items():
            curve = spectrum(features.features, run=run, epoch=epoch, split=split, ranked=ranked)
            curves.append(replace(curve, notes=(*features.notes, *curve.notes)))
    return curves


def open_stored(run: Run, scores: Sequence[Score], epoch: int | None) -> tuple[list[Score], ReadFeatures]:
    """The scores of a run on the splits with stored features, and a function that reads these.

    Features have the notes that all scores of their split share, such as missing images, and one for each split without
    features. If no split has any, reading raises.

    Args:
        scores: of this run, at least one.
    """
    epoch_read = resolve_epoch(scores, epoch)
    missing = {score.split for score in scores if not run.has_features(epoch_read, score.split)} & {*GAP_SPLITS}
    missing = set() if missing == {*GAP_SPLITS} else missing
    missing_notes = [f"no features of {split} are stored" for split in GAP_SPLITS if split in missing]

    def read(split: str, ranked: RankedLayer) -> LabelledFeatures:
        split_notes = shared_notes(score.notes for score in scores if (score.epoch, score.split) == (epoch_read, split))
        notes = (*split_notes, *missing_notes)
        if ranked.post_processing == NO_POST_PROCESSING:
            return LabelledFeatures(
                read_layer(run, epoch_read, split, ranked.layer), run.feature_head(epoch_read, split).labels, notes
            )
        import torch

        from layerprobe.post_processing.chain import parse_chain
        from layerprobe.workflow.probe.chains import fit_notes
        from layerprobe.workflow.probe.rerank import StoredSearch  # it imports torch, which other plots do without

        search = StoredSearch(run, epoch_read, split, torch.device("cpu"), _split_to_fit_on(run))
        features = search.features_of(split, ranked)  # also of images that are not searched for
        notes = (*notes, *(x for x in fit_notes(parse_chain(ranked.post_processing), split) if x not in notes))
        return LabelledFeatures(features.values.numpy(), features.labels, notes)  # type: ignore[union-attr] # in memory

    return [score for score in scores if score.split not in missing], read


def _split_to_fit_on(run: Run) -> str:
    """The split that a map of a whole split is fitted on: train, or validation, which chose it within folds."""
    splits = run.read().manifests
    return "validation" if "validation" in splits and "train" not in splits else "train"


def read_layers(
    scores: Sequence[Score], read: ReadFeatures, selection: LayerSelection
) -> Iterator[tuple[RankedLayer, dict[str, LabelledFeatures]]]:
    """The layers to show with their features by split, read one after another.

    Post-processed layers are shown if requested, or if there are no others.
    """
    epoch = resolve_epoch(scores, selection.options.epoch)
    # The cosine is taken whatever the similarity of the search: a layer searched by two similarities is shown once.
    first_ranked: dict[tuple[LayerKey, str], RankedLayer] = {}
    splits: dict[RankedLayer, list[str]] = {}
    for score in scores:
        if score.epoch == epoch and score.split in GAP_SPLITS:
            ranked = first_ranked.setdefault((score.ranked.layer, score.ranked.post_processing), score.ranked)
            splits.setdefault(ranked, []).append(score.split)
    layers = list(splits)
    if not layers:
        message = f"{scores[0].run}: no layer was probed on the training or test split"
        raise NotProbedError(message, "--splits", ",".join(GAP_SPLITS), run=scores[0].run)
    requested = match_layers(selection.options.layers, layers)
    if requested is None:
        requested = few_layers(layers, scores[0].run, selection)
    for ranked in layers:
        if ranked in requested:
            require_vectors(ranked)
            yield ranked, {split: read(split, ranked) for split in GAP_SPLITS if split in splits[ranked]}


def few_layers(layers: Sequence[RankedLayer], run: str, selection: LayerSelection) -> list[RankedLayer]:
    """The `headline_layers` among a run's raw layers; among the post-processed ones if there are no others."""
    raw = [ranked for ranked in layers if ranked.post_processing == NO_POST_PROCESSING] or list(layers)
    validation = {ranked: value for ranked, value in selection.validation.items() if ranked in raw}
    return headline_layers(raw, validation, selection.embeddings.get(run))


def require_vectors(ranked: RankedLayer) -> None:
    """Check that a layer is vectors of which one map is fitted."""
    if ranked.post_processing == NO_POST_PROCESSING:
        return
    from layerprobe.post_processing.chain import parse_chain  # likewise

    chain = parse_chain(ranked.post_processing)
    reason = (
        "binary codes, not vectors" if chain.similarity == "hamming"
        else "a mean over draws" if len(chain.members()) > 1
        else "made with the loss's classifier" if chain.needs_classifier
        else ""
    )  # fmt: skip
    if reason:
        raise RecipeError(f"{ranked.layer} after {ranked.post_processing}: {reason}", fix="Ask for the raw layer")


def tested_layers(scores: Sequence[Score], selection: LayerSelection) -> list[Subject]:
    """The layers of a run to show, as measured on test classes.

    Args:
        scores: of one run, at least one.
    """
    epoch = resolve_epoch(scores, selection.options.epoch)
    epoch_scores = [score for score in scores if (score.epoch, score.split) == (epoch, TESTED)]
    if not epoch_scores:
        message = f"{scores[0].run}: no layer was probed on the {TESTED} split at epoch {epoch}"
        raise NotProbedError(message, "--epochs", str(epoch), "--splits", TESTED, run=scores[0].run)
    layers = list(dict.fromkeys(score.ranked for score in epoch_scores))
    requested = match_layers(selection.options.layers, layers)
    layers_drawn = (
        few_layers(layers, scores[0].run, selection) if requested is None else [x for x in layers if x in requested]
    )
    notes = shared_notes(score.notes for score in epoch_scores)
    score = epoch_scores[0]
    return [Subject(score.run, score.experiment, score.seed, epoch, TESTED, ranked, notes) for ranked in layers_drawn]


def stored_error_rates(run: Run, scores: Sequence[Score], selection: LayerSelection) -> list[ErrorRates]:
    """The error rates of a run's layers on test, with thresholds set on other classes unseen by the network, if any.

    Args:
        scores: of this run, at least one.
    """
    return [_error_rates(run, scores, subject) for subject in tested_layers(scores, selection)]


def selected_error_rates(run: Run, scores: Sequence[Score], selected: Selected) -> list[ErrorRates]:
    """The error rates of a run's selected candidate at its epoch; within folds of test if its score is of folds."""
    score = selected.score
    ranked, epoch = score.ranked, score.epoch
    notes = [s.notes for s in scores if (s.epoch, s.split, s.ranked.layer) == (epoch, TESTED, score.ranked.layer)]
    subject = Subject(run.name, score.experiment, score.seed, epoch, TESTED, ranked, shared_notes(notes or [()]))
    if not selected.within_folds:
        return [_error_rates(run, scores, subject)]
    import torch

    from layerprobe.measure.pair_thresholds import error_rates_within_folds
    from layerprobe.ranking.all_pairs import AllPairs, all_pairs
    from layerprobe.workflow.probe.rerank import StoredSearch  # likewise

    search = StoredSearch(run, epoch, TESTED, torch.device("cpu"))

    def folds() -> list[AllPairs]:
        features_of_folds = search.in_folds(ranked, int(run.read().seed))
        return [all_pairs(fold.values, fold.labels, similarity=ranked.similarity) for fold in features_of_folds]  # type: ignore[arg-type] # text, checked there

    return [error_rates_within_folds(replace(subject, notes=(*subject.notes, PAIRS_WITHIN_FOLDS)), folds)]


def _error_rates(run: Run, scores: Sequence[Score], subject: Subject) -> ErrorRates:
    import torch

    from layerprobe.measure.pair_thresholds import error_rates
    from layerprobe.ranking.all_pairs import AllPairs
    from layerprobe.workflow.choose.features_run import require_one_map
    from layerprobe.workflow.probe.rerank import StoredSearch
    from layerprobe.workflow.threshold.threshold import layer_pairs, pairs_to_set_on  # likewise

    ranked, epoch, record = subject.ranked, subject.epoch, run.read()
    require_one_map(ranked)
    seen = any(has_seen_train(record, other_epoch) for other_epoch in range(record.epochs_done + 1))
    splits = (TESTED, "validation", *([] if seen else ["train"]))
    fitted_on = _split_to_fit_on(run)
    searches = {split: StoredSearch(run, epoch, split, torch.device("cpu"), fitted_on) for split in splits}
    of_epoch = [score for score in scores if score.epoch == epoch]
    measured = {score.split for score in of_epoch if score.ranked == ranked}
    measured = measured or {score.split for score in of_epoch if score.ranked.layer == ranked.layer}
    unseen = [split for split in searches if split in measured and split != TESTED]

    def pairs_of(split: str) -> AllPairs:
        if split == TESTED:
            return layer_pairs(searches[split], ranked)
        labels = run.feature_head(epoch, split).labels.astype(np.int64)
        return pairs_to_set_on(searches[split], ranked, labels)[0]

    return error_rates(subject, pairs_of, unseen[0] if unseen else None)
