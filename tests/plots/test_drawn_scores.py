from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace

import pytest

from layerprobe.plots.drawn_scores import (
    add_search_to_run,
    common_lines,
    comparison_text,
    default_layers,
    drawn_percents,
    group_by_network,
    group_by_run,
    keep_one_kind,
    layers_by_epoch_csv,
    match_layers,
    missing_lines,
    names_in_order,
    omission_notes,
    percent,
    scores_of_metric,
    select_raw,
)
from layerprobe.system.errors import LayerprobeError, UnknownNameError
from layerprobe.values.facts import DataFacts
from layerprobe.values.intervals import Interval, IntervalKind, ShownKind
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score
from tests.plots.conftest import VGG, sure
from tests.scores import CLUSTERS, with_layer

MakeScores = Callable[..., list[Score]]


def test_layers_keep_the_order_of_the_scores_and_epochs_ascend(make_scores: MakeScores) -> None:
    scores = make_scores(["pool5", "fc6", "alpha"], [7, 2, 5])
    (series,) = group_by_run(scores_of_metric(scores)).values()
    assert list(series) == ["pool5", "fc6", "alpha"]
    splits = [score.split for score in scores[:2]]
    assert list(series["fc6"]) == [(epoch, split) for epoch in (2, 5, 7) for split in splits]
    assert set(series["fc6"].values()) == {score for score in scores if score.ranked.layer.layer == "fc6"}


def test_layers_of_several_runs_are_named_in_one_network_order(make_scores: MakeScores) -> None:
    first, second = make_scores(["pool5", "fc6"], [0]), make_scores(["c1", "c3", "fc6", "fc7"], [0], run="netE")
    assert names_in_order(group_by_run(scores_of_metric(first + second))) == ["c1", "c3", "pool5", "fc6", "fc7"]


def test_the_columns_of_splits_have_one_order_whatever_was_measured_first(make_scores: MakeScores) -> None:
    scores = make_scores(["a"], [0], ["test"]) + make_scores(["b"], [0], ["validation", "train"])
    header = layers_by_epoch_csv(scores).splitlines()[0].split(",")
    assert header[6:9] == ["train R@1", "validation R@1", "test R@1"]


def test_other_metrics_are_left_out(make_scores: MakeScores) -> None:
    scores = make_scores(["a"], [1])
    others = [replace(score, metric="R@2", value=1.0) for score in scores]
    assert scores_of_metric([*scores, *others]) == scores_of_metric(scores)


def test_scores_without_recall_are_an_error_that_names_their_metrics(make_scores: MakeScores) -> None:
    with pytest.raises(LayerprobeError, match=r"^no scores of R@1\. There is MAP@R, NMI\.$"):
        scores_of_metric([replace(score, metric=name) for score in make_scores() for name in ("MAP@R", "NMI")])


def test_scores_of_one_other_metric_are_drawn(make_scores: MakeScores) -> None:
    found = scores_of_metric([replace(score, metric="MAP@R") for score in make_scores()])
    assert {score.metric for score in found} == {"MAP@R"}
    header = layers_by_epoch_csv([replace(score, metric="MAP@R") for score in make_scores()]).splitlines()[0]
    assert "test MAP@R" in header
    assert "R@1" not in header


def test_no_scores_at_all_are_an_error() -> None:
    with pytest.raises(LayerprobeError, match=r"^no scores of R@1\. Probe a layer first\.$"):
        scores_of_metric([])


def test_percent_is_of_the_fraction(make_scores: MakeScores) -> None:
    (score,) = make_scores(["a"], [1], ["test"])
    assert [percent(x) for x in (replace(score, value=0.25), replace(score, value=None), None)] == [25, None, None]


def test_the_csv_holds_fractions_and_an_empty_cell_where_invalid(make_scores: MakeScores) -> None:
    train, test = make_scores(["a,b"], [4])
    text = layers_by_epoch_csv([replace(train, value=0.1 + 0.2), replace(test, value=None, notes=("NaN (3 rows)",))])
    header, row = csv.reader(text.splitlines())
    assert header == [
        "run",
        "layer",
        "pool",
        "post_processing",
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
    text = layers_by_epoch_csv([train, replace(test, interval=Interval(0.25, 0.5), units=CLUSTERS)])
    (row,) = csv.DictReader(text.splitlines())
    assert (row["test R@1 low"], row["test R@1 high"], row["test note"]) == ("0.25", "0.5", "clusters: parent")
    assert (row["train R@1 low"], row["train R@1 high"], row["train note"]) == ("", "", "")


def test_values_and_the_ends_of_their_intervals_are_in_percent(make_scores: MakeScores) -> None:
    train, test = make_scores(["a"], [4])
    scores = [train, replace(test, value=0.375, interval=Interval(0.25, 0.5))]
    assert drawn_percents(scores, ["test"]) == [37.5, 25, 50]


def test_intervals_that_a_figure_does_not_show_have_no_say_in_their_kind(make_scores: MakeScores) -> None:
    train, test = sure(make_scores(["a"], [4]), notes=("2 zero vectors",))
    shown, kind = keep_one_kind([replace(train, units=CLUSTERS), test], lambda score: score.split == "test")
    assert kind == ShownKind(IntervalKind())
    assert [score.interval for score in shown] == [None, test.interval]
    assert [score.notes for score in shown] == [("2 zero vectors",)] * 2


def test_of_different_kinds_no_interval_is_left_and_the_notes_stay(make_scores: MakeScores) -> None:
    train, test = sure(make_scores(["a"], [4]))
    shown, kind = keep_one_kind([replace(train, units=CLUSTERS), test], lambda _: True)
    assert kind.mixed
    assert [(score.interval, score.notes) for score in shown] == [(None, ("clusters: parent",)), (None, ())]


def test_runs_keep_their_own_layers(make_scores: MakeScores) -> None:
    found = group_by_run(scores_of_metric(make_scores(["a"], [1]) + make_scores(["b"], [1, 2], run="netE")))
    epochs = {(run, name): {epoch for epoch, _ in layer} for run in found for name, layer in found[run].items()}
    assert epochs == {("netA", "a"): {1}, ("netE", "b"): {1, 2}}


def test_a_label_is_the_layer_with_what_tells_it_apart(make_scores: MakeScores) -> None:
    scores = make_scores(["a", "b"], [1], ["test"])
    scores += [
        with_layer(scores[0], pool="avg"),
        with_layer(scores[0], post_processing="pca:8"),
        with_layer(scores[1], pool="max"),
    ]
    (series,) = group_by_run(scores_of_metric(scores)).values()
    assert set(series) == {"a", "a@avg", "a/pca:8", "b", "b@max"}


def test_two_similarities_are_told_apart(make_scores: MakeScores) -> None:
    (score,) = make_scores(["a"], [1], ["test"])
    series = group_by_run(scores_of_metric([score, with_layer(score, similarity="dot")]))["netA"]
    assert list(series) == ["a~cosine", "a~dot"]
    assert comparison_text(series) == "cosine, dot"


def test_runs_of_one_similarity_each_say_it_for_themselves(make_scores: MakeScores) -> None:
    (score,) = make_scores(["a"], [1], ["test"])
    runs = group_by_run(scores_of_metric([score, replace(with_layer(score, similarity="dot"), run="netB")]))
    assert {run: (list(series), comparison_text(series)) for run, series in runs.items()} == {
        "netA": (["a~cosine"], "cosine"),
        "netB": (["a~dot"], "dot"),
    }


def test_similarities_can_be_kept_apart_as_runs_are(make_scores: MakeScores) -> None:
    (score,) = make_scores(["a"], [1], ["test"])
    both = group_by_run(add_search_to_run(scores_of_metric([score, with_layer(score, similarity="dot")])))
    assert {run: list(series) for run, series in both.items()} == {"netA, cosine": ["a~cosine"], "netA, dot": ["a~dot"]}
    assert list(group_by_run(add_search_to_run(scores_of_metric([score])))) == ["netA"]


def test_post_processing_can_be_kept_apart_as_runs_are(make_scores: MakeScores) -> None:
    (score,) = make_scores(["a"], [1], ["test"])
    both = group_by_run(add_search_to_run(scores_of_metric([score, with_layer(score, post_processing="l2")])))
    assert {run: list(series) for run, series in both.items()} == {"netA, cosine": ["a"], "netA, l2, cosine": ["a/l2"]}


def test_a_note_that_all_runs_have_is_said_once(make_scores: MakeScores) -> None:
    runs = [replace(s, run=run, notes=("few images", run)) for run in "ab" for s in make_scores(["x"], [1], ["test"])]
    assert common_lines(group_by_run(scores_of_metric(runs))) == ["few images", "a: a", "b: b"]


def test_post_processing_that_all_share_is_part_of_how_they_were_compared(make_scores: MakeScores) -> None:
    scores = [with_layer(score, post_processing="pca:8") for score in make_scores(["a"], [1])]
    assert comparison_text(group_by_run(scores_of_metric(scores))["netA"]) == "pca:8, cosine"
    assert comparison_text(group_by_run(scores_of_metric(make_scores(["a"], [1]) + scores))["netA"]) == "cosine"


def test_a_missing_split_is_said(make_scores: MakeScores) -> None:
    runs = group_by_run(scores_of_metric(make_scores(["a"], [1], ["test"])))
    assert missing_lines(runs, ("train", "test")) == ["no train scores"]


def test_the_layers_that_lack_a_split_are_named(make_scores: MakeScores) -> None:
    runs = group_by_run(scores_of_metric(make_scores(["a"], [1]) + make_scores(["b", "c"], [1], ["test"])))
    assert missing_lines(runs, ("train", "test")) == ["no train scores of b, c"]


def test_invalid_values_are_said_with_their_epochs(make_scores: MakeScores) -> None:
    scores = [
        replace(s, value=None, notes=("NaN (3 rows)",)) if s.split == "test" and s.epoch in (1, 3, 4, 5) else s
        for s in make_scores(["a"])
    ]
    assert missing_lines(group_by_run(scores_of_metric(scores)), ("train", "test")) == [
        "not valid: a, test, epochs 1, 3-5: NaN (3 rows)"
    ]


def test_the_csv_has_the_note_of_a_valid_value(make_scores: MakeScores) -> None:
    train, test = make_scores(["a"], [4])
    text = layers_by_epoch_csv([train, replace(test, notes=("2 zero vectors", "partial: 3 of 4 test images"))])
    (row,) = csv.DictReader(text.splitlines())
    assert (row["train note"], row["test note"]) == ("", "2 zero vectors; partial: 3 of 4 test images")


def test_what_every_score_of_a_run_says_is_shared(make_scores: MakeScores) -> None:
    scores = [replace(score, notes=("partial: 3 of 4 test images",)) for score in make_scores(["a", "b"], [0, 1])]
    scores[0] = replace(scores[0], notes=("2 zero vectors", *scores[0].notes))
    assert common_lines(group_by_run(scores_of_metric(scores))) == ["partial: 3 of 4 test images"]
    both = group_by_run(scores_of_metric(scores + make_scores(["a"], [1], run="netE")))
    assert common_lines(both) == ["netA: partial: 3 of 4 test images"]


def test_what_every_value_of_a_split_says_is_shared_once(make_scores: MakeScores) -> None:
    few = "12 images without a class"
    scores = [replace(s, notes=(few,)) if s.split == "test" else s for s in make_scores(["a", "b"], [0, 1])]
    scores[-1] = replace(scores[-1], value=None, notes=("NaN (3 rows)",))
    assert common_lines(group_by_run(scores_of_metric(scores))) == [f"test: {few}"]
    scores[1] = replace(scores[1], notes=())
    assert common_lines(group_by_run(scores_of_metric(scores))) == []


def test_a_valid_value_with_a_note_is_not_missing(make_scores: MakeScores) -> None:
    scores = [replace(score, notes=("2 zero vectors",)) for score in make_scores(["a"], [1])]
    assert missing_lines(group_by_run(scores_of_metric(scores)), ("train", "test")) == []


def test_what_is_missing_names_its_run_among_several(make_scores: MakeScores) -> None:
    runs = group_by_run(scores_of_metric(make_scores(["a"], [1]) + make_scores(["a"], [1], ["train"], run="netE")))
    assert missing_lines(runs, ("train", "test")) == ["netE: no test scores"]


def layer(name: str, post_processing: str = "none", pool: str = "max") -> RankedLayer:
    return RankedLayer(LayerKey(name, pool), post_processing, "cosine")


KNOWN = [layer("pool5.2"), layer("pool5.3"), layer("pool5.3", pool="avg"), layer("fc6"), layer("fc6", "pca:8")]


def test_a_name_means_every_pool_of_the_layer_as_it_is() -> None:
    assert match_layers(("fc6", "pool5.3"), KNOWN) == [KNOWN[3], KNOWN[1], KNOWN[2]]


def test_post_processing_follows_a_slash() -> None:
    assert match_layers(("fc6/pca:8",), KNOWN) == [KNOWN[4]]


def test_a_glob_after_the_slash_means_all_post_processings_that_match() -> None:
    known = [*KNOWN, layer("fc6", "pca:16"), layer("fc6", "random:8")]
    assert match_layers(("fc6/pca:*",), known) == known[4:6]


def test_a_glob_means_all_that_match_and_each_once() -> None:
    assert match_layers(("pool5.?@max", "pool5.2"), KNOWN) == [KNOWN[0], KNOWN[1]]


def test_a_layer_that_is_measured_post_processed_alone_needs_no_slash() -> None:
    assert match_layers(("fc6",), [KNOWN[4]]) == [KNOWN[4]]


@pytest.mark.parametrize(("name", "near"), [("pool5.4", "pool5.3@max"), ("fc6/pca:9", "fc6@max/pca:8")])
def test_an_unknown_name_is_told_with_its_near_miss(name: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=f"Did you mean '{near}'"):
        match_layers((name,), KNOWN)


def test_an_unknown_layer_is_told_the_layers_and_an_unknown_post_processing_those_of_its_layer() -> None:
    with pytest.raises(UnknownNameError, match=r"Known: pool5.2@max, .*, fc6@max, fc6@max/pca:8\.?$"):
        match_layers(("conv9",), KNOWN)
    with pytest.raises(UnknownNameError, match=r"Known: fc6@max, fc6@max/pca:8\.?$"):
        match_layers(("fc6/binary",), KNOWN)


def test_a_glob_that_nothing_matches_is_told() -> None:
    with pytest.raises(UnknownNameError, match="unknown layer 'nothing"):
        match_layers(("nothing.*",), KNOWN)


def first(scores: list[Score], embeddings: dict[str, RankedLayer] | None = None) -> list[str]:
    return [str(ranked) for ranked in default_layers(group_by_run(scores_of_metric(scores)), embeddings or {}, {})]


def test_the_few_of_fourteen_layers_are_first_middle_and_the_last_two(make_scores: MakeScores) -> None:
    assert first(make_scores()) == ["pool1.1", "pool3.3", "pool5.3", "fc6"]


def test_the_best_on_validation_is_that_of_the_mean_over_runs(make_scores: MakeScores) -> None:
    best = {("a", "pool2.1"): 0.9, ("b", "pool2.1"): 0.1, ("a", "pool4.2"): 0.7, ("b", "pool4.2"): 0.8}
    scores = [
        replace(score, value=best.get((run, score.ranked.layer.layer), 0.3) if score.epoch == 1 else 0.99)
        for run in "ab"
        for score in make_scores(VGG, [0, 1], ["validation"], run=run)
    ]
    assert first(scores) == ["pool1.1", "pool3.3", "pool4.2", "pool5.3", "fc6"]


def test_the_embedding_is_shown_with_the_layer_before_it_though_later_layers_are_measured(
    make_scores: MakeScores,
) -> None:
    embedding = RankedLayer(LayerKey("pool5.2", "none"), "none", "cosine")
    assert first(make_scores(), {"netA": embedding}) == ["pool1.1", "pool3.3", "pool5.1", "pool5.2"]


def test_of_runs_with_different_embeddings_the_last_in_the_network_is_shown(make_scores: MakeScores) -> None:
    ends = {run: RankedLayer(LayerKey(f"pool5.{run}", "none"), "none", "cosine") for run in "21"}
    scores = [score for run in ends for score in make_scores(run=run)]
    assert first(scores, ends) == ["pool1.1", "pool3.3", "pool5.1", "pool5.2"]


def test_up_to_five_layers_are_all_shown(make_scores: MakeScores) -> None:
    assert first(make_scores(VGG[:5])) == VGG[:5]


def test_each_network_shows_layers_of_its_own(make_scores: MakeScores) -> None:
    blocks = [f"blocks.{place}" for place in range(7)]
    scores = [*make_scores([*blocks, "fc6"], run="vit"), *make_scores()]
    # of 8 layers the middle one, rounded down, is the fourth
    expected = ["pool1.1", "pool3.3", "pool5.3", "fc6", "blocks.0", "blocks.3", "blocks.6"]
    assert first(scores) == expected


RESNET18 = ("layer1.0", "layer1.1", "layer2.0", "layer2.1", "output")
RESNET50 = ("layer1.0", "layer1.1", "layer1.2", "layer2.0", "layer2.1", "output")


def of(network: str, layers: tuple[str, ...]) -> DataFacts:
    return DataFacts("", {}, network=network, layers=layers)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (of("timm:resnet18", RESNET18), of("timm:resnet50", RESNET50), False),  # whose names include all of the first's
        (of("timm:resnet18", RESNET18), of("torchvision:resnet18", RESNET18), True),
        (of("netA", ("c1", "c2")), of("netA", ("c1", "c2", "fc6")), True),  # without and with fc6
        (of("vit", ("blocks.0", "blocks.1")), of("large", ("blocks.0", "blocks.1", "blocks.2")), False),
        (of("netA", ("c1", "c2")), of("netA", ("c2", "c1")), False),
    ],
)
def test_runs_share_a_network_by_its_layers(one: DataFacts, other: DataFacts, same: bool) -> None:
    measured = {"a": ["output"], "b": ["output"]}
    groups = group_by_network(measured, {"a": one, "b": other})
    assert sorted(map(sorted, groups)) == ([["a", "b"]] if same else [["a"], ["b"]])


def test_where_a_network_is_not_known_its_measured_layers_are_compared() -> None:
    known = {"a": of("timm:resnet18", RESNET18)}
    measured = {"a": ["output"], "b": ["layer1.0", "output"], "c": ["blocks.0", "output"]}
    assert group_by_network(measured, known) == [["a", "b"], ["c"]]


def test_post_processed_layers_are_left_out_beside_layers_as_they_are(make_scores: MakeScores) -> None:
    (score,) = make_scores(["a"], [1], ["test"])
    l2, pca = (with_layer(score, post_processing=name) for name in ("l2", "pca:8"))
    alone = replace(l2, run="other")
    assert select_raw([score, l2, pca, alone]) == [score, alone]
    assert omission_notes([score, l2, pca]) == [
        "Raw layers; --layers '*/l2' shows them after one of 2 kinds of post-processing."
    ]
    assert omission_notes([l2, pca]) == omission_notes([score]) == []
    other = with_layer(score, layer="b")
    (note,) = omission_notes([score, other, l2, pca, with_layer(other, post_processing="pca:8")])
    assert "'*/pca:8'" in note  # which most layers have


def test_what_every_value_after_post_processing_says_names_it(make_scores: MakeScores) -> None:
    raw = make_scores(["a", "b"], [1])
    post_processed = [with_layer(score, post_processing="lda:2") for score in raw]
    post_processed = [
        replace(s, notes=("in-sample", *["tied"] * (s.ranked.layer.layer == "a"))) for s in post_processed
    ]
    post_processed = [replace(s, notes=()) if s.split == "test" else s for s in post_processed]
    assert common_lines(group_by_run(scores_of_metric(raw + post_processed))) == ["lda:2, train: in-sample"]
    assert common_lines(group_by_run(scores_of_metric(post_processed))) == ["train: in-sample"]
