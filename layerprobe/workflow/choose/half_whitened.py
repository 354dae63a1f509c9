"""The half-whitened layers of a run, as candidates that no probe has ranked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from layerprobe.reductions.applying import Blocks
from layerprobe.reductions.half_whitening import half_whitened, half_whitening
from layerprobe.statistics.choice import folds_of
from layerprobe.values.layers import NO_REDUCTION, RankedLayer
from layerprobe.workflow.choose.candidates import whole_units
from layerprobe.workflow.probe.reduced_features import fold_half_whitening
from layerprobe.workflow.run.opened_run import read_layer
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import split_to_choose_on


def half_whitened_layers(
    run: Run, split: str, layers: Sequence[RankedLayer], epoch: int, *, cluster: str | None = None
) -> list[RankedLayer]:
    """Layers half-whitened to the dimensions that this leaves, without those that it does not suit.

    In all folds where the split is chosen on, too; else in one fit on all classes.

    Args:
        split: whose stored features are fitted on.
        layers: without a reduction.
        cluster: whose values the folds divide; None for the classes.
    """
    record = run.read()
    units = whole_units(run, split, *run.feature_head(epoch, split).rows, cluster)
    folds = folds_of(units, seed=int(record.seed))[np.unique(units, return_inverse=True)[1]]
    is_chosen_on = split_to_choose_on(run, record, record.epochs) == split
    cpu, suited = torch.device("cpu"), []
    for ranked in layers:
        if is_chosen_on:
            fitted = fold_half_whitening(run, epoch, split, ranked.layer, folds, cpu)
        else:
            fitted = half_whitening(Blocks(read_layer(run, epoch, split, ranked.layer), cpu), folds, [None])
        if fitted is not None:
            suited.append(replace(ranked, reduction=half_whitened(fitted.dim)))
    return suited


def ranked_unreduced(run: Run, split: str) -> list[RankedLayer]:
    """The single layers that a split has scores of without a reduction, in network order."""
    scores = [score for score in run.scores() if score.split == split and score.value is not None]
    every = dict.fromkeys(score.ranked for score in scores)
    return [x for x in every if x.reduction == NO_REDUCTION and "+" not in x.layer.layer]
