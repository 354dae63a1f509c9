from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from layerprobe.tables.formats import as_rich
from layerprobe.tables.tables import (
    Answer,
    Lead,
    TextTable,
    answer_table,
    layer_table,
    metric_table,
    plain_table,
    rows_shown,
)
from layerprobe.values.facts import SELECTION, DataFacts, IdenticalImages, SplitFacts
from layerprobe.values.intervals import Difference, Interval, IntervalKind, SamplingUnits
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


def answered(scores: list[Score], data: DataFacts = NO_DATA, **more: object) -> TextTable:
    return answer_table(Answer(scores, "R@1", data, **more))  # type: ignore[arg-type] # its fields


def sentence_of(table: TextTable) -> str:
    return " ".join(line.strip() for line in table.heading[: table.heading.index("")])


def notes_of(table: TextTable) -> str:
    return " ".join(line.strip() for line in table.notes)


def of_layers(split: str, **values: float) -> list[Score]:
    return [score(layer, split, value) for layer, value in values.items()]


def test_an_answer_marks_the_best_layer_and_the_embedding() -> None:
    scores = of_layers("test", a=0.5, b=0.6, c=0.55)
    table = answered(scores, embedding=scores[2].ranked)
    assert table.rows == (("a", "50.0", ""), ("b", "60.0", "best"), ("c", "55.0", "embedding"))


def test_an_answer_is_the_best_layer_and_its_lead_on_test() -> None:
    scores = [*of_layers("validation", a=0.7, b=0.6), *of_layers("test", a=0.5, b=0.45)]
    lead = Lead("test", Difference(0.05, 0.012, 0.088, 0.01))
    table = answered(scores, embedding=scores[1].ranked, embedding_name="b", lead=lead, indistinguishable=[])
    assert sentence_of(table) == (
        "omni, epoch 30: a is the best of 2 layers on the validation classes; on test, +5.0 percentage points of R@1"
        " [1.2, 8.8] against the embedding, b (significant)."
    )
    assert notes_of(table).startswith(
        "How sure: selected on validation classes, measured on test classes. On the validation classes, a is"
        " significantly better than the other layer."
    )


def test_an_interval_around_0_is_not_significant() -> None:
    scores = [*of_layers("validation", a=0.7, b=0.6), *of_layers("test", a=0.5, b=0.51)]
    lead = Lead("test", Difference(-0.01, -0.03, 0.01, 0.3))
    found = sentence_of(answered(scores, embedding=scores[1].ranked, lead=lead))
    assert "on test, -1.0 percentage points of R@1 [-3.0, 1.0] against the embedding, b (not significant)." in found


def test_a_layer_selected_on_test_says_so_and_names_the_paired_test() -> None:
    scores = of_layers("test", a=0.5, b=0.6, c=0.524)
    lead = Lead("test", Difference(0.076, -0.004, 0.156), 3)
    table = answered(scores, embedding=scores[2].ranked, lead=lead, command="layerprobe compare r:b r:c")
    assert "b is the best of 3 layers on the test classes: +7.6 percentage points of R@1 [-0.4, 15.6]" in sentence_of(
        table
    )
    notes = notes_of(table)
    assert "selected and measured on the same test classes, so the R@1 of the best is optimistic." in notes
    assert "The interval [-0.4, 15.6] holds for all pairs of the 3 layers at once" in notes
    assert "  layerprobe compare r:b r:c" in table.notes  # a line of its own, to be copied


def test_with_two_layers_the_band_is_the_paired_interval() -> None:
    scores = of_layers("test", a=0.5, b=0.6)
    lead = Lead("test", Difference(0.1, 0.05, 0.15), 2)
    table = answered(scores, embedding=scores[0].ranked, lead=lead, command="layerprobe compare r:b r:a")
    assert "at once" not in notes_of(table)


def test_an_answer_counts_the_layers_that_are_significantly_worse() -> None:
    scores = of_layers("test", a=0.5, b=0.6, c=0.55, d=0.2)
    rows = [each.ranked for each in scores]
    for near, text in (
        ([rows[2]], "b is significantly better than 2 of the 3 other layers."),
        ([], "b is significantly better than all 3 other layers."),
        ([rows[0], rows[2], rows[3]], "b is not significantly better than any of the 3 other layers."),
    ):
        assert f"On the test classes, {text}" in notes_of(answered(scores, indistinguishable=near))


def test_a_trained_network_has_its_generalisation_gaps() -> None:
    scores = [*of_layers("train", a=0.9, b=0.8), *of_layers("test", a=0.5, b=0.6)]
    table = answered(scores, embedding=scores[0].ranked, lead=Lead("test", Difference(0.1)))
    # 90 - 50 and 80 - 60
    assert sentence_of(table).endswith("Generalisation gap (train - test): +20.0 points at b, +40.0 points at a.")
    assert table.columns == ("layer", "train\nR@1", "test\nR@1", "gap", "")
    assert [row[3] for row in table.rows] == ["+40.0", "+20.0"]
    unseen = answered(scores, replace(NO_DATA, seen=False), embedding=scores[0].ranked)
    assert "gap" not in unseen.columns
    assert "Generalisation" not in sentence_of(unseen)


def test_the_gap_of_galleries_of_two_sizes_is_not_left_without_a_word() -> None:
    scores = [*of_layers("train", a=0.9), *of_layers("test", a=0.5)]
    sizes = replace(NO_DATA, splits={"train": SplitFacts(5000), "test": SplitFacts(1200)})
    assert "The gap compares galleries of 5,000 and 1,200 images" in notes_of(answered(scores, sizes))
    equal = replace(NO_DATA, splits={"train": SplitFacts(1200), "test": SplitFacts(1200)})
    assert "The gap compares" not in notes_of(answered(scores, equal))


MANY = {"a": 0.1, "b": 0.2, "c": 0.7, "d": 0.5, "e": 0.6, "f": 0.3, "g": 0.4}


def test_of_many_layers_the_three_best_the_embedding_and_the_layer_before_it_are_rows() -> None:
    scores = of_layers("test", **MANY)
    answer = Answer(scores, "R@1", NO_DATA, embedding=scores[6].ranked, before=scores[5].ranked)
    assert [row.layer.layer for row in rows_shown(answer)] == ["c", "d", "e", "f", "g"]
    frozen = replace(answer, data=replace(NO_DATA, seen=False))
    assert [row.layer.layer for row in rows_shown(frozen)] == ["c", "d", "e", "g"]
    assert len(rows_shown(replace(answer, every=True))) == 7
    assert "--full also shows 2 more layers and the summary." in notes_of(answer_table(answer))


def test_full_does_not_say_where_the_rest_is() -> None:
    scores = of_layers("test", **MANY)
    assert "--full" in notes_of(answered(scores))
    assert "--full" not in notes_of(answered(scores, full=True))


def test_up_to_five_layers_are_all_rows() -> None:
    scores = of_layers("test", a=0.5, b=0.4, c=0.3, d=0.2, e=0.1)
    assert len(answered(scores).rows) == 5


def test_a_tie_is_told() -> None:
    scores = of_layers("test", a=0.6, b=0.6, c=0.5)
    assert "a is the best of 3 layers on the test classes, tied with 1 other: R@1 60.0 %." in sentence_of(
        answered(scores)
    )


def test_the_embedding_may_be_the_best() -> None:
    scores = [*of_layers("validation", a=0.5, b=0.6), *of_layers("test", a=0.3, b=0.4)]
    table = answered(scores, embedding=scores[1].ranked, embedding_name="b")
    assert sentence_of(table) == (
        "omni, epoch 30: b, the embedding, is the best of 2 layers on the validation classes: R@1 40.0 % on test."
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [("", "The embedding is not known."), ("fc6", "The embedding, fc6, is not among the layers measured.")],
)
def test_an_embedding_that_is_not_measured_is_told(name: str, text: str) -> None:
    found = sentence_of(answered(of_layers("test", a=0.5, b=0.6), embedding_name=name))
    assert found == f"omni, epoch 30: b is the best of 2 layers on the test classes: R@1 60.0 %. {text}"


def test_a_single_layer_is_not_called_the_best() -> None:
    scores = of_layers("test", a=0.5)
    table = answered(scores, embedding=scores[0].ranked)
    assert sentence_of(table) == "omni, epoch 30: a, the embedding, is the only layer measured: R@1 50.0 % on test."
    assert table.rows == (("a", "50.0", "embedding"),)


def test_training_classes_alone_select_no_layer() -> None:
    table = answered(of_layers("train", a=0.9, b=0.8))
    assert "no layer is selected, as only classes that the network may have been trained on" in sentence_of(table)
    assert [row[-1] for row in table.rows] == ["", ""]
    assert "How sure" not in notes_of(table)


def test_without_a_valid_number_there_is_no_best_layer() -> None:
    scores = [score("a", "test", None, notes=("not finite",))]
    table = answered(scores)
    assert sentence_of(table) == "omni, epoch 30: no layer has a valid R@1."
    assert table.rows == (("a", "not finite", ""),)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (5, "5 classes are too few for an interval (10 are needed), so the order of the layers is inconclusive."),
        (12, "12 classes are few, so intervals are rough."),
    ],
)
def test_few_classes_are_told(count: int, text: str) -> None:
    few = SamplingUnits(IntervalKind(), count)
    scores = [replace(each, units=few) for each in of_layers("test", a=0.5, b=0.6)]
    assert text in notes_of(answered(scores))
    many = [replace(each, units=SamplingUnits(IntervalKind(), 30)) for each in scores]
    assert "classes are" not in notes_of(answered(many))


def test_a_layer_is_selected_on_unseen_training_classes_but_after_post_processing_on_test() -> None:
    scores = [*of_layers("train", a=0.7, b=0.6), *of_layers("test", a=0.4, b=0.5)]
    unseen = replace(NO_DATA, seen=False)
    assert f"a is the best of 2 layers on the {SELECTION}: R@1 40.0 % on test." in sentence_of(answered(scores, unseen))
    best = f"* best on {SELECTION}: a, 70.0 %; on test 40.0 %"
    assert best in layer_table(scores, metric="R@1", data=unseen).notes
    post_processed = [with_layer(each, post_processing="l2+pca:8") for each in scores]
    found = layer_table(post_processed, metric="R@1", data=unseen).notes
    assert "* best on test (chosen on test): b/l2+pca:8, 50.0 %" in found


def test_post_processing_is_a_line_where_it_is_asked_for() -> None:
    post_processed = [
        score("a", "test", 0.7, post_processing="pca:8"),
        score("b", "test", 0.65, post_processing="pca:8"),
    ]
    scores = [score("a", "test", 0.5), score("b", "test", 0.6), *post_processed]
    table = answered(scores, embedding=scores[1].ranked, post_processed=True)
    assert [line[0] for line in table.rows] == ["a", "b"]
    line = "best on test after pca:8: a, 70.0 % (embedding 65.0 %)"
    assert line in table.notes
    unasked = answered(scores, embedding=scores[1].ranked)
    assert line not in unasked.notes
    assert "--full also shows 1 post-processing and the summary." in notes_of(unasked)
    assert [line[0] for line in answered(post_processed).rows] == ["a/pca:8", "b/pca:8"]
    more = [score("a", "test", 0.5, post_processing=name) for name in ("pca:4", "l2")]
    assert "; 1 more post-processing: --full" in notes_of(answered([*scores, *more], post_processed=True))


def test_an_answer_shows_its_first_note_and_counts_the_others() -> None:
    scores = [score("a", "test", 0.5, notes=("3 zero vectors",)), score("b", "test", 0.6, notes=("2 zero vectors",))]
    assert "test, a: 3 zero vectors; 1 more note: --full" in notes_of(answered(scores))


def test_metrics_that_are_asked_for_have_columns_on_test() -> None:
    scores = [score("a", "test", 0.5), *(score("a", "test", 0.25, metric=name) for name in ("MAP@R", "NMI", "AMI"))]
    table = answered(scores, metrics=("MAP@R", "AMI"))
    assert table.columns == ("layer", "test\nR@1", "test\nMAP@R", "test\nAMI", "")
    assert "--full also shows NMI and the summary." in notes_of(table)


def test_identical_images_are_told() -> None:
    facts = SplitFacts(40, identical=IdenticalImages(13, "a", 0.41))
    table = answered(of_layers("test", a=0.5), replace(NO_DATA, splits={"test": facts}))
    text = "test: 13 of 40 queries have an identical image in what they search; without those R@1 of a is 41.0 %"
    assert text in notes_of(table)
