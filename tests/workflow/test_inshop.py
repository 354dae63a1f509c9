"""In-Shop through the whole program: queries against a gallery, on a fabricated copy."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from layerprobe.cli import main
from layerprobe.workflow.run.runs import Run
from tests.data import fabricated

SETTINGS = (
    "data.allow_partial=true", "data.image_size=28", "net.name=lenet", "net.fc=[8]", "train.epochs=1",
    "train.batch_size=6", "train.images_per_class=2",
)  # fmt: skip


@pytest.fixture
def layerprobe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., str]:
    """Run a command line in this process to its good end: stdout."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["layerprobe", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        assert caught.value.code == 0, err
        return out

    return run


Side = tuple[NDArray[np.float64], NDArray[np.integer]]


def read_side(run: Run, split: str) -> Side:
    """The features and items of a split."""
    with h5py.File(run.feature_file(1, split)) as file:
        return file["features/fc6@none"][:].astype(np.float64), file["labels"][:]


def recall_by_hand(run: Run, *, k: int) -> float:
    """Share of the queries that find their item among the k nearest of the gallery."""
    return recall(read_side(run, "test"), read_side(run, "gallery"), k)


def recall(one: Side, other: Side, k: int) -> float:
    """The same of queries and gallery that are given."""
    (queries, wanted), (gallery, labels) = ((x / np.linalg.norm(x, axis=1, keepdims=True), y) for x, y in (one, other))
    nearest = np.argsort(-(queries @ gallery.T), axis=1)[:, :k]
    return float((labels[nearest] == wanted[:, None]).any(1).mean())


def test_a_run_on_inshop_ends_in_the_recall_of_queries_against_the_gallery(
    layerprobe: Callable[..., str], tmp_path: Path
) -> None:
    fabricated.inshop(tmp_path / "shop/Eval", tmp_path / "shop/Img")
    words = [word for setting in SETTINGS for word in ("--set", setting)]
    layerprobe("train", "netA", "--data", "inshop:shop", "--run", "shop", "--device", "cpu", *words)
    asked = ("probe", "shop", "--layers", "fc6", "--epochs", "last", "--splits", "test", "--k", "1,2")
    values = json.loads(layerprobe(*asked, "--json"))
    scores = values["scores"]
    assert values["label_free"] == []  # no such metric is asked for
    run = Run(tmp_path / "cache/shop")
    assert [(score["split"], score["metric"], score["n"]) for score in scores] == [
        ("test", f"R@{k}", 7) for k in (1, 2)
    ]
    assert [score["value"] for score in scores] == [recall_by_hand(run, k=k) for k in (1, 2)]
    table = layerprobe(*asked)
    assert "fc6" in table
    assert f"{100 * scores[0]['value']:.1f}" in table


def test_fit_gallery_fits_on_the_gallery_and_reduces_both_sides(layerprobe: Callable[..., str], tmp_path: Path) -> None:
    fabricated.inshop(tmp_path / "shop/Eval", tmp_path / "shop/Img")
    words = [word for setting in SETTINGS for word in ("--set", setting)]
    layerprobe("train", "netA", "--data", "inshop:shop", "--run", "shop", "--device", "cpu", *words)
    asked = ("probe", "shop", "--layers", "fc6", "--epochs", "last", "--splits", "test", "--k", "1,2", "--json")
    scores = json.loads(layerprobe(*asked, "--post", "pca:3", "--fit", "gallery"))["scores"]
    queries, gallery = (read_side(Run(tmp_path / "cache/shop"), split) for split in ("test", "gallery"))
    pca = PCA(3).fit(gallery[0])
    found = [score["value"] for score in scores]
    assert found == [
        recall((pca.transform(queries[0]), queries[1]), (pca.transform(gallery[0]), gallery[1]), k) for k in (1, 2)
    ]
    assert {score["post_processing"] for score in scores} == {"pca:3@gallery"}


def test_both_sides_are_stored_and_no_image_is_in_both(layerprobe: Callable[..., str], tmp_path: Path) -> None:
    fabricated.inshop(tmp_path / "shop", tmp_path / "shop")
    words = [word for setting in SETTINGS for word in ("--set", setting)]
    layerprobe("train", "netA", "--data", "inshop:shop", "--run", "shop", "--device", "cpu", "--probe", "c5", *words)
    ids = {}
    items = tuple(f"id_{item:08}" for item in (2, 7, 9, 40, 3, 5, 11, 60))
    for split in ("train", "test", "gallery"):
        with h5py.File(Run(tmp_path / "cache/shop").feature_file(1, split)) as file:
            ids[split] = {name.decode() for name in file["ids"][:]}
        assert Run(tmp_path / "cache/shop").feature_head(1, split).class_names == items
    assert {split: len(names) for split, names in ids.items()} == {"train": 10, "test": 7, "gallery": 7}
    assert not ids["test"] & ids["gallery"]
    assert all(name.startswith("img/WOMEN/") for names in ids.values() for name in names)
