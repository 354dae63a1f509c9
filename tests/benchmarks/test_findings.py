"""The tables of docs/results/findings.md."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks.findings import (
    Recalls,
    Trainings,
    at_equal_dimension,
    best_post_processing,
    between,
    by_epoch,
    by_layer,
    by_share,
    by_shift,
    main,
    recalls,
    shown,
    with_start,
)
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score

POOL, EMBEDDING = LayerKey("pool5", "avg"), LayerKey("fc6", "none")
WHITE = "l2+whiten:2:0.5+l2"


def training(shift: float) -> Recalls:
    """R@1 of a training with two layers and two epochs."""
    test = {(0, POOL): 50.0, (4, POOL): 40.0 + shift, (0, EMBEDDING): 45.0, (4, EMBEDDING): 30.0}
    found = {(epoch, "test", layer, "none"): value for (epoch, layer), value in test.items()}
    found |= {(epoch, "test", layer, WHITE): value + 5 for (epoch, layer), value in test.items()}
    # Whitening is better on validation at epoch 4 alone.
    found |= {(epoch, "validation", layer, "none"): 60.0 for epoch, layer in test}
    return found | {(epoch, "validation", layer, WHITE): 58.0 + epoch for epoch, layer in test}


def test_post_processing_is_chosen_on_validation() -> None:
    assert [best_post_processing(training(0), POOL, epoch) for epoch in (0, 4)] == ["none", WHITE]


def test_a_mean_has_the_interval_of_the_mean_and_of_a_further_training() -> None:
    each = np.array([50.0, 53.0, 56.0])
    low, high = stats.ttest_1samp(each, 0).confidence_interval()
    wide = 2 * (high - 53)  # sqrt(1 + 1/3) is twice sqrt(1/3)
    assert shown(each, further=True) == f"53.0 [{low:.1f}, {high:.1f}] {{{53 - wide:.1f}, {53 + wide:.1f}}}"


def test_a_layer_is_compared_with_the_embedding_by_training() -> None:
    _, pool5, fc6 = by_layer(Trainings([training(0), training(2), training(4)]), "avg")
    assert [cell.partition(" ")[0] for cell in pool5] == [
        "`pool5`",
        "50.0",
        "42.0",
        "-8.0",
        "+12.0",
        "50.0",
        "47.0",
        "+12.0",
    ]
    assert [fc6[place] for place in (4, 7)] == ["-", "-"]


def test_layers_are_compared_after_one_post_processing_and_with_the_raw_embedding() -> None:
    head, pool5, fc6 = at_equal_dimension(Trainings([training(0), training(2)]), "avg", WHITE)
    assert head == ["layer@avg", WHITE, "minus `fc6`", "minus `fc6`, raw"]
    assert [cell.partition(" ")[0] for cell in pool5] == ["`pool5`", "46.0", "+11.0", "+16.0"]
    assert [cell.partition(" ")[0] for cell in fc6] == ["`fc6`", "35.0", "-", "+5.0"]


def test_shares_are_compared_with_the_least() -> None:
    each = {"40 %": training(1), "100 %": training(4)}
    shares = {share: Trainings([one, one]) for share, one in each.items()}
    head, pool5, fc6 = by_share(shares, "avg")
    assert head == ["layer@avg", "epoch 0", "40 %", "100 %", "100 minus 40 %", "less that of `fc6`"]
    assert (pool5[1:], fc6[1:]) == (["50.0", "41.0", "44.0", "+3.0", "+3.0"], ["45.0", "30.0", "30.0", "+0.0", "-"])


def test_a_cell_without_all_its_runs_names_those_that_it_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.setattr(sys, "argv", ["findings.py", "findings-share", str(root / "docs/results/shift.csv")])
    main()
    assert re.findall(r"### (\S+) = 0.6: without ((?:findings-share-\w+-s\d[, ]*)+)", capsys.readouterr().out)


def test_change_since_the_first_epoch() -> None:
    head, pool5, _ = by_epoch(Trainings([training(0), training(2)]), "avg")
    assert head == ["layer@avg", "epoch 0", "4"]
    assert pool5[:2] == ["`pool5`", "50.0"]
    assert pool5[2].startswith("-9.0 [")


@pytest.mark.parametrize(("metric", "similarity"), [("R@2", "cosine"), ("R@1", "euclidean")])
def test_other_scores_are_left_out(metric: str, similarity: str) -> None:
    kept = Score("a", "x", 0, 0, "test", RankedLayer(EMBEDDING, "none", "cosine"), "R@1", 0.25, None, 4)
    other = Score("a", "x", 0, 0, "test", RankedLayer(EMBEDDING, "none", similarity), metric, 0.5, None, 4)
    assert recalls([kept, other]) == {"a": {(0, "test", EMBEDDING, "none"): 25.0}}


def test_an_untrained_run_gives_further_layers_at_epoch_0() -> None:
    trained = {
        (0, "test", EMBEDDING, "none"): 30.0,
        (4, "test", EMBEDDING, "none"): 40.0,
        (4, "test", POOL, "none"): 50.0,
    }
    other = (0, "test", LayerKey("fc7", "none"), "none")
    start = {(0, "test", EMBEDDING, "none"): 30.0, (0, "test", POOL, "none"): 45.0, other: 1.0}
    found = with_start(trained, start)
    assert found == {**trained, (0, "test", POOL, "none"): 45.0}
    assert Trainings([found]).layers("avg") == [EMBEDDING, POOL]


def test_another_start_is_refused() -> None:
    key = (0, "test", EMBEDDING, "none")
    with pytest.raises(ValueError, match="not the start of this training"):
        with_start({key: 30.0}, {key: 31.0})


def test_without_validation_classes_there_is_no_best_post_processing() -> None:
    plain = [{key: value for key, value in one.items() if key[1] == "test"} for one in (training(0), training(2))]
    head, *rows = by_layer(Trainings(plain), "avg")
    assert head == ["layer@avg", "epoch 0", "epoch 4", "change", "minus embedding"]
    assert [row[2].partition(" ")[0] for row in rows] == ["41.0", "30.0"]


def test_cells_are_compared_by_training() -> None:
    one, other = (Trainings([training(shift), training(shift + 2)]) for shift in (5, 1))
    head, pool5, fc6 = between(one, other, "avg")
    assert head == ["layer@avg", "difference", "less that of `fc6`"]
    assert (pool5, fc6) == (["`pool5`", "+4.0", "+4.0"], ["`fc6`", "+0.0", "-"])


def test_a_shift_is_measured_by_table_over_the_seeds() -> None:
    values = {("0", "house", "0"): 0.5, ("1", "house", "0"): 0.3, ("0", "house", "12"): 0.2, ("1", "house", "12"): 0.1}
    ranked = RankedLayer(EMBEDDING, "none", "cosine")
    scores = [
        Score("-".join(("shift", *name)), "x", 0, 0, "test", ranked, "R@1", value, None, 4)
        for name, value in values.items()
    ]
    _, row = by_shift(scores)
    assert [cell.partition(" ")[0] for cell in row] == ["house", "`fc6`", "40.0", "15.0", "-25.0"]


def test_a_run_of_another_name_is_told() -> None:
    score = Score("mine", "x", 0, 0, "test", RankedLayer(EMBEDDING, "none", "cosine"), "R@1", 0.5, None, 4)
    with pytest.raises(SystemExit, match="mine is not named shift-SEED-TABLE-EPOCH"):
        by_shift([score])
