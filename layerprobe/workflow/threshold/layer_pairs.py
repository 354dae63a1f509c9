"""The pairs of images of a run's stored layer."""

from __future__ import annotations

from dataclasses import replace

import torch

from layerprobe.ranking.all_pairs import AllPairs, all_pairs
from layerprobe.system.errors import NotFiniteError, NumericError
from layerprobe.values.layers import NO_REDUCTION, RankedLayer
from layerprobe.workflow.probe.reduced_features import StoredSearch


def layer_pairs(search: StoredSearch, ranked: RankedLayer) -> AllPairs:
    """The pairs of a split's images by a layer, as its search compares them.

    Raises:
        DataError: its features are gone or have changed, or the search rules.
        NumericError: NaN or Inf.
    """
    # A reduction that is not ranked is fitted anew, on the features that the layer itself was ranked by.
    is_ranked = ranked in search.run.ranks(search.epoch, search.split).stored.ranks
    search.require_stored(ranked if is_ranked else replace(ranked, reduction=NO_REDUCTION))
    queries, gallery = search.features(ranked)
    try:
        return all_pairs(
            torch.as_tensor(queries.values),
            queries.labels,
            gallery=None if gallery is None else torch.as_tensor(gallery.values),
            gallery_labels=None if gallery is None else gallery.labels,
            similarity=ranked.similarity,  # type: ignore[arg-type] # text from a file, checked there
            ids=None if gallery is None else queries.ids,
            gallery_ids=None if gallery is None else gallery.ids,
            rules=search.rules,
        )
    except NotFiniteError as error:
        message = f"{ranked} has no threshold on {search.split}: {error.message}"
        raise NumericError(message, fix="Choose a layer whose features are finite") from error
