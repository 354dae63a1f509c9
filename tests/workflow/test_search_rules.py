"""Groups, and lists of right and ignored items, through the whole program."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from layerprobe.cli import main
from layerprobe.measure.pair_thresholds import count_pairs
from layerprobe.statistics.choice import folds_of
from layerprobe.statistics.units import intervals, unit_sums
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.retrieval import Ranks
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.threshold.threshold import layer_pairs
from tests.data import fabricated

SETTINGS = ("data.image_size=28", "net.name=lenet", "net.fc=[8]", "train.epochs=0", "train.batch_size=6",
            "train.images_per_class=2")  # fmt: skip
NAMES = {1: "R@1", 2: "R@2", 5: "R@5"}

Outcome = tuple[
    list[bool], int
]  # of a query: whether each item of its results is right, and how many right items exist


@pytest.fixture
def layerprobe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., str]:
    """Run a command line in this process to its good end: stdout, and stderr if it is asked for."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, heard: bool = False) -> str:
        monkeypatch.setattr(sys, "argv", ["layerprobe", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        assert caught.value.code == 0, err
        return err if heard else out

    return run


def trained(layerprobe: Callable[..., str], data: str, *settings: str, heard: bool = False) -> str:
    words = [word for setting in (*SETTINGS, *settings) for word in ("--set", setting)]
    return layerprobe("train", "netA", "--data", data, "--run", "one", "--device", "cpu", *words, heard=heard)


ASKED = ("probe", "one", "--layers", "fc6", "--splits", "test", "--k", "1,2,5", "--metrics", "mAP,MRR")


def measured(layerprobe: Callable[..., str]) -> dict[str, dict[str, Any]]:
    """Metric -> score of fc6 on the test images."""
    return {score["metric"]: score for score in json.loads(layerprobe(*ASKED, "--json"))["scores"]}


def stored(folder: Path, split: str, layer: str = "fc6@none") -> tuple[np.ndarray, list[str]]:
    """Unit vectors and ids."""
    with h5py.File(Run(folder / "cache/one").feature_file(0, split)) as file:
        values = file[f"features/{layer}"][:].astype(np.float64)
        ids = [name.decode() for name in file["ids"][:]]
    return values / np.linalg.norm(values, axis=1, keepdims=True), ids


def outcomes(
    queries: tuple[np.ndarray, list[str]],
    gallery: tuple[np.ndarray, list[str]],
    is_right: Callable[[str, str], bool],
    is_out: Callable[[str, str], bool],
) -> list[Outcome]:
    found = []
    for vector, query in zip(*queries, strict=True):
        left = [place for place, item in enumerate(gallery[1]) if item != query and not is_out(query, item)]
        nearest = sorted(left, key=lambda place: -float(vector @ gallery[0][place]))
        right = [is_right(query, gallery[1][place]) for place in nearest]
        found.append((right, sum(right)))
    return found


def by_hand(found: Iterable[Outcome]) -> dict[str, float]:
    """The metrics' definitions; a query without a right item counts as 0."""
    rows = list(found)
    values = {name: float(np.mean([any(right[:k]) for right, _ in rows])) for k, name in NAMES.items()}
    precisions, reciprocals, chances = [], [], []
    for right, count in rows:
        hits = [place for place, hit in enumerate(right, start=1) if hit]
        precisions.append(sum(n / place for n, place in enumerate(hits, start=1)) / max(count, 1))
        reciprocals.append(1 / hits[0] if hits else 0)
        chances.append(count / len(right))
    return values | {name: float(np.mean(v)) for name, v in (("mAP", precisions), ("MRR", reciprocals))} | {
        "chance": float(np.mean(chances))
    }  # fmt: skip


def pairs_that_count(folder: Path) -> tuple[int, int]:
    """How many genuine and impostor pairs thresholds are set on and measured by."""
    search = StoredSearch(Run(folder / "cache/one"), 0, "test", torch.device("cpu"))
    counts = count_pairs(layer_pairs(search, RankedLayer(LayerKey("fc6", "none"), "none", "cosine")))
    return int(counts.genuine.sum()), int(counts.impostor.sum())


def test_classes_of_a_gallery_with_cameras_are_compared(layerprobe: Callable[..., str], tmp_path: Path) -> None:
    rng, rows = np.random.default_rng(0), ["path,label,split,is_query,is_gallery,camera"]
    for part, count in (("q", 5), ("g", 7)):
        for label in range(4):
            for i in range(count):
                name = f"{part}{label}{i}{rng.integers(2)}.png"  # part, person, number, camera
                Image.fromarray(rng.integers(0, 256, (28, 28, 3), np.uint8)).save(tmp_path / name)
                rows.append(f"{name},{label},test,{part == 'q'},{part == 'g'},{name[3]}")
    (tmp_path / "set.csv").write_text("\n".join(rows))
    trained(layerprobe, "csv:set.csv", "data.group=camera")
    layerprobe("probe", "one", "--layers", "c5@max,fc6", "--splits", "test")
    result = json.loads(layerprobe("classes", "one", "--layers", "c5,fc6", "--json"))
    hits: dict[str, list[list[bool]]] = {}
    pairs: dict[tuple[str, str], list[int]] = {}
    for side, layer in enumerate(("c5@max", "fc6@none")):
        queries, gallery = (stored(tmp_path, split, layer) for split in ("test", "gallery"))
        for vector, query in zip(*queries, strict=True):
            items = [x for x in zip(*gallery, strict=True) if (x[1][1], x[1][3]) != (query[1], query[3])]
            nearest = max(items, key=lambda item: float(vector @ item[0]))[1]
            hits.setdefault(query[1], [[], []])[side].append(query[1] == nearest[1])
            if query[1] != nearest[1]:
                pairs.setdefault((query[1], nearest[1]), [0, 0])[side] += 1
    found = {row["name"]: (row["images"], row["a"], row["b"]) for row in result["classes"]}
    assert found == {name: (len(a), np.mean(a), np.mean(b)) for name, (a, b) in hits.items()}
    assert {(row["name"], row["nearest"]): [row["a"], row["b"]] for row in result["confusions"]} == pairs
    assert len(pairs) > 5


def test_market_1501_is_searched_by_its_own_protocol(layerprobe: Callable[..., str], tmp_path: Path) -> None:
    fabricated.market(tmp_path / "market")
    trained(layerprobe, "market1501:market", "data.allow_partial=true")
    scores = measured(layerprobe)

    def seen(name: str) -> tuple[str, str]:
        person, camera = re.findall(r"/(-?\d+)_c(\d)", name)[0]
        return person, camera

    found = outcomes(
        stored(tmp_path, "test"),
        stored(tmp_path, "gallery"),
        is_right=lambda query, item: seen(query)[0] == seen(item)[0],
        is_out=lambda query, item: seen(item)[0] == "-1" or seen(query) == seen(item),
    )
    expected = by_hand(found)
    assert pairs_that_count(tmp_path) == (sum(n for _, n in found), sum(len(right) - n for right, n in found))
    assert {name: score["value"] for name, score in scores.items()} == pytest.approx(
        {name: expected[name] for name in scores}, abs=1e-12
    )
    assert scores["R@1"]["note"].split("; ")[-2:] == ["3 junk images left out", "group: camera"]
    assert "1 lone queries count as misses" in str(scores["R@1"]["note"])
    layerprobe("plot", "gallery-size", "one", "--csv", "sizes.csv")
    sizes = [int(row["items"]) for row in csv.DictReader((tmp_path / "sizes.csv").read_text().splitlines())]
    assert max(sizes) == min(len(right) for right, _ in found)
    table = layerprobe("probe", "one", "--layers", "fc6", "--full")
    assert f"test: 4 queries, 3 classes, a gallery of 13, chance R@1 {100 * expected['chance']:.1f} %" in table


def retrieval_set(folder: Path) -> tuple[dict[tuple[str, str], None], dict[tuple[str, str], None]]:
    """Queries and a gallery of no class at all, with lists of right and ignored items, as instance sets have them."""
    rng = np.random.default_rng(0)
    rows, names = ["path,label,split,is_query,is_gallery"], {}
    for part, count in (("q", 6), ("g", 20)):
        (folder / part).mkdir()
        names[part] = [f"{part}/{i}.png" for i in range(count)]
        for name in names[part]:
            Image.fromarray(rng.integers(0, 256, (28, 28, 3), np.uint8)).save(folder / name)
            rows.append(f"{name},nothing,test,{part == 'q'},{part == 'g'}")
    (folder / "set.csv").write_text("\n".join(rows))
    lists: list[dict[tuple[str, str], None]] = []
    for file, count in (("easy.csv", 4), ("junk.csv", 5)):
        # The last query has no right item, some items are in both lists, and rows stand there twice.
        drawn = [(q, str(i)) for q in names["q"][:-1] for i in rng.choice(names["g"], count, replace=False)]
        (folder / file).write_text("\n".join(["query,item", *(f"{q},{i}" for q, i in [*drawn, *drawn[:3]])]))
        lists.append(dict.fromkeys(drawn))
    return lists[0], lists[1]


def test_lists_of_right_and_ignored_items_decide_every_metric(layerprobe: Callable[..., str], tmp_path: Path) -> None:
    right, ignored = retrieval_set(tmp_path)
    assert set(right) & set(ignored)
    trained(layerprobe, "csv:set.csv", "data.positives=easy.csv", "data.ignore=junk.csv")
    scores = measured(layerprobe)
    found = outcomes(
        stored(tmp_path, "test"),
        stored(tmp_path, "gallery"),
        is_right=lambda query, item: (query, item) in right,
        is_out=lambda query, item: (query, item) in ignored,
    )
    expected = by_hand(found)
    assert pairs_that_count(tmp_path) == (sum(n for _, n in found), sum(len(right) - n for right, n in found))
    assert {name: score["value"] for name, score in scores.items()} == pytest.approx(
        {name: expected[name] for name in scores}, abs=1e-12
    )
    lists = "1 lone queries count as misses; positives: easy.csv; ignore: junk.csv"
    assert (scores["R@1"]["note"], scores["R@1"]["interval"]) == (lists, "1 classes")
    table = layerprobe("probe", "one", "--layers", "fc6", "--full")
    assert f"chance R@1 {100 * expected['chance']:.1f} %" in table


def test_a_list_that_is_another_now_is_searched_by_without_new_features(
    layerprobe: Callable[..., str], tmp_path: Path
) -> None:
    retrieval_set(tmp_path)
    trained(layerprobe, "csv:set.csv", "data.positives=easy.csv")
    before, features = measured(layerprobe), Run(tmp_path / "cache/one").feature_file(0, "test").stat().st_mtime_ns
    text = (tmp_path / "easy.csv").read_text()
    (tmp_path / "easy.csv").write_text("query,item\nq/0.png,g/0.png\n")
    after = measured(layerprobe)
    assert all(after[name]["value"] != before[name]["value"] for name in ("R@5", "mAP"))
    (tmp_path / "easy.csv").write_text(text)
    assert measured(layerprobe) == before
    assert Run(tmp_path / "cache/one").feature_file(0, "test").stat().st_mtime_ns == features


def test_a_finished_run_takes_over_the_groups_and_loses_its_other_scores(
    layerprobe: Callable[..., str], tmp_path: Path
) -> None:
    fabricated.market(tmp_path / "market")
    words = ("market1501:market", "data.allow_partial=true")
    trained(layerprobe, *words, "data.group=")
    run, plain = Run(tmp_path / "cache/one"), measured(layerprobe)
    layerprobe("probe", "one", "--layers", "c1", "--splits", "test", "--k", "1")
    assert "group" not in str(plain["R@1"]["note"])
    heard = trained(layerprobe, *words, heard=True)
    assert "nothing to do: one has all its 0 epochs" in heard
    assert "one: layerprobe probe now follows the recipe's data.group" in heard
    weights = run.read().hashes
    heard = layerprobe(*ASKED, heard=True)
    assert "6 scores of other groups, lists or queries leave scores.csv: probe their layers and epochs again" in heard
    grouped = {score.metric: score for score in run.scores()}
    assert {score.ranked.layer.layer for score in run.scores()} == {"fc6"}
    assert all("group: camera" in score.notes for score in run.scores())
    assert grouped["mAP"].value != plain["mAP"]["value"]
    trained(layerprobe, *words, "data.group=")
    assert measured(layerprobe) == plain
    assert run.read().hashes == weights


def labelled_set(folder: Path, *, divided: bool) -> dict[str, frozenset[str]]:
    """60 images with up to three of eight labels; some share none with another, some sets occur several times."""
    rng = np.random.default_rng(0)
    colours, labels = rng.integers(0, 256, (9, 3)), {}
    rows = ["path;label;split;is_query;is_gallery".replace(";", ",")]
    for i in range(60):
        held = rng.choice(8, rng.integers(1, 4), replace=False) if i else np.array([8])
        labels[f"{i}.png"] = frozenset(f"l{one}" for one in held)
        pixels = rng.integers(0, 256, (28, 28, 3))
        for one in held:
            pixels[3 * one : 3 * one + 3] = colours[one]
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
        query = not divided or i % 3 == 0
        rows.append(f"{i}.png,{'|'.join(f'l{one}' for one in held)},test,{query},{not divided or not query or i < 9}")
    (folder / "set.csv").write_text("\n".join(rows))
    return labels


@pytest.mark.parametrize("divided", [False, True])
def test_a_shared_label_decides_every_metric(layerprobe: Callable[..., str], tmp_path: Path, divided: bool) -> None:
    labels = labelled_set(tmp_path, divided=divided)
    trained(layerprobe, "csv:set.csv", "data.label_separator=|")
    scores = measured(layerprobe)
    queries = stored(tmp_path, "test")
    found = outcomes(
        queries,
        stored(tmp_path, "gallery") if divided else queries,
        is_right=lambda query, item: bool(labels[query] & labels[item]),
        is_out=lambda query, item: False,
    )
    expected = by_hand(found)
    assert {name: score["value"] for name, score in scores.items()} == pytest.approx(
        {name: expected[name] for name in scores}, abs=1e-12
    )
    once = 1 if divided else 2  # among themselves each pair is counted once
    genuine, impostor = sum(n for _, n in found), sum(len(right) - n for right, n in found)
    assert tuple(once * count for count in pairs_that_count(tmp_path)) == (genuine, impostor)
    # The units of intervals are sets of labels.
    sets = [",".join(sorted(labels[name])) for name in queries[1]]
    hits = np.array([[float(right[0]) for right, _ in found]])
    (interval,) = intervals(unit_sums(hits, np.unique(sets, return_inverse=True)[1]))
    assert interval is not None
    assert (scores["R@1"]["low"], scores["R@1"]["high"]) == pytest.approx((interval.low, interval.high))
    table = layerprobe("probe", "one", "--layers", "fc6", "--full")
    assert f"{len(set(sets))} classes" in table
    assert f"chance R@1 {100 * expected['chance']:.1f} %" in table
    assert "several labels: right if one is shared" in str(scores["R@1"]["note"])


def test_a_choice_counts_shared_labels_in_the_whole_split_and_within_folds(
    layerprobe: Callable[..., str], tmp_path: Path
) -> None:
    labels = labelled_set(tmp_path, divided=False)
    trained(layerprobe, "csv:set.csv", "data.label_separator=|")
    layerprobe("probe", "one", "--splits", "test", "--layers", "c5,fc6")
    choice = json.loads(layerprobe("choose", "one", "--json"))
    vectors, names = stored(tmp_path, "test")

    def first_hits(folds: np.ndarray) -> list[float]:
        """Whether the nearest other image of a query's fold shares a label with it."""
        cosines = np.where((folds[:, None] == folds) & ~np.eye(60, dtype=bool), vectors @ vectors.T, -np.inf)
        nearest = zip(names, cosines.argmax(1).tolist(), strict=True)
        return [float(bool(labels[name] & labels[names[place]])) for name, place in nearest]

    assert choice["embedding"]["test"]["value"] == np.mean(first_hits(np.zeros(60)))
    assert choice["classes"] == len(set(labels.values()))
    search = StoredSearch(Run(tmp_path / "cache/one"), 0, "test", torch.device("cpu"))
    _, numbers = np.unique(["|".join(sorted(labels[name])) for name in names], return_inverse=True)
    folds = folds_of(numbers, seed=0)[numbers]
    ranked = RankedLayer(LayerKey("fc6", "none"), "none", "cosine")
    ranks, found = search.ranks(ranked), search.within_folds(ranked, seed=0)
    assert isinstance(ranks, Ranks)
    assert ranks.hits(1).tolist() == search.values(ranked).values.tolist() == first_hits(np.zeros(60))
    assert found.values.tolist() == first_hits(folds) != first_hits(np.zeros(60))
