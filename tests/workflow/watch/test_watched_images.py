from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from layerprobe.workflow.watch.watched_images import WatchedImages, keep_random_state, read_images
from tests.workflow.watch.trainings import Augmented

LOTS = 2**40


class Counting(Dataset[tuple[Tensor, int]]):
    """Images that are their row, of classes 0 to 29; it counts what is read, and states its labels or not."""

    def __init__(self, *, states: bool) -> None:
        self.read: list[int] = []
        self.classes = [row // 2 for row in range(60)]
        if states:
            self.targets = self.classes

    def __len__(self) -> int:
        return 60

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        self.read.append(row)
        return torch.full((3, 2, 2), float(row)), self.classes[row]


class Streamed(IterableDataset[tuple[Tensor, int]]):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return iter([(torch.full((3, 2, 2), float(row)), row // 2) for row in range(60)])


def rows(images: WatchedImages) -> list[int]:
    return [int(row) for row in images.images[:, 0, 0, 0]]


def whole_classes(images: WatchedImages) -> int:
    classes, counts = np.unique(images.labels, return_counts=True)
    assert set(counts.tolist()) == {2}
    assert images.labels.tolist() == [row // 2 for row in rows(images)]
    return len(classes)


def test_of_stated_labels_only_the_watched_images_are_read() -> None:
    data = Counting(states=True)
    found = read_images(DataLoader(data, 7, shuffle=True), "train", memory=LOTS, most=24)
    assert whole_classes(found) == 12
    assert rows(found) == data.read
    assert str(found) == "12 of 30 classes, 24 of 60 images"


@pytest.mark.parametrize("data", [Counting(states=False), Streamed()], ids=["rows", "stream"])
def test_where_no_labels_are_stated_the_same_classes_are_drawn(data: Dataset[tuple[Tensor, int]]) -> None:
    stated = read_images(DataLoader(Counting(states=True), 7), "train", memory=LOTS, most=24)
    found = read_images(DataLoader(data, 7), "train", memory=LOTS, most=24)
    assert rows(found) == rows(stated)
    assert str(found) == str(stated)


def test_a_small_memory_holds_fewer_whole_classes() -> None:
    found = read_images([(torch.ones(60, 3, 2, 2), torch.arange(60) // 2)], "test", memory=15 * 2 * 48)
    assert np.unique(found.labels, return_counts=True)[1].tolist() == [2] * 15


def test_of_fewer_images_than_ten_classes_have_ten_classes_have_equally_many() -> None:
    images = [(torch.arange(90.0).reshape(90, 1, 1, 1).expand(-1, 3, 2, 2), torch.arange(90) // 6)]
    found = read_images(images, "test", memory=LOTS, most=39)
    assert np.unique(found.labels, return_counts=True)[1].tolist() == [3] * 10
    assert str(found) == "10 of 15 classes, 30 of 90 images"
    # No fewer than two images of a class, so that each finds another.
    few = read_images(images, "test", memory=LOTS, most=1)
    assert np.unique(few.labels, return_counts=True)[1].tolist() == [2] * 10
    assert set(few.places.tolist()) < set(found.places.tolist())


def test_a_memory_for_fewer_than_ten_classes_holds_some_images_of_ten() -> None:
    images = [(torch.ones(10, 3, 2, 2), torch.arange(10)) for _ in range(64)]
    found = read_images(images, "test", memory=200 * 48)
    counts = np.unique(found.labels, return_counts=True)[1]
    assert len(counts) == 10
    assert 60 < len(found.labels) <= 200


def test_given_counts_are_read_again_whatever_the_share() -> None:
    images = [(torch.arange(90.0).reshape(90, 1, 1, 1).expand(-1, 3, 2, 2), torch.arange(90) // 6)]
    first = read_images(images, "test", memory=LOTS, most=50)
    counts = Counter(map(str, first.labels.tolist()))
    for data in (images, DataLoader(TensorDataset(*images[0]), 8)):
        again = read_images(data, "test", memory=LOTS, most=3, counts=counts)
        assert torch.equal(again.images, first.images)


def test_a_subset_and_the_sampler_of_one_read_their_rows_alone() -> None:
    data = Counting(states=True)
    chosen = [5, 4, 20, 21, 40, 41]
    for loader in (
        DataLoader(Subset(data, sorted(chosen)), 2),
        DataLoader(data, 2, sampler=SubsetRandomSampler(chosen)),
    ):
        assert rows(read_images(loader, "test", memory=LOTS, most=60)) == sorted(chosen)


def test_labels_of_tensors_are_stated() -> None:
    tensors = TensorDataset(torch.arange(60.0).reshape(60, 1, 1, 1).expand(-1, 3, 2, 2), torch.arange(60) // 2)
    assert whole_classes(read_images(DataLoader(tensors, 8), "train", memory=LOTS, most=20)) == 10


def test_labels_that_are_no_numbers_of_classes_are_not_taken_for_them() -> None:
    data = Counting(states=False)
    data.labels = torch.ones(60, 4)  # type: ignore[attr-defined] # attributes of several labels
    assert whole_classes(read_images(DataLoader(data, 7), "train", memory=LOTS, most=24)) == 12
    assert len(data.read) == 60


def test_random_transforms_give_the_same_image_from_any_state_beside_any_others() -> None:
    found = []
    for seed, most in ((1, 48), (2, 20)):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        with keep_random_state():
            found.append(read_images(DataLoader(Augmented(), 8, shuffle=True), "train", memory=LOTS, most=most))
    both = [list(found[0].places).index(place) for place in found[1].places]
    assert len(both) == 20
    assert torch.equal(found[0].images[both], found[1].images)


def test_batches_have_the_size_of_the_loader_after_classes_are_left_out() -> None:
    found = read_images(DataLoader(Counting(states=True), 7), "train", memory=LOTS).max_loss(30)
    assert [len(batch.labels) for batch in found.batches] == [7, 7, 7, 7, 2]
    assert torch.equal(torch.cat([batch.images for batch in found.batches]), found.images)
