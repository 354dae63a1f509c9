from __future__ import annotations

import codecs
import os
import unicodedata
from pathlib import Path

import PIL.Image
import pytest

from layerprobe.data.csv_file import below, load, read_text, rows_of, separator_of
from layerprobe.data.splits import manifest_sha256, require_retrieval
from layerprobe.system.errors import DataError

PLAIN = """path,label,split
b/1.png,bee,train
a/1.png,ant,train
c/1.png,cat,test
d/1.png,dog,test
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for level, name in enumerate("abcdef"):
        (tmp_path / name).mkdir()
        for i in (1, 2):
            PIL.Image.new("L", (4, 4), 10 * level + i).save(tmp_path / name / f"{i}.png")
    return tmp_path


def table(folder: Path, text: str | bytes) -> Path:
    path = folder / "set.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def divided(folder: Path, *rows: str) -> Path:
    """Two training classes, and test rows `path,label,is_query,is_gallery`."""
    head = "path,label,is_query,is_gallery,split\na/1.png,ant,,,train\nb/1.png,bee,False,False,train\n"
    return table(folder, head + "".join(f"{row},test\n" for row in rows))


def test_rows_keep_their_order_and_classes_are_sorted(folder: Path) -> None:
    dataset = load(table(folder, PLAIN))
    assert dataset.class_names == ("ant", "bee", "cat", "dog")
    assert list(dataset.splits) == ["train", "test"]
    assert dataset.splits["train"].ids == ("b/1.png", "a/1.png")
    assert dataset.splits["train"].labels.tolist() == [1, 0]
    assert dataset.search_in == {}


def test_paths_are_relative_to_the_tables_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table(folder, PLAIN)
    monkeypatch.chdir(folder.parent)
    dataset = load(Path(folder.name) / "set.csv")
    assert int(dataset.splits["test"].image(1)[0, 0, 0]) == 31


def test_validation_rows_are_a_split_between(folder: Path) -> None:
    dataset = load(table(folder, PLAIN + "e/1.png,eel,validation\nf/1.png,fox,validation\n"))
    assert list(dataset.splits) == ["train", "validation", "test"]
    assert dataset.splits["validation"].ids == ("e/1.png", "f/1.png")


def test_further_columns_are_kept_as_text_in_any_order(folder: Path) -> None:
    text = "split,x_1,label,camera,path\ntrain,3,ant,,a/1.png\ntrain,04,bee, 1 ,b/1.png\ntest,3,cat,c2,c/1.png\n"
    splits = load(table(folder, text)).splits
    assert splits["test"].ids == ("c/1.png",)
    assert splits["test"].columns == {"x_1": ("3",), "camera": ("c2",)}
    assert splits["train"].columns == {"x_1": ("3", "04"), "camera": ("", "1")}


def test_queries_and_gallery_have_the_texts_of_their_own_rows(folder: Path) -> None:
    rows = ["c/1.png,cat,1,0,test,c1", "c/2.png,cat,0,1,test,c2", "d/1.png,dog,0,1,test,c3", "a/1.png,ant,,,train,c4"]
    dataset = load(table(folder, "path,label,is_query,is_gallery,split,camera\n" + "\n".join(rows)))
    assert {name: split.columns["camera"] for name, split in dataset.splits.items()} == {
        "train": ("c4",), "test": ("c1",), "gallery": ("c2", "c3"),
    }  # fmt: skip


def test_a_column_that_is_there_twice_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="set.csv: two columns are called 'x'. Rename one"):
        load(table(folder, "path,x,label,x,split\na/1.png,1,ant,2,train\n"))


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbf" + PLAIN.encode(),
        PLAIN.replace("\n", "\r\n").encode(),
        PLAIN.replace("\n", "\n\n").encode(),
        PLAIN.rstrip("\n").encode(),
        PLAIN.replace(",", ", ").encode(),
        PLAIN.replace("b/1.png", '"b/1.png"').encode(),
        PLAIN.replace("b/1.png", "./b//1.png").encode(),
        PLAIN.replace("/", "\\").replace("\n", "\r\n").encode(),
        PLAIN.replace("b/1.png", "b\\1.png").encode(),
        PLAIN.replace(",", ";").encode(),
        PLAIN.replace(",", "\t").encode("utf-16-le").join([codecs.BOM_UTF16_LE, b""]),
        PLAIN.encode("utf-16-be").join([codecs.BOM_UTF16_BE, b""]),
        PLAIN.replace("path,label,split", " Path,LABEL , Split").encode(),
    ],
    ids=["byte order mark", "CRLF", "blank lines", "no last line end", "spaces", "quotes", "other spelling",
         "backslashes", "one backslash", "semicolons", "tabs in UTF-16", "UTF-16 of other byte order", "capitals"],
)  # fmt: skip
def test_spellings_of_the_same_table(folder: Path, text: bytes) -> None:
    dataset = load(table(folder, text))
    assert dataset.class_names == ("ant", "bee", "cat", "dog")
    assert dataset.splits["train"].ids == ("b/1.png", "a/1.png")


def test_absolute_paths_in_the_folder_are_relative(folder: Path) -> None:
    text = PLAIN.replace("c/1.png", str(folder / "c" / "1.png"))
    assert load(table(folder, text)).splits["test"].ids == ("c/1.png", "d/1.png")


def test_a_name_in_another_composition_is_the_one_on_the_disk(folder: Path) -> None:
    (folder / unicodedata.normalize("NFD", "Käse")).mkdir()
    (folder / "a/1.png").rename(folder / unicodedata.normalize("NFD", "Käse/1.png"))
    text = PLAIN.replace("a/1.png", unicodedata.normalize("NFC", "Käse/1.png"))
    split = load(table(folder, text)).splits["train"]
    assert split.ids == ("b/1.png", unicodedata.normalize("NFD", "Käse/1.png"))
    assert int(split.image(1)[0, 0, 0]) == 1
    with pytest.raises(DataError, match="set.csv:6: K.*se/1.png is listed in line 3 already"):
        load(table(folder, text + unicodedata.normalize("NFD", "Käse/1.png,ant,train")))


def test_a_column_in_other_capitals_gives_way_to_its_own_and_is_never_guessed(folder: Path) -> None:
    text = "Path,path,label,split\nx,a/1.png,ant,train\ny,b/1.png,bee,train\nz,c/1.png,cat,test\n"
    assert load(table(folder, text)).splits["test"].columns == {"Path": ("z",)}
    with pytest.raises(DataError, match="set.csv: the columns Path and PATH may both be path. Rename one"):
        load(table(folder, text.replace("Path,path", "Path,PATH")))


BOXES = """path,label,split,x_1,x_2,y_1,y_2
a/1.png,ant,train,0,2,1,4
a/1.png,bee,train,1.0,3.9,0,3
b/1.png,bee,train,,,,
c/1.png,cat,test,0,4,0,4
"""


@pytest.mark.parametrize("names", ["x_1,x_2,y_1,y_2", "xmin,xmax,ymin,ymax", "XMin,XMax,YMin,YMax"])
def test_a_box_is_an_image_of_its_own(folder: Path, names: str) -> None:
    dataset = load(table(folder, BOXES.replace("x_1,x_2,y_1,y_2", names)))
    split = dataset.splits["train"]
    assert split.ids == ("a/1.png#0-1-2-4", "a/1.png#1-0-3-3", "b/1.png")
    assert [split.image(i).shape for i in range(3)] == [(3, 2, 3), (3, 2, 3), (4, 4, 3)]
    assert [dataset.class_names[label] for label in split.labels] == ["ant", "bee", "bee"]
    assert split.columns == {}
    read = ",".join(name.lower() for name in (names.split(",")[i] for i in (0, 2, 1, 3)))
    assert dataset.input_notes == (f"images cropped to {read}: 3 of 4",)


def test_the_same_box_twice_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="set.csv:6: a/1.png#1-0-3-3 is listed in line 3 already. Keep one"):
        load(table(folder, BOXES + "a/1.png,bee,train,1,3,0,3\n"))


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        ("2,2,0,4", "the box is empty, or begins outside the image: x_1 2, y_1 0, x_2 2, y_2 4"),
        ("0,2,4,3", "the box is empty, or begins outside the image"),
        ("-1,2,0,4", "the box is empty, or begins outside the image: x_1 -1"),
        ("0,2,,4", "no box: x_1 0, y_1 empty, x_2 2, y_2 4"),
        ("0,2,a,4", "no box: x_1 0, y_1 a"),
        ("0,inf,0,4", "no box: x_1 0, y_1 0, x_2 inf"),
        ("nan,2,0,4", "no box: x_1 nan"),
        ("0.25,0.75,0,1", "a box in fractions of the image's size: x_1 0.25, y_1 0, x_2 0.75, y_2 1"),
    ],
)
def test_a_bad_box_is_named_with_its_line(folder: Path, cells: str, problem: str) -> None:
    with pytest.raises(DataError) as caught:
        load(table(folder, BOXES + f"d/1.png,dog,test,{cells}\n"))
    fix = "Write pixels, x_1 < x_2 and y_1 < y_2, or nothing for the whole image."
    assert f"set.csv:6: {problem}" in str(caught.value)
    assert str(caught.value).endswith(fix)


def test_two_kinds_of_boxes_are_refused(folder: Path) -> None:
    text = BOXES.replace("split,", "split,xmin,ymin,xmax,ymax,").replace(",train,", ",train,0,0,1,1,")
    with pytest.raises(DataError, match="set.csv: two boxes for each image: x_1,y_1,x_2,y_2 and xmin,ymin,xmax,ymax."):
        load(table(folder, text))


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ("x,y,w,h", "x, y, w, h"),
        ("X1,Y1,X2,Y2", "X1, Y1, X2, Y2"),
        ("bbox_x,bbox_y,bbox_w,bbox_h", "bbox_x, bbox_y, bbox_w, bbox_h"),
        ("left,camera,bbox,top", "bbox"),
        ("left,top,width,height", "left, top, width, height"),
        ("x_1,x_2,y_1,time", "x_1, x_2, y_1"),
        ("x,y,camera,scene", ""),
    ],
)
def test_other_columns_that_look_like_boxes_are_noted_and_kept(folder: Path, names: str, shown: str) -> None:
    lines = [f"{line},1,2,3,4" for line in PLAIN.splitlines()[1:]]
    dataset = load(table(folder, "\n".join([f"path,label,split,{names}", *lines])))
    note = f"columns that look like boxes are not used: {shown}; to crop, give xmin,ymin,xmax,ymax in pixels"
    assert dataset.input_notes == ((note,) if shown else ())
    assert list(dataset.splits["train"].columns) == names.split(",")


def test_labels_are_text(folder: Path) -> None:
    text = PLAIN.replace("bee", "10").replace("ant", "9").replace("cat", '"sea, cat"')
    assert load(table(folder, text)).class_names == ("10", "9", "dog", "sea, cat")


def test_where_all_test_rows_are_both_they_are_searched_in_themselves(folder: Path) -> None:
    dataset = load(divided(folder, "c/1.png,cat,True,True", "d/1.png,dog,True,True"))
    assert list(dataset.splits) == ["train", "test"]
    assert dataset.search_in == {}


@pytest.mark.parametrize(
    ("yes", "no"), [("True", "False"), ("true", "FALSE"), ("1", "0"), ("1.0", "0.0"), ("yes", "n")]
)
def test_queries_are_searched_in_the_gallery(folder: Path, yes: str, no: str) -> None:
    rows = [f"{c}/1.png,{c},{yes},{no}" for c in "cd"] + [f"{c}/2.png,{c},{no},{yes}" for c in "cde"]
    dataset = load(divided(folder, *rows))
    assert list(dataset.splits) == ["train", "test", "gallery"]
    assert dataset.search_in == {"test": "gallery"}
    assert dataset.splits["test"].ids == ("c/1.png", "d/1.png")
    assert dataset.splits["gallery"].ids == ("c/2.png", "d/2.png", "e/2.png")
    assert require_retrieval(dataset, source="x") is dataset


def test_without_test_rows_the_validation_rows_are_tested_on(folder: Path) -> None:
    head = ",path,label,split,is_query,is_gallery,sequence\n0,a/1.png,0,train,,,\n1,b/1.png,1,train,,,\n"
    rows = ["2,c/1.png,2,validation,True,False,7", "3,c/2.png,2,validation,False,True,7",
            "4,d/1.png,3,validation,True,True,8"]  # fmt: skip
    dataset = load(table(folder, head + "\n".join(rows)))
    assert {name: split.ids for name, split in dataset.splits.items()} == {
        "train": ("a/1.png", "b/1.png"), "test": ("c/1.png", "d/1.png"), "gallery": ("c/2.png", "d/1.png"),
    }  # fmt: skip
    assert dataset.search_in == {"test": "gallery"}
    assert dataset.splits["test"].columns["sequence"] == ("7", "8")
    assert dataset.notes == ("the rows of the split validation are the test images",)
    assert load(table(folder, PLAIN)).notes == ()


def test_a_row_that_is_both_is_in_both_under_one_id(folder: Path) -> None:
    dataset = load(divided(folder, "c/1.png,cat,1,1", "c/2.png,cat,0,1", "d/1.png,dog,1,0"))
    assert dataset.splits["test"].ids == ("c/1.png", "d/1.png")
    assert dataset.splits["gallery"].ids == ("c/1.png", "c/2.png")


def test_a_column_that_is_not_there_means_all(folder: Path) -> None:
    text = PLAIN.replace("split\n", "split,is_query\n", 1).replace("train\n", "train,\n")
    dataset = load(
        table(folder, text.replace("c/1.png,cat,test", "c/1.png,cat,test,1").replace("dog,test", "dog,test,0"))
    )
    assert dataset.splits["test"].ids == ("c/1.png",)
    assert dataset.splits["gallery"].ids == ("c/1.png", "d/1.png")


def test_validation_cells_may_be_empty_but_not_divide(folder: Path) -> None:
    head = "path,label,split,is_query,is_gallery\na/1.png,ant,train,,\nb/1.png,bee,train,,\nc/1.png,cat,test,1,1\n"
    assert "validation" in load(table(folder, head + "e/1.png,eel,validation,,\n")).splits
    with pytest.raises(DataError, match="set.csv:5: only test rows are divided .* call their split test"):
        load(table(folder, head + "e/1.png,eel,validation,1,0\n"))


def test_the_manifest_changes_when_a_file_changes_its_size(folder: Path) -> None:
    def manifest() -> str:
        dataset = load(table(folder, PLAIN))
        return manifest_sha256(dataset.splits["test"], dataset.class_names)

    before = manifest()
    assert manifest() == before
    with (folder / "d" / "1.png").open("ab") as stream:
        stream.write(b"\0")
    assert manifest() != before


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("e/1.png,eel,tset", "set.csv:6: split is 'tset'. Known: train, validation, test, query, gallery"),
        ("e/1.png,eel", "set.csv:6: the row has more or fewer cells than the header"),
        ("e/1.png,eel,test,1", "set.csv:6: the row has more or fewer cells than the header"),
        (",eel,test", "set.csv:6: path is empty"),
        ("e/1.png, ,test", "set.csv:6: label is empty"),
        ("./a/1.png,eel,test", "set.csv:6: a/1.png is listed in line 3 already. Keep one"),
        ("../x.png,eel,test", "set.csv:6: path leaves the data folder: '../x.png'"),
        ("a/../../x.png,eel,test", "set.csv:6: path leaves the data folder"),
        ("a/../e/1.png,eel,test", "set.csv:6: path leaves the data folder"),
        ("/etc/passwd,eel,test", "set.csv:6: path leaves the data folder: '/etc/passwd'"),
        ("..\\x.png,eel,test", "set.csv:6: path leaves the data folder"),
        ("e/1.png\0,eel,test", "set.csv:6: path leaves the data folder"),
        ("out/x.png,eel,test", "set.csv:6: path leaves the data folder: 'out/x.png'"),
    ],
)
def test_a_bad_line_is_named_by_its_number(folder: Path, row: str, message: str) -> None:
    (folder / "out").symlink_to(folder.parent)
    with pytest.raises(DataError) as caught:
        load(table(folder, PLAIN + row + "\n"))
    assert message in str(caught.value)


@pytest.mark.parametrize(("cells", "message"), [("maybe,1", "is_query is 'maybe'"), ("1,-", "is_gallery is '-'")])
def test_a_test_row_says_true_or_false(folder: Path, cells: str, message: str) -> None:
    with pytest.raises(DataError, match=f"set.csv:4: {message}. Expected true or false"):
        load(divided(folder, f"c/1.png,cat,{cells}"))


@pytest.mark.parametrize("cells", ["0,0", ",false", ","])
def test_a_test_row_is_query_or_gallery(folder: Path, cells: str) -> None:
    with pytest.raises(DataError, match="set.csv:4: is_query and is_gallery are both false. Make one of them true"):
        load(divided(folder, f"c/1.png,cat,{cells}"))


def test_an_empty_cell_of_a_test_row_is_false(folder: Path) -> None:
    dataset = load(divided(folder, "c/1.png,cat,1,", "c/2.png,cat,,1", "d/1.png,dog,,1"))
    assert dataset.splits["test"].ids == ("c/1.png",)
    assert dataset.splits["gallery"].ids == ("c/2.png", "d/1.png")


def test_a_validation_row_that_says_one_of_both_is_not_the_other(folder: Path) -> None:
    head = "path,label,split,is_query,is_gallery\na/1.png,ant,train,,\n"
    rows = "c/1.png,cat,validation,True,\nc/2.png,cat,validation,,True\nd/1.png,dog,validation,,\n"
    dataset = load(table(folder, head + rows))
    assert dataset.splits["test"].ids == ("c/1.png", "d/1.png")
    assert dataset.splits["gallery"].ids == ("c/2.png", "d/1.png")


def test_the_split_may_say_query_and_gallery(folder: Path) -> None:
    rows = "c/1.png,cat,query\nc/2.png,cat,gallery\nd/1.png,dog,gallery\nd/2.png,dog,test\n"
    dataset = load(table(folder, PLAIN[: PLAIN.index("c/1")] + rows))
    assert {name: split.ids for name, split in dataset.splits.items()} == {
        "train": ("b/1.png", "a/1.png"), "test": ("c/1.png", "d/2.png"), "gallery": ("c/2.png", "d/1.png", "d/2.png"),
    }  # fmt: skip
    assert dataset.search_in == {"test": "gallery"}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("query,0,", "split is 'query', but is_query is '0'"),
        ("gallery,yes,1", "split is 'gallery', but is_query is 'yes'"),
    ],
)
def test_split_and_columns_may_not_contradict(folder: Path, row: str, problem: str) -> None:
    head = "path,label,split,is_query,is_gallery\nc/1.png,cat,query,1,0\nc/2.png,cat,gallery,,1\n"
    assert load(table(folder, head)).splits["gallery"].ids == ("c/2.png",)
    with pytest.raises(DataError, match=f"set.csv:4: {problem}. Write test into split, or leave"):
        load(table(folder, head + f"d/1.png,dog,{row}\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column path, label, split: the first line is empty. Expected FILE with the columns path,label,split"),
        ("path|label|split\na/1.png|ant|train\n", "split: the first line has path|label|split. Expected"),
        ("path,label\na/1.png,ant\n", "no column split: the first line has path, label separated by commas"),
        ("path;class;set\n", "no column label, split: the first line has path, class, set separated by semicolons"),
        ("image\tclass\n", "no column path, label, split: the first line has image, class separated by tabs"),
        ("path,label,split\n", "set.csv: no rows"),
        ("path,label,split\na/1.png,ant,train\n", "no row is a query of the split test"),
    ],
)
def test_what_a_table_lacks_is_said(folder: Path, text: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        load(table(folder, text))
    assert message in str(caught.value)


def test_test_rows_without_a_gallery_are_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="no row is in the gallery of the split test"):
        load(divided(folder, "c/1.png,cat,1,0", "d/1.png,dog,1,0"))


def test_a_line_that_is_not_utf8_is_named(folder: Path) -> None:
    with pytest.raises(DataError, match="set.csv:6: not UTF-8. Save the file as UTF-8"):
        load(table(folder, PLAIN.encode() + b"e/1.png,\xe4,test\n"))


def test_a_cell_without_end_is_named(folder: Path) -> None:
    with pytest.raises(DataError, match=r"set.csv:\d+: field larger than field limit"):
        load(table(folder, PLAIN + '"' + "x" * 200_000 + "\n"))


def test_missing_images_are_counted_and_the_first_five_named(folder: Path) -> None:
    rows = "".join(f"gone/{i}.png,gnu,test\n" for i in range(7))
    with pytest.raises(DataError) as caught:
        load(table(folder, PLAIN + rows))
    named = ", ".join(f"gone/{i}.png" for i in range(5))
    assert f"set.csv: 7 of 11 listed images are missing: {named} and 2 more. Put them below " in str(caught.value)


def test_an_absent_table_says_the_layout(folder: Path) -> None:
    with pytest.raises(DataError, match="set.csv: no such csv file. Expected FILE with the columns path,label,split"):
        load(folder / "set.csv")


def test_a_folder_is_no_table(folder: Path) -> None:
    with pytest.raises(DataError, match="a folder, not a csv file. Give the csv file, or use folder:DIR"):
        load(folder)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_table_is_named(folder: Path) -> None:
    path = table(folder, PLAIN)
    path.chmod(0)
    with pytest.raises(DataError, match="set.csv: cannot be read .Permission denied."):
        load(path)


SEVERAL = """path,label,split
a/1.png,cat|ant,train
b/1.png,bee,train
c/1.png,ant | cat,test
d/1.png,bee|cat|,test
"""


def test_a_cell_of_several_labels_is_a_class_of_its_set(folder: Path) -> None:
    dataset = load(table(folder, SEVERAL), label_separator="|")
    assert dataset.class_names == ("ant|cat", "bee", "bee|cat")
    assert dataset.splits["train"].labels.tolist() == [0, 1]
    assert dataset.splits["test"].labels.tolist() == [0, 2]
    assert dataset.label_sets is not None
    assert dataset.label_sets.tolist() == [[0, 0], [0, 2], [1, 1], [2, 1], [2, 2]]
    assert dataset.notes == ()


def test_one_set_of_labels_may_be_in_train_and_test(folder: Path) -> None:
    dataset = load(table(folder, SEVERAL), label_separator="|")
    assert require_retrieval(dataset) is dataset


def test_without_the_key_the_separator_is_noted_and_the_cell_is_one_label(folder: Path) -> None:
    dataset = load(table(folder, SEVERAL.replace("ant | cat", "dog")))
    assert dataset.class_names == ("bee", "bee|cat|", "cat|ant", "dog")
    assert dataset.label_sets is None
    (note,) = dataset.input_notes
    assert note.endswith("are taken as classes of their own: --set data.label_separator='|' splits them")


def test_a_class_in_two_splits_for_its_separator_names_the_key(folder: Path) -> None:
    rows = SEVERAL.replace("ant | cat", "cat|ant")
    with pytest.raises(DataError, match=r"class cat\|ant is in train and test") as caught:
        require_retrieval(load(table(folder, rows)))
    assert caught.value.fix.endswith("--set data.label_separator='|' splits them")


def test_a_cell_of_separators_alone_is_refused_with_its_line(folder: Path) -> None:
    with pytest.raises(DataError, match=r"label is '\|\|', which names none") as caught:
        load(table(folder, SEVERAL.replace("bee|cat|", "||")), label_separator="|")
    assert str(caught.value.file).endswith("set.csv:5")


def text_of(folder: Path, content: bytes) -> str:
    (folder / "t.csv").write_bytes(content)
    return read_text(folder / "t.csv")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_utf8_and_marked_utf16_are_read(tmp_path: Path, encoding: str) -> None:
    assert text_of(tmp_path, "\u00e4;\u6f22\r\n".encode(encoding)) == "\u00e4;\u6f22\r\n"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"a\n\xe4\n", 2),
        ("a\nb\nc".encode("utf-16") + b"\0", 3),
        ("a,b\n".encode("utf-16-le"), 1),
    ],
    ids=["cp1252", "UTF-16 that is cut off", "UTF-16 without mark"],
)
def test_another_encoding_is_named_by_its_line(tmp_path: Path, content: bytes, line: int) -> None:
    with pytest.raises(DataError, match=f"t.csv:{line}: not UTF-8. Save the file as UTF-8"):
        text_of(tmp_path, content)


@pytest.mark.parametrize(
    ("header", "separator"),
    [
        ("b,a", ","),
        ("A; b", ";"),
        ("a\tb", "\t"),
        ("x;y,a,b", ","),
        ("a;b;x,y", ";"),
        ("x;y;z,u", ";"),
        ("a|b", ","),
        ("", ","),
        ('"x' + "y" * 200_000 + ";a;b", ","),
    ],
)
def test_the_separator_is_that_of_the_needed_columns(header: str, separator: str) -> None:
    assert separator_of(f"{header}\n1,2;3\t4", ("a", "b")) == separator


def test_a_separator_in_quotes_is_text() -> None:
    assert list(rows_of('"a;b"; c\n', ";")) == [["a;b", "c"]]


NFC, NFD = (unicodedata.normalize(form, "\u00d6l/\u00e9.png") for form in ("NFC", "NFD"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with one image, and a link to it from elsewhere."""
    (tmp_path / "set/im").mkdir(parents=True)
    (tmp_path / "set/im/1.png").touch()
    (tmp_path / "link").symlink_to(tmp_path / "set")
    return tmp_path / "set"


def path_of(root: Path, text: str) -> str:
    (name,) = below(root / "t.csv", [(7, text)])
    return name


@pytest.mark.parametrize(
    "text", ["im/1.png", "./im//1.png", "im\\1.png", ".\\im/1.png", "{root}/im/1.png", "{root}\\im\\1.png"]
)
def test_spellings_of_the_same_file(root: Path, text: str) -> None:
    assert path_of(root, text.format(root=root)) == "im/1.png"


def test_an_absolute_path_through_a_link_to_the_folder_is_inside(root: Path) -> None:
    link = root.parent / "link"
    assert path_of(root, f"{link}/im/1.png") == path_of(link, f"{root}/im/1.png") == "im/1.png"
    assert path_of(link, f"{link}/im/1.png") == "im/1.png"


@pytest.mark.parametrize("text", ["C:\\data\\im\\1.png", "d:/im/1.png", "\\\\server\\im\\1.png"])
def test_a_path_of_a_windows_machine_is_refused(root: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"t.csv:7: an absolute path of Windows: .* relative to the folder of the csv"):
        path_of(root, text)


def test_a_folder_may_be_called_like_a_drive(root: Path) -> None:
    (root / "c:").symlink_to(root / "im")
    assert path_of(root, "c:/1.png") == "c:/1.png"


def test_a_file_with_a_backslash_in_its_name_is_refused(root: Path) -> None:
    (root / "im\\1.png").touch()
    with pytest.raises(DataError, match=r"t.csv:7: a backslash in a file's name: 'im.*1.png'. Rename the file"):
        path_of(root, "im\\1.png")


@pytest.mark.parametrize(
    "text", ["/etc/passwd", "{root}x/1.png", "out/1.png", "out.png", "/a\0/b", "im\0", "im\\..\\..\\x"]
)
def test_a_path_that_leaves_the_folder_is_refused(root: Path, text: str) -> None:
    (root / "out").symlink_to(root.parent)
    (root.parent / "out.png").touch()
    (root / "out.png").symlink_to(root.parent / "out.png")
    with pytest.raises(DataError, match="t.csv:7: path leaves the data folder: .* relative to the folder of the csv"):
        path_of(root, text.format(root=root))


@pytest.mark.parametrize(("listed", "there"), [(NFC, NFD), (NFD, NFC), (NFC, NFC), (NFD, NFD)])
def test_names_in_another_composition_are_those_on_the_disk(root: Path, listed: str, there: str) -> None:
    (root / there).parent.mkdir()
    (root / there).touch()
    assert path_of(root, listed) == there


def test_of_two_folders_that_differ_in_composition_the_one_with_the_file_counts(root: Path) -> None:
    for name in (NFC, NFD):
        (root / name).parent.mkdir()
    (root / NFD).touch()
    assert path_of(root, NFC) == NFD


def test_two_names_that_differ_in_composition_are_named(root: Path) -> None:
    for name in (NFC, NFD):
        (root / name).parent.mkdir()
        (root / name).touch()
    assert path_of(root, NFC) == NFC
    mixed = f"{NFC.split('/')[0]}/{NFD.split('/')[1]}"
    with pytest.raises(DataError) as caught:
        path_of(root, mixed)
    message = str(caught.value)
    assert f"t.csv:7: no file {mixed!a}, but " in message
    assert f"{NFC!a}" in message
    assert f"{NFD!a}" in message


def test_a_folder_in_another_composition_may_not_lead_out(root: Path) -> None:
    (root.parent / "far").mkdir()
    (root.parent / "far/1.png").touch()
    (root / NFD.split("/")[0]).symlink_to(root.parent / "far")
    with pytest.raises(DataError, match="t.csv:7: path leaves the data folder"):
        path_of(root, f"{NFC.split('/')[0]}/1.png")
