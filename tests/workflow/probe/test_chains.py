from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from sklearn.decomposition import PCA

from layerprobe import store
from layerprobe.measure.analysis import Features, rank
from layerprobe.post_processing.chain import Chain
from layerprobe.post_processing.post_processing import FittedStep
from layerprobe.ranking import recall_at_k
from layerprobe.statistics.units import UnitSums, unit_sums
from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.retrieval import Ranks
from layerprobe.values.scores import Score
from layerprobe.workflow.probe.chains import AFTER_RELU, IN_SAMPLE, TRANSDUCTIVE, parse_chains
from layerprobe.workflow.probe.probe import prepare, probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.features import PartlyPostProcessedError, RunFeatures
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import Silent

Requests = Callable[..., TrainRequest]

FC6 = LayerKey("fc6", "none")
# fc6 has 8 numbers, pool5.3 more; 4 test classes of 4 images.
REQUEST = ProbeRequest(layers=("pool5.3", "fc6"), epochs="last", ks=(1,), device="cpu", workers=0)
LABELS = np.repeat(np.arange(4), 4)


def r1(scores: list[Score], split: str = "test", layer: str = "fc6") -> dict[str, float | None]:
    """Post-processing -> R@1."""
    return {
        s.ranked.post_processing: s.value
        for s in scores
        if (s.split, s.ranked.layer.layer, s.metric) == (split, layer, "R@1")
    }


def features(run: Run, split: str) -> np.ndarray:
    return store.read_features(run.feature_file(2, split), FC6).astype(np.float64)


def test_names_stand_for_chains_each_once() -> None:
    assert [chain.text for chain in parse_chains(["none", "l2", "pca:4+l2", "l2"])] == ["none", "l2", "pca:4+l2"]


def test_fit_gallery_is_said_of_every_chain_that_learns_from_features() -> None:
    asked = ["l2", "pca:4+l2", "pca:4+l2@gallery"]
    assert [chain.text for chain in parse_chains(asked, "gallery")] == ["l2", "pca:4+l2@gallery"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"post": ("none", "l2+pcaa:4")}, "unknown post-processing 'pcaa:4'. Did you mean 'pca:'"),
        ({"post": ("pca:0",)}, "pca:0"),
        ({"post": ("l2",), "fit": "test"}, "unknown split to fit on 'test'. Known: train, gallery"),
        (
            {"post": ("pca:2", "lda:2"), "fit": "gallery"},
            "^lda:2 is fitted with classes, and what is fitted on the gallery takes none. Fit it on train, the default",
        ),
    ],
)
def test_a_request_refuses_what_it_cannot_reduce_by(fields: dict[str, str], message: str) -> None:
    with pytest.raises((RecipeError, UnknownNameError), match=message):
        ProbeRequest(**fields)  # type: ignore[arg-type] # each its own field


def test_a_recipe_names_post_processings_and_is_refused_with_them(request_for: Requests) -> None:
    assert request_for('probe.post=["none", "l2"]').recipe.probe.post == ("none", "l2")
    with pytest.raises(RecipeError, match=r"\[probe\]: unknown post-processing 'l3'"):
        request_for('probe.post=["l3"]')


def test_a_chain_is_fitted_on_training_classes_even_if_only_test_is_asked_for(run: Run) -> None:
    found = r1(probe(run, replace(REQUEST, splits=("test",), post=("none", "pca:3+l2")), Silent()))
    oracle = PCA(3).fit(features(run, "train")).transform(features(run, "test"))
    assert found["pca:3+l2"] == recall_at_k(oracle, LABELS, ks=(1,))[1]
    assert found["none"] == recall_at_k(features(run, "test"), LABELS, ks=(1,))[1]


def test_fit_gallery_fits_on_what_is_searched_and_says_so(run: Run) -> None:
    scores = probe(run, replace(REQUEST, post=("pca:3+l2",), fit="gallery"), Silent())
    for split in ("train", "test"):
        oracle = PCA(3).fit_transform(features(run, split))
        assert r1(scores, split) == {"pca:3+l2@gallery": recall_at_k(oracle, LABELS, ks=(1,))[1]}
    assert all(TRANSDUCTIVE in score.notes for score in scores)


def test_other_training_features_are_ranked_anew_and_all_else_is_not(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = replace(REQUEST, layers=("fc6",), splits=("test",), post=("none", "l2", "pca:3+l2"))
    before = probe(run, asked, Silent())
    ranked: list[int] = []

    def counted(queries: Features, *given: Any, **more: Any) -> Ranks:
        ranked.append(queries.values.shape[1])
        return rank(queries, *given, **more)

    monkeypatch.setattr("layerprobe.workflow.probe.scoring.rank", counted)
    assert probe(run, asked, Silent()) == before
    assert ranked == []
    key_of = RunFeatures.key

    def of_other_training_images(features: RunFeatures, epoch: int, split: str) -> store.FeatureKey:
        key = key_of(features, epoch, split)
        return replace(key, manifest_sha256="other") if split == "train" else key

    monkeypatch.setattr(RunFeatures, "key", of_other_training_images)
    probe(run, asked, Silent())
    assert ranked == [3]


def test_ranks_belong_to_the_seed_where_a_chain_is_fitted_or_drawn(run: Run) -> None:
    searches = prepare(run, replace(REQUEST, post=("l2", "random:3", "pca:3"))).scorer.searches
    keys = [replace(searches, seed=seed).key_of(2, "test") for seed in (0, 1)]
    alike = {
        name: keys[0](ranked) == keys[1](ranked)
        for name in ("l2", "random:3", "pca:3")
        for ranked in (RankedLayer(FC6, name, "cosine"),)
    }
    assert alike == {"l2": True, "random:3": False, "pca:3": False}


def test_what_learns_nothing_needs_no_training_features(run: Run) -> None:
    found = r1(probe(run, replace(REQUEST, splits=("test",), post=("none", "l2")), Silent()))
    assert found["l2"] == found["none"]
    assert not run.feature_file(2, "train").exists()


@pytest.mark.parametrize(("split", "chain"), [("train", "pca:3"), ("test", "binary"), ("test", "pca:3")])
def test_features_that_are_not_finite_are_a_score_without_value(run: Run, split: str, chain: str) -> None:
    asked = replace(REQUEST, layers=("fc6",), post=("l2", chain))
    kept = prepare(run, asked).features
    probe(run, asked, Silent())
    values = kept.read_values(2, split, FC6)
    values[3, 1] = np.nan
    path, columns = run.feature_file(2, split), store.Columns({FC6: 8}, "cpu", 8)
    path.unlink()
    store.write_features(path, kept.key(2, split), kept.rows(split), columns, [{FC6: values}])
    run.rank_file(2, "test").unlink()
    scores = probe(run, replace(asked, splits=("test",)), Silent())
    (found,) = [s for s in scores if (s.split, s.ranked.post_processing, s.metric) == ("test", chain, "R@1")]
    assert (found.value, found.notes[0]) == (None, "NaN (1 rows)")
    assert (r1(scores)["l2"] is None) == (split == "test")


def test_features_larger_than_the_memory_are_post_processed_as_they_are_read(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("l2", "pca:3+l2", "l2+binary")
    first = probe(run, replace(REQUEST, post=names), Silent())
    for split in ("train", "test"):
        run.rank_file(2, split).unlink()
    # 16 images take 192 bytes by pca:3, and 16 in bits of fc6, more in those of pool5.3.
    monkeypatch.setattr("layerprobe.workflow.probe.post_processed_features.process_blocks", None)
    assert probe(run, replace(REQUEST, post=names, memory=15), Silent()) == first


def test_a_chain_is_fitted_once_for_ranks_and_metrics(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[str] = []
    fit = Chain.fit

    def counted(chain: Chain, *given: Any, **more: Any) -> FittedStep:
        fitted.append(chain.text)
        return fit(chain, *given, **more)

    monkeypatch.setattr(Chain, "fit", counted)
    asked = replace(REQUEST, layers=("fc6",), splits=("test",), post=("pca:3", "l2"), metrics=("MAP@R", "NMI"))
    probe(run, asked, Silent())
    assert fitted == ["pca:3", "l2"]


def test_a_layer_too_short_for_a_chain_is_a_note_where_another_can_take_it(run: Run) -> None:
    listener = Silent()
    scores = probe(run, replace(REQUEST, post=("none", "random:9")), listener)
    assert set(r1(scores)) == {"none"}
    assert set(r1(scores, layer="pool5.3")) == {"none", "random:9"}
    said = "random:9 skipped for fc6: random:9: the features have 8 dimensions"
    assert listener.heard.count(said) == 1


def test_a_chain_that_no_layer_can_take_is_refused_before_images_are_run(run: Run) -> None:
    with pytest.raises(RecipeError, match="no layer can take random:900: random:900: the features have"):
        prepare(run, replace(REQUEST, post=("none", "random:900")))


def test_an_equal_dimension_comes_beside_the_post_processings_asked_for(run: Run) -> None:
    listener = Silent()
    scores = probe(run, replace(REQUEST, post=("none", "l2"), equal_dim=9), listener)
    assert set(r1(scores)) == {"none", "l2"}
    assert list(r1(scores, layer="pool5.3")) == ["none", "l2", "l2+pca:9+l2", "l2+whiten:9:0.5+l2", "random:9x5+l2"]
    assert sum("skipped for fc6" in line and "8 dimensions" in line for line in listener.heard) == 3


def test_an_equal_dimension_above_that_of_every_layer_is_refused(run: Run) -> None:
    with pytest.raises(RecipeError, match=r"no layer can take l2\+pca:900\+l2: pca:900: the features have"):
        prepare(run, replace(REQUEST, equal_dim=900))


def test_an_equal_dimension_is_fitted_on_the_gallery_where_that_is_asked_for() -> None:
    found = [chain.text for chain in parse_chains(["none"], "gallery", 4)]
    assert found == ["none", "l2+pca:4+l2@gallery", "l2+whiten:4:0.5+l2@gallery", "random:4x5+l2"]


def test_a_rank_too_low_for_a_chain_is_told_with_all_other_scores(run: Run) -> None:
    # 16 training images: less their mean, of rank 15.
    with pytest.raises(PartlyPostProcessedError, match="no layer can take pca:16: .* rank 15") as error:
        probe(run, replace(REQUEST, layers=("pool5.3",), post=("none", "pca:16")), Silent())
    assert set(r1(error.value.scores, layer="pool5.3")) == {"none"}
    assert {score.ranked.post_processing for score in run.scores()} == {"none"}


def test_without_training_classes_a_chain_is_fitted_on_the_gallery_or_refused(request_for: Requests) -> None:
    asked = request_for("train.epochs=0", "data.train_classes=0")
    bare = train(asked, Silent())
    with pytest.raises(RecipeError, match=r"pca:3 is fitted on training classes.* or add --fit gallery"):
        probe(bare, replace(REQUEST, post=("pca:3",)), Silent())
    assert set(r1(probe(bare, replace(REQUEST, post=("pca:3",), fit="gallery"), Silent()))) == {"pca:3@gallery"}
    fix = "lda:2 is fitted on .* split. Give a train split, or take post-processing without classes"
    with pytest.raises(RecipeError, match=fix):
        probe(bare, replace(REQUEST, post=("pca:3", "lda:2")), Silent())


def test_scores_of_the_classes_that_a_chain_is_fitted_with_say_so(run: Run) -> None:
    scores = probe(run, replace(REQUEST, layers=("fc6",), post=("none", "pca:2", "lda:2")), Silent())
    noted = {(score.ranked.post_processing, score.split) for score in scores if IN_SAMPLE in score.notes}
    assert noted == {("lda:2", "train")}


def test_more_discriminants_than_the_classes_give_are_told_with_all_other_scores(run: Run) -> None:
    # 16 training images of 4 classes leave 3 discriminants
    with pytest.raises(PartlyPostProcessedError, match="no layer can take lda:4: .* fitted on 4 classes") as error:
        probe(run, replace(REQUEST, layers=("fc6",), post=("none", "lda:4")), Silent())
    assert set(r1(error.value.scores)) == {"none"}


def test_a_mean_of_draws_is_that_of_each_query_over_draws_that_are_ranked_each(run: Run) -> None:
    asked = replace(REQUEST, layers=("fc6",), splits=("test",), metrics=("MAP@R", "NMI"))
    single = [probe(run, replace(asked, post=(name,)), Silent()) for name in ("random:2", "random:2:1", "random:2:2")]
    mean = {score.metric: score for score in probe(run, replace(asked, post=("random:2x3",)), Silent())}
    for metric in ("R@1", "MAP@R"):
        values = [score.value for scores in single for score in scores if score.metric == metric]
        assert len(set(values)) > 1
        assert mean[metric].value == pytest.approx(np.mean(np.asarray(values, dtype=float)))
        assert "mean of 3 draws" in mean[metric].notes
    assert mean["NMI"].value is None
    assert mean["NMI"].notes[0] == "left out of a mean of 3 draws: NMI is no mean over the queries"
    stored = store.read_rank_file(run.rank_file(2, "test")).stored.ranks
    assert {ranked.post_processing for ranked in stored} == {"random:2", "random:2:1", "random:2:2"}


def test_the_interval_of_a_mean_of_draws_is_over_the_means_of_the_queries(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []

    def caught(values: Sequence[np.ndarray], units: np.ndarray) -> UnitSums:
        seen.extend(values)
        return unit_sums(values, units)

    monkeypatch.setattr("layerprobe.workflow.probe.scoring.unit_sums", caught)
    probe(run, replace(REQUEST, layers=("fc6",), splits=("test",), post=("random:2x3",)), Silent())
    ranks = store.read_rank_file(run.rank_file(2, "test")).stored.ranks
    np.testing.assert_array_equal(seen, [np.mean([each.hits(1) for each in ranks.values()], axis=0)])


@pytest.fixture
def classified(request_for: Requests) -> Run:
    """A run whose classifier of 4 classes multiplies what its ReLU leaves of the 8 numbers of fc6."""
    return train(request_for("loss.name=softmax", "train.epochs=1"), Silent())


def test_shift_takes_the_classifiers_weights_after_its_relu_at_each_epoch(classified: Run) -> None:
    asked = replace(REQUEST, layers=("fc6",), epochs="all", splits=("test",), similarity="euclidean", post=("shift",))
    scores = probe(classified, asked, Silent())
    found = {}
    for epoch in (0, 1):
        weight = load_file(classified.checkpoint_file(epoch))["loss.classifier.weight"].double().numpy()
        given = store.read_features(classified.feature_file(epoch, "test"), FC6).astype(np.float64).clip(0)
        # Logits less their mean are what no shift of the probabilities changes (Horiguchi et al., equation 4): the
        # distance is that of the nearest features with the same ones.
        centred = weight - weight.mean(0)
        same = given @ np.linalg.pinv(centred) @ centred
        close = -((same[:, None] - same) ** 2).sum(2)
        np.fill_diagonal(close, -np.inf)
        found[epoch] = np.mean(LABELS[close.argmax(1)] == LABELS)
    assert {s.epoch: s.value for s in scores} == found
    assert all(AFTER_RELU in score.notes for score in scores)


def test_shift_is_for_the_layer_that_the_classifier_multiplies(classified: Run) -> None:
    listener = Silent()
    scores = probe(classified, replace(REQUEST, post=("none", "shift")), listener)
    assert {s.ranked.layer.layer for s in scores if s.ranked.post_processing == "shift"} == {"fc6"}
    said = "shift skipped for pool5.3@max: it needs a classifier's weights, which multiply fc6 alone"
    assert listener.heard.count(said) == 1


def test_shift_without_a_classifier_says_why(run: Run) -> None:
    with pytest.raises(RecipeError, match="no layer can take shift: .* smooth_triplet has no classifier"):
        prepare(run, replace(REQUEST, post=("shift",)))
