from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from layerprobe.summary.cells import Faults, SplitCells
from layerprobe.summary.layers import (
    GapOnset,
    LayerSummary,
    Level,
    end_values,
    indistinguishable_layers,
    layer_summaries,
    opens_at,
)
from layerprobe.values.facts import DataFacts
from layerprobe.values.intervals import Difference
from layerprobe.values.layers import RankedLayer
from tests.summary.made_up import CLASSES, FC6, POOL5, split_of


def both(
    train: Mapping[int, float],
    test: Mapping[int, float],
    thinned: Mapping[int, float] | None = None,
) -> dict[str, SplitCells]:
    """Both splits of fc6, of different classes; the gallery of train may be thinned."""
    return {
        "train": split_of({FC6: train}, None if thinned is None else {FC6: thinned}),
        "test": split_of({FC6: test}, first_class=CLASSES),
    }


def summed(splits: dict[str, SplitCells], *, from_start: bool = True, ranked: RankedLayer = FC6) -> LayerSummary:
    (found,) = layer_summaries([ranked], splits, from_start=from_start)
    return found


def test_a_layers_recalls_are_those_of_its_last_epoch() -> None:
    found = summed(both({0: 0.5, 5: 0.9}, {0: 0.5, 5: 0.7}))
    assert {split: level.epoch for split, level in found.levels.items()} == {"train": 5, "test": 5}
    assert [level.value for level in found.levels.values()] == pytest.approx([0.9, 0.7])
    # 40 classes at 0.9 +- 0.05, t = 2.023: the error 0.05 sqrt(40) / 39 = 0.0081 moves the logit of 0.9, 2.197, by
    # 0.0081 t / 0.09 to 2.379, that of 0.9153. With a quarter of a class at 0.5, 0.8975 and 0.0084 give 2.170 - 0.186,
    # that of 0.8791.
    interval = found.levels["train"].interval
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((0.8791, 0.9153), abs=0.0001)


def test_the_gap_is_train_less_test() -> None:
    gap = summed(both({5: 0.9}, {5: 0.7})).gap
    assert gap is not None
    assert gap.value == pytest.approx(0.2)
    # the standard error of two independent means is sqrt(2) times that of one: 0.0112
    assert (gap.low, gap.high) == pytest.approx((0.178, 0.222), abs=0.003)


def test_the_gap_of_epoch_0_is_taken_off() -> None:
    found = summed(both({0: 0.55, 5: 0.9}, {0: 0.5, 5: 0.7})).gap_over_start
    assert found is not None
    # every class moved by the same: 0.35 on train, 0.2 on test, so that nothing is left to be uncertain about
    assert found.value == pytest.approx(0.15)


@pytest.mark.parametrize("from_start", [True, False])
def test_a_network_that_is_no_start_gives_no_gap_over_it(from_start: bool) -> None:
    found = summed(both({0: 0.55, 5: 0.9}, {0: 0.5, 5: 0.7}), from_start=from_start)
    assert (found.gap_over_start is not None) is from_start


def test_epoch_0_alone_has_a_gap_but_none_over_itself() -> None:
    found = summed(both({0: 0.55}, {0: 0.5}))
    assert found.gap is not None
    assert (found.gap_over_start, found.opening) == (None, None)


def test_the_gaps_are_those_of_the_thinned_gallery_where_one_is() -> None:
    found = summed(both({0: 0.5, 5: 0.9, 9: 0.9}, {0: 0.5, 5: 0.7, 9: 0.7}, thinned={0: 0.6, 5: 0.95, 9: 0.9}))
    assert found.gap is not None
    assert found.gap_over_start is not None
    assert found.gap.value == pytest.approx(0.2)
    assert found.gap_over_start.value == pytest.approx(0.2 - 0.1)
    assert found.levels["train"].thinned == pytest.approx(0.9)
    assert found.levels["test"].thinned is None


def test_a_layer_that_lacks_the_thinned_value_has_no_gap() -> None:
    found = summed(both({0: 0.5, 9: 0.9}, {0: 0.5, 9: 0.7}, thinned={0: 0.6}))
    assert (found.gap, found.gap_over_start, found.opening) == (None, None, None)


@pytest.mark.parametrize(
    ("lows", "epoch"),
    [
        ({1: 0.1, 2: 0.1, 3: 0.2}, 1),
        ({1: -0.1, 2: 0.1, 3: 0.2}, 2),
        ({1: 0.1, 2: -0.1, 3: 0.2}, 3),  # it closes again
        ({1: 0.1, 2: 0.2, 3: 0.0}, None),
        ({1: None, 2: 0.1, 3: 0.1}, 2),
        ({}, None),
    ],
)
def test_a_gap_opens_where_its_interval_stays_above_0_to_the_end(
    lows: dict[int, float | None], epoch: int | None
) -> None:
    curve = {at: Difference(0.3, low, None if low is None else 0.5) for at, low in lows.items()}
    assert opens_at(curve) == epoch


def spread_out(split: SplitCells, rng: np.random.Generator) -> SplitCells:
    """Classes that also change differently from epoch to epoch."""
    sums = split.raw.sums
    assert sums is not None
    moved = replace(sums, sums=sums.sums + 0.01 * rng.standard_normal(sums.sums.shape))
    return replace(split, raw=replace(split.raw, sums=moved))


@pytest.mark.parametrize(
    ("train", "opening"),
    [
        # test stays at 0.5, epoch 0 has no gap, and intervals are a few tenths of a point wide
        ({0: 0.5, 1: 0.5, 2: 0.6, 3: 0.7}, GapOnset(2)),
        ({0: 0.5, 1: 0.6, 2: 0.5, 3: 0.7}, GapOnset(3)),
        ({0: 0.5, 1: 0.6, 2: 0.6, 3: 0.45}, GapOnset(None)),
    ],
)
def test_the_opening_is_read_off_the_gaps_over_epoch_0(train: dict[int, float], opening: GapOnset) -> None:
    rng = np.random.default_rng(0)
    splits = {name: spread_out(split, rng) for name, split in both(train, dict.fromkeys(train, 0.5)).items()}
    assert summed(splits).opening == opening


@pytest.mark.parametrize(("thinned", "opening"), [([0, 1, 2], GapOnset(1)), ([0, 2], None), ([1, 2], None)])
def test_the_opening_is_known_where_every_epoch_has_a_gap(thinned: list[int], opening: GapOnset | None) -> None:
    rng = np.random.default_rng(0)
    made = both({0: 0.5, 1: 0.5, 2: 0.5}, dict.fromkeys(range(3), 0.5), thinned={0: 0.5, 1: 0.6, 2: 0.7})
    splits = {name: spread_out(split, rng) for name, split in made.items()}
    cells = spread_out(replace(made["train"], raw=made["train"].compared), rng).raw
    rows = {(ranked, epoch): row for (ranked, epoch), row in cells.rows.items() if epoch in thinned}
    splits["train"] = replace(splits["train"], thinned=replace(cells, rows=rows))
    assert summed(splits).opening == opening


def test_best_epochs_are_the_first_of_equals() -> None:
    splits = {"train": split_of({FC6: {0: 0.5, 3: 0.9, 5: 0.9}}), "test": split_of({FC6: {0: 0.5, 3: 0.7, 5: 0.8}})}
    assert summed(splits).best_epochs == {"train": 3, "test": 5}


def test_splits_that_share_classes_have_a_gap_without_interval() -> None:
    splits = {"train": split_of({FC6: {5: 0.9}}), "test": split_of({FC6: {5: 0.7}})}
    gap = summed(splits).gap
    assert gap is not None
    assert gap.value == pytest.approx(0.2)
    assert gap.interval is None


def test_a_layer_ends_at_its_own_last_epoch() -> None:
    split = split_of({FC6: {0: 0.5, 5: 0.7}, POOL5: {0: 0.6}})
    assert [
        found.levels["test"].epoch for found in layer_summaries([POOL5, FC6], {"test": split}, from_start=True)
    ] == [
        0,
        5,
    ]


@pytest.mark.parametrize(("fc6", "alike"), [(0.5, ()), (0.695, (FC6,))])
def test_a_layer_near_the_best_is_not_told_apart_from_it(fc6: float, alike: tuple[RankedLayer, ...]) -> None:
    rng = np.random.default_rng(0)
    splits = {"test": spread_out(split_of({POOL5: {3: 0.7}, FC6: {3: fc6}}), rng)}
    found = layer_summaries([POOL5, FC6], splits, from_start=True)
    assert indistinguishable_layers(found, splits, DataFacts("", {})) == alike


def test_a_layer_is_chosen_on_training_classes_only_if_they_are_unseen() -> None:
    splits = {"train": split_of({POOL5: {3: 0.9}, FC6: {3: 0.8}}), "test": split_of({POOL5: {3: 0.5}, FC6: {3: 0.6}})}
    found = layer_summaries([POOL5, FC6], splits, from_start=True)
    assert end_values(found, DataFacts("", {}, seen=False)) == {
        "validation": [None, None],
        "train": [pytest.approx(0.9), pytest.approx(0.8)],
        "test": [pytest.approx(0.5), pytest.approx(0.6)],
    }
    assert end_values(found, DataFacts("", {})).keys() == {"validation", "test"}


def test_a_layer_without_a_value_at_its_end_has_its_fault_and_earlier_ones_are_counted() -> None:
    split = split_of({FC6: {0: 0.5, 1: 0.6}})
    faults = {**split.faults, (FC6, 1): Faults(tied=0.7), (FC6, 2): Faults(invalid="NaN (3 rows)")}
    found = summed({"test": replace(split, faults=faults)})
    assert found.levels["test"] == Level(2, None)
    assert found.faults == {"test": Faults(invalid="NaN (3 rows)")}
    assert found.broken == {"test": 1}
