from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from layerprobe.data import contents
from layerprobe.data.contents import pending_reads, table_of, with_digests
from layerprobe.data.image_files import Files
from layerprobe.data.splits import Dataset, Split
from layerprobe.system.errors import DataError
from tests.data.spoiled import encoded, moving, transparent, turned
from tests.workflow.conftest import Silent

NAMES = ("a.png", "b.png")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"first")
    (folder / "b.png").write_bytes(b"other")
    return folder


def of_files(root: Path, names: tuple[str, ...] = NAMES) -> Dataset:
    return Dataset({"train": Split("train", np.zeros(len(names), np.int64), names, Files(root, names))}, ("one",))


def hashes(dataset: Dataset) -> list[str]:
    """Of the images of the one split, in hexadecimal digits."""
    (split,) = dataset.splits.values()
    assert split.digests is not None
    return [row.tobytes().hex() for row in split.digests]


def blake(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def test_a_files_hash_is_that_of_its_bytes(root: Path, tmp_path: Path) -> None:
    assert hashes(with_digests(of_files(root), tmp_path, Silent())) == [blake(b"first"), blake(b"other")]


def test_a_file_that_has_not_changed_is_not_read_again(root: Path, tmp_path: Path) -> None:
    with_digests(of_files(root), tmp_path, Silent())
    table = table_of(root, tmp_path)
    table.write_text(table.read_text().replace(blake(b"first"), blake(b"kept")))
    (root / "b.png").write_bytes(b"moved")
    assert hashes(with_digests(of_files(root), tmp_path, Silent())) == [blake(b"kept"), blake(b"moved")]


def test_a_file_of_the_same_size_and_time_is_read_again(root: Path, tmp_path: Path) -> None:
    with_digests(of_files(root), tmp_path, Silent())
    before = (root / "a.png").stat()
    (root / "new.png").write_bytes(b"fresh")
    os.utime(root / "new.png", ns=(before.st_atime_ns, before.st_mtime_ns))
    (root / "new.png").replace(root / "a.png")
    assert hashes(with_digests(of_files(root), tmp_path, Silent()))[0] == blake(b"fresh")


@pytest.mark.parametrize(
    "damaged", ["", "{", "[]", '{"schema": 0}', '{"schema": 1, "files": {"a.png": 3}}', '{"schema": 1, "files": []}']
)
def test_a_damaged_table_is_made_again(root: Path, tmp_path: Path, damaged: str) -> None:
    table = table_of(root, tmp_path)
    table.write_text(damaged)
    assert hashes(with_digests(of_files(root), tmp_path, Silent())) == [blake(b"first"), blake(b"other")]
    assert blake(b"other") in table.read_text()


def test_a_pipe_in_the_place_of_the_table_is_replaced(root: Path, tmp_path: Path) -> None:
    with_digests(of_files(root), tmp_path, Silent())
    table = table_of(root, tmp_path)
    table.unlink()
    os.mkfifo(table)
    assert hashes(with_digests(of_files(root), tmp_path, Silent())) == [blake(b"first"), blake(b"other")]
    assert table.is_file()


def test_a_hash_of_another_length_is_made_again(root: Path, tmp_path: Path) -> None:
    with_digests(of_files(root), tmp_path, Silent())
    table = table_of(root, tmp_path)
    table.write_text(table.read_text().replace(blake(b"first"), blake(b"first")[:16]))
    assert hashes(with_digests(of_files(root), tmp_path, Silent())) == [blake(b"first"), blake(b"other")]


def test_data_sets_below_one_root_keep_each_others_hashes(root: Path, tmp_path: Path) -> None:
    for name in NAMES:
        with_digests(of_files(root, (name,)), tmp_path, Silent())
    assert all(blake(content) in table_of(root, tmp_path).read_text() for content in (b"first", b"other"))


def test_nothing_is_kept_where_nobody_listens(root: Path, tmp_path: Path) -> None:
    assert hashes(with_digests(of_files(root), tmp_path, None)) == [blake(b"first"), blake(b"other")]
    assert not table_of(root, tmp_path).exists()


def test_what_was_read_before_an_interruption_is_kept(root: Path, tmp_path: Path) -> None:
    class Interrupted(Silent):
        def advance(self, steps: int = 1, **figures: float) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        with_digests(of_files(root), tmp_path, Interrupted())
    kept = table_of(root, tmp_path).read_text()
    assert (blake(b"first") in kept, blake(b"other") in kept) == (True, False)


def test_what_a_killed_process_left_beside_the_table_is_removed(root: Path, tmp_path: Path) -> None:
    left = tmp_path / f".{table_of(root, tmp_path).name}.123.tmp"
    left.write_text("{")
    with_digests(of_files(root), tmp_path, Silent())
    assert not left.exists()
    assert table_of(root, tmp_path).exists()


def test_a_pipe_is_not_opened(root: Path, tmp_path: Path) -> None:
    (root / "a.png").unlink()
    os.mkfifo(root / "a.png")
    with pytest.raises(DataError, match="a.png: a pipe, socket or device, not a file"):
        with_digests(of_files(root), tmp_path, Silent())


def test_a_file_that_went_away_is_named(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone.jpg: cannot be read \(No such file or directory\). Check"):
        with_digests(of_files(root, ("gone.jpg",)), tmp_path, Silent())


def test_images_that_are_no_files_are_hashed_by_pixels_and_shape(tmp_path: Path) -> None:
    images = [np.zeros(shape, np.uint8) for shape in ((2, 4, 3), (4, 2, 3), (2, 4, 3))]
    split = Split("train", np.zeros(3, np.int64), ("a", "b", "c"), images.__getitem__)
    first, other, again = hashes(with_digests(Dataset({"train": split}, ("one",)), tmp_path, Silent()))
    assert (first == again, first == other) == (True, False)


def test_what_reading_does_to_images_is_counted_by_file(root: Path, tmp_path: Path) -> None:
    contents = {"a.png": transparent(1), "b.png": moving("GIF", 2), "c.jpg": turned(3), "d.png": b"no image"}
    for name, content in contents.items():
        (root / name).write_bytes(content)
    both = {name: replace(of_files(root, tuple(contents)).splits["train"], name=name) for name in ("test", "gallery")}
    for _ in range(2):  # read, then known
        dataset = with_digests(Dataset(both, ("one",)), tmp_path, Silent())
        assert dataset.rules == {
            "transparency": 1, "animated": 1, "palette": 1, "wrong ending": 1, "EXIF rotation": 1,
        }  # fmt: skip


def test_boxes_of_a_file_are_contents_of_their_own_and_the_file_is_read_once(root: Path, tmp_path: Path) -> None:
    def of_boxes(*boxes: tuple[int, int, int, int] | None) -> list[str]:
        files = Files(root, ("a.png",) * len(boxes), boxes=boxes)
        split = Split("train", np.zeros(len(boxes), np.int64), files.ids, files)
        assert len(pending_reads(Dataset({"train": split}, ("one",)), tmp_path)) == (
            not table_of(root, tmp_path).exists()
        )
        return hashes(with_digests(Dataset({"train": split}, ("one",)), tmp_path, Silent()))

    one, other, whole = of_boxes((0, 0, 4, 5), (0, 0, 5, 4), None)
    assert len({one, other, whole}) == 3
    assert whole == blake(b"first")
    assert of_boxes((0, 0, 5, 4)) == [other]
    (root / "a.png").write_bytes(b"moved")
    with_digests(of_files(root), tmp_path, Silent())
    assert of_boxes((0, 0, 5, 4)) != [other]


def deep(*values: int) -> bytes:
    """A PNG of 16-bit grey."""
    return encoded(PIL.Image.fromarray(np.array([values], np.uint16)), "PNG")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose largest value is read."""
    names: list[str] = []
    largest = contents._largest

    def counted(path: Path) -> int:
        names.append(path.name)
        return largest(path)

    monkeypatch.setattr(contents, "_largest", counted)
    return names


def test_the_largest_value_of_16_bit_grey_is_read_once(root: Path, tmp_path: Path, measured: list[str]) -> None:
    (root / "a.png").write_bytes(deep(7, 1020))
    (root / "b.png").write_bytes(deep(900, 3))
    for _ in range(2):
        assert with_digests(of_files(root), tmp_path, Silent()).largest_grey == 1020
    assert measured == ["a.png", "b.png"]
    (root / "b.png").write_bytes(deep(4080))
    assert with_digests(of_files(root), tmp_path, Silent()).largest_grey == 4080
    assert measured == ["a.png", "b.png", "b.png"]


def test_a_value_of_the_full_range_ends_the_search(root: Path, tmp_path: Path, measured: list[str]) -> None:
    (root / "a.png").write_bytes(deep(2**14))
    (root / "b.png").write_bytes(deep(900))
    for _ in range(2):
        assert with_digests(of_files(root), tmp_path, Silent()).largest_grey == 2**14
    assert measured == ["a.png"]


def test_a_table_without_largest_values_gets_them_and_keeps_its_hashes(
    root: Path, tmp_path: Path, measured: list[str]
) -> None:
    (root / "a.png").write_bytes(deep(7, 1020))
    with_digests(of_files(root), tmp_path, Silent())
    table = table_of(root, tmp_path)
    before = table.read_text().replace('["16-bit grey"], 1020]', '["16-bit grey"]]')
    assert "1020" not in before
    table.write_text(before.replace(blake(b"other"), blake(b"kept")))
    dataset = with_digests(of_files(root), tmp_path, Silent())
    assert (dataset.largest_grey, hashes(dataset)[1]) == (1020, blake(b"kept"))
    assert measured == ["a.png", "a.png"]


def test_a_broken_image_of_16_bits_has_no_value_and_stops_nothing(root: Path, tmp_path: Path) -> None:
    (root / "a.png").write_bytes(deep(*range(2000))[:-60])
    (root / "b.png").write_bytes(deep(900))
    assert with_digests(of_files(root), tmp_path, Silent()).largest_grey == 900


def test_other_images_are_not_measured(root: Path, tmp_path: Path, measured: list[str]) -> None:
    (root / "a.png").write_bytes(transparent(1))
    assert with_digests(of_files(root), tmp_path, Silent()).largest_grey == 0
    assert measured == []
