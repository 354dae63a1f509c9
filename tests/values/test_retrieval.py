from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import comb

import numpy as np
import pytest

from layerprobe.system.errors import DataError
from layerprobe.values.retrieval import Ranks, SearchRules, Ties


def ranks(*queries: tuple[int, int, int], zeros: int = 0) -> Ranks:
    """Resolved ranks from (closer, tied negatives, tied positives) of each query."""
    closer, negatives, positives = np.array(queries, np.int32).T
    return Ranks(closer, closer, negatives, positives, zeros)


def between(*counts: int) -> Ranks:
    """One query with an unresolved count: closer, its upper end, tied negatives, tied positives."""
    low, high, negatives, positives = (np.array([count], np.int32) for count in counts)
    return Ranks(low, high, negatives, positives)


def test_a_query_hits_from_its_rank_on() -> None:
    # Two negatives are closer: the third place is the positive's.
    assert [float(ranks((2, 0, 1)).hits(k)[0]) for k in (1, 2, 3, 4)] == [0, 0, 1, 1]


def test_recall_is_the_mean_over_queries() -> None:
    assert ranks((0, 0, 1), (1, 0, 1), (3, 0, 2), (0, 0, 1)).recall(1) == 2 / 4


def test_one_positive_tied_with_three_negatives_is_first_one_time_in_four() -> None:
    assert float(ranks((0, 3, 1)).hits(1)[0]) == pytest.approx(1 / 4, abs=1e-15)


def test_places_that_closer_negatives_take_are_lost_to_the_tied() -> None:
    # One place of two is left for 2 positives and 2 negatives.
    assert float(ranks((1, 2, 2)).hits(2)[0]) == pytest.approx(1 / 2, abs=1e-15)


def test_more_places_than_tied_negatives_are_a_sure_hit() -> None:
    assert float(ranks((0, 3, 1)).hits(4)[0]) == 1


@pytest.mark.parametrize(
    ("closer", "negatives", "positives", "k"),
    [(0, 9, 4, 3), (5, 1000, 7, 50), (0, 50_000, 30, 1000), (3, 60_000, 900, 700), (0, 10**6, 1, 1)],
)
def test_hits_equal_the_exact_fraction(closer: int, negatives: int, positives: int, k: int) -> None:
    places = k - closer
    exact = 1 - Fraction(comb(negatives, places), comb(negatives + positives, places))
    assert float(ranks((closer, negatives, positives)).hits(k)[0]) == pytest.approx(float(exact), abs=1e-12, rel=0)


def test_hits_of_several_queries_do_not_mix() -> None:
    several = [(0, 9, 4), (2, 0, 1), (0, 3, 1), (1, 40, 30), (5, 9, 9)]
    together = ranks(*several).hits(3)
    assert together.tolist() == [float(ranks(one).hits(3)[0]) for one in several]


@pytest.mark.parametrize(
    ("closer", "negatives", "positives", "k"), [(0, 3, 2, 1), (1, 4, 1, 3), (0, 2, 2, 2), (2, 5, 3, 4)]
)
def test_expected_ties_match_a_random_order(closer: int, negatives: int, positives: int, k: int) -> None:
    rng = np.random.default_rng(0)
    tied = np.r_[np.zeros(negatives), np.ones(positives)]
    orders = rng.permuted(np.tile(tied, (40_000, 1)), axis=1)
    simulated = orders[:, : k - closer].any(1).mean()
    # Four standard errors of 40,000 draws are at most 0.01.
    assert float(ranks((closer, negatives, positives)).hits(k)[0]) == pytest.approx(simulated, abs=0.01)


@pytest.mark.parametrize(("ties", "hits"), [("optimistic", [1, 1, 0]), ("pessimistic", [0, 1, 0])])
def test_ties_all_for_or_all_against_the_positive(ties: Ties, hits: list[float]) -> None:
    assert ranks((0, 1, 1), (0, 0, 1), (1, 0, 1)).hits(1, ties).tolist() == hits


@pytest.mark.parametrize("ties", ["expected", "optimistic", "pessimistic"])
def test_a_lone_query_never_hits(ties: Ties) -> None:
    assert float(ranks((0, 0, 0)).hits(5, ties)[0]) == 0


def test_lone_queries_are_misses_unless_excluded() -> None:
    found = ranks((0, 0, 1), (4, 0, 0), (0, 0, 1), (1, 0, 1))
    assert (found.lone, found.recall(1), found.recall(1, lone="exclude")) == (1, 2 / 4, 2 / 3)


def test_lone_queries_are_an_error_on_request() -> None:
    with pytest.raises(DataError, match="^1 of 2 queries have no other item of their class"):
        ranks((0, 0, 1), (4, 0, 0)).recall(1, lone="error")


def test_without_lone_queries_there_is_no_error() -> None:
    assert ranks((0, 0, 1), (1, 0, 1)).recall(1, lone="error") == 1 / 2


def test_excluding_every_query_is_an_error() -> None:
    with pytest.raises(DataError, match="^1 of 1 queries"):
        ranks((4, 0, 0)).recall(1, lone="exclude")


def test_tied_share_leaves_lone_queries_out() -> None:
    assert ranks((0, 5, 1), (0, 0, 1), (3, 0, 1), (9, 0, 0)).tied_share == 1 / 3


def test_no_query_with_a_positive_is_no_tie() -> None:
    assert ranks((9, 0, 0)).tied_share == 0


def test_collapsed_means_more_than_half_tied() -> None:
    assert ranks((0, 5, 1), (0, 5, 1), (0, 0, 1)).collapsed
    assert not ranks((0, 5, 1), (0, 0, 1)).collapsed


def test_counts_near_the_end_of_int32_do_not_overflow() -> None:
    large = 2**31 - 1
    assert float(ranks((large, large, 1)).hits(large, "pessimistic")[0]) == 0
    assert float(ranks((1, large, 1)).hits(2)[0]) == pytest.approx(1 / 2**31, rel=1e-6)


def test_a_k_inside_an_unresolved_count_is_refused() -> None:
    unresolved = between(2, 6, 0, 1)
    with pytest.raises(ValueError, match="K = 3 falls inside the unresolved counts of 1 queries"):
        unresolved.hits(3)


def test_a_k_outside_an_unresolved_count_is_settled() -> None:
    unresolved = between(2, 6, 0, 1)
    assert [float(unresolved.hits(k)[0]) for k in (2, 7)] == [0, 1]


def test_an_unresolved_count_with_ties_may_reach_further() -> None:
    unresolved = between(2, 6, 3, 1)
    with pytest.raises(ValueError, match="K = 9 falls inside"):
        unresolved.hits(9)
    assert float(unresolved.hits(10)[0]) == 1


def test_k_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="K = 0: must be at least 1"):
        ranks((0, 0, 1)).hits(0)


def test_unknown_rules_are_named() -> None:
    with pytest.raises(ValueError, match="unknown rule for ties 'fair': expected, optimistic or pessimistic"):
        ranks((0, 0, 1)).hits(1, "fair")  # type: ignore[arg-type] # the error is the fact
    with pytest.raises(ValueError, match="unknown rule for lone queries 'skip': miss, exclude, error"):
        ranks((0, 0, 1)).recall(1, lone="skip")  # type: ignore[arg-type] # the error is the fact


@pytest.mark.parametrize("shapes", [(2, 2, 2, 3), (0, 0, 0, 0)])
def test_counts_are_four_vectors_of_one_length(shapes: tuple[int, ...]) -> None:
    low, high, negatives, positives = (np.zeros(length, np.int32) for length in shapes)
    with pytest.raises(ValueError, match="four vectors of one length, at least 1"):
        Ranks(low, high, negatives, positives)


RULES = SearchRules(
    groups=np.array([7, 8, 9]),
    gallery_groups=np.array([1, 2, 3, 4]),
    ignored=np.array([[0, 1], [2, 0], [1, 3], [2, 3]]),
    positives=np.array([[0, 2], [2, 3]]),
)


def test_rules_of_some_queries_call_them_by_their_places() -> None:
    some = RULES.of_rows(np.array([2, 0]))
    assert some.groups is not None
    assert some.groups.tolist() == [9, 7]
    assert some.gallery_groups is RULES.gallery_groups
    assert some.ignored is not None
    assert some.ignored.tolist() == [[1, 1], [0, 0], [0, 3]]
    assert some.positives is not None
    assert some.positives.tolist() == [[1, 2], [0, 3]]


def test_rules_of_some_items_call_them_by_their_places() -> None:
    some = RULES.of_rows(np.array([0, 2]), np.array([3, 0]))
    assert some.gallery_groups is not None
    assert some.gallery_groups.tolist() == [4, 1]
    assert some.ignored is not None
    assert some.ignored.tolist() == [[1, 1], [1, 0]]
    assert some.positives is not None
    assert some.positives.tolist() == [[1, 0]]


def test_queries_that_were_searched_among_themselves_are_what_some_of_them_are_searched_in() -> None:
    some = SearchRules(groups=np.array([5, 6, 5])).of_rows(np.array([1]))
    assert some.groups is not None
    assert some.gallery_groups is not None
    assert (some.groups.tolist(), some.gallery_groups.tolist()) == ([6], [5, 6, 5])
    assert (some.ignored, some.positives) == (None, None)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_hits_among_half_average_over_all_galleries_that_keep_some_of_the_closer_negatives(k: int) -> None:
    # Each subset of the closer negatives is as likely. What is tied with the positive stands behind them as it is.
    queries = [(closer, 0, 1) for closer in range(9)]
    expected = [
        np.mean([ranks((sum(kept), 0, 1)).hits(k)[0] for kept in product((0, 1), repeat=closer)])
        for closer, _, _ in queries
    ]
    assert ranks(*queries).hits_among_half(k) == pytest.approx(expected, abs=1e-12)


def test_hits_among_half_of_a_query_that_may_hit_take_ties_as_they_are() -> None:
    queries = [(0, 3, 1), (1, 2, 2), (1, 0, 4)]
    whole = ranks(*queries).hits(2)
    assert ranks(*queries).hits_among_half(2).tolist() == whole.tolist()
    # Ties behind k closer negatives are not looked at: whether few enough of these are kept decides, 1 of 4 subsets.
    assert float(ranks((2, 3, 1)).hits_among_half(1)[0]) == 1 / 4


def test_a_lone_query_never_hits_among_half() -> None:
    assert ranks((0, 0, 0), (3, 0, 0), (3, 5, 0)).hits_among_half(2).tolist() == [0, 0, 0]


def test_among_half_a_query_never_hits_less_often() -> None:
    several = ranks(*[(closer, negatives, 1) for closer in range(30) for negatives in range(4)])
    for k in (1, 5):
        assert (several.hits_among_half(k) >= several.hits(k)).all()
