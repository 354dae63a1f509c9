from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.system.errors import BusyError, InterruptedRun
from layerprobe.system.signals import Stop
from layerprobe.values.choice import Choice
from layerprobe.values.keys import LayerKey, RankedLayer
from layerprobe.workflow.choose.candidates import CandidateKey
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.concatenation import _Search
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.choose.searched_sets import Found
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.run.runs import Run, locked
from tests.workflow.choosing_runs import C1, C2, FC6, labels_of, write_run
from tests.workflow.conftest import Silent

CLASSES = 12
Features = Mapping[str, Mapping[str, NDArray[np.float32]]]


def features_of(splits: tuple[str, ...] = ("validation", "test")) -> Features:
    """c1 and c2 each tell the classes apart by half of their digits, and both together by all; fc6 is noise."""
    rng, found = np.random.default_rng(0), {}
    for split in splits:
        labels = labels_of(split, CLASSES)
        places = labels - labels.min()
        noise = 0.05 * rng.standard_normal((3, len(labels), 4))
        values = noise + np.stack([np.eye(4)[places % 4], np.eye(4)[places // 4], np.zeros((len(labels), 4))])
        found[split] = dict(zip(("c1@max", "c2@max", "fc6@none"), values.astype(np.float32), strict=True))
    return found


def write(cache: Path, *, features: Features | None = None, **more: object) -> Run:
    made = features or features_of()
    layers = {split: dict.fromkeys((C1, C2, FC6), np.ones(4 * CLASSES)) for split in made}
    return write_run(cache, "a", layers, features=made, **more)  # type: ignore[arg-type] # one test's fields each


def chosen(run: Run) -> Choice:
    return choose_runs([run], ChooseRequest(device="cpu", combine=True), Silent())


def recall(values: NDArray[np.floating], labels: NDArray[np.int64]) -> float:
    """Recall@1 by brute force."""
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    alike = unit @ unit.T
    np.fill_diagonal(alike, -9)
    return float((labels[alike.argmax(1)] == labels).mean())


def test_layers_that_are_better_together_are_chosen_concatenated(tmp_path: Path) -> None:
    features = features_of()
    run = write(tmp_path, features=features)
    found = chosen(run)
    assert (found.ship.layer, found.ship.pool, found.ship.dim, found.ship.epoch) == ("c1+c2", "max", 8, 2)
    for split, score in (("validation", found.chosen), ("test", found.test)):
        own = [features[split][name].astype(np.float64) for name in ("c1@max", "c2@max")]
        joint = np.hstack([values / np.linalg.norm(values, axis=1, keepdims=True) for values in own])
        assert score is not None
        together = recall(joint, labels_of(split, CLASSES))
        assert score.value == pytest.approx(together)
        assert together > max(recall(values, labels_of(split, CLASSES)) for values in own) + 0.3


def test_by_default_a_single_layer_is_shipped(tmp_path: Path) -> None:
    run = write(tmp_path)
    chosen(run)  # which stores ranks of concatenations
    found = choose_runs([run], ChooseRequest(device="cpu"), Silent())
    assert "+" not in found.ship.layer
    assert not any("+" in name for name in found.shares)


def test_a_set_of_layers_that_proves_nothing_is_no_candidate(tmp_path: Path) -> None:
    # Three layers of the same classes with noise of their own: together they are a little better on these classes.
    rng, made = np.random.default_rng(2), {}
    for split in ("validation", "test"):
        labels = labels_of(split, CLASSES)
        centres = rng.standard_normal((CLASSES, 4))[labels - labels.min()]
        noisy = [(centres + 0.45 * rng.standard_normal(centres.shape)).astype(np.float32) for _ in range(2)]
        noise = rng.standard_normal(centres.shape).astype(np.float32)
        made[split] = dict(
            zip(("c1@max", "c2@max", "fc6@none"), [noisy[0], noisy[0] + 0.02 * noisy[1], noise], strict=True)
        )
    found = chosen(write(tmp_path, features=made))
    assert "+" not in found.ship.layer
    (note,) = [note for note in found.notes if note.startswith("concatenated layers: ")]
    assert "none is better" in note or "no candidates, as the interval does not lie above 0" in note


def test_resamples_repeat_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[NDArray[np.float64]] = []
    plain = _Search.on

    def counted(search: _Search, weights: NDArray[np.float64]) -> Found[CandidateKey]:
        asked.append(weights)
        return plain(search, weights)

    monkeypatch.setattr(_Search, "on", counted)
    found = chosen(write(tmp_path))
    assert len(asked) == 6 + 200 * 6  # on all classes and without each fold; the same of each resample
    assert found.shares["c1+c2@max"] > 0.9


def test_a_second_choice_finds_the_ranks_and_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write(tmp_path)
    first = chosen(run)
    stored = store.read_stored_ranks(run.rank_file(2, "validation")).ranks
    assert RankedLayer(LayerKey("c1+c2", "max"), "none", "cosine") in stored
    monkeypatch.setattr(StoredSearch, "ranks", lambda *_: pytest.fail("ranked again"))
    with locked(run):  # nothing is written
        assert chosen(run) == first


def test_ranks_under_another_key_are_counted_again(tmp_path: Path) -> None:
    run = write(tmp_path)
    first, path = chosen(run), run.rank_file(2, "validation")
    joint = RankedLayer(LayerKey("c1+c2", "max"), "none", "cosine")
    labels, ids = store.read_index(path, holds="labels")
    key = store.RankKey(store.FeatureKey("a", 2, "validation", "old", "{}", "m"), None, "s", 1e-12)
    old = tmp_path / "old.h5"
    ranks = store.read_stored_ranks(path).ranks[FC6]
    store.write_ranks(old, store.Rows(labels, ids), {joint: store.RankEntry(key, ranks)})
    with h5py.File(old) as source, h5py.File(path, "a") as file:
        del file[str(joint.layer)]
        source.copy(str(joint.layer), file)
    assert chosen(run) == first


def test_nothing_is_added_to_a_layer_that_misses_nothing(tmp_path: Path) -> None:
    layers = {split: {C1: np.ones(48), C2: np.zeros(48)} for split in ("validation", "test")}
    run = write_run(tmp_path, "a", layers)  # of no features that could be ranked
    with locked(run):
        assert chosen(run).ship.layer == "c1"


def test_a_run_in_use_is_told(tmp_path: Path) -> None:
    run = write(tmp_path)
    with locked(run), pytest.raises(BusyError):
        chosen(run)


def test_a_signal_ends_the_ranking_and_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = write(tmp_path), []

    def signalled(stop: Stop, message: str) -> None:
        asked.append(message)
        if len(asked) == 2:
            raise InterruptedRun(message, signal_number=2)

    monkeypatch.setattr(Stop, "raise_if_asked", signalled)
    with pytest.raises(InterruptedRun) as caught:
        chosen(run)
    assert caught.value.exit_code == 130
    ranks = store.read_stored_ranks(run.rank_file(2, "validation")).ranks
    assert sum("+" in ranked.layer.layer for ranked in ranks) == 1


def test_where_features_are_gone_nothing_is_tried_and_the_choice_says_so(tmp_path: Path) -> None:
    run = write(tmp_path)
    run.feature_file(2, "validation").unlink()
    found = chosen(run)
    assert "+" not in found.ship.layer
    assert any(note.startswith("no concatenated layers are tried: ") for note in found.notes)
