from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import comb
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.statistics.units import intervals, unit_sums
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.retrieval import SearchRules
from layerprobe.values.scores import ScoreTable, Subject
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.summary.request import SummaryRequest
from layerprobe.workflow.summary.summary import stored_summary
from tests.records import rewrite
from tests.workflow.drawn_run import FC6, SEED, change_entry, features_of, labels_of, write_run
from tests.workflow.rank_files import LABELS, first_hit, ranks_of, stored, written

SIZES = {"train": [4] * 11, "test": [4, 5, 8, *[6] * 9]}
SIZE = 43  # that a query of train searches


def by_hand(values: NDArray[np.floating], labels: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """(Q,) each query's expected hit by cosine where random negatives leave so many items, counted in whole numbers."""
    length = np.linalg.norm(values.astype(np.float64), axis=1, keepdims=True)
    unit = values / np.where(length > 0, length, 1)
    hits = []
    for query, row in enumerate(unit @ unit.T):
        others = np.arange(len(labels)) != query
        right, wrong = row[others & (labels == labels[query])], row[others & (labels != labels[query])]
        closer, tied = (wrong > right.max() + 1e-9).sum(), (abs(wrong - right.max()) <= 1e-9).sum()
        tied_right, drawn = (right >= right.max() - 1e-9).sum(), size - len(right)
        # none of the closer is drawn, and `among` of the tied
        ways = [
            comb(tied, among) * comb(len(wrong) - closer - tied, drawn - among) for among in range(min(tied, drawn) + 1)
        ]
        shares = [tied_right / (tied_right + among) for among in range(min(tied, drawn) + 1)]
        hits.append(sum(w * share for w, share in zip(ways, shares, strict=True)) / comb(len(wrong), drawn))
    return np.array(hits, np.float64)


def of_split(run: Run, split: str, epoch: int, metric: str = "R@1") -> float:
    scores = [
        score.value for score in run.scores() if (score.split, score.epoch, score.metric) == (split, epoch, metric)
    ]
    return scores[0] or 0.0


def test_a_gap_is_told_with_the_larger_gallery_thinned_to_the_smaller(tmp_path: Path) -> None:
    run, labels = write_run(tmp_path, epochs=(0, 1), layers=[FC6], sizes=SIZES), labels_of(SIZES["test"])
    found = stored_summary(run)
    hits = [by_hand(features_of(labels, epoch, FC6), labels, SIZE) for epoch in (0, 1)]
    (layer,) = found.layers
    test, train = layer.levels["test"], layer.levels["train"]
    assert found.gap_metric == "R@1(G=43)"
    assert (test.value, train.value) == pytest.approx((of_split(run, "test", 1), of_split(run, "train", 1)), abs=1e-12)
    assert test.thinned == pytest.approx(hits[1].mean(), abs=1e-12)
    assert train.thinned is None
    (interval,) = intervals(unit_sums(hits[1], labels))
    assert test.thinned_interval is not None
    assert interval is not None
    assert (test.thinned_interval.low, test.thinned_interval.high) == pytest.approx((interval.low, interval.high))
    gaps = [of_split(run, "train", epoch) - hits[epoch].mean() for epoch in (0, 1)]
    assert layer.gap is not None
    assert layer.gap.value == pytest.approx(gaps[1], abs=1e-12)
    assert layer.gap_over_start is not None
    assert layer.gap_over_start.value == pytest.approx(gaps[1] - gaps[0], abs=1e-12)


@pytest.mark.parametrize(
    ("test", "classes"), [([6] * 12, "; the number of classes still differs (train 11, test 12)"), ([6] * 11, "")]
)
def test_a_line_says_which_gallery_is_thinned_and_what_still_differs(
    tmp_path: Path, test: list[int], classes: str
) -> None:
    run = write_run(tmp_path, layers=[FC6], sizes={"train": [4] * 11, "test": test})
    line = "R@1(G=43): the gallery of test is thinned by image to 43 items, as many as a query of train searches"
    assert line + classes in stored_summary(run).notes


def test_splits_of_equally_many_images_keep_their_galleries(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    written(run, stored(run, 5, "train", {FC6: first_hit(9)}), stored(run, 5, "test", {FC6: first_hit(6)}))
    found = stored_summary(run)
    assert found.gap_metric == "R@1"
    assert found.layers[0].gap is not None
    assert found.layers[0].gap.value == pytest.approx(3 / 24)
    assert not any("galler" in note for note in found.notes)


def in_a_gallery(run: Run) -> None:
    change_entry(run, 1, "test", FC6, gallery=store.FeatureKey("drawn", 1, "gallery", "w1", "resize", "m"))


def by_rules(run: Run) -> None:
    change_entry(run, 1, "train", FC6, search_sha256="that of groups")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (in_a_gallery, "test is searched in a gallery of its own"),
        (by_rules, "groups, lists, sets of labels or drawn queries decide what an image of train may find"),
    ],
)
def test_a_gallery_or_rules_leave_the_whole_galleries_and_say_so(
    tmp_path: Path, change: Callable[[Run], None], why: str
) -> None:
    run = write_run(tmp_path, layers=[FC6], sizes=SIZES)
    change(run)
    found = stored_summary(run)
    assert found.gap_metric == "R@1"
    assert f"no gap in galleries of one size: {why}" in found.notes
    assert found.layers[0].gap is not None
    assert found.layers[0].gap.value == pytest.approx(of_split(run, "train", 1) - of_split(run, "test", 1))


def test_groups_that_the_ranks_were_made_with_are_known(tmp_path: Path) -> None:
    groups = SearchRules(groups=np.arange(sum(SIZES["test"])))
    run = write_run(tmp_path, rules={"test": groups}, layers=[FC6], sizes=SIZES)
    why = "groups, lists, sets of labels or drawn queries decide what an image of test may find"
    assert f"no gap in galleries of one size: {why}" in stored_summary(run).notes


def test_a_run_that_python_measured_is_thinned_whatever_its_loaders_labels_were(tmp_path: Path) -> None:
    run = write_run(tmp_path, layers=[FC6], sizes=SIZES)
    change_entry(run, 1, "test", FC6, search_sha256="of labels that the file numbers anew")
    rewrite(run, from_python=True)
    assert stored_summary(run).gap_metric == "R@1(G=43)"


@pytest.mark.parametrize(("largest", "told"), [(5, False), (6, True)])
def test_positives_that_fill_the_smaller_gallery_are_told(tmp_path: Path, largest: int, told: bool) -> None:
    # a query of train searches 5 items; the positives of the largest class and one negative are `largest`
    run = write_run(tmp_path, layers=[FC6], sizes={"train": [3, 3], "test": [2, 2, largest]})
    found = stored_summary(run)
    line = "no gap in galleries of one size: a query of train searches 5 items, and one of test keeps 5 right ones"
    assert (line in found.notes) is told
    assert found.gap_metric == ("R@1" if told else "R@1(G=5)")


@pytest.mark.parametrize(("metric", "gap"), [("MAP@R", "MAP@R"), ("R@2", "R@2(G=43)")])
def test_recall_at_any_k_can_be_thinned_and_nothing_else(tmp_path: Path, metric: str, gap: str) -> None:
    run = write_run(tmp_path, layers=[FC6], sizes=SIZES)
    subjects = [Subject(run.name, "e", SEED, 1, split, FC6) for split in SIZES]
    ScoreTable([*run.scores(), *(s.score("MAP@R", 0.0, 1) for s in subjects)], stored=[]).write(run.scores_file)
    found = stored_summary(run, SummaryRequest(metric=metric))
    assert found.gap_metric == gap
    assert ("no gap in galleries of one size: only Recall@K can be thinned" in found.notes) is (metric == "MAP@R")


@pytest.mark.parametrize(("epochs", "gap"), [((0,), "R@1(G=23)"), ((0, 5), "R@1")])
def test_ranks_that_are_exact_only_up_to_a_k_are_named_with_the_command(
    tmp_path: Path, epochs: tuple[int, ...], gap: str
) -> None:
    run, labels = Run(tmp_path / "one"), np.concatenate([LABELS["test"], LABELS["test"]])
    exact = ranks_of([1.0] * 47 + [0.0])
    open_ = replace(exact, closer_high=exact.closer_high + 2 * (exact.closer > 0).astype(np.int32))
    scores = [stored(run, epoch, "train", {FC6: first_hit(9)}) for epoch in (0, 5)]
    for epoch in (0, 5):
        scores.append(stored(run, epoch, "test", {FC6: open_ if epoch in epochs else exact}, labels=labels))
    written(run, *scores)
    found = stored_summary(run)
    numbers = ",".join(map(str, epochs))
    command = run.command("probe", "--epochs", numbers, "--splits", "test", "--layers", "fc6", "--gallery-size", "23")
    why = f"the ranks of test are exact only up to a K; {command} makes them exact"
    assert f"no gap in galleries of one size at epoch {numbers}: {why}" in found.notes
    assert found.gap_metric == gap
    assert found.layers[0].gap_over_start is not None if gap == "R@1" else found.layers[0].gap_over_start is None
    assert any(note.startswith("R@1(G=23)") for note in found.notes) is (gap != "R@1")


def test_the_layers_of_a_command_are_in_order(tmp_path: Path) -> None:
    run, labels = Run(tmp_path / "one"), np.concatenate([LABELS["test"], LABELS["test"]])
    exact = ranks_of([1.0] * 47 + [0.0])
    inexact = replace(exact, closer_high=exact.closer_high + 2 * (exact.closer > 0).astype(np.int32))
    layers = [replace(FC6, layer=LayerKey(name, "none")) for name in "abcdefgh"]
    test = stored(run, 5, "test", dict.fromkeys(layers, inexact), labels=labels)
    written(run, stored(run, 5, "train", {FC6: first_hit(9)}), test)
    assert any("--layers a,b,c,d,e,f,g,h --gallery-size" in note for note in stored_summary(run).notes)


def test_a_mean_of_draws_is_thinned_draw_by_draw(tmp_path: Path) -> None:
    run, labels = Run(tmp_path / "one"), np.concatenate([LABELS["test"], LABELS["test"]])
    draws = [RankedLayer(FC6.layer, name, "cosine") for name in ("random:8", "random:8:1")]
    ranks = [ranks_of([1.0] * 40 + [0.0] * 8), ranks_of([1.0] * 20 + [0.0] * 28)]
    mean = RankedLayer(FC6.layer, "random:8x2", "cosine")
    scores = [Subject(run.name, "abc", 0, 5, "test", mean).score("R@1", 0.5, 48)]
    stored(run, 5, "test", dict(zip(draws, ranks, strict=True)), labels=labels)
    written(run, scores, stored(run, 5, "train", {FC6: first_hit(9)}))
    level = next(layer for layer in stored_summary(run).layers if layer.ranked == mean).levels["test"]
    # a query has 3 positives and 44 negatives, of which 20 are drawn: the one closer negative is left out with 24 in 44
    assert level.thinned == pytest.approx(np.mean([(40 + 8 * 24 / 44) / 48, (20 + 28 * 24 / 44) / 48]))
