from __future__ import annotations

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerprobe.data import pixel_cache
from layerprobe.data.decoding import fill
from layerprobe.data.pixel_cache import DecodedPixels, Entry, entries, held
from layerprobe.data.splits import Dataset, Image, Split
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
