from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe import registry, store
from layerprobe.statistics.draws import draws
from layerprobe.statistics.means import intervals
from layerprobe.statistics.units import unit_sums
from layerprobe.system.errors import BusyError, DataError
from layerprobe.system.progress import Task
from layerprobe.values.intervals import IntervalKind, SamplingUnits
from layerprobe.values.metric_names import Terms
from layerprobe.values.retrieval import SearchRules
from layerprobe.values.scores import Score, ScoreTable, read_scores
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.reduced_features import is_fitted_on
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run, locked
from layerprobe.workflow.run.stored_terms import offered_terms, stored_terms
from layerprobe.workflow.summary import equal_terms as module
from layerprobe.workflow.summary.equal_terms import EqualTerms, equal_terms
from tests.records import rewrite
from tests.scores import with_layer
from tests.workflow.conftest import Silent
from tests.workflow.drawn_run import FC6, POOL, SEED, SIZES, change_entry, features_of, labels_of, write_run

TERMS = Terms(11, 4)


@dataclass(frozen=True)
class Finished:
    run: Run
    before: list[Score]
    found: EqualTerms


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run whose draws are made; tests only read it."""
    run = write_run(tmp_path_factory.mktemp("cache"))
    return Finished(run, run.scores(), equal_terms(run, [1], Silent()))


@pytest.fixture
def finished_copy(finished: Finished, tmp_path: Path) -> Run:
    return Run(Path(shutil.copytree(finished.run.folder, tmp_path / "drawn")))


@pytest.fixture
def drawn_run(tmp_path: Path) -> Run:
    """A run of one layer whose draws are not made yet."""
    return write_run(tmp_path, layers=[FC6])


def by_hand(similar: NDArray[np.float64], labels: NDArray[np.int64], rows: NDArray[np.intp]) -> dict[int, float]:
    """Recall@1 of a draw by plain loops: the share of positives among a query's nearest, all that are as near."""
    hits = {}
    for query in rows:
        others = [row for row in rows if row != query]
        nearest = max(similar[query, row] for row in others)
        equal = [row for row in others if similar[query, row] >= nearest - 1e-9]
        hits[int(query)] = float(np.mean([labels[row] == labels[query] for row in equal]))
    return hits


def brute_force(split: str, epoch: int) -> tuple[float, NDArray[np.float64]]:
    """The mean of fc6 over the draws' own means, and each query's mean over the draws that it was in."""
    labels = labels_of(SIZES[split])
    values = features_of(labels, epoch, FC6).astype(np.float64)
    length = np.linalg.norm(values, axis=1, keepdims=True)
    unit = np.divide(values, length, out=np.zeros_like(values), where=length > 0)
    found = [by_hand(unit @ unit.T, labels, rows) for rows in draws(labels, TERMS, seed=SEED, split=split)]
    of_query = [[hits[query] for hits in found if query in hits] for query in range(len(labels))]
    each = np.array([np.mean(hits) if hits else np.nan for hits in of_query])
    return float(np.mean([np.mean(list(hits.values())) for hits in found])), each


def scores_of(run: Run, split: str, layer: str, epoch: int = 1) -> dict[str, Score]:
    return {s.metric: s for s in run.scores() if (s.epoch, s.split, s.ranked.layer.layer) == (epoch, split, layer)}


def write_scores(run: Run, scores: list[Score]) -> None:
    run.scores_file.unlink()
    ScoreTable(scores).write(run.scores_file)


@pytest.mark.parametrize("split", ["train", "test"])
def test_values_are_those_of_explicit_subsampling(finished: Finished, split: str) -> None:
    assert finished.found.offered.terms == TERMS
    wanted, each = brute_force(split, 1)
    (score,) = [s for s in finished.found.scores if (s.split, s.ranked.layer.layer) == (split, "fc6")]
    assert score.value == pytest.approx(wanted, abs=1e-12)
    assert score.metric == "R@1(11x4)"
    stored = stored_terms(finished.run, 1, split, TERMS)
    assert stored is not None
    np.testing.assert_allclose(stored.values[FC6], each, atol=1e-12)
    assert np.isnan(each).any() == (split == "train")  # its class of a single image


def test_scores_stand_beside_the_raw_ones_and_say_what_they_are(finished: Finished) -> None:
    before, found, after = finished.before, finished.found, finished.run.scores()
    assert [s for s in after if s not in found.scores] == before
    assert {s for s in after if s not in before} == set(found.scores)
    assert [(s.split, s.ranked.layer.layer) for s in found.scores] == [
        (split, layer) for split in ("train", "test") for layer in ("pool5.3", "fc6")
    ]
    score = scores_of(finished.run, "train", "fc6")["R@1(11x4)"]
    assert score.notes[0] == "equal terms: mean of 20 draws"
    assert "12 files are absent" in score.notes
    raw = scores_of(finished.run, "train", "fc6")["R@1"].notes
    assert set(raw) - set(score.notes) == {"1 lone queries count as misses"}  # its class is never drawn
    assert score.units == SamplingUnits(IntervalKind(), 11)
    assert score.n == len(labels_of(SIZES["train"])) - 1
    assert found.reasons == ("equal terms leave out classes of a single image: 1 of train",)


def test_intervals_resample_classes_by_the_weights_of_the_draws(finished: Finished) -> None:
    score = scores_of(finished.run, "test", "fc6")["R@1(11x4)"]
    stored = stored_terms(finished.run, 1, "test", TERMS)
    assert stored is not None
    assert stored.weights.sum() == 20 * 44
    sums = unit_sums(stored.values[FC6], stored.items.labels, stored.weights)
    assert score.value == pytest.approx(sums.means[0], abs=1e-12)
    (wanted,) = intervals(sums)
    assert wanted is not None
    # all layers at once, or one: the last bit may differ
    assert (score.low, score.high) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


def test_intervals_over_other_units_say_so(finished_copy: Run) -> None:
    units = {split: labels_of(sizes) for split, sizes in SIZES.items()}
    found = equal_terms(finished_copy, [1], Silent(), kind=IntervalKind(cluster="parent"), units=units.__getitem__)
    for score in found.scores:
        assert score.units == SamplingUnits(IntervalKind(cluster="parent"), 11)
    halves = {split: labels // 2 for split, labels in units.items()}
    found = equal_terms(finished_copy, [1], Silent(), kind=IntervalKind(cluster="parent"), units=halves.__getitem__)
    assert all(score.low is None for score in found.scores)
    assert {score.units for score in found.scores} == {SamplingUnits(IntervalKind(cluster="parent"), 6)}


def test_a_draw_that_is_stored_is_not_made_again(
    finished: Finished, finished_copy: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "hits_in_draws", None)
    files = [*finished_copy.folder.glob("ranks/*"), finished_copy.scores_file]
    before = [path.stat().st_mtime_ns for path in files]
    again = equal_terms(finished_copy, [1], Silent())
    assert (again.scores, again.reasons) == (finished.found.scores, finished.found.reasons)
    assert [path.stat().st_mtime_ns for path in files] == before


def test_all_epochs_have_the_same_draws(tmp_path: Path) -> None:
    run = write_run(tmp_path, epochs=[0, 1], layers=[FC6])
    equal_terms(run, [0, 1], Silent())
    first, last = (stored_terms(run, epoch, "test", TERMS) for epoch in (0, 1))
    assert first is not None
    assert last is not None
    assert [rows.tolist() for rows in first.rows] == [rows.tolist() for rows in last.rows]
    assert scores_of(run, "test", "fc6", 0)["R@1(11x4)"].value == pytest.approx(brute_force("test", 0)[0])


class Interrupting(Silent):
    """Asks to stop in the middle of the second layer."""

    steps = 0

    @contextlib.contextmanager
    def task(self, name: str, total: int, unit: str) -> Iterator[Task]:
        assert (name, total, unit) == ("equal terms of drawn", 80, "draws")
        yield self

    def advance(self, steps: int = 1, **figures: float) -> None:
        self.steps += steps
        if self.steps == 30:
            raise KeyboardInterrupt


def test_an_interrupted_layer_leaves_those_before_it(tmp_path: Path) -> None:
    drawn_run = write_run(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        equal_terms(drawn_run, [1], Interrupting())
    stored = stored_terms(drawn_run, 1, "train", TERMS)
    assert stored is not None
    assert len(stored.values) == 1
    assert [s for s in drawn_run.scores() if "x" in s.metric] == []
    equal_terms(drawn_run, [1], Silent())
    for split in ("train", "test"):
        assert scores_of(drawn_run, split, "fc6")["R@1(11x4)"].value == pytest.approx(brute_force(split, 1)[0])


def test_features_that_are_gone_name_the_command_that_brings_them_back(tmp_path: Path) -> None:
    drawn_run = write_run(tmp_path)
    drawn_run.feature_file(1, "train").unlink()
    change_entry(drawn_run, 1, "test", POOL, queries=store.FeatureKey("drawn", 1, "test", "other", "resize", "m"))
    found = equal_terms(drawn_run, [1], Silent())
    assert [(s.split, s.ranked.layer.layer) for s in found.scores] == [("test", "fc6")]
    (reason,) = [line for line in found.reasons if "gone" in line]
    assert reason == (
        "no equal terms at epoch 1 where features are gone: layerprobe probe drawn --epochs 1"
        f" --layers fc6,pool5.3@max --cache {tmp_path}"
        " brings them back"
    )


def test_a_layer_whose_scores_hold_no_longer_is_not_drawn(drawn_run: Run) -> None:
    write_scores(drawn_run, [s for s in drawn_run.scores() if s.split == "train"])
    found = equal_terms(drawn_run, [1], Silent())
    assert [s.split for s in found.scores] == ["train"]
    assert store.read_stored_ranks(drawn_run.rank_file(1, "test")).values[FC6].keys() == {"MAP@R"}


def test_an_epoch_that_is_not_probed_is_told(finished_copy: Run) -> None:
    found = equal_terms(finished_copy, [1, 7], Silent())
    assert "no equal terms at epoch 7: test is not probed there" in found.reasons
    assert {s.epoch for s in found.scores} == {1}


def test_a_layer_without_ranks_has_no_value_and_the_reason(drawn_run: Run) -> None:
    change_entry(drawn_run, 1, "test", FC6, invalid="NaN (2 rows)")
    equal_terms(drawn_run, [1], Silent())
    score = scores_of(drawn_run, "test", "fc6")["R@1(11x4)"]
    assert (score.value, score.low, score.notes) == (None, None, ("NaN (2 rows)",))


def test_reduced_layers_are_drawn_as_their_ranks_were_made(drawn_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.REDUCTIONS, "centred", "tests.workflow.a_reduction:Centred")
    path, centred = drawn_run.rank_file(1, "test"), replace(FC6, reduction="centred")
    entries = store.read_stored_ranks(path)
    key = store.RankKey(store.FeatureKey("drawn", 1, "test", "w1", "resize", "m"), None, entries.search_sha256, 1e-12)
    ranks = {ranked: store.RankEntry(key, entries.ranks[FC6]) for ranked in (FC6, centred)}
    store.write_ranks(path, store.Rows(entries.labels, entries.ids), ranks)
    write_scores(
        drawn_run,
        [with_layer(s, reduction=name) for s in drawn_run.scores() for name in ("none", "centred")],
    )
    equal_terms(drawn_run, [1], Silent())
    stored = stored_terms(drawn_run, 1, "test", TERMS)
    assert stored is not None
    train, test = (labels_of(SIZES[split]) for split in ("train", "test"))
    values = features_of(test, 1, FC6) - features_of(train, 1, FC6).mean(0)
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    found = [by_hand(unit @ unit.T, test, rows) for rows in stored.rows]
    first = int(stored.rows[0][0])
    assert stored.values[centred][first] == pytest.approx(np.mean([hits[first] for hits in found if first in hits]))


def test_a_reduction_that_was_fitted_on_other_features_is_not_drawn(
    drawn_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.REDUCTIONS, "centred", "tests.workflow.a_reduction:Centred")
    path, centred = drawn_run.rank_file(1, "test"), replace(FC6, reduction="centred")
    entries = store.read_stored_ranks(path)
    queries, training = (store.FeatureKey("drawn", 1, split, "w1", "resize", "m") for split in ("test", "train"))
    key = store.RankKey(queries, None, entries.search_sha256, 1e-12, reduction=f"{training} seed {SEED}")
    store.write_ranks(
        path, store.Rows(entries.labels, entries.ids), {centred: store.RankEntry(key, entries.ranks[FC6])}
    )
    write_scores(drawn_run, [with_layer(score, reduction="centred") for score in drawn_run.scores()])
    assert is_fitted_on(drawn_run, 1, "test", "train", centred)
    drawn_run.feature_file(1, "train").rename(drawn_run.feature_file(2, "train"))
    found = equal_terms(drawn_run, [1], Silent())
    assert not [score for score in found.scores if score.split == "test"]
    assert any("features are gone" in reason for reason in found.reasons)
    # Those of another network are no better.
    labels, ids = store.read_index(drawn_run.feature_file(2, "train"))
    columns, values = store.Columns({FC6.layer: 3}, "cpu", 8), features_of(labels.astype(np.int64), 2, FC6)
    other = replace(training, weights_sha256="w2")
    store.write_features(
        drawn_run.feature_file(1, "train"), other, store.Rows(labels, ids), columns, [{FC6.layer: values}]
    )
    assert not is_fitted_on(drawn_run, 1, "test", "train", centred)


def test_splits_of_groups_or_galleries_have_no_equal_terms(tmp_path: Path) -> None:
    groups = SearchRules(groups=np.arange(len(labels_of(SIZES["test"]))))
    run = write_run(tmp_path, rules={"test": groups}, layers=[FC6])
    found = equal_terms(run, [1], Silent())
    assert found.offered.terms is None
    assert found.reasons == (
        "no equal terms for test: groups, lists or sets of labels decide what its images may find",
        "no equal terms: train alone has ranks that can be drawn again",
    )
    in_gallery = store.FeatureKey("drawn", 1, "gallery", "w1", "resize", "m")
    change_entry(run, 1, "test", FC6, gallery=in_gallery)
    assert offered_terms(run).reasons[0] == "no equal terms for test: it is searched in a gallery"


def test_splits_too_small_to_draw_from_have_no_equal_terms(tmp_path: Path) -> None:
    run = write_run(tmp_path, sizes={"train": [3, 3], "test": [1, 5]}, layers=[FC6])
    assert equal_terms(run, [1], Silent()).reasons == ("no equal terms: a split has fewer than 2 classes of 2 images",)


def test_a_split_of_exactly_these_terms_has_one_draw(tmp_path: Path) -> None:
    run = write_run(tmp_path, sizes={"train": [4] * 3, "test": [5] * 4}, layers=[FC6])
    equal_terms(run, [1], Silent())
    score = scores_of(run, "train", "fc6")["R@1(3x4)"]
    assert score.value == pytest.approx(scores_of(run, "train", "fc6")["R@1"].value, abs=1e-12)
    assert score.notes[0] == "equal terms: all images, one draw"


def test_a_run_in_use_is_left_alone(drawn_run: Run) -> None:
    with locked(drawn_run), pytest.raises(BusyError):
        equal_terms(drawn_run, [1], Silent())


def test_a_run_without_scores_is_told(drawn_run: Run) -> None:
    drawn_run.scores_file.unlink()
    with pytest.raises(DataError, match="no scores yet"):
        equal_terms(drawn_run, [1], Silent())


def test_a_trained_run_is_drawn_from_what_its_probe_stored(run: Run) -> None:
    probe(run, ProbeRequest(layers=("fc6",), epochs="last", ks=(1,), device="cpu", workers=0), Silent())
    found = equal_terms(run, [2], Silent())
    assert found.reasons == ()
    # 4 classes of 4 in both splits: a draw has all of them
    assert [(s.split, s.metric, s.value) for s in found.scores] == [
        (s.split, "R@1(4x4)", s.value) for s in run.scores() if s.metric == "R@1"
    ]
    assert read_scores(run.scores_file) == run.scores()


def test_a_run_that_python_measured_has_terms_whatever_its_loaders_labels_were(drawn_run: Run) -> None:
    change_entry(drawn_run, 1, "test", FC6, search_sha256="of labels that the file numbers anew")
    assert offered_terms(drawn_run).terms is None
    rewrite(drawn_run, from_python=True)
    assert offered_terms(drawn_run).terms == TERMS
    for split in SIZES:
        drawn_run.feature_file(1, split).unlink()
    assert "features are gone: probe the model from Python again" in equal_terms(drawn_run, [1], Silent()).reasons[1]
