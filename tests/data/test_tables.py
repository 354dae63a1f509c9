from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pytest

from layerprobe.data import check, folder
from layerprobe.data.contents import with_digests
from layerprobe.data.image_files import Files
from layerprobe.data.splits import Dataset
from layerprobe.data.tables import PARQUET, load
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from tests.data.tabled import IMAGES, LABELS, PATHS, as_folder, rows, write

STRUCTS = [{"bytes": content, "path": path} for content, path in zip(IMAGES, PATHS, strict=True)]


PARTS = {"test": "query", "gallery": "gallery"}


def table(root: Path, **columns: Sequence[Any]) -> Path:
    return write(root / "t.parquet", rows(**columns))


def ids(dataset: Dataset) -> dict[str, tuple[str, ...]]:
    return {name: split.ids for name, split in dataset.splits.items()}


def files(dataset: Dataset, split: str) -> Files:
    image = dataset.splits[split].image
    assert isinstance(image, Files)
    return image


def hashed(dataset: Dataset, tables: Path) -> dict[str, list[list[int]]]:
    found = with_digests(dataset, tables, None).splits
    return {name: np.asarray(split.digests).tolist() for name, split in found.items()}


def saved(root: Path) -> Path:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=sorted(set(LABELS)))})
    made = datasets.Dataset.from_dict({"image": STRUCTS, "label": LABELS}, features=features)
    datasets.disable_progress_bars()
    made.save_to_disk(root / "saved")
    return root / "saved"


@pytest.mark.parametrize("kind", ["bytes", "structs", "paths", "saved", "absolute"])
def test_the_images_and_classes_are_those_of_the_same_folder(tmp_path: Path, kind: str) -> None:
    expected = folder.load(as_folder(tmp_path))
    absolute = [{"bytes": None, "path": str(tmp_path / path)} for path in PATHS]
    columns: dict[str, Sequence[Any]] = {"bytes": IMAGES, "structs": STRUCTS, "paths": PATHS, "absolute": absolute}
    loaded = load(saved(tmp_path) if kind == "saved" else table(tmp_path, image=columns.get(kind, IMAGES)))
    assert loaded.class_names == expected.class_names
    assert hashed(loaded, tmp_path) == hashed(expected, tmp_path)
    for name, split in expected.splits.items():
        assert loaded.splits[name].labels.tolist() == split.labels.tolist()
        for index in range(len(split)):
            np.testing.assert_array_equal(loaded.splits[name].image(index), split.image(index))


def test_ids_are_the_paths_where_these_differ_and_else_rows(tmp_path: Path) -> None:
    assert ids(load(table(tmp_path, image=STRUCTS))) == {"train": tuple(PATHS[:4]), "test": tuple(PATHS[4:])}
    alike = [{"bytes": content, "path": "0.jpg"} for content in IMAGES]
    assert ids(load(table(tmp_path, image=alike)))["test"] == ("4", "5", "6", "7")
    assert ids(load(table(tmp_path, name=range(10, 18)), id_column="name"))["test"] == ("14", "15", "16", "17")


def test_files_of_several_splits_number_their_own_rows(tmp_path: Path) -> None:
    half = {name: cells[4:] for name, cells in rows().items()}
    write(tmp_path / "train-1.parquet", {name: cells[:2] for name, cells in rows().items()})
    write(tmp_path / "train-2.parquet", {name: cells[2:4] for name, cells in rows().items()})
    write(tmp_path / "test-1.parquet", half)
    assert ids(load(tmp_path)) == {
        "train": tuple(f"train/{i}" for i in range(4)), "test": tuple(f"test/{i}" for i in range(4)),
    }  # fmt: skip
    assert files(load(tmp_path), "train").names[2] == "train-2.parquet:000000000"


@pytest.mark.parametrize("column", ["split", "part"])
def test_a_column_has_the_split_of_each_row(tmp_path: Path, column: str) -> None:
    words = ["test"] * 2 + ["val"] * 2 + ["train"] * 4
    dataset = load(table(tmp_path, **{column: words}), split_column="" if column == "split" else column)
    assert ids(dataset) == {
        "train": tuple(f"train/{i}" for i in range(4)), "validation": ("val/0", "val/1"), "test": ("test/0", "test/1"),
    }  # fmt: skip


def test_queries_are_searched_in_the_gallery(tmp_path: Path) -> None:
    by_name = load(table(tmp_path, split=["query", "gallery"] * 4))
    assert by_name.search_in == {"test": "gallery"}
    assert ids(by_name) == {kind: tuple(f"{name}/{i}" for i in range(4)) for kind, name in PARTS.items()}
    by_flags = load(table(tmp_path, is_query=[True, False] * 4, is_gallery=[False, True] * 4))
    assert [list(files(by_flags, name).names) for name in ("test", "gallery")] == [
        list(files(by_name, name).names) for name in ("test", "gallery")
    ]


def test_one_split_of_several_is_divided_by_its_classes(tmp_path: Path) -> None:
    path = table(tmp_path, split=["train", "test"] * 4)
    what = "4 classes are in train and in test, such as ant, but .*Use one alone by --set data.use_split=NAME"
    with pytest.raises(DataError, match=what):
        load(path)
    dataset = load(path, use_split="test", train_classes=0)
    assert ids(dataset) == {"test": tuple(f"test/{i}" for i in range(4))}
    assert dataset.class_names == ("ant", "bee", "cat", "dog")


def test_further_plain_columns_are_kept_as_text(tmp_path: Path) -> None:
    day = datetime.date(2026, 1, 2)
    columns = load(table(tmp_path, camera=[1, None] * 4, day=[day] * 8, box=[[0, 1]] * 8)).splits["train"].columns
    assert columns == {"camera": ("1", "", "1", ""), "day": ("2026-01-02",) * 4}


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"label": [*LABELS[:7], None]}, {}, r"t\.parquet: row 7: has no label"),
        ({"label": [*LABELS[:7], ""]}, {}, r"t\.parquet: row 7: has no label"),
        ({"image": [*PATHS[:7], None]}, {}, r"t\.parquet: row 7: has no image"),
        ({"image": [*PATHS[:7], "/etc/x.png"]}, {}, r"t\.parquet: row 7: path leaves the data folder: '/etc/x.png'"),
        ({"image": [*PATHS[:7], "x.png"]}, {}, r"1 of 8 listed images are missing: x\.png"),
        ({"image": [*PATHS[:7], PATHS[0]]}, {}, r"row 7: ant/0\.jpg is in .*t\.parquet: row 0 already"),
        ({"n": [*range(7), 3]}, {"id_column": "n"}, r"row 7: 3 is in .*t\.parquet: row 3 already"),
        ({"split": [*["train"] * 4, *["tset"] * 4]}, {}, "row 4: 'tset' is not known as a split. Known: train, valid"),
        ({"split": [*["train"] * 7, None]}, {}, "row 7: has no split"),
        ({"is_query": [True] * 7 + [False], "is_gallery": [False] * 8}, {}, "row 7: is_query and is_gallery are both"),
        ({"is_query": ["yes"] * 8}, {}, "row 0: is_query is 'yes'. Expected true or false"),
        ({"label": ["a"] * 4 + ["b"] * 4}, {}, "has 2 classes here; .*put all into test by --set data.train_classes=0"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(
    tmp_path: Path, columns: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    as_folder(tmp_path)
    with pytest.raises(DataError, match=message):
        load(table(tmp_path, **columns), **options)


def test_a_column_of_no_image_at_all_is_told_where_it_is_read(tmp_path: Path) -> None:
    dataset = load(table(tmp_path, image=pyarrow.array([None] * 8, pyarrow.binary())))
    with pytest.raises(DataError, match="row 4: has no image"):
        dataset.splits["test"].image(0)


def test_a_label_that_names_no_class_is_named(tmp_path: Path) -> None:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    made = datasets.Dataset.from_dict({"image": STRUCTS, "label": [*[0, 1] * 3, 0, -1]}, features=features)
    datasets.disable_progress_bars()
    made.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match="row 7: has the label -1, which no class has"):
        load(tmp_path / "t.parquet")


def test_keys_that_do_not_fit_the_table_are_told(tmp_path: Path) -> None:
    path = table(tmp_path, split=["train"] * 4 + ["test"] * 4)
    with pytest.raises(UnknownNameError, match="unknown split in data.use_split: 'tset'. Did you mean 'test'?"):
        load(path, use_split="tset")
    with pytest.raises(RecipeError, match="data.train_classes = 2: the splits say which classes are for training"):
        load(path, train_classes=2)
    with pytest.raises(UnknownNameError, match="column of texts or numbers in data.id_column: 'labl'"):
        load(path, id_column="labl")
    with pytest.raises(RecipeError, match="data.use_split = a: this table has no splits"):
        load(table(tmp_path), use_split="a")


def test_the_same_rows_of_another_column_are_other_images(tmp_path: Path) -> None:
    path = table(tmp_path, mask=IMAGES[::-1])
    one, other = (load(path, image_column=name) for name in ("image", "mask"))
    assert files(one, "test").paths != files(other, "test").paths
    assert hashed(one, tmp_path)["test"] == hashed(other, tmp_path)["train"][::-1]


def test_processes_check_every_row_of_a_damaged_table(tmp_path: Path) -> None:
    assert PARQUET.unchecked is not None
    path = table(tmp_path, image=[*IMAGES[:5], None, IMAGES[6][:99], b"text"], split=["train", "test"] * 4)
    split = PARQUET.unchecked(path).splits["test"]
    found = {result.index: [finding.kind for finding in result.findings] for result in check.examine(split, workers=1)}
    assert found == {0: [], 1: [], 2: ["missing"], 3: ["not an image"]}
