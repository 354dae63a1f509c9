from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from layerprobe.tables.formats import as_rich
from layerprobe.tables.tables import TextTable, layer_table, metric_table, overview_table, plain_table
from layerprobe.values.facts import DataFacts, SplitFacts
from layerprobe.values.intervals import Interval, SamplingUnits
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score
from tests.scores import CLASSES, CLUSTERS, with_layer


def score(
    layer: str,
    split: str,
    value: float | None,
    *,
    metric: str = "R@1",
    notes: tuple[str, ...] = (),
    **other: str | float,
) -> Score:
    fields: dict[str, object] = {
        "run": "omni", "experiment": "e", "seed": 0, "epoch": 30, "split": split, "metric": metric, "value": value,
        "interval": None, "n": 100, "notes": notes,
    }  # fmt: skip
    ranked = {"pool": "none", "post_processing": "none", "similarity": "cosine"}
    of_layer = {name: str(other.pop(name, default)) for name, default in ranked.items()}
    fields["ranked"] = RankedLayer(
        LayerKey(layer, of_layer["pool"]), of_layer["post_processing"], of_layer["similarity"]
    )
    return Score(**(fields | other))  # type: ignore[arg-type] # the fields of a score


def printed(table: TextTable, width: int = 120) -> list[str]:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(as_rich(table))
    return [line.rstrip() for line in capture.get().splitlines()]


def row(lines: list[str], layer: str) -> list[str]:
    return next(line.split() for line in lines if layer in line.split())


def test_a_row_has_train_test_and_gap_in_percent() -> None:
    lines = printed(layer_table([score("fc6", "train", 0.95), score("fc6", "test", 0.612), score("p", "test", 0.7)]))
    assert row(lines, "fc6") == ["fc6", "95.0", "61.2", "+33.8"]


def test_the_gap_is_of_the_unrounded_fractions() -> None:
    # 50.04 - 49.96 = 0.08, not 50.0 - 50.0.
    lines = printed(layer_table([score("a", "train", 0.5004), score("a", "test", 0.4996)]))
    assert row(lines, "a")[-1] == "+0.1"


def test_a_gap_may_be_negative() -> None:
    lines = printed(layer_table([score("a", "train", 0.4), score("a", "test", 0.5)]))
    assert row(lines, "a")[-1] == "-10.0"


def test_rows_keep_the_order_of_the_scores() -> None:
    layers = ["pool5.2", "fc6", "pool1.1"]
    table = layer_table([score(layer, split, 0.5) for split in ("test", "train") for layer in layers])
    assert [row[1] for row in table.rows] == layers


def test_a_layer_with_two_pools_has_two_rows() -> None:
    table = layer_table([score("a", "test", 0.5), score("a", "test", 0.6, pool="avg")])
    assert [row[1:] for row in table.rows] == [("a", "50.0"), ("a@avg", "60.0")]


def starred(table: TextTable) -> list[str]:
    return [row[1] for row in table.rows if row[0] == "*"]


def test_without_validation_the_best_layer_is_chosen_on_test_and_says_so() -> None:
    table = layer_table([score("a", "test", 0.5), score("b", "test", 0.6), score("b", "train", 0.1)])
    assert starred(table) == ["b"]
    assert table.marked == 1
    assert table.notes == ("* best on test (chosen on test): b, 60.0 %",)


def test_the_best_layer_is_chosen_on_validation_and_its_test_value_told() -> None:
    values = {("a", "validation"): 0.9, ("a", "test"): 0.5, ("b", "validation"): 0.8, ("b", "test"): 0.6}
    table = layer_table([score(*place, value) for place, value in values.items()])
    assert starred(table) == ["a"]
    assert table.notes == ("* best on validation: a, 90.0 %; on test 50.0 %",)


def test_the_first_of_equally_good_layers_has_the_star_and_their_number_is_told() -> None:
    table = layer_table([score("a", "test", 0.6), score("b", "test", 0.6), score("c", "test", 0.59)])
    assert starred(table) == ["a"]
    assert table.notes == ("* best on test (chosen on test): a, 60.0 %, tied with 1 other",)


def test_the_best_of_a_layers_pools_is_named_with_its_pool() -> None:
    table = layer_table([score("a", "test", 0.5), score("a", "test", 0.6, pool="avg"), score("b", "test", 0.1)])
    assert table.notes[0] == "* best on test (chosen on test): a@avg, 60.0 %"


def test_what_training_made_worse_is_told() -> None:
    untrained = [score(*row, epoch=0) for row in [("a", "test", 0.6), ("a", "train", 0.9), ("b", "test", 0.2)]]
    table = layer_table([score("a", "test", 0.55), score("b", "test", 0.572)], untrained=untrained)
    assert table.notes[1:] == (
        "training made test R@1 worse at 1 of 2 layers, such as a: 55.0 %, untrained 60.0 %, which no trained layer"
        " reaches",
    )


def test_the_heading_says_what_the_scores_were_measured_on() -> None:
    data = DataFacts("glyphs", {"test": SplitFacts(1360, 68, chance=0.014)})
    lines = printed(layer_table([score("a", "test", 0.5)], data=data))
    assert lines[1] == "glyphs test: 1,360 queries, 68 classes, chance R@1 1.4 %"


def test_further_k_of_the_test_split_follow() -> None:
    scores = [
        score("a", split, value, metric=metric)
        for split, metric, value in [
            ("train", "R@1", 0.9), ("train", "R@2", 0.95),
            ("test", "R@1", 0.5), ("test", "R@2", 0.6), ("test", "R@8", 1),
        ]
    ]  # fmt: skip
    lines = printed(layer_table(scores))
    assert row(lines, "a")[-5:] == ["90.0", "50.0", "+40.0", "60.0", "100.0"]
    assert [line.split() for line in lines[1:3]] == [
        ["train", "test", "test", "test"],
        ["layer", "R@1", "R@1", "gap", "R@2", "R@8"],
    ]


def test_another_metric_can_be_compared() -> None:
    scores = [score("a", "test", 0.5, metric="R@1"), score("a", "test", 0.25, metric="MAP@R")]
    lines = printed(layer_table(scores, metric="MAP@R"))
    assert row(lines, "a")[-2:] == ["25.0", "50.0"]
    assert "MAP@R in %" in lines[0]


def test_validation_has_a_column_where_there_is_one() -> None:
    lines = printed(layer_table([score("a", split, 0.5) for split in ("train", "validation", "test")]))
    assert lines[1].split() == ["train", "valid.", "test"]
    assert "valid." not in "".join(printed(layer_table([score("a", "train", 0.5)])))


def test_an_invalid_value_is_its_note_and_leaves_the_best_to_others() -> None:
    scores = [
        score("a", "train", 0.9), score("a", "test", None, notes=("NaN (312 rows)",)),
        score("b", "train", 0.8), score("b", "test", 0.1),
    ]  # fmt: skip
    lines = printed(layer_table(scores))
    assert any("NaN (312 rows)" in line and line.split()[-1] == "-" for line in lines)
    assert starred(layer_table(scores)) == ["b"]
    assert sum("NaN" in line for line in lines) == 1


def test_without_a_valid_test_value_nothing_is_best() -> None:
    lines = printed(layer_table([score("a", "train", 0.9), score("a", "test", None, notes=("NaN (1 rows)",))]))
    assert "best" not in "".join(lines)


def test_a_split_that_a_layer_lacks_is_a_dash() -> None:
    lines = printed(layer_table([score("a", "train", 0.9), score("b", "test", 0.5)]))
    assert row(lines, "a")[-3:] == ["90.0", "-", "-"]


def test_notes_stand_below_once_with_their_layers() -> None:
    note = "12 lone queries count as misses"
    scores = [
        score("a", "test", 0.5, notes=(note,)), score("a", "test", 0.6, metric="R@2", notes=(note,)),
        score("b", "test", 0.1, notes=("collapsed: 98 % tied", note)), score("a", "train", 0.5),
    ]  # fmt: skip
    lines = printed(layer_table(scores))
    assert lines[-2:] == [f"test, every layer: {note}", "test, b: collapsed: 98 % tied"]


def test_a_note_of_two_splits_stands_below_once() -> None:
    note = "test images that are in train too: 13 of 2276"
    lines = printed(layer_table([score("a", split, 0.5, notes=(note,)) for split in ("train", "test")]))
    assert [line for line in lines if note in line] == [f"train and test, a: {note}"]


def test_a_layer_is_named_with_its_post_processing_and_where_rows_differ_its_similarity() -> None:
    scores = [score("a", "test", 0.5), score("a", "test", 0.6, post_processing="pca:8", similarity="dot")]
    lines = printed(layer_table(scores))
    assert row(lines, "a/pca:8~dot") == ["*", "a/pca:8~dot", "60.0"]
    assert lines[0] == "omni, epoch 30, R@1 in %"


def test_what_all_rows_share_stands_in_the_title() -> None:
    assert printed(layer_table([score("a", "test", 0.5)]))[0] == "omni, epoch 30, R@1 in %, cosine"
    post_processed = layer_table([score("a", "test", 0.5, post_processing="pca:8")])
    assert printed(post_processed)[0] == "omni, epoch 30, R@1 in %, cosine"


def test_six_k_and_three_splits_fit_80_columns() -> None:
    scores = [
        score("layer4.2", split, 1.0, metric=f"R@{k}")
        for split in ("train", "validation", "test")
        for k in (1, 2, 4, 8, 16, 32)
    ]
    assert row(printed(layer_table(scores), 80), "layer4.2")[2:] == ["100.0"] * 3 + ["+0.0"] + ["100.0"] * 5


@pytest.mark.parametrize("other", [score("a", "test", 0.5, epoch=29), score("a", "test", 0.5, run="second")])
def test_a_table_is_of_one_run_and_one_epoch(other: Score) -> None:
    with pytest.raises(ValueError, match="one run and one epoch"):
        layer_table([score("a", "test", 0.5), other])


def test_no_scores_are_no_table() -> None:
    with pytest.raises(ValueError, match="one run and one epoch"):
        layer_table([])


def test_names_are_shown_as_the_text_they_are() -> None:
    lines = printed(layer_table([score("[red]a[/]", "test", 0.5, run="[bold]x", notes=("[link=u]n",))]))
    assert lines[0].startswith("[bold]x, epoch 30")
    assert row(lines, "[red]a[/]")
    assert lines[-1] == "test, [red]a[/]: [link=u]n"


def test_a_plain_table_shows_its_cells_as_text() -> None:
    lines = printed(plain_table(("[b]run", "state"), [("[green]x", "done"), (":smile:", "")]))
    assert [line.split() for line in (lines[0], *lines[2:])] == [["[b]run", "state"], ["[green]x", "done"], [":smile:"]]


def test_control_characters_do_not_reach_the_terminal() -> None:
    (_, _, line) = printed(plain_table(("run",), [("a\x1b[31mb\x07c\x9bd",)]))
    assert line == "a\ufffd[31mb\ufffdc\ufffdd"


def test_a_title_and_a_note_may_be_wider_than_the_table() -> None:
    lines = printed(layer_table([score("a", "test", 0.5, run="r" * 60, notes=("n" * 70,))]))
    assert lines[0].startswith("r" * 60 + ", epoch 30, R@1")
    assert lines[-1] == "test, a: " + "n" * 70


def test_a_plain_table_folds_rather_than_cuts() -> None:
    assert "".join(printed(plain_table(("run",), [("x" * 50,)]), 20)).count("x") == 50


def test_metrics_beside_the_recall_have_a_table_of_their_own() -> None:
    scores = [
        score("fc6", "train", 0.9),
        score("fc6", "test", 0.5),
        score("fc6", "train", 0.812, metric="NMI"),
        score("fc6", "test", 0.734, metric="NMI"),
        score("fc6", "test", 12.345, metric="effective-rank"),
    ]
    table = metric_table(scores)
    assert table is not None
    lines = printed(table)
    assert row(lines, "NMI") == ["NMI", "fc6", "81.2", "73.4"]
    assert row(lines, "effective-rank") == ["effective-rank", "fc6", "-", "12.3"]


def test_numbers_without_labels_have_their_rank_correlation_with_recall_below() -> None:
    scores = [score(name, "test", value) for name, value in zip("abcd", [0.1, 0.2, 0.3, 0.4], strict=True)]
    scores += [score(name, "test", value, metric="two-nn") for name, value in zip("abcd", [4, 3, 2, 1], strict=True)]
    table = metric_table(scores)
    assert table is not None
    assert table.notes[0] == "two-nn at epoch 30: rank correlation with R@1 on test -1.00, over 4 layers"


def test_only_where_there_are_shares_the_heading_says_percent() -> None:
    plain, share = score("fc6", "test", 2.5, metric="rho"), score("fc6", "test", 0.5, metric="NMI")
    for scores, heading in [
        ([plain], "omni, epoch 30, cosine"),
        ([plain, share], "omni, epoch 30, shares in %, cosine"),
    ]:
        table = metric_table(scores)
        assert table is not None
        assert table.heading == (heading,)


def test_rankings_of_one_layer_have_rows_that_tell_them_apart() -> None:
    scores = [score("fc6", "test", 0.5, metric="NMI", similarity=name) for name in ("cosine", "dot")]
    table = metric_table(scores)
    assert table is not None
    assert [row[:2] for row in table.rows] == [("NMI", "fc6~cosine"), ("NMI", "fc6~dot")]


def test_without_further_metrics_there_is_no_second_table() -> None:
    assert metric_table([score("fc6", "test", 0.5)]) is None


def test_a_note_of_other_metrics_stands_below_their_table_and_names_them() -> None:
    scores = [
        score("a", "test", 0.5, notes=("2 zero vectors",)),
        score("a", "test", 0.7, metric="R@1(G=60)", notes=("thinned by image", "2 zero vectors")),
        score("a", "test", 0.3, metric="mAP", notes=("2 zero vectors",)),
    ]
    table = metric_table(scores)
    assert table is not None
    assert table.notes == ("test, a: thinned by image (R@1(G=60))",)
    assert layer_table(scores).notes[1:] == ("test, a: 2 zero vectors",)


def test_an_invalid_metric_shows_its_note() -> None:
    table = metric_table([score("fc6", "test", None, metric="NMI", notes=("one class",))])
    assert table is not None
    assert "one class" in "\n".join(printed(table))


def sure(
    layer: str,
    split: str,
    value: float | None,
    *,
    metric: str = "R@1",
    notes: tuple[str, ...] = (),
    units: SamplingUnits = CLASSES,
) -> Score:
    """A score with the interval 58.0 to 64.1 %."""
    plain = score(layer, split, value, metric=metric, notes=notes)
    return replace(plain, interval=Interval(0.58, 0.641), units=units)


def test_the_compared_metric_has_its_intervals_in_percent_and_further_k_have_none() -> None:
    scores = [
        replace(score("a", "train", 0.9), interval=Interval(0.85, 0.925)),
        *(sure("a", "test", 0.612), score("b", "test", 0.5), sure("a", "test", 0.7, metric="R@2")),
    ]
    table = layer_table(scores)
    # columns: star, layer, train, test, gap, R@2
    assert table.intervals == {2: (("85.0", "92.5"), None), 3: (("58.0", "64.1"), None)}
    assert table.heading[1:] == ("in brackets: 95 % interval over classes, against this gallery",)


def test_a_table_without_intervals_says_nothing_of_them() -> None:
    table = layer_table([score("a", "test", 0.612)])
    assert (table.intervals, len(table.heading)) == ({}, 1)


def test_the_kind_of_the_intervals_is_said_once_and_other_notes_remain() -> None:
    table = layer_table([sure(layer, "test", 0.612, notes=("2 zero vectors",), units=CLUSTERS) for layer in "ab"])
    over = "95 % interval over clusters of classes (parent), against this gallery"
    assert table.heading[1:] == (f"in brackets: {over}",)
    assert table.notes[1:] == ("test, every layer: 2 zero vectors",)


def test_intervals_of_different_kinds_are_not_shown_together() -> None:
    scores = [sure("a", "test", 0.612), sure("b", "test", 0.6, units=CLUSTERS)]
    table = layer_table(scores)
    assert table.intervals == {}
    assert table.heading[1].startswith("intervals of different kinds are not shown together")
    assert table.notes[1:] == ("test, b: clusters: parent",)


def test_a_score_that_has_no_interval_has_no_kind() -> None:
    scores = [sure("a", "test", 0.612), replace(score("b", "test", 0.6), units=CLUSTERS)]
    assert layer_table(scores).intervals == {2: (("58.0", "64.1"), None)}


def test_layers_not_told_apart_from_the_best_are_named_as_rows_are() -> None:
    scores = [score("a", "test", 0.6), score("a", "test", 0.5, pool="avg"), score("b", "test", 0.1)]
    table = layer_table(scores, indistinguishable=[scores[1].ranked])
    assert table.notes[0] == "* best on test (chosen on test): a, 60.0 %; not significantly different: a@avg"


def test_further_metrics_have_their_intervals() -> None:
    scores = [
        score("a", "train", 0.9, metric="MAP@R"), sure("a", "test", 0.612, metric="MAP@R"),
        replace(score("a", "test", 12.3, metric="effective-rank"), interval=Interval(11.26, 14)),
    ]  # fmt: skip
    table = metric_table(scores)
    assert table is not None
    # columns: metric, layer, train, test
    assert table.intervals == {3: (("58.0", "64.1"), ("11.3", "14"))}
    assert table.heading[1:] == ("in brackets: 95 % interval over classes, against this gallery",)


NO_DATA = DataFacts("", {})


def test_an_overview_marks_the_best_layer_and_the_embedding() -> None:
    scores = [score("a", "test", 0.5), score("b", "test", 0.6), score("c", "test", 0.55)]
    table = overview_table(scores, metric="R@1", data=NO_DATA, embedding=scores[2].ranked)
    assert table.rows == (("a", "50.0", ""), ("b", "60.0", "best"), ("c", "55.0", "embedding"))


def test_an_overview_says_how_the_embedding_compares_with_the_best() -> None:
    scores = [score("a", "test", 0.5), score("b", "test", 0.6), score("c", "test", 0.524)]
    rows = [one.ranked for one in scores]
    table = overview_table(scores, metric="R@1", data=NO_DATA, indistinguishable=[rows[2]], embedding=rows[2])
    assert table.notes == (
        "best on test (chosen on test): b, 60.0 %; significantly better than 1 of the 2 others",
        "embedding: c, 52.4 % on test, 7.6 points below the best, not significant",
    )
    table = overview_table(scores, metric="R@1", data=NO_DATA, indistinguishable=[], embedding=rows[2])
    assert table.notes[0].endswith("significantly better than all others")
    assert table.notes[1].endswith("below the best, significant")


def test_an_overview_compares_on_validation_where_the_best_is_chosen_there() -> None:
    scores = [score(layer, split, value) for split, a, b in (("validation", 0.7, 0.6), ("test", 0.4, 0.5))
              for layer, value in (("a", a), ("b", b))]  # fmt: skip
    table = overview_table(scores, metric="R@1", data=NO_DATA, embedding=scores[1].ranked)
    assert table.notes == (
        "best on validation: a, 70.0 %; on test 40.0 %",
        "embedding: b, 60.0 % on validation, 10.0 points below the best",
    )


def test_the_best_is_chosen_on_unseen_training_classes_but_of_post_processed_layers() -> None:
    scores = [score(layer, split, value) for split, a, b in (("train", 0.7, 0.6), ("test", 0.4, 0.5))
              for layer, value in (("a", a), ("b", b))]  # fmt: skip
    unseen = replace(NO_DATA, seen=False)
    table = overview_table(scores, metric="R@1", data=unseen, embedding=scores[1].ranked)
    assert table.notes == (
        "best on selection classes: a, 70.0 %; on test 40.0 %",
        "embedding: b, 60.0 % on selection classes, 10.0 points below the best",
    )
    best = "* best on selection classes: a, 70.0 %; on test 40.0 %"
    assert best in layer_table(scores, metric="R@1", data=unseen).notes
    post_processed = [with_layer(each, post_processing="l2+pca:8") for each in scores]
    found = layer_table(post_processed, metric="R@1", data=unseen).notes
    assert "* best on test (chosen on test): b/l2+pca:8, 50.0 %" in found


def test_an_overview_has_test_before_training_beside_it() -> None:
    scores = [score("a", "test", 0.5), score("a", "test", 0.3, epoch=0), score("b", "test", 0.4)]
    table = overview_table(scores, metric="R@1", data=NO_DATA)
    assert table.columns == ("layer", "test\nR@1", "test,\nuntrained", "")
    assert [line[2] for line in table.rows] == ["30.0", "-"]


def test_an_overview_has_a_line_for_the_best_layer_after_each_post_processing() -> None:
    post_processed = [
        score("a", "test", 0.7, post_processing="pca:8"),
        score("b", "test", 0.65, post_processing="pca:8"),
    ]
    scores = [score("a", "test", 0.5), score("b", "test", 0.6), *post_processed]
    table = overview_table(scores, metric="R@1", data=NO_DATA, embedding=scores[1].ranked)
    assert [line[0] for line in table.rows] == ["a", "b"]
    assert table.notes[-1] == "best on test after pca:8: a, 70.0 % (embedding 65.0 %)"
    assert [line[0] for line in overview_table(post_processed, metric="R@1", data=NO_DATA).rows] == [
        "a/pca:8",
        "b/pca:8",
    ]


def test_an_overview_shows_its_first_note_and_counts_the_others() -> None:
    scores = [score("a", "test", 0.5, notes=("3 zero vectors",)), score("b", "test", 0.6, notes=("2 zero vectors",))]
    table = overview_table(scores, metric="R@1", data=NO_DATA)
    assert table.notes[-1] == "test, a: 3 zero vectors; 1 more note: --full"


def test_an_overview_has_columns_for_two_further_metrics() -> None:
    scores = [score("a", "test", 0.5), *(score("a", "test", 0.25, metric=name) for name in ("MAP@R", "NMI", "AMI"))]
    table = overview_table(scores, metric="R@1", data=NO_DATA)
    assert table.columns == ("layer", "test\nR@1", "test\nMAP@R", "test\nNMI", "")
    assert table.notes[-1] == "--full also has AMI"


def test_a_note_of_many_layers_names_the_first_five() -> None:
    noted = [score(layer, "test", 0.5, notes=("1 zero vectors",)) for layer in "abcdefg"]
    assert layer_table([*noted, score("h", "test", 0.4)]).notes[1] == "test, a, b, c, d, e and 2 more: 1 zero vectors"
