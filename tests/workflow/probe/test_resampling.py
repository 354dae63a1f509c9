from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from layerprobe import store
from layerprobe.data.splits import Dataset, Split
from layerprobe.measure.analysis import Scored
from layerprobe.statistics.units import UnitSums, intervals
from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.values.intervals import IntervalKind, SamplingUnits
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score, Subject
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.request import ProbeRequest
from layerprobe.workflow.probe.scoring import with_intervals
from layerprobe.workflow.probe.selection import interval_units
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import Silent

FC6 = LayerKey("fc6", "none")
RANKED = RankedLayer(FC6, "none", "cosine")
SUBJECT = Subject("run", "experiment", 0, 1, "test", RANKED, ("of the subject",))
REQUEST = ProbeRequest(layers=("fc6",), epochs="last", ks=(1,), metrics=("MAP@R", "NMI"), device="cpu", workers=0)


def scored(classes: int, **values: np.ndarray) -> tuple[Callable[..., list[Score]], Scored]:
    """What gives scores of two queries of each class their intervals, and scores that are the means of these values."""
    labels = np.repeat(np.arange(classes), 2)
    scores = [SUBJECT.score(name, float(np.nanmean(found)), len(labels)) for name, found in values.items()]
    return partial(with_intervals, units=labels, kind=IntervalKind()), Scored(scores, values)


def ends(score: Score) -> tuple[float | None, float | None]:
    return score.low, score.high


def test_intervals_are_those_of_the_classes_sums() -> None:
    hits = np.random.default_rng(0).integers(0, 2, 80).astype(float)
    # Two queries of each class stand next to each other. Of the first two classes the second metric leaves out all.
    others = np.where(np.arange(80) < 4, np.nan, hits[::-1])
    intervals_of, layer = scored(40, hits=hits, others=others)
    first, second = intervals_of([layer])
    sums = np.array([hits[::2] + hits[1::2], np.nan_to_num(others[::2] + others[1::2])])
    expected = intervals(UnitSums(sums, np.array([[2.0] * 40, [0.0] * 2 + [2.0] * 38])))
    assert [ends(first), ends(second)] == [(found.low, found.high) for found in expected if found]
    assert first.low is not None
    assert (first.value, first.notes) == (hits.mean(), ("of the subject",))


def test_layers_share_the_draws() -> None:
    hits = np.random.default_rng(0).integers(0, 2, 80).astype(float)
    intervals_of, layer = scored(40, hits=hits)
    assert len(set(map(ends, intervals_of([layer, layer, layer])))) == 1


@pytest.mark.parametrize(
    ("classes", "kind", "note"),
    [
        (9, IntervalKind(), ("no interval: 9 classes, at least 10 are needed",)),
        (9, IntervalKind(cluster="parent"), ("no interval: 9 clusters, at least 10 are needed",)),
        (14, IntervalKind(), ("interval over few classes: 14",)),
        (14, IntervalKind(cluster="parent"), ("clusters: parent", "interval over few clusters: 14")),
        (30, IntervalKind(cluster="parent"), ("clusters: parent",)),
    ],
)
def test_few_units_are_told(classes: int, kind: IntervalKind, note: tuple[str, ...]) -> None:
    intervals_of, layer = scored(classes, hits=np.random.default_rng(0).random(2 * classes))
    (score,) = intervals_of([layer], kind=kind)
    assert score.all_notes == ("of the subject", *note)
    assert (score.low is None) == (classes < 10)


def test_what_is_no_mean_over_queries_stays_as_it_is() -> None:
    intervals_of, layer = scored(40, hits=np.random.default_rng(0).random(80))
    nmi, invalid = SUBJECT.score("NMI", 0.5, 80), SUBJECT.score("R@1", None, 80, ["NaN (1 rows)"])
    assert intervals_of([Scored([nmi]), layer, Scored([invalid])])[::2] == [nmi, invalid]
    assert intervals_of([Scored([invalid])]) == [invalid]


def test_a_value_that_every_class_has_gets_no_interval() -> None:
    intervals_of, layer = scored(40, hits=np.ones(80))
    assert intervals_of([layer]) == list(layer.scores)


def dataset() -> Dataset:
    def split(name: str, first: int, count: int) -> Split:
        labels = np.arange(first, first + count).repeat(2)
        cameras = tuple(f"c{label % 2}" for label in labels)
        ids = tuple(f"{name}/{row}" for row in range(len(labels)))
        return Split(name, labels, ids, lambda i: np.zeros((1, 1, 3), np.uint8), columns={"camera": cameras})

    names = tuple(f"alphabet{label // 3}/{label}" for label in range(12))
    splits = {"train": split("train", 0, 6), "test": split("test", 6, 6), "gallery": split("gallery", 6, 5)}
    return Dataset(splits, names, search_in={"test": "gallery"})


def test_queries_and_gallery_have_the_same_numbers_for_the_same_clusters() -> None:
    found = interval_units(dataset(), ["train", "test"], "parent")
    assert {name: len(np.unique(units)) for name, units in found.items()} == {"train": 2, "test": 2, "gallery": 2}
    np.testing.assert_array_equal(found["test"][:10], found["gallery"])
    assert not set(found["train"]) & set(found["test"])
    assert len(np.unique(interval_units(dataset(), ["test"], "camera")["test"])) == 2


def test_a_misspelt_column_is_told() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown column in --cluster: 'camra'. Did you mean 'camera'"):
        interval_units(dataset(), ["test"], "camra")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """24 classes of three images, of which 12 are test classes; two classes and more in a folder."""
    rng, root = np.random.default_rng(0), tmp_path / "images"
    for label in range(24):
        folder = root / f"alphabet{label // 2:02d}" / f"class{label:02d}"
        folder.mkdir(parents=True)
        colour = rng.integers(0, 256, 3)
        for i in range(3):
            noise = rng.integers(-90, 90, (20, 20, 3))
            Image.fromarray((colour + noise).clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
    return root


def test_a_probe_fills_in_the_intervals_from_what_is_stored(request_for: Callable[..., TrainRequest]) -> None:
    run = train(request_for("train.epochs=0"), Silent())
    scores = probe(run, REQUEST, Silent())
    found = {score.metric: score for score in scores if score.split == "test"}
    stored = store.read_rank_file(run.rank_file(0, "test")).stored
    per_query = np.stack([stored.ranks[RANKED].closer < 1, stored.values[RANKED]["MAP@R"]])
    sums = np.array([np.bincount(stored.labels - stored.labels.min(), row) for row in per_query])
    by_hand = intervals(UnitSums(sums, np.full(sums.shape, 3.0)))
    assert [ends(found[name]) for name in ("R@1", "MAP@R")] == [(each.low, each.high) for each in by_hand if each]
    assert found["R@1"].units == SamplingUnits(IntervalKind(), 12)
    assert {ends(score) for name, score in found.items() if name.startswith("NMI")} == {(None, None)}
    assert run.scores() == scores

    # Ranks alone are enough for the intervals.
    text = run.scores_file.read_text()
    for score in scores:
        text = text.replace(f",{score.low},{score.high},12 classes,", ",,,,")
    run.scores_file.write_text(text)
    assert {ends(score) for score in run.scores()} == {(None, None)}
    before = run.feature_file(0, "test").stat().st_mtime_ns
    assert probe(run, REQUEST, Silent()) == scores == run.scores()
    assert run.feature_file(0, "test").stat().st_mtime_ns == before

    clustered = probe(run, replace(REQUEST, splits=("test",), ks=(2,), metrics=(), cluster="parent"), Silent())
    assert [(score.interval, score.units) for score in clustered] == [
        (None, SamplingUnits(IntervalKind(cluster="parent"), 6))
    ]
    # What was not measured again keeps its own interval.
    assert [score for score in run.scores() if score.metric != "R@2"] == scores


def test_a_smaller_gallery_stands_beside_the_whole_one(request_for: Callable[..., TrainRequest]) -> None:
    run = train(request_for("train.epochs=0"), Silent())
    # A query searches 2 positives and 33 negatives.
    asked = replace(REQUEST, metrics=(), gallery_size=35)
    whole = {score.metric: score for score in probe(run, asked, Silent()) if score.split == "test"}
    assert list(whole) == ["R@1", "R@1(G=35)"]
    assert whole["R@1"].value == whole["R@1(G=35)"].value
    assert ends(whole["R@1"]) == ends(whole["R@1(G=35)"])
    assert "thinned by image" in whole["R@1(G=35)"].notes

    (score,) = [
        s for s in probe(run, replace(asked, gallery_size=3), Silent()) if "(" in s.metric and s.split == "test"
    ]
    stored = store.read_rank_file(run.rank_file(0, "test")).stored
    ranks, values = stored.ranks[RANKED], stored.values[RANKED]
    # One of 33 negatives is kept: it is one of the closer with this probability.
    expected = 1 - ranks.closer / 33
    np.testing.assert_allclose(values["R@1(G=3)"], expected, atol=1e-12)
    assert score.value == pytest.approx(expected.mean())
    assert set(values) == {"R@1(G=3)", "R@1(G=35)"}

    # As a large set has its counts, which are exact only where a K of the whole gallery needs them.
    with h5py.File(run.rank_file(0, "test"), "r+") as file:
        file["fc6@none/none/cosine/closer"][:], file["fc6@none/none/cosine/closer_high"][:] = 5, 33
    assert probe(run, replace(asked, ks=(4,), splits=("test",), gallery_size=30), Silent())[1].value is not None
    np.testing.assert_array_equal(
        store.read_rank_file(run.rank_file(0, "test")).stored.ranks[RANKED].closer, ranks.closer
    )


@pytest.mark.parametrize(("size", "fix"), [(36, "Choose a size from 3 to 35"), (2, "Choose a size from 3 to 35")])
def test_a_gallery_that_no_query_can_search_is_refused(
    request_for: Callable[..., TrainRequest], size: int, fix: str
) -> None:
    run = train(request_for("train.epochs=0"), Silent())
    with pytest.raises(RecipeError, match=f"train: a gallery of {size}: .*{fix}"):
        probe(run, replace(REQUEST, gallery_size=size), Silent())
    assert not run.feature_file(0, "train").exists()
