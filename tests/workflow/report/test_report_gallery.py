"""A report's galleries: the queries that are shown, and what every layer finds for them at every epoch."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from layerprobe import store
from layerprobe.measure.projections import kept_neighbours, project
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.report.values import Gallery, RunPage
from layerprobe.values.facts import DataFacts
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.report.report_gallery import galleries_of
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.data import fabricated
from tests.records import recorded, rewrite
from tests.scores import with_layer
from tests.workflow.conftest import RECIPES, Silent

FC6 = RankedLayer(LayerKey("fc6", "none"), "none", "cosine")
C3 = RankedLayer(LayerKey("c3", "max"), "none", "cosine")
BINARY = replace(FC6, post_processing="binary", similarity="hamming")
POST_PROCESSED = replace(FC6, post_processing="l2+pca:3+l2")
LAYERS = (C3, FC6, BINARY, POST_PROCESSED)
SETTINGS = ("data.image_size=28", "net.name=lenet", "net.fc=[8]", "train.epochs=1", "train.batch_size=6",
            "train.images_per_class=2")  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two epochs, on 32 images of 8 classes, of which half are searched."""
    folder = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(0)
    for label in range(8):
        (folder / f"images/class{label}").mkdir(parents=True)
        for i in range(4):
            pixels = rng.integers(0, 256, 3) // 2 + rng.integers(0, 128, (20, 20, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"images/class{label}/{i}.png")
    recipe = load_recipe(str(RECIPES / "netA.toml"), Overrides(f"folder:{folder / 'images'}", SETTINGS))
    run = train(TrainRequest(recipe, True, folder / "cache", "one", "cpu", 0), Silent())
    post = ("none", "binary", "l2+pca:3+l2")
    probe(run, ProbeRequest(layers=("c3", "fc6"), splits=("train", "test"), ks=(1,), post=post), Silent())
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Run:
    """A copy of it, to be changed."""
    shutil.copytree(made / "cache/one", tmp_path / "one")
    return Run(tmp_path / "one")


def page_of(run: Run) -> RunPage:
    return RunPage(run.name, DataFacts("images", {}), LAYERS, (0, 1), 1, tuple(run.scores()), ())


def gallery_of(run: Run) -> Gallery:
    (gallery,) = galleries_of([(run, page_of(run))]).galleries
    return gallery


def nearest(vectors: NDArray[np.float32], row: int) -> list[int]:
    """The five nearest by the cosine, without the query."""
    wide = vectors.astype(np.float64)
    similar = wide @ wide[row] / np.linalg.norm(wide, axis=1)
    similar[row] = -np.inf
    rows: list[int] = np.argsort(-similar, kind="stable")[:5].tolist()
    return rows


def test_every_layer_shows_the_nearest_images_of_every_epoch(run: Run) -> None:
    gallery = gallery_of(run)
    assert (gallery.epochs, gallery.found.shape[2:]) == ((0, 1), (len(gallery.queries), 5))
    for i, epoch in enumerate(gallery.epochs):
        path = run.feature_file(epoch, "test")
        ids = list(store.read_feature_head(path).rows[1])
        for j, ranked in enumerate((C3, FC6)):
            vectors = store.read_features(path, ranked.layer)
            for q, query in enumerate(gallery.queries):
                found = [gallery.items[item] for item in gallery.found[i, j, q]]
                own = gallery.items[query.item]
                assert [item.id for item in found] == [ids[row] for row in nearest(vectors, ids.index(own.id))]
                assert gallery.right[i, j, q].tolist() == [item.name == own.name for item in found]


def test_a_layer_is_shown_in_bits_but_not_by_what_would_be_fitted_anew(run: Run) -> None:
    gallery = gallery_of(run)
    assert gallery.layers == (C3, FC6, BINARY)
    assert (
        "Layers with a fitted or drawn post-processing are not shown: 1. layerprobe plot panels shows them"
        in gallery.notes
    )


@pytest.mark.parametrize(
    ("rows", "epochs"),
    [(96, (0, 1)), (95, (1,)), (0, (1,))],  # 2 epochs of 3 layers of 16 images are 96 rows
)
def test_epochs_are_left_out_where_too_many_images_are_searched(
    run: Run, monkeypatch: pytest.MonkeyPatch, rows: int, epochs: tuple[int, ...]
) -> None:
    monkeypatch.setattr("layerprobe.workflow.report.report_gallery.SEARCHED", rows)
    gallery = gallery_of(run)
    assert gallery.epochs == epochs
    assert ("1 of 2 epochs are here: 16 images are searched at each" in gallery.notes) == (len(epochs) == 1)


def test_queries_fulfil_the_rules_that_they_are_shown_for(run: Run) -> None:
    gallery = gallery_of(run)
    stored = store.read_rank_file(run.rank_file(1, "test")).stored
    right = {layer: stored.ranks[layer].closer == 0 for layer in (C3, FC6)}
    assert not any(stored.ranks[layer].tied_negatives.any() for layer in (C3, FC6))
    shown: dict[str, set[str]] = {}
    for query in gallery.queries:
        for rule in query.rules:
            shown.setdefault(rule, set()).add(gallery.items[query.item].id)
    for one, other, rule in [(C3, FC6, "c3@max right, fc6 wrong"), (FC6, C3, "fc6 right, c3@max wrong")]:
        # of the 16 images at most 12 are shown by a rule
        assert shown.get(rule, set()) == {
            name for name, yes, no in zip(stored.ids, right[one], right[other], strict=True) if yes and not no
        }
    assert len(shown["random"]) == len(shown["worst by fc6"]) == 12
    farthest = stored.ids[int(stored.ranks[FC6].closer.argmax())]
    assert farthest in shown["worst by fc6"]
    assert "Queries: random, 12 of 16 at random by seed 0, at epoch 1" in gallery.notes


def test_the_layer_before_the_embedding_is_the_one_that_the_page_shows_first(run: Run) -> None:
    # binary codes of c3 stand in for another pool of the layer, which the page does not show first
    scores = [
        with_layer(score, layer="c3", pool="max") if score.ranked.post_processing == "binary" else score
        for score in run.scores()
    ]
    codes = replace(BINARY, layer=C3.layer)
    page = replace(page_of(run), layers=(C3, codes, FC6), few=(0, 2), embedding=2, scores=tuple(scores))
    (gallery,) = galleries_of([(run, page)]).galleries
    assert [note.split(", ")[0] for note in gallery.notes[:2]] == ["Queries: c3@max right", "Queries: fc6 right"]


def test_runs_on_the_same_images_show_the_same_queries_and_share_pictures(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "two")
    two = Run(tmp_path / "two")
    found = galleries_of([(run, page_of(run)), (two, page_of(two))])
    first, second = found.galleries
    assert (first.run, second.run) == ("one", "two")
    asked = [[gallery.items[query.item].id for query in gallery.queries] for gallery in found.galleries]
    assert asked[0] == asked[1]
    assert len(found.pictures) == 16  # every image is found by something, and all of them differ
    rules = {rule for query in first.queries for rule in query.rules}
    assert {"worst by fc6 (one)", "worst by fc6 (two)", "random"} <= rules


def test_runs_on_other_images_of_the_same_names_share_nothing(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "two")
    two = Run(tmp_path / "two")
    two.write(recorded(two.read().as_json() | {"contents": {"test": "of other images"}}))
    found = galleries_of([(run, page_of(run)), (two, page_of(two))])
    rules = [{rule for query in each.queries for rule in query.rules} for each in found.galleries]
    assert all({"worst by fc6", "random"} <= each for each in rules)


def test_a_run_without_its_images_says_why_it_has_no_gallery(made: Path, run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "gone")
    gone = Run(tmp_path / "gone")
    recipe = gone.read().recipe
    rewrite(gone, recipe={**recipe, "data": {**recipe["data"], "root": str(tmp_path / "nowhere")}})
    found = galleries_of([(gone, page_of(gone)), (run, page_of(run))])
    assert [gallery.run for gallery in found.galleries] == ["one"]
    assert [note.split(" are shown: ")[0] for note in found.notes] == ["no images of gone"]
    assert "nowhere" in found.notes[0]


def test_a_run_whose_queries_are_drawn_since_its_probe_says_so(run: Run) -> None:
    recipe = run.read().recipe
    rewrite(run, recipe={**recipe, "data": {**recipe["data"], "queries": 6}})
    (note,) = galleries_of([(run, page_of(run))]).notes
    assert "its ranks are of other queries than those of test now. Run layerprobe probe one" in note


def test_a_run_without_features_of_test_images_says_which_command_makes_them(run: Run) -> None:
    shutil.rmtree(run.folder / "features")
    found = galleries_of([(run, page_of(run))])
    assert found.galleries == ()
    assert "Run layerprobe probe one --splits test --cache" in found.notes[0]


def test_a_damaged_rank_file_leaves_out_one_gallery_alone(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "bad")
    bad = Run(tmp_path / "bad")
    bad.rank_file(1, "test").write_bytes(b"no ranks")
    found = galleries_of([(bad, page_of(run)), (run, page_of(run))])
    assert len(found.galleries) == len(found.notes) == 1
    assert "truncated or damaged" in found.notes[0]


def test_a_layer_finds_nothing_where_its_features_are_not_stored(run: Run) -> None:
    with h5py.File(run.feature_file(0, "test"), "a") as file:
        del file["features/c3@max"]
    gallery = gallery_of(run)
    assert (gallery.found[0, 0] == -1).all()
    assert not gallery.right[0, 0].any()
    assert (gallery.found[1:] >= 0).all()
    assert (gallery.found[0, 1:] >= 0).all()
    assert gallery.notes[-1] == "c3@max has no features that can be searched at epoch 0"


def test_the_notes_name_the_weights_of_one_file_instead_of_an_epoch(run: Run) -> None:
    with h5py.File(run.feature_file(0, "test"), "a") as file:
        del file["features/c3@max"]
    page = replace(page_of(run), data=DataFacts("images", {}, weights="weights of own.pth"))
    (gallery,) = galleries_of([(run, page)]).galleries
    assert gallery.notes[-1] == "c3@max has no features that can be searched with weights of own.pth"
    assert any(note.endswith(", with weights of own.pth") for note in gallery.notes[:-1])
    assert not any("at epoch" in note for note in gallery.notes)


def test_an_image_that_is_damaged_has_no_picture(run: Run, tmp_path: Path, made: Path) -> None:
    shutil.copytree(made / "images", tmp_path / "images")
    recipe = run.read().recipe
    rewrite(run, recipe={**recipe, "data": {**recipe["data"], "root": str(tmp_path / "images")}})
    damaged = gallery_of(run).items[0].id
    path = tmp_path / "images" / damaged
    path.write_bytes(bytes(path.stat().st_size))
    gallery = gallery_of(run)
    shown = {item.id: picture for item, picture in zip(gallery.items, gallery.pictures, strict=True)}
    assert [name for name, picture in shown.items() if picture < 0] == [damaged]


def test_queries_and_what_is_searched_may_be_different_images(tmp_path: Path) -> None:
    fabricated.market(tmp_path / "market")
    settings = (*SETTINGS[:3], "train.epochs=0", *SETTINGS[4:], "data.allow_partial=true")
    recipe = load_recipe(str(RECIPES / "netA.toml"), Overrides(f"market1501:{tmp_path / 'market'}", settings))
    run = train(TrainRequest(recipe, True, tmp_path / "cache", "one", "cpu", 0), Silent())
    probe(run, ProbeRequest(layers=("fc6",), splits=("test",), ks=(1,)), Silent())
    page = replace(page_of(run), layers=(FC6,), embedding=0)
    (gallery,) = galleries_of([(run, page)]).galleries
    asked = {gallery.items[query.item].id for query in gallery.queries}
    found = {gallery.items[item].id for item in np.unique(gallery.found) if item >= 0}
    assert asked == set(store.read_feature_head(run.feature_file(0, "test")).rows[1])
    assert found
    assert found <= set(store.read_feature_head(run.feature_file(0, "gallery")).rows[1])


def test_the_map_has_the_projections_of_every_epoch_and_layer(run: Run) -> None:
    gallery = gallery_of(run)
    assert gallery.map is not None
    assert (gallery.map.drawn, gallery.map.total, gallery.map.sample) == (16, 16, "all")
    assert "Queries: on the map, all 16" in gallery.notes
    on_map = [q for q, query in enumerate(gallery.queries) if "on the map" in query.rules]
    asked = [gallery.items[gallery.queries[q].item].id for q in on_map]
    for i, epoch in enumerate(gallery.epochs):
        path = run.feature_file(epoch, "test")
        ids = list(store.read_feature_head(path).rows[1])
        for j, ranked in enumerate((C3, FC6)):
            features = store.read_features(path, ranked.layer)[[ids.index(name) for name in asked]]
            points = project(features, "pca", "cosine", 0)[0]
            np.testing.assert_array_equal(gallery.map.points[i, j, on_map], points)
            assert gallery.map.kept[i, j] == kept_neighbours(features, points, "cosine")[0].mean()
    assert np.isnan(gallery.map.points[:, 2]).all()  # bits have none


def test_whole_classes_are_on_the_map(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerprobe.workflow.report.report_gallery.MAPPED", 10)
    gallery = gallery_of(run)
    classes = [gallery.items[query.item].name for query in gallery.queries if "on the map" in query.rules]
    assert sorted(map(classes.count, set(classes))) == [4, 4]
    assert gallery.map is not None
    assert gallery.map.sample == "whole classes"
    assert "Queries: on the map, 8 of 16, whole classes drawn by seed 0" in gallery.notes
