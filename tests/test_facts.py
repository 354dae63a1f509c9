from __future__ import annotations

from dataclasses import replace

from layerprobe.facts import DataFacts, SplitFacts, common_chance, common_start, fact_lines, run_lines

GLYPHS = DataFacts("glyphs", {"train": SplitFacts(48, 6, chance=0.149), "test": SplitFacts(1360, 68, chance=0.111)})
INSHOP = DataFacts("inshop:img", {"test": SplitFacts(14218, 3985, gallery=12612, chance=0.000312)})


def test_a_line_has_the_queries_classes_and_chance_of_a_split() -> None:
    assert fact_lines(GLYPHS) == [
        "glyphs train: 48 queries, 6 classes, chance R@1 14.9 %",
        "glyphs test: 1,360 queries, 68 classes, chance R@1 11.1 %",
    ]


def test_a_gallery_is_named_and_a_low_chance_keeps_two_digits() -> None:
    (line,) = fact_lines(INSHOP)
    assert line == "inshop:img test: 14,218 queries, 3,985 classes, a gallery of 12,612, chance R@1 0.031 %"


def test_what_is_unknown_is_left_out() -> None:
    assert fact_lines(DataFacts("", {"test": SplitFacts(8)})) == ["test: 8 queries"]


def test_runs_on_the_same_data_share_their_lines() -> None:
    assert run_lines({"a": GLYPHS, "b": GLYPHS}) == fact_lines(GLYPHS)
    assert run_lines({"a": GLYPHS, "b": INSHOP}) == [
        f"a: {'; '.join(fact_lines(GLYPHS))}",
        f"b: {fact_lines(INSHOP)[0]}",
    ]
    assert run_lines({}) == []


def test_a_chance_level_on_which_runs_differ_is_none_of_them() -> None:
    other = replace(GLYPHS, splits={"train": SplitFacts(48, 6, chance=0.149), "test": SplitFacts(9)})
    assert common_chance([GLYPHS, other]) == {"train": 0.149, "test": 0.111}
    assert common_chance([GLYPHS, INSHOP]) == {"train": 0.149}


def test_epoch_0_has_a_name_of_its_own_where_runs_began_differently() -> None:
    pretrained = DataFacts("glyphs", {}, "pretrained")
    assert common_start([pretrained, pretrained]) == "pretrained"
    assert common_start([pretrained, DataFacts("glyphs", {})]) == "epoch 0"
    assert common_start([]) == "untrained"
