from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerprobe import store
from layerprobe.summary.cells import Faults
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score, Subject
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.summary.post_processed import processings_of
from layerprobe.workflow.summary.summary import stored_summary
from tests.workflow.rank_files import FC6, LABELS, POOL5, first_hit, ranks_of, stored, written

L2 = RankedLayer(FC6.layer, "l2", "cosine")
DRAWS = [RankedLayer(FC6.layer, name, "cosine") for name in ("random:8", "random:8:1")]
MEAN = RankedLayer(FC6.layer, "random:8x2", "cosine")


def mean_score(run: Run, split: str = "test") -> Score:
    """The score of a mean of draws, whose ranks are those of its draws."""
    return Subject(run.name, "abc", 0, 5, split, MEAN).score("R@1", 0.5, 24)


def test_the_columns_say_what_post_processing_gives() -> None:
    layers = [L2, FC6, MEAN, RankedLayer(FC6.layer, "pca:8@gallery", "cosine")]
    found = [
        (processing.post_processing, processing.dim, processing.draws, processing.on_gallery)
        for processing in processings_of(layers)
    ]
    assert found == [
        ("none", None, 1, False),
        ("l2", None, 1, False),
        ("random:8x2", 8, 2, False),
        ("pca:8@gallery", 8, 1, True),
    ]


def test_post_processing_that_is_not_registered_is_a_column_of_its_own() -> None:
    (processing,) = processings_of([RankedLayer(FC6.layer, "mine:3", "cosine")])
    assert (processing.post_processing, processing.dim) == ("mine:3", None)


def test_recall_after_random_projection_is_the_mean_of_the_draws(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    stored(run, 5, "test", {FC6: first_hit(9), DRAWS[0]: first_hit(6), DRAWS[1]: first_hit(3)})
    raw = Subject(run.name, "abc", 0, 5, "test", FC6).score("R@1", 9 / 24, 24)
    written(run, [raw, mean_score(run)])
    found = stored_summary(run)
    (section,) = found.sections
    assert (section.dim, section.values["test"]) == (8, {FC6: 9 / 24, MEAN: pytest.approx((6 + 3) / 2 / 24)})
    assert [layer.ranked for layer in found.layers] == [FC6, MEAN]


def test_a_mean_of_draws_has_the_faults_of_the_worst(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    faulty = ranks_of([1.0] * 24, tied=20, zeros=3)
    stored(run, 5, "test", {DRAWS[0]: first_hit(6), DRAWS[1]: faulty})
    written(run, [mean_score(run)])
    assert stored_summary(run).layers[0].faults["test"] == Faults(tied=20 / 24, zeros=3)


def test_a_mean_of_draws_without_one_of_them_is_left_out(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    scores = stored(run, 5, "test", {FC6: first_hit(9), DRAWS[0]: first_hit(6)})
    written(run, [scores[0], mean_score(run)])
    found = stored_summary(run)
    assert found.sections == ()
    assert "test, epoch 5: fc6 skipped, as their ranks are not stored; probe them again" in found.notes


@pytest.mark.parametrize(
    ("splits", "record", "split", "note"),
    [
        (("validation", "test"), {}, "validation", None),
        (
            ("train", "test"),
            {},
            None,
            "there are no others; layerprobe choose one .* cross-fits over them",
        ),
        (("train", "test"), {"epochs": 0}, "train", "layerprobe choose fits them on others"),
        (("test",), {"epochs": 0}, None, "on train; layerprobe probe one --splits train .* with the same --post"),
        (("train", "test"), {"hidden": "validation"}, None, "on validation; layerprobe probe one --splits validation"),
        (("test",), {"hidden": ""}, None, "there are no others; layerprobe choose one .* cross-fits over them"),
    ],
)
def test_post_processing_is_chosen_on_classes_that_the_network_has_not_seen(
    tmp_path: Path, splits: tuple[str, ...], record: Mapping[str, Any], split: str | None, note: str | None
) -> None:
    run = Run(tmp_path / "one")
    entries, labels = {FC6: first_hit(6), L2: first_hit(9)}, LABELS["train"] + 50
    scores = [stored(run, record.get("epochs", 5), name, entries, labels=LABELS.get(name, labels)) for name in splits]
    held = record.get("hidden", "train")
    written(run, *scores, manifests=dict.fromkeys([*splits, *([held] if held else [])], "m"))
    found = stored_summary(run).processed
    assert found is not None
    assert found.split == split
    assert [layer.ranked for layer in found.layers] == [L2] * (split is not None)
    assert found.notes == () if note is None else re.search(note, found.notes[-1])


def test_post_processing_is_not_spoken_of_without_post_processing(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    written(run, stored(run, 5, "test", {FC6: first_hit(6), POOL5: first_hit(9)}))
    assert stored_summary(run).processed is None


def features(run: Run, dims: Mapping[LayerKey, int]) -> None:
    """Stored features of so many dimensions."""
    rows = store.Rows(np.zeros(4, np.int64), [f"{i}.png" for i in range(4)])
    values = {layer: np.zeros((4, dim), np.float32) for layer, dim in dims.items()}
    key = store.FeatureKey(run.name, 5, "test", "w", "resize", "m")
    store.write_features(run.feature_file(5, "test"), key, rows, store.Columns(dims, "cpu", 4), [values])


@pytest.mark.parametrize(
    ("dims", "hint"),
    [
        (
            (6, 3),
            "the layers have 3 to 6 dimensions; layerprobe probe one --epochs 5 --equal-dim 3",
        ),
        ((4096, 512), "the layers have 512 to 4,096 dimensions; layerprobe probe one --epochs 5 --equal-dim 128"),
        ((3, 3), None),
    ],
)
def test_layers_of_different_dimensions_have_a_hint(tmp_path: Path, dims: tuple[int, int], hint: str | None) -> None:
    run = Run(tmp_path / "one")
    written(run, stored(run, 5, "test", {POOL5: first_hit(6), FC6: first_hit(9)}))
    features(run, {POOL5.layer: dims[0], FC6.layer: dims[1]})
    notes = [note for note in stored_summary(run).notes if "equal-dim" in note]
    assert len(notes) == (hint is not None)
    assert all(hint is not None and note.startswith(hint) for note in notes)


def test_there_is_no_hint_where_an_equal_dimension_is_stored(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    pca = RankedLayer(FC6.layer, "pca:3", "cosine")
    written(run, stored(run, 5, "test", {POOL5: first_hit(6), FC6: first_hit(9), pca: first_hit(9)}))
    features(run, {POOL5.layer: 6, FC6.layer: 3})
    assert not any("equal-dim" in note for note in stored_summary(run).notes)


@pytest.mark.parametrize(
    ("others", "note"),
    [
        ((L2,), "^in-sample on the selection classes, so not chosen there: lda:2$"),
        ((), "^no post-processing can be chosen without the classes of test: in-sample on the selection classes"),
    ],
)
def test_post_processing_that_is_fitted_with_the_selection_classes_is_named_and_not_chosen(
    tmp_path: Path, others: tuple[RankedLayer, ...], note: str
) -> None:
    run, lda = Run(tmp_path / "one"), replace(FC6, post_processing="lda:2")
    entries = {FC6: first_hit(6), lda: first_hit(12)} | dict.fromkeys(others, first_hit(9))
    scores = [stored(run, 0, split, entries) for split in ("train", "test")]
    written(run, *scores, manifests={"train": "m", "test": "m"})
    found = stored_summary(run).processed
    assert found is not None
    assert [layer.ranked for layer in found.layers] == list(others)
    assert re.search(note, found.notes[0])
