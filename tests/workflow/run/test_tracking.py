from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from layerprobe.trackers.tracker import Trackers
from layerprobe.values.scores import Score
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.tracking import gaps_of, log_epochs, numbers_of
from tests.scores import with_layer
from tests.workflow.rank_files import FC6, POOL5, first_hit, stored, written

Calls = list[tuple[object, ...]]


def scores_of(folder: Path, *epochs: int) -> list[Score]:
    """R@1 of fc6, of 24 queries: 10 right on train and 4 on test."""
    run = Run(folder / "cache" / "tracked")
    scores = []
    for epoch in epochs:
        scores += stored(run, epoch, "train", {FC6: first_hit(10)}) + stored(run, epoch, "test", {FC6: first_hit(4)})
    written(run, scores)
    return [score for score in scores if score.metric == "R@1"]


def test_a_number_is_named_by_split_metric_and_layer(tmp_path: Path) -> None:
    assert numbers_of(scores_of(tmp_path, 0), "cosine") == {"train_R@1/fc6": 10 / 24, "test_R@1/fc6": 4 / 24}


def test_the_gap_is_train_less_test_of_layers_that_have_both(tmp_path: Path) -> None:
    scores = scores_of(tmp_path, 0)
    alone = replace(scores[0], ranked=POOL5)
    assert gaps_of([*scores, alone], "cosine") == {"gap_R@1/fc6": pytest.approx(6 / 24)}


def test_a_score_without_a_value_is_no_number(tmp_path: Path) -> None:
    train, test = scores_of(tmp_path, 0)
    invalid = replace(test, value=None, interval=None)
    assert numbers_of([train, invalid], "cosine") == {"train_R@1/fc6": 10 / 24}
    assert gaps_of([train, invalid], "cosine") == {}


def test_another_similarity_than_the_runs_is_named(tmp_path: Path) -> None:
    train, test = scores_of(tmp_path, 0)
    values = ((train, 0.5), (test, 0.25))
    by_dot = [replace(with_layer(score, similarity="dot"), value=value) for score, value in values]
    assert numbers_of([train, by_dot[0]], "cosine") == {"train_R@1/fc6": 10 / 24, "train_R@1/fc6~dot": 0.5}
    assert gaps_of(by_dot, "cosine") == {"gap_R@1/fc6~dot": 0.25}
    assert gaps_of(by_dot, "dot") == {"gap_R@1/fc6": 0.25}


def test_a_layer_keeps_its_name_where_one_epoch_has_another_similarity(tmp_path: Path, tracker_calls: Calls) -> None:
    run, by_distance = Run(tmp_path / "cache" / "tracked"), replace(FC6, similarity="euclidean")
    both = {FC6: first_hit(4), by_distance: first_hit(6)}
    written(run, stored(run, 0, "test", {FC6: first_hit(3)}), stored(run, 2, "test", both))
    log_epochs(Trackers(["kept"], "tracked", {}, print), run)
    assert tracker_calls[1:] == [
        ("log", 0, {"test_R@1/fc6": 3 / 24}),
        ("log", 2, {"test_R@1/fc6": 4 / 24, "test_R@1/fc6~euclidean": 6 / 24}),
    ]


def test_every_stored_epoch_is_logged_with_its_loss(tmp_path: Path, tracker_calls: Calls) -> None:
    scores_of(tmp_path, 0, 2)
    run = Run(tmp_path / "cache" / "tracked")
    run.training_log_file.write_text('{"epoch": 1, "loss": 3.5, "images": 8}\n{"epoch": 2, "loss": 2.5, "images": 8}\n')
    log_epochs(Trackers(["kept"], "tracked", {}, print), run)
    _, (_, *before), (_, *untested), (_, *last) = tracker_calls
    assert before[0] == 0
    assert before[1]["test_R@1/fc6"] == 4 / 24  # type: ignore[index] # the numbers
    assert untested == [1, {"loss": 3.5}]
    assert (last[0], last[1]["loss"], last[1]["train_R@1/fc6"]) == (2, 2.5, 10 / 24)  # type: ignore[index]


def test_of_a_run_with_nothing_stored_nothing_is_logged(tmp_path: Path, tracker_calls: Calls) -> None:
    log_epochs(Trackers(["kept"], "tracked", {}, print), Run(tmp_path / "cache" / "tracked"))
    assert len(tracker_calls) == 1
