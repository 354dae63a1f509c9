from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import layerprobe
from layerprobe.system.errors import DataError, EnvironmentFault, LayerprobeError, RecipeError, UnknownNameError
from layerprobe.workflow.features.features import write_features
from layerprobe.workflow.features.request import FeaturesRequest
from layerprobe.workflow.probe.post_processed_features import query_index
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.request import ProbeRequest
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.run.runs import Run
from tests.workflow.conftest import Silent


@pytest.fixture
def probed(run: Run) -> Run:
    options = {"epochs": "last", "post": ("none", "l2+pca:2"), "ks": (1,), "device": "cpu", "workers": 0}
    probe(run, ProbeRequest(layers=("fc6", "pool5.3"), **options), Silent())  # type: ignore[arg-type] # their types
    return run


def nearest_by_loops(vectors: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[int]:
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = []
    for query, unit in enumerate(units):
        others = [(float(unit @ other), -row) for row, other in enumerate(units) if row != query]
        rows.append(-max(others)[1])
    return rows


def test_vectors_are_the_stored_ones_and_neighbours_those_of_plain_loops(probed: Run, tmp_path: Path) -> None:
    table = write_features(FeaturesRequest(probed, tmp_path / "t.npz", ("fc6", "pool5.3")))
    stored = layerprobe.open_run(probed.folder)
    assert (table.epoch, [layer.name for layer in table.layers]) == (2, ["fc6", "pool5.3@max"])
    assert tuple(table.ids) == stored.ids(epoch=2, split="test")
    assert table.labels == [name.partition("/")[0] for name in table.ids]
    for layer in table.layers:
        assert np.array_equal(layer.vectors, stored.features(epoch=2, split="test", layer=layer.name))
        rows = nearest_by_loops(layer.vectors.astype(np.float64))
        assert layer.nearest == [table.ids[row] for row in rows]
        assert layer.right.tolist() == [table.labels[rows[i]] == label for i, label in enumerate(table.labels)]


def test_paths_are_those_of_the_images(probed: Run, images: Path, tmp_path: Path) -> None:
    table = write_features(FeaturesRequest(probed, tmp_path / "t.npz"))
    assert table.paths == [str(images / name) for name in table.ids]
    os.remove(table.paths[0])  # noqa: PTH107 - a text
    assert write_features(FeaturesRequest(probed, tmp_path / "t.npz")).paths[0] == ""


def test_the_layer_is_the_embedding_by_default(probed: Run, tmp_path: Path) -> None:
    table = write_features(FeaturesRequest(probed, tmp_path / "t.npz"))
    assert [layer.name for layer in table.layers] == ["fc6"]


def test_a_post_processed_layer_has_the_vectors_that_are_searched(probed: Run, tmp_path: Path) -> None:
    table = write_features(FeaturesRequest(probed, tmp_path / "t.npz", ("pool5.3/l2+pca:2",)))
    (layer,) = table.layers
    assert (layer.name, layer.vectors.shape) == ("pool5.3@max/l2+pca:2", (len(table.ids), 2))
    (score,) = [
        score.value
        for score in probed.scores()
        if (score.split, str(score.ranked), score.metric) == ("test", layer.name, "R@1")
    ]
    assert layer.right.mean() == pytest.approx(score)


def test_the_dimensions_of_packed_bits_are_counted_in_bits(run: Run, tmp_path: Path) -> None:
    request = ProbeRequest(layers=("fc6",), epochs="last", post=("binary", "pca:3+binary"), device="cpu", workers=0)
    probe(run, request, Silent())
    names = ("fc6/binary", "fc6/pca:3+binary")
    layers = write_features(FeaturesRequest(run, tmp_path / "t.npz", names)).layers
    assert [(layer.dim, layer.vectors.shape[1]) for layer in layers] == [(8, 1), (3, 1)]


def test_a_run_from_python_has_features_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    labels = torch.arange(12) // 3
    images = torch.rand(4, 3, 1, 1)[labels] + torch.rand(12, 3, 8, 8) / 10
    loaders = {"test": [(images, labels)]}
    result = layerprobe.probe(torch.nn.Conv2d(3, 4, 3), loaders, ks=[1], cache=tmp_path / "cache")
    run = Run(tmp_path / "cache" / result.name)
    table = write_features(FeaturesRequest(run, tmp_path / "t.csv", ("output@avg",)))
    assert table.labels == [str(label) for label in labels.tolist()]
    assert set(table.paths) == {""}
    assert (tmp_path / "t.csv").read_text().count("\n") == 13


def test_queries_have_their_neighbours_in_the_gallery(tmp_path: Path) -> None:
    labels = torch.tensor([0, 0, 1, 1])
    queries, items = (torch.eye(3)[rows].reshape(4, 3, 1, 1).expand(-1, -1, 8, 8) for rows in (labels, 1 - labels))
    loaders = {"test": [(queries, labels)], "gallery": [(items, labels)]}
    torch.manual_seed(0)
    result = layerprobe.probe(torch.nn.Conv2d(3, 4, 3), loaders, ks=[1], cache=tmp_path / "cache")
    run = Run(tmp_path / "cache" / result.name)
    (layer,) = write_features(FeaturesRequest(run, tmp_path / "t.npz", ("output",))).layers
    gallery = layerprobe.open_run(run.folder).ids(epoch=0, split="gallery")
    # Each colour has the other class there: its first image is nearest, and wrong.
    assert layer.nearest == [gallery[2], gallery[2], gallery[0], gallery[0]]
    assert not layer.right.any()


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"layers": ("fc7",)}, UnknownNameError, "unknown layer 'fc7'. Did you mean 'fc6'"),
        ({"layers": ("fc6/l2+pca:3",)}, UnknownNameError, "unknown layer 'fc6/l2.pca:3'. Did you mean 'fc6/l2.pca:2'"),
        ({"split": "gallery"}, UnknownNameError, "unknown split of tiny: 'gallery'. Known: train, test"),
        ({"epoch": 1}, DataError, "epoch 1 is not ranked on the test split. Run layerprobe probe tiny .*--epochs 1"),
        ({"epoch": 9}, RecipeError, "tiny has no epoch 9"),
    ],
)
def test_what_is_not_there_is_told(
    fields: dict[str, object], error: type[LayerprobeError], message: str, probed: Run, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        write_features(FeaturesRequest(probed, tmp_path / "t.npz", **fields))  # type: ignore[arg-type] # one test's fields each
    assert not (tmp_path / "t.npz").exists()


def test_features_that_are_gone_are_told_with_the_command_that_stores_them(probed: Run, tmp_path: Path) -> None:
    probed.remove_features(2, "test")
    with pytest.raises(
        DataError, match="features of fc6 at epoch 2 are gone. Run layerprobe probe tiny .*--layers fc6"
    ):
        write_features(FeaturesRequest(probed, tmp_path / "t.npz"))


def test_several_layers_are_refused_in_csv(probed: Run, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"not of fc6, pool5.3@max. Name one layer, or a .parquet or .npz file"):
        write_features(FeaturesRequest(probed, tmp_path / "t.csv", ("fc6", "pool5.3")))


def test_a_name_that_is_not_utf8_is_refused_in_parquet_before_the_search(
    probed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As of an image in a tar file.
    labels, ids = query_index(probed, 2, "test")
    named = (os.fsdecode(b"caf\xe9.png"), *ids[1:])
    monkeypatch.setattr("layerprobe.workflow.features.features.query_index", lambda *_: (labels, named))
    write_features(FeaturesRequest(probed, tmp_path / "t.csv"))
    assert b"\ncaf\xe9.png," in (tmp_path / "t.csv").read_bytes()
    monkeypatch.delattr("layerprobe.workflow.features.features.nearest_items")
    with pytest.raises(DataError) as refused:
        write_features(FeaturesRequest(probed, tmp_path / "t.parquet"))
    problem = r"'caf\udce9.png' is not UTF-8, as every text of a parquet file must be"
    assert str(refused.value) == f"{problem}. Write .npz or .csv."


def test_the_name_of_a_searched_item_is_checked_too(
    probed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoredSearch, "item_ids", (os.fsdecode(b"\xe9.png"),))
    with pytest.raises(DataError, match=r"'.udce9.png' is not UTF-8"):
        write_features(FeaturesRequest(probed, tmp_path / "t.parquet"))


def test_a_file_of_another_kind_is_refused_before_the_work(run: Run, tmp_path: Path) -> None:
    with pytest.raises(LayerprobeError, match=r"cannot be written as '.xlsx'. Name it .parquet, .npz or .csv"):
        FeaturesRequest(run, tmp_path / "t.xlsx")


def test_parquet_without_its_package_is_told_before_the_work(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EnvironmentFault, match=r"pyarrow is not installed. pip install 'datasets>="):
        FeaturesRequest(run, tmp_path / "t.parquet")
