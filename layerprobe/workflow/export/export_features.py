"""A choice among a user's own features -> the export of its map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from layerprobe.encoder.fitted_map import with_ends
from layerprobe.measure.concatenated import side_by_side
from layerprobe.reductions.applying import Blocks
from layerprobe.reductions.chain import parse_chain
from layerprobe.system.progress import Listener
from layerprobe.values.choice import Choice
from layerprobe.values.keys import LayerKey, members_of
from layerprobe.workflow.choose.given_features import read_given
from layerprobe.workflow.choose.row_splits import row_splits_of
from layerprobe.workflow.export.request import ExportRequest
from layerprobe.workflow.export.writing import Exported, Written, sampled, samples_of, write

_CPU = torch.device("cpu")


def export_features(  # noqa: PLR0913 - the rows, the choice and the files
    file: Path, choice: Choice, request: ExportRequest, listener: Listener, *, seen: bool, seed: int
) -> Written:
    """Export the map of what `choose_file` chose; the network that gave the features is not known.

    Args:
        seen: as in `choose_file`.
        seed: likewise.
    """
    given = read_given(file)
    splits = row_splits_of(given, seed, seen, file)
    ship, ranked = choice.ship, choice.chosen.ranked_layer
    members = members_of(LayerKey(ship.layer, ship.pool), given.features)
    arrays = [given.features[member].astype(np.float32, copy=False) for member in members]
    values, chain = side_by_side(arrays), parse_chain(ship.reduction)
    rows = splits.choosing if splits.fitted_on is None else splits.fitted_on
    reduce = chain.fit(Blocks(values[rows], _CPU), values.shape[1], seed=seed)
    finish = with_ends(reduce, sizes=[array.shape[1] for array in arrays], similarity=ranked.similarity)
    fitted_on = ("train" if splits.fitted_on is not None else splits.split) if chain.fits else ""
    tried = sampled(len(values))
    samples = samples_of(
        f"{len(tried)} rows of {file.name} against their map in torch", values[tried], None, ranked.similarity, finish
    )
    exported = Exported(f"{file.name}:{ranked}", file.name, ranked, ship.dim, fitted_on, finish, samples)
    return write(exported, request, listener)
