from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from layerprobe import store
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.system.errors import DataError, UnknownNameError
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.workflow.plot.neighbours import neighbours_of, open_gallery
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.data import fabricated
from tests.records import recorded
from tests.workflow.conftest import RECIPES, Silent
from tests.workflow.rank_files import RECORD

FC6 = RankedLayer(LayerKey("fc6", "none"), "none", "cosine")
C3 = RankedLayer(LayerKey("c3", "max"), "none", "cosine")
BINARY = replace(FC6, post_processing="binary", similarity="hamming")
POST_PROCESSED = replace(FC6, post_processing="l2+pca:3+l2")
ROWS = [5, 0, 9]


def made(
    data: str,
    tmp_path: Path,
    *,
    layers: tuple[str, ...],
    post: tuple[str, ...] = ("none",),
    name: str = "tiny",
    settings: tuple[str, ...] = (),
) -> Run:
    """A small network that was never trained, probed."""
    small = ("data.image_size=28", "net.name=lenet", "net.fc=[8]", "train.epochs=0", "train.batch_size=6",
                "train.images_per_class=2")  # fmt: skip
    partial = ("data.allow_partial=true",) if data.startswith("market") else ()
    recipe = load_recipe(str(RECIPES / "netA.toml"), Overrides(data, (*small, *partial, *settings)))
    run = train(TrainRequest(recipe, True, tmp_path / "cache", name, "cpu", 0), Silent())
    probe(run, ProbeRequest(layers=layers, ks=(1,), post=post), Silent())
    return run


@pytest.fixture
def probed(images: Path, tmp_path: Path) -> Run:
    post = ("none", "binary", "l2+pca:3+l2")
    return made(f"folder:{images}", tmp_path, layers=("c3", "fc6"), post=post)


def unit(values: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = values.astype(np.float64)
    made: NDArray[np.float64] = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return made


def test_neighbours_are_those_of_brute_force_without_the_query_itself(probed: Run) -> None:
    opened = open_gallery(probed, "test")
    found = neighbours_of(opened, 0, [C3, FC6], ROWS, 4)
    for place, ranked in enumerate((C3, FC6)):
        vectors = unit(store.read_features(probed.feature_file(0, "test"), ranked.layer))
        for query, row in enumerate(ROWS):
            similar = vectors @ vectors[row]
            similar[row] = -np.inf
            nearest = np.argsort(-similar, kind="stable")[:4]
            assert found.rows[place, query].tolist() == nearest.tolist()
            assert found.similarities[place, query] == pytest.approx(similar[nearest], abs=1e-12)
            # four images of each class, one class after the other
            assert found.right[place, query].tolist() == [item // 4 == row // 4 for item in nearest]


def test_post_processing_finds_what_the_stored_ranks_count(probed: Run) -> None:
    opened = open_gallery(probed, "test")
    ranks = store.read_rank_file(probed.rank_file(0, "test")).stored.ranks[POST_PROCESSED]
    found = neighbours_of(opened, 0, [POST_PROCESSED], range(16), 1)
    assert not ranks.tied_negatives.any()
    assert found.right[0, :, 0].tolist() == (ranks.closer == 0).tolist()


def test_codes_are_compared_by_the_bits_that_differ(probed: Run) -> None:
    found = neighbours_of(open_gallery(probed, "test"), 0, [BINARY], ROWS, 99)
    bits = store.read_features(probed.feature_file(0, "test"), FC6.layer) > 0
    unlike = (bits[ROWS][:, None] != bits[None]).sum(2)
    # 16 images are searched, each without itself
    assert found.rows.shape == (1, 3, 15)
    assert (-found.similarities[0]).tolist() == np.take_along_axis(unlike, found.rows[0], 1).tolist()


def test_an_image_is_shown_as_its_file_has_it(probed: Run, images: Path) -> None:
    opened = open_gallery(probed, "test")
    name = opened.queries.ids[5]
    assert np.array_equal(opened.image(name), np.asarray(Image.open(images / name)))
    (images / name).unlink()
    with pytest.raises(DataError, match="no such image. Restore it"):
        opened.image(name)


def test_features_and_images_that_are_no_longer_the_runs_are_refused(probed: Run, images: Path) -> None:
    opened = open_gallery(probed, "test")
    with pytest.raises(DataError, match="no features of c1@max at epoch 0 .* probe tiny --epochs 0 --splits test"):
        neighbours_of(opened, 0, [RankedLayer(LayerKey("c1", "max"), "none", "cosine")], ROWS, 1)
    with pytest.raises(DataError, match="no features of test at epoch 7 are stored. Run layerprobe probe tiny"):
        neighbours_of(opened, 7, [FC6], ROWS, 1)
    with pytest.raises(UnknownNameError, match="split of tiny: 'gallery'"):
        open_gallery(probed, "gallery")
    with h5py.File(probed.feature_file(0, "test"), "r+") as file:
        file.attrs["weights_sha256"] = np.bytes_(b"of another training")
    with pytest.raises(DataError, match="the ranks of fc6 were made from other features"):
        neighbours_of(opened, 0, [FC6], ROWS, 1)
    (images / "class7/3.png").rename(images / "class7/new.png")
    with pytest.raises(DataError, match="the test images are not those of the run"):
        open_gallery(probed, "test")


def test_a_run_from_python_says_in_one_line_that_it_keeps_no_images(tmp_path: Path) -> None:
    run = Run(tmp_path / "mine")
    run.write(recorded(RECORD | {"from_python": True}))
    with pytest.raises(DataError, match="measured from Python, which keeps no images. Probe it by layerprobe probe"):
        open_gallery(run, "test")


def test_a_gallery_is_searched_by_the_rules_of_the_run(tmp_path: Path) -> None:
    fabricated.market(tmp_path / "market")
    run = made(f"market1501:{tmp_path / 'market'}", tmp_path, layers=("fc6",))
    opened = open_gallery(run, "test")
    found = neighbours_of(opened, 0, [FC6], [3, 1], 12)
    queries, items = (unit(store.read_features(run.feature_file(0, name), FC6.layer)) for name in ("test", "gallery"))

    def seen(name: str) -> tuple[str, str]:
        person, camera = re.findall(r"/(-?\d+)_c(\d)", name)[0]
        return person, camera

    for place, row in enumerate((3, 1)):
        query = seen(opened.queries.ids[row])
        # items of the query's person and camera, and junk, are taken out of its results
        left = [i for i, name in enumerate(opened.items.ids) if seen(name)[0] != "-1" and seen(name) != query]
        nearest = sorted(left, key=lambda i: -float(queries[row] @ items[i]))
        rows = found.rows[0, place]
        assert rows[rows >= 0].tolist() == nearest[:12]
        right = [seen(opened.items.ids[i])[0] == query[0] for i in nearest[:12]]
        assert found.right[0, place][rows >= 0].tolist() == right
        assert not found.right[0, place][rows < 0].any()
    for name in (opened.queries.ids[3], opened.items.ids[0]):
        shown = np.asarray(Image.open(tmp_path / "market" / name).convert("RGB"))
        assert np.array_equal(opened.image(name), shown)


def test_images_of_16_bits_are_shown_with_the_white_of_the_run(images: Path, tmp_path: Path) -> None:
    Image.fromarray(np.full((20, 20), 1023, np.uint16)).save(images / "class4" / "0.png")
    run = made(f"folder:{images}", tmp_path, layers=("fc6",), settings=("data.white=1023",))
    assert (open_gallery(run, "test").image("class4/0.png") == 255).all()
