from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from layerprobe.data.splits import Dataset, Split
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.values.retrieval import SearchRules
from layerprobe.workflow.run.units import require_redrawable, units_of, units_of_splits

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
