from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerprobe.statistics.seeds import over_seeds
from layerprobe.statistics.units import UnitSums, unit_sums
from layerprobe.system.errors import NumericError, RecipeError
from layerprobe.values.intervals import Difference, Interval, IntervalKind, OverSeeds
from layerprobe.values.scores import Subject
from layerprobe.workflow.compare.compare import CompareRequest
from layerprobe.workflow.compare.compare_seeds import compare_seeds, seeds_sentence, seeds_table
from layerprobe.workflow.compare.comparison import ComparedLayer, ComparisonData, PairedTraining, SeedComparison
from layerprobe.workflow.compare.evidence import Measure
from layerprobe.workflow.run.runs import Run
from tests.workflow.stored_ranks import ranked, store_ranks, write_run

C1, C2, FC6 = ranked("c1@max"), ranked("c2@max"), ranked("fc6@none")
LABELS = np.repeat(np.arange(40), 2)
ODD = np.arange(80) % 2
# c1 hits all, and misses 2, 4 and 6 images by seed; fc6 misses one image of 10, 12 and 17 classes.
HITS = {
    seed: {C1: np.arange(80) >= 2 * seed + 2, C2: 1 - ODD, FC6: 1 - ODD * (missed > LABELS)}
    for seed, missed in enumerate((10, 12, 17))
}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    for seed, hits in HITS.items():
        store_ranks(write_run(tmp_path, f"s{seed}", seed=seed, contents={"test": "a"}), hits, LABELS)
    return tmp_path


def compared(cache: Path, a: str, b: str, metric: str = "R@1") -> list[SeedComparison]:
    return compare_seeds(CompareRequest(cache, a, b, measure=Measure(metric)))


def test_the_mean_is_that_of_each_seeds_difference(cache: Path) -> None:
    (found,) = compared(cache, "s0:c1", "s0:fc6")
    assert [one.values for one in found.trainings] == [(78 / 80, 70 / 80), (76 / 80, 68 / 80), (74 / 80, 63 / 80)]
    sums = [unit_sums(hits[C1].astype(float) - hits[FC6], LABELS) for hits in HITS.values()]
    cells = UnitSums(np.concatenate([x.sums for x in sums]), np.concatenate([x.counts for x in sums]))
    assert found.over == over_seeds(cells)
    row = found.as_json()
    assert row["difference"] == pytest.approx((8 + 8 + 11) / 240)
    assert (row["low"], row["p"]) == (found.over.trainings.low, found.over.trainings.p)
    assert row["networks"]["low"] == found.over.classes.low
    assert [(one["seed"], one["a"], one["b"]) for one in row["seeds"]] == [
        (0, "s0", "s0"),
        (1, "s1", "s1"),
        (2, "s2", "s2"),
    ]


def test_swapped_layers_give_the_mirrored_difference(cache: Path) -> None:
    (one,), (other,) = compared(cache, "s0:c1", "s0:fc6"), compared(cache, "s0:fc6", "s0:c1")
    assert one.over is not None
    assert other.over is not None
    assert one.over.trainings.low is not None
    assert other.over.trainings.high == pytest.approx(-one.over.trainings.low)
    assert (other.over.mean, other.over.sd) == (-one.over.mean, one.over.sd)


def test_holm_corrects_both_intervals_p(cache: Path) -> None:
    found = compared(cache, "s0:c*", "s0:fc6")
    alone = [compared(cache, f"s0:{name}", "s0:fc6")[0].over for name in ("c1", "c2")]
    for kind in ("classes", "trainings"):
        p = [getattr(one, kind).p for one in alone if one]
        corrected = [getattr(one.over, kind).p for one in found if one.over]
        assert min(corrected) == 2 * min(p)
        assert max(corrected) == max(2 * min(p), max(p))


def test_what_one_seed_lacks_is_told(cache: Path) -> None:
    store_ranks(write_run(cache, "s3", seed=3), {C1: HITS[0][C1]}, LABELS)
    with pytest.raises(RecipeError, match="s3#2:fc6~cosine is not ranked .* layerprobe probe s3 .* --layers fc6"):
        compared(cache, "s0:c1", "s0:fc6")


def test_other_images_of_a_seed_are_refused(cache: Path) -> None:
    store_ranks(write_run(cache, "s3", seed=3), HITS[0], LABELS, ids=[f"{i}.jpg" for i in range(80)])
    with pytest.raises(RecipeError, match="s0 and s3 have 80 and 80 images of the test split, 0 in both"):
        compared(cache, "s0:c1", "s0:fc6")


def test_experiments_on_other_images_are_refused_by_these(cache: Path) -> None:
    store_ranks(write_run(cache, "other", contents={"test": "b"}), HITS[0], LABELS)
    with pytest.raises(RecipeError, match="s0 and other have test images with the same names and other contents"):
        compared(cache, "s0:c1", "other:fc6")


def test_a_layer_that_one_seed_has_no_ranks_of_is_left_out(cache: Path) -> None:
    store_ranks(write_run(cache, "s3", seed=3), HITS[0] | {C1: None}, LABELS)
    with pytest.raises(NumericError, match="s3, c1@max: NaN"):
        compared(cache, "s0:c1", "s0:fc6")
    first, second = compared(cache, "s0:c*", "s0:fc6")
    assert (first.over, first.notes) == (None, ("s3, c1@max: NaN (3 rows)",))
    assert second.over == compared(cache, "s0:c2", "s0:fc6")[0].over
    assert seeds_table([first, second]).rows[0][-1] == "s3, c1@max: NaN (3 rows)"


TOLD, OPEN = Difference(0.012, 0.004, 0.02, 0.003), Difference(0.012, -0.004, 0.03, 0.09)


@pytest.mark.parametrize(
    ("classes", "training", "claim"),
    [
        (
            TOLD,
            replace(TOLD, p=0.04),
            "pool5.3 retrieves unseen classes better than fc6 over 3 trainings (s0, s1, s4; epoch 20): R@1",
        ),
        (
            TOLD,
            OPEN,
            "better than fc6 over 3 trainings (s0, s1, s4; epoch 20), but not significantly for the mean over"
            " trainings: R@1",
        ),
        (
            OPEN,
            OPEN,
            "pool5.3 and fc6 do not differ significantly on unseen classes over 3 trainings "
            "(s0, s1, s4; epoch 20): R@1",
        ),
    ],
)
def test_the_claim_is_about_the_mean_over_trainings(classes: Difference, training: Difference, claim: str) -> None:
    a, b = (
        ComparedLayer(Subject("s0", "e", 0, 20, "test", ranked(f"{name}@max")), name) for name in ("pool5.3", "fc6")
    )
    each = tuple(PairedTraining(seed, (f"s{seed}",) * 2, (0.85, 0.838)) for seed in (0, 1, 4))
    over = OverSeeds(0.012, 0.004, 3, classes, training, Interval(0.001, 0.023), Interval(-0.011, 0.035))
    found = SeedComparison(a, b, ComparisonData("R@1", IntervalKind(), 1360, 68, 68), each, over)
    said = seeds_sentence(found)
    assert claim in said
    assert (
        "R@1 85.0 % against 83.8 % on the mean, +1.2 points, standard deviation 0.4 (seed 0 +1.2, seed 1 +1.2, " in said
    )
    assert said.startswith("pool5.3 ")
    if classes == TOLD:
        assert (
            "95 % interval over 68 classes, against this gallery: for these 3 networks +0.4 to +2.0 (p = 0.003),"
            in said
        )
        assert said.endswith(
            "One further training on as many other classes: -1.1 to +3.5 (95 % prediction interval). The training"
            " classes are the same in all seeds."
        )


def test_two_trainings_predict_no_further_one_and_say_so(cache: Path) -> None:
    (cache / "s2" / "run.json").unlink()
    (found,) = compared(cache, "s0:c1", "s0:fc6")
    assert "One further training is not predicted from 2: 3 are needed." in seeds_sentence(found)
    assert found.as_json()["one_further_training"] == {"same_classes": None, "other_classes": None}


def test_what_training_adds_is_paired_by_trainings(cache: Path) -> None:
    untrained = {C1: np.ones(80), FC6: 1 - ODD}
    for seed in HITS:
        store_ranks(Run(cache / f"s{seed}"), untrained, LABELS, epoch=0)
    (found,) = compared(cache, "s0:c1", "s0:fc6")
    sums = [unit_sums(hits[C1].astype(float) - hits[FC6] - ODD, LABELS) for hits in HITS.values()]
    cells = UnitSums(np.concatenate([x.sums for x in sums]), np.concatenate([x.counts for x in sums]))
    assert found.effect == over_seeds(cells)
    assert found.before is not None
    assert found.before.mean == 0.5
    assert "Before training the difference is +50.0 points" in seeds_sentence(found)


def test_folds_have_other_training_classes_and_seeds_that_draw_images_have_not(tmp_path: Path) -> None:
    for name in ("fold", "share"):
        for seed in (0, 1):
            recipe = {"data": {"share": 0.5, "validation_fold": seed if name == "fold" else 0}}
            manifests = {"train": f"images {seed}", "test": "x"}
            run = write_run(tmp_path, f"{name}{seed}", experiment=name, seed=seed, recipe=recipe, manifests=manifests)
            store_ranks(run, HITS[seed], LABELS)
    (folds,), (shares,) = (compared(tmp_path, f"{name}0:c1", f"{name}0:fc6") for name in ("fold", "share"))
    assert (folds.as_json()["same_training_classes"], shares.as_json()["same_training_classes"]) == (False, True)
    assert seeds_sentence(folds).endswith("The training classes differ between seeds.")
    assert "the training classes are the same in all seeds" in seeds_table([shares]).notes


def test_the_table_has_the_prediction_beside_the_mean(cache: Path) -> None:
    found = compared(cache, "s0:c*", "s0:fc6")
    table = seeds_table(found)
    assert found[0].over is not None
    predicted = found[0].over.other_classes
    assert predicted is not None
    assert table.rows[0][6] == f"{100 * predicted.low:+.1f} to {100 * predicted.high:+.1f}"
