from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.data.batches import Indices, class_batches, shuffled_batches
from layerprobe.system.errors import RecipeError


def labels_of(*sizes: int) -> NDArray[np.int64]:
    """Classes 0, 1, ... of the given sizes, in a mixed order."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return np.random.default_rng(5).permutation(labels)


def drawn(labels: NDArray[np.int64], m: int, k: int, *, seed: int = 0, epoch: int = 1) -> list[Indices]:
    return class_batches(labels, batch_size=m, images_per_class=k, seed=seed, epoch=epoch)


def class_sets(labels: NDArray[np.int64], m: int, k: int, epochs: int) -> list[set[int]]:
    return [set(labels[b].tolist()) for epoch in range(epochs) for b in drawn(labels, m, k, epoch=epoch)]


def test_a_batch_has_p_classes_with_k_images_each() -> None:
    labels = labels_of(*[20] * 10)
    for batch in drawn(labels, 32, 4):
        _, counts = np.unique(labels[batch], return_counts=True)
        assert counts.tolist() == [4] * 8


def test_images_of_a_class_lie_side_by_side() -> None:
    labels = labels_of(*[20] * 10)
    for batch in drawn(labels, 32, 4):
        assert len({tuple(set(group)) for group in labels[batch].reshape(8, 4).tolist()}) == 8


@pytest.mark.parametrize(("k", "size"), [(37, 74), (12, 72), (25, 75)])
def test_what_k_does_not_divide_is_left_out_of_the_batch(k: int, size: int) -> None:
    # 368 images make 4 batches of 75, though they would make 5 of 72.
    labels = labels_of(*[46] * 8)
    assert [len(batch) for batch in drawn(labels, 75, k)] == [size] * 4


def test_no_image_is_twice_in_a_batch_where_its_class_has_k() -> None:
    labels = labels_of(*[4] * 10)
    assert all(len(set(batch.tolist())) == 32 for epoch in range(20) for batch in drawn(labels, 32, 4, epoch=epoch))


def test_only_a_class_of_fewer_than_k_images_repeats_some() -> None:
    labels = labels_of(3, 40, 40)
    repeated = set()
    for batch in drawn(labels, 12, 4):
        images, counts = np.unique(batch, return_counts=True)
        repeated |= set(labels[images[counts > 1]].tolist())
    assert repeated == {0}


def test_classes_of_one_image_are_never_drawn() -> None:
    labels = labels_of(1, 1, 1, 5, 5, 5)
    assert set.union(*class_sets(labels, 6, 2, epochs=50)) == {3, 4, 5}


def test_classes_are_drawn_in_proportion_to_their_size() -> None:
    # One class a batch, sizes 2 : 6 : 12, 2 batches an epoch.
    labels = labels_of(2, 6, 12)
    found = class_sets(labels, 10, 10, epochs=1500)
    assert len(found) == 3000
    shares = [sum(c in classes for classes in found) / 3000 for c in range(3)]
    # Standard deviation at most sqrt(0.24 / 3000) = 0.009.
    assert shares == pytest.approx([0.1, 0.3, 0.6], abs=0.04)


def test_two_classes_are_drawn_one_after_the_other_without_replacement() -> None:
    # The second draw is in proportion to what is left:
    # class 0 is in with 0.1 + 0.3 0.1 / 0.7 + 0.6 0.1 / 0.4 = 0.293,
    # class 1 with 0.3 + 0.1 0.3 / 0.9 + 0.6 0.3 / 0.4 = 0.783,
    # class 2 with 0.6 + 0.1 0.6 / 0.9 + 0.3 0.6 / 0.7 = 0.924.
    labels = labels_of(2, 6, 12)
    found = class_sets(labels, 4, 2, epochs=600)
    shares = [sum(c in classes for classes in found) / len(found) for c in range(3)]
    assert shares == pytest.approx([0.293, 0.783, 0.924], abs=0.04)


def test_every_image_of_a_class_is_drawn_sooner_or_later() -> None:
    labels = labels_of(5, 7, 9)
    seen = np.concatenate([batch for epoch in range(40) for batch in drawn(labels, 6, 3, epoch=epoch)])
    assert set(seen.tolist()) == set(range(21))


def test_labels_may_have_gaps() -> None:
    labels = np.array([7, 90, 7, 90, 12, 12], np.int64)
    (batch,) = drawn(labels, 6, 2)
    assert sorted(labels[batch].tolist()) == [7, 7, 12, 12, 90, 90]


@pytest.mark.parametrize("kind", ["classes", "shuffled"])
def test_seed_and_epoch_decide_the_batches_and_nothing_else(kind: str) -> None:
    labels = labels_of(*[20] * 10)

    def batches(seed: int, epoch: int) -> list[list[int]]:
        if kind == "shuffled":
            return [b.tolist() for b in shuffled_batches(labels, batch_size=32, seed=seed, epoch=epoch)]
        return [b.tolist() for b in drawn(labels, 32, 4, seed=seed, epoch=epoch)]

    first = batches(0, 1)
    np.random.seed(3)  # noqa: NPY002 - the global generator must not matter
    assert batches(0, 1) == first
    assert np.random.random() == np.random.RandomState(3).random()  # noqa: NPY002 - nor be drawn from
    assert first not in (batches(0, 2), batches(1, 1))


def test_shuffled_batches_hold_every_image_once_but_the_remainder() -> None:
    batches = shuffled_batches(labels_of(50, 53), batch_size=10, seed=0, epoch=1)
    assert [len(batch) for batch in batches] == [10] * 10
    assert len(set(np.concatenate(batches).tolist())) == 100


def test_shuffled_batches_leave_out_others_each_epoch() -> None:
    labels = labels_of(50, 53)
    seen = [set(np.concatenate(shuffled_batches(labels, batch_size=10, seed=0, epoch=e)).tolist()) for e in (1, 2)]
    assert seen[0] != seen[1]


def test_fewer_images_than_a_batch_are_refused() -> None:
    with pytest.raises(RecipeError, match="train.batch_size = 32: there are 20 training images. Lower"):
        drawn(labels_of(10, 10), 32, 4)
    with pytest.raises(RecipeError, match="train.batch_size = 32: there are 20 training images. Lower"):
        shuffled_batches(labels_of(10, 10), batch_size=32, seed=0, epoch=1)


def test_fewer_classes_than_a_batch_are_refused() -> None:
    with pytest.raises(RecipeError, match="needs 8 classes of 2 images or more; 3 of the 5 training classes have as"):
        drawn(labels_of(30, 30, 30, 1, 1), 32, 4)


@pytest.mark.parametrize("k", [1, 33])
def test_images_per_class_outside_its_range_is_refused(k: int) -> None:
    with pytest.raises(RecipeError, match=f"train.images_per_class = {k}: must be from 2 to train.batch_size = 32"):
        drawn(labels_of(40, 40), 32, k)


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(RecipeError, match="train.batch_size = 0: must be at least 1"):
        shuffled_batches(labels_of(4, 4), batch_size=0, seed=0, epoch=1)


def test_classes_of_any_size_may_be_drawn_alike() -> None:
    labels = labels_of(2, 6, 12)
    batches = [
        set(labels[b].tolist())
        for epoch in range(1500)
        for b in class_batches(labels, batch_size=10, images_per_class=10, by_size=False, seed=0, epoch=epoch)
    ]
    shares = [sum(c in classes for classes in batches) / len(batches) for c in range(3)]
    assert shares == pytest.approx([1 / 3] * 3, abs=0.04)


def test_with_singletons_a_class_of_one_image_repeats_it() -> None:
    labels = labels_of(1, 3)
    (batch,) = class_batches(labels, batch_size=4, images_per_class=2, singletons=True, seed=0, epoch=1)
    assert len(set(batch[labels[batch] == 0].tolist())) == 1


def test_one_image_a_class_is_for_batches_with_singletons() -> None:
    labels = labels_of(5, 5, 5, 5)
    batches = class_batches(labels, batch_size=4, images_per_class=1, singletons=True, seed=0, epoch=1)
    assert [sorted(labels[batch].tolist()) for batch in batches] == [[0, 1, 2, 3]] * 5


def test_with_replacement_an_image_may_come_twice() -> None:
    labels = labels_of(5, 5)

    def repeats(replacement: bool) -> bool:
        return any(
            len(set(batch.tolist())) < 10
            for epoch in range(20)
            for batch in class_batches(
                labels, batch_size=10, images_per_class=5, replacement=replacement, seed=0, epoch=epoch
            )
        )

    assert (repeats(True), repeats(False)) == (True, False)
