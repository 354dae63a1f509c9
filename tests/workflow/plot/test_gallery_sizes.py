from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.data.splits import Dataset, Split
from layerprobe.measure.analysis import score_thinned
from layerprobe.metrics.recall import positives_and_negatives
from layerprobe.system.errors import DataError, UnknownNameError
from layerprobe.values.intervals import IntervalKind
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.retrieval import Ranks, SearchRules
from layerprobe.values.scores import Score, Subject
from layerprobe.values.views import Curve
from layerprobe.workflow.plot import gallery_sizes
from layerprobe.workflow.plot.gallery_sizes import curves_over_seeds, stored_curves
from layerprobe.workflow.probe.scoring import with_intervals
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.runs import Run
from tests.records import recorded
from tests.scores import with_layer
from tests.workflow.rank_files import FC6, LABELS, POOL5, RECORD, ranks_of, stored

# 12 classes of 2 images: each query searches 1 right item and 22 wrong ones
TEST = LABELS["test"]


def run_with(folder: Path, entries: Mapping[RankedLayer, Ranks | str]) -> tuple[Run, list[Score]]:
    run = Run(folder / "one")
    return run, stored(run, 5, "test", entries)


def test_recall_grows_by_the_chance_that_the_closer_item_is_not_searched(tmp_path: Path) -> None:
    run, scores = run_with(tmp_path, {FC6: ranks_of([1.0] * 6 + [0.0] * 18)})
    (curve,) = stored_curves([run], scores, None, {})
    # Of 22 wrong items n - 1 are searched; the one that is closer is among them with (n - 1) / 22.
    assert curve.values == pytest.approx([(6 + 18 * (1 - (n - 1) / 22)) / 24 for n in curve.places])
    assert curve.places == (2, 3, 4, 5, 7, 10, 15, 20, 23)
    assert (curve.run, curve.epoch, curve.split, curve.ranked, curve.n) == ("one", 5, "test", FC6, 24)


def test_a_size_that_is_scored_has_that_score(tmp_path: Path) -> None:
    ranks = ranks_of(np.random.default_rng(0).integers(0, 2, 24).astype(float).tolist())
    run, scores = run_with(tmp_path, {FC6: ranks})
    made = score_thinned(ranks, Subject("one", "abc", 0, 5, "test", FC6), [1], 6, positives_and_negatives(TEST))
    (score,) = with_intervals([made], units=TEST, kind=IntervalKind())
    assert score.low is not None
    (curve,) = stored_curves([run], [*scores, score], None, {})
    place = curve.places.index(6)
    assert (curve.values[place], curve.low[place], curve.high[place]) == (score.value, score.low, score.high)


def test_few_layers_are_shown_and_others_where_they_are_asked_for(tmp_path: Path) -> None:
    layers = [RankedLayer(LayerKey(f"conv{i}", "max"), "none", "cosine") for i in range(7)]
    hits = [1.0, 0.0] * 12
    run, scores = run_with(tmp_path, {ranked: ranks_of(hits) for ranked in layers})
    best = replace(scores[1], split="validation", value=0.9)

    def shown(*names: str) -> list[str]:
        return [curve.ranked.layer.layer for curve in stored_curves([run], [*scores, best], names or None, {})]

    assert shown() == ["conv0", "conv1", "conv3", "conv5", "conv6"]
    assert shown("conv6", "conv2@max") == ["conv2", "conv6"]
    with pytest.raises(UnknownNameError, match="unknown layer 'conv9'"):
        shown("conv9")


def test_the_few_layers_are_the_same_for_all_runs(tmp_path: Path) -> None:
    layers = [RankedLayer(LayerKey(f"conv{i}", "max"), "none", "cosine") for i in range(7)]
    runs, scores = [], []
    for name, best in (("one", 1), ("two", 4)):
        run = Run(tmp_path / name)
        own = stored(run, 5, "test", {ranked: ranks_of([1.0, 0.0] * 12) for ranked in layers})
        own = [replace(score, experiment=name) for score in own]
        scores += [*own, replace(own[best], split="validation", value=0.9)]
        runs.append(run)
    shown = [(curve.run, curve.ranked.layer.layer) for curve in stored_curves(runs, scores, None, {})]
    assert shown == [(run, f"conv{i}") for run in ("one", "two") for i in (0, 1, 3, 4, 5, 6)]


def test_trainings_of_one_experiment_are_one_curve_that_reaches_from_the_lowest_to_the_highest(tmp_path: Path) -> None:
    runs, scores = [], []
    for seed, hits in enumerate((6, 12, 24)):
        runs.append(Run(tmp_path / f"net{seed}"))
        own = stored(runs[-1], 5, "test", {FC6: ranks_of([1.0] * hits + [0.0] * (24 - hits))})
        scores += [replace(score, seed=seed) for score in own]
    (curve,) = stored_curves(runs, scores, None, {})
    assert (curve.run, curve.n) == ("net* (3 seeds)", 3)
    assert (curve.values[-1], curve.low[-1], curve.high[-1]) == pytest.approx((14 / 24, 0.25, 1.0))
    assert curve.kind == IntervalKind(trainings=True)
    assert "mean of 3 trainings" in curve.notes


def test_a_mean_over_trainings_has_no_value_where_one_has_none() -> None:
    full = Curve("a", 5, "test", FC6, "R@1", "items searched", (2.0, 3.0), (0.5, 0.25))
    (curve,) = curves_over_seeds("net", [[full], [replace(full, values=(None, 0.75))]])
    assert (curve.values, curve.low, curve.high) == ((None, 0.5), (None, 0.25), (None, 0.75))
    assert curves_over_seeds("net", [[full], [replace(full, places=(2.0, 4.0))]]) == []


def test_a_layer_without_valid_numbers_says_why(tmp_path: Path) -> None:
    run, scores = run_with(tmp_path, {POOL5: ranks_of([1.0] * 24), FC6: "NaN (3 rows)"})
    scores[1] = replace(scores[1], notes=("NaN (3 rows)",))
    good, bad = stored_curves([run], scores, None, {})
    assert good.values == (1.0,) * len(good.places)
    assert good.low == (None,) * len(good.places)  # all classes are the same: no interval
    assert bad.values == (None,) * len(bad.places)
    assert bad.notes == ("NaN (3 rows)",)


def test_a_mean_of_draws_is_the_mean_of_theirs(tmp_path: Path) -> None:
    draws = [replace(FC6, post_processing=name) for name in ("random:2", "random:2:1")]
    run, scores = run_with(tmp_path, {draws[0]: ranks_of([1.0] * 24), draws[1]: ranks_of([0.0] * 24)})
    mean = replace(with_layer(scores[0], post_processing="random:2x2"), value=0.5)
    (curve,) = stored_curves([run], [mean], None, {})
    assert curve.values[-1] == 0.5


def test_the_items_of_a_gallery_are_those_searched(tmp_path: Path) -> None:
    run, scores = run_with(tmp_path, {FC6: ranks_of([1.0] * 24)})
    # two images of each class of the queries and 20 of another: 2 right and 42 wrong items
    labels = np.concatenate([TEST, np.full(20, 99)])
    rows = store.Rows(labels, [f"other{i}" for i in range(44)])
    key, columns = store.FeatureKey("one", 5, "gallery", "", "", ""), store.Columns({FC6.layer: 1}, "cpu", 1)
    store.write_features(run.feature_file(5, "gallery"), key, rows, columns, [{FC6.layer: np.zeros((44, 1), "f4")}])
    (curve,) = stored_curves([run], scores, None, {})
    assert (curve.places[0], curve.places[-1]) == (3, 44)


def no_image(_: int) -> NDArray[np.uint8]:
    raise AssertionError


def test_groups_decide_what_is_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, scores = run_with(tmp_path, {FC6: ranks_of([1.0] * 24)})
    run.write(recorded(RECORD))
    path = run.rank_file(5, "test")
    found = store.read_rank_file(path).stored
    key = store.RankKey(store.FeatureKey("one", 5, "test", "", "", ""), None, "s", 0.0)
    entry = store.RankEntry(key, found.ranks[FC6])
    store.write_ranks(path, store.Rows(found.labels, found.ids), {FC6: entry}, chance=0.04)
    # Five images of another class are taken out for the first query.
    rules = SearchRules(ignored=np.array([[0, row] for row in range(10, 15)]))
    dataset = Dataset({"test": Split("test", TEST, found.ids, no_image)}, (), search_rules={"test": rules})
    monkeypatch.setattr(gallery_sizes, "recorded_recipe", lambda *_: None)
    monkeypatch.setattr(from_recipe, "build_dataset", lambda *_, **__: dataset)
    (curve,) = stored_curves([run], scores, None, {})
    assert curve.places[-1] == 23 - 5
    others = Split("test", TEST, tuple(f"x{i}" for i in range(24)), no_image)
    monkeypatch.setattr(from_recipe, "build_dataset", lambda *_, **__: replace(dataset, splits={"test": others}))
    with pytest.raises(DataError, match="the data set has other images than the run"):
        stored_curves([run], scores, None, {})


def with_open_count(hits: Sequence[float]) -> Ranks:
    exact = ranks_of(hits)
    high = exact.closer.copy()
    high[-1] += 3
    return Ranks(exact.closer, high, exact.tied_negatives, exact.tied_positives)


@pytest.mark.parametrize(
    ("entries", "value", "message"),
    [
        ({FC6: with_open_count([1.0] * 23 + [0.0])}, 23 / 24, r"fc6 are exact only .* --layers fc6 --gallery-size 23"),
        ({FC6: ranks_of([1.0] * 24)}, 0.5, "fc6 do not agree with its scores. Run layerprobe probe one --epochs 5"),
        ({POOL5: ranks_of([1.0] * 24)}, 1.0, "no ranks of fc6. Run layerprobe probe one --epochs 5"),
    ],
)
def test_ranks_that_do_not_serve_name_the_command_that_makes_them(
    entries: dict[RankedLayer, Ranks], value: float, message: str, tmp_path: Path
) -> None:
    run, scores = run_with(tmp_path, dict(entries))
    with pytest.raises(DataError, match=message):
        stored_curves(
            [run],
            [replace(with_layer(scores[0], layer="fc6", pool="none"), value=value)],
            None,
            {},
        )


def test_without_test_scores_it_says_to_probe(tmp_path: Path) -> None:
    run, scores = run_with(tmp_path, {FC6: ranks_of([1.0] * 24)})
    with pytest.raises(DataError, match="no R@1 on the test split. Run layerprobe probe one --splits test --k 1"):
        stored_curves([run], [replace(scores[0], split="train")], ("fc6",), {})


def test_no_size_suits_queries_of_which_one_has_more_right_items_than_another_has_items() -> None:
    # 23 images are of one class; the other one searches 23 - 11.
    rules = SearchRules(ignored=np.array([[0, row] for row in range(1, 12)]))
    items = positives_and_negatives(np.array([1] + [0] * 23), rules=rules)
    with pytest.raises(DataError, match="a query has 22 positives, and another searches only 12 items"):
        gallery_sizes._sizes(items, [])


def test_few_classes_have_no_band_and_say_so(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    scores = stored(run, 5, "test", {FC6: ranks_of([1.0, 0.0] * 4)}, labels=np.repeat(np.arange(4), 2))
    (curve,) = stored_curves([run], scores, None, {})
    assert set(curve.low) == {None}
    assert curve.remarks == ("no interval: 4 classes, at least 10 are needed",)
