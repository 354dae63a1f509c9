from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.values.retrieval import Ranks
from layerprobe.workflow.plot.query_rules import (
    QueriesByOutcome,
    QueriesOfClass,
    QueryOfImage,
    RandomQueries,
    Rule,
    WorstQueries,
    choose_queries,
    parse_rule,
)
from layerprobe.workflow.run.references import RankedSplit, open_ranked_split
from layerprobe.workflow.run.runs import Run
from tests.workflow.rank_files import FC6, LABELS, POOL5, stored, written

NAMES = [f"class{label}" for label in range(24)]
COUNT = len(LABELS["test"])  # 24 queries, two of each class


def ranks_with(closer: dict[int, int], negatives: dict[int, int] | None = None, lone: tuple[int, ...] = ()) -> Ranks:
    """Queries have a right item first, but for those named: so many wrong ones are closer, so many as close."""
    counts = [np.zeros(COUNT, np.int32) for _ in range(2)]
    for array, places in zip(counts, (closer, negatives or {}), strict=True):
        for place, count in places.items():
            array[place] = count
    positives = np.array([place not in lone for place in range(COUNT)], np.int32)
    return Ranks(counts[0], counts[0], counts[1], positives)


@pytest.fixture
def ranked_split_of(tmp_path: Path) -> Callable[..., RankedSplit]:
    def make(pool5: Ranks | str, fc6: Ranks | str, seed: int = 0) -> RankedSplit:
        run = Run(tmp_path / "one")
        written(run, stored(run, 5, "test", {POOL5: pool5, FC6: fc6}), seed=seed)
        return open_ranked_split(run, 5, "test")

    return make


def rows_by(rule: Rule, ranked_split: RankedSplit, count: int = COUNT) -> list[int]:
    return [int(row) for row in choose_queries(rule, ranked_split, NAMES, count).rows]


def test_right_and_wrong_are_told_by_the_nearest_item(ranked_split_of: Callable[..., RankedSplit]) -> None:
    # by pool5 query 3 is wrong; by fc6 queries 3, 8 and 9 are
    ranked_split = ranked_split_of(ranks_with({3: 1}), ranks_with({3: 2, 8: 1, 9: 4}))
    rule = parse_rule("pool5 right, fc6 wrong", ranked_split.layers, FC6)
    assert rule == QueriesByOutcome(((POOL5, True), (FC6, False)))
    assert sorted(rows_by(rule, ranked_split)) == [8, 9]
    assert rows_by(parse_rule("pool5 wrong", ranked_split.layers, FC6), ranked_split) == [3]


def test_a_tie_of_right_and_wrong_and_a_lone_query_count_as_neither(
    ranked_split_of: Callable[..., RankedSplit],
) -> None:
    # query 2: a right and a wrong item tie for the first rank; query 4: no item is right
    ranked_split = ranked_split_of(ranks_with({}), ranks_with({4: 5, 6: 1}, {2: 1}, lone=(4,)))
    assert rows_by(QueriesByOutcome(((FC6, False),)), ranked_split) == [6]
    assert 2 not in rows_by(QueriesByOutcome(((FC6, True),)), ranked_split)


def test_ranks_whose_first_places_are_not_known_name_the_command(ranked_split_of: Callable[..., RankedSplit]) -> None:
    # of query 3 it is known only that 0 to 2 wrong items are closer than the nearest right one
    known = ranks_with({})
    fc6 = replace(known, closer_high=ranks_with({3: 2}).closer)
    ranked_split = ranked_split_of(known, known)
    ranked_split = replace(ranked_split, stored=replace(ranked_split.stored, ranks={POOL5: known, FC6: fc6}))
    command = "Run layerprobe probe one --epochs 5 --splits test --layers fc6 --k 1"
    with pytest.raises(DataError, match=f"fc6 at epoch 5 was not ranked for K = 1. {command}"):
        choose_queries(QueriesByOutcome(((FC6, True),)), ranked_split, NAMES, 3)


def test_the_worst_have_their_nearest_right_item_farthest_down(ranked_split_of: Callable[..., RankedSplit]) -> None:
    # query 7: 3 closer; query 1: 2 closer and 4 tied with one right item, of which 2 come before it: 4 in all;
    # query 5: no right item
    ranked_split = ranked_split_of(ranks_with({}), ranks_with({7: 3, 1: 2, 5: 9}, {1: 4}, lone=(5,)))
    assert parse_rule("worst", ranked_split.layers, FC6) == WorstQueries(FC6)
    chosen = choose_queries(WorstQueries(FC6), ranked_split, NAMES, 3)
    # the third is the first of those that are equally good
    assert chosen.rows.tolist() == [1, 7, 0]
    assert chosen.text == "Queries: worst by fc6, the 3 whose nearest right item is farthest down"


def test_random_queries_are_those_of_the_seed(ranked_split_of: Callable[..., RankedSplit]) -> None:
    ranked_split = ranked_split_of(ranks_with({}), ranks_with({}), seed=3)
    chosen = choose_queries(RandomQueries(), ranked_split, NAMES, 4)
    assert chosen.rows.tolist() == np.random.default_rng(3).permutation(COUNT)[:4].tolist()
    assert chosen.text == "Queries: random, 4 of 24 at random by seed 3"


def test_a_class_and_an_image_are_named_as_the_data_set_has_them(ranked_split_of: Callable[..., RankedSplit]) -> None:
    ranked_split = ranked_split_of(ranks_with({}), ranks_with({}))
    rule = parse_rule("class class13", ranked_split.layers, FC6)
    assert rule == QueriesOfClass("class13")
    # the test labels are 12, 12, 13, 13 ...
    assert sorted(rows_by(rule, ranked_split)) == [2, 3]
    assert choose_queries(rule, ranked_split, NAMES, 9).text == "Queries: class class13, all 2"
    unnamed = choose_queries(QueriesOfClass("13"), ranked_split, (), 9)
    assert unnamed.text == "Queries: class 13, all 2"
    assert rows_by(QueryOfImage("test5"), ranked_split) == [5]
    with pytest.raises(RecipeError, match="no class 'class133' in the test split. Did you mean 'class13'?"):
        choose_queries(QueriesOfClass("class133"), ranked_split, NAMES, 1)
    with pytest.raises(RecipeError, match="no image '/x.png' in the test split. An example is 'test0'"):
        choose_queries(QueryOfImage("/x.png"), ranked_split, NAMES, 1)


def test_words_that_are_no_rule_say_what_is_one(ranked_split_of: Callable[..., RankedSplit]) -> None:
    ranked_split = ranked_split_of(ranks_with({}), "NaN (3 rows)")
    with pytest.raises(
        RecipeError, match="'fc6 left' is not a rule. Write 'LAYER right, LAYER wrong', worst, random or"
    ):
        parse_rule("pool5 right, fc6 left", ranked_split.layers, FC6)
    with pytest.raises(RecipeError, match="'right' is not a rule"):
        parse_rule("right", ranked_split.layers, FC6)
    with pytest.raises(UnknownNameError, match="unknown layer 'pool55'. Did you mean 'pool5@max'"):
        parse_rule("pool55 right", ranked_split.layers, FC6)
    with pytest.raises(RecipeError, match=r"\* names several layers. Choose one of pool5@max, fc6"):
        parse_rule("* right", ranked_split.layers, FC6)
    with pytest.raises(DataError, match="fc6 at epoch 5: NaN .3 rows"):
        choose_queries(WorstQueries(FC6), ranked_split, NAMES, 1)
