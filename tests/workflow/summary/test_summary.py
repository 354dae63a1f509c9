from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from layerprobe.data.splits import Dataset, Image, Split
from layerprobe.statistics.draws import draws
from layerprobe.summary.cells import Faults
from layerprobe.system.errors import BusyError, DataError, RecipeError
from layerprobe.values.metric_names import Terms, recall_of
from layerprobe.values.records import WeightsFile
from layerprobe.values.scores import Score, ScoreTable
from layerprobe.workflow.run import from_recipe, units
from layerprobe.workflow.run.runs import Run, locked
from layerprobe.workflow.summary.summary import SummaryRequest, stored_summary, summarise
from tests.records import rewrite
from tests.scores import CLUSTERS, with_layer
from tests.workflow.conftest import Silent
from tests.workflow.drawn_run import write_run
from tests.workflow.rank_files import CLASSES, FC6, LABELS, POOL5, first_hit, ranks_of, stored, written


def test_recalls_gaps_and_counts_come_from_the_stored_ranks(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    written(
        run,
        stored(run, 0, "train", {FC6: first_hit(3), POOL5: first_hit(1)}),
        stored(run, 0, "test", {FC6: first_hit(3), POOL5: first_hit(2)}),
        stored(run, 5, "train", {FC6: first_hit(9), POOL5: first_hit(6)}),
        stored(run, 5, "test", {FC6: first_hit(6), POOL5: first_hit(8)}),
    )
    found = stored_summary(run)
    pool5, fc6 = found.layers
    # of 24 queries: train 6 and 9, test 8 and 6
    assert [(layer.levels["train"].value, layer.levels["test"].value) for layer in (pool5, fc6)] == [
        (6 / 24, 8 / 24),
        (9 / 24, 6 / 24),
    ]
    assert fc6.gap is not None
    assert fc6.gap.difference.value == pytest.approx(3 / 24)
    assert fc6.gap_over_start is not None
    assert fc6.gap_over_start.difference.value == pytest.approx(3 / 24 - 0)
    assert pool5.gap_over_start is not None
    assert pool5.gap_over_start.difference.value == pytest.approx(-2 / 24 + 1 / 24)
    assert found.units == {"train": 12, "test": 12}


def test_stored_numbers_without_labels_are_compared_with_recall(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    recalls = stored(run, 5, "test", {FC6: first_hit(9), POOL5: first_hit(6)})
    written(run, recalls, [replace(score, metric="two-nn", value=7.5) for score in recalls])
    (found,) = stored_summary(run).label_free
    assert (found.metric, found.epoch, found.split, found.layers, found.correlation) == ("two-nn", 5, "test", 2, None)


def test_splits_of_equal_classes_are_on_equal_terms_already(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    written(run, stored(run, 5, "train", {FC6: first_hit(9)}), stored(run, 5, "test", {FC6: first_hit(6)}))
    found = stored_summary(run)
    assert found.terms == Terms(12, 2)
    assert found.layers[0].levels["test"].equal == found.layers[0].levels["test"].value


def test_scores_without_ranks_are_told(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    scores = stored(run, 5, "test", {FC6: first_hit(9), POOL5: first_hit(6)})
    with h5py.File(run.rank_file(5, "test"), "r+") as ranks:
        del ranks[str(POOL5.layer)]
    written(run, scores)
    found = stored_summary(run)
    assert [layer.ranked for layer in found.layers] == [FC6]
    assert f"test, epoch 5: {POOL5.layer} skipped, as their ranks are not stored; probe them again" in found.notes


def test_a_run_of_scores_without_any_ranks_of_them_is_told(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    (score,) = stored(run, 5, "test", {FC6: first_hit(9)})
    written(run, [with_layer(score, layer="gone")])
    for read in (stored_summary, lambda run: summarise(run, SummaryRequest(), Silent())):
        with pytest.raises(DataError, match=r"test, epoch 5: gone skipped, .* Run layerprobe probe one"):
            read(run)


def test_a_gap_between_splits_of_the_same_classes_has_no_interval_and_says_why(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    files = [stored(run, 5, split, {FC6: first_hit(6)}, labels=LABELS["train"]) for split in ("train", "test")]
    written(run, *files)
    found = stored_summary(run)
    assert found.layers[0].gap is not None
    assert found.layers[0].gap.difference.interval is None
    assert "no interval of a gap: train and test share classes" in found.notes


def test_ranks_without_a_score_hold_no_longer(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    first, _ = stored(run, 5, "test", {FC6: first_hit(9), POOL5: first_hit(6)})
    written(run, [first])
    assert [layer.ranked for layer in stored_summary(run).layers] == [FC6]


def test_what_a_reader_must_know_is_counted(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    faulty = ranks_of([1.0] * 24, lone=2, tied=20, zeros=3)
    written(run, stored(run, 5, "test", {FC6: faulty, POOL5: "NaN (3 rows)"}))
    pool5, fc6 = stored_summary(run).layers
    # 18 of the 22 queries that are not lone are tied
    assert fc6.faults["test"] == Faults(tied=18 / 22, zeros=3, lone=2)
    assert pool5.faults["test"] == Faults(invalid="NaN (3 rows)")
    assert pool5.levels["test"].value is None


@pytest.mark.parametrize(
    ("record", "start", "compared"),
    [
        ({}, "untrained", True),
        ({"recipe": {"net": {"weights": "imagenet"}, "train": {"epochs": 5}}}, "pretrained", True),
        ({"untrained": False}, "epoch 0", False),
    ],
)
def test_gaps_are_compared_with_those_of_a_start_alone(
    tmp_path: Path, record: dict[str, Any], start: str, compared: bool
) -> None:
    run = Run(tmp_path / "one")
    scores = [
        stored(run, epoch, split, {FC6: first_hit(hits)})
        for epoch, split, hits in ((0, "train", 3), (0, "test", 3), (5, "train", 9), (5, "test", 6))
    ]
    written(run, *scores, **record)
    found = stored_summary(run)
    assert found.data.start == start
    assert (found.layers[0].gap_over_start is not None) is compared


def test_recall_on_equal_terms_is_the_mean_over_the_draws(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    labels = np.concatenate([LABELS["test"], [CLASSES] * 3])  # the first class has five images
    terms, hits = Terms(12, 2), np.random.default_rng(0).random(len(labels))
    drawn = draws(labels, terms, seed=0, split="test")
    times = np.bincount(np.concatenate(drawn), minlength=len(labels))
    values = {terms.name(): np.where(times > 0, hits, np.nan)}
    entries = {FC6: ranks_of([1.0] * len(labels))}
    written(
        run,
        stored(run, 5, "test", entries, values=values, labels=labels),
        stored(run, 5, "train", {FC6: first_hit(9)}),
    )
    found = stored_summary(run)
    assert found.terms == terms
    assert found.layers[0].levels["test"].equal == pytest.approx(np.mean([hits[rows].mean() for rows in drawn]))
    assert found.layers[0].levels["train"].equal is None
    assert found.layers[0].gap is not None
    assert not found.layers[0].gap.equal


def test_epochs_that_cannot_be_read_or_have_other_images_are_left_out(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    scores = [stored(run, epoch, "test", {FC6: first_hit(epoch)}) for epoch in (1, 2)]
    scores.append(stored(run, 3, "test", {FC6: ranks_of([1.0] * 4)}, labels=np.array([0, 0, 1, 1])))
    scores.append(stored(run, 4, "test", {FC6: ranks_of([1.0] * 4)}, labels=np.array([0, 0, 1, 1])))
    written(run, *scores)
    run.rank_file(4, "test").unlink()
    found = stored_summary(run)
    assert found.notes == (
        "test, epoch 4: skipped, its ranks cannot be read; probe it again",
        "test, epoch 2: skipped, it has other images than the last one",
        "test, epoch 1: skipped, it has other images than the last one",
    )
    assert found.layers[0].levels["test"].epoch == 3


def test_a_run_without_ranks_is_told(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    scores = stored(run, 5, "test", {FC6: first_hit(9)})
    written(run, scores)
    run.rank_file(5, "test").unlink()
    with pytest.raises(DataError, match="no ranks are stored. Run layerprobe probe one"):
        stored_summary(run)


class Counting(Silent):
    """A listener that counts draws."""

    draws = 0

    def advance(self, steps: int = 1, **figures: float) -> None:
        self.draws += steps


def has_terms(score: Score) -> bool:
    recall = recall_of(score.metric)
    return recall is not None and recall.terms is not None


def places(run: Run) -> set[tuple[int, str]]:
    """Epochs and splits of which scores on equal terms are stored."""
    return {(score.epoch, score.split) for score in run.scores() if has_terms(score)}


def test_missing_draws_are_made_once(tmp_path: Path) -> None:
    run = write_run(tmp_path, epochs=(0, 1))
    first, second = Counting(), Counting()
    found = summarise(run, SummaryRequest(), first)
    # 2 layers x 2 epochs x 2 splits x 20 draws
    assert first.draws == 160
    assert found.terms == Terms(11, 4)
    assert all(layer.gap and layer.gap.equal for layer in found.layers)
    assert summarise(run, SummaryRequest("all"), second) == found
    assert second.draws == 0


def test_a_gap_on_equal_terms_is_the_difference_of_these_scores(tmp_path: Path) -> None:
    run = write_run(tmp_path, epochs=(0, 1))
    found = summarise(run, SummaryRequest(), Silent()).layers[0]
    scores = {
        (score.epoch, score.split): score.value or 0.0
        for score in run.scores()
        if score.ranked == found.ranked and has_terms(score)
    }
    gaps = [scores[epoch, "train"] - scores[epoch, "test"] for epoch in (0, 1)]
    assert found.gap is not None
    assert found.gap.difference.value == pytest.approx(gaps[1])
    assert found.gap_over_start is not None
    assert found.gap_over_start.difference.value == pytest.approx(gaps[1] - gaps[0])


def test_draws_without_a_score_or_with_an_interval_of_another_kind_are_scored_again(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    summarise(run, SummaryRequest(), Silent())
    scores = run.scores()
    drawn = [score for score in scores if has_terms(score)]
    others = [score for score in scores if score not in drawn]
    clustered = [replace(score, units=CLUSTERS) for score in drawn]
    for known in (others, [*others, *clustered]):
        ScoreTable(known, stored=[]).write(run.scores_file)
        summarise(run, SummaryRequest(), Silent())
        assert {score for score in run.scores() if has_terms(score)} == set(drawn)


def test_what_is_stored_is_summed_up_without_draws(tmp_path: Path) -> None:
    run = write_run(tmp_path, epochs=(0, 1))
    found = stored_summary(run)
    assert found.terms is None
    assert all(layer.gap and not layer.gap.equal for layer in found.layers)
    assert f"raw: all classes and images; {run.command('summary')} draws equal terms" in found.notes
    assert places(run) == set()


@pytest.mark.parametrize(
    ("asked", "drawn"),
    [("last", {0, 2}), ("1, last", {0, 1, 2}), ("all", {0, 1, 2})],
)
def test_draws_are_made_of_the_epochs_asked_for_and_of_epoch_0(tmp_path: Path, asked: str, drawn: set[int]) -> None:
    run = write_run(tmp_path, epochs=(0, 1, 2))
    summarise(run, SummaryRequest(asked), Silent())
    assert places(run) == {(epoch, split) for epoch in drawn for split in ("train", "test")}


@pytest.mark.parametrize(("split", "unseen"), [("test", False), ("train", True)])
def test_the_best_epoch_is_that_of_the_best_layer(tmp_path: Path, split: str, unseen: bool) -> None:
    run = write_run(tmp_path, epochs=range(6))
    if unseen:
        files = tuple(WeightsFile(f"{epoch}.pt", None, "", 1, epoch) for epoch in range(6))
        recipe = {**run.read().recipe, "train": {"epochs": 0}, "data": {"name": "glyphs", "seen": False}}
        rewrite(run, weights_files=files, recipe=recipe)
    summarise(run, SummaryRequest("best"), Silent())
    tested = {(s.epoch, s.ranked): s.value or 0.0 for s in run.scores() if (s.split, s.metric) == (split, "R@1")}
    layer = max((ranked for epoch, ranked in tested if epoch == 5), key=lambda ranked: tested[5, ranked])
    best = max(range(6), key=lambda epoch: tested[epoch, layer])
    assert {epoch for epoch, _ in places(run)} == {0, best}


def test_epochs_that_are_not_measured_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path, epochs=(0, 1))
    with pytest.raises(RecipeError, match="--epochs last,7: .* has epochs 0 to 1"):
        summarise(run, SummaryRequest("last,7"), Silent())


def test_a_run_in_use_is_read_but_not_drawn_from(tmp_path: Path) -> None:
    run = write_run(tmp_path, epochs=(0, 1))
    with locked(run):
        stored_summary(run)
        with pytest.raises(BusyError):
            summarise(run, SummaryRequest(), Silent())


def test_without_training_images_there_is_nothing_to_draw(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    written(run, stored(run, 0, "test", {FC6: first_hit(9)}))
    found = summarise(run, SummaryRequest(), Silent())
    assert (found.terms, found.notes) == (None, ())
    assert found.layers[0].gap is None


def test_training_images_alone_have_no_best_epoch_to_draw_from(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    written(run, stored(run, 5, "train", {FC6: first_hit(9)}))
    found = summarise(run, SummaryRequest(), Silent())
    assert found.layers[0].levels["train"].value == 9 / 24


def test_ranks_of_other_images_that_have_no_score_offer_no_terms(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    scores = [stored(run, 5, split, {FC6: first_hit(9)}) for split in ("train", "test")]
    stored(run, 6, "test", {FC6: ranks_of([1.0] * 60)}, labels=np.repeat(np.arange(30), 2))
    stored(run, 6, "train", {FC6: ranks_of([1.0] * 60)}, labels=np.repeat(np.arange(30, 60), 2))
    written(run, *scores)
    gap = stored_summary(run).layers[0].gap
    assert gap is not None
    assert not gap.equal


def no_image(index: int) -> Image:
    raise AssertionError(index)


def test_clusters_are_the_units_where_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path / "one")
    written(
        run,
        stored(run, 5, "train", {FC6: first_hit(9)}),
        stored(run, 5, "test", {FC6: first_hit(6)}),
    )
    # class 0 and 1 in folder 0, 2 and 3 in folder 1 ...
    names = tuple(f"{label // 2}/{label}" for label in range(2 * CLASSES))
    splits = {
        split: Split(split, labels, tuple(f"{split}{i}" for i in range(len(labels))), no_image)
        for split, labels in LABELS.items()
    }
    monkeypatch.setattr(units, "recorded_recipe", lambda *_: None)
    monkeypatch.setattr(from_recipe, "load_dataset", lambda _: Dataset(splits, names))
    found = stored_summary(run, "parent")
    assert found.units == {"train": 6, "test": 6}
    assert found.kind.cluster == "parent"
    assert found.layers[0].levels["test"].interval is None  # of 6 units
