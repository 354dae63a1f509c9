"""Hubness: whether few items are the neighbours of many."""

from __future__ import annotations

from collections.abc import Mapping

from layerprobe.metrics.metric import Metric
from layerprobe.ranking.relevance import relevance_of
from layerprobe.ranking.vectors import comparable, similarity_blocks
from layerprobe.system.errors import DataError, NumericError
from layerprobe.values.retrieval import Retrieval

NEIGHBOURS = 10
# A standard deviation of the counts below this is rounding error.
_ROUNDING = 1e-9


class Hubness(Metric):
    """`hubness`: skewness of how often an item is among the 10 nearest of the others.

    Radovanović, Nanopoulos & Ivanović, Hubs in Space: Popular Nearest Neighbors in High-Dimensional Data, JMLR 11,
    2010: the third standardised moment E[(N - mean)^3] / sd^3 of the items' counts N, sd without Bessel's correction.
    Of the queries among themselves, each without itself, by the similarity that they are searched by, hamming too.
    Items that tie for the last places share them, as a random order would on average. No labels are used, and the
    rules of a search (`SearchRules`) change nothing.
    """

    def __call__(self, retrieval: Retrieval) -> Mapping[str, float]:
        """The value under its name.

        Returns:
            Any number; above 0 where a few items are hubs, near 0 where all are about equally often neighbours.

        Raises:
            DataError: 10 items or fewer.
            NumericError: a row holds NaN or Inf, or all items are equally often neighbours, as in a collapsed layer.
        """
        import torch

        count = len(retrieval.labels)
        if count <= NEIGHBOURS:
            raise DataError(
                f"hubness needs more than {NEIGHBOURS} items, there are {count}", fix="Measure a split of more images"
            )
        items = comparable(retrieval.features, None, retrieval.similarity)
        self_indices = torch.arange(count).numpy()
        counts = torch.zeros(count, dtype=torch.float64, device=items.windows.device)
        for rows, similarities in similarity_blocks(items, relevance_of(retrieval.labels, None, self_indices, None)):
            windows = items.windows[rows, None]
            tenth = similarities.topk(NEIGHBOURS).values[:, -1:]
            closer = similarities > tenth + windows
            tied = (similarities >= tenth - windows) & ~closer
            places = NEIGHBOURS - closer.sum(1, keepdim=True)
            counts += (closer + tied * (places / tied.sum(1, keepdim=True)).double()).sum(0)
        centred = counts - counts.mean()
        deviation = float(centred.square().mean().sqrt())
        if deviation <= _ROUNDING:
            raise NumericError("hubness has no value: all items are equally often neighbours")
        return {"hubness": float((centred / deviation).pow(3).mean())}
