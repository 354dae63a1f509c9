from __future__ import annotations

import numpy as np
import pytest

from layerprobe.data import memory
from layerprobe.data.memory import held
from layerprobe.data.splits import Dataset, Image, Split


class Counted:
    """An image of one colour, and how often it was asked for."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, index: int) -> Image:
        self.calls.append(index)
        return np.full((4, 4, 3), index, np.uint8)


def dataset(image: Counted) -> Dataset:
    labels = np.array([0, 0, 1, 1])
    return Dataset({"train": Split("train", labels, ("a", "b", "c", "d"), image)}, ("x", "y"))


def test_an_image_is_read_once_and_stays_the_same() -> None:
    image = Counted()
    split = held(dataset(image)).splits["train"]
    image.calls.clear()  # the first image was read for its size
    for _ in range(2):
        assert [int(split.image(i)[0, 0, 0]) for i in range(4)] == [0, 1, 2, 3]
    assert image.calls == [0, 1, 2, 3]


def test_a_set_beyond_the_limit_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = dataset(Counted())
    monkeypatch.setattr(memory, "_LIMIT", 4 * 48 - 1)
    assert held(whole) is whole
    monkeypatch.setattr(memory, "_LIMIT", 4 * 48)
    assert held(whole) is not whole


def test_images_of_another_size_than_the_first_are_an_error() -> None:
    labels = np.array([0, 0])

    def image(index: int) -> Image:
        return np.zeros((4 + index, 4, 3), np.uint8)

    split = held(Dataset({"train": Split("train", labels, ("a", "b"), image)}, ("x",))).splits["train"]
    with pytest.raises(ValueError, match="could not broadcast"):
        split.image(1)
