from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pandas as pd
import pyarrow
import pytest

from layerprobe.data.table_files import ImageTable, TableFile, read_table, table_files
from layerprobe.system.errors import DataError, EnvironmentFault, RecipeError, UnknownNameError
from layerprobe.system.naming import name_model
from tests.data.tabled import IMAGES, LABELS, PATHS, rows, write


def splits(root: Path) -> list[tuple[str, str]]:
    files = table_files(root)
    return [(file.path.relative_to(files.folder).as_posix(), file.split) for file in files.files]


def saved(folder: Path, *files: str, **state: object) -> None:
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in files], **state}))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of `datasets`, empty; nobody has named a data set."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def cached(hub: Path, place: str, *names: str) -> Path:
    folder = hub / place
    folder.mkdir(parents=True)
    info = {"splits": {name: {"dataset_name": "my_birds"} for name in names}}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    for name in names:
        (folder / f"my_birds-{name}.arrow").touch()
    return folder


@pytest.mark.parametrize(
    ("names", "of"),
    [
        (["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"], ["train", "train"]),
        (["default/test/0000.parquet", "default/train/0000.parquet"], ["test", "train"]),
        (["gallery.parquet", "query.parquet"], ["gallery", "query"]),
        (["part-0.parquet", "part-1.parquet"], ["", ""]),
    ],
)
def test_files_are_of_the_split_that_they_or_their_folder_are_called_by(
    tmp_path: Path, names: list[str], of: list[str]
) -> None:
    for name in names:
        write(tmp_path / name, rows())
    write(tmp_path / ".cache" / "val.parquet", rows())
    assert splits(tmp_path) == list(zip(names, of, strict=True))


def test_a_file_that_no_split_is_called_by_is_not_guessed_to_be_of_one(tmp_path: Path) -> None:
    for name in ("extra.parquet", "train.parquet"):
        write(tmp_path / name, rows())
    with pytest.raises(DataError, match=r"train\.parquet is called like a split, extra\.parquet is not"):
        table_files(tmp_path)


def test_a_glob_names_some_files(tmp_path: Path) -> None:
    for name in ("test-0.parquet", "train-0.parquet", "train-1.parquet"):
        write(tmp_path / name, rows())
    assert splits(tmp_path / "train-*.parquet") == [("train-0.parquet", "train"), ("train-1.parquet", "train")]
    with pytest.raises(DataError, match="no file has such a name"):
        table_files(tmp_path / "val-*.parquet")


def test_a_saved_data_set_has_its_files_in_its_order(tmp_path: Path) -> None:
    saved(tmp_path / "one", "b.arrow", "a.arrow")
    assert splits(tmp_path / "one") == [("b.arrow", ""), ("a.arrow", "")]


def test_a_saved_dictionary_has_splits_by_its_keys(tmp_path: Path) -> None:
    for name in ("train", "test"):
        saved(tmp_path / name, "a.arrow")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert splits(tmp_path) == [("train/a.arrow", "train"), ("test/a.arrow", "test")]


def test_rows_that_an_index_selects_are_not_taken_for_all(tmp_path: Path) -> None:
    saved(tmp_path / "one", "a.arrow", _indices_data_files=[{"filename": "indices.arrow"}])
    with pytest.raises(DataError, match="has saved an index of rows"):
        table_files(tmp_path / "one")


@pytest.mark.parametrize("text", ["[]", "{", '{"other": 1}', '{"_data_files": [{"filename": "/etc/x.arrow"}]}'])
def test_a_damaged_state_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(DataError, match=r"state\.json: not as datasets writes it"):
        table_files(tmp_path)


@pytest.mark.parametrize("name", ["dataset_dict.json", "state.json", "dataset_info.json"])
def test_a_pipe_in_the_place_of_a_state_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match=f"{name}: a pipe, socket or device, not a file"):
        table_files(tmp_path)


@pytest.mark.parametrize("name", ["b.parquet", "b.arrow"])
def test_a_pipe_among_the_files_of_a_table_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    files = [TableFile(write(tmp_path / "a.parquet", rows()), ""), TableFile(tmp_path / name, "")]
    with pytest.raises(DataError, match=f"{name}: a pipe, socket or device, not a file"):
        read_table(tmp_path, files, image="", label="")


def test_a_name_of_the_hub_is_found_in_the_cache(hub: Path) -> None:
    folder = cached(hub, "acme___my_birds/default/0.0.0/hash", "train", "test")
    (folder / "cache-1234.arrow").touch()  # of Dataset.map
    assert splits(Path("acme/MyBirds")) == [("my_birds-train.arrow", "train"), ("my_birds-test.arrow", "test")]


def test_of_several_configurations_one_is_named(hub: Path) -> None:
    for config in ("large", "small"):
        cached(hub, f"acme___my_birds/{config}/0.0.0/hash", "train")
    with pytest.raises(RecipeError, match=r"several configurations: large, small\. Name one"):
        table_files(Path("acme/MyBirds"))
    assert table_files(Path("acme/MyBirds/small")).folder == hub / "acme___my_birds/small/0.0.0/hash"


def test_nothing_is_fetched_that_the_user_has_not_named(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    fake = SimpleNamespace(load_dataset=lambda *words: asked.append(words), exceptions=datasets.exceptions)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    with pytest.raises(RecipeError, match="you have not named it. To fetch it, add --data hf-dataset:acme/birds"):
        table_files(Path("acme/birds"))
    assert asked == []
    name_model("hf-dataset:acme/birds")
    with pytest.raises(DataError, match=r"hf-dataset:acme/birds: is not in"):
        table_files(Path("acme/birds"))
    assert asked == [("acme/birds", None)]


def test_what_cannot_be_fetched_is_told_in_one_line(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    name_model("hf-dataset:acme/birds")
    with pytest.raises(EnvironmentFault, match="cannot be fetched: Couldn't"):
        table_files(Path("acme/birds"))


def test_what_datasets_itself_saves_and_caches_is_read(hub: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "hub" / "data" / "train-00000-of-00001.parquet", rows())
    datasets.disable_progress_bars()
    loaded = datasets.load_dataset("parquet", data_files=str(table), cache_dir=str(tmp_path / "other"))
    loaded.save_to_disk(tmp_path / "saved", num_shards={"train": 2})
    assert splits(tmp_path / "saved") == [(f"train/data-0000{i}-of-00002.arrow", "train") for i in range(2)]
    (info,) = (tmp_path / "other" / "parquet").glob("*/*/*/dataset_info.json")
    shutil.copytree(info.parents[3], hub / "acme___my_birds")
    assert splits(Path("acme/my_birds")) == [("parquet-train.arrow", "train")]


def test_nothing_there_is_told_with_what_may_be(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file or folder\. Expected a parquet file"):
        table_files(tmp_path / "x.parquet")
    with pytest.raises(DataError, match="no parquet file and no saved data set lies there"):
        table_files(tmp_path)


STRUCTS = [{"bytes": content, "path": path} for content, path in zip(IMAGES, PATHS, strict=True)]


def read(root: Path, columns: dict[str, Sequence[Any]], *, image: str = "", label: str = "") -> ImageTable:
    table = write(root / "t.parquet", columns)
    return read_table(table, [TableFile(table, "")], image=image, label=label)


def test_columns_are_found_by_their_types_and_names(tmp_path: Path) -> None:
    table = read(tmp_path, {"picture": STRUCTS, "labels": LABELS, "camera": range(8), "parts": [[1]] * 8})
    assert (table.image, table.label, table.embedded, len(table)) == ("picture", "labels", True, 8)
    assert table.cells == {"labels": LABELS, "camera": list(range(8)), "picture": PATHS}


def test_structs_without_bytes_are_paths(tmp_path: Path) -> None:
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    structs = pyarrow.array([{"bytes": None, "path": path} for path in PATHS], kind)
    table = read(tmp_path, {"image": structs, "label": LABELS})
    assert (table.embedded, table.of_structs, table.cells["image"]) == (False, True, PATHS)


def test_a_column_of_paths_is_found_by_its_name(tmp_path: Path) -> None:
    table = read(tmp_path, {"file_name": PATHS, "title": PATHS, "label": LABELS})
    assert (table.image, table.embedded, table.of_structs) == ("file_name", False, False)


def test_class_names_are_those_that_datasets_notes(tmp_path: Path) -> None:
    features = datasets.Features({"img": datasets.Image(), "fine": datasets.ClassLabel(names=["a", "b"])})
    made = datasets.Dataset.from_dict({"img": STRUCTS, "fine": [0, 1] * 4}, features=features)
    datasets.disable_progress_bars()
    made.to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path, [TableFile(tmp_path / "t.parquet", "")], image="", label="")
    assert (table.image, table.label, table.class_names) == ("img", "fine", ["a", "b"])


def test_what_pandas_writes_is_read(tmp_path: Path) -> None:
    frame = pd.DataFrame({"image": IMAGES, "label": pd.Categorical(LABELS)})
    frame.to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path, [TableFile(tmp_path / "t.parquet", "")], image="", label="")
    assert table.cells["label"] == LABELS


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            rows(mask=IMAGES),
            r"image and mask may all be the images; the columns are image \(binary\), label \(string\)",
        ),
        (rows(labels=LABELS), "label and labels may all be the labels; .*--set data.label_column=COLUMN"),
        ({"label": LABELS}, r"no column of images; the columns are label \(string\)"),
        ({"image": IMAGES, "name": LABELS}, "no column of labels"),
        (rows(label=[[label] for label in LABELS]), "column label is list<.*; a label is one text or whole number"),
        (rows(label=[0.5] * 8), "column label is double; a label is one text or whole number"),
    ],
)
def test_what_cannot_be_guessed_or_used_is_told_with_the_columns(
    tmp_path: Path, columns: dict[str, Sequence[Any]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path, columns)


def test_columns_that_are_named_are_taken(tmp_path: Path) -> None:
    columns = rows(mask=IMAGES, labels=LABELS)
    table = read(tmp_path, columns, image="mask", label="labels")
    assert (table.image, table.label) == ("mask", "labels")
    with pytest.raises(UnknownNameError, match="unknown column in data.image_column: 'mark'. Did you mean 'mask'?"):
        read(tmp_path, columns, image="mark")
    with pytest.raises(DataError, match="column parts is list<.*; an image is bytes"):
        read(tmp_path, rows(parts=[[b"x"]] * 8), image="parts")


def test_files_of_other_columns_do_not_belong_together(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.parquet", rows(camera=LABELS)), write(tmp_path / "b.parquet", rows())]
    with pytest.raises(DataError, match=r"b\.parquet: has other columns than the first file"):
        read_table(tmp_path, [TableFile(file, "") for file in files], image="", label="")


@pytest.mark.parametrize(("name", "kind"), [("t.parquet", "parquet"), ("t.arrow", "an Arrow file")])
def test_a_file_of_something_else_is_named(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / name).write_text("path,label\n")
    with pytest.raises(DataError, match=f"{name}: cannot be read as {kind} "):
        read_table(tmp_path, [TableFile(tmp_path / name, "")], image="", label="")
