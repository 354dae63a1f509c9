from __future__ import annotations

import pickle

import numpy as np
import pytest

from layerprobe.data import memory
from layerprobe.data.memory import held
from layerprobe.data.splits import Dataset, Image, Split


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
    monkeypatch.setattr(memory, "_LIMIT", 35)  # three images have 36 bytes
    assert held(dataset) is dataset
    monkeypatch.setattr(memory, "_LIMIT", 36)
    assert held(dataset) is not dataset
