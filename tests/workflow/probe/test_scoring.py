from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.metrics import average_precision_score

from layerprobe import registry, store
from layerprobe.data.splits import Dataset, Split
from layerprobe.metrics import precision
from layerprobe.ranking import recall_at_k
from layerprobe.system.errors import RecipeError
from layerprobe.system.progress import stoppable
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score, ScoreTable
from layerprobe.workflow.probe import scoring as module
from layerprobe.workflow.probe.probe import find_missing, measure, prepare, probe
from layerprobe.workflow.probe.scoring import Searches
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.features import RunFeatures
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.records import rewrite
from tests.workflow import drawn_run
from tests.workflow.conftest import Silent

FC6 = LayerKey("fc6", "none")

Requests = Callable[..., TrainRequest]
REQUEST = ProbeRequest(layers=("pool5.3", "fc6"), epochs="last", ks=(1, 2), device="cpu", workers=0)


def ranks_in(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {
            f"{layer}/{name}": file[f"{layer}/none/cosine/{name}"][()]
            for layer in file
            if "@" in layer
            for name in file[f"{layer}/none/cosine"]
        }


def test_ranks_are_stored_and_give_the_scores(run: Run) -> None:
    scores = probe(run, REQUEST, Silent())
    stored = ranks_in(run.rank_file(2, "test"))
    (score,) = [s for s in scores if (s.split, s.ranked.layer.layer, s.metric) == ("test", "fc6", "R@2")]
    closer, ties = stored["fc6@none/closer"], stored["fc6@none/tied_negatives"]
    assert not ties.any()
    assert score.value == (closer < 2).mean()


def test_a_second_probe_ranks_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = probe(run, REQUEST, Silent())
    monkeypatch.setattr(module, "rank", None)
    assert probe(run, REQUEST, Silent()) == first
    # Every count of a small set is exact, so that another K needs no search either.
    assert {s.metric for s in probe(run, replace(REQUEST, ks=(4,)), Silent())} == {"R@4"}


def test_a_further_layer_leaves_the_old_ranks_in_place(run: Run) -> None:
    probe(run, REQUEST, Silent())
    before = ranks_in(run.rank_file(2, "test"))
    probe(run, replace(REQUEST, layers=("pool4.1",)), Silent())
    after = ranks_in(run.rank_file(2, "test"))
    assert all(np.array_equal(after[name], values) for name, values in before.items())
    assert "pool4.1@max/closer" in after


def test_open_counts_are_completed_for_a_further_k(run: Run) -> None:
    exact = probe(run, replace(REQUEST, ks=(1, 3)), Silent())
    for split in ("train", "test"):
        with h5py.File(run.rank_file(2, split), "r+") as file:
            for layer in (FC6, LayerKey("pool5.3", "max")):
                # As a large set has them: only that it lies between 0 and 12 is known.
                file[f"{layer.stored}/none/cosine/closer"][:] = 0
                file[f"{layer.stored}/none/cosine/closer_high"][:] = 12
    assert probe(run, replace(REQUEST, ks=(1, 3)), Silent()) == exact
    assert (ranks_in(run.rank_file(2, "test"))["fc6@none/closer_high"] < 12).any()


def test_features_larger_than_the_memory_stay_on_disk_and_give_the_same_scores(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = probe(run, REQUEST, Silent())
    for split in ("train", "test"):
        run.rank_file(2, split).unlink()
    read = store.FeatureFile.read
    monkeypatch.setattr(store.FeatureFile, "read", lambda file, key: None if "pool" in key.layer else read(file, key))
    # fc6 has 16 x 8 float32 numbers and fits, pool5.3 has 16 x 64 and does not.
    assert probe(run, replace(REQUEST, memory=2048), Silent()) == first


def test_every_metric_of_features_on_disk_has_the_value_of_those_in_memory(run: Run) -> None:
    # of 16 images of 4 classes; others look at more neighbours than there are
    names = tuple(name for name in registry.METRICS if not name.startswith(("kNN@20", "kNN@100", "few-shot@5")))
    request = replace(REQUEST, metrics=names, splits=("test",))
    on_disk, in_memory = (probe(run, replace(request, memory=memory), Silent()) for memory in (1, None))
    # what holds a layer whole has no value where its features are left on disk
    assert {score.metric for score in on_disk if score.value is None} >= {"NMI", "kNN@10", "few-shot@1", "uniformity"}
    for score in on_disk:
        assert score in in_memory or score.notes[-1].startswith("it holds all features")


def test_stale_ranks_are_not_used(run: Run) -> None:
    first = probe(run, REQUEST, Silent())
    with h5py.File(run.rank_file(2, "test"), "r+") as file:
        file["fc6@none/none/cosine/closer"][:] = 99
    # Rewritten in place, the file's checksums are right and only its key could tell.
    changed = probe(run, REQUEST, Silent())
    assert changed != first
    with h5py.File(run.rank_file(2, "test"), "r+") as file:
        group = file["fc6@none/none/cosine"]
        group.attrs["queries"] = group.attrs["queries"].replace(b"weights_sha256", b"weights_sha257")
    assert probe(run, REQUEST, Silent()) == first


def test_scores_whose_ranks_are_replaced_leave_the_table(run: Run) -> None:
    recalls = probe(run, REQUEST, Silent())
    probe(run, replace(REQUEST, gallery_size=10, metrics=("MRR",)), Silent())
    drawn = [replace(score, metric="R@1(G=4)") for score in recalls if score.metric == "R@1"]
    ScoreTable([*run.scores(), *drawn], stored=[]).write(run.scores_file)
    with h5py.File(run.rank_file(2, "test"), "r+") as file:
        for layer in ("fc6@none", "pool5.3@max"):
            file[f"{layer}/none/cosine"].attrs["tie_window"] = np.bytes_(b"0.5")
    probe(run, replace(REQUEST, layers=("fc6",)), Silent())
    left = {(score.split, score.ranked.layer.layer, score.metric) for score in run.scores()}
    assert {metric for split, layer, metric in left if (split, layer) == ("test", "fc6")} == {"R@1", "R@2"}
    others = {("train", "fc6"), ("test", "pool5.3")}  # what holds, and what is not measured
    assert {(*other, metric) for other in others for metric in ("R@1(G=4)", "R@1(G=10)", "MRR")} <= left


def by_metric(scores: list[Score], split: str, layer: str) -> dict[str, Score]:
    return {score.metric: score for score in scores if (score.split, score.ranked.layer.layer) == (split, layer)}


def test_metrics_stand_beside_the_recall(run: Run) -> None:
    scores = probe(run, replace(REQUEST, metrics=("intra-inter", "uniformity")), Silent())
    found = by_metric(scores, "test", "fc6")
    assert list(found) == ["R@1", "R@2", "intra-inter", "uniformity"]
    assert found["uniformity"].value is not None
    assert found["uniformity"].n == 16


def test_a_finished_run_is_probed_as_its_recipe_now_says(request_for: Requests, run: Run) -> None:
    listener = Silent()
    train(request_for('probe.metrics=["NMI"]', "metrics.NMI.restarts=2"), listener)
    assert listener.heard[-1] == "tiny: layerprobe probe now follows the recipe's [probe] and [metrics]"
    found = by_metric(probe(run, REQUEST, Silent()), "test", "fc6")
    assert {"NMI", "NMI-sd", "NMI-chance"} <= set(found)
    assert "AMI" not in found


def test_a_key_that_a_finished_run_lacks_is_at_its_default(request_for: Requests) -> None:
    request = request_for("metrics.NMI.restarts=2")
    run = train(request, Silent())
    recipe = {name: dict(section) for name, section in run.read().recipe.items()}
    del recipe["probe"]["similarity"]
    rewrite(run, recipe=recipe)
    listener = Silent()
    train(request, listener)
    assert [line for line in listener.heard if "now follows" in line] == []


def test_the_nmi_of_the_best_restart_says_so(request_for: Requests) -> None:
    run = train(request_for('probe.metrics=["NMI"]', "metrics.NMI.restarts=2", 'metrics.NMI.report="best"'), Silent())
    nmi = by_metric(probe(run, REQUEST, Silent()), "test", "fc6")["NMI"]
    assert "NMI and AMI are those of the restart of least inertia of 2" in nmi.notes


def test_an_option_out_of_range_is_a_recipe_error(request_for: Requests) -> None:
    with pytest.raises(RecipeError, match=r"\[metrics.NMI\]: restarts = 0: must be at least 1. Change it"):
        request_for("metrics.NMI.restarts=0")


def test_post_processing_is_fitted_on_training_classes_and_has_ranks_of_its_own(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.POST_PROCESSING, "centred", "tests.workflow.centred:Centred")
    probing = prepare(run, replace(REQUEST, splits=("test",)))  # the training split is extracted all the same
    both = replace(probing, selection=replace(probing.selection, post_processings=("none", "centred")))
    with stoppable() as stop:
        scores = measure(both, find_missing(both, [2]), Silent(), stop)
    (found,) = [
        s.value
        for s in scores
        if (s.ranked.post_processing, s.split, s.ranked.layer.layer, s.metric) == ("centred", "test", "fc6", "R@1")
    ]
    train, test = (store.read_features(run.feature_file(2, split), FC6) for split in ("train", "test"))
    assert found == recall_at_k(test - train.mean(0), np.repeat(np.arange(4), 4), ks=(1,))[1]
    with h5py.File(run.rank_file(2, "test")) as file:
        assert set(file["fc6@none"]) == {"none", "centred"}
        assert "split='train'" in file["fc6@none/centred/cosine"].attrs["post_processing"].decode()
        assert file["fc6@none/none/cosine"].attrs["post_processing"] == b""


@pytest.mark.parametrize("similarity", ["euclidean", "dot"])
def test_layers_are_searched_by_the_similarity_asked_for(run: Run, similarity: str) -> None:
    cosine = probe(run, REQUEST, Silent())
    found = by_metric(probe(run, replace(REQUEST, similarity=similarity), Silent()), "test", "fc6")["R@1"]
    features = store.read_features(run.feature_file(2, "test"), FC6).astype(np.float64)
    labels = store.read_feature_head(run.feature_file(2, "test")).rows[0]
    close = features @ features.T
    if similarity == "euclidean":
        close = -((features[:, None] - features) ** 2).sum(2)
    np.fill_diagonal(close, -np.inf)
    assert found.value == np.mean(labels[close.argmax(1)] == labels)
    # The ranks by the cosine are still there, and hold.
    before = run.rank_file(2, "test").stat().st_mtime_ns
    assert probe(run, REQUEST, Silent()) == cosine
    assert run.rank_file(2, "test").stat().st_mtime_ns == before


def test_every_metric_of_a_collapsed_layer_says_so(images: Path, request_for: Requests) -> None:
    for path in images.glob("*/*.png"):
        Image.new("RGB", (20, 20), (90, 90, 90)).save(path)
    asked = replace(REQUEST, layers=("fc6",), splits=("test",), metrics=("MAP@R", "MRR", "NMI", "uniformity"))
    scores = probe(train(request_for("train.epochs=0"), Silent()), asked, Silent())
    assert {"R@1", "MAP@R", "MRR", "NMI", "NMI-sd", "uniformity"} <= {score.metric for score in scores}
    assert all("collapsed: 100% tied" in score.notes for score in scores)


def test_what_each_query_adds_is_stored_beside_what_is_there(run: Run) -> None:
    fc6 = replace(REQUEST, layers=("fc6",), splits=("test",))
    found = by_metric(probe(run, replace(fc6, metrics=("MAP@R", "MRR", "NMI")), Silent()), "test", "fc6")
    path, ranked = run.rank_file(2, "test"), RankedLayer(FC6, "none", "cosine")
    entry = store.read_rank_file(path).stored.values[ranked]
    assert {name: values.mean() for name, values in entry.items()} == {
        name: found[name].value for name in ("MAP@R", "MRR")
    }
    probe(run, replace(fc6, metrics=("mAP",), similarity="dot"), Silent())
    probe(run, replace(fc6, metrics=("mAP",)), Silent())
    both = store.read_rank_file(path).stored.values[ranked]
    assert set(both) == {"MAP@R", "MRR", "mAP"}
    # Every query has 3 others of its class: scikit-learn's average precision of each.
    features, labels = store.read_features(run.feature_file(2, "test"), FC6), store.read_rank_file(path).stored.labels
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    others = [np.arange(len(labels)) != row for row in range(len(labels))]
    expected = [
        average_precision_score(labels[rest] == labels[row], unit[rest] @ unit[row]) for row, rest in enumerate(others)
    ]
    np.testing.assert_allclose(both["mAP"], expected, atol=1e-6)


def test_one_search_gives_the_ranks_and_the_precision(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = replace(REQUEST, layers=("fc6",), splits=("test",))
    by_search, path = probe(run, asked, Silent()), run.rank_file(2, "test")
    ranks = store.read_rank_file(path).stored.ranks[RankedLayer(FC6, "none", "cosine")]
    path.unlink()
    searches: list[str] = []
    for name in ("rank", "rank_with_precision"):
        search = getattr(module, name)

        def counted(*arguments: Any, name: str = name, search: Any = search, **options: Any) -> Any:
            searches.append(name)
            return search(*arguments, **options)

        monkeypatch.setattr(module, name, counted)
    monkeypatch.setattr(precision, "precision_of_queries", None)
    scores = probe(run, replace(asked, metrics=("MAP@R",)), Silent())
    assert searches == ["rank_with_precision"]
    assert [score for score in scores if score.metric != "MAP@R"] == by_search
    stored = store.read_rank_file(path).stored.ranks[RankedLayer(FC6, "none", "cosine")]
    for name in ("closer", "closer_high", "tied_negatives", "tied_positives"):
        np.testing.assert_array_equal(getattr(stored, name), getattr(ranks, name))


def test_values_that_are_stored_already_are_not_written_again(run: Run) -> None:
    asked = replace(REQUEST, layers=("fc6",), splits=("test",), metrics=("MAP@R",))
    probe(run, asked, Silent())
    before = run.rank_file(2, "test").stat().st_mtime_ns
    probe(run, asked, Silent())
    assert run.rank_file(2, "test").stat().st_mtime_ns == before


FITTED = ["l2+pca:2+l2", "l2+whiten:2:0.5+l2", "pca:2+binary"]
WITH_CLASSES = ["l2+lwhiten:2:lw+l2", "lda:2"]
KEPT = 7  # rows of a split that are not replaced

Changed = Callable[[NDArray[np.float32]], NDArray[np.float32]]


@pytest.fixture
def searches(tmp_path: Path) -> Searches:
    run = drawn_run.write_run(tmp_path)
    splits = {name: _split(name, drawn_run.labels_of(sizes)) for name, sizes in drawn_run.SIZES.items()}
    dataset = Dataset(splits, tuple("abcdefghijkl"))
    features = RunFeatures(run, dataset, "resize", lambda epoch: f"w{epoch}", lambda epoch: None, lambda split: "m")
    return Searches(features=features, experiment="e", seed=drawn_run.SEED, device=lambda: torch.device("cpu"))


def _split(name: str, labels: NDArray[np.int64]) -> Split:
    return Split(name, labels, tuple(f"{name}/{i}.png" for i in range(len(labels))), lambda i: np.zeros((1, 1, 3), "B"))


def post_processed(searches: Searches, chain: str) -> NDArray[np.float64]:
    """The first test features through a chain, which a new command fits."""
    ranked: RankedLayer = replace(drawn_run.FC6, post_processing=chain)
    with replace(searches).post_processed.opened(1, "test", ranked, None) as (queries, _):
        return np.asarray(queries.values[:KEPT], dtype=np.float64)


def replace_rows(run: Run, split: str) -> None:
    """Other features in the place of all but the first rows."""
    path = run.feature_file(1, split)
    values, labels = store.read_features(path, drawn_run.FC6.layer), store.read_feature_head(path).rows
    values[KEPT:] = np.random.default_rng(0).normal(size=values[KEPT:].shape) * [1, 5, 30] + 2
    key = store.FeatureKey(run.name, 1, split, "w1", "resize", "m")
    columns = store.Columns({drawn_run.FC6.layer: 3}, "cpu", 8)
    store.write_features(path, key, store.Rows(*labels), columns, [{drawn_run.FC6.layer: values}])


@pytest.mark.parametrize("chain", FITTED + WITH_CLASSES)
def test_nothing_is_fitted_on_test_features(searches: Searches, chain: str) -> None:
    before = post_processed(searches, chain)
    replace_rows(searches.features.run, "test")
    assert (post_processed(searches, chain) == before).all()


@pytest.mark.parametrize("chain", FITTED + WITH_CLASSES)
def test_what_is_fitted_is_fitted_on_training_features(searches: Searches, chain: str) -> None:
    before = post_processed(searches, chain)
    replace_rows(searches.features.run, "train")
    assert (post_processed(searches, chain) != before).any()


@pytest.mark.parametrize("chain", FITTED)
def test_what_is_fitted_on_the_gallery_is_fitted_on_what_is_searched_alone(searches: Searches, chain: str) -> None:
    before = post_processed(searches, f"{chain}@gallery")
    replace_rows(searches.features.run, "train")
    assert (post_processed(searches, f"{chain}@gallery") == before).all()
    replace_rows(searches.features.run, "test")
    assert (post_processed(searches, f"{chain}@gallery") != before).any()
