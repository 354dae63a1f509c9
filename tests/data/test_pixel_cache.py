from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerprobe.data import pixel_cache
from layerprobe.data.pixel_cache import DecodedPixels, Entry, bytes_to_remove, count_decoded, entries, fill, held
from layerprobe.data.splits import Dataset, Image, Split
from layerprobe.system.errors import DataError
from tests.data.noise import DIGESTS, Noise, Progress, filled, split_of


def test_a_kill_while_removing_leaves_an_entry_that_can_be_removed(tmp_path: Path) -> None:
    entry, _ = filled(tmp_path / "entry", Noise())
    entry.pixels.unlink()  # what goes first
    assert [(found, found.is_complete()) for found in entries(tmp_path)] == [(entry, False)]


def test_the_format_is_part_of_an_entrys_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = Entry.of(tmp_path, "files", "steps")
    monkeypatch.setattr(pixel_cache, "SCHEMA", pixel_cache.SCHEMA + 1)
    assert Entry.of(tmp_path, "files", "steps") != now


def test_a_worker_is_sent_a_path(tmp_path: Path) -> None:
    entry, _ = filled(tmp_path, Noise())
    stored = DecodedPixels(entry)
    sent = pickle.dumps(stored)
    assert len(sent) < 1000
    np.testing.assert_array_equal(pickle.loads(sent)(3), Noise()(3))


def test_what_somebody_reads_cannot_be_removed(tmp_path: Path) -> None:
    entry, _ = filled(tmp_path, Noise())
    stored = DecodedPixels(entry)
    with pytest.raises(BlockingIOError):
        entry.remove()
    np.testing.assert_array_equal(stored(1), Noise()(1))
    del stored
    entry.remove()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert not entry.is_complete()


def test_who_waits_for_another_is_told_and_finds_it_whole(tmp_path: Path) -> None:
    from threading import Thread

    entry, told = Entry(tmp_path), []
    with entry.locked():
        other = Thread(target=lambda: told.append(filled_after_waiting()))

        def filled_after_waiting() -> bool:
            with entry.locked(wait=lambda: told.append(False)):
                return entry.is_complete()

        other.start()
        while not told:
            pass
        fill(entry, split_of(Noise()), Progress(), digests=DIGESTS, about={}, workers=0)
    other.join()
    assert told == [False, True]


def test_another_manifest_or_way_of_resizing_is_another_entry(tmp_path: Path) -> None:
    ways = [("m", "224x224"), ("m", "256x256"), ("n", "224x224")]
    assert len({Entry.of(tmp_path, *way).folder for way in ways}) == 3


def test_entries_are_listed_the_last_used_first(tmp_path: Path) -> None:
    for place, name in enumerate(("a", "b", "c")):
        entry, _ = filled(tmp_path / name, Noise())
        os.utime(entry.folder / "about.json", (place, place))
    DecodedPixels(Entry(tmp_path / "b"))  # which is a use
    assert [entry.folder.name for entry in entries(tmp_path)] == ["b", "c", "a"]


def test_an_entry_of_another_format_is_not_read(tmp_path: Path) -> None:
    entry, _ = filled(tmp_path, Noise())
    about = entry.folder / "about.json"
    about.write_text(about.read_text().replace(f'"schema": {pixel_cache.SCHEMA}', '"schema": 9'))
    assert not entry.is_complete()
    assert replace(entry).about() == {}


@pytest.mark.parametrize(
    "odd", [{"images": "many"}, {"images": -1}, {"bytes": None}, {"data": 3}, {"split": ["train"]}, {"images": 1e3}]
)
def test_an_entry_with_an_odd_description_is_not_whole(tmp_path: Path, odd: dict[str, object]) -> None:
    entry, _ = filled(tmp_path, Noise())
    assert entry.is_complete()
    about = tmp_path / "about.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | odd))
    assert (entry.about(), entry.is_complete()) == ({}, False)


def test_the_files_of_an_entry_may_have_names_that_are_not_utf8(tmp_path: Path) -> None:
    assert Entry.of(tmp_path, "caf\udce9", "steps") != Entry.of(tmp_path, "caf", "steps")


class Counted:
    """An image source that counts how often each image is asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, index: int) -> Image:
        self.asked.append(index)
        return np.full((2, 2, 3), index + 1, np.uint8)


def counted() -> tuple[Dataset, Counted]:
    source = Counted()
    return Dataset({"test": Split("test", np.array([0, 1, 1]), ("a", "b", "c"), source)}, ("ant", "bee")), source


def test_held_images_are_the_same() -> None:
    dataset, _ = counted()
    split = held(dataset).splits["test"]
    for _ in range(2):
        assert [int(split.image(i)[1, 1, 2]) for i in (2, 0, 1)] == [3, 1, 2]


def test_a_held_image_is_read_once() -> None:
    dataset, source = counted()
    split = held(dataset).splits["test"]
    source.asked.clear()
    for i in (1, 1, 2, 1):
        split.image(i)
    assert source.asked == [1, 2]


def test_a_worker_is_sent_the_reading_and_no_pixels() -> None:
    dataset, _ = counted()
    split = held(dataset).splits["test"]
    copy = pickle.loads(pickle.dumps(split))
    assert isinstance(copy.image, Counted)
    assert np.array_equal(copy.image(2), split.image(2))


def test_more_than_the_limit_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, _ = counted()
    monkeypatch.setattr(pixel_cache, "_LIMIT", 35)  # three images have 36 bytes
    assert held(dataset) is dataset
    monkeypatch.setattr(pixel_cache, "_LIMIT", 36)
    assert held(dataset) is not dataset


@pytest.mark.parametrize("workers", [0, 2])
def test_every_image_comes_back_in_its_place_and_size(tmp_path: Path, workers: int) -> None:
    entry, done = filled(tmp_path, Noise(), workers)
    assert (entry.is_complete(), done) == (True, 40)
    stored = DecodedPixels(entry)
    for i in (39, 0, 17):
        np.testing.assert_array_equal(stored(i), Noise()(i))


def test_images_of_one_size_are_one_array(tmp_path: Path) -> None:
    @dataclass
    class Square(Noise):
        def __call__(self, index: int) -> Image:
            return np.full((2, 2, 3), index, np.uint8)

    entry, _ = filled(tmp_path, Square())
    pixels = np.memmap(entry.pixels, np.uint8, "r", shape=(40, 2, 2, 3))
    assert pixels[:, 1, 1, 2].tolist() == list(range(40))


def test_what_is_whole_is_not_decoded_again(tmp_path: Path) -> None:
    filled(tmp_path, Noise())
    again = Noise()
    assert filled(tmp_path, again)[1] == 40
    assert again.asked == []


@pytest.mark.parametrize(("workers", "kept"), [(0, 35), (2, 32)])  # workers decode 16 at once
def test_a_bad_image_is_named_and_the_next_call_goes_on_from_it(tmp_path: Path, workers: int, kept: int) -> None:
    with pytest.raises(DataError, match=r"35\.jpg: the image is truncated"):
        filled(tmp_path, Noise(bad=35), workers)
    assert not Entry(tmp_path).is_complete()
    with pytest.raises(DataError, match="were removed"):
        DecodedPixels(Entry(tmp_path))
    mended = Noise()
    entry, done = filled(tmp_path, mended)
    assert mended.asked == list(range(kept, 40))
    assert (entry.is_complete(), done) == (True, 40)
    for i in range(40):
        np.testing.assert_array_equal(DecodedPixels(entry)(i), Noise()(i))


@pytest.mark.parametrize(
    ("pixels", "sizes"),
    [(100, None), (None, 32 * 7 + 3), (None, 32 * 7), (0, None), (None, 0)],
    ids=["half an image", "half a size", "sizes behind", "no pixels", "no sizes"],
)
def test_a_kill_at_any_byte_spoils_nothing(tmp_path: Path, pixels: int | None, sizes: int | None) -> None:
    with pytest.raises(DataError):
        filled(tmp_path, Noise(bad=35))
    entry = Entry(tmp_path)
    for path, length in ((entry.pixels, pixels), (entry.index, sizes)):
        if length is not None:
            os.truncate(path, length)
    filled(tmp_path, Noise())
    for i in range(40):
        np.testing.assert_array_equal(DecodedPixels(entry)(i), Noise()(i))


def test_sizes_that_a_power_failure_left_at_zero_are_not_believed(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        filled(tmp_path, Noise(bad=35))
    entry = Entry(tmp_path)
    with entry.index.open("r+b") as stream:
        stream.seek(32 * 5)
        stream.write(bytes(16))
    assert count_decoded(entry, DIGESTS) == 5


def test_an_image_whose_file_changed_is_decoded_again_with_all_after_it(tmp_path: Path) -> None:
    filled(tmp_path, Noise())
    changed = DIGESTS.copy()
    changed[35, 1] += 1
    entry = Entry(tmp_path)
    assert (entry.is_complete(), entry.is_complete(DIGESTS), entry.is_complete(changed)) == (True, True, False)
    with pytest.raises(DataError, match="were removed"):
        DecodedPixels(entry, changed)
    again = Noise()
    filled(tmp_path, again, digests=changed)
    assert again.asked == list(range(35, 40))
    assert Entry(tmp_path).is_complete(changed)


def test_an_entry_that_lost_its_index_is_made_again(tmp_path: Path) -> None:
    entry, _ = filled(tmp_path, Noise())
    entry.index.unlink()
    assert not entry.is_complete()
    filled(tmp_path, Noise())
    np.testing.assert_array_equal(DecodedPixels(entry)(39), Noise()(39))


def test_a_killed_process_leaves_what_it_had_synced(tmp_path: Path) -> None:
    code = f"""
import os, numpy as np
from pathlib import Path
from layerprobe.data import pixel_cache as cache
from tests.data.noise import DIGESTS, Noise, Progress, split_of
cache._COMMIT = 10
class Killed(Noise):
    def __call__(self, index):
        if index == 35: os.kill(os.getpid(), 9)
        return super().__call__(index)
entry = cache.Entry(Path({str(tmp_path)!r}))
with entry.locked():
    cache.fill(entry, split_of(Killed()), Progress(), digests=DIGESTS, about={{}}, workers=0)
"""
    killed = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False)
    assert killed.returncode == -9
    rest = Noise()
    entry, _ = filled(tmp_path, rest)
    assert rest.asked[0] == 30
    np.testing.assert_array_equal(DecodedPixels(entry)(29), Noise()(29))


def test_pixels_that_are_cut_off_are_decoded_again(tmp_path: Path) -> None:
    entry, _ = filled(tmp_path, Noise())
    os.truncate(entry.pixels, entry.pixels.stat().st_size - 1)
    assert not entry.is_complete()
    rest = Noise()
    filled(tmp_path, rest)
    assert rest.asked[-1] == 39
    assert entry.is_complete()


def test_a_full_disk_keeps_what_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixel_cache, "_COMMIT", 4)
    synced = []

    def full(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) > 7:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            filled(tmp_path, Noise())
    entry, _ = filled(tmp_path, Noise())
    for i in range(40):
        np.testing.assert_array_equal(DecodedPixels(entry)(i), Noise()(i))


class Full(io.FileIO):
    """A file on a disk that has room for 1000 bytes."""

    def write(self, data: Any) -> int:
        if not (room := 1000 - self.tell()):
            raise OSError(28, "No space left on device")
        return super().write(bytes(data)[:room])


def test_what_a_full_disk_had_room_for_is_not_decoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(path: Path, length: int) -> Any:
        assert length == 0
        path.touch()
        return io.BufferedWriter(Full(path, "r+")) if path.suffix == ".u8" else path.open("r+b")

    with monkeypatch.context() as patch:
        patch.setattr(pixel_cache, "_open_at", opened)
        with pytest.raises(OSError, match="No space left"):
            filled(tmp_path, Noise())
    # 45, 60, 75, 90 bytes, and so on: 15 images take 990.
    assert (count_decoded(Entry(tmp_path), DIGESTS), bytes_to_remove(Entry(tmp_path), DIGESTS)) == (15, 10)
    rest = Noise()
    entry, _ = filled(tmp_path, rest)
    assert rest.asked == list(range(15, 40))
    for i in range(40):
        np.testing.assert_array_equal(DecodedPixels(entry)(i), Noise()(i))


def test_the_room_of_the_sizes_is_taken_before_that_of_the_pixels(tmp_path: Path) -> None:
    index = Entry(tmp_path).index

    class Looks(Noise):
        def __call__(self, place: int) -> Image:
            assert index.stat().st_size == 32 * 40
            return super().__call__(place)

    filled(tmp_path, Looks())
