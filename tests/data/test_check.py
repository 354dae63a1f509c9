from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerprobe.data.check import Examined, Finding, SplitCount, counts, duplicates, examine, printable
from layerprobe.data.glyphs import load as glyphs
from layerprobe.data.image_files import Files
from layerprobe.data.splits import Dataset, Image, Split
from tests.data.spoiled import ERRORS, REMARKS, SPECIAL, colours, photo, spoil


def split_of(files: Files, name: str = "train", labels: list[int] | None = None) -> Split:
    return Split(name, np.array(labels or [0] * len(files.names), np.int64), tuple(files.names), files)


def folder(root: Path, seeds: dict[str, int]) -> Files:
    for name, seed in seeds.items():
        (root / name).write_bytes(photo(seed))
    return Files(root, tuple(seeds))


class Deadly(Files):
    """Ends the process that reads an image called so."""

    def __call__(self, index: int) -> Image:
        if self.names[index].startswith("deadly"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(index)


class Marking(Files):
    """Leaves a file beside every image that was read."""

    def __call__(self, index: int) -> Image:
        (self.root / f"{self.names[index]}.read").touch()
        return super().__call__(index)


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Files, dict[str, str]]:
    root = tmp_path_factory.mktemp("spoiled")
    kinds = spoil(root)
    return Files(root, tuple(kinds)), kinds


def kinds_found(files: Files, *, workers: int) -> dict[str, list[Finding]]:
    return {files.names[one.index]: list(one.findings) for one in examine(split_of(files), workers=workers)}


@pytest.mark.parametrize("workers", [0, 2])
def test_every_spoiled_file_is_called_by_its_kind_in_one_pass(
    spoiled: tuple[Files, dict[str, str]], workers: int
) -> None:
    files, kinds = spoiled
    assert len(ERRORS) + len(SPECIAL) >= 25
    found = kinds_found(files, workers=workers)
    wrong = {name: found[name] for name, kind in kinds.items() if kind not in [finding.kind for finding in found[name]]}
    assert wrong == {}
    assert found.keys() == kinds.keys()


def test_a_file_that_cannot_be_used_is_an_error_and_an_odd_one_a_remark(
    spoiled: tuple[Files, dict[str, str]],
) -> None:
    found = kinds_found(spoiled[0], workers=0)
    assert {name for name in found if any(finding.is_error for finding in found[name])} == {*ERRORS, *SPECIAL}
    assert all(found[name] for name in REMARKS)


def test_nothing_is_said_of_a_plain_photo(tmp_path: Path) -> None:
    assert kinds_found(folder(tmp_path, {"a.jpg": 0, "b.jpeg": 1, "C.JPG": 2}), workers=0) == {
        "a.jpg": [], "b.jpeg": [], "C.JPG": [],
    }  # fmt: skip


def test_an_image_that_ends_its_process_is_found_and_the_others_are_read(tmp_path: Path) -> None:
    seeds = {f"{i:02}.jpg": i for i in range(10)} | {"deadly.jpg": 10} | {f"{i}.jpg": i for i in range(11, 25)}
    files = Deadly(tmp_path, folder(tmp_path, seeds).names)
    results = list(examine(split_of(files), workers=2))
    assert sorted(one.index for one in results) == list(range(25))
    assert [(one.index, one.findings[0].kind) for one in results if one.pixels is None] == [(10, "crash")]


def test_the_processes_end_with_the_iterator(tmp_path: Path) -> None:
    files = Marking(tmp_path, folder(tmp_path, {f"{i}.jpg": i for i in range(100)}).names)
    results = examine(split_of(files), workers=2)
    next(results)
    results.close()
    assert multiprocessing.active_children() == []
    # Two chunks of eight images were in the hands of each process.
    assert len(list(tmp_path.glob("*.read"))) <= 32


def test_workers_do_not_change_what_is_found(tmp_path: Path) -> None:
    split = split_of(folder(tmp_path, {f"{i}.jpg": i for i in range(20)}))

    def in_order(workers: int) -> list[Examined]:
        return sorted(examine(split, workers=workers), key=lambda one: one.index)

    assert in_order(0) == in_order(2)


def test_made_images_are_read_too() -> None:
    split = glyphs(train_classes=2, test_classes=2, images_per_class=2).splits["train"]
    results = list(examine(split, workers=2))
    assert [(one.index, one.findings) for one in results] == [(i, ()) for i in range(4)]
    assert len({one.pixels for one in results}) == 4


def test_the_hash_sees_pixels_and_size_and_no_format(tmp_path: Path) -> None:
    for name, content in {
        "a.png": photo(0, "PNG"), "b.bmp": photo(0, "BMP"), "c.png": photo(1, "PNG"),
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(content)
    import PIL.Image

    with PIL.Image.open(tmp_path / "a.png") as image:
        PIL.Image.fromarray(np.asarray(image).reshape(32, 24, 3)).save(tmp_path / "d.png")
    files = Files(tmp_path, ("a.png", "b.bmp", "c.png", "d.png"))
    first, same, other, reshaped = (one.pixels for one in examine(split_of(files), workers=0))
    assert first == same
    assert len({first, other, reshaped}) == 3


def dataset(members: dict[str, list[tuple[str, int]]], search_in: dict[str, str] | None = None) -> Dataset:
    splits = {
        name: split_of(Files(Path(), [image for image, _ in split]), name, [label for _, label in split])
        for name, split in members.items()
    }
    return Dataset(splits, ("ant", "bee", "cat", "dog"), search_in or {})


def said(found: list[Finding]) -> list[tuple[str, bool, str, str, str]]:
    return [(f.kind, f.is_error, f.split, f.id, f.message) for f in found]


def test_the_same_pixels_in_train_and_test_are_an_error() -> None:
    data = dataset({"train": [("a", 0), ("b", 1)], "test": [("c", 2), ("d", 3)]})
    found = duplicates(data, {"train": [b"1", b"2"], "test": [b"3", b"2"]})
    assert said(found) == [("in two splits", True, "test", "d", "the same pixels as train: b, of class bee")]


def test_the_same_pixels_in_a_split_are_a_remark_for_all_but_the_first() -> None:
    data = dataset({"train": [("a", 0), ("b", 0), ("c", 1)], "test": []})
    found = duplicates(data, {"train": [b"1", b"1", b"1"], "test": []})
    assert said(found) == [
        ("duplicate", False, "train", "b", "the same pixels as train: a"),
        ("duplicate", False, "train", "c", "the same pixels as train: a, of class ant"),
    ]


def test_a_copy_in_its_own_split_does_not_hide_one_in_train() -> None:
    data = dataset({"train": [("a", 0)], "test": [("b", 2), ("c", 2)]})
    found = duplicates(data, {"train": [b"1"], "test": [b"1", b"1"]})
    assert [(f.id, f.is_error) for f in found] == [("b", True), ("c", True)]


def test_an_image_that_is_query_and_gallery_is_no_duplicate_and_its_copy_is_a_remark() -> None:
    data = dataset({"train": [], "test": [("a", 0)], "gallery": [("a", 0), ("b", 0)]}, {"test": "gallery"})
    found = duplicates(data, {"train": [], "test": [b"1"], "gallery": [b"1", b"1"]})
    assert said(found) == [("duplicate", False, "gallery", "b", "the same pixels as test: a")]


def test_the_same_pixels_in_train_and_gallery_are_an_error() -> None:
    data = dataset({"train": [("a", 0)], "test": [], "gallery": [("b", 1)]}, {"test": "gallery"})
    assert [f.is_error for f in duplicates(data, {"train": [b"1"], "test": [], "gallery": [b"1"]})] == [True]


def test_images_that_could_not_be_read_are_no_duplicates() -> None:
    data = dataset({"train": [("a", 0), ("b", 0)], "test": []})
    assert duplicates(data, {"train": [None, None], "test": []}) == []


def test_names_that_differ_in_capitals_alone_are_a_remark() -> None:
    data = dataset({"train": [("c/A.jpg", 0), ("c/a.jpg", 0)], "test": []})
    found = duplicates(data, {"train": [b"1", b"2"], "test": []})
    assert [(f.kind, f.is_error, f.id) for f in found] == [("capitals", False, "c/a.jpg")]


def test_classes_of_a_split_are_counted() -> None:
    data = dataset({"train": [("a", 0), ("b", 1), ("c", 1), ("d", 2), ("e", 1)], "test": []})
    assert counts(data) == [SplitCount("train", 5, 3, 1, 3, 2), SplitCount("test", 0, 0, 0, 0, 0)]


def test_a_name_that_is_not_utf8_can_be_printed() -> None:
    assert printable(os.fsdecode(b"caf\xe9.jpg")) == "caf\N{REPLACEMENT CHARACTER}.jpg"


def test_a_photo_with_a_preview_behind_it_is_a_plain_jpeg(tmp_path: Path) -> None:
    import PIL.Image

    photos = [PIL.Image.fromarray(colours(seed)) for seed in range(2)]
    photos[0].save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=photos[1:])
    with PIL.Image.open(tmp_path / "a.jpg") as image:
        assert image.format == "MPO"
    assert kinds_found(Files(tmp_path, ("a.jpg",)), workers=0) == {"a.jpg": []}


def test_too_little_memory_for_an_image_is_found(tmp_path: Path) -> None:
    def endless(index: int) -> Image:
        raise MemoryError

    split = Split("train", np.zeros(1, np.int64), ("a",), endless)
    assert [finding.kind for one in examine(split, workers=0) for finding in one.findings] == ["memory"]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_box_is_examined(tmp_path: Path, workers: int) -> None:
    files = replace(folder(tmp_path, {"a.jpg": 0}), names=("a.jpg",) * 9, boxes=[(0, 0, 9 - i, 9) for i in range(9)])
    found = {
        one.index: one for one in examine(Split("train", np.zeros(9, np.int64), files.ids, files), workers=workers)
    }
    assert len({found[index].pixels for index in range(9)}) == 9
    beyond = replace(files, names=("a.jpg",), boxes=[(0, 0, 9999, 9)])
    (one,) = examine(Split("train", np.zeros(1, np.int64), beyond.ids, beyond), workers=0)
    assert [finding.kind for finding in one.findings] == ["box"]
