"""data.queries: some test images are searched for, among all; the oracle is the full probe, row by row."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from layerprobe.cli import main
from layerprobe.data.search_rules import draw_queries
from layerprobe.measure.pair_thresholds import count_pairs
from layerprobe.metrics.recall import chance_recall
from layerprobe.store import StoredRanks
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.threshold.threshold import layer_pairs
from tests.data import fabricated

NET = ("data.image_size=28", "net.name=lenet", "net.fc=[8]", "train.epochs=0", "train.batch_size=6",
       "train.images_per_class=2")  # fmt: skip
ITSELF = ("glyphs", "data.train_classes=10", "data.test_classes=20", "data.images_per_class=5")
GALLERY = ("market1501:market", "data.allow_partial=true")
COUNTS = ("closer", "closer_high", "tied_negatives", "tied_positives")
FC6 = RankedLayer(LayerKey("fc6", "none"), "none", "cosine")


@pytest.fixture
def layerprobe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., str]:
    """Run a command line in this process, and return what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    fabricated.market(tmp_path / "market")

    def run(*words: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["layerprobe", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        assert caught.value.code == code, err
        return out + err

    return run


def trained(layerprobe: Callable[..., str], data: str, *settings: str) -> str:
    words = [word for setting in (*NET, *settings) for word in ("--set", setting)]
    return layerprobe("train", "netA", "--data", data, "--run", "one", "--device", "cpu", *words)


def probed(layerprobe: Callable[..., str]) -> StoredRanks:
    layerprobe("probe", "one", "--layers", "c5,fc6", "--metrics", "mAP", "--device", "cpu")
    return Run(Path("cache/one")).ranks(0, "test").stored


@pytest.mark.parametrize(
    ("data", "count"), [(ITSELF, 13), ((*GALLERY, "data.group="), 2), (GALLERY, 3)], ids=["itself", "gallery", "groups"]
)
def test_the_ranks_of_drawn_queries_are_rows_of_the_full_probe(
    layerprobe: Callable[..., str], data: tuple[str, ...], count: int
) -> None:
    trained(layerprobe, *data)
    full = probed(layerprobe)
    features = Run(Path("cache/one")).feature_file(0, "test").stat().st_mtime_ns
    told = trained(layerprobe, *data, f"data.queries={count}")
    assert "layerprobe probe now follows the recipe's data.queries" in told
    part = probed(layerprobe)
    rows = [full.ids.index(name) for name in part.ids]
    assert len(part.ids) == count < len(full.ids)
    assert rows == sorted(rows)
    assert part.labels.tolist() == full.labels[rows].tolist()
    for ranked, ranks in part.ranks.items():
        for name in COUNTS:
            assert getattr(ranks, name).tolist() == getattr(full.ranks[ranked], name)[rows].tolist()
        values, every = (stored.values[ranked]["mAP"] for stored in (part, full))
        np.testing.assert_array_equal(values, every[rows])
    assert Run(Path("cache/one")).feature_file(0, "test").stat().st_mtime_ns == features
    trained(layerprobe, *data)
    assert probed(layerprobe).ids == full.ids


def test_ranks_of_features_on_disk_are_those_of_features_in_memory(layerprobe: Callable[..., str]) -> None:
    trained(layerprobe, *ITSELF, "data.queries=13")
    words = ("probe", "one", "--layers", "c5", "--post", "none,pca:4", "--splits", "test,train", "--device", "cpu")
    layerprobe(*words)
    run = Run(Path("cache/one"))
    in_memory = run.ranks(0, "test").stored
    run.rank_file(0, "test").unlink()
    layerprobe(*words, "--memory", "1KB")
    on_disk = Run(Path("cache/one")).ranks(0, "test").stored
    assert len(in_memory.ranks) == 2
    for ranked, ranks in in_memory.ranks.items():
        for name in COUNTS:
            assert getattr(ranks, name).tolist() == getattr(on_disk.ranks[ranked], name).tolist()


def test_scores_and_tables_are_of_the_drawn_queries(layerprobe: Callable[..., str]) -> None:
    trained(layerprobe, *ITSELF)
    full = probed(layerprobe)
    trained(layerprobe, *ITSELF, "data.queries=13")
    part, run = probed(layerprobe), Run(Path("cache/one"))
    assert run.read().data["queries"] == 13
    scores = {(s.metric, s.split): s for s in run.scores() if s.ranked == FC6}
    score = scores["R@1", "test"]
    rows = [full.ids.index(name) for name in part.ids]
    assert score.value == full.ranks[FC6].hits(1)[rows].mean()
    assert score.n == 13
    assert "13 of 100 queries" in score.notes
    assert scores["R@1", "train"].n == 50
    assert score.units is not None
    assert score.units.count == 3  # classes of 5 images: two whole ones and one that is cut
    chance = 100 * chance_recall(part.labels, 1, full.labels, ids=part.ids, gallery_ids=full.ids)
    table = layerprobe("probe", "one", "--layers", "fc6", "--full")
    assert f"test: 13 queries, 3 classes, a gallery of 100, chance R@1 {chance:.1f} %" in table
    assert "13 of 100 queries" in table


def test_whole_classes_are_drawn_and_the_last_is_cut() -> None:
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(40), np.arange(1, 41)))
    sizes = np.bincount(labels)
    rows = draw_queries(labels, 300)
    counts = np.bincount(labels[rows], minlength=40)
    assert len(set(rows.tolist())) == 300
    assert sum(0 < count < size for count, size in zip(counts.tolist(), sizes.tolist(), strict=True)) <= 1
    assert counts[counts > 0].tolist() != sizes[: np.count_nonzero(counts)].tolist()
    assert set(draw_queries(labels, 100).tolist()) <= set(rows.tolist())


def test_as_many_queries_as_there_are_is_the_full_probe(layerprobe: Callable[..., str]) -> None:
    trained(layerprobe, *ITSELF, "data.queries=100")
    assert len(probed(layerprobe).ids) == 100
    assert "queries" not in str([score.notes for score in Run(Path("cache/one")).scores()])


def test_commands_that_read_ranks_follow_the_drawn_queries(layerprobe: Callable[..., str]) -> None:
    trained(layerprobe, *ITSELF, "data.queries=40")
    ids = probed(layerprobe).ids
    choice = json.loads(layerprobe("choose", "one", "--json").splitlines()[0])
    recalls = {s.ranked.layer.layer: s.value for s in Run(Path("cache/one")).scores()
               if (s.metric, s.split) == ("R@1", "test")}  # fmt: skip
    assert choice["embedding"]["test"]["value"] == recalls["fc6"]
    compared = json.loads(layerprobe("compare", "one:c5", "one:fc6", "--json").splitlines()[0])
    assert compared["difference"] == pytest.approx((recalls["c5"] or 0) - (recalls["fc6"] or 0), abs=1e-12)
    assert compared["n"] == 40
    assert "data.queries draws some of the images" in layerprobe(
        "compare", "one:c5", "one:fc6", "--interval", "redraw", code=2
    )
    assert "drawn queries decide" in layerprobe("summary", "one")
    layerprobe("plot", "panels", "one", "--where", "random", "--csv", "panels.csv")
    with Path("panels.csv").open() as file:
        shown = list(csv.DictReader(file))
    assert {row["query"] for row in shown} <= {*ids}
    assert not {row["item"] for row in shown} <= {*ids}
    layerprobe("report", "one")
    search = StoredSearch(Run(Path("cache/one")), 0, "test", torch.device("cpu"))
    counts = count_pairs(layer_pairs(search, FC6))
    assert int(counts.genuine.sum() + counts.impostor.sum()) == len(ids) * 99  # of a query with each other image


def test_folds_are_of_the_drawn_queries(layerprobe: Callable[..., str]) -> None:
    trained(layerprobe, *ITSELF, "data.queries=60")
    probed(layerprobe)
    search = StoredSearch(Run(Path("cache/one")), 0, "test", torch.device("cpu"))
    whitened = RankedLayer(FC6.layer, "l2+whiten:4:0.5+l2", "cosine")
    values = search.within_folds(whitened, seed=0)
    assert values.values.shape == (60,)
    assert np.isfinite(values.values).all()
