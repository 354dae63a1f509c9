from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from layerprobe.statistics.choice import optimism
from layerprobe.statistics.units import UnitSums, intervals
from layerprobe.system.errors import DataError, NumericError
from layerprobe.values.choice import Choice, verdict_text
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Subject
from layerprobe.workflow.choose.choose_among import BEST_ON_TEST, Candidate, Candidates, choose_among

Array = NDArray[np.float64]


def candidate(layer: str, dim: int, place: int, post_processing: str = "none") -> Candidate:
    """A layer without values."""
    ranked = RankedLayer(LayerKey(layer, "none"), post_processing, "cosine")
    subject = Subject("try", "abc", 0, 10, "", ranked)
    return Candidate(subject, dim, place, None, None, np.nan, str(ranked), None, ("of test",))


EARLY, LATE, WHITE = (
    candidate("pool5.1", 64, 1), candidate("fc6", 32, 2), candidate("fc6", 16, 2, "l2+whiten:16:0.5+l2")
)  # fmt: skip


def cells_of(means: list[float], units: int = 20, seed: int = 0) -> UnitSums:
    """Means with a spread of 2 points over units of 20 queries."""
    rng = np.random.default_rng(seed)
    spread = rng.normal(0, 0.02, (len(means), units))
    spread -= spread.mean(1, keepdims=True)
    table = 20 * (np.array(means)[:, None] + spread)
    return UnitSums(table, np.full(table.shape, 20.0))


def chosen(
    candidates: list[Candidate],
    selection: UnitSums,
    test: UnitSums | None = None,
    *,
    split: str = "validation",
    folds: NDArray[np.int64] | None = None,
    above_chance: UnitSums | None = None,
    identities: Sequence[str] | None = None,
    baseline: UnitSums | None = None,
    among_half: Array | None = None,
    gallery_classes: int = 20,
    notes: tuple[str, ...] = (),
    finer: UnitSums | None = None,
    within: float = 1.0,
    seed: int = 0,
) -> Choice:
    """The choice; the embedding, fc6 without post-processing, has the values `baseline` on test."""
    above_chance, test = above_chance or selection, selection if folds is not None else test
    competing = [
        replace(
            x,
            subject=replace(x.subject, split=split, notes=(f"of {split}",)),
            selection=selection[[index]],
            above_chance=above_chance[[index]],
            among_half=np.nan if among_half is None else among_half[index],
            identity=identities[index] if identities else x.identity,
            test=None if test is None else test[[index]],
        )
        for index, x in enumerate(candidates)
    ]
    embedding = competing[candidates.index(LATE)] if LATE in candidates else replace(LATE, test=baseline)
    competing_candidates = Candidates(
        competing,
        split,
        selection.units,
        gallery_classes,
        embeddings={} if baseline is None else {"try": embedding},
        folds=folds,
        average_precisions=None if finer is None else lambda some: finer[[competing.index(x) for x in some]],
    )
    return choose_among(competing_candidates, notes, within=within, seed=seed)


def test_the_chosen_one_is_scored_on_the_selection_classes_and_on_test() -> None:
    selection, test = cells_of([0.9, 0.7]), cells_of([0.6, 0.65], seed=1)
    choice = chosen([EARLY, LATE], selection, test)
    assert choice.test is not None
    assert choice.best_on_test is not None
    assert choice.run == "try"
    assert (choice.chosen.split, choice.chosen.ranked.layer.layer, choice.chosen.epoch, choice.chosen.n) == (
        "validation", "pool5.1", 10, 400,
    )  # fmt: skip
    assert [choice.chosen.value, choice.test.value] == pytest.approx([0.9, 0.6])
    assert (choice.test.split, choice.test.ranked.layer.layer) == ("test", "pool5.1")
    assert choice.best_on_test.ranked.layer.layer == "fc6"
    assert choice.best_on_test.value == pytest.approx(0.65)
    assert choice.regret == pytest.approx(0.05)


def test_without_an_embedding_what_is_shipped_is_the_preferred_candidate() -> None:
    choice = chosen([EARLY, WHITE], cells_of([0.7, 0.9]))
    selected = choice.selected
    assert (selected.layer, selected.pool, selected.post_processing, selected.epoch) == (
        "fc6",
        "none",
        "l2+whiten:16:0.5+l2",
        10,
    )
    assert (selected.dim, selected.bytes_per_image) == (16, 64)
    assert choice.preferred == selected


@pytest.mark.parametrize("raw", [0.9325, 0.93])
def test_a_saturated_validation_prefers_no_cheaper_post_processing(raw: float) -> None:
    # Partially whitened pool3.2 reaches 93.25 % among 20 validation classes and 66.7 % among 78 of test; raw 70.0 %.
    # MAP@R is 62 % raw and 58 % partially whitened.
    layer, white = candidate("pool3.2", 256, 1), candidate("pool3.2", 128, 1, "l2+whiten:128:0.5+l2")
    test, finer = cells_of([0.70, 0.667], units=78, seed=1), cells_of([0.62, 0.58])
    choice = chosen([layer, white], cells_of([raw, 0.9325]), test, finer=finer)
    assert choice.preferred.name == "pool3.2"
    assert choice.test is not None
    assert choice.test.value == pytest.approx(0.7)
    assert choice.regret == 0


def test_a_finer_measure_decides_within_half_a_standard_error_alone() -> None:
    # Of the paired difference: about 0.02 sqrt(2 / 20) = 0.006. The points that do not matter decide nothing.
    finer = cells_of([0.5, 0.4])
    for within in (0, 5):
        near, far = (
            chosen([EARLY, WHITE], cells_of([0.9, mean]), finer=finer, within=within) for mean in (0.902, 0.905)
        )
        assert (near.preferred.layer, far.preferred.layer) == ("pool5.1", "fc6")


def test_a_layer_far_ahead_is_clear_though_its_whitened_twin_is_near() -> None:
    twin = candidate("pool5.1", 32, 1, "l2+whiten:32:0.5+l2")
    far, further = candidate("pool5.1", 64, 1), [LATE, WHITE, candidate("fc7", 32, 3)]
    choice = chosen([far, twin, *further], cells_of([0.9, 0.9, 0.56, 0.55, 0.5]), within=0.5)
    assert choice.post_processing is not None
    assert (choice.verdict, choice.post_processing.verdict, choice.post_processing.others) == (
        "inconclusive",
        "inconclusive",
        1,
    )
    assert (choice.layer.verdict, choice.layer.max_loss, choice.layer.others) == ("significant", 0.0, 2)
    assert choice.layer.lead is not None
    assert choice.layer.lead.difference == pytest.approx(0.34)
    assert "pool5.1: significant, better than each of the 2 others." in verdict_text(choice)


def test_a_layer_is_judged_by_its_own_best_post_processing() -> None:
    # The raw layer is picked by the finer measure, near its whitened twin; that leads the other layer.
    twin = candidate("pool5.1", 32, 1, "l2+whiten:32:0.5+l2")
    choice = chosen([EARLY, twin, LATE], cells_of([0.9, 0.902, 0.7]), finer=cells_of([0.5, 0.4, 0.3]))
    assert choice.preferred.post_processing == "none"
    assert choice.layer.lead is not None
    assert choice.layer.lead.difference == pytest.approx(0.202)
    assert chosen([EARLY, LATE], cells_of([0.9, 0.7])).post_processing is None


def test_bounds_are_for_the_gallery_that_the_choice_is_for() -> None:
    # From 19 other classes to 77 are 2.02 doublings, each of which multiplies the odds of misses, 1 / 9, by that over
    # 8 / 92.
    cells, among_half = cells_of([0.902, 0.898]), np.array([0.92, 0.92])
    same, larger = (
        chosen([EARLY, LATE], cells, among_half=among_half, gallery_classes=classes) for classes in (20, 78)
    )
    odds = 1 / 9 * (1 / 9 / (8 / 92)) ** np.log2(77 / 19)
    growth = odds / (1 + odds) ** 2 / 0.09
    assert same.max_loss is not None
    assert same.expected_loss is not None
    assert same.expected_loss > 0
    assert larger.max_loss == pytest.approx(growth * same.max_loss)
    assert larger.expected_loss == pytest.approx(growth * same.expected_loss)
    assert same.post_processing == larger.post_processing is None
    assert (same.layer.max_loss, larger.layer.max_loss) == (same.max_loss, larger.max_loss)
    assert (same.gallery_classes, larger.gallery_classes) == (20, 78)
    unknown = chosen([EARLY, LATE], cells, gallery_classes=78)
    assert (unknown.max_loss, unknown.gallery_classes) == (same.max_loss, 20)


def test_the_scores_have_the_intervals_of_their_means() -> None:
    selection, test = cells_of([0.9, 0.7]), cells_of([0.6, 0.65], seed=1)
    choice = chosen([EARLY, LATE], selection, test, seed=4)
    expected = [intervals(cells)[0] for cells in (selection, test)]
    assert choice.test is not None
    for score, interval in zip((choice.chosen, choice.test), expected, strict=True):
        assert interval is not None
        assert (score.low, score.high) == pytest.approx((interval.low, interval.high))


def test_the_best_on_test_says_that_it_was_chosen_by_looking() -> None:
    choice = chosen([EARLY, LATE], cells_of([0.9, 0.7]), cells_of([0.6, 0.65]), split="train")
    assert choice.test is not None
    assert choice.best_on_test is not None
    assert choice.best_on_test.notes == (BEST_ON_TEST, "of test")
    assert BEST_ON_TEST not in choice.test.notes


def test_the_verdict_is_significant_conclusive_or_inconclusive() -> None:
    clear = chosen([EARLY, LATE], cells_of([0.9, 0.7]))
    alike = chosen([EARLY, LATE], cells_of([0.9, 0.9], units=400), within=2)
    few = chosen([EARLY, LATE], cells_of([0.9, 0.9]), within=0.5)
    assert (clear.verdict, clear.conclusive, clear.max_loss, clear.shares) == (
        "significant",
        True,
        0.0,
        {"pool5.1": 1.0},
    )
    assert (alike.verdict, alike.conclusive, alike.equivalent) == ("conclusive", True, ("fc6", "pool5.1"))
    assert (few.verdict, few.conclusive) == ("inconclusive", False)
    assert alike.max_loss is not None
    assert few.max_loss is not None
    assert alike.max_loss < 2
    assert few.max_loss > 0.5
    assert sum(few.shares.values()) == pytest.approx(1)
    assert list(few.shares.values()) == sorted(few.shares.values(), reverse=True)


def test_the_expected_loss_is_in_points_of_what_resamples_choose() -> None:
    choice = chosen([EARLY, LATE], cells_of([0.9, 0.89]), within=0)
    assert choice.expected_loss == pytest.approx(choice.shares.get("fc6", 0.0))


def test_fewer_than_ten_classes_name_no_candidate_and_keep_the_embedding() -> None:
    test = cells_of([0.9, 0.5], seed=1)
    baseline = test[[1]]
    choice = chosen([EARLY, LATE], cells_of([0.9, 0.5], units=9), test, baseline=baseline)
    assert (choice.preferred.layer, choice.verdict, choice.advice) == ("fc6", "inconclusive", "inconclusive")
    assert choice.selected == choice.preferred
    assert (choice.layer.verdict, choice.layer.max_loss) == ("inconclusive", None)
    assert (choice.max_loss, choice.expected_loss, choice.classes_needed) == (None, None, None)
    assert choice.chosen.low is None
    assert choice.test is not None
    assert choice.test.value == pytest.approx(0.5)


def test_the_number_of_classes_counts_before_the_best_mean_is_the_embedding() -> None:
    test = cells_of([0.5, 0.9], units=9, seed=1)
    baseline = test[[1]]
    for folds in (None, np.arange(9) % 3):
        split = "validation" if folds is None else "test"
        choice = chosen([EARLY, LATE], test, test, split=split, baseline=baseline, folds=folds)
        assert (choice.preferred.layer, choice.advice) == ("fc6", "inconclusive")
        assert not any("folds" in note for note in choice.notes)


def test_values_of_several_folds_choices_are_not_compared_with_one_layer() -> None:
    early = candidate("pool5.1", 16, 1, "l2+whiten:16:0.5+l2")
    means = np.array([np.repeat([0.9, 0.2], 10), np.full(20, 0.1), np.repeat([0.1, 0.8], 10)])
    cells, folds = UnitSums(20 * means, np.full(means.shape, 20.0)), np.repeat([0, 1], 10)
    unlike = chosen([early, LATE, WHITE], cells, split="test", folds=folds, baseline=cells[[1]])
    assert unlike.embedding is not None
    assert unlike.embedding.gain is None
    same = UnitSums(20 * np.full((3, 20), 0.1) + 8 * np.array([[1], [0], [0.5]]), np.full(means.shape, 20.0))
    alike = chosen([early, LATE, WHITE], same, split="test", folds=folds, baseline=same[[1]])
    assert alike.embedding is not None
    assert alike.embedding.gain is not None
    assert alike.embedding.gain.difference == pytest.approx(0.2)


def compared(preferred: float, embedding: float, *, dim: int = 64, units: int = 40, sd: float = 0.004) -> Choice:
    """The choice of pool5.1, whose values on test differ from the embedding's by the difference of two means."""
    rng = np.random.default_rng(0)
    classes = rng.uniform(-0.1, 0.1, units)
    test = np.array([value + classes + rng.normal(0, sd, units) for value in (preferred, embedding)])
    sums, counts = 20 * test, np.full((2, units), 20.0)
    baseline = UnitSums(sums[[1]], counts[[1]])
    early = candidate("pool5.1", dim, 1)
    return chosen([early, LATE], cells_of([0.9, 0.5]), UnitSums(sums, counts), baseline=baseline)


@pytest.mark.parametrize(("preferred", "embedding", "advice", "selected"), [
    (0.9, 0.8, "switch", "pool5.1"), (0.8, 0.9, "keep", "fc6"), (0.9, 0.9, "either", "fc6"),
])  # fmt: skip
def test_the_advice_follows_the_gain_on_test(preferred: float, embedding: float, advice: str, selected: str) -> None:
    choice = compared(preferred, embedding)
    assert (choice.advice, choice.selected.layer, choice.preferred.layer) == (advice, selected, "pool5.1")
    assert choice.gain is not None
    assert choice.gain.difference == pytest.approx(preferred - embedding, abs=0.002)
    assert choice.embedding is not None
    assert choice.embedding.layer.name == "fc6"
    assert (choice.gain_classes, choice.gain_elsewhere) == (40, advice != "either")


def test_the_gain_has_the_paired_interval_of_its_classes() -> None:
    rng = np.random.default_rng(0)
    tables = [value + rng.normal(0, 0.01, 40) for value in (0.9, 0.8)]
    test = UnitSums(20 * np.array(tables), np.full((2, 40), 20.0))
    baseline = test[[1]]
    gain = chosen([EARLY, LATE], cells_of([0.9, 0.5]), test, baseline=baseline).gain
    expected = stats.ttest_rel(*tables).confidence_interval(0.95)
    assert gain is not None
    assert (gain.low, gain.high) == pytest.approx((expected.low, expected.high), abs=0.0005)


@pytest.mark.parametrize(("preferred", "sd"), [(0.81, 0.2), (0.7, 0.004)])
def test_where_the_embedding_is_kept_its_scores_are_those_of_the_choice(preferred: float, sd: float) -> None:
    choice = compared(preferred, 0.8, sd=sd)
    assert choice.advice == ("inconclusive" if sd == 0.2 else "keep")
    assert choice.test is not None
    assert choice.embedding is not None
    assert choice.preferred_test is not None
    assert (choice.selected, choice.cost.bytes) == (choice.embedding.layer, 128)
    assert choice.preferred.layer == choice.preferred_test.ranked.layer.layer == "pool5.1"
    assert (choice.chosen.ranked.layer.layer, choice.chosen.split) == ("fc6", "validation")
    assert choice.chosen.value == pytest.approx(0.5)
    assert (choice.test.ranked.layer.layer, choice.test.split, choice.test.value) == (
        "fc6",
        "test",
        choice.embedding.test.value,
    )
    assert choice.gain is not None
    assert choice.preferred_test.value is not None
    assert choice.test.value is not None
    assert choice.gain.difference == pytest.approx(choice.preferred_test.value - choice.test.value)
    assert choice.best_on_test is not None
    assert choice.best_on_test.value is not None
    assert choice.regret == choice.best_on_test.value - choice.test.value


@pytest.mark.parametrize(("dim", "selected"), [(31, "pool5.1"), (32, "fc6"), (33, "fc6")])
def test_where_either_will_do_the_one_of_fewer_bytes_is_selected(dim: int, selected: str) -> None:
    choice = compared(0.9, 0.9, dim=dim)
    assert (choice.advice, choice.selected.layer, choice.cost.bytes) == ("either", selected, 4 * min(dim, 32))
    assert choice.test is not None
    assert (choice.test.ranked.layer.layer, choice.chosen.ranked.layer.layer) == (selected, selected)


def test_the_embedding_is_kept_where_it_is_the_preferred_candidate() -> None:
    test = cells_of([0.5, 0.9], seed=1)
    baseline = test[[1]]
    choice = chosen([EARLY, LATE], cells_of([0.5, 0.9]), test, baseline=baseline)
    assert (choice.selected.layer, choice.preferred.layer, choice.advice) == ("fc6", "fc6", "keep")


def test_an_embedding_that_is_no_candidate_is_kept_without_a_score_where_it_was_not_chosen_on() -> None:
    test = UnitSums(20 * np.random.default_rng(0).uniform(size=(1, 12)), np.full((1, 12), 20.0))
    other = UnitSums(20 * np.random.default_rng(1).uniform(size=(1, 12)), np.full((1, 12), 20.0))
    choice = chosen([EARLY], cells_of([0.9]), test, baseline=other)
    assert (choice.advice, choice.selected.layer, choice.chosen.ranked.layer.layer, choice.chosen.value) == (
        "inconclusive", "fc6", "fc6", None,
    )  # fmt: skip
    assert "not measured" in choice.chosen.notes


def test_the_embedding_with_the_shipped_post_processing_stands_beside_its_gain() -> None:
    early = candidate("pool5.1", 16, 1, "l2+whiten:16:0.5+l2")
    test = cells_of([0.8, 0.7, 0.79], seed=1)
    baseline = test[[1]]
    choice = chosen([early, LATE, WHITE], cells_of([0.95, 0.5, 0.6]), test, baseline=baseline)
    assert choice.preferred.name == "pool5.1/l2+whiten:16:0.5+l2"
    assert choice.gain is not None
    assert choice.gain.difference == pytest.approx(0.1)
    assert choice.embedding is not None
    assert choice.embedding.gain is not None
    assert choice.embedding.gain.difference == pytest.approx(0.01)


def test_the_embedding_without_post_processing_does_not_stand_beside_itself() -> None:
    choice = compared(0.9, 0.8)
    assert choice.embedding is not None
    assert (choice.embedding.alike, choice.embedding.gain) == (None, None)


def test_candidates_that_rank_every_query_alike_count_once() -> None:
    cells = cells_of([0.9, 0.9, 0.6])
    cells.sums[1] = cells.sums[0]
    copy = candidate("pool5.2", 128, 2)
    choice = chosen([EARLY, copy, LATE], cells, identities=["x", "x", "y"])
    assert (choice.selected.layer, choice.candidates, choice.verdict) == ("pool5.1", 2, "significant")
    assert "counted once: pool5.2 ranks every query like another candidate" in choice.details


def test_the_embedding_stands_for_what_ranks_every_query_alike() -> None:
    test = cells_of([0.9, 0.9], seed=1)
    test.sums[1] = test.sums[0]
    baseline = test[[1]]
    twin = candidate("fc6.1", 16, 1)
    choice = chosen([twin, LATE], cells_of([0.9, 0.9]), test, identities=["x", "x"], baseline=baseline)
    assert (choice.selected.layer, choice.advice) == ("fc6", "keep")


def test_post_processing_of_the_embedding_stands_for_what_ranks_every_query_alike() -> None:
    test = cells_of([0.9, 0.9, 0.5], seed=1)
    test.sums[1] = test.sums[0]
    baseline = test[[2]]
    twin = candidate("fc6.1", 16, 1, "l2+whiten:16:0.5+l2")
    choice = chosen([twin, WHITE, LATE], cells_of([0.9, 0.9, 0.5]), test, identities=["x", "x", "y"], baseline=baseline)
    assert choice.selected.name == "fc6/l2+whiten:16:0.5+l2"


def test_a_candidate_at_chance_is_named_and_not_shipped_though_it_is_the_cheapest() -> None:
    above = UnitSums(cells_of([0.9, 0.0]).sums, np.full((2, 20), 20.0))
    choice = chosen([EARLY, LATE], cells_of([0.9, 0.95]), above_chance=above)
    assert choice.selected.layer == "pool5.1"
    assert "skipped: not above chance on validation: fc6" in choice.details
    with pytest.raises(DataError, match="no layer is above chance on the 20 validation classes: fc6"):
        chosen([LATE], cells_of([0.5]), above_chance=cells_of([0.0]))
    choice = chosen([EARLY, LATE], cells_of([0.9, 0.95]), above_chance=above, split="train")
    assert "skipped: not above chance on selection classes: fc6" in choice.details


def test_the_notes_are_those_given() -> None:
    assert chosen([EARLY, LATE], cells_of([0.9, 0.7]), notes=("held out", "held out")).notes == ("held out",)


def test_regret_is_never_negative() -> None:
    for seed in range(12):
        selection, test = cells_of([0.9, 0.9, 0.9], seed=seed), cells_of([0.9, 0.9, 0.9], seed=100 + seed)
        choice = chosen([EARLY, LATE, WHITE], selection, test, within=5)
        assert choice.regret is not None
        assert choice.regret >= 0


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
    assert choice.regret is None
    assert choice.chosen.split == "test"
    for notes in (choice.chosen.notes, choice.test.notes, choice.notes):
        assert "cross-fitted, 2 folds" in notes


def test_optimism_is_that_of_the_test_classes_over_five_folds() -> None:
    selection, test = cells_of([0.9, 0.7]), cells_of([0.6, 0.6], seed=1)
    choice = chosen([EARLY, LATE], selection, test, seed=2)
    folds = np.random.default_rng(2).permutation(np.arange(20) % 5)
    assert choice.optimism == optimism(test, folds)
    few = chosen([EARLY, LATE], selection, cells_of([0.6, 0.6], units=9))
    assert few.optimism is None


def test_candidates_without_a_valid_number_are_left_out_and_counted() -> None:
    cells = cells_of([0.7, 0.9])
    cells.sums[1, 0] = np.nan
    choice = chosen([EARLY, LATE], cells, cells)
    assert choice.best_on_test is not None
    assert (choice.chosen.ranked.layer.layer, choice.best_on_test.ranked.layer.layer) == ("pool5.1", "pool5.1")
    assert "skipped: 1 of the candidates without a valid number" in choice.details
    with pytest.raises(NumericError, match="no candidate has a valid number"):
        chosen([LATE], UnitSums(cells.sums[1:], cells.counts[1:]))


def test_a_chosen_one_that_is_nan_on_test_has_no_figure_and_no_regret() -> None:
    test = cells_of([0.7, 0.9])
    test.sums[0, 0] = np.nan
    choice = chosen([EARLY, LATE], cells_of([0.9, 0.7]), test)
    assert choice.test is not None
    assert (choice.test.value, choice.regret) == (None, None)
    assert "NaN" in choice.test.notes


def candidates_of(means: list[float], among_half: ArrayLike, *, gallery_classes: int = 78) -> Candidates:
    """Candidates whose means are those of each of 20 classes, the first without post-processing."""
    cells = UnitSums(np.repeat(20 * np.array(means)[:, None], 20, 1), np.full((len(means), 20), 20.0))
    competing = [
        replace(candidate("c1", 8, 1, "l2+pca:8" if place else "none"), selection=cells[[place]], among_half=among)
        for place, among in enumerate(np.asarray(among_half).tolist())
    ]
    return Candidates(competing, "validation", 20, gallery_classes)


def test_differences_grow_as_the_mean_miss_rate_of_all_candidates_does() -> None:
    # 15 % of misses, and 12 % among half of the negatives: the odds rise by (15 / 85) / (12 / 88) for each of the
    # log2(77 / 19) doublings from 19 other classes to 77.
    odds = 15 / 85 * ((15 / 85) / (12 / 88)) ** np.log2(77 / 19)
    misses = odds / (1 + odds)
    grown = candidates_of([0.9, 0.8], [0.92, 0.84])
    assert grown.growth == pytest.approx(misses * (1 - misses) / (0.15 * 0.85))
    assert candidates_of([0.9, 0.8], [0.92, 0.84], gallery_classes=20).growth is None


def test_candidates_of_unknown_recall_among_half_say_nothing_of_the_growth() -> None:
    known = candidates_of([0.9], [0.92]).growth
    assert known is not None
    assert candidates_of([0.9, 0.1], [0.92, np.nan]).growth == known > 1


def test_nothing_grows_by_a_metric_that_has_no_recall_among_half() -> None:
    assert candidates_of([0.9, 0.8], [np.nan, np.nan]).growth is None


def test_some_of_the_candidates_keep_their_recall_among_half() -> None:
    both = candidates_of([0.9, 0.8], [0.92, 0.83])
    assert replace(both, competing=both.competing[1:]).growth == candidates_of([0.8], [0.83]).growth


def test_a_layer_without_post_processing_is_raw() -> None:
    assert candidates_of([0.9, 0.8], [0.92, 0.83]).raw == [True, False]
