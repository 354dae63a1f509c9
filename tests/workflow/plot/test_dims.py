from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerprobe import store
from layerprobe.plots.plot import PlotOptions
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score
from layerprobe.values.views import PostProcessings
from layerprobe.workflow.plot.dims import (
    at_equal_dimensions,
    best_of_each_size,
    best_of_sizes,
    post_processings_of,
    stored_post_processings,
)
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.summary.summary import stored_summary
from tests.records import recorded
from tests.workflow.rank_files import FC6, POOL5, RECORD, first_hit, stored, written

PCA, WHITE, SHIFT = "l2+pca:8+l2", "l2+whiten:8:0.5+l2", "shift"
RANDOM = "random:8x2+l2"


def score(layer: RankedLayer, post_processing: str, value: float, split: str = "test", epoch: int = 5) -> Score:
    ranked = replace(layer, post_processing=post_processing, similarity="cosine")
    return Score("one", "abc", 0, epoch, split, ranked, "R@1", value, None, 24)


def chosen(found: PostProcessings) -> dict[str, str]:
    return {
        sized.score.ranked.layer.layer: sized.score.ranked.post_processing for sized in found.values if sized.chosen
    }


def test_the_last_epoch_at_an_equal_dimension_is_shown() -> None:
    scores = [score(FC6, "none", 0.5, epoch=9), score(FC6, "l2", 0.5, epoch=9)]
    scores += [score(FC6, name, 0.5, epoch=epoch) for epoch in (3, 5) for name in ("none", PCA)]
    assert {s.epoch for s in at_equal_dimensions(scores)} == {5}
    assert {s.epoch for s in at_equal_dimensions(scores, 3)} == {3}
    assert at_equal_dimensions(scores, 9) == []


def test_each_value_has_its_dimensions() -> None:
    scores = [score(FC6, name, 0.5) for name in ("none", PCA, RANDOM, "l2+pca:8+binary")]
    found = post_processings_of(scores, {FC6.layer: 512}, None)
    assert [(s.score.ranked.post_processing, s.dim, s.equal) for s in found.values] == [
        ("none", 512, False), (PCA, 8, True), (RANDOM, 8, True), ("l2+pca:8+binary", 8, True),
    ]  # fmt: skip
    assert post_processings_of(scores, {}, None).values[0].dim is None


def test_the_best_post_processing_is_chosen_on_validation_and_draws_take_no_part() -> None:
    values = {"none": (0.6, 0.9), PCA: (0.7, 0.2), WHITE: (0.7, 0.5), RANDOM: (0.99, 0.5)}
    scores = [
        score(FC6, name, test, split)
        for name, two in values.items()
        for split, test in zip(("validation", "test"), two, strict=True)
    ]
    scores += [score(POOL5, "none", 0.5, split) for split in ("validation", "test")]
    found = post_processings_of(scores, {}, "validation")
    # of equals the first, and of a layer without post-processing none
    assert chosen(found) == {"fc6": PCA}
    assert found.chosen_on == "validation"
    assert chosen(post_processings_of(scores, {}, None, "why")) == {}
    assert post_processings_of(scores, {}, None, "why").notes == ("why",)


def test_the_best_post_processing_is_shown_whatever_it_leaves() -> None:
    scores = [
        score(FC6, name, value, split)
        for name, value in (("none", 0.5), (PCA, 0.4), ("l2", 0.3), (SHIFT, 0.6))
        for split in ("validation", "test")
    ]
    found = post_processings_of(scores, {FC6.layer: 512}, "validation")
    assert [(s.score.ranked.post_processing, s.dim) for s in found.values] == [("none", 512), (PCA, 8), (SHIFT, 512)]


def probed(folder: Path, splits: Mapping[str, Mapping[RankedLayer, int]], **record: object) -> Run:
    """A run whose layers hit so many queries."""
    run = Run(folder / "one")
    labels = np.repeat(np.arange(12), 2)
    scores = [
        stored(run, 5, split, {ranked: first_hit(hits) for ranked, hits in layers.items()}, labels=labels)
        for split, layers in splits.items()
    ]
    written(run, *scores, **record)
    return run


def post_processed(layer: RankedLayer, post_processing: str) -> RankedLayer:
    return replace(layer, post_processing=post_processing)


def test_what_is_chosen_is_what_summary_chooses(tmp_path: Path) -> None:
    hits = {FC6: 5, post_processed(FC6, PCA): 7, post_processed(FC6, WHITE): 6, POOL5: 9, post_processed(POOL5, PCA): 8}
    test = {ranked: 12 - count for ranked, count in hits.items()}
    run = probed(tmp_path, {"validation": hits, "test": test}, manifests={"validation": "v", "test": "t"})
    (found,) = stored_post_processings([run], run.scores(), PlotOptions(), {})
    summary = stored_summary(run).processed
    assert summary is not None
    assert chosen(found) == {layer.ranked.layer.layer: layer.ranked.post_processing for layer in summary.layers}
    assert chosen(found) == {"fc6": PCA, "pool5": "none"}


def test_without_other_classes_than_those_of_test_none_is_chosen(tmp_path: Path) -> None:
    run = probed(tmp_path, {"test": {FC6: 5, post_processed(FC6, PCA): 7}}, manifests={"test": "t"})
    (found,) = stored_post_processings([run], run.scores(), PlotOptions(), {})
    assert (chosen(found), found.chosen_on) == ({}, None)
    assert found.notes == (
        f"no best post-processing: only test is left to choose it on; {run.command('summary')} says more",
    )


def test_a_split_without_post_processings_has_the_command(tmp_path: Path) -> None:
    splits = {"validation": {FC6: 5}, "test": {FC6: 5, post_processed(FC6, PCA): 7}}
    run = probed(tmp_path, splits, manifests={"validation": "v", "test": "t"})
    (found,) = stored_post_processings([run], run.scores(), PlotOptions(), {})
    assert f"{run.command('probe', '--splits', 'validation')} with the same --post does it" in found.notes[0]


def test_without_post_processing_the_command_names_a_dimension_that_every_layer_has(tmp_path: Path) -> None:
    run = probed(tmp_path, {"test": {FC6: 5, POOL5: 3}})
    key, rows = store.FeatureKey("one", 5, "test", "", "", ""), store.Rows(np.arange(4), list("abcd"))
    dims = {FC6.layer: 512, POOL5.layer: 64}
    batch = {layer: np.zeros((4, dim), np.float32) for layer, dim in dims.items()}
    store.write_features(run.feature_file(5, "test"), key, rows, store.Columns(dims, "cpu", 4), [batch])
    with pytest.raises(DataError, match="no layer of epoch 5 .* Run layerprobe probe one --epochs 5 --equal-dim 64"):
        stored_post_processings([run], run.scores(), PlotOptions(), {})
    run.write(recorded(RECORD | {"from_python": True}))
    with pytest.raises(DataError, match=r'Probe with post=\("none", "l2\+pca:64\+l2"\)'):
        stored_post_processings([run], run.scores(), PlotOptions(), {})


def layers_of(found: PostProcessings) -> list[str]:
    return list(dict.fromkeys(sized.score.ranked.layer.layer for sized in found.values))


def many(dims: tuple[int, ...], *raw: str) -> list[Score]:
    """Seven layers at some dimensions, and others only as they are."""
    layers = [RankedLayer(LayerKey(name, "max"), "none", "cosine") for name in (*(f"conv{i}" for i in range(7)), *raw)]
    scores = [score(layer, "none", 0.5) for layer in layers]
    return scores + [score(layer, f"l2+pca:{dim}+l2", 0.4) for dim in dims for layer in layers[:7]]


def test_the_layers_at_an_equal_dimension_are_shown_and_few_of_them_over_several(tmp_path: Path) -> None:
    run = probed(tmp_path, {"test": {FC6: 5}})

    def shown(scores: list[Score], *names: str) -> list[str]:
        return layers_of(stored_post_processings([run], scores, PlotOptions(names or None), {})[0])

    assert shown(many((8, 16), "raw")) == [f"conv{i}" for i in range(7)]
    assert shown(many((8, 16, 32), "raw")) == ["conv0", "conv3", "conv5", "conv6"]
    assert shown(many((8, 16, 32), "raw"), "conv1", "raw") == ["conv1", "raw"]


def test_a_layer_that_is_asked_for_brings_its_post_processings_and_post_processing_only_itself(tmp_path: Path) -> None:
    run = probed(tmp_path, {"test": {FC6: 5}})
    (whole,) = stored_post_processings([run], many((8, 16)), PlotOptions(("conv1",)), {})
    assert [s.score.ranked.post_processing for s in whole.values] == ["none", "l2+pca:8+l2", "l2+pca:16+l2"]
    (part,) = stored_post_processings([run], many((8, 16)), PlotOptions(("conv1/l2+pca:8+l2",)), {})
    assert [s.score.ranked.post_processing for s in part.values] == ["l2+pca:8+l2"]


def test_layers_that_are_at_no_equal_dimension_cannot_be_drawn_alone(tmp_path: Path) -> None:
    run = probed(tmp_path, {"test": {FC6: 5}})
    with pytest.raises(
        RecipeError, match="--layers raw: not measured at an equal dimension. Choose among conv0, conv1,"
    ):
        stored_post_processings([run], many((8,), "raw"), PlotOptions(("raw",)), {})


def test_trainings_of_one_experiment_are_one(tmp_path: Path) -> None:
    runs = [
        probed(tmp_path / name, {"test": {FC6: hits, post_processed(FC6, PCA): hits}})
        for name, hits in (("a", 4), ("b", 6))
    ]
    scores = [replace(s, run=f"net{i}", seed=i) for i, run in enumerate(runs) for s in run.scores()]
    for i, run in enumerate(runs):
        run.folder.rename(tmp_path / f"net{i}")
    (found,) = stored_post_processings([Run(tmp_path / f"net{i}") for i in range(2)], scores, PlotOptions(), {})
    assert found.run == "net* (2 seeds)"
    assert [s.score.value for s in found.values] == pytest.approx([5 / 24, 5 / 24])


def sizes(found: PostProcessings) -> list[tuple[str, int | None, str, float | None]]:
    return [(x.number, x.size, str(x.score.ranked), x.score.value) for x in found.values]


def test_the_best_of_each_size_is_chosen_on_validation_and_shown_on_test() -> None:
    # post-processing: recall on validation and on test; fc6 has 64 numbers
    values = {
        "none": (0.6, 0.7), PCA: (0.5, 0.4), WHITE: (0.4, 0.9), "l2+pca:16": (0.45, 0.95), "l2+pca:32": (0.55, 0.3),
        "l2+float16": (0.6, 0.6), "int8": (0.65, 0.6), "l2+pca:8+binary": (0.2, 0.1), "l2+pca:9+binary": (0.1, 0.8),
        RANDOM: (0.99, 0.99),
    }  # fmt: skip
    scores = [
        score(FC6, name, value, split)
        for name, two in values.items()
        for split, value in zip(("validation", "test"), two, strict=True)
    ]
    found = best_of_each_size(scores, {FC6.layer: 64}, "validation")
    # of 32 bytes PCA; what is larger and not better on validation is no step: 16 numbers, 9 bits in 2 bytes
    assert sizes(found) == [
        ("float32", 32, f"fc6/{PCA}", 0.4), ("float32", 128, "fc6/l2+pca:32", 0.3), ("float32", 256, "fc6", 0.7),
        ("float16", 128, "fc6/l2+float16", 0.6), ("int8", 64, "fc6/int8", 0.6), ("bit", 1, "fc6/l2+pca:8+binary", 0.1),
    ]  # fmt: skip
    assert (found.split, found.chosen_on) == ("test", "validation")
    assert sizes(best_of_each_size(scores, {FC6.layer: 64}, None))[:2] == [
        ("float32", 32, f"fc6/{WHITE}", 0.9), ("float32", 64, "fc6/l2+pca:16", 0.95),
    ]  # fmt: skip


def test_candidates_without_a_known_size_or_a_value_take_no_part() -> None:
    scores = [score(FC6, "none", 0.9), score(FC6, PCA, 0.5), replace(score(FC6, "l2+pca:4", 0.5), value=None)]
    assert sizes(best_of_each_size(scores, {}, None)) == [("float32", 32, f"fc6/{PCA}", 0.5)]


def test_of_equals_the_smaller_and_then_the_earlier_is_the_best() -> None:
    scores = [score(layer, PCA, 0.5) for layer in (POOL5, FC6)] + [score(FC6, "l2+pca:9", 0.5)]
    assert sizes(best_of_each_size(scores, {}, None)) == [("float32", 32, f"pool5@max/{PCA}", 0.5)]


def test_what_only_test_can_choose_is_called_the_best_on_test(tmp_path: Path) -> None:
    run = probed(tmp_path, {"test": {FC6: 5, post_processed(FC6, PCA): 7}}, manifests={"test": "t"})
    (found,) = best_of_sizes([run], run.scores(), PlotOptions(by="bytes"))
    assert sizes(found) == [("float32", 32, f"fc6/{PCA}", 7 / 24)]
    assert found.chosen_on is None
    assert found.notes == (
        "the best on test, chosen by looking at it: only test is left to choose it on;"
        f" {run.command('summary')} says more",
    )


def test_by_bytes_the_best_are_chosen_on_validation(tmp_path: Path) -> None:
    hits = {post_processed(FC6, PCA): 7, post_processed(FC6, WHITE): 6}
    test = {post_processed(FC6, PCA): 3, post_processed(FC6, WHITE): 9}
    run = probed(tmp_path, {"validation": hits, "test": test}, manifests={"validation": "v", "test": "t"})
    (found,) = best_of_sizes([run], run.scores(), PlotOptions(by="bytes"))
    assert (sizes(found), found.chosen_on, found.notes) == (
        [("float32", 32, f"fc6/{PCA}", 3 / 24)], "validation", (),
    )  # fmt: skip
    (found,) = best_of_sizes([run], run.scores(), PlotOptions((f"fc6/{WHITE}",), by="bytes"))
    assert sizes(found) == [("float32", 32, f"fc6/{WHITE}", 9 / 24)]


def test_layers_of_no_known_size_have_the_command(tmp_path: Path) -> None:
    run = probed(tmp_path, {"test": {FC6: 5}})
    with pytest.raises(
        DataError, match="no layer of epoch 5 is measured with a size that is known. Run layerprobe probe"
    ):
        best_of_sizes([run], run.scores(), PlotOptions(by="bytes"))


def test_another_axis_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown --by 'bits'. Did you mean 'bytes'"):
        PlotOptions(by="bits")


def test_what_is_fitted_with_the_classes_of_train_has_no_ring_for_them() -> None:
    def rings(split: str, *post_processings: str) -> dict[str, str]:
        values = {"none": 0.5, PCA: 0.6, "lda:8": 0.9}
        scores = [score(FC6, name, values[name], on) for name in post_processings for on in {split, "test"}]
        return chosen(post_processings_of(scores, {}, split))

    assert rings("train", "none", PCA, "lda:8") == {"fc6": PCA}
    assert rings("validation", "none", PCA, "lda:8") == {"fc6": "lda:8"}
    assert rings("train", "none", "lda:8") == {}
