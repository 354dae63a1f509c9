from __future__ import annotations

from dataclasses import replace

from layerprobe.values.facts import (
    DataFacts,
    IdenticalImages,
    SplitFacts,
    common_chance,
    common_start,
    fact_lines,
    image_lines,
    run_lines,
    split_header,
    split_text,
)

GLYPHS = DataFacts("glyphs", {"train": SplitFacts(48, 6, chance=0.149), "test": SplitFacts(1360, 68, chance=0.111)})
INSHOP = DataFacts("inshop:img", {"test": SplitFacts(14218, 3985, gallery=12612, chance=0.000312)})


def test_a_line_has_the_queries_classes_and_chance_of_a_split() -> None:
    assert fact_lines(GLYPHS) == [
        "glyphs train: 48 queries, 6 classes, chance R@1 14.9 %",
        "glyphs test: 1,360 queries, 68 classes, chance R@1 11.1 %",
    ]


def test_train_is_named_selection_classes_only_if_no_network_may_have_seen_it() -> None:
    unseen = replace(GLYPHS, seen=False)
    named = [split_text("train", data) for data in ([unseen], [unseen, unseen], [GLYPHS, unseen], [])]
    assert named == ["selection classes", "selection classes", "train", "train"]
    assert [split_text(split, [unseen]) for split in ("validation", "test")] == ["validation", "test"]
    headers = [split_header("train", [unseen]), split_header("train", [GLYPHS]), split_header("validation", [GLYPHS])]
    assert headers == ["selection", "train", "valid."]
    assert fact_lines(unseen)[0].startswith("glyphs selection classes: 48 queries")
    assert run_lines({"a": unseen})[1].startswith("selection classes: 48 queries of 6 classes")


def test_training_classes_choose_the_best_layer_only_if_unseen_and_nothing_is_fitted_on_them() -> None:
    unseen = replace(GLYPHS, seen=False)
    assert unseen.chosen_on(["none", "none"]) == ("validation", "train", "test")
    assert unseen.chosen_on(["none", "l2+pca:8"]) == ("validation", "test")
    assert GLYPHS.chosen_on(["none"]) == ("validation", "test")


def test_a_gallery_is_named_and_a_low_chance_keeps_two_digits() -> None:
    (line,) = fact_lines(INSHOP)
    assert line == "inshop:img test: 14,218 queries, 3,985 classes, a gallery of 12,612, chance R@1 0.031 %"


def test_what_is_unknown_is_left_out() -> None:
    assert fact_lines(DataFacts("", {"test": SplitFacts(8)})) == ["test: 8 queries"]


def test_a_caption_names_the_data_what_is_searched_and_each_split() -> None:
    assert run_lines({"a": GLYPHS}) == [
        "glyphs, each query is compared with the other images of its split",
        "train: 48 queries of 6 classes, chance R@1 14.9 %",
        "test: 1,360 queries of 68 classes, chance R@1 11.1 %",
    ]
    assert run_lines({"a": INSHOP}) == [
        "inshop:img",
        "test: 14,218 queries of 3,985 classes in a gallery of 12,612, chance R@1 0.031 %",
    ]


def test_a_caption_has_the_splits_of_the_figure_and_says_which_classes_are_new() -> None:
    trained = replace(GLYPHS, held_out=True)
    assert run_lines({"a": trained}, ["test"])[1:] == [
        "test: 1,360 queries of 68 classes not trained on, chance R@1 11.1 %"
    ]
    assert run_lines({"a": trained}, ["train"])[1:] == ["train: 48 queries of 6 classes, chance R@1 14.9 %"]


def test_images_that_are_not_searched_have_no_chance_level() -> None:
    assert image_lines({"a": GLYPHS}, ["test"]) == ["glyphs", "test: 1,360 images of 68 classes"]
    assert image_lines({"a": INSHOP}) == ["inshop:img", "test: 14,218 images of 3,985 classes"]


def test_a_caption_leaves_out_what_is_unknown() -> None:
    assert run_lines({"a": DataFacts("", {"test": SplitFacts(8)})}) == ["test: 8 queries"]
    assert run_lines({"a": DataFacts("glyphs", {})}) == []


def test_runs_on_the_same_data_share_their_caption() -> None:
    assert run_lines({"a": GLYPHS, "b": GLYPHS}) == run_lines({"a": GLYPHS})
    assert run_lines({"a": GLYPHS, "b": INSHOP, "c": GLYPHS}) == [
        f"a, c: {'; '.join(run_lines({'a': GLYPHS}))}",
        f"b: {'; '.join(run_lines({'b': INSHOP}))}",
    ]
    assert run_lines({"a": DataFacts("", {}), "b": GLYPHS}) == [f"b: {'; '.join(run_lines({'b': GLYPHS}))}"]
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


def test_more_than_half_without_a_right_item_and_identical_images_are_told() -> None:
    few, many = (DataFacts("birds", {"test": SplitFacts(8, lone=lone)}) for lone in (4, 5))
    assert fact_lines(few) == ["birds test: 8 queries"]
    assert fact_lines(many) == ["birds test: 8 queries, 5 queries without a right item"]
    identical = SplitFacts(1200, identical=IdenticalImages(1100, "fc6", 0.25))
    assert fact_lines(DataFacts("", {"train": identical}, seen=False)) == [
        "selection classes: 1,200 queries",
        "selection classes: 1,100 of 1,200 queries have an identical image in what they search; without those R@1 of"
        " fc6 is 25.0 %",
    ]
    alone = SplitFacts(6, identical=IdenticalImages(6, "fc6", None))
    assert fact_lines(DataFacts("", {"test": alone}))[1].endswith(
        "6 of 6 queries have an identical image in what they search"
    )
