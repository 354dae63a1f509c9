from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.statistics.bootstrap import intervals
from layerprobe.statistics.choice import optimism
from layerprobe.statistics.units import UnitSums
from layerprobe.system.errors import NumericError
from layerprobe.values.choice import Candidate, Choice
from layerprobe.values.keys import LayerKey, RankedLayer
from layerprobe.values.scores import Subject
from layerprobe.workflow.choose.candidate_set import CandidateSet
from layerprobe.workflow.choose.choosing import BEST_ON_TEST, choose_among

Array = NDArray[np.float64]


def candidate(layer: str, dim: int, place: int, reduction: str = "none") -> Candidate:
    return Candidate(10, RankedLayer(LayerKey(layer, "none"), reduction, "cosine"), dim, place)


EARLY, LATE, WHITE = (
    candidate("pool5.1", 64, 1), candidate("fc6", 32, 2), candidate("fc6", 16, 2, "l2+whiten:16:0.5+l2")
)  # fmt: skip


def subject_of(candidate: Candidate, split: str) -> Subject:
    return Subject("try", "abc", 0, candidate.epoch or 0, split, candidate.ranked, (f"of {split}",))


def cells_of(means: list[float], units: int = 20, seed: int = 0) -> UnitSums:
    """Means with a spread of 2 points over units of 20 queries."""
    rng = np.random.default_rng(seed)
    spread = rng.normal(0, 0.02, (len(means), units))
    spread -= spread.mean(1, keepdims=True)
    table = 20 * (np.array(means)[:, None] + spread)
    return UnitSums(table, np.full(table.shape, 20.0))


def chosen(
    candidates: list[Candidate],
    choosing: UnitSums,
    test: UnitSums | None = None,
    *,
    split: str = "validation",
    folds: NDArray[np.int64] | None = None,
    by_fold: dict[int, UnitSums] | None = None,
    notes: tuple[str, ...] = (),
    within: float = 1.0,
    seed: int = 0,
) -> Choice:
    candidate_set = CandidateSet(candidates, split, subject_of, choosing, test, folds, by_fold or {})
    return choose_among(candidate_set, notes, within=within, seed=seed)


def test_the_chosen_one_is_told_on_the_choosing_classes_and_on_test() -> None:
    choosing, test = cells_of([0.9, 0.7]), cells_of([0.6, 0.65], seed=1)
    choice = chosen([EARLY, LATE], choosing, test)
    assert choice.test is not None
    assert choice.best_on_test is not None
    assert choice.run == "try"
    assert (choice.chosen.split, choice.chosen.layer, choice.chosen.epoch, choice.chosen.n) == (
        "validation", "pool5.1", 10, 400,
    )  # fmt: skip
    assert [choice.chosen.value, choice.test.value] == pytest.approx([0.9, 0.6])
    assert (choice.test.split, choice.test.layer) == ("test", "pool5.1")
    assert choice.best_on_test.layer == "fc6"
    assert choice.best_on_test.value == pytest.approx(0.65)
    assert choice.regret == pytest.approx(0.05)


def test_what_is_shipped_is_the_chosen_candidate() -> None:
    ship = chosen([EARLY, WHITE], cells_of([0.7, 0.9])).ship
    assert (ship.layer, ship.pool, ship.reduction, ship.epoch) == ("fc6", "none", "l2+whiten:16:0.5+l2", 10)
    assert (ship.dim, ship.bytes_per_image) == (16, 64)


def test_a_cheaper_one_within_a_point_is_chosen_and_the_better_one_is_equivalent() -> None:
    cells = cells_of([0.905, 0.9])
    fine = chosen([EARLY, LATE], cells, within=3)
    strict = chosen([EARLY, LATE], cells, within=0.1)
    assert (fine.chosen.layer, fine.equivalent, fine.within) == ("fc6", ("pool5.1",), 3)
    assert (strict.chosen.layer, strict.equivalent) == ("pool5.1", ())


def test_the_scores_have_the_intervals_of_their_means() -> None:
    choosing, test = cells_of([0.9, 0.7]), cells_of([0.6, 0.65], seed=1)
    choice = chosen([EARLY, LATE], choosing, test, seed=4)
    expected = [intervals(cells, seed=4)[0] for cells in (choosing, test)]
    assert choice.test is not None
    for score, interval in zip((choice.chosen, choice.test), expected, strict=True):
        assert interval is not None
        assert (score.low, score.high) == pytest.approx((interval.low, interval.high))


def test_the_best_on_test_says_that_it_was_chosen_by_looking() -> None:
    choice = chosen([EARLY, LATE], cells_of([0.9, 0.7]), cells_of([0.6, 0.65]), split="train")
    assert choice.test is not None
    assert choice.best_on_test is not None
    assert choice.best_on_test.notes == (BEST_ON_TEST, "interval over few classes: 20", "of test")
    assert BEST_ON_TEST not in choice.test.notes


def test_a_clear_choice_is_settled_and_a_close_one_is_not() -> None:
    clear = chosen([EARLY, LATE], cells_of([0.9, 0.7]))
    close = chosen([EARLY, LATE], cells_of([0.9, 0.9]), within=0)
    assert (clear.settled, clear.shares) == (True, {"pool5.1": 1.0})
    assert not close.settled
    assert sum(close.shares.values()) == pytest.approx(1)
    assert list(close.shares.values()) == sorted(close.shares.values(), reverse=True)


def test_with_fewer_than_ten_classes_the_best_mean_is_chosen_and_never_settled() -> None:
    choice = chosen([EARLY, LATE], cells_of([0.9, 0.899], units=9), within=5)
    assert (choice.chosen.layer, choice.settled, choice.equivalent) == ("pool5.1", False, ())
    assert choice.notes == (
        "chosen on validation: 9 classes, 2 candidates",
        "not settled: fewer than 10 classes, so the highest mean is chosen",
    )
    assert choice.chosen.low is None


def test_with_fewer_than_ten_classes_even_a_clear_choice_is_not_settled() -> None:
    choice = chosen([EARLY, LATE], cells_of([0.9, 0.5], units=9))
    assert (choice.shares, choice.settled) == ({"pool5.1": 1.0}, False)


def test_the_notes_say_how_it_was_chosen() -> None:
    assert chosen([EARLY, LATE], cells_of([0.9, 0.7]), notes=("classes that were held out",)).notes == (
        "chosen on validation: 20 classes, 2 candidates",
        "rule: the cheapest at most 1 point worse than the best, with 95 % confidence (paired)",
        "classes that were held out",
    )


def test_without_test_classes_nothing_is_said_of_test() -> None:
    choice = chosen([EARLY], cells_of([0.9]))
    assert (choice.test, choice.best_on_test, choice.regret, choice.optimism) == (None, None, None, None)


def test_cross_fitting_tells_what_the_other_folds_chose_as_the_figure_on_test() -> None:
    # Units 0 to 9 are better in the first, 10 to 19 in the second: the other fold's choice is the wrong one, 0.2.
    means = np.repeat([[0.8, 0.2], [0.2, 0.81]], 10, axis=1)
    cells, folds = UnitSums(20 * means, np.full(means.shape, 20.0)), np.repeat([0, 1], 10)
    choice = chosen([EARLY, LATE], cells, split="test", folds=folds, within=0)
    assert choice.test is not None
    assert choice.best_on_test is not None
    assert choice.test.value == pytest.approx(0.2)
    assert choice.chosen.value == pytest.approx(0.505)
    assert choice.best_on_test.value == pytest.approx(0.505)
    assert choice.regret == pytest.approx(0.305)
    assert choice.chosen.split == "test"
    for notes in (choice.chosen.notes, choice.test.notes, choice.notes):
        assert "cross-fitted, 2 folds" in notes


@pytest.mark.parametrize(("places", "said"), [
    ((0, 0, 0), []),
    ((0, 1, 0), ["2 of 3 folds choose the same: the value on test is that of what each of them chose"]),
    ((1, 2, 1), ["0 of 3 folds choose the same: the value on test is that of what each of them chose"]),
])  # fmt: skip
def test_cross_fitting_says_where_folds_choose_something_else(places: tuple[int, ...], said: list[str]) -> None:
    # The third candidate is found in some folds only: it is not among those that can be shipped.
    folds, counts = np.arange(21) % 3, np.full((3, 21), 20.0)
    by_fold = {fold: UnitSums(np.where(np.arange(3)[:, None] == place, 18.0, 2.0) * np.ones(21), counts)
               for fold, place in enumerate(places)}  # fmt: skip
    choosing = cells_of([0.9, 0.5], units=21)
    choice = chosen([EARLY, LATE, WHITE], choosing, split="test", folds=folds, by_fold=by_fold)
    assert [note for note in choice.notes if "choose the same" in note] == said
    assert choice.test is not None
    assert choice.test.value == pytest.approx(0.9)
    assert set(choice.shares) == {"pool5.1"}


def test_optimism_is_that_of_the_test_classes_over_five_folds() -> None:
    choosing, test = cells_of([0.9, 0.7]), cells_of([0.6, 0.6], seed=1)
    choice = chosen([EARLY, LATE], choosing, test, seed=2)
    folds = np.random.default_rng(2).permutation(np.arange(20) % 5)
    assert choice.optimism == optimism(test, folds)
    few = chosen([EARLY, LATE], choosing, cells_of([0.6, 0.6], units=9))
    assert few.optimism is None


def test_candidates_without_a_valid_number_are_left_out_and_counted() -> None:
    cells = cells_of([0.7, 0.9])
    cells.sums[1, 0] = np.nan
    choice = chosen([EARLY, LATE], cells, cells)
    assert choice.best_on_test is not None
    assert (choice.chosen.layer, choice.best_on_test.layer) == ("pool5.1", "pool5.1")
    assert "skipped: 1 of the candidates without a valid number" in choice.notes
    with pytest.raises(NumericError, match="no candidate has a valid number"):
        chosen([LATE], UnitSums(cells.sums[1:], cells.counts[1:]))


def test_a_chosen_one_that_is_nan_on_test_has_no_figure_and_no_regret() -> None:
    test = cells_of([0.7, 0.9])
    test.sums[0, 0] = np.nan
    choice = chosen([EARLY, LATE], cells_of([0.9, 0.7]), test)
    assert choice.test is not None
    assert (choice.test.value, choice.regret) == (None, None)
    assert "NaN" in choice.test.notes
