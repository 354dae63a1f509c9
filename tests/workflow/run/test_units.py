from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from layerprobe import store
from layerprobe.data.splits import Dataset, Split
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.values.retrieval import SearchRules
from layerprobe.workflow.run import from_recipe, units
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.units import (
    column_note,
    folders_note,
    folders_note_of_run,
    require_redrawable,
    units_of,
    units_of_run,
    units_of_splits,
)
from tests.records import rewrite
from tests.workflow.drawn_run import write_run

IDS = ("a", "b", "c", "d")
LABELS = np.array([0, 1, 2, 2])


def dataset(names: tuple[str, ...], columns: Mapping[str, tuple[str, ...]] | None = None) -> Dataset:
    def image(index: int) -> np.ndarray:
        return np.zeros((1, 1, 3), np.uint8)

    return Dataset({"test": Split("test", LABELS, IDS, image, columns=columns or {})}, names)


def same(units: np.ndarray) -> list[int]:
    """For each image the first that shares its unit."""
    return [units.tolist().index(unit) for unit in units.tolist()]


def test_without_a_column_the_units_are_the_classes() -> None:
    assert units_of(dataset(("x", "y", "z")), IDS, LABELS, None).tolist() == [0, 1, 2, 2]


def test_the_parent_is_the_folder_above_the_class() -> None:
    found = units_of(dataset(("Greek/alpha", "Greek/beta", "Latin/a")), IDS, LABELS, "parent")
    assert same(found) == [0, 0, 2, 2]


def test_classes_without_a_folder_above_are_units_of_their_own() -> None:
    assert same(units_of(dataset(("x", "y", "Latin/a")), IDS, LABELS, "parent")) == [0, 1, 2, 2]


def test_a_column_gives_the_units_and_an_empty_cell_its_own() -> None:
    found = units_of(dataset(("x", "y", "z"), {"camera": ("", "1", "1", "")}), IDS, LABELS, "camera")
    assert same(found) == [0, 1, 1, 3]


def test_images_are_found_by_their_ids() -> None:
    found = units_of(dataset(("x", "y", "z"), {"camera": ("1", "2", "1", "2")}), ("d", "a"), LABELS[[3, 0]], "camera")
    assert same(found) == [0, 1]
    with pytest.raises(DataError, match="no image e"):
        units_of(dataset(("x", "y", "z"), {"camera": ("1", "2", "1", "2")}), ("e",), LABELS[:1], "camera")


def test_what_cannot_be_a_unit_is_refused() -> None:
    with pytest.raises(RecipeError, match="no class has a folder above"):
        units_of(dataset(("x", "y", "z")), IDS, LABELS, "parent")
    with pytest.raises(UnknownNameError, match="Did you mean 'camera'"):
        units_of(dataset(("x", "y", "z"), {"camera": ("1", "2", "1", "2")}), IDS, LABELS, "camra")


def test_units_that_divide_a_class_cannot_be_left_out() -> None:
    made = dataset(("x", "y", "z"), {"camera": ("1", "1", "1", "2")})
    require_redrawable(made, ["test"], {"test": LABELS}, None)
    with pytest.raises(RecipeError, match="leaves out whole classes; column camera divides class z"):
        require_redrawable(made, ["test"], {"test": units_of(made, IDS, LABELS, "camera")}, "camera")


def test_a_class_is_not_divided_between_queries_and_gallery_either() -> None:
    queries = dataset(("x", "y", "z")).splits["test"]
    gallery = replace(queries, name="gallery")
    made = Dataset({"test": queries, "gallery": gallery}, ("x", "y", "z"), search_in={"test": "gallery"})
    require_redrawable(made, ["test"], {"test": LABELS, "gallery": LABELS}, None)
    with pytest.raises(RecipeError, match="column camera divides class y"):
        require_redrawable(made, ["test"], {"test": LABELS, "gallery": np.array([0, 5, 2, 2])}, "camera")


def test_listed_right_items_cannot_be_redrawn() -> None:
    listed = replace(dataset(("x", "y", "z")), search_rules={"test": SearchRules(positives=np.array([[2, 3]]))})
    with pytest.raises(RecipeError, match=r"data.positives lists the right items of test, so that classes"):
        require_redrawable(listed, ["test"], {"test": LABELS}, None)


def test_classes_that_share_labels_cannot_be_redrawn() -> None:
    rules = {"test": SearchRules(label_sets=np.array([[0, 0], [1, 0], [2, 1]]))}
    with pytest.raises(RecipeError, match=r"an image of test may have several labels, so that classes cannot be left"):
        require_redrawable(replace(dataset(("x", "y", "z")), search_rules=rules), ["test"], {"test": LABELS}, None)


def test_a_cluster_has_one_number_in_all_splits() -> None:
    found = units_of_splits(
        dataset(("Greek/alpha", "Greek/beta", "Latin/a")),
        {"test": (LABELS[[0, 2]], ("a", "c")), "gallery": (LABELS[[1]], ("b",))},
        "parent",
    )
    assert found["test"].tolist() == [found["gallery"].item(), found["test"][1]]
    assert len(set(found["test"].tolist())) == 2


def test_the_units_of_a_run_are_numbered_alike_in_all_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_read(_: object) -> None:
        raise AssertionError

    images = {"train": (LABELS[[0]], IDS[:1]), "test": (LABELS[1:], IDS[1:])}
    run = write_run(tmp_path)
    monkeypatch.setattr(units, "recorded_recipe", lambda *_: SimpleNamespace(data=None))
    monkeypatch.setattr(from_recipe, "load_dataset", not_read)
    found = units_of_run(run, images, None)
    assert {split: numbers.tolist() for split, numbers in found.items()} == {"train": [0], "test": [1, 2, 2]}
    nested = dataset(("Greek/alpha", "Greek/beta", "Latin/a"))
    monkeypatch.setattr(from_recipe, "load_dataset", lambda _: nested)
    found = units_of_run(run, images, "parent")
    assert found["train"][0] == found["test"][0] != found["test"][1] == found["test"][2]


def test_a_note_says_that_classes_lie_in_folders_of_several() -> None:
    names = ("Greek/alpha", "Greek/beta", "Latin/a", "digit")
    note = "classes lie in 2 folders (Greek, Latin): if those of a folder are alike, add --cluster parent"
    assert folders_note(names) == note
    assert folders_note(("Greek/alpha", "Latin/a")) is None  # a class a folder
    assert folders_note(("Greek/alpha", "Greek/beta")) is None  # one folder
    assert folders_note(("alpha", "beta", "a")) is None


def test_a_run_without_stored_classes_has_no_note_on_folders(tmp_path: Path) -> None:
    assert folders_note_of_run(Run(tmp_path / "one"), 0, "test") is None


def test_a_note_says_that_classes_share_the_values_of_a_column() -> None:
    labels = np.repeat(np.arange(4), 2)
    ids = tuple("abcdefgh")
    columns = {
        "camera": tuple("12121212"),  # divides classes
        "name": tuple("ssttuuvv"),  # a value for each class
        "source": tuple("11111111"),
        "family": tuple("ppppqqqq"),
    }
    split = replace(dataset(("x",)).splits["test"], labels=labels, ids=ids, columns=columns)
    made = Dataset({"test": split}, ("w", "x", "y", "z"))
    note = "classes share 2 values of column family: if those of a value are alike, add --cluster family"
    assert column_note(made, ids, labels) == note
    del columns["family"]
    assert column_note(made, ids, labels) is None


def test_the_note_of_a_run_is_on_its_stored_classes_or_on_its_csv_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path)
    names = tuple(f"{label // 2}/{label}" for label in range(11))
    monkeypatch.setattr(Run, "feature_head", lambda *_: store.FeatureHead(DataError("not read"), {}, {}, names))
    assert str(folders_note_of_run(run, 1, "test")).startswith("classes lie in 6 folders (0, 1, 2, 3, 4 and 1 more)")
    monkeypatch.setattr(Run, "feature_head", lambda *_: store.FeatureHead(DataError("not read"), {}, {}))
    assert folders_note_of_run(run, 1, "test") is None
    rewrite(run, recipe={"data": {"name": "csv"}})
    labels, ids = run.ranks(1, "test").rows
    split = Split("test", labels.astype(np.int64), ids, lambda _: np.zeros((1, 1, 3), np.uint8))
    listed = replace(split, columns={"family": tuple(f"f{label // 3}" for label in labels)})
    monkeypatch.setattr(units, "recorded_recipe", lambda *_: SimpleNamespace(data=None))
    monkeypatch.setattr(from_recipe, "load_dataset", lambda _: Dataset({"test": listed}, names))
    assert str(folders_note_of_run(run, 1, "test")).startswith("classes share 4 values of column family")
