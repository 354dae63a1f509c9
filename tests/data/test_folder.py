from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from layerprobe.data.folder import UnreadFiles, load, unread_among
from layerprobe.data.images import reads_heif
from layerprobe.data.splits import manifest_sha256, require_retrieval
from layerprobe.system.errors import DataError, RecipeError


def add_image(path: Path, level: int = 0, size: int = 4) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.new("L", (size, size), level).save(path, "PNG")


def add_classes(root: Path, *names: str, images: int = 2) -> Path:
    for name in names:
        for i in range(images):
            add_image(root / name / f"{i}.png", level=i)
    return root


def test_the_first_half_of_the_sorted_classes_trains_and_the_rest_tests(tmp_path: Path) -> None:
    dataset = load(add_classes(tmp_path, "e", "c", "a", "d", "b"))
    assert dataset.class_names == ("a", "b", "c", "d", "e")
    assert list(dataset.splits) == ["train", "test"]
    assert dataset.splits["train"].labels.tolist() == [0, 0, 1, 1]
    assert dataset.splits["test"].labels.tolist() == [2, 2, 3, 3, 4, 4]


def test_as_many_classes_train_as_asked_for(tmp_path: Path) -> None:
    dataset = load(add_classes(tmp_path, "a", "b", "c", "d", "e"), train_classes=3)
    assert [dataset.splits[name].num_classes for name in ("train", "test")] == [3, 2]


def test_a_class_seed_shuffles_the_classes_before_the_first_half_is_taken(tmp_path: Path) -> None:
    root = add_classes(tmp_path, *"abcdefgh")
    found = [load(root, class_seed=seed).splits for seed in (0, 1)]
    first = np.random.default_rng(0).permutation(8)[:4]
    assert np.unique(found[0]["train"].labels).tolist() == sorted(first)
    assert [sorted({*splits["train"].labels, *splits["test"].labels}) for splits in found] == [[*range(8)]] * 2
    assert {*found[0]["train"].ids} not in ({*found[1]["train"].ids}, {*load(root).splits["train"].ids})


def test_a_shuffled_class_keeps_its_name(tmp_path: Path) -> None:
    dataset = load(add_classes(tmp_path, *"abcdefgh"), class_seed=3)
    for split in dataset.splits.values():
        assert [dataset.class_names[label] for label in split.labels] == [name[0] for name in split.ids]


def test_nested_folders_are_one_class_each(tmp_path: Path) -> None:
    add_classes(tmp_path, "Greek/character01", "Greek/character02", "Latin/character01", "Tagalog/old/character01")
    dataset = load(tmp_path)
    assert dataset.class_names == (
        "Greek/character01", "Greek/character02", "Latin/character01", "Tagalog/old/character01",
    )  # fmt: skip
    assert dataset.splits["test"].ids[0] == "Latin/character01/0.png"


def test_a_folder_with_images_and_folders_is_a_class_beside_them(tmp_path: Path) -> None:
    assert load(add_classes(tmp_path, "a", "a/b", "c", "d")).class_names == ("a", "a/b", "c", "d")


def test_images_are_sorted_by_name_and_read_from_their_files(tmp_path: Path) -> None:
    add_classes(tmp_path, "b", "c", "d")
    for level, name in ((30, "z.png"), (10, "B.png"), (20, "a.png")):
        add_image(tmp_path / "a" / name, level)
    train = load(tmp_path).splits["train"]
    assert train.ids[:3] == ("a/B.png", "a/a.png", "a/z.png")
    assert [int(train.image(i)[0, 0, 0]) for i in range(3)] == [10, 20, 30]


@pytest.mark.parametrize(
    "name", [".hidden.png", "._a.png", "Thumbs.db", ".DS_Store", "labels.txt", "png", ".thumbs/a.png", ".git/x/a.png"]
)
def test_what_is_hidden_or_no_image_is_ignored(tmp_path: Path, name: str) -> None:
    add_classes(tmp_path, "a", "b", "c", "d")
    add_image(tmp_path / "a" / name)
    dataset = load(tmp_path)
    assert dataset.splits["train"].ids == ("a/0.png", "a/1.png", "b/0.png", "b/1.png")


@pytest.mark.parametrize("name", ["x.PNG", "x.Jpg", "x.JPEG", "x.webp", "x.TIF", "x.bmp", "x.gif"])
def test_an_images_ending_may_have_any_case(tmp_path: Path, name: str) -> None:
    add_classes(tmp_path, "a", "b", "c", "d")
    add_image(tmp_path / "a" / name)
    assert f"a/{name}" in load(tmp_path).splits["train"].ids


def test_names_with_spaces_umlauts_and_newlines_are_kept(tmp_path: Path) -> None:
    dataset = load(add_classes(tmp_path, "a b", "ä", "c\nd", "[/bold]"))
    assert dataset.class_names == ("[/bold]", "a b", "c\nd", "ä")
    assert dataset.splits["test"].image(3).shape == (4, 4, 3)


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="the file system refuses such names itself")
def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    add_classes(tmp_path, "a", "b", "c", "d")
    (tmp_path / "a" / "0.png").rename(os.fsdecode(os.fsencode(tmp_path) + b"/a/\xff.png"))
    with pytest.raises(DataError, match=r"a file name that is not UTF-8: 'a/\\udcff.png'. Rename it"):
        load(tmp_path)


def test_links_to_classes_are_followed(tmp_path: Path) -> None:
    add_classes(tmp_path / "far", "x", "y")
    root = add_classes(tmp_path / "root", "a", "b")
    (root / "far").symlink_to(tmp_path / "far")
    assert load(root).class_names == ("a", "b", "far/x", "far/y")


def test_a_link_that_leads_back_is_refused(tmp_path: Path) -> None:
    add_classes(tmp_path, "a", "b", "c", "d")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    with pytest.raises(DataError, match="a/again: this link leads to a folder that it lies in. Remove it"):
        load(tmp_path)


def test_an_absent_root_says_the_layout(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="absent: no such folder. Expected DIR/CLASS/IMAGE, classes at any depth"):
        load(tmp_path / "absent")


def test_a_file_as_root_is_refused(tmp_path: Path) -> None:
    add_image(tmp_path / "x.png")
    with pytest.raises(DataError, match="x.png: not a folder. Expected DIR/CLASS/IMAGE"):
        load(tmp_path / "x.png")


@pytest.mark.parametrize(("names", "count"), [((), 0), (("a",), 1), (("a", "b", "c"), 3)])
def test_too_few_classes_are_counted_and_the_layout_said(tmp_path: Path, names: tuple[str, ...], count: int) -> None:
    with pytest.raises(
        DataError, match=f"{count} classes with images; 2 to train and 2 to test are needed. Expected DIR/CLASS"
    ):
        load(add_classes(tmp_path, *names))


def test_images_outside_every_class_are_refused(tmp_path: Path) -> None:
    add_classes(tmp_path, "a", "b", "c", "d")
    add_image(tmp_path / "stray.png")
    with pytest.raises(DataError, match="1 images lie outside every class folder. Expected DIR/CLASS"):
        load(tmp_path)


def divided(root: Path, **parts: tuple[str, ...]) -> Path:
    """Folders with class folders in them."""
    for part, names in parts.items():
        add_classes(root / part, *names)
    return root


def test_queries_are_searched_in_a_gallery(tmp_path: Path) -> None:
    dataset = load(divided(tmp_path, query=("b", "c"), gallery=("d", "c", "b"), train=("a", "x/e")))
    assert dataset.class_names == ("a", "b", "c", "d", "x/e")
    assert {name: split.labels.tolist() for name, split in dataset.splits.items()} == {
        "train": [0, 0, 4, 4], "test": [1, 1, 2, 2], "gallery": [1, 1, 2, 2, 3, 3],
    }  # fmt: skip
    assert dataset.search_in == {"test": "gallery"}
    assert require_retrieval(dataset, source=tmp_path) is dataset


def test_ids_of_queries_and_gallery_are_relative_to_the_folder_above_both(tmp_path: Path) -> None:
    splits = load(divided(tmp_path, query=("b", "c"), gallery=("b", "c"))).splits
    assert list(splits) == ["test", "gallery"]
    assert splits["test"].ids == ("query/b/0.png", "query/b/1.png", "query/c/0.png", "query/c/1.png")
    assert splits["gallery"].ids[0] == "gallery/b/0.png"
    assert int(splits["gallery"].image(1)[0, 0, 0]) == 1


def test_a_class_that_is_trained_on_and_searched_for_is_refused(tmp_path: Path) -> None:
    dataset = load(divided(tmp_path, query=("b", "c"), gallery=("b", "c"), train=("a", "b")))
    with pytest.raises(DataError, match="class b is in train and test"):
        require_retrieval(dataset, source=tmp_path)


@pytest.mark.parametrize(("there", "absent"), [("query", "gallery"), ("gallery", "query")])
@pytest.mark.parametrize("has_images", [False, True])
def test_one_without_the_other_is_refused(tmp_path: Path, there: str, absent: str, has_images: bool) -> None:
    divided(tmp_path, **{there: ("a", "b"), "train": ("c", "d")})
    if has_images:
        add_classes(tmp_path, absent)
    with pytest.raises(DataError, match=f"{there}/ has class folders, {absent}/ has none. Expected DIR/CLASS/IMAGE"):
        load(tmp_path)


@pytest.mark.parametrize("stray", ["x.png", "query/x.png", "train/x.png", "cat/x.png", "test/cat/x.png"])
def test_images_beside_queries_and_gallery_are_refused(tmp_path: Path, stray: str) -> None:
    add_image(divided(tmp_path, query=("a", "b"), gallery=("a", "b")) / stray)
    with pytest.raises(DataError, match=f"1 images outside the class folders of query/ and gallery/: {stray}. Expe"):
        load(tmp_path)


def test_folders_of_splits_are_refused(tmp_path: Path) -> None:
    add_classes(tmp_path, "train/cat", "train/dog", "val/cat", "val/dog")
    with pytest.raises(DataError, match="train/ and val/ look like splits") as caught:
        load(tmp_path)
    assert str(caught.value).endswith(f"folder:{tmp_path}/train, or a csv table with the columns path,label,split.")
    assert load(tmp_path / "train", train_classes=0).class_names == ("cat", "dog")


@pytest.mark.parametrize("names", [("train", "test", "a", "b"), ("train/a", "test/a", "c/d", "c/e")])
def test_classes_that_are_called_like_splits_stay_classes(tmp_path: Path, names: tuple[str, ...]) -> None:
    assert load(add_classes(tmp_path, *names)).class_names == tuple(sorted(names))


def test_classes_that_are_called_query_and_gallery_stay_classes(tmp_path: Path) -> None:
    assert load(add_classes(tmp_path, "a", "gallery", "query", "z")).class_names == ("a", "gallery", "query", "z")


@pytest.mark.parametrize("option", ["train_classes", "class_seed"])
def test_training_classes_are_not_chosen_beside_a_gallery(tmp_path: Path, option: str) -> None:
    with pytest.raises(RecipeError, match=f"data.{option} = 2: the folder train says which .* Leave it out"):
        load(divided(tmp_path, query=("a", "b"), gallery=("a", "b")), **{option: 2})


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c", "d", "e")])
def test_no_training_classes_put_all_into_test(tmp_path: Path, names: tuple[str, ...]) -> None:
    dataset = load(add_classes(tmp_path, *names), train_classes=0)
    assert list(dataset.splits) == ["test"]
    assert dataset.splits["test"].labels.tolist() == [label for label in range(len(names)) for _ in range(2)]
    assert require_retrieval(dataset, source=tmp_path) is dataset


def test_two_classes_to_train_none_are_said_to_do_for_testing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="2 classes .* 2 to train and 2 to test .* by --set data.train_classes=0"):
        load(add_classes(tmp_path, "a", "b"))


def test_one_class_does_not_do_for_testing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 classes with images; 2 to test are needed"):
        load(add_classes(tmp_path, "a"), train_classes=0)


@pytest.mark.parametrize("count", [-1, 1, 4, 5])
def test_train_classes_that_leave_a_side_too_few_are_refused(tmp_path: Path, count: int) -> None:
    add_classes(tmp_path, "a", "b", "c", "d", "e")
    with pytest.raises(
        RecipeError,
        match=f"data.train_classes = {count}: of 5 classes, .* must train and 2 test. Give a number from 2 to 3, or 0",
    ):
        load(tmp_path, train_classes=count)


def test_the_manifest_changes_when_a_file_changes_its_size(tmp_path: Path) -> None:
    def manifests() -> list[str]:
        dataset = load(tmp_path)
        return [manifest_sha256(split, dataset.class_names) for split in dataset.splits.values()]

    add_classes(tmp_path, "a", "b", "c", "d")
    before = manifests()
    assert manifests() == before
    with (tmp_path / "d" / "0.png").open("ab") as stream:
        stream.write(b"\0")
    assert manifests()[0] == before[0]
    assert manifests()[1] != before[1]


def test_nothing_is_written_to_the_folder(tmp_path: Path) -> None:
    add_classes(tmp_path, "a", "b", "c", "d")
    before = sorted(path for path in tmp_path.rglob("*"))
    load(tmp_path).splits["train"].image(0)
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_labels_are_int64(tmp_path: Path) -> None:
    assert load(add_classes(tmp_path, "a", "b", "c", "d")).splits["train"].labels.dtype == np.int64


def test_omniglot_is_split_by_its_sorted_characters(tmp_path: Path, real_images: Path) -> None:
    import zipfile

    with zipfile.ZipFile(real_images / "omniglot_small1.zip") as archive:
        archive.extractall(tmp_path)
    dataset = load(tmp_path / "images_background_small1")
    assert len(dataset.class_names) == 136
    assert [(len(split), split.num_classes) for split in dataset.splits.values()] == [(1360, 68), (1360, 68)]
    pixels = dataset.splits["train"].image(0)
    assert pixels.shape == (105, 105, 3)
    assert np.unique(pixels).tolist() == [0, 255]


def test_files_of_class_folders_that_are_not_read_are_told_and_no_score_repeats_it(tmp_path: Path) -> None:
    add_classes(tmp_path, "a", "b", "c", "d")
    for name in ("a/x.tga", "b/X.TGA", "b/noending", "c/list.txt", "d/.hidden.tga", "e/only.tga"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    dataset = load(tmp_path)
    assert dataset.input_notes == (
        "files that are not read: 3 .tga (a/x.tga), 1 without an ending (b/noending)",
        "1 folder has no image that is read, and so no class: e",
    )
    assert dataset.notes == ()


@pytest.mark.parametrize("name", ["scan.tga", "list.txt", "docs/list.txt", "empty/.keep"])
def test_files_beside_the_class_folders_are_passed_over(tmp_path: Path, name: str) -> None:
    add_classes(tmp_path, "a", "b", "c", "d")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"")
    assert load(tmp_path).input_notes == ()


def test_a_folder_that_only_holds_folders_with_images_is_no_missing_class(tmp_path: Path) -> None:
    add_classes(tmp_path, "x/a", "x/b", "x/c", "x/d")
    (tmp_path / "x" / "photo.tga").write_bytes(b"")
    assert load(tmp_path).input_notes == ("files that are not read: 1 .tga (x/photo.tga)",)


@pytest.mark.parametrize("name", ["c0/x.tga", "x.tga"])
def test_a_folder_without_images_says_what_lies_there(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError, match=rf"0 classes with images; .*; files that are not read: 1 .tga \({name}\)"):
        load(tmp_path)


def test_a_gallery_of_unread_files_says_so(tmp_path: Path) -> None:
    add_classes(tmp_path, "query/a", "query/b")
    (tmp_path / "gallery" / "a").mkdir(parents=True)
    (tmp_path / "gallery" / "a" / "x.tga").write_bytes(b"")
    with pytest.raises(DataError, match=r"gallery/ has none; files that are not read: 1 .tga \(gallery/a/x.tga\)"):
        load(tmp_path)


def test_queries_and_gallery_tell_their_unread_files(tmp_path: Path) -> None:
    add_classes(tmp_path, "query/a", "query/b", "gallery/a", "gallery/b")
    (tmp_path / "gallery" / "a" / "x.jpg~").write_bytes(b"")
    assert load(tmp_path).input_notes == ("files that are not read: 1 .jpg~ (gallery/a/x.jpg~; rename to end in .jpg)",)


def test_folders_named_by_numbers_say_which_train_unless_they_are_shuffled(tmp_path: Path) -> None:
    add_classes(tmp_path, "7", "8", "9", "10")
    dataset = load(tmp_path)
    assert dataset.class_names == ("10", "7", "8", "9")
    (note,) = dataset.input_notes
    assert note.startswith("class names are sorted as text: train has 7, 10, test has 8 to 9;")
    assert load(tmp_path, class_seed=0).input_notes == load(tmp_path, train_classes=0).input_notes == ()


def notes(*names: str) -> tuple[str, ...]:
    return UnreadFiles({"c.0": names}).notes()


def test_files_are_counted_by_ending_the_most_first_and_one_of_each_is_named() -> None:
    assert notes("b.tga", "A.TGA", "noending", "x.psd", "y.psd", "z.psd") == (
        "files that are not read: 3 .psd (c.0/x.psd), 2 .tga (c.0/A.TGA), 1 without an ending (c.0/noending)",
    )


def test_an_ending_that_goes_on_behind_an_images_is_to_be_cut() -> None:
    assert notes("a.jpg?1528", "b.jpg?1528") == (
        "files that are not read: 2 .jpg?1528 (c.0/a.jpg?1528; rename to end in .jpg)",
    )


def test_such_endings_are_counted_together() -> None:
    assert notes("a.jpg?1", "b.JPG?22", "c.png~", "d.x?1") == (
        "files that are not read: 2 .jpg?... (c.0/a.jpg?1; rename to end in .jpg), 1 .png~ (c.0/c.png~; rename to end"
        " in .png), 1 .x?1 (c.0/d.x?1)",
    )


def test_heic_names_the_package_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    reads_heif.cache_clear()
    assert unread_among(["a.HEIC"]) == ["a.HEIC"]
    reads_heif.cache_clear()
    assert notes("a.HEIC") == ("files that are not read: 1 .heic (c.0/a.HEIC; pip install pillow-heif)",)


def test_folders_without_an_image_are_named() -> None:
    unread = UnreadFiles({"b": ["x.tga"], "a": ["x.tga"], "c": ["x.tga"]}, frozenset("ba"))
    assert unread.notes()[1] == "2 folders have no image that is read, and so no class: a, b"


def test_where_every_file_is_read_nothing_is_said() -> None:
    assert UnreadFiles().notes() == ()


@pytest.mark.parametrize("name", ["x.png", ".hidden.tga", "list.TXT", "x.json", "Thumbs.db", "desktop.ini", "README"])
def test_images_hidden_files_and_text_are_passed_over(name: str) -> None:
    assert unread_among([name, "x.tga"]) == ["x.tga"]


def test_a_name_cannot_break_the_line() -> None:
    assert "\n" not in notes("a.t\nga")[0]


def test_a_link_to_itself_is_no_folder(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(b"x")
    (tmp_path / "a" / "loop").symlink_to("loop")
    assert sum(len(split) for split in load(tmp_path).splits.values()) == 4
