from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from layerprobe.plots.layers import draw, layers_csv
from layerprobe.values.facts import DataFacts
from layerprobe.values.layers import RankedLayer
from layerprobe.values.scores import Score
from layerprobe.values.views import Selected
from tests.plots.conftest import VGG, sure, with_chance
from tests.scores import CLUSTERS, TRAININGS, with_layer

MakeScores = Callable[..., list[Score]]
Overlaps = Callable[[Figure], list[tuple[str, str]]]
DEEP = ["pool5.1", "pool5.2", "pool5.3", "fc6"]


def line(axes: Axes, label: str) -> Line2D:
    (found,) = (line for line in axes.lines if line.get_label() == label)
    return found


def xy(drawn: Line2D) -> list[list[float]]:
    """The points of a line."""
    return [[float(x), float(y)] for x, y in np.asarray(drawn.get_xydata(), float)]


def x(drawn: Line2D) -> list[float]:
    return [point[0] for point in xy(drawn)]


def y(drawn: Line2D) -> list[float]:
    return [point[1] for point in xy(drawn)]


def has(axes: Axes, label: str) -> bool:
    return any(line.get_label() == label for line in axes.lines)


def notes(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.texts)


@pytest.mark.parametrize(("name", "split", "epoch"), [("train", "train", 5), ("test, untrained", "test", 0)])
def test_a_line_is_a_split_in_percent_over_layers(make_scores: MakeScores, name: str, split: str, epoch: int) -> None:
    scores = make_scores()
    (axes,) = draw(scores).axes
    own = [100 * (s.value or 0) for s in scores if (s.split, s.epoch) == (split, epoch)]
    assert y(line(axes, name)) == pytest.approx(own, rel=1e-12)
    assert x(line(axes, name)) == list(range(14))


def test_train_is_named_selection_classes_where_no_network_has_seen_it(make_scores: MakeScores) -> None:
    (run,) = {score.run for score in make_scores()}
    (axes,) = draw(make_scores(), data={run: DataFacts("", {}, seen=False)}).axes
    assert has(axes, "selection classes")
    assert not has(axes, "train")


def test_layers_stand_in_network_order(make_scores: MakeScores) -> None:
    names = ["pool5.2", "fc6", "alpha"]
    (axes,) = draw(make_scores(names)).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == names


def test_the_gap_between_train_and_test_is_shaded(make_scores: MakeScores) -> None:
    (axes,) = draw(make_scores(DEEP)).axes
    (gap,) = (collection for collection in axes.collections if isinstance(collection, PolyCollection))
    corners = np.asarray(gap.get_paths()[0].vertices, float).tolist()
    for name in ("train", "test"):
        assert all(corner in corners for corner in xy(line(axes, name)))


def test_the_best_test_layer_is_ringed_bold_and_named(make_scores: MakeScores) -> None:
    scores = [
        replace(s, value=0.625) if (s.ranked.layer.layer, s.split, s.epoch) == ("pool5.2", "test", 5) else s
        for s in make_scores(DEEP)
    ]
    (axes,) = draw(scores).axes
    assert xy(line(axes, "_best")) == [[1, 62.5]]
    bold = [label.get_text() for label in axes.get_xticklabels() if label.get_fontweight() == "bold"]
    assert bold == ["pool5.2"]
    assert axes.get_title("left").splitlines() == [
        "netA: R@1 by layer, epoch 5, cosine",
        "best on test (chosen on test): pool5.2, 62.5 %",
    ]


def test_the_best_layer_is_chosen_on_validation_and_ringed_at_its_test_value(make_scores: MakeScores) -> None:
    chosen = {("pool5.2", "validation"): 0.95, ("pool5.2", "test"): 0.125}
    scores = [
        replace(s, value=chosen.get((s.ranked.layer.layer, s.split), s.value))
        for s in make_scores(DEEP, splits=("train", "validation", "test"))
    ]
    (axes,) = draw(scores).axes
    assert xy(line(axes, "_best")) == [[1, 12.5]]
    said = " ".join(axes.get_title("left").split())
    assert said == "netA: R@1 by layer, epoch 5, cosine best on validation: pool5.2, 95.0 %; on test 12.5 %"


def test_the_best_layer_is_chosen_on_training_classes_that_no_network_has_seen(make_scores: MakeScores) -> None:
    chosen = {("pool5.2", "train"): 0.95, ("pool5.2", "test"): 0.125}
    scores = [replace(s, value=chosen.get((s.ranked.layer.layer, s.split), s.value)) for s in make_scores(DEEP)]
    (axes,) = draw(scores, data={scores[0].run: DataFacts("", {}, seen=False)}).axes
    assert xy(line(axes, "_best")) == [[1, 12.5]]
    said = " ".join(axes.get_title("left").split())
    assert said.endswith("best on selection classes: pool5.2, 95.0 %; on test 12.5 %")


def test_without_test_scores_the_ring_stands_at_the_validation_value(make_scores: MakeScores) -> None:
    scores = [
        replace(s, value=0.5 if s.ranked.layer.layer == "fc6" else 0.25)
        for s in make_scores(DEEP, splits=("validation",))
    ]
    assert xy(line(draw(scores).axes[0], "_best")) == [[3, 50.0]]


def test_a_figure_says_which_layer_training_made_worse(make_scores: MakeScores) -> None:
    found = {("fc6", 0): 0.6, ("fc6", 5): 0.572}
    scores = [replace(s, value=found.get((s.ranked.layer.layer, s.epoch), 0.5)) for s in make_scores(DEEP, [0, 5])]
    said = "training made test R@1 worse at 1 of 4 layers, such as fc6: 57.2 %, untrained 60.0 %, which no trained"
    assert said in " ".join(notes(draw(scores)).split())
    assert "training made" not in notes(draw(make_scores(DEEP, [0])))


def test_a_figure_says_what_its_scores_were_measured_on(make_scores: MakeScores) -> None:
    lines = notes(draw(make_scores(DEEP), data=with_chance(test=0.03))).splitlines()
    assert "test: 100 queries of 10 classes, chance R@1 3.0 %" in lines


def test_validation_is_drawn_where_there_is_one(make_scores: MakeScores) -> None:
    splits = ("train", "validation", "test")
    (axes,) = draw(make_scores(DEEP, splits=splits)).axes
    assert has(axes, "validation")
    assert not has(axes, "validation, untrained")
    assert not has(draw(make_scores(DEEP)).axes[0], "validation")


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("layers", [1, 4, 14, 18])
def test_no_text_covers_another(
    make_scores: MakeScores, overlaps: Overlaps, covers: Overlaps, layers: int, near: bool
) -> None:
    names = [f"inception{i // 4}.{i % 4}" for i in range(layers)]
    scores = make_scores(names, near=near, splits=("train", "validation", "test"))
    figure = draw(scores, data=with_chance(train=0.02, test=0.03))
    assert (overlaps(figure), covers(figure)) == ([], [])


@pytest.mark.parametrize("level", [0.02, 0.11, 0.3])
@pytest.mark.parametrize("layers", [1, 4, 14, 18])
def test_no_label_lies_on_a_line(make_scores: MakeScores, covers: Overlaps, layers: int, level: float) -> None:
    names = [f"inception{i // 4}.{i % 4}" for i in range(layers)]
    data = with_chance(train=level, test=level)
    assert covers(draw(make_scores(names), data=data)) == []
    two = [score for run in ("netA", "netE") for score in make_scores(names, run=run)]
    assert covers(draw(two, data=data)) == []


def test_the_bold_name_of_the_best_layer_has_its_room(make_scores: MakeScores, overlaps: Overlaps) -> None:
    scores = make_scores(["c1", "c2", "embedding_with_a_name_that_is_longer_than_most"], [5])
    assert overlaps(draw(scores, data=with_chance(train=0.02, test=0.03))) == []


def test_no_text_covers_another_with_four_runs(make_scores: MakeScores, overlaps: Overlaps, covers: Overlaps) -> None:
    scores = [score for run in ("netA", "netA-softmax", "netE", "netR") for score in make_scores(run=run)]
    figure = draw(scores, data=with_chance(train=0.02, test=0.03))
    assert (overlaps(figure), covers(figure)) == ([], [])


def test_each_run_is_drawn_at_its_own_last_epoch(make_scores: MakeScores) -> None:
    lasts = {"netA": 3, "netB": 8, "netC": 2, "netD": 5}
    figure = draw([score for run, last in lasts.items() for score in make_scores(DEEP, [0, last], run=run)])
    titles = [axes.get_title("left") for axes in figure.axes]
    assert all(
        f"{run}: R@1 by layer, epoch {last}," in title for (run, last), title in zip(lasts.items(), titles, strict=True)
    )
    assert all("best on test" in title for title in titles)
    assert "scores" not in notes(figure)


def test_chance_lines_stand_at_the_levels_given(make_scores: MakeScores) -> None:
    (axes,) = draw(make_scores(), data=with_chance(train=0.02, test=0.03)).axes
    assert y(line(axes, "_chance train")) == [2, 2]
    assert "chance: train 2.0 %, test 3.0 %" in [text.get_text() for text in axes.texts]


def test_a_low_chance_level_is_not_rounded_to_nothing(make_scores: MakeScores) -> None:
    (axes,) = draw(make_scores(), data=with_chance(test=0.0003)).axes
    assert "chance: test 0.03 %" in [text.get_text() for text in axes.texts]


def test_a_chance_level_out_of_view_is_written(make_scores: MakeScores) -> None:
    figure = draw(make_scores(DEEP, near=True), data=with_chance(train=0.02, test=0.03))
    assert "test: 100 queries of 10 classes, chance R@1 3.0 %" in notes(figure)


@pytest.mark.parametrize(("split", "absent"), [("test", "train"), ("train", "test")])
def test_a_missing_split_is_said_and_the_other_drawn(make_scores: MakeScores, split: str, absent: str) -> None:
    figure = draw(make_scores(DEEP, splits=(split,)))
    assert has(figure.axes[0], split)
    assert not has(figure.axes[0], absent)
    assert f"no {absent} scores" in notes(figure)
    assert has(figure.axes[0], "_best") == (split == "test")


def test_an_invalid_value_breaks_the_line_and_is_said(make_scores: MakeScores) -> None:
    scores = [
        replace(s, value=None, notes=("NaN (3 rows)",))
        if (s.ranked.layer.layer, s.split, s.epoch) == ("fc6", "test", 5)
        else s
        for s in make_scores(DEEP)
    ]
    figure = draw(scores)
    assert np.isnan(y(line(figure.axes[0], "test"))).tolist() == [False] * 3 + [True]
    assert "not valid: fc6, test, epoch 5: NaN (3 rows)" in notes(figure)


def test_weights_without_an_epoch_are_drawn_as_a_last_epoch_is(make_scores: MakeScores) -> None:
    scores = make_scores(DEEP, [0])
    figure = draw(scores, data={"netA": DataFacts("", {}, "epoch 0", weights="weights of own.pth")})
    (axes,) = figure.axes
    assert (has(axes, "test"), has(axes, "test, epoch 0"), line(axes, "test").get_linestyle()) == (True, False, "-")
    assert line(axes, "test").get_markerfacecolor() != "white"
    assert "weights of own.pth" in axes.get_title(loc="left")
    assert "epoch" not in axes.get_title(loc="left")


def test_untrained_alone_is_drawn_as_such(make_scores: MakeScores) -> None:
    (axes,) = draw(make_scores(DEEP, [0])).axes
    assert has(axes, "test, untrained")
    assert not has(axes, "test")


def test_no_valid_value_at_all_is_drawn_as_such(make_scores: MakeScores) -> None:
    figure = draw([replace(s, value=None, notes=("NaN (3 rows)",)) for s in make_scores(["fc6"], [1])])
    assert not has(figure.axes[0], "_best")
    assert "not valid: fc6, test, epoch 1: NaN (3 rows)" in notes(figure)


def test_each_post_processing_has_a_panel_of_its_own(make_scores: MakeScores) -> None:
    scores = make_scores(DEEP)
    post_processed = [
        replace(with_layer(s, post_processing="l2"), value=0.1) for s in scores if s.ranked.layer.layer == DEEP[-1]
    ]
    data = {"netA": DataFacts("x", {}, "pretrained")}
    raw, after = draw([*scores, *post_processed], data=data).axes
    assert [axes.get_title("left").split("\n")[0] for axes in (raw, after)] == ["netA, cosine", "netA, l2, cosine"]
    assert [[tick.get_text() for tick in axes.get_xticklabels()] for axes in (raw, after)] == [DEEP, ["fc6/l2"]]
    assert "test, pretrained" in [line.get_label() for line in after.get_lines()]


def test_of_many_post_processings_the_layers_as_they_are_alone_are_drawn(make_scores: MakeScores) -> None:
    scores = make_scores(DEEP, [0, 5])
    many = [
        *scores,
        *(with_layer(s, post_processing=f"pca:{dim}") for s in scores for dim in range(1, 7)),
    ]
    figure = draw(many)
    assert len(figure.axes) == 1
    assert "--layers '*/pca:1' shows them after one of 6 kinds of post-processing." in " ".join(notes(figure).split())
    assert {row["post_processing"] for row in csv.DictReader(layers_csv(many).splitlines())} == {"none"}


def test_the_table_has_the_epochs_and_splits_that_are_drawn(make_scores: MakeScores) -> None:
    rows = csv.DictReader(layers_csv(make_scores(["fc6"], splits=("train", "validation", "test"))).splitlines())
    assert [(row["epoch"], row["validation R@1"] != "") for row in rows] == [("0", False), ("5", True)]


def test_no_line_joins_two_similarities(make_scores: MakeScores) -> None:
    scores = make_scores(DEEP)
    panels = draw(
        [*scores, *(replace(with_layer(s, similarity="dot"), value=0.1) for s in scores if s.epoch == 5)]
    ).axes
    assert [axes.get_title("left").split("\n")[:2] for axes in panels] == [
        ["netA, cosine", "R@1 by layer, epoch 5"],
        ["netA, dot", "R@1 by layer, epoch 5"],
    ]
    own = [100 * (s.value or 0) for s in scores if (s.split, s.epoch) == ("test", 5)]
    assert y(line(panels[0], "test")) == pytest.approx(own)
    assert y(line(panels[1], "test")) == pytest.approx([10] * 4)
    assert [label.get_text() for label in panels[1].get_xticklabels()] == [f"{name}~dot" for name in DEEP]


def test_layers_of_several_pools_have_a_line_for_each(make_scores: MakeScores) -> None:
    scores = [
        with_layer(score, pool=pool)
        for score in make_scores(["blocks.0", "blocks.1", "output"], epochs=[0])
        for pool in (["none"] if score.ranked.layer.layer == "output" else ["avg", "cls"])
    ]
    (axes,) = draw(scores).axes
    # blocks.0@avg, blocks.0@cls, blocks.1@avg, blocks.1@cls, output
    assert [x(line(axes, label)) for label in ("test, untrained", "_test, untrained")] == [[0, 2, 4], [1, 3, 4]]
    assert len([part for part in axes.collections if part.get_label() == "_gap"]) == 2


def test_the_lines_of_pools_differ_and_are_named(make_scores: MakeScores) -> None:
    scores = [with_layer(score, pool=pool) for pool in ("max", "avg") for score in make_scores(DEEP[:3])]
    (axes,) = draw(scores).axes
    dashes = {label: line(axes, label).get_linestyle() for label in ("train", "_train", "test", "_test")}
    assert dashes == {"train": "-", "test": "-", "_train": "--", "_test": "--"}
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["pool max", "pool avg"]


def test_runs_of_different_networks_have_panels_of_their_own_layers(
    make_scores: MakeScores, overlaps: Overlaps
) -> None:
    blocks = [*(f"blocks.{place}" for place in range(12)), "fc6"]
    figure = draw([*make_scores(), *make_scores(blocks, run="vit")])
    first, second = figure.axes
    assert [label.get_text() for label in first.get_xticklabels()] == VGG
    assert [label.get_text() for label in second.get_xticklabels()] == blocks
    assert first.get_ylim() == second.get_ylim()
    assert overlaps(figure) == []


def test_networks_with_layers_of_the_same_names_have_panels_of_their_own(make_scores: MakeScores) -> None:
    networks = {"netA": ("pool5.1", "pool5.2", "pool5.3", "fc6"), "deep": ("pool5.1", "pool5.3", "fc6")}
    data = {run: DataFacts("", {}, network=run, layers=layers) for run, layers in networks.items()}
    scores = [*make_scores(DEEP), *make_scores(["pool5.1", "pool5.3", "fc6"], run="deep")]
    assert len(draw(scores, data=data).axes) == 2
    assert len(draw(scores).axes) == 1


def test_each_post_processing_has_a_line_of_maps_and_vectors(make_scores: MakeScores) -> None:
    scores = [
        with_layer(score, pool="none" if score.ranked.layer.layer == "fc6" else "max", post_processing=post_processing)
        for score in make_scores(["pool3", "pool5", "fc6"], epochs=[0])
        for post_processing in (["none"] if score.ranked.layer.layer == "pool3" else ["none", "pca:8"])
    ]
    raw, post_processed = draw(scores).axes
    # pool3, which is too short for pca:8, pool5 and fc6; pool5 and fc6
    assert [x(line(axes, "test, untrained")) for axes in (raw, post_processed)] == [[0, 1, 2], [0, 1]]


def test_no_line_goes_through_layers_side_by_side(make_scores: MakeScores) -> None:
    (axes,) = draw(make_scores(["pool5.1", "pool5.2", "pool5.1+pool5.2", "fc6"])).axes
    assert x(line(axes, "train")) == [0, 1, 3]
    alone = [drawn for drawn in axes.lines if drawn.get_label() == "_train"]
    assert [x(drawn) for drawn in alone] == [[2]]


def bars(axes: Axes) -> dict[str, list[list[list[float]]]]:
    """Split -> for each interval its two ends."""
    return {
        str(part.get_label()).removeprefix("_interval "): [np.asarray(ends).tolist() for ends in part.get_segments()]
        for part in axes.collections
        if isinstance(part, LineCollection) and str(part.get_label()).startswith("_interval")
    }


def test_a_bar_is_the_interval_at_the_last_epoch(make_scores: MakeScores) -> None:
    scores = sure(make_scores(DEEP), 0.05)
    figure = draw(scores)
    found = bars(figure.axes[0])
    assert list(found) == ["train", "test"]
    for split in found:
        own = [s for s in scores if (s.split, s.epoch) == (split, 5)]
        heights = [[y for _, y in ends] for ends in found[split]]
        assert heights == [pytest.approx([100 * (s.low or 0), 100 * (s.high or 0)]) for s in own]
    assert "Bars: 95 % interval over classes, against this gallery" in notes(figure)


@pytest.mark.parametrize("layers", [1, 14])
def test_the_bars_of_splits_stand_beside_each_other_at_their_layer(make_scores: MakeScores, layers: int) -> None:
    names = [f"layer{i}" for i in range(layers)]
    (axes,) = draw(sure(make_scores(names, splits=("train", "validation", "test")))).axes
    places = [[ends[0][0] for ends in of_split] for of_split in bars(axes).values()]
    assert places[1] == list(range(layers))
    # as far from it to the one side as to the other, and less than half of the way to the next layer
    assert np.add(places[0], places[2]) == pytest.approx(2 * np.arange(layers))
    assert 0 < places[2][0] < 0.5


def test_bars_are_in_view(make_scores: MakeScores) -> None:
    low, high = draw(sure(make_scores(DEEP), 0.3)).axes[0].get_ylim()
    assert low <= 0
    assert high > max(100 * ((s.value or 0) + 0.3) for s in make_scores(DEEP) if s.epoch == 5)


def test_a_layer_without_an_interval_has_no_bar(make_scores: MakeScores) -> None:
    scores = [s if s.ranked.layer.layer == "fc6" else sure([s])[0] for s in make_scores(DEEP)]
    assert [len(of_split) for of_split in bars(draw(scores).axes[0]).values()] == [3, 3]
    assert bars(draw(make_scores(DEEP)).axes[0]) == {}


def test_the_kind_of_earlier_epochs_does_not_matter(make_scores: MakeScores) -> None:
    old, new = sure(make_scores(DEEP, [0])), sure(make_scores(DEEP, [5]), units=CLUSTERS)
    figure = draw(old + new)
    assert list(bars(figure.axes[0])) == ["train", "test"]
    assert (
        " ".join(notes(figure).split()) == "Bars: 95 % interval over clusters of classes (parent), against this gallery"
    )


def test_intervals_of_different_kinds_are_not_drawn(make_scores: MakeScores) -> None:
    others = sure(make_scores(DEEP, run="netE"), units=CLUSTERS)
    figure = draw([*sure(make_scores(DEEP)), *others])
    assert bars(figure.axes[0]) == {}
    assert "intervals of different kinds are not shown together" in " ".join(notes(figure).split())


def test_the_layers_not_told_apart_from_the_best_are_named(make_scores: MakeScores) -> None:
    scores = make_scores(DEEP)
    given: list[Sequence[Score]] = []

    def indistinguishable(shown: Sequence[Score], metric: str) -> list[RankedLayer]:
        given.append(shown)
        assert metric == "R@1"
        return [score.ranked for score in shown if score.ranked.layer.layer in ("pool5.1", "pool5.3")]

    figure = draw(scores, indistinguishable=indistinguishable)
    assert given == [[score for score in scores if score.epoch == 5]]
    assert "best: fc6; not significantly different: pool5.1, pool5.3" in notes(figure)
    assert "significantly" not in notes(draw(scores, indistinguishable=lambda *_: None))


def test_of_many_layers_not_told_apart_from_the_best_the_number_is_said(make_scores: MakeScores) -> None:
    scores = make_scores([f"c{place}" for place in range(13)], [5])
    near = [score.ranked for score in scores if score.ranked.layer.layer not in ("c0", "c12")]
    assert "best: c12; not significantly different: 11 of the 12 others" in notes(
        draw(scores, indistinguishable=lambda *_: near)
    )


def test_each_similarity_has_a_best_of_its_own(make_scores: MakeScores) -> None:
    scores = make_scores(DEEP, [0])
    dot = [replace(with_layer(score, similarity="dot"), value=0.1) for score in scores]
    figure = draw(
        [*scores, *dot], indistinguishable=lambda shown, _: () if shown[0].ranked.similarity == "dot" else None
    )
    assert notes(figure).splitlines() == ["netA, dot: best: pool5.1~dot; significantly better than all others"]


def test_a_candidate_in_fifths_is_drawn_with_the_embedding_in_the_same_fifths(make_scores: MakeScores) -> None:
    scores = make_scores(DEEP, [5])
    of_test = {score.ranked.layer.layer: score for score in scores if score.split == "test"}
    candidate, embedding = replace(of_test["pool5.2"], value=0.786), replace(of_test["fc6"], value=0.758)
    selected = Selected("pool5.2, partially whitened to 128", candidate, 128, True, embedding)
    figure = draw(scores, selected={"netA": selected})
    dotted = line(figure.axes[0], "_from the embedding in the same fifths")
    assert xy(dotted) == [[1, pytest.approx(75.8)], [1, pytest.approx(78.6)]]
    legend = figure.axes[0].get_legend()
    assert legend is not None
    (entry,) = legend.get_texts()
    assert (
        entry.get_text() == "selected: pool5.2, partially whitened to 128 (in fifths), 75.8 \N{RIGHTWARDS ARROW} 78.6 %"
    )
    assert "the hollow star is to be compared with the other end of its dotted line" in " ".join(
        notes(figure).lower().split()
    )


def test_a_candidate_of_the_whole_gallery_has_no_line_to_another_search(make_scores: MakeScores) -> None:
    scores = make_scores(DEEP, [5])
    candidate = next(score for score in scores if score.split == "test")
    figure = draw(scores, selected={"netA": Selected("pool5.1", candidate, 512)})
    assert not [drawn for drawn in figure.axes[0].lines if "same fifths" in str(drawn.get_label())]


def notes_in_one_line(figure: Figure) -> str:
    """The lines under the figure as one."""
    return " ".join(" ".join(text.get_text() for text in figure.texts).split())


def two(make_scores: MakeScores) -> list[Score]:
    """Of netE each value is half of that of netA."""
    second = [replace(score, value=(score.value or 0) / 2) for score in make_scores(DEEP, run="netE")]
    return [*make_scores(DEEP), *second]


def test_a_line_is_a_split_of_a_run_at_its_last_epoch(make_scores: MakeScores) -> None:
    scores = two(make_scores)
    (axes,) = draw(scores).axes
    for run in ("netA", "netE"):
        for split in ("train", "test"):
            own = [100 * (s.value or 0) for s in scores if (s.run, s.split, s.epoch) == (run, split, 5)]
            drawn = np.asarray(line(axes, f"{run} {split}").get_xydata(), float)
            assert drawn.tolist() == [[place, pytest.approx(value)] for place, value in enumerate(own)]
    assert axes.get_title("left") == "R@1 by layer, epoch 5, cosine"


def test_a_run_has_its_colour_and_the_key_names_it(make_scores: MakeScores) -> None:
    (axes,) = draw(two(make_scores)).axes
    colours = [line(axes, f"{run} {split}").get_color() for run in ("netA", "netE") for split in ("train", "test")]
    assert colours[0] == colours[1] != colours[2] == colours[3]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["netA", "netE"]


def test_layers_that_a_run_does_not_have_keep_their_place(make_scores: MakeScores) -> None:
    scores = [score for score in two(make_scores) if (score.run, score.ranked.layer.layer) != ("netE", "pool5.2")]
    (axes,) = draw(scores).axes
    assert [x for x, _ in np.asarray(line(axes, "netE test").get_xydata(), float).tolist()] == [0, 2, 3]
    assert [label.get_text() for label in axes.get_xticklabels()] == DEEP


def test_the_best_layer_of_each_run_is_ringed_and_named(make_scores: MakeScores) -> None:
    scores = [
        replace(s, value=0.625)
        if (s.run, s.ranked.layer.layer, s.split, s.epoch) == ("netE", "pool5.2", "test", 5)
        else s
        for s in two(make_scores)
    ]
    figure = draw(scores)
    rings = [ring for ring in figure.axes[0].lines if ring.get_label() == "_best"]
    assert np.asarray(rings[1].get_xydata(), float).tolist() == [[1, 62.5]]
    assert "netE: best on test (chosen on test): pool5.2, 62.5 %" in notes_in_one_line(figure)


def test_bars_of_trainings_reach_from_the_lowest_to_the_highest(make_scores: MakeScores) -> None:
    seeds = sure(make_scores(DEEP, run="s* (2 seeds)"), 0.1, units=TRAININGS)
    figure = draw([*seeds, *sure(make_scores(DEEP))])
    found = [part for part in figure.axes[0].collections if str(part.get_label()).startswith("_interval")]
    (bars,) = found
    assert isinstance(bars, LineCollection)
    own = [s for s in seeds if (s.split, s.epoch) == ("test", 5)]
    assert [np.asarray(ends)[:, 1].tolist() for ends in bars.get_segments()] == [
        pytest.approx([100 * (s.low or 0), 100 * (s.high or 0)]) for s in own
    ]
    assert "Bars: lowest to highest training" in notes_in_one_line(figure)


def test_each_post_processing_has_a_panel_of_all_runs(make_scores: MakeScores) -> None:
    scores = two(make_scores)
    figure = draw(
        [
            *scores,
            *(with_layer(score, post_processing="l2") for score in scores if score.ranked.layer.layer == "fc6"),
        ]
    )
    assert [axes.get_title("left") for axes in figure.axes] == [
        "R@1 by layer, epoch 5, cosine",
        "R@1 by layer, epoch 5, l2, cosine",
    ]
    assert "netE, l2, cosine: best on test" in notes_in_one_line(figure)


def test_no_text_of_several_runs_covers_another(make_scores: MakeScores, overlaps: Overlaps, covers: Overlaps) -> None:
    runs = ("netA-v-s* (3 seeds)", "netA-softmax-v-s* (2 seeds)", "netE")
    scores = [score for run in runs for score in make_scores(run=run)]
    figure = draw(scores, data=with_chance(train=0.02, test=0.03))
    assert (overlaps(figure), covers(figure)) == ([], [])
