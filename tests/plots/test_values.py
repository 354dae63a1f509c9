from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace

import pytest

from layerprobe.plots.values import (
    add_search_to_run,
    common_lines,
    comparison_text,
    group_by_run,
    keep_one_kind,
    make_points,
    matrices_csv,
    missing_lines,
    names_in_order,
    points_csv,
)
from layerprobe.system.errors import LayerprobeError
from layerprobe.values.intervals import Interval, IntervalKind, ShownKind
from layerprobe.values.scores import Matrix, Score
from tests.plots.conftest import sure
from tests.scores import CLUSTERS, with_layer

MakeScores = Callable[..., list[Score]]


def test_a_point_joins_the_splits_of_a_layer_and_epoch(make_scores: MakeScores) -> None:
    scores = make_scores(["a", "b"], [0, 3])
    found = make_points(scores)
    assert [(point.ranked.layer.layer, point.epoch) for point in found] == [("a", 0), ("a", 3), ("b", 0), ("b", 3)]
    assert found[1].values == {s.split: s.value for s in scores if (s.ranked.layer.layer, s.epoch) == ("a", 3)}


def test_layers_keep_the_order_of_the_scores_and_epochs_ascend(make_scores: MakeScores) -> None:
    found = make_points(make_scores(["pool5", "fc6", "alpha"], [7, 2, 5]))
    assert [point.ranked.layer.layer for point in found] == ["pool5"] * 3 + ["fc6"] * 3 + ["alpha"] * 3
    assert [point.epoch for point in found][:3] == [2, 5, 7]


def test_layers_of_several_runs_are_named_in_one_network_order(make_scores: MakeScores) -> None:
    first, second = make_scores(["pool5", "fc6"], [0]), make_scores(["c1", "c3", "fc6", "fc7"], [0], run="netE")
    assert names_in_order(group_by_run(make_points(first + second))) == ["c1", "c3", "pool5", "fc6", "fc7"]


def test_the_columns_of_splits_have_one_order_whatever_was_measured_first(make_scores: MakeScores) -> None:
    scores = make_scores(["a"], [0], ["test"]) + make_scores(["b"], [0], ["validation", "train"])
    header = points_csv(scores).splitlines()[0].split(",")
    assert header[6:9] == ["train R@1", "validation R@1", "test R@1"]


def test_other_metrics_are_left_out(make_scores: MakeScores) -> None:
    scores = make_scores(["a"], [1])
    others = [replace(score, metric="R@2", value=1.0) for score in scores]
    assert make_points([*scores, *others]) == make_points(scores)


def test_scores_without_recall_are_an_error_that_names_their_metrics(make_scores: MakeScores) -> None:
    with pytest.raises(LayerprobeError, match=r"^no scores of R@1\. There is MAP@R, NMI\.$"):
        make_points([replace(score, metric=name) for score in make_scores() for name in ("MAP@R", "NMI")])


def test_scores_of_one_other_metric_are_drawn(make_scores: MakeScores) -> None:
    found = make_points([replace(score, metric="MAP@R") for score in make_scores()])
    assert {point.metric for point in found} == {"MAP@R"}
    header = points_csv([replace(score, metric="MAP@R") for score in make_scores()]).splitlines()[0]
    assert "test MAP@R" in header
    assert "R@1" not in header


def test_no_scores_at_all_are_an_error() -> None:
    with pytest.raises(LayerprobeError, match=r"^no scores of R@1\. Probe a layer first\.$"):
        make_points([])


def test_percent_is_of_the_fraction(make_scores: MakeScores) -> None:
    (point,) = make_points([replace(make_scores(["a"], [1], ["test"])[0], value=0.25)])
    assert (point.percent("test"), point.percent("train")) == (25, None)


def test_the_csv_holds_fractions_and_an_empty_cell_where_invalid(make_scores: MakeScores) -> None:
    train, test = make_scores(["a,b"], [4])
    text = points_csv([replace(train, value=0.1 + 0.2), replace(test, value=None, notes=("NaN (3 rows)",))])
    header, row = csv.reader(text.splitlines())
    assert header == [
        "run",
        "layer",
        "pool",
        "reduction",
        "similarity",
        "epoch",
        "train R@1",
        "test R@1",
        "train R@1 low",
        "train R@1 high",
        "test R@1 low",
        "test R@1 high",
        "train note",
        "test note",
    ]
    assert row == ["netA", "a,b", "none", "none", "cosine", "4", repr(0.1 + 0.2), *[""] * 6, "NaN (3 rows)"]


def test_the_csv_has_the_ends_of_intervals_and_their_kind(make_scores: MakeScores) -> None:
    train, test = make_scores(["a"], [4])
    text = points_csv([train, replace(test, interval=Interval(0.25, 0.5), units=CLUSTERS)])
    (row,) = csv.DictReader(text.splitlines())
    assert (row["test R@1 low"], row["test R@1 high"], row["test note"]) == ("0.25", "0.5", "clusters: parent")
    assert (row["train R@1 low"], row["train R@1 high"], row["train note"]) == ("", "", "")


def test_a_point_has_the_intervals_of_its_values_in_percent(make_scores: MakeScores) -> None:
    train, test = make_scores(["a"], [4])
    (point,) = make_points([train, replace(test, interval=Interval(0.25, 0.5))])
    assert (point.ends("train"), point.ends("test")) == (None, (25, 50))


def test_intervals_that_a_figure_does_not_show_have_no_say_in_their_kind(make_scores: MakeScores) -> None:
    train, test = sure(make_scores(["a"], [4]), notes=("2 zero vectors",))
    found = make_points([replace(train, units=CLUSTERS), test])
    (point,), kind = keep_one_kind(found, lambda _, split: split == "test")
    assert kind == ShownKind(IntervalKind())
    assert list(point.intervals) == ["test"]
    assert point.notes == {"train": ("2 zero vectors",), "test": ("2 zero vectors",)}


def test_of_different_kinds_no_interval_is_left_and_the_notes_stay(make_scores: MakeScores) -> None:
    train, test = sure(make_scores(["a"], [4]))
    found = make_points([replace(train, units=CLUSTERS), test])
    (point,), kind = keep_one_kind(found, lambda *_: True)
    assert (kind.mixed, point.intervals, point.notes["train"]) == (True, {}, ("clusters: parent",))


def test_runs_keep_their_own_points(make_scores: MakeScores) -> None:
    found = group_by_run(make_points(make_scores(["a"], [1]) + make_scores(["b"], [1, 2], run="netE")))
    assert {run: {name: len(layer) for name, layer in series.items()} for run, series in found.items()} == {
        "netA": {"a": 1},
        "netE": {"b": 2},
    }


def test_a_label_is_the_layer_with_what_tells_it_apart(make_scores: MakeScores) -> None:
    scores = make_scores(["a", "b"], [1], ["test"])
    scores += [
        with_layer(scores[0], pool="avg"),
        with_layer(scores[0], reduction="pca:8"),
        with_layer(scores[1], pool="max"),
    ]
    (series,) = group_by_run(make_points(scores)).values()
    assert set(series) == {"a", "a@avg", "a/pca:8", "b", "b@max"}


def test_two_similarities_are_told_apart(make_scores: MakeScores) -> None:
    (score,) = make_scores(["a"], [1], ["test"])
    series = group_by_run(make_points([score, with_layer(score, similarity="dot")]))["netA"]
    assert list(series) == ["a~cosine", "a~dot"]
    assert comparison_text(series) == "cosine, dot"


def test_runs_of_one_similarity_each_say_it_for_themselves(make_scores: MakeScores) -> None:
    (score,) = make_scores(["a"], [1], ["test"])
    runs = group_by_run(make_points([score, replace(with_layer(score, similarity="dot"), run="netB")]))
    assert {run: (list(series), comparison_text(series)) for run, series in runs.items()} == {
        "netA": (["a~cosine"], "cosine"),
        "netB": (["a~dot"], "dot"),
    }


def test_similarities_can_be_kept_apart_as_runs_are(make_scores: MakeScores) -> None:
    (score,) = make_scores(["a"], [1], ["test"])
    both = group_by_run(add_search_to_run(make_points([score, with_layer(score, similarity="dot")])))
    assert {run: list(series) for run, series in both.items()} == {"netA, cosine": ["a~cosine"], "netA, dot": ["a~dot"]}
    assert list(group_by_run(add_search_to_run(make_points([score])))) == ["netA"]


def test_reductions_can_be_kept_apart_as_runs_are(make_scores: MakeScores) -> None:
    (score,) = make_scores(["a"], [1], ["test"])
    both = group_by_run(add_search_to_run(make_points([score, with_layer(score, reduction="l2")])))
    assert {run: list(series) for run, series in both.items()} == {"netA, cosine": ["a"], "netA, l2, cosine": ["a/l2"]}


def test_a_note_that_all_runs_have_is_said_once(make_scores: MakeScores) -> None:
    runs = [replace(s, run=run, notes=("few images", run)) for run in "ab" for s in make_scores(["x"], [1], ["test"])]
    assert common_lines(group_by_run(make_points(runs))) == ["few images", "a: a", "b: b"]


def test_a_reduction_that_all_share_is_part_of_how_they_were_compared(make_scores: MakeScores) -> None:
    scores = [with_layer(score, reduction="pca:8") for score in make_scores(["a"], [1])]
    assert comparison_text(group_by_run(make_points(scores))["netA"]) == "pca:8, cosine"
    assert comparison_text(group_by_run(make_points(make_scores(["a"], [1]) + scores))["netA"]) == "cosine"


def test_a_missing_split_is_said(make_scores: MakeScores) -> None:
    runs = group_by_run(make_points(make_scores(["a"], [1], ["test"])))
    assert missing_lines(runs, ("train", "test")) == ["no train scores"]


def test_the_layers_that_lack_a_split_are_named(make_scores: MakeScores) -> None:
    runs = group_by_run(make_points(make_scores(["a"], [1]) + make_scores(["b", "c"], [1], ["test"])))
    assert missing_lines(runs, ("train", "test")) == ["no train scores of b, c"]


def test_invalid_values_are_said_with_their_epochs(make_scores: MakeScores) -> None:
    scores = [
        replace(s, value=None, notes=("NaN (3 rows)",)) if s.split == "test" and s.epoch in (1, 3, 4, 5) else s
        for s in make_scores(["a"])
    ]
    assert missing_lines(group_by_run(make_points(scores)), ("train", "test")) == [
        "not valid: a, test, epochs 1, 3-5: NaN (3 rows)"
    ]


def test_the_csv_has_the_note_of_a_valid_value(make_scores: MakeScores) -> None:
    train, test = make_scores(["a"], [4])
    text = points_csv([train, replace(test, notes=("2 zero vectors", "partial: 3 of 4 test images"))])
    (row,) = csv.DictReader(text.splitlines())
    assert (row["train note"], row["test note"]) == ("", "2 zero vectors; partial: 3 of 4 test images")


def test_what_every_score_of_a_run_says_is_shared(make_scores: MakeScores) -> None:
    scores = [replace(score, notes=("partial: 3 of 4 test images",)) for score in make_scores(["a", "b"], [0, 1])]
    scores[0] = replace(scores[0], notes=("2 zero vectors", *scores[0].notes))
    assert common_lines(group_by_run(make_points(scores))) == ["partial: 3 of 4 test images"]
    both = group_by_run(make_points(scores + make_scores(["a"], [1], run="netE")))
    assert common_lines(both) == ["netA: partial: 3 of 4 test images"]


def test_what_every_value_of_a_split_says_is_shared_once(make_scores: MakeScores) -> None:
    few = "12 images without a class"
    scores = [replace(s, notes=(few,)) if s.split == "test" else s for s in make_scores(["a", "b"], [0, 1])]
    scores[-1] = replace(scores[-1], value=None, notes=("NaN (3 rows)",))
    assert common_lines(group_by_run(make_points(scores))) == [f"test: {few}"]
    scores[1] = replace(scores[1], notes=())
    assert common_lines(group_by_run(make_points(scores))) == []


def test_a_valid_value_with_a_note_is_not_missing(make_scores: MakeScores) -> None:
    scores = [replace(score, notes=("2 zero vectors",)) for score in make_scores(["a"], [1])]
    assert missing_lines(group_by_run(make_points(scores)), ("train", "test")) == []


def test_what_is_missing_names_its_run_among_several(make_scores: MakeScores) -> None:
    runs = group_by_run(make_points(make_scores(["a"], [1]) + make_scores(["a"], [1], ["train"], run="netE")))
    assert missing_lines(runs, ("train", "test")) == ["netE: no test scores"]


def test_a_table_of_matrices_has_a_line_for_each_cell() -> None:
    facts = ("netA", "test", "linear CKA")
    square = Matrix(*facts, "layers", "layer", "layer", ("a", "b"), ("a", "b"), ((1.0, None), (0.25, 1.0)), 9)
    wide = Matrix(*facts, "epochs", "layer", "epoch", ("a",), ("0", "1"), ((0.5, 1.0),), 9, ("4 of 9 images",))
    assert matrices_csv([square, wide]).splitlines() == [
        "run,split,comparison,row,column,value,note",
        "netA,test,layers,a,a,1.0,",
        "netA,test,layers,a,b,,",
        "netA,test,layers,b,a,0.25,",
        "netA,test,layers,b,b,1.0,",
        "netA,test,epochs,a,0,0.5,4 of 9 images",
        "netA,test,epochs,a,1,1.0,4 of 9 images",
    ]
