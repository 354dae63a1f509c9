from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerprobe import store
from layerprobe.statistics.bootstrap import differences
from layerprobe.statistics.seeds import over_seeds
from layerprobe.statistics.units import UnitSums, unit_sums
from layerprobe.system.errors import DataError, LayerprobeError, NumericError, RecipeError
from layerprobe.values.intervals import OverSeeds
from layerprobe.workflow.compare.compare import compare
from layerprobe.workflow.compare.comparison import Comparison, comparison_table, sentence
from layerprobe.workflow.compare.request import CompareRequest
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.workflow import selection_runs
from tests.workflow.conftest import Silent
from tests.workflow.stored_ranks import INPUT, ranked, store_ranks, write_run

C1, C2, FC6 = ranked("c1@max"), ranked("c2@max"), ranked("fc6@none")

UNTRAINED = (
    "the difference before training is not stored:"
    " run layerprobe probe netA --epochs 0 --splits test --layers {} --cache {}"
)

# 40 classes of two images: fc6 hits all but one image of 8 classes, c1 the first image of each, c2 only in 4 classes.
LABELS = np.repeat(np.arange(40), 2)
ODD = np.arange(80) % 2
HITS = {C1: 1 - ODD, C2: (LABELS < 4).astype(int), FC6: 1 - ODD * (LABELS < 8)}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    found = write_run(tmp_path, "netA")
    store_ranks(found, HITS, LABELS)
    return found


def compared(cache: Path, a: str, b: str, metric: str = "R@1", cluster: str | None = None) -> list[Comparison]:
    return compare(CompareRequest(cache, a, b, metric, cluster=cluster))


def test_the_difference_is_that_of_the_means_of_the_same_queries(run: Run, tmp_path: Path) -> None:
    (found,) = compared(tmp_path, "netA:c1", "netA:fc6")
    # c1 hits 40 of 80, fc6 72
    assert found.values == (0.5, 0.9)
    assert found.difference == differences(unit_sums(HITS[C1] - HITS[FC6], LABELS))[0]
    assert found.claimed
    assert found.as_json() == {
        "a": "netA#2:c1@max~cosine", "b": "netA#2:fc6~cosine", "metric": "R@1", "split": "test",
        "difference": pytest.approx(-0.4), "low": found.difference.low, "high": found.difference.high,
        "p": found.difference.p, "comparisons": 1, "n": 80, "classes": 40,
        "note": UNTRAINED.format("c1@max,fc6", tmp_path), "before_training": None, "added_by_training": None,
    }  # fmt: skip


def test_a_mean_of_draws_is_compared_by_the_means_of_its_queries(tmp_path: Path) -> None:
    draws_of_fc6 = {ranked("fc6@none", "random:2"): HITS[C1], ranked("fc6@none", "random:2:1"): HITS[FC6]}
    store_ranks(write_run(tmp_path, "netA"), {C2: HITS[C2], **draws_of_fc6}, LABELS)
    (found,) = compared(tmp_path, "netA:fc6/random:2x2", "netA:c2")
    # the draws hit 40 and 72 of 80, c2 8
    assert found.values == (0.7, 0.1)
    assert found.difference == differences(unit_sums((HITS[C1] + HITS[FC6]) / 2 - HITS[C2], LABELS))[0]


def test_what_was_fitted_on_what_is_searched_says_so(tmp_path: Path) -> None:
    pca = ranked("fc6@none", "pca:2@gallery")
    store_ranks(write_run(tmp_path, "netA"), {C2: HITS[C2], pca: HITS[FC6]}, LABELS)
    (found,) = compared(tmp_path, "netA:fc6/pca:2@gallery", "netA:c2")
    assert "fc6/pca:2@gallery: transductive: fitted on the images searched" in found.notes
    unlike = "fc6/pca:2@gallery and c2@max: they differ in post-processing (pca:2@gallery, none)"
    assert found.notes[0] == unlike


def test_what_was_fitted_with_the_classes_that_are_compared_says_so(tmp_path: Path) -> None:
    lda = ranked("fc6@none", "lda:2")
    selection_runs.write_run(
        tmp_path, "one", {split: {C2: np.ones(80), lda: np.ones(80)} for split in ("train", "test")}
    )
    told = {}
    for split in ("train", "test"):
        (found,) = compare(CompareRequest(tmp_path, "one:fc6/lda:2", "one:c2", split=split))
        told[split] = "fc6/lda:2: in-sample: fitted with these classes" in found.notes
    assert told == {"train": True, "test": False}


def test_swapped_layers_give_the_mirrored_difference(run: Run, tmp_path: Path) -> None:
    (one,), (other,) = (compared(tmp_path, *pair) for pair in (("netA:c1", "netA:fc6"), ("netA:fc6", "netA:c1")))
    assert one.difference is not None
    assert other.difference is not None
    assert one.difference.low is not None
    assert (other.difference.value, other.difference.p) == (-one.difference.value, one.difference.p)
    assert other.difference.high == pytest.approx(-one.difference.low)


def test_a_glob_compares_each_layer_but_the_other_and_holm_corrects_them(run: Run, tmp_path: Path) -> None:
    found = compared(tmp_path, "netA:*", "netA:fc6")
    assert [one.a.name for one in found] == ["c1@max", "c2@max"]
    assert {one.data.comparisons for one in found} == {2}
    alone = [compared(tmp_path, f"netA:{name}", "netA:fc6")[0].difference for name in ("c1", "c2")]
    # Both are far from 0: the least p is doubled, and the other is not below it.
    least = min(one.p for one in alone if one and one.p)
    assert [one.difference.p for one in found if one.difference] == [2 * least, 2 * least]


def test_a_glob_leaves_out_the_other_layer_by_its_second_name(foreign: Callable[..., Run]) -> None:
    run = foreign("net.fc=[]")
    found = compared(run.folder.parent, f"{run.name}:*", f"{run.name}:output")
    assert [one.a.name for one in found] == ["stages.1@avg"]  # stages.2 by its own pool is the output


def test_the_difference_before_training_stands_beside_and_what_training_adds(run: Run, tmp_path: Path) -> None:
    # Untrained c1 hits all, fc6 every second image.
    store_ranks(run, {C1: np.ones(80), FC6: 1 - ODD}, LABELS, epoch=0)
    (found,) = compared(tmp_path, "netA:c1", "netA:fc6")
    before, now = np.ones(80) - (1 - ODD), HITS[C1] - HITS[FC6]
    assert found.before == differences(unit_sums(before, LABELS))[0]
    assert found.effect == differences(unit_sums(now - before, LABELS))[0]
    assert found.effect.value == pytest.approx(-0.4 - 0.5)
    assert "Before training the difference is +50.0 points; training adds -90.0 (" in sentence(found)
    assert found.as_json()["added_by_training"] == found.effect
    assert not any("before training" in note for note in found.notes)


def test_a_layer_that_is_not_measured_before_training_is_told_with_its_command(run: Run, tmp_path: Path) -> None:
    store_ranks(run, {C1: np.ones(80)}, LABELS, epoch=0)
    (found,) = compared(tmp_path, "netA:c1", "netA:fc6")
    assert (found.before, found.effect) == (None, None)
    assert UNTRAINED.format("fc6", tmp_path) in found.notes


def test_layers_of_other_pools_are_told(tmp_path: Path) -> None:
    run = write_run(tmp_path, "pools")
    store_ranks(run, {ranked("c1@max"): HITS[C1], ranked("c1@avg"): HITS[FC6]}, LABELS)
    (found,) = compared(tmp_path, "pools:c1@max", "pools:c1@avg")
    assert found.notes[0] == "c1@max and c1@avg: they differ in pool (max, avg)"


def test_two_globs_compare_layers_of_one_name(run: Run, tmp_path: Path) -> None:
    store_ranks(run, HITS, LABELS, epoch=0)
    found = compared(tmp_path, "netA:c*", "netA#0:*")
    assert [(one.a.name, one.b.name) for one in found] == [("c1@max", "c1@max"), ("c2@max", "c2@max")]
    with pytest.raises(RecipeError, match=r"no two layers to compare: c\* against f\*"):
        compared(tmp_path, "netA:c*", "netA#0:f*")


def test_layers_with_equal_hits_have_no_interval(run: Run, tmp_path: Path) -> None:
    (found,) = compared(tmp_path, "netA:c1", "netA:c1")
    assert found.difference is not None
    assert (found.difference.value, found.difference.low, found.difference.p) == (0.0, None, None)
    assert sentence(found).endswith("(no interval: the difference is the same in all 40 classes).")


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        (9, "(no interval: 9 classes, and it takes 10)."),
        (12, "12 classes are few: the interval itself is uncertain."),
    ],
)
def test_few_classes_are_told(tmp_path: Path, classes: int, words: str) -> None:
    few = classes > LABELS
    store_ranks(write_run(tmp_path, "few"), {layer: hits[few] for layer, hits in HITS.items()}, LABELS[few])
    (found,) = compared(tmp_path, "few:c1", "few:c2")
    assert words in sentence(found)


def test_other_images_are_refused(run: Run, tmp_path: Path) -> None:
    names = [f"{i}.png" for i in range(80)]
    for other, more, message in (
        ("ids", {"ids": [f"{i}.png" for i in range(20, 100)]}, "80 and 80 images of the test split, 60 in both"),
        ("order", {"ids": names[::-1]}, "the images of the test split in another order"),
        ("search", {"search": "groups"}, "search their test images in another gallery, or with other groups or lists"),
    ):
        store_ranks(write_run(tmp_path, other), HITS, LABELS, **more)
        with pytest.raises(RecipeError, match=f"netA and {other} (have|search)") as caught:
            compared(tmp_path, "netA:c1", f"{other}:c1")
        assert message in str(caught.value)
    store_ranks(write_run(tmp_path, "classes"), HITS, np.where(LABELS < 2, 1, LABELS))
    with pytest.raises(RecipeError, match="netA and classes have 2 images of the test split with other labels"):
        compared(tmp_path, "netA:c1", "classes:c1")


def test_other_images_of_the_same_names_are_refused(tmp_path: Path) -> None:
    contents = {"test": "a", "gallery": "g"}
    store_ranks(write_run(tmp_path, "netA", contents=contents), HITS, LABELS)
    for name, split in (("other", "test"), ("gallery", "gallery")):
        store_ranks(write_run(tmp_path, name, contents=contents | {split: "b"}), HITS, LABELS)
        with pytest.raises(RecipeError, match=f"netA and {name} have {split} images with the same names and other"):
            compared(tmp_path, "netA:c1", f"{name}:c1")


def test_images_that_come_from_no_files_are_another_networks_size(tmp_path: Path) -> None:
    for name, root in (("a", None), ("b", None), ("c", "there"), ("d", "elsewhere")):
        recipe = {"data": {"root": root}}
        store_ranks(write_run(tmp_path, name, experiment=name, recipe=recipe, contents={"test": name}), HITS, LABELS)
    (found,) = compared(tmp_path, "a:c1", "b:c1")
    assert "a and b were given other numbers: whether of the same images is not known" in found.notes
    with pytest.raises(RecipeError, match="c and d have test images with the same names and other contents"):
        compared(tmp_path, "c:c1", "d:c1")


def test_other_input_is_told(run: Run, tmp_path: Path) -> None:
    store_ranks(write_run(tmp_path, "wide"), HITS, LABELS, transform=INPUT | {"resize": [64, 64, "bicubic"]})
    (found,) = compared(tmp_path, "netA:c1", "wide:fc6")
    words = "the models have different input (netA against wide): resize 32 32 bilinear against 64 64 bicubic"
    assert words in found.notes
    assert compared(tmp_path, "netA:c1", "netA:fc6")[0].notes == (UNTRAINED.format("c1@max,fc6", tmp_path),)


def test_a_layer_without_ranks_is_an_error_alone_and_a_row_among_others(tmp_path: Path) -> None:
    store_ranks(write_run(tmp_path, "bad"), HITS | {C1: None}, LABELS)
    with pytest.raises(NumericError, match=r"bad, c1@max: NaN \(3 rows\)"):
        compared(tmp_path, "bad:c1", "bad:fc6")
    first, second = compared(tmp_path, "bad:c*", "bad:fc6")
    assert (first.difference, first.notes) == (None, ("bad, c1@max: NaN (3 rows)",))
    assert first.as_json()["difference"] is None
    assert second.difference == compared(tmp_path, "bad:c2", "bad:fc6")[0].difference


def test_other_metrics_are_means_of_the_queries_that_have_a_value(tmp_path: Path) -> None:
    # b leaves class 0 out: a's values there do not count either.
    for name, values in (("a", np.where(LABELS == 0, 1, 0.25)), ("b", np.where(LABELS == 0, np.nan, 0.25 * ODD))):
        store_ranks(write_run(tmp_path, name), HITS, LABELS, values={"MAP@R": values})
    (found,) = compared(tmp_path, "a:c1", "b:c1", metric="MAP@R")
    assert found.values == (0.25, 0.125)
    assert found.data.units == 39


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("MAP@r", "unknown metric 'MAP@r'. Did you mean 'MAP@R'?"),
        ("R@0", "unknown metric 'R@0'. Did you mean 'R@1'?"),
        ("NMI", "NMI is not the mean of a value for each query: classes cannot be resampled. Choose R@K, MAP@R"),
        ("kNN@10", "no kNN@10 of each query is stored. Run layerprobe probe netA --epochs 2"),
        ("R@2(G=50)", "no R@2(G=50) of each query is stored. Run layerprobe probe netA --epochs 2 --splits test"),
        ("MAP@R", "no MAP@R of each query is stored. Run layerprobe probe netA --epochs 2 --splits test --layers c1"),
    ],
)
def test_a_metric_that_is_not_there_is_told(run: Run, tmp_path: Path, metric: str, message: str) -> None:
    with pytest.raises(LayerprobeError) as caught:
        compared(tmp_path, "netA:c1", "netA:fc6", metric=metric)
    assert message in str(caught.value)


def test_counts_that_are_open_are_told_with_their_command(run: Run, tmp_path: Path) -> None:
    found = store.read_rank_file(run.rank_file(2, "test")).stored
    opened = replace(found.ranks[C1], closer_high=found.ranks[C1].closer + 9)
    key = store.RankKey(store.FeatureKey("netA", 2, "test", "w", "{}", "m"), None, "s", 1e-12)
    store.write_ranks(run.rank_file(2, "test"), store.Rows(found.labels, found.ids), {C1: store.RankEntry(key, opened)})
    with pytest.raises(DataError, match="not exact for K = 5. Run layerprobe probe netA .* --layers c1@max --k 5"):
        compared(tmp_path, "netA:c1", "netA:c1", metric="R@5")


def test_a_probed_run_is_compared_by_its_scores_and_in_clusters(
    request_for: Callable[..., TrainRequest], images: Path
) -> None:
    for label in range(8):
        (images / f"class{label}").rename(images / f"{'abcd'[label // 2]}-{label % 2}")
    for alphabet in "abcd":
        (images / alphabet).mkdir()
        for character in "01":
            (images / f"{alphabet}-{character}").rename(images / alphabet / character)
    probed = train(request_for("train.epochs=0"), Silent())
    scores = probe(probed, ProbeRequest(splits=("test",), ks=(1,)), Silent())
    values = {score.ranked.layer.layer: score.value for score in scores}
    (found,) = compared(probed.folder.parent, "tiny:pool5.3", "tiny", cluster="parent")
    assert list(found.values or ()) == pytest.approx([values["pool5.3"], values["fc6"]])
    assert found.b.name == "fc6"
    assert (found.data.units, found.data.classes) == (2, 4)
    assert found.as_json()["note"].endswith("; no interval: 2 clusters, at least 10 are needed")
    assert "in this untrained network (tiny, epoch 0)" in sentence(found)


def test_a_note_says_that_classes_lie_in_folders(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple(f"{label // 2}/{label}" for label in range(40))
    monkeypatch.setattr(Run, "feature_head", lambda *_: store.FeatureHead(DataError("not read"), {}, {}, names))
    (found,) = compared(tmp_path, "netA:c1", "netA:fc6")
    assert found.notes[-2].startswith("classes lie in 20 folders (0, 1, 10, 11, 12 and 15 more): if those of a folder")


# c1 hits all, and misses 2, 4 and 6 images by seed; fc6 misses one image of 10, 12 and 17 classes.
HITS_OF_SEEDS = {
    seed: {C1: np.arange(80) >= 2 * seed + 2, C2: 1 - ODD, FC6: 1 - ODD * (missed > LABELS)}
    for seed, missed in enumerate((10, 12, 17))
}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    for seed, hits in HITS_OF_SEEDS.items():
        store_ranks(write_run(tmp_path, f"s{seed}", seed=seed, contents={"test": "a"}), hits, LABELS)
    return tmp_path


def over_trainings(cache: Path, a: str, b: str) -> list[Comparison]:
    return compare(CompareRequest(cache, a, b, seeds=True))


def over(found: Comparison) -> OverSeeds:
    assert found.seeds is not None
    assert found.seeds.over is not None
    return found.seeds.over


def test_the_mean_is_that_of_each_seeds_difference(cache: Path) -> None:
    (found,) = over_trainings(cache, "s0:c1", "s0:fc6")
    assert found.seeds is not None
    assert [one.values for one in found.seeds.trainings] == [(78 / 80, 70 / 80), (76 / 80, 68 / 80), (74 / 80, 63 / 80)]
    sums = [unit_sums(hits[C1].astype(float) - hits[FC6], LABELS) for hits in HITS_OF_SEEDS.values()]
    cells = UnitSums(np.concatenate([x.sums for x in sums]), np.concatenate([x.counts for x in sums]))
    assert over(found) == over_seeds(cells)
    row = found.as_json()
    assert row["difference"] == pytest.approx((8 + 8 + 11) / 240)
    assert (row["low"], row["p"]) == (over(found).trainings.low, over(found).trainings.p)
    assert row["networks"]["low"] == over(found).classes.low
    assert [(one["seed"], one["a"], one["b"]) for one in row["seeds"]] == [
        (0, "s0", "s0"),
        (1, "s1", "s1"),
        (2, "s2", "s2"),
    ]


def test_the_layers_of_several_trainings_have_the_names_that_were_asked_for(cache: Path) -> None:
    for seed, hits in HITS_OF_SEEDS.items():
        store_ranks(Run(cache / f"s{seed}"), hits, LABELS, epoch=1)
    (found,) = over_trainings(cache, "s2:c1", "s1#1:fc6")
    assert (found.as_json()["a"], found.as_json()["b"]) == ("s2#2:c1@max~cosine", "s1#1:fc6~cosine")


def test_swapped_layers_give_the_mirrored_difference_over_trainings(cache: Path) -> None:
    (one,), (other,) = over_trainings(cache, "s0:c1", "s0:fc6"), over_trainings(cache, "s0:fc6", "s0:c1")
    first, second = over(one), over(other)
    assert first.trainings.low is not None
    assert second.trainings.high == pytest.approx(-first.trainings.low)
    assert (second.mean, second.sd) == (-first.mean, first.sd)


def test_holm_corrects_both_intervals_p(cache: Path) -> None:
    found = over_trainings(cache, "s0:c*", "s0:fc6")
    alone = [over(over_trainings(cache, f"s0:{name}", "s0:fc6")[0]) for name in ("c1", "c2")]
    for kind in ("classes", "trainings"):
        p = [getattr(one, kind).p for one in alone]
        corrected = [getattr(over(one), kind).p for one in found]
        assert min(corrected) == 2 * min(p)
        assert max(corrected) == max(2 * min(p), max(p))


def test_what_one_seed_lacks_is_told(cache: Path) -> None:
    store_ranks(write_run(cache, "s3", seed=3), {C1: HITS_OF_SEEDS[0][C1]}, LABELS)
    with pytest.raises(RecipeError, match="s3#2:fc6~cosine is not ranked .* layerprobe probe s3 .* --layers fc6"):
        over_trainings(cache, "s0:c1", "s0:fc6")


def test_other_images_of_a_seed_are_refused(cache: Path) -> None:
    store_ranks(write_run(cache, "s3", seed=3), HITS_OF_SEEDS[0], LABELS, ids=[f"{i}.jpg" for i in range(80)])
    with pytest.raises(RecipeError, match="s0 and s3 have 80 and 80 images of the test split, 0 in both"):
        over_trainings(cache, "s0:c1", "s0:fc6")


def test_experiments_on_other_images_are_refused_by_these(cache: Path) -> None:
    store_ranks(write_run(cache, "other", contents={"test": "b"}), HITS_OF_SEEDS[0], LABELS)
    with pytest.raises(RecipeError, match="s0 and other have test images with the same names and other contents"):
        over_trainings(cache, "s0:c1", "other:fc6")


def test_a_layer_that_one_seed_has_no_ranks_of_is_left_out(cache: Path) -> None:
    store_ranks(write_run(cache, "s3", seed=3), HITS_OF_SEEDS[0] | {C1: None}, LABELS)
    with pytest.raises(NumericError, match="s3, c1@max: NaN"):
        over_trainings(cache, "s0:c1", "s0:fc6")
    first, second = over_trainings(cache, "s0:c*", "s0:fc6")
    assert (first.difference, first.notes) == (None, ("s3, c1@max: NaN (3 rows)",))
    assert over(second) == over(over_trainings(cache, "s0:c2", "s0:fc6")[0])
    assert comparison_table([first, second]).rows[0][-1] == "s3, c1@max: NaN (3 rows)"


def test_two_trainings_predict_no_further_one_and_say_so(cache: Path) -> None:
    (cache / "s2" / "run.json").unlink()
    (found,) = over_trainings(cache, "s0:c1", "s0:fc6")
    assert "A new run is not predicted from 2: 3 are needed." in sentence(found)
    assert found.as_json()["new_run"] == {"same_classes": None, "other_classes": None}


def test_what_training_adds_is_paired_by_trainings(cache: Path) -> None:
    untrained = {C1: np.ones(80), FC6: 1 - ODD}
    for seed in HITS_OF_SEEDS:
        store_ranks(Run(cache / f"s{seed}"), untrained, LABELS, epoch=0)
    (found,) = over_trainings(cache, "s0:c1", "s0:fc6")
    sums = [unit_sums(hits[C1].astype(float) - hits[FC6] - ODD, LABELS) for hits in HITS_OF_SEEDS.values()]
    cells = UnitSums(np.concatenate([x.sums for x in sums]), np.concatenate([x.counts for x in sums]))
    assert found.effect == over_seeds(cells).trainings
    assert found.before is not None
    assert found.before.value == 0.5
    assert "Before training the difference is +50.0 points" in sentence(found)


def test_folds_have_other_training_classes_and_seeds_that_draw_images_have_not(tmp_path: Path) -> None:
    for name in ("fold", "share"):
        for seed in (0, 1):
            recipe = {"data": {"share": 0.5, "validation_fold": seed if name == "fold" else 0}}
            manifests = {"train": f"images {seed}", "test": "x"}
            run = write_run(tmp_path, f"{name}{seed}", experiment=name, seed=seed, recipe=recipe, manifests=manifests)
            store_ranks(run, HITS_OF_SEEDS[seed], LABELS)
    (folds,), (shares,) = (over_trainings(tmp_path, f"{name}0:c1", f"{name}0:fc6") for name in ("fold", "share"))
    assert (folds.as_json()["same_training_classes"], shares.as_json()["same_training_classes"]) == (False, True)
    assert sentence(folds).endswith("The training classes differ between seeds.")
    assert "the training classes are the same in all seeds" in comparison_table([shares]).notes


def test_the_table_has_the_prediction_beside_the_mean(cache: Path) -> None:
    found = over_trainings(cache, "s0:c*", "s0:fc6")
    table = comparison_table(found)
    predicted = over(found[0]).other_classes
    assert predicted is not None
    assert table.rows[0][6] == f"{100 * predicted.low:+.1f} to {100 * predicted.high:+.1f}"
