from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerprobe.data import decoding
from layerprobe.data.decoding import bytes_to_remove, count_decoded
from layerprobe.data.pixel_cache import DecodedPixels, Entry
from layerprobe.data.splits import Image
from layerprobe.system.errors import DataError
from tests.data.noise import DIGESTS, Noise, filled


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
from layerprobe.data import pixel_cache as cache, decoding
from tests.data.noise import DIGESTS, Noise, Progress, split_of
decoding._COMMIT = 10
class Killed(Noise):
    def __call__(self, index):
        if index == 35: os.kill(os.getpid(), 9)
        return super().__call__(index)
entry = cache.Entry(Path({str(tmp_path)!r}))
with entry.locked():
    decoding.fill(entry, split_of(Killed()), Progress(), digests=DIGESTS, about={{}}, workers=0)
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
    monkeypatch.setattr(decoding, "_COMMIT", 4)
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
        patch.setattr(decoding, "_open_at", opened)
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
