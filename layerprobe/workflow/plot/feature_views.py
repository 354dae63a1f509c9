"""Histograms and spectra of features: their layers and splits, and the stored values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from layerprobe.measure.pair_similarities import Labelled, pair_histograms
from layerprobe.measure.spectrum import spectrum
from layerprobe.plots.asked import asked_epoch, asked_layers
from layerprobe.plots.plot import PlotOptions
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.values.facts import PAIRS_WITHIN_FOLDS
from layerprobe.values.headline_layers import headline_layers
from layerprobe.values.keys import NO_REDUCTION, LayerKey, RankedLayer
from layerprobe.values.scores import Score, shared_notes
from layerprobe.values.views import Curve, Histogram, Selected
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.stored_layers import read_layer

SPLITS = ("train", "test")  # seen and unseen classes

ReadFeatures = Callable[[str, RankedLayer], Labelled]  # split and layer -> its features


@dataclass(frozen=True)
class ShownLayers:
    """Which layers and epoch are shown.

    Args:
        validation: Recall@1 of layers, by which one of the `headline_layers` is chosen.
        embeddings: run -> its embedding layer, where that is known.
    """

    options: PlotOptions
    validation: Mapping[RankedLayer, float]
    embeddings: Mapping[str, RankedLayer]


def shown_layers(
    runs: Sequence[Sequence[Score]], options: PlotOptions, embeddings: Mapping[str, RankedLayer]
) -> ShownLayers:
    """What is shown of some runs: of those with the same layers the same ones.

    Args:
        runs: the scores of each, at least one.
        embeddings: run -> its embedding layer, where that is known.
    """
    values: dict[RankedLayer, list[float]] = {}
    for scores in runs:
        at = asked_epoch(scores, options.epoch)
        for s in scores:
            if (s.epoch, s.split, s.metric) == (at, "validation", "R@1") and s.value is not None:
                values.setdefault(s.ranked, []).append(s.value)
    return ShownLayers(options, {ranked: fmean(found) for ranked, found in values.items()}, embeddings)


def histograms_of(scores: Sequence[Score], read: ReadFeatures, which: ShownLayers) -> list[Histogram]:
    """The histograms of a run, layer by layer: similarities of images of the same and of different classes.

    Args:
        scores: of one run, at least one.
    """
    run, epoch = scores[0].run, asked_epoch(scores, which.options.epoch)
    return [
        histogram
        for ranked, splits in shown(scores, read, which)
        for histogram in pair_histograms(splits, run=run, epoch=epoch, ranked=ranked)
    ]


def selected_histograms(run: Run, scores: Sequence[Score], selected: Selected) -> list[Histogram]:
    """The histograms of the selected candidate of a run, at its epoch; within folds of test if that is its score."""
    epoch, ranked = selected.score.epoch, selected.score.ranked
    _require_vectors(ranked)
    if selected.within_folds:
        splits = {selected.score.split: _in_folds(run, epoch, selected.score.split, ranked)}
    else:
        kept, read = stored(run, scores, epoch)
        measured = {score.split for score in kept if (score.epoch, score.ranked.layer) == (epoch, ranked.layer)}
        splits = {split: read(split, ranked) for split in SPLITS if split in measured}
    if not splits:
        raise DataError(f"no scores of {ranked.layer} at epoch {epoch} are stored")
    return pair_histograms(splits, run=run.name, epoch=epoch, ranked=ranked)


def _in_folds(run: Run, epoch: int, split: str, ranked: RankedLayer) -> Labelled:
    """The features of a split, of each fold of classes by a map that is fitted on the others."""
    import torch

    from layerprobe.workflow.probe.rerank import StoredSearch  # it imports torch, which other plots do without

    parts = StoredSearch(run, epoch, split, torch.device("cpu")).in_folds(ranked, int(run.read().seed))
    return Labelled(
        np.concatenate([np.asarray(part.values) for part in parts]),
        np.concatenate([part.labels for part in parts]),
        (PAIRS_WITHIN_FOLDS,),
        np.repeat(np.arange(len(parts)), [len(part.labels) for part in parts]),
    )


def spectra_of(scores: Sequence[Score], read: ReadFeatures, which: ShownLayers) -> list[Curve]:
    """The spectra of a run, layer by layer: the variance of unit vectors by dimension."""
    run, epoch = scores[0].run, asked_epoch(scores, which.options.epoch)
    curves = []
    for ranked, splits in shown(scores, read, which):
        for split, found in splits.items():
            curve = spectrum(found.features, run=run, epoch=epoch, split=split, ranked=ranked)
            curves.append(replace(curve, notes=(*found.notes, *curve.notes)))
    return curves


def stored(run: Run, scores: Sequence[Score], epoch: int | None) -> tuple[list[Score], ReadFeatures]:
    """The scores of a run on the splits with stored features, and a function that reads these.

    Features have the notes that all scores of their split share, such as missing images, and one for each split without
    features. If no split has any, reading raises.

    Args:
        scores: of this run, at least one.
    """
    at = asked_epoch(scores, epoch)
    gone = {score.split for score in scores if not run.has_features(at, score.split)} & {*SPLITS}
    gone = set() if gone == {*SPLITS} else gone
    lost = [f"no features of {split} are stored" for split in SPLITS if split in gone]

    def read(split: str, ranked: RankedLayer) -> Labelled:
        said = shared_notes(score.notes for score in scores if (score.epoch, score.split) == (at, split))
        notes = (*said, *lost)
        if ranked.reduction == NO_REDUCTION:
            return Labelled(read_layer(run, at, split, ranked.layer), run.feature_head(at, split).rows[0], notes)
        import torch

        from layerprobe.workflow.probe.rerank import StoredSearch  # it imports torch, which other plots do without

        features, _ = StoredSearch(run, at, split, torch.device("cpu")).features(ranked)
        return Labelled(features.values.numpy(), features.labels, notes)  # type: ignore[union-attr] # in memory

    return [score for score in scores if score.split not in gone], read


def shown(
    scores: Sequence[Score], read: ReadFeatures, which: ShownLayers
) -> Iterator[tuple[RankedLayer, dict[str, Labelled]]]:
    """The layers to show with their features by split, read one after another.

    Reduced layers are shown if requested, or if there are no others.
    """
    epoch = asked_epoch(scores, which.options.epoch)
    # The cosine is taken whatever the similarity of the search: a layer searched by two similarities is shown once.
    first: dict[tuple[LayerKey, str], RankedLayer] = {}
    splits: dict[RankedLayer, list[str]] = {}
    for score in scores:
        if score.epoch == epoch and score.split in SPLITS:
            ranked = first.setdefault((score.ranked.layer, score.ranked.reduction), score.ranked)
            splits.setdefault(ranked, []).append(score.split)
    known = list(splits)
    if not known:
        what = f"{scores[0].run}: no layer was probed on the training or test split"
        raise DataError(what, fix="Run layerprobe probe --splits train,test")
    asked = asked_layers(which.options.layers, known)
    if asked is None:
        asked = few_layers(known, scores[0].run, which)
    for ranked in known:
        if ranked in asked:
            _require_vectors(ranked)
            yield ranked, {split: read(split, ranked) for split in SPLITS if split in splits[ranked]}


def few_layers(known: Sequence[RankedLayer], run: str, which: ShownLayers) -> list[RankedLayer]:
    """A few of a run's unreduced layers; of reduced ones if there are no others."""
    raw = [ranked for ranked in known if ranked.reduction == NO_REDUCTION] or list(known)
    validation = {ranked: value for ranked, value in which.validation.items() if ranked in raw}
    return headline_layers(raw, validation, which.embeddings.get(run))


def _require_vectors(ranked: RankedLayer) -> None:
    if ranked.reduction == NO_REDUCTION:
        return
    from layerprobe.reductions.chain import parse_chain  # likewise

    chain = parse_chain(ranked.reduction)
    reason = (
        "binary codes, not vectors" if chain.similarity == "hamming"
        else "a mean over draws" if len(chain.members()) > 1
        else "made with the loss's classifier" if chain.needs_classifier
        else ""
    )  # fmt: skip
    if reason:
        raise RecipeError(f"{ranked.layer} after {ranked.reduction}: {reason}", fix="Ask for the unreduced layer")
