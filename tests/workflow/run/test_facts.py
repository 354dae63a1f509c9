from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from layerprobe import store
from layerprobe.values.facts import SplitFacts
from layerprobe.values.intervals import Interval
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score, ScoreTable
from layerprobe.workflow.run.facts import data_facts, score_tables
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import weights_text
from tests.records import recorded
from tests.scores import CLUSTERS, with_layer
from tests.workflow.rank_files import FC6 as FC6_RANKED
from tests.workflow.rank_files import POOL5, ranks_of, written
from tests.workflow.rank_files import stored as stored_ranks

FC6 = LayerKey("fc6", "none")
SCORE = Score("one", "abc", 0, 1, "test", RankedLayer(LayerKey("fc6", "none"), "none", "cosine"), "R@1", 0.5, None, 4)
RECORD = {
    "state": "finished", "recipe_name": "netA", "experiment": "abc", "seed": 0, "epochs_done": 1, "hashes": {},
    "manifests": {}, "new_parameters": [],
}  # fmt: skip


def stored(run: Run, epoch: int, split: str, labels: list[int], ids: Sequence[str] = ()) -> None:
    key = store.FeatureKey(run.name, epoch, split, "", "", "")
    rows = store.Rows(np.array(labels), ids or [f"{split}{i}" for i in range(len(labels))])
    features = {FC6: np.zeros((len(labels), 1), np.float32)}
    store.write_features(run.feature_file(epoch, split), key, rows, store.Columns({FC6: 1}, "cpu", 1), [features])


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({"name": "glyphs", "root": None}, "glyphs"),
        ({"name": "cub200", "root": "data/CUB_200_2011"}, "cub200:CUB_200_2011"),
        ({"name": "folder", "root": "birds/"}, "folder:birds"),
    ],
)
def test_the_data_set_is_the_recipes(tmp_path: Path, data: dict[str, object], name: str) -> None:
    run = Run(tmp_path / "one")
    run.write(recorded(RECORD | {"recipe": {"data": data, "train": {"epochs": 1}}}))
    assert data_facts(run, [SCORE]).name == name


FILE = {"path": "/x/own.pth", "part": None, "sha256": "0", "size": 3, "epoch": 0}


@pytest.mark.parametrize(
    ("weights", "more", "text"),
    [
        ("/x/own.pth", {"weights_files": [FILE]}, "weights of own.pth"),
        ("run:netA", {"weights_files": [FILE]}, "weights of run:netA"),
        ("/x/*.pth", {"weights_files": [FILE, FILE | {"epoch": 1}], "epochs_done": 1}, ""),
        ("/x/epoch5.pth", {"weights_files": [FILE | {"epoch": 5}], "epochs_done": 5}, ""),
        ("none", {}, ""),
        ("model", {}, ""),
        ("none", {"from_python": True, "untrained": False}, "weights as given"),
        ("none", {"from_python": True}, ""),  # a watched training
    ],
)
def test_only_weights_that_are_no_trainings_start_have_a_name_instead_of_an_epoch(
    weights: str, more: dict[str, object], text: str
) -> None:
    record = RECORD | {"epochs_done": 0, "recipe": {"net": {"weights": weights}, "data": {}}, **more}
    assert weights_text(recorded(record)) == text


@pytest.mark.parametrize(
    ("net", "untrained", "epoch", "new"),
    [
        ({}, True, 1, True),
        ({"weights": "imagenet"}, True, 1, True),
        ({"weights": "imagenet"}, True, 0, False),
        ({}, False, 1, False),  # the epochs are files of somebody's training, who may have used other classes
    ],
)
def test_test_classes_are_new_to_a_network_that_was_trained_here(
    tmp_path: Path, net: dict[str, object], untrained: bool, epoch: int, new: bool
) -> None:
    run = Run(tmp_path / "one")
    run.write(recorded(RECORD | {"untrained": untrained, "recipe": {"net": net, "train": {"epochs": 1}}}))
    assert data_facts(run, [replace(SCORE, epoch=epoch)]).held_out is new


def test_test_classes_of_the_classification_protocol_are_trained_on(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    data = {"name": "digits", "protocol": "classification"}
    run.write(recorded(RECORD | {"untrained": True, "recipe": {"data": data, "net": {}, "train": {"epochs": 1}}}))
    assert not data_facts(run, [replace(SCORE, epoch=1)]).held_out


@pytest.mark.parametrize(
    ("recipe", "seen"),
    [
        ({"train": {"epochs": 0}, "net": {"weights": "model"}}, False),
        ({"train": {"epochs": 0}, "net": {"weights": "tuned.pt"}}, True),
        ({"train": {"epochs": 0}, "net": {"weights": "tuned.pt"}, "data": {"seen": False}}, False),
        ({"train": {"epochs": 2}, "net": {"weights": "imagenet"}}, True),  # not trained yet, but it will be
    ],
)
def test_train_is_unseen_of_a_network_that_is_not_trained_on_it(
    tmp_path: Path, recipe: dict[str, object], seen: bool
) -> None:
    run = Run(tmp_path / "one")
    run.write(recorded(RECORD | {"epochs_done": 0, "recipe": recipe}))
    assert data_facts(run, [replace(SCORE, epoch=0)]).seen is seen


def test_the_network_is_that_of_the_record(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    network: dict[str, object] = {
        "layers": ["c1", "fc6"],
        "embedding": ["fc6", "none"],
        "cuts": {},
        "input": None,
        "files": {},
    }
    run.write(recorded(RECORD | {"recipe": {"net": {"name": "lenet"}}, "network": network}))
    facts = data_facts(run, [SCORE])
    assert (facts.network, facts.layers) == ("lenet", ("c1", "fc6"))


def test_queries_and_classes_are_counted_in_the_stored_labels_and_the_splits_ordered(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    stored(run, 1, "test", [0, 0, 1, 1])
    stored(run, 1, "train", [0, 0, 0, 1, 1, 1])
    facts = data_facts(run, [SCORE, replace(SCORE, split="train"), replace(SCORE, run="two", split="validation")])
    # another of the class among the others: 2 of 5, and 1 of 3
    assert {split: (found.queries, found.classes) for split, found in facts.splits.items()} == {
        "train": (6, 2),
        "test": (4, 2),
    }
    assert list(facts.splits) == ["train", "test"]
    assert [found.chance for found in facts.splits.values()] == pytest.approx([2 / 5, 1 / 3])


def test_chance_is_against_the_gallery_where_there_is_one(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    stored(run, 1, "test", [0, 1])
    stored(run, 1, "gallery", [0, 0, 1, 2, 2])
    # the first query's class is 2 of 5 in the gallery, the second's 1 of 5
    facts = data_facts(run, [SCORE]).splits["test"]
    assert (facts.queries, facts.classes, facts.gallery) == (2, 2, 5)
    assert facts.chance == pytest.approx(0.3)


def test_a_query_in_the_gallery_does_not_find_itself_by_chance(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    stored(run, 1, "test", [0, 1], ids=("a", "b"))
    stored(run, 1, "gallery", [0, 0, 1, 1, 2], ids=("a", "x", "y", "z", "w"))
    # a finds 1 of its class among the 4 others, b 2 of 5
    facts = data_facts(run, [SCORE]).splits["test"]
    assert facts.chance == pytest.approx((1 / 4 + 2 / 5) / 2)


def test_chance_is_that_of_the_groups_and_lists_where_ranks_have_it(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    stored(run, 1, "test", [0, 0, 1, 1])
    run.rank_file(1, "test").parent.mkdir()
    store.write_ranks(run.rank_file(1, "test"), store.Rows(np.zeros(4, np.int64), list("abcd")), {}, chance=0.125)
    assert data_facts(run, [SCORE]).splits["test"].chance == 0.125
    store.write_ranks(run.rank_file(1, "test"), store.Rows(np.zeros(4, np.int64), list("abcd")), {})
    assert data_facts(run, [SCORE]).splits["test"].chance == pytest.approx(1 / 3)


def test_no_id_is_decoded_where_ranks_have_the_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path / "one")
    stored(run, 1, "test", [0, 0, 1, 1])
    run.rank_file(1, "test").parent.mkdir()
    store.write_ranks(run.rank_file(1, "test"), store.Rows(np.array([0, 1]), ["test0", "test2"]), {}, chance=0.125)
    monkeypatch.setattr(store.FeatureHead, "ids", property(lambda _: pytest.fail("decoded")))
    # two of the four images are searched for
    assert data_facts(run, [SCORE]).splits["test"] == SplitFacts(2, classes=2, gallery=4, chance=0.125)


@pytest.mark.parametrize(("data", "chance"), [({"group": "camera"}, None), ({"group": ""}, 1 / 3), ({}, 1 / 3)])
def test_chance_is_unknown_where_a_recipe_has_rules_and_the_ranks_are_gone(
    tmp_path: Path, data: dict[str, object], chance: float | None
) -> None:
    run = Run(tmp_path / "one")
    run.write(recorded(RECORD | {"recipe": {"data": {"name": "csv", **data}, "train": {"epochs": 1}}}))
    stored(run, 1, "test", [0, 0, 1, 1])
    found = data_facts(run, [SCORE]).splits["test"]
    assert found.queries == 4
    assert found.chance == (chance and pytest.approx(chance))


def test_features_of_an_earlier_epoch_tell_it_too_and_without_any_it_is_unknown(tmp_path: Path) -> None:
    run, scores = Run(tmp_path / "one"), [SCORE, replace(SCORE, epoch=0)]
    assert data_facts(run, scores).splits == {"test": SplitFacts(4)}
    stored(run, 0, "test", [0, 0, 1, 1])
    assert data_facts(run, scores).splits["test"].classes == 2


def test_features_that_another_program_writes_to_leave_it_unknown(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    stored(run, 1, "test", [0, 0, 1, 1])
    with h5py.File(run.feature_file(1, "test"), "r+"):
        assert data_facts(run, [SCORE]).splits == {"test": SplitFacts(4)}


def test_the_tables_are_of_the_last_epoch_and_know_the_untrained_one(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    ScoreTable([replace(SCORE, epoch=0, value=0.75), SCORE]).write(run.scores_file)
    nmi = replace(SCORE, metric="NMI")
    layers, further = score_tables(run, [replace(SCORE, epoch=0, value=0.75), SCORE, nmi])
    assert [row[1:] for row in layers.rows] == [("fc6", "50.0")]
    assert layers.heading[1:] == ("test: 4 queries",)
    assert (
        layers.notes[1]
        == "training made test R@1 worse at fc6: 50.0 %, untrained 75.0 %, which no trained layer reaches"
    )
    assert further.rows == (("NMI", "fc6", "50.0"),)


def test_the_table_names_the_layers_that_are_not_told_apart_from_the_best(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    hits = [float(query != 3) for query in range(24)]
    scores = stored_ranks(run, 1, "test", {POOL5: ranks_of([*hits[:-1], 0.0]), FC6_RANKED: ranks_of(hits)})
    sure = [replace(score, interval=Interval(0.5, 1.0)) for score in scores]
    written(run, sure)
    (table,) = score_tables(run, sure)
    # 23 of 24 queries
    assert table.notes[0] == "* best on test (chosen on test): fc6, 95.8 %; not significantly different: pool5@max"


def test_each_post_processing_has_a_table_and_a_best_layer_of_its_own(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    ScoreTable([SCORE]).write(run.scores_file)
    values = {("none", "fc6"): 0.5, ("none", "pool5"): 0.25, ("l2", "fc6"): 0.625, ("l2", "pool5"): 0.75}
    scores = [
        replace(with_layer(SCORE, layer=layer, post_processing=post_processing), value=value)
        for (post_processing, layer), value in values.items()
    ]
    raw, post_processed = score_tables(run, scores[::-1])
    assert [table.rows[table.marked or 0][1] for table in (raw, post_processed)] == ["fc6", "pool5/l2"]
    assert raw.heading[0] == "one, epoch 1, R@1 in %, cosine"
    assert post_processed.heading[0] == "one, epoch 1, R@1 in %, cosine"
    assert "test: 4 queries" in raw.heading
    assert "test: 4 queries" not in post_processed.heading


def test_what_is_said_of_layers_as_they_are_is_not_said_of_post_processed_ones_again(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    raw = replace(SCORE, interval=Interval(0.4, 0.6), notes=("12 files are absent",), units=CLUSTERS)
    post_processed = replace(with_layer(raw, post_processing="l2"), notes=("mean of 5 draws", *raw.notes))
    ScoreTable([raw, post_processed]).write(run.scores_file)
    first, second = score_tables(run, [raw, post_processed])
    assert first.notes[1:] == ("test, fc6: 12 files are absent",)
    assert second.notes[1:] == ("test, fc6/l2: mean of 5 draws",)
    assert (
        second.heading[-1]
        == first.heading[-1]
        == ("in brackets: 95 % interval over clusters of classes (parent), against this gallery")
    )


@pytest.mark.parametrize(
    ("weights", "told", "start"),
    [
        ("none", {}, "untrained"),
        ("imagenet", {}, "pretrained"),
        ("model", {}, "pretrained"),
        ("ckpt/*.pt", {"untrained": False}, "epoch 0"),
    ],
)
def test_epoch_0_is_called_by_where_its_weights_come_from(
    tmp_path: Path, weights: str, told: dict[str, object], start: str
) -> None:
    run = Run(tmp_path / "one")
    run.write(recorded(RECORD | told | {"recipe": {"data": {"name": "glyphs"}, "net": {"weights": weights}}}))
    assert data_facts(run, [SCORE]).start == start


def test_what_a_users_function_gives_is_not_called_untrained(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    run.write(recorded(RECORD | {"recipe": {"data": {"name": "glyphs"}, "net": {"name": "python:mine.py:build"}}}))
    assert data_facts(run, [SCORE]).start == "epoch 0"
