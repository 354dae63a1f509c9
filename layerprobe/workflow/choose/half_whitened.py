"""The half-whitened layers of a run, as candidates that no probe has ranked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from layerprobe import store
from layerprobe.reductions.applying import Blocks
from layerprobe.reductions.half_whitening import half_whitened, half_whitening
from layerprobe.statistics.choice import folds_of
from layerprobe.values.keys import NO_REDUCTION, RankedLayer
from layerprobe.workflow.run.runs import Run


def half_whitened_layers(run: Run, split: str, layers: Sequence[RankedLayer], epoch: int) -> list[RankedLayer]:
    """Layers half-whitened to the dimensions that this leaves in all folds, without those that it does not suit.

    Args:
        split: whose stored features are fitted on.
        layers: without a reduction.
    """
    path = run.feature_file(epoch, split)
    labels, _ = store.read_index(path)
    _, classes = np.unique(labels, return_inverse=True)
    folds = folds_of(labels, seed=int(run.read().seed))[classes]
    found = []
    for ranked in layers:
        blocks = Blocks(store.read_features(path, ranked.layer), torch.device("cpu"))
        if fitted := half_whitening(blocks, folds, [None, *np.unique(folds).tolist()]):
            found.append(replace(ranked, reduction=half_whitened(fitted.dim)))
    return found


def ranked_unreduced(run: Run, split: str) -> list[RankedLayer]:
    """The single layers that a split has scores of without a reduction, in network order."""
    scores = [score for score in run.scores() if score.split == split and score.value is not None]
    every = dict.fromkeys(score.ranked_layer for score in scores)
    return [x for x in every if x.reduction == NO_REDUCTION and "+" not in x.layer.layer]
