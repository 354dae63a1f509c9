from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from layerprobe.system.errors import DataError
from layerprobe.values.facts import DataFacts, SplitFacts
from layerprobe.values.intervals import Interval, IntervalKind, SamplingUnits
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import (
    COLUMNS,
    Matrix,
    Recall,
    Score,
    ScoreTable,
    Subject,
    facts_over_seeds,
    is_fraction,
    is_recall,
    note_text,
    over_seeds,
    read_scores,
    recall_of,
    trainings,
)
from tests.scores import with_layer

POOL = RankedLayer(LayerKey("pool5.3", "max"), "none", "cosine")
SCORE = Score("netA", "abc", 0, 3, "test", POOL, "R@1", 0.8125, None, 1360)


def test_a_table_reads_back_as_it_was_written(tmp_path: Path) -> None:
    noted = replace(SCORE, metric="R@2", value=None, notes=('NaN (3 rows), "x"', "2 zero vectors"))
    scores = [SCORE, noted, replace(SCORE, metric="R@4", seed=None, value=1 / 3)]
    ScoreTable(scores).write(tmp_path / "scores.csv")
    assert read_scores(tmp_path / "scores.csv") == scores


def test_a_file_has_a_column_for_each_field_and_the_notes_in_one() -> None:
    assert list(SCORE.as_json())[-2:] == ["n", "note"]
    assert replace(SCORE, notes=("a", "b")).as_json()["note"] == "a; b"
    assert "notes" not in SCORE.as_json()


def test_a_note_with_the_separator_in_it_stays_one() -> None:
    assert note_text(["a; b", "c"]) == "a, b; c"


def test_a_newer_measurement_replaces_the_older() -> None:
    newer, other = replace(SCORE, value=0.5), replace(SCORE, epoch=1)
    table = ScoreTable([SCORE, other])
    table.add([newer])
    assert table.scores() == [other, newer]


def test_a_table_is_written_only_where_a_score_changed(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    table = ScoreTable([SCORE])
    table.write(path)
    first = path.stat()
    table.add([SCORE])
    table.write(path)
    assert path.stat().st_ino == first.st_ino
    table.add([replace(SCORE, value=0.5)])
    table.write(path)
    assert path.stat().st_ino != first.st_ino
    assert read_scores(path) == table.scores()


def test_scores_that_the_file_does_not_hold_yet_are_written(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    ScoreTable([SCORE]).write(path)
    ScoreTable([replace(SCORE, run="renamed")], stored=[SCORE]).write(path)
    assert [score.run for score in read_scores(path)] == ["renamed"]


def test_a_row_becomes_text_once_however_often_the_table_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[int] = []
    as_json = Score.as_json

    def counted(score: Score) -> dict[str, object]:
        made.append(score.epoch)
        return as_json(score)

    monkeypatch.setattr(Score, "as_json", counted)
    table = ScoreTable()
    for epoch in range(5):
        table.add([replace(SCORE, epoch=epoch)])
        table.write(tmp_path / "scores.csv")
    assert made == [0, 1, 2, 3, 4]


def test_a_file_is_in_network_order_whatever_was_measured_first(tmp_path: Path) -> None:
    found = [
        replace(with_layer(SCORE, layer=layer), split=split)
        for split in ("test", "train")
        for layer in ("fc6", "pool5.3")
    ]
    path, order = tmp_path / "scores.csv", ["pool5.3", "fc6"]
    ScoreTable(found, layer_order=order).write(path)
    rows = [(score.split, score.ranked.layer.layer) for score in read_scores(path)]
    assert rows == [("train", "pool5.3"), ("train", "fc6"), ("test", "pool5.3"), ("test", "fc6")]


def test_a_file_in_another_order_is_written_again(tmp_path: Path) -> None:
    path, found = (
        tmp_path / "scores.csv",
        [with_layer(SCORE, layer="fc6"), SCORE],
    )
    ScoreTable(found).write(path)
    ScoreTable(found, layer_order=["pool5.3", "fc6"], stored=read_scores(path)).write(path)
    assert [score.ranked.layer.layer for score in read_scores(path)] == ["pool5.3", "fc6"]


def test_a_missing_table_says_to_probe(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no scores yet. Run layerprobe probe .* first"):
        read_scores(tmp_path / "scores.csv")


def test_another_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="not a table of scores"):
        read_scores(tmp_path / "scores.csv")


@pytest.mark.parametrize("text", ["nan", "inf"])
def test_a_number_that_is_none_is_named_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "scores.csv"
    ScoreTable([SCORE, replace(SCORE, metric="R@2", value=0.123)]).write(path)
    path.write_text(path.read_text().replace("0.123", text))
    with pytest.raises(DataError, match=rf"scores.csv:3: value is {text}, expected a finite number or an empty cell"):
        read_scores(path)


@pytest.mark.parametrize(("column", "value"), [("epoch", "17"), ("n", "23")])
def test_a_row_without_an_epoch_or_a_count_is_named_with_its_line(tmp_path: Path, column: str, value: str) -> None:
    path = tmp_path / "scores.csv"
    ScoreTable([replace(SCORE, epoch=16, n=16), replace(SCORE, epoch=17, n=23)]).write(path)
    path.write_text(path.read_text().replace(f",{value},", ",,"))
    with pytest.raises(DataError, match=rf"scores.csv:3: {column} is empty, expected a whole number"):
        read_scores(path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"split": "gallery"}, "split is 'gallery', expected train, validation, test"),
        ({"epoch": -1}, "epoch is -1, expected 0 to 999,999,999"),
        ({"epoch": 10**9}, "epoch is 1000000000, expected 0 to 999,999,999"),
        ({"n": -3}, "n is -3, expected a number of queries"),
        ({"metric": "R@0"}, "metric is 'R@0', expected R@K with a K of at least 1"),
        ({"metric": "R@5(G=x)"}, "metric is 'R@5(G=x)', expected R@K"),
        ({"value": 1.25}, "value is 1.25, expected a fraction"),
        ({"value": -0.5}, "value is -0.5, expected a fraction"),
        ({"metric": "MAP@R", "value": 7.5}, "value is 7.5, expected a fraction"),
        ({"metric": "AMI", "value": -2.0}, "value is -2, expected a fraction"),
        ({"interval": Interval(-5.0, 0.9)}, "low is -5, expected a fraction"),
        ({"interval": Interval(0.9, 0.8)}, "low is 0.9, expected at most high, 0.8"),
        ({"metric": "alignment", "interval": Interval(3.0, 2.0)}, "low is 3, expected at most high, 2"),
        ({"layer": "fc\x1b[2J"}, r"layer is 'fc\x1b[2J', expected no control characters"),
    ],
)
def test_a_value_that_no_score_has_is_named_with_its_line(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    path = tmp_path / "scores.csv"
    ScoreTable([SCORE, with_layer(SCORE, layer="z")]).write(path)
    rows = path.read_text().splitlines(keepends=True)
    path.unlink()
    layer = {"layer": changed.pop("layer")} if "layer" in changed else {}
    ScoreTable([replace(with_layer(SCORE, **layer), **changed)]).write(path)
    path.write_text("".join([*rows, path.read_text().splitlines(keepends=True)[1]]))
    with pytest.raises(DataError, match=re.escape(f"scores.csv:4: {message}")):
        read_scores(path)


def test_an_adjusted_share_may_be_below_0(tmp_path: Path) -> None:
    # Classes 0 0 1 1 in clusters 0 1 0 1: MI 0, expected ln 2 / 3, entropies ln 2: AMI = (0 - 1/3) / (1 - 1/3).
    worse_than_chance = replace(SCORE, metric="AMI", value=-0.5)
    path = tmp_path / "scores.csv"
    ScoreTable([worse_than_chance]).write(path)
    assert read_scores(path) == [worse_than_chance]


def test_two_rows_of_one_number_are_refused_unless_they_are_equal(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    ScoreTable([SCORE]).write(path)
    row = path.read_text().splitlines()[1]
    path.write_text(f"{path.read_text()}{row}\n")
    assert read_scores(path) == [SCORE]
    path.write_text(f"{path.read_text()}{row.replace('0.8125', '0.25')}\n")
    with pytest.raises(DataError, match="scores.csv:4: another row of the same number than line 2"):
        read_scores(path)


@pytest.mark.parametrize("text", ["my notes\n", "a,b\n1,2\n", "\n", f"{','.join(COLUMNS)},mine\n"])
def test_a_file_of_other_columns_is_no_table(tmp_path: Path, text: str) -> None:
    (tmp_path / "scores.csv").write_text(text)
    with pytest.raises(DataError, match="scores.csv: not a table of scores. Name another"):
        read_scores(tmp_path / "scores.csv", "Name another")


@pytest.mark.parametrize("change", [lambda row: row.rpartition(",")[0], lambda row: f"{row},more"])
def test_a_row_of_another_length_is_named_with_its_line(tmp_path: Path, change: Callable[[str], str]) -> None:
    path = tmp_path / "scores.csv"
    ScoreTable([SCORE]).write(path)
    header, row = path.read_text().splitlines()
    path.write_text(f"{header}\n{change(row)}\n")
    with pytest.raises(DataError, match="scores.csv:2: the row has more or fewer cells than the header"):
        read_scores(path)


@pytest.mark.parametrize("metric", ["R@1", "R@1000", "MAP@R", "NMI", "NMI-sd", "accuracy", "of-tomorrow"])
def test_recall_and_registered_shares_are_shown_in_percent(metric: str) -> None:
    assert is_fraction(metric)


@pytest.mark.parametrize("metric", ["rho", "rho-sd", "effective-rank", "effective-rank-sd", "intra-inter"])
def test_what_is_registered_as_no_share_is_shown_as_it_is(metric: str) -> None:
    assert not is_fraction(metric)


def matrix(*values: tuple[float | None, ...]) -> Matrix:
    return Matrix("netA", "test", "linear CKA", "layers", "layer", "layer", ("a", "b"), ("c", "d"), values, 9)


def test_a_matrix_has_a_value_or_none_for_each_pair_of_names() -> None:
    assert matrix((0.5, None), (1.0, -0.1)).values[0] == (0.5, None)
    with pytest.raises(ValueError, match=r"expected 2 rows of 2 values, got \[2, 1\]"):
        matrix((0.5, None), (1.0,))
    with pytest.raises(ValueError, match=r"expected 2 rows of 2 values, got \[2\]"):
        matrix((0.5, None))


def test_nan_is_no_value_of_a_matrix() -> None:
    with pytest.raises(ValueError, match="NaN among the values: use None for invalid numbers"):
        matrix((0.5, None), (1.0, float("nan")))


def test_recall_of_a_smaller_gallery_is_another_metric() -> None:
    assert [is_recall(name) for name in ("R@1", "R@100", "R@1(G=1000)", "MAP@R")] == [True] * 2 + [False] * 2


def test_a_score_takes_an_interval() -> None:
    subject = Subject("netA", "abc", 0, 3, "test", RankedLayer(LayerKey("fc6", "none"), "none", "cosine"))
    score = subject.score("R@1", 0.5, 9, interval=Interval(0.4, 0.6))
    assert (score.low, score.high) == (0.4, 0.6)
    assert subject.score("R@1", 0.5, 9).low is None


def test_scores_of_layers_that_are_dropped_leave_the_file(tmp_path: Path) -> None:
    kept = [
        replace(SCORE, epoch=SCORE.epoch + 1),
        replace(SCORE, split="validation"),
        with_layer(SCORE, layer="other"),
    ]
    table = ScoreTable([SCORE, replace(SCORE, metric="R@1(G=20)"), *kept])
    table.write(tmp_path / "scores.csv")
    assert table.drop(SCORE.epoch, SCORE.split, {SCORE.ranked}) == 2
    table.write(tmp_path / "scores.csv")
    assert set(read_scores(tmp_path / "scores.csv")) == set(kept)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("R@1", Recall(1)),
        ("R@10(G=1000)", Recall(10, gallery=1000)),
    ],
)
def test_a_recall_is_read_as_it_is_written(name: str, found: Recall) -> None:
    assert recall_of(name) == found
    assert str(found) == name


@pytest.mark.parametrize("name", ["R@0", "R@", "R@1-sd", "R@1(G=)", "R@1(2x2)", "MAP@R", "R@²", "r@1"])
def test_other_names_are_no_recall(name: str) -> None:
    assert recall_of(name) is None


def test_recall_in_the_whole_gallery_is_told_from_that_in_a_smaller_one() -> None:
    names = ["R@4", "R@4(G=10)", "mAP"]
    assert [is_recall(name) for name in names] == [True, False, False]


def test_shares_are_shown_in_percent_and_their_deviations_too() -> None:
    names = ["R@1", "NMI-sd", "unknown", "rho", "two-nn-sd"]
    assert [is_fraction(name) for name in names] == [True, True, True, False, False]


FC6 = RankedLayer(LayerKey("fc6", "none"), "none", "cosine")
SCORE_OF_A_SEED = Score("netA-s0", "abc", 0, 1, "test", FC6, "R@1", 0.5, Interval(0.4, 0.6), 100)


def seeds(*values: float | None, epoch: int = 1) -> list[Score]:
    """A score of each training."""
    return [
        replace(SCORE_OF_A_SEED, run=f"netA-s{i}", seed=i, epoch=epoch, value=value) for i, value in enumerate(values)
    ]


def test_trainings_of_one_experiment_become_their_mean_with_the_lowest_and_highest() -> None:
    (mean,) = over_seeds(seeds(0.5, 0.75, 0.25, 0.3))
    # (0.5 + 0.75 + 0.25 + 0.3) / 4
    assert (mean.value, mean.low, mean.high) == pytest.approx((0.45, 0.25, 0.75), abs=1e-15)
    assert (mean.run, mean.experiment, mean.seed, mean.n) == ("netA-s* (4 seeds)", "abc", None, 4)


def test_a_mean_says_what_its_ends_are() -> None:
    (mean,) = over_seeds(seeds(0.5, 0.75))
    assert mean.all_notes == ("mean of 2 trainings", "interval: lowest to highest training")
    assert mean.units == SamplingUnits(IntervalKind(trainings=True), 2)


def test_a_single_training_and_other_experiments_stay_as_they_are() -> None:
    others = [SCORE_OF_A_SEED, replace(SCORE_OF_A_SEED, run="netA-softmax-s0", experiment="other")]
    assert over_seeds(others) == others


def test_a_number_that_not_all_have_is_left_out_with_a_note() -> None:
    late = seeds(0.5, 0.75, epoch=2)
    extra = with_layer(SCORE_OF_A_SEED, layer="pool5")
    found = over_seeds([SCORE_OF_A_SEED, extra, late[0], *seeds(0.25, 0.75)[1:]])
    assert [(s.epoch, s.ranked.layer.layer, s.value) for s in found] == [(1, "fc6", 0.625)]
    assert "left out, as not all trainings have them: epoch 2 and 1 number of 1 layer" in found[0].notes


def test_what_another_post_processing_lacks_is_not_said_of_the_layers_as_they_are() -> None:
    found = over_seeds([*seeds(0.5, 0.75), with_layer(SCORE_OF_A_SEED, post_processing="l2")])
    assert found[0].notes == ("mean of 2 trainings",)


def test_without_a_number_in_common_runs_stay_apart() -> None:
    apart = [SCORE_OF_A_SEED, replace(SCORE_OF_A_SEED, run="netA-s1", epoch=2)]
    assert over_seeds(apart) == apart


def test_a_mean_over_an_invalid_value_has_none_and_the_reason() -> None:
    first, second = seeds(0.5, None)
    (mean,) = over_seeds([first, replace(second, notes=("NaN (3 rows)",))])
    assert (mean.value, mean.low, mean.high) == (None, None, None)
    assert mean.notes == ("netA-s1: NaN (3 rows)", "mean of 2 trainings")


def test_notes_of_all_are_kept_once_and_those_on_their_intervals_dropped() -> None:
    units = SamplingUnits(IntervalKind(), 17)
    own = [replace(score, notes=("held out",), units=units) for score in seeds(0.5, 0.75)]
    assert over_seeds(own)[0].remarks == ("held out", "mean of 2 trainings")


def test_runs_of_equal_seeds_are_called_trainings() -> None:
    folds = [SCORE_OF_A_SEED, replace(SCORE_OF_A_SEED, run="netA-f1")]
    assert list(trainings(folds)) == ["netA-* (2 trainings)"]


def test_two_experiments_of_one_name_are_told_apart() -> None:
    runs = [replace(SCORE_OF_A_SEED, run=f"netA-s{i}", seed=i, experiment="abc" if i < 2 else "xyz") for i in range(4)]
    assert list(trainings(runs)) == ["netA-s* (2 seeds)", "xyz netA-s* (2 seeds)"]


def test_names_without_a_common_beginning_are_listed() -> None:
    assert list(trainings([SCORE_OF_A_SEED, replace(SCORE_OF_A_SEED, run="b", seed=1)])) == ["netA-s0, b (2 seeds)"]


def test_facts_are_those_that_all_trainings_have() -> None:
    train, test = SplitFacts(100, 10), SplitFacts(200, 20)
    data = {
        "netA-s0": DataFacts("glyphs", {"train": train, "test": test}),
        "netA-s1": DataFacts("glyphs", {"train": replace(train, queries=90), "test": test}),
    }
    found = facts_over_seeds(data, {"netA-s*": ("netA-s0", "netA-s1")})
    assert found == {"netA-s*": DataFacts("glyphs", {"test": test})}
