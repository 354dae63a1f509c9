"""A layer of a user's own features -> the export of its map."""

from __future__ import annotations

import numpy as np
import torch

from layerprobe.encoder.fitted_map import with_ends
from layerprobe.measure.extraction import side_by_side
from layerprobe.post_processing.applying import Blocks
from layerprobe.post_processing.chain import parse_chain
from layerprobe.system.errors import RecipeError
from layerprobe.system.progress import Listener
from layerprobe.values.choice import advice_text
from layerprobe.values.layers import RankedLayer, members_of
from layerprobe.workflow.choose.choose_features import choose_file
from layerprobe.workflow.choose.features_run import ranked_of_rows, rows_by_split, run_of_features
from layerprobe.workflow.choose.indexed_layer import read_searched
from layerprobe.workflow.choose.user_features import UserFeatures
from layerprobe.workflow.export.request import ExportRequest
from layerprobe.workflow.export.writing import Exported, Written, fitted_on_text, make_samples, sample_rows, write
from layerprobe.workflow.probe.chains import FITTED_ON
from layerprobe.workflow.run.memory_run import EPOCH
from layerprobe.workflow.run.seen import split_to_choose_on

_CPU = torch.device("cpu")


def ranked_to_export(features: UserFeatures, request: ExportRequest, listener: Listener) -> RankedLayer:
    """The layer that a request names, or the one that `choose` selects."""
    if request.epoch is not None or request.model is not None:
        message = "features have no epochs and no network"
        raise RecipeError(message, file=features.file, fix="Leave out --epoch and --model, or name a run")
    if request.layer is not None:
        return ranked_of_rows(features, request.layer)
    choice = choose_file(features, listener=listener)
    listener.say(advice_text(choice))
    return choice.chosen.ranked


def export_features(  # noqa: PLR0913 - the rows, the layer and the files
    features: UserFeatures, ranked: RankedLayer, request: ExportRequest, listener: Listener, *, seen: bool, seed: int
) -> Written:
    """Export the map of a layer; the network that gave the features is not known.

    Args:
        seen: as in `choose_file`.
        seed: likewise.
    """
    file = "features" if features.file is None else features.file.name
    run, rows = run_of_features(features, seen=seen, seed=seed), rows_by_split(features)
    chosen_on = split_to_choose_on(run, run.record, [EPOCH])
    fitted_on = FITTED_ON if FITTED_ON in rows else chosen_on
    members = members_of(ranked.layer, features.features)
    arrays = [features.features[member].astype(np.float32, copy=False) for member in members]
    values, chain = side_by_side(arrays), parse_chain(ranked.post_processing)
    blocks, labels = Blocks(values[rows[fitted_on]], _CPU), features.labels[rows[fitted_on]]
    post_process = chain.fit(blocks, values.shape[1], seed=seed, labels=labels)
    finish = with_ends(post_process, sizes=[array.shape[1] for array in arrays], similarity=ranked.similarity)
    rows_checked = sample_rows(len(values))
    samples = make_samples(
        f"{len(rows_checked)} rows of {file} against their map in torch",
        values[rows_checked],
        None,
        ranked.similarity,
        finish,
    )
    searched = None
    if request.index is not None:
        searched, notes = read_searched(run, EPOCH, ranked, chosen_on, _CPU)
        for note in notes:
            listener.say(note)
    exported = Exported(
        f"{file}:{ranked}", file, ranked, fitted_on_text(chain, fitted_on, labels), finish, samples, searched=searched
    )
    return write(exported, request, listener)
