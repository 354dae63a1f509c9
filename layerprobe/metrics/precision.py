"""Measures of the whole ranking: MAP@R, R-precision, mAP and MRR, fair on ties.

A query has R positives: the other items of its class among those searched, or those that the search's rules
(`SearchRules`) make right; what they take out has no place in the ranking. Every measure is a mean over the queries,
and 1 where all positives come first. A query without a positive counts 0, is excluded, or is an error, as for Recall@K
(pytorch-metric-learning leaves it out).

Tied items count with the expected value under a random order of them. Groups of ties are formed from the closest
positive on, as for Recall@K: the closest positive forms one with the positives and negatives within its query's tie
window, the closest positive beyond them the next one, and so on; an item belongs to the first group that takes it. So
collapsed features score what a random order does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from layerprobe.metrics.metric import QueryMetric
from layerprobe.ranking.ranks import positive_levels
from layerprobe.ranking.vectors import queries_at_once
from layerprobe.values.retrieval import FloatArray, Lone, Precision, Ranks, Retrieval, counted_queries

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from layerprobe.ranking.levels import Levels


class PrecisionAtPositives(QueryMetric):
    """`MAP@R`, `R-precision` and `mAP`, exact as in float64.

    P(i) is the share of positives among the i closest, and R the number of positives.

    - mAP is the mean of P(i) over the ranks i of all positives.
    - MAP@R is the sum of P(i) over the ranks i of the positives among the R closest, divided by R.
    - R-precision is P(R).

    The code of the Revisited Oxford and Paris benchmark averages P(i) with the share among the i - 1 closest, 1 for
    i = 1, and leaves lone queries out: its mAP is another number. MAP@R and the case for it:
    Musgrave, Belongie & Lim, A Metric Learning Reality Check, ECCV 2020. The expected precision in a group of ties is
    that of McSherry & Najork, Computing Information Retrieval Performance Measures Efficiently in the Presence of Tied
    Scores, ECIR 2008.

    Args:
        lone: queries without a positive count 0, are excluded from the mean, or are an error.
    """

    def __init__(self, lone: Lone = "miss") -> None:
        self.lone = lone

    def of_queries(self, retrieval: Retrieval) -> Mapping[str, FloatArray]:
        """The contributions of queries, whose means are the three: (Q,) in [0, 1] each, NaN for excluded queries.

        Raises:
            DataError: lone queries where they are an error, or nothing else where they are excluded.
            NumericError: a row holds NaN or Inf.
        """
        values, positives = retrieval.precision or precision_of_queries(retrieval)
        counted = counted_queries(positives > 0, self.lone)
        return {name: np.where(counted, of_metric, np.nan) for name, of_metric in values.items()}


class ReciprocalRank(QueryMetric):
    """`MRR`: the mean over the queries of 1 / rank of the nearest positive.

    Args:
        lone: see `PrecisionAtPositives`.
    """

    def __init__(self, lone: Lone = "miss") -> None:
        self.lone = lone

    def of_queries(self, retrieval: Retrieval) -> Mapping[str, FloatArray]:
        """The contributions of queries, whose mean it is: (Q,) in [0, 1], NaN for excluded queries.

        Raises:
            DataError: see `PrecisionAtPositives`.
            NumericError: a row holds NaN or Inf.
        """
        ranks = retrieval.ranks
        counted = counted_queries(ranks.tied_positives > 0, self.lone)
        return {"MRR": np.where(counted, reciprocal_ranks(ranks), np.nan)}


def reciprocal_ranks(ranks: Ranks) -> FloatArray:
    """(Q,) expected 1 / rank of each query's nearest positive, 0 for lone queries.

    With g closer negatives, and t_n negatives and t_p positives tied, the first positive is at place g + j with
    probability C(t_n + t_p - j, t_p - 1) / C(t_n + t_p, t_p).

    Args:
        ranks: every count exact.

    Raises:
        ValueError: a count is an open interval.
    """
    if ranks.open().any():
        raise ValueError(f"the counts of {int(ranks.open().sum())} queries are unresolved; resolve all of them")
    counts = np.stack([ranks.closer, ranks.tied_negatives, ranks.tied_positives], 1).astype(np.int64)
    # Collapsed features have long sums, but few different ones.
    different, row_of_query = np.unique(counts, axis=0, return_inverse=True)
    values = np.array([_expected_reciprocal(*row) for row in different.tolist()])
    return values[row_of_query.reshape(-1)]


def _expected_reciprocal(closer: int, negatives: int, positives: int) -> float:
    if not positives:
        return 0.0
    before = np.arange(negatives)  # tied negatives that came first so far
    # Each place further has one tied negative and one item less to choose from.
    passed = np.cumprod((negatives - before) / (negatives + positives - before))
    reached = np.concatenate([[1.0], passed])  # no positive before place j = 1, 2 ...
    j = np.arange(1, negatives + 2)
    return float((reached * positives / (negatives + positives - j + 1) / (closer + j)).sum())


def precision_of_queries(retrieval: Retrieval) -> Precision:
    """Each query's MAP@R, R-precision and mAP, 0 without a positive, and its number of positives R (Q,).

    Time and memory: see `positive_levels`.

    Raises:
        NumericError: a row holds NaN or Inf.
    """
    return precision_and_ranks(retrieval)[0]


def precision_and_ranks(retrieval: Retrieval, group: ProcessGroup | None = None) -> tuple[Precision, Ranks]:
    """As `precision_of_queries`, with the ranks of the nearest positives, which the same search gives.

    Args:
        group: see `positive_levels`.
    """
    import torch

    size = len(retrieval.searched_labels)
    harmonic = torch.arange(size + 1, dtype=torch.float64)
    harmonic[1:] = (1 / harmonic[1:]).cumsum(0)
    block_scores, ranks = [], []
    for levels, ranks_of_part in positive_levels(retrieval, group):
        ranks.append(ranks_of_part)
        harmonic = harmonic.to(levels.windows.device)
        for rows in torch.arange(len(levels.windows), device=harmonic.device).split(queries_at_once(size)):
            block_scores.append(_Groups(levels[rows]).scores(harmonic))
    average_at_r, precision, average, positives = torch.cat(block_scores, 1).cpu().numpy()
    values = {"MAP@R": average_at_r, "R-precision": precision, "mAP": average}
    counts = [(part.closer, part.closer_high, part.tied_negatives, part.tied_positives) for part in ranks]
    closer, closer_high, tied_negatives, tied_positives = np.concatenate(counts, 1)
    joined = Ranks(closer, closer_high, tied_negatives, tied_positives, ranks[0].zeros)
    return (values, positives.astype(np.int64)), joined


class _Groups:
    """Groups of ties around the positives of some queries, each named by its closest positive."""

    def __init__(self, levels: Levels) -> None:
        import torch

        self.positives = levels.starts.diff()
        similarities, above, through = levels.padded()  # (B, R) closest first
        self.real = similarities > -torch.inf
        self.leads, self.next = _leaders(similarities, levels.windows)
        # What an earlier group took is not tied again. From leader to leader the counts through a level only grow.
        counted_before = torch.where(self.leads & self.real, through, 0).cummax(1).values.roll(1, 1)
        counted_before[:, 0] = 0
        self.before = torch.maximum(above, counted_before)
        self.tied = through - self.before

    def scores(self, harmonic: Tensor) -> Tensor:
        """(4, B) float64: MAP@R, R-precision, mAP and the number of positives."""
        import torch

        position = torch.arange(self.real.shape[1], dtype=torch.float64, device=harmonic.device)
        num_positives, total = self.positives.double()[:, None], self.positives.double()
        members = torch.minimum(self.next.double(), num_positives) - position  # positives in the group
        size = members + self.tied
        start = position + self.before  # items before the group
        # Of the items before place j of the group, (j - 1) (members - 1) / (size - 1) are positives of it.
        slope = (members - 1) / (size - 1).clamp(min=1)

        def precision_until(count: Tensor) -> Tensor:
            """Expected sum of the precision at the positives among the first `count` items of the group."""
            end = (start + count).long().clamp_(max=len(harmonic) - 1)
            span = harmonic[end] - harmonic[start.long().clamp_(max=len(harmonic) - 1)]
            # For a single place 1 / (start + 1) is exact; the difference of sums loses digits.
            span = torch.where(count == 1, 1 / (start + 1), span)
            return members / size * (count * slope + (position + 1 - slope * (start + 1)) * span)

        counted = self.leads & self.real
        within = torch.minimum((num_positives - start).clamp(min=0), size)
        parts = (precision_until(within), members / size * within, precision_until(size))
        # The values of padding mean nothing and are not counted.
        sums = [torch.where(counted, expected, 0).sum(1) / total.clamp(min=1) for expected in parts]
        return torch.stack([*sums, total])


def _leaders(levels: Tensor, windows: Tensor) -> tuple[Tensor, Tensor]:
    """Whether each positive (B, R), closest first, begins a group, and where the next group would begin."""
    import torch

    count = levels.shape[1]
    ascending = levels.flip(1).contiguous()
    # How many are at least level - window: the first one beyond begins the next group.
    following = count - torch.searchsorted(ascending, (levels - windows[:, None]).contiguous(), right=False)
    leads = torch.zeros(len(levels), count + 1, dtype=torch.bool, device=levels.device)
    leads[:, 0] = True
    end = torch.full_like(following[:, :1], count)
    jump = torch.cat([following.clamp(max=count), end], 1)
    # Leaders lead to leaders: each round doubles how many steps from the first are known.
    for _ in range(count.bit_length()):
        reached = torch.zeros_like(leads, dtype=torch.int8).scatter_reduce_(1, jump, leads.to(torch.int8), "amax")
        leads = leads | reached.bool()
        jump = jump.gather(1, jump)
    return leads[:, :count], following
