from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from layerprobe import nearest_neighbours
from layerprobe.measure.distributions import LabelledFeatures
from layerprobe.measure.projections import kept_neighbours, project
from layerprobe.plots.plot import PlotOptions
from layerprobe.store import FeatureHead
from layerprobe.system.errors import DataError, NumericError, RecipeError, UnknownNameError
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.views import Projection
from layerprobe.workflow.plot import maps
from layerprobe.workflow.plot.feature_views import open_stored
from layerprobe.workflow.plot.plot import StoredRuns, draw_plot
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.experiments import scores_of
from layerprobe.workflow.run.opened_run import read_layer
from layerprobe.workflow.run.references import open_ranked_split
from layerprobe.workflow.run.runs import Run
from tests.records import recorded
from tests.workflow.conftest import Silent
from tests.workflow.plot.conftest import Toy


def projections(*runs: Run, **options: object) -> Sequence[Projection]:
    return StoredRuns(runs, scores_of(runs)).projections(PlotOptions(**options))  # type: ignore[arg-type] # by name


def test_the_points_and_their_share_are_of_the_stored_test_features(toy: Toy) -> None:
    run = toy("sm", "loss.variant=SM")
    for projection in projections(run, layers=("c5", "fc6")):
        features = read_layer(run, 2, "test", projection.ranked.layer)
        points, variances = project(features, "pca", "cosine", 0)
        np.testing.assert_array_equal(projection.points, points)
        assert projection.kept == kept_neighbours(features, points, "cosine")[0].mean()
        assert projection.variance == variances.sum()
        assert projection.total == len(features)


def test_few_classes_need_no_outcomes(toy: Toy) -> None:
    (projection,) = projections(toy("sm", "loss.variant=SM"), layers=("fc6",))
    assert projection.right == ()
    assert {image.name for image in projection.images} == {"class-0003", "class-0004", "class-0005"}


def test_of_many_classes_the_nearest_neighbour_is_told(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "CLASSES", 2)
    run = toy("sm", "loss.variant=SM")
    (projection,) = projections(run, layers=("c5",))
    nearest = nearest_neighbours(read_layer(run, 2, "test", projection.ranked.layer), 1).indices[:, 0]
    labels = run.feature_head(2, "test").labels
    assert projection.right == tuple((labels[nearest] == labels).tolist())


def test_classes_are_named_or_matched(toy: Toy) -> None:
    run = toy("sm", "loss.variant=SM")
    for classes, expected in (
        (("class-0004",), {"class-0004"}),
        (("class-*3", "class-0005"), {"class-0003", "class-0005"}),
    ):
        (projection,) = projections(run, layers=("fc6",), classes=classes)
        assert {image.name for image in projection.images} == expected
        labels = run.feature_head(2, "test").labels
        assert projection.total == len(labels) > len(projection.images)
    with pytest.raises(UnknownNameError, match="unknown class 'class-4'. Did you mean 'class-000"):
        projections(run, layers=("fc6",), classes=("class-4",))


def test_images_that_satisfy_a_rule_stand_out(toy: Toy) -> None:
    run = toy("sm", "loss.variant=SM")
    (projection,) = projections(run, layers=("fc6",), where="class class-0004")
    assert projection.marked == tuple(image.name == "class-0004" for image in projection.images)
    assert projection.notes[-1] == "In colour: class class-0004, 6 images"
    for rule in ("worst", "random", "fc6"):
        with pytest.raises(
            RecipeError, match=f"'{rule}' is not a rule. Write 'LAYER right, LAYER wrong' or 'class NAME'.$"
        ):
            projections(run, layers=("fc6",), where=rule)
    with pytest.raises(RecipeError, match="no image drawn at epoch 2: class class-0004. Choose another rule"):
        projections(run, layers=("fc6",), where="class class-0004", classes=("class-0003",))


@pytest.fixture(scope="module")
def searching_for_some(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that searches for 8 of its 18 test images, with a post-processed layer."""
    run = Run(tmp_path_factory.mktemp("drawn") / "drawn")
    shutil.copytree(toy("sm-queries", "loss.variant=SM", "data.queries=8").folder, run.folder)
    request = ProbeRequest(layers=("c5",), ks=(1,), post=("none", "pca:2"), device="cpu", workers=0)
    probe(run, request, Silent())
    return run


@pytest.mark.parametrize("layer", ["c5", "c5/pca:2"])
def test_the_images_are_those_searched_for(
    searching_for_some: Run, monkeypatch: pytest.MonkeyPatch, layer: str
) -> None:
    monkeypatch.setattr(maps, "CLASSES", 1)
    run = searching_for_some
    (projection,) = projections(run, layers=(layer,))
    stored, (labels, ids) = run.ranks(2, "test").stored, run.feature_head(2, "test").rows
    assert tuple(image.id for image in projection.images) == stored.ids
    assert (len(stored.ids), projection.total) == (8, 18)
    features = read_layer(run, 2, "test", projection.ranked.layer)
    if layer == "c5/pca:2":
        search = StoredSearch(run, 2, "test", torch.device("cpu"))
        features = np.asarray(search.features_of("test", projection.ranked).values)
    rows = [ids.index(name) for name in stored.ids]
    np.testing.assert_array_equal(projection.points, project(features[rows], "pca", "cosine", 0)[0])
    nearest = nearest_neighbours(features, 1).indices[rows, 0]  # among all images
    assert projection.right == tuple((labels[nearest] == labels[rows]).tolist())
    (projection,) = projections(run, layers=(layer,), where=f"{layer} wrong")
    assert projection.marked == tuple(not right for right in projection.right)


def test_of_the_classes_those_searched_for_can_be_named(searching_for_some: Run) -> None:
    (projection,) = projections(searching_for_some, layers=("c5",), classes=("class-0004",), where="class class-0004")
    names = searching_for_some.feature_head(2, "test").class_names
    labels = searching_for_some.ranks(2, "test").stored.labels
    assert len(projection.images) == [names[label] for label in labels.tolist()].count("class-0004") > 0
    assert all(projection.marked)


def test_ranks_of_other_images_are_refused_with_what_helps(
    searching_for_some: Run, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = toy("sm", "loss.variant=SM")
    with pytest.raises(DataError, match="not search for all images drawn. Compare runs with the same queries"):
        projections(whole, searching_for_some, layers=("c5",), where="c5 right")
    assert len(projections(searching_for_some, whole, layers=("c5",), where="class class-0004")) == 2
    ranked_split = open_ranked_split(whole, 2, "test")
    renamed = replace(ranked_split, stored=replace(ranked_split.stored, ids=("renamed", *ranked_split.stored.ids[1:])))
    monkeypatch.setattr(maps, "open_ranked_split", lambda *_: renamed)
    with pytest.raises(DataError, match="its ranks are of other images than its features. Run layerprobe probe sm"):
        projections(whole, layers=("c5",), where="c5 right")


def head_of(counts: Sequence[int]) -> FeatureHead:
    """A split with so many images of each class, in turns."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts)).astype(np.int32)
    return FeatureHead((labels, tuple(map(str, range(len(labels))))), {}, {})


def test_of_too_many_images_whole_classes_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "MOST", 20)
    head = head_of([7] * 9)
    drawn = maps._choose_images(head, None, None, 3)
    kept = head.labels[drawn.rows]
    assert sorted(np.bincount(kept)[np.unique(kept)].tolist()) == [7, 7]
    assert drawn.notes == ("14 of 63 images: whole classes drawn by seed 3",)
    assert [image.id for image in drawn.images] == [str(row) for row in sorted(drawn.rows.tolist())]
    assert np.array_equal(drawn.rows, maps._choose_images(head, None, None, 3).rows)


def test_of_classes_that_are_each_too_large_images_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "MOST", 20)
    drawn = maps._choose_images(head_of([30, 40]), None, None, 3)
    assert len(set(drawn.rows.tolist())) == 20
    assert drawn.notes == ("20 of 70 images: images drawn by seed 3",)


@pytest.mark.parametrize(
    ("counts", "count", "sample"),
    [
        ([10, 10], 20, "all"),
        ([30] * 9 + [4], 20, "images"),  # one class fits
        ([30] * 9 + [4, 4], 20, "images"),  # two fit, and fill 8 of 20
        ([30] * 9 + [5, 5], 10, "whole classes"),
        ([7] * 9, 14, "whole classes"),
    ],
)
def test_whole_classes_are_two_and_fill_half(counts: Sequence[int], count: int, sample: str) -> None:
    labels = head_of(counts).labels
    rows, drawn = maps.sample_classes(labels, 20, 3)
    assert (len(rows), drawn) == (count, sample)
    assert rows.tolist() == sorted(set(rows.tolist()))


def test_a_layer_that_is_not_finite_is_left_out_with_a_line(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    run = toy("sm", "loss.variant=SM")

    def damaged(*arguments: object) -> object:
        scores, read = open_stored(*arguments)  # type: ignore[arg-type] # as given

        def read_damaged(split: str, ranked: RankedLayer) -> LabelledFeatures:
            features = read(split, ranked)
            bad = np.where(ranked.layer.layer == "c5", np.nan, features.features)
            return replace(features, features=bad)

        return scores, read_damaged

    monkeypatch.setattr(maps, "open_stored", damaged)
    (projection,) = projections(run, layers=("c5", "fc6"))
    assert projection.ranked.layer == LayerKey("fc6", "none")
    assert projection.notes[-1] == "sm: c5@max at epoch 2 is not drawn: NaN or Inf in its features"
    with pytest.raises(NumericError, match="sm: c5@max at epoch 2 is not drawn: NaN or Inf in its features"):
        projections(run, layers=("c5",))


def test_runs_of_the_same_images_stand_side_by_side(toy: Toy, tmp_path: Path) -> None:
    run = toy("sm", "loss.variant=SM")
    other = Run(tmp_path / "other")
    shutil.copytree(run.folder, other.folder)
    pairs = [(x.run, str(x.ranked)) for x in projections(run, other, layers=("fc6",))]
    assert len(pairs) == 2
    record = {**other.read().__dict__}
    other.write(recorded(record | {"contents": {**record["contents"], "test": "f" * 64}}))
    with pytest.raises(DataError, match="have different test images. Compare runs on the same images"):
        projections(run, other, layers=("fc6",))


def test_an_axis_of_dims_is_none_of_a_map(toy: Toy) -> None:
    with pytest.raises(UnknownNameError, match="unknown projection 'bytes'"):
        draw_plot("map", [toy("sm", "loss.variant=SM")], PlotOptions(by="bytes"))
    with pytest.raises(RecipeError, match="plot dims has no --by tsne. Write --by bytes"):
        draw_plot("dims", [toy("sm", "loss.variant=SM")], PlotOptions(by="tsne"))


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_a_map_of_a_run_is_drawn(toy: Toy, method: str) -> None:
    draw_plot("map", [toy("sm", "loss.variant=SM")], PlotOptions(by=method)).figure.draw_without_rendering()
