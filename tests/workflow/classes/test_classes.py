"""Every number of `classes` against loops over the stored features, with ties, zero vectors and lone images."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from layerprobe import store
from layerprobe.cli.output import Terminal
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.statistics.bootstrap import holm
from layerprobe.statistics.choice import folds_of_queries
from layerprobe.system.errors import DataError, LayerprobeError, NumericError, RecipeError
from layerprobe.system.wording import encoded
from layerprobe.values.classes import ComparedClasses
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.retrieval import SearchRules
from layerprobe.workflow.classes import classes as module
from layerprobe.workflow.classes.class_tables import class_table, confusion_table
from layerprobe.workflow.classes.classes import compare_classes, verdict_text
from layerprobe.workflow.classes.request import ClassesRequest
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.references import draws_of
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.data import fabricated
from tests.statistics.test_class_differences import by_hand as shrunk_by_hand
from tests.statistics.test_class_differences import newcombe
from tests.workflow import selection_runs
from tests.workflow.choose.test_choose import network_of
from tests.workflow.conftest import RECIPES, Silent
from tests.workflow.drawn_run import FC6, POOL, features_of, write_run
from tests.workflow.selection_runs import C2, labels_of
from tests.workflow.stored_ranks import INVALID, ranked, store_ranks

LAYERS = ("pool5.3~euclidean", "fc6")
SIZES = {"test": [1, 12, 5, 6, 20, 11]}


def compare(run: Run, layers: tuple[str, ...] = LAYERS, **options: object) -> ComparedClasses:
    return compare_classes(run, ClassesRequest(layers, **options), Terminal(quiet=True))  # type: ignore[arg-type] # one test's


@dataclass
class Found:
    """What an image finds by a layer."""

    hit: float
    nearest: int
    right: int


def similarity(layer: RankedLayer, x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    if layer.similarity == "euclidean":
        return -float(np.linalg.norm(x - y))
    length = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / length if length else 0.0


def search(
    layer: RankedLayer,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    groups: NDArray[np.int64] | None = None,
    among: NDArray[np.int64] | None = None,
) -> list[Found]:
    """By loops: the chance of a right nearest item, the first of the nearest, and how many are right."""
    values, found = features.astype(np.float64), []
    for i in range(len(labels)):
        items = [j for j in range(len(labels)) if j != i and (among is None or among[j] == among[i])]
        if groups is not None:
            items = [j for j in items if labels[j] != labels[i] or groups[j] != groups[i]]
        near = {j: similarity(layer, values[i], values[j]) for j in items}
        tied = [j for j in items if near[j] > max(near.values()) - 1e-9]
        right = [j for j in items if labels[j] == labels[i]]
        hit = sum(labels[j] == labels[i] for j in tied) / len(tied) if right else 0.0
        found.append(Found(hit, min(tied), len(right)))
    return found


@dataclass
class Searched:
    """What is searched, where that is a gallery: names of classes, and ids of queries and items, and items' classes."""

    names: Sequence[str]
    queries: Sequence[str]
    items: Sequence[str]
    labels: NDArray[np.int64]


def require_equal(
    compared: ComparedClasses,
    a: list[Found],
    b: list[Found],
    labels: NDArray[np.int64],
    gallery: Searched | None = None,
) -> None:
    """Check every number of the classes and the confusions."""
    ids = [f"test/{i}.png" for i in range(len(labels))]
    searched = gallery or Searched([str(x) for x in range(labels.max() + 1)], ids, ids, labels)
    names = sorted(set(labels.tolist()))
    differences = []
    p: list[float | None] = []
    searchable: list[str] = []
    for name in names:
        (row,) = [x for x in compared.classes if x.name == searched.names[name]]
        rows = np.flatnonzero(labels == name).tolist()
        assert row.images == len(rows)
        assert row.a == pytest.approx(sum(a[i].hit for i in rows) / len(rows), abs=1e-12)
        assert row.b == pytest.approx(sum(b[i].hit for i in rows) / len(rows), abs=1e-12)
        assert row.difference == pytest.approx(row.a - row.b, abs=1e-12)
        differences.append([a[i].hit - b[i].hit for i in rows])
        hits = [(a[i].hit, b[i].hit) for i in rows]
        table = [hits.count(pair) for pair in ((1, 1), (1, 0), (0, 1), (0, 0))]
        if not any(a[i].right for i in rows):
            assert (row.interval, row.p, row.shrunk) == (None, None, None)
            differences.pop()
            p.append(None)
            continue
        searchable.append(searched.names[name])
        if sum(table) < len(rows):
            assert (row.interval, row.p) == (None, None)
            p.append(None)
            continue
        lower, changed = min(table[1:3]), table[1] + table[2]
        p.append(min(1.0, 2 * sum(math.comb(changed, k) / 2**changed for k in range(lower + 1))))
        if len(rows) >= 10:
            assert row.interval is not None
            assert (row.interval.low, row.interval.high) == pytest.approx(newcombe(*table), abs=1e-12)
        else:
            assert row.interval is None
    by_name = {x.name: x for x in compared.classes}
    assert [by_name[searched.names[x]].p for x in names] == pytest.approx(holm(p), nan_ok=True, abs=1e-12)
    assert [by_name[name].shrunk for name in searchable] == pytest.approx(shrunk_by_hand(differences), abs=1e-9)
    lose = sum(by_name[name].difference < 0 for name in searchable)
    assert compared.verdict.startswith(f"{lose} of {len(searchable)} classes lose")
    pairs: dict[tuple[str, str], list[list[int]]] = {}
    for side, found in enumerate((a, b)):
        for i, x in enumerate(found):
            if x.hit == 0 and x.right:
                pair = searched.names[labels[i]], searched.names[searched.labels[x.nearest]]
                pairs.setdefault(pair, [[], []])[side].append(i)
    assert {(x.name, x.nearest): (x.a, x.b) for x in compared.confusions} == {
        pair: tuple(map(len, sides)) for pair, sides in pairs.items()
    }
    for confusion in compared.confusions:
        sides = pairs[confusion.name, confusion.nearest]
        assert confusion.images == sum(
            a[i].right > 0 for i in range(len(labels)) if searched.names[labels[i]] == confusion.name
        )
        assert len(confusion.examples) == min(2, len({*sides[0], *sides[1]}))
        for example in confusion.examples:
            i = searched.queries.index(example.image)
            nearest = [found[i].nearest for found, rows in zip((a, b), sides, strict=True) if i in rows]
            assert example.nearest in [searched.items[j] for j in nearest]


def test_every_number_is_that_of_loops(tmp_path: Path) -> None:
    run = write_run(tmp_path, sizes=SIZES)
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(6), SIZES["test"]))
    a, b = (search(layer, features_of(labels, 1, layer), labels) for layer in (POOL, FC6))
    assert any(x.hit % 1 for x in (*a, *b))  # ties, and a lone image
    assert any(not x.right for x in a)
    require_equal(compare(run), a, b, labels)


def test_cameras_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(6), SIZES["test"]))
    groups = np.random.default_rng(1).integers(2, size=len(labels))
    rules = SearchRules(groups=groups)
    monkeypatch.setattr(Run, "stored_rules", lambda _, split: rules)
    run = write_run(tmp_path, sizes=SIZES, rules={"test": rules})
    a, b = (search(layer, features_of(labels, 1, layer), labels, groups) for layer in (POOL, FC6))
    require_equal(compare(run), a, b, labels)


def search_market(run: Run, layer: LayerKey) -> tuple[list[Found], NDArray[np.int64], Searched]:
    """By loops: as `search`, in a gallery without what the query's own camera took of its person."""
    heads = [run.feature_head(0, split) for split in ("test", "gallery")]
    labels, labels_of_items = (np.asarray(head.labels, np.int64) for head in heads)
    searched = Searched(heads[0].class_names, list(heads[0].ids), list(heads[1].ids), labels_of_items)
    x, y = (store.read_features(run.feature_file(0, split), layer).astype(np.float64) for split in ("test", "gallery"))
    cameras, cameras_of_items = (
        [re.search(r"_c(\d)", name)[1] for name in ids]  # type: ignore[index] # each has one
        for ids in (searched.queries, searched.items)
    )
    found = []
    for i, label in enumerate(labels):
        kept = [j for j, of_item in enumerate(labels_of_items) if of_item != label or cameras_of_items[j] != cameras[i]]
        near = {j: float(x[i] @ y[j]) / float(np.linalg.norm(x[i]) * np.linalg.norm(y[j])) for j in kept}
        tied = [j for j in kept if near[j] > max(near.values()) - 1e-9]
        right = sum(labels_of_items[j] == label for j in kept)
        hit = sum(labels_of_items[j] == label for j in tied) / len(tied) if right else 0.0
        found.append(Found(hit, min(tied), right))
    return found, labels, searched


# Person -> camera -> queries, gallery images. Person 30 is seen by one camera alone, person 0 are distractors.
MARKET = {
    **{person: {1: (8, 2), 2: (person % 4, 1), 3: (person % 3, 2)} for person in range(11, 22)},
    30: {3: (2, 3)},
    0: {1: (0, 6), 2: (0, 6)},
}


def test_a_gallery_is_searched_without_what_the_camera_of_the_query_took(tmp_path: Path) -> None:
    fabricated.market(tmp_path / "market", MARKET)
    rng = np.random.default_rng(0)
    colours = {person: rng.integers(40, 216, 3) for person in MARKET}
    tested = [path for path in (tmp_path / "market").glob("*/0*.jpg") if int(path.name[:4]) in MARKET]
    for path in sorted(tested):
        colour = (colours[int(path.name[:4])] + rng.integers(-60, 60, 3)) // 48 * 48
        Image.new("RGB", (20, 20), tuple(colour.clip(0, 255).tolist())).save(path)
    settings = ("data.image_size=28", "data.allow_partial=true", "net.name=lenet", "net.fc=[8]", "train.epochs=0")
    recipe = load_recipe(str(RECIPES / "netA.toml"), Overrides(f"market1501:{tmp_path / 'market'}", settings))
    run = train(TrainRequest(recipe, True, tmp_path / "cache", "one", "cpu", 0), Silent())
    probe(run, ProbeRequest(layers=("c3", "fc6"), splits=("test",), ks=(1,)), Silent())
    a, labels, searched = search_market(run, LayerKey("c3", "max"))
    b, _, _ = search_market(run, LayerKey("fc6", "none"))
    assert [x.right for x in a if not x.right] == [0, 0]  # of person 30
    compared = compare(run, ("c3", "fc6"))
    require_equal(compared, a, b, labels, searched)
    assert any(x.hit % 1 for x in (*a, *b))  # images of one colour
    assert any(x.difference for x in compared.classes)
    assert any(x.nearest == "distractors" for x in compared.confusions)
    assert all(example.nearest.startswith("bounding_box_test/") for x in compared.confusions for example in x.examples)


def test_layers_of_two_epochs_are_compared(tmp_path: Path) -> None:
    run = write_run(tmp_path, sizes=SIZES, epochs=(0, 1))
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(6), SIZES["test"]))
    a, b = (search(FC6, features_of(labels, epoch, FC6), labels) for epoch in (1, 0))
    compared = compare(run, ("fc6", "#0:fc6"))
    require_equal(compared, a, b, labels)
    assert "from drawn#0:fc6~cosine to drawn#1:fc6~cosine" in compared.verdict


def test_notes_say_what_is_left_out(tmp_path: Path) -> None:
    notes = compare(write_run(tmp_path, sizes=SIZES)).notes
    assert notes[0] == "without a right item to find, so misses and in no confusion: 1 image"
    assert notes[1].startswith("right and wrong items tie for ")


def test_chance_deals_no_difference_to_images_that_cannot_lose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dealt = list[int]()

    def chance(differences: NDArray[np.float64], classes: NDArray[np.int64]) -> SimpleNamespace:
        dealt.extend((len(differences), len(np.unique(classes))))
        return SimpleNamespace(low=0, high=1, p=1.0)

    monkeypatch.setattr(module, "chance_of_losing", chance)
    compare(write_run(tmp_path, sizes={"test": [1, 12, 5, 1, 20, 1]}))
    assert dealt == [37, 3]


def test_a_collapsed_layer_has_no_confusion(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = {"fc6@none": rng.normal(size=(80, 4)).astype(np.float32), "c2@max": np.ones((80, 3), np.float32)}
    hits = {selection_runs.FC6: np.ones(80), C2: np.ones(80)}
    run = selection_runs.write_run(tmp_path, "one", {"test": hits}, features={"test": values})
    compared = compare(run, ("fc6", "c2"))
    assert {x.b for x in compared.confusions} == {0}
    # 3 of 79 tied items are right
    assert [x.b for x in compared.classes] == pytest.approx([3 / 79] * 20)
    assert {x.p for x in compared.classes} == {None}
    assert compared.notes == ("right and wrong items tie for 80 images of 20 classes, which have no interval and no p",)
    assert compared.verdict.endswith(", and no class is tested, as right and wrong items tie in each.")


def test_features_that_are_not_finite_are_refused_before_any_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = selection_runs.write_run(tmp_path, "one", {"test": {selection_runs.FC6: np.ones(80)}})
    labels = labels_of("test")
    ids = [f"test{label}-{i}" for i, label in enumerate(labels)]
    store_ranks(run, {selection_runs.FC6: np.ones(80), C2: None}, labels, ids=ids)
    monkeypatch.setattr(module, "nearest_by_layer", None)
    with pytest.raises(NumericError, match=re.escape(f"one, c2@max: {INVALID}")):
        compare(run, ("c2", "fc6"))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (("fc6", "fc6"), "--layers fc6,fc6: the same layer twice"),
        (("fc6", "fc8"), "layer 'fc8' is not ranked"),
        (("fc6", "other:fc6"), "--layers other:fc6: the run is drawn"),
    ],
)
def test_layers_that_cannot_be_compared_are_refused(tmp_path: Path, layers: tuple[str, ...], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        compare(write_run(tmp_path, sizes=SIZES), layers)


def test_a_name_of_several_layers_is_refused(tmp_path: Path) -> None:
    layers = {"test": {selection_runs.C1: np.ones(80), C2: np.ones(80)}}
    with pytest.raises(RecipeError, match=re.escape("--layers c* names several layers. Choose one of c1@max, c2@max")):
        compare(selection_runs.write_run(tmp_path, "one", layers), ("c1", "c*"))


def test_a_mean_over_random_draws_is_refused(tmp_path: Path) -> None:
    draws = draws_of(ranked("fc6@none", "random:2x2"))
    run = selection_runs.write_run(tmp_path, "one", {"test": dict.fromkeys((*draws, C2), np.ones(80))})
    with pytest.raises(RecipeError, match="fc6/random:2x2 is a mean over 2 random draws"):
        compare(run, ("fc6/random:2x2", "c2"))


def test_a_run_without_a_known_embedding_needs_layers(tmp_path: Path) -> None:
    with pytest.raises(LayerprobeError, match="Name two of pool5.3@max, fc6 by --layers"):
        compare(write_run(tmp_path, sizes=SIZES), ())


def test_gone_features_are_named_with_the_command_that_stores_them(tmp_path: Path) -> None:
    run = write_run(tmp_path, sizes=SIZES)
    run.feature_file(1, "test").unlink()
    with pytest.raises(DataError, match="features of pool5.3@max at epoch 1 are gone"):
        compare(run)


def orders(run: Run, order: str) -> list[str]:
    return [x.name for x in compare(run, order=order).classes]


def test_classes_are_sorted_as_asked(tmp_path: Path) -> None:
    run = write_run(tmp_path, sizes=SIZES)
    shrunk = {x.name: x.shrunk or 0 for x in compare(run).classes}
    assert orders(run, "name") == [str(x) for x in range(6)]
    assert orders(run, "size") == ["4", "1", "5", "3", "2", "0"]
    by_loss = [shrunk[name] for name in orders(run, "loss")]
    assert by_loss == sorted(by_loss)
    assert [shrunk[name] for name in orders(run, "gain")] == by_loss[::-1]


def test_files_hold_every_class_and_pair(tmp_path: Path) -> None:
    run = write_run(tmp_path / "cache", sizes=SIZES)
    compared = compare(run, csv=tmp_path / "classes.csv", confusions=tmp_path / "pairs.csv")
    rows = list(csv.DictReader((tmp_path / "classes.csv").read_text().splitlines()))
    assert [(row["class"], float(row["R@1 a"]), row["p"]) for row in rows] == [
        (x.name, x.a, "" if x.p is None else str(x.p)) for x in compared.classes
    ]
    pairs = list(csv.DictReader((tmp_path / "pairs.csv").read_text().splitlines()))
    assert [(row["class"], row["nearest class"], int(row["a"]), int(row["b"])) for row in pairs] == [
        (x.name, x.nearest, x.a, x.b) for x in compared.confusions
    ]
    assert [row["image 1"] for row in pairs] == [x.examples[0].image for x in compared.confusions]
    assert json.loads(json.dumps(encoded(compared)))["a"] == "pool5.3@max~euclidean"


def test_a_file_that_cannot_be_written_is_refused_before_any_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "cache", sizes=SIZES)
    monkeypatch.setattr(module, "nearest_by_layer", None)
    with pytest.raises(LayerprobeError, match="cannot be written as '.txt'"):
        compare(run, csv=tmp_path / "classes.txt")


def test_tables_show_the_first_rows_and_say_where_the_others_are(tmp_path: Path) -> None:
    compared = compare(write_run(tmp_path))
    table, pairs = class_table(compared), confusion_table(compared)
    assert table.columns == ("class", "images", "A", "B", "A - B", "shrunk")
    assert table.heading[1] == "A: pool5.3@max~euclidean, B: fc6~cosine"  # classes of 4 to 6 have no interval
    assert len(pairs.rows) == 12
    assert pairs.notes[0] == f"{len(compared.confusions) - 12} more pairs: --confusions or --json"


def within_folds(run: Run, *_: object) -> tuple[SimpleNamespace, str]:
    """A choice of fc6, whitened within fifths of the test classes."""
    whitened = ranked("fc6@none", "l2+whiten:2:0.5+l2")
    return (
        SimpleNamespace(
            preferred_test=SimpleNamespace(epoch=2, ranked=whitened),
            embedding=SimpleNamespace(whole_gallery=SimpleNamespace(epoch=2, ranked=selection_runs.FC6)),
            chosen=SimpleNamespace(split="test"),
            within_folds=True,
            candidates=3,
        ),
        "the stored choice",
    )


@pytest.fixture
def unranked(tmp_path: Path) -> Run:
    """A run with test classes alone, of features around the centres of their classes."""
    rng, labels = np.random.default_rng(0), labels_of("test")
    values = rng.normal(size=(20, 4))[labels - labels[0]] + 0.7 * rng.normal(size=(80, 4))
    features = {"fc6@none": values.astype(np.float32)}
    hits = {selection_runs.FC6: np.ones(80)}
    return selection_runs.write_run(tmp_path, "one", {"test": hits}, features={"test": features})


def test_a_choice_within_folds_is_compared_within_folds(unranked: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "choice_to_take", within_folds)
    compared = compare(unranked, ())
    labels = labels_of("test")
    with unranked.open_features(2, "test") as file:
        (layer,) = file.layers
        values = file.read(layer)
    folds = folds_of_queries(labels, seed=0)
    b = search(FC6, values, labels, among=folds)
    pairs: dict[tuple[str, str], int] = {}
    for i, x in enumerate(b):
        if x.hit == 0:
            key = str(labels[i]), str(labels[x.nearest])
            pairs[key] = pairs.get(key, 0) + 1
    assert [x.b for x in sorted(compared.classes, key=lambda x: x.name)] == pytest.approx(
        [sum(b[i].hit for i in np.flatnonzero(labels == label)) / 4 for label in np.unique(labels)]
    )
    assert {(x.name, x.nearest): x.b for x in compared.confusions if x.b} == pairs
    for pair in compared.confusions:
        one, other = (int(np.argmax(labels == int(name))) for name in (pair.name, pair.nearest))
        assert folds[one] == folds[other]
    assert compared.within_folds
    assert "both are searched within fifths of the classes" in compared.notes[1]


def test_what_was_chosen_on_these_classes_says_so(unranked: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "choice_to_take", within_folds)
    note = "fc6/l2+whiten:2:0.5+l2 was chosen on these classes: its numbers are those of the best of 3"
    assert compare(unranked, ()).notes[0] == note


def test_the_choice_of_validation_classes_is_compared_with_the_embedding(tmp_path: Path) -> None:
    good, fair = selection_runs.hits(*[4] * 20), selection_runs.hits(*[2] * 20)
    hits = {split: {C2: good, selection_runs.FC6: fair} for split in ("validation", "test")}
    run = selection_runs.write_run(tmp_path, "one", hits, network=network_of("fc6"))
    heard = Silent()
    compared = compare_classes(run, ClassesRequest(), heard)
    assert (compared.a, compared.b) == (C2, selection_runs.FC6)
    assert {x.a for x in compared.classes} == {1.0}
    assert heard.heard[-1].startswith("one: c2@max against the embedding fc6, as ")
    assert not run.choice_file.exists()


def test_the_verdict_is_one_sentence() -> None:
    rows = [SimpleNamespace(name=f"c{i}", difference=d, p=p) for i, (d, p) in enumerate([(-1, 0.01), (-1, 1), (1, 1)])]
    chance = SimpleNamespace(low=0, high=1, p=0.001)
    text = verdict_text(rows, chance, ("a", "b"))  # type: ignore[arg-type] # what it reads of them
    assert text == (
        "2 of 3 classes lose by switching from b to a, and 1 gain; more than chance alone would make lose (0 to 1"
        " would lose if switching did the same to every class, one-sided p ≤ 0.001), and the loss of c0 is significant"
        " (McNemar's exact tests, corrected by Holm for 3 classes)."
    )
    rows[2].p = None
    text = verdict_text(rows, chance, ("a", "b"))  # type: ignore[arg-type] # what it reads of them
    assert text.endswith("corrected by Holm for 2 classes; 1 has ties and no test).")
