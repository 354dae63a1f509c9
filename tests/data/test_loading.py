from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.data import folder, glyphs
from layerprobe.data.loading import (
    Indices,
    _BatchReader,
    _next,
    _Served,
    class_batches,
    count_class_batches,
    count_shuffled_batches,
    in_order,
    load_batches,
    plain_batches,
    shuffled_batches,
)
from layerprobe.data.splits import Split
from layerprobe.system.errors import DataError, EnvironmentFault, RecipeError, UnknownNameError
from tests.data.blocked import Blocked


@pytest.fixture(scope="module")
def split() -> Split:
    return glyphs.load(train_classes=10, test_classes=2, images_per_class=10, image_size=16).splits["train"]


def batches(split: Split, epoch: int = 1) -> list[Indices]:
    return class_batches(split.labels, batch_size=8, images_per_class=2, seed=0, epoch=epoch)


def of_epoch(epoch: int, drawn: Iterable[Indices]) -> list[tuple[int, Indices]]:
    return [(epoch, indices) for indices in drawn]


def loaded(split: Split, *, epoch: int = 1, seed: int = 0, augment: str = "affine", workers: int = 0) -> Tensor:
    found = load_batches(split, of_epoch(epoch, batches(split)), seed=seed, augment=augment, workers=workers)
    return torch.stack([pixels for pixels, _ in found])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Eight images of two training and two test classes."""
    for name in "abcd":
        (tmp_path / name).mkdir()
        for i in range(4):
            PIL.Image.new("L", (6, 5), 10 * i).save(tmp_path / name / f"{i}.png")
    return tmp_path


def train_split(root: Path) -> Split:
    return folder.load(root).splits["train"]


def workers_of() -> list[int]:
    """Process ids of this process's workers, once it has any."""
    for _ in range(12_000):
        if found := [child.pid for child in multiprocessing.active_children() if child.pid]:
            return found
        time.sleep(0.01)
    raise TimeoutError


def consume(items: Iterable[object]) -> int:
    return sum(1 for _ in items)


@pytest.mark.parametrize("augment", ["none", "affine", "photo"])
def test_workers_bring_the_same_pixels(split: Split, augment: str) -> None:
    alone, helped = (loaded(split, augment=augment, workers=workers) for workers in (0, 2))
    assert alone.shape == (12, 8, 16, 16, 3)
    assert alone.dtype == torch.uint8
    assert torch.equal(alone, helped)


def test_each_batch_comes_with_the_indices_it_was_made_from(split: Split) -> None:
    for workers in (0, 2):
        pairs = load_batches(split, of_epoch(1, batches(split)), seed=0, augment="none", workers=workers)
        for (pixels, indices), expected in zip(pairs, batches(split), strict=True):
            assert indices.tolist() == expected.tolist()
            assert torch.equal(pixels[3], torch.from_numpy(split.image(int(indices[3]))))


@pytest.mark.parametrize("changed", [{"epoch": 2}, {"seed": 1}])
def test_augmentation_repeats_and_changes_with_epoch_and_seed(split: Split, changed: dict[str, int]) -> None:
    assert torch.equal(loaded(split), loaded(split))
    assert not torch.equal(loaded(split), loaded(split, epoch=changed.get("epoch", 1), seed=changed.get("seed", 0)))


def test_equal_images_are_augmented_each_in_its_own_way(split: Split) -> None:
    alike = replace(split, image=lambda index: split.image(0))
    ((pixels, _),) = load_batches(alike, [(1, np.arange(8))], seed=0, augment="affine", workers=0)
    assert len({image.numpy().tobytes() for image in pixels}) == 8


def test_augmentation_depends_on_the_image_and_not_on_its_batch(split: Split) -> None:
    one, other = np.array([3, 7]), np.array([7, 7, 1])
    found = [p for p, _ in load_batches(split, [(1, one), (1, other)], seed=0, augment="affine", workers=0)]
    assert torch.equal(found[0][1], found[1][0])
    assert torch.equal(found[1][0], found[1][1])


@pytest.mark.parametrize("augment", ["affine", "none"])
def test_an_index_beyond_the_images_is_one_of_them_augmented_anew(split: Split, augment: str) -> None:
    count = len(split)
    batch = np.array([3, count + 3, 7])
    ((pixels, _),) = load_batches(split, [(1, batch)], seed=0, augment=augment, workers=0)
    ((alone, _),) = load_batches(split, [(1, np.array([3, 7]))], seed=0, augment=augment, workers=0)
    assert torch.equal(pixels[[0, 2]], alone)
    assert torch.equal(pixels[0], pixels[1]) == (augment == "none")


@pytest.mark.parametrize("workers", [0, 2])
def test_the_global_generators_are_not_drawn_from(split: Split, workers: int) -> None:
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002 - the global generator is what this is about
    loaded(split, workers=workers)
    assert torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(5).get_state())
    assert np.random.random() == np.random.RandomState(5).random()  # noqa: NPY002 - see above


@pytest.mark.parametrize("workers", [0, 2])
def test_plain_batches_are_in_order_and_the_last_is_small(split: Split, workers: int) -> None:
    found = list(plain_batches(split, batch_size=32, workers=workers))
    assert [len(batch) for batch in found] == [32, 32, 32, 4]
    everything = np.stack([split.image(i) for i in range(100)])
    np.testing.assert_array_equal(torch.cat(found).numpy(), everything)


def test_a_plain_batch_of_nothing_is_a_callers_bug(split: Split) -> None:
    with pytest.raises(ValueError, match="batch_size = 0: must be at least 1"):
        plain_batches(split, batch_size=0, workers=0)


def test_an_unknown_augmentation_is_refused_at_once(split: Split) -> None:
    with pytest.raises(UnknownNameError, match="unknown augmentation 'affin'. Did you mean 'affine'?"):
        load_batches(split, [], seed=0, augment="affin", workers=0)


@pytest.mark.parametrize("workers", [0, 2])
def test_images_of_other_sizes_are_named_with_both(files: Path, workers: int) -> None:
    PIL.Image.new("L", (9, 5)).save(files / "a" / "2.png")
    with pytest.raises(DataError, match="a/2.png: 9x5 pixels in a batch of 6x5 pixels. Resize the data set"):
        consume(plain_batches(train_split(files), batch_size=8, workers=workers))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_image_ends_the_loading_in_one_line_and_its_workers(files: Path, workers: int) -> None:
    (files / "b" / "1.png").write_bytes(b"")
    with pytest.raises(DataError) as caught:
        consume(plain_batches(train_split(files), batch_size=2, workers=workers))
    assert str(caught.value) == f"{files}/b/1.png: the file is empty. Get it again or remove it."
    assert multiprocessing.active_children() == []


def test_a_process_that_ends_unasked_takes_its_workers_with_it() -> None:
    program = """
import os
from layerprobe.data import glyphs
from layerprobe.data.loading import plain_batches

if __name__ == "__main__":
    split = glyphs.load(train_classes=2, test_classes=2, images_per_class=2, image_size=8).splits["test"]
    batches = plain_batches(split, batch_size=1, workers=1)
    next(batches)
    raise SystemExit(7)
"""
    # The module holds the batches until the interpreter is gone.
    ended = subprocess.run([sys.executable, "-c", program], timeout=300, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (7, b"")


def test_closing_early_ends_the_workers(split: Split) -> None:
    pairs = load_batches(split, of_epoch(1, batches(split)), seed=0, augment="none", workers=2)
    next(pairs)
    assert len(workers_of()) == 2
    pairs.close()
    assert multiprocessing.active_children() == []


def test_there_are_no_more_workers_than_batches(split: Split) -> None:
    pairs = plain_batches(split, batch_size=100, workers=4)
    next(pairs)
    assert len(workers_of()) == 1
    pairs.close()


def test_workers_leave_an_interrupt_to_the_main_process(split: Split) -> None:
    found = plain_batches(split, batch_size=1, workers=2)
    first = [next(found), next(found)]  # one from each: both are ready
    for worker in workers_of():
        os.kill(worker, signal.SIGINT)
    assert len(first) + consume(found) == 100


def kill_workers() -> None:
    for worker in workers_of():
        os.kill(worker, signal.SIGKILL)


def failing(error: Exception) -> Iterator[Tensor]:
    raise error
    yield torch.empty(0)


@pytest.mark.parametrize("error", [EOFError(), ConnectionResetError(), FileNotFoundError()])
def test_a_line_that_breaks_off_means_a_killed_worker(error: Exception) -> None:
    assert "a data worker was killed" in str(_next(failing(error), 2))


def test_a_bug_in_a_worker_is_not_taken_for_a_killed_one() -> None:
    with pytest.raises(RuntimeError, match="Caught RuntimeError in DataLoader worker process 0"):
        _next(failing(RuntimeError("Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback")), 2)


@pytest.mark.parametrize(("workers", "fix"), [(2, "--workers 1"), (1, "--workers 0")])
def test_workers_killed_while_they_read_are_named_as_such(tmp_path: Path, workers: int, fix: str) -> None:
    blocked = Blocked(tmp_path)

    def kill_once_they_read() -> None:
        blocked.wait()
        kill_workers()

    killer = threading.Thread(target=kill_once_they_read)
    killer.start()
    with pytest.raises(EnvironmentFault, match=rf"a data worker was killed \(memory\?\). Use {fix}"):
        consume(in_order(blocked, [np.array([0]), np.array([1])], workers))
    killer.join()


def test_full_shared_memory_is_named_with_the_way_out(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensor: Tensor) -> Tensor:
        raise RuntimeError("unable to allocate shared memory(shm)\nmore of torch's lines")

    monkeypatch.setattr(Tensor, "share_memory_", full)
    error = _Served(_BatchReader(split, "none", seed=0))[1, np.array([0])]
    assert isinstance(error, EnvironmentFault)
    assert "shared memory is full (unable to allocate shared memory(shm)). Use --workers 0" in str(error)


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


def test_a_share_of_the_pairs_is_one_image_twice() -> None:
    labels = labels_of(*[10] * 40)
    options: dict[str, Any] = {"batch_size": 40, "images_per_class": 2, "by_size": False, "seed": 0, "epoch": 1}
    pairs = np.concatenate(class_batches(labels, self_pairs=0.25, **options)).reshape(-1, 2)
    is_self = pairs[:, 1] >= 400
    assert np.array_equal(pairs[is_self, 1], 400 + pairs[is_self, 0])
    assert (labels[pairs[:, 0]] == labels[pairs[:, 1] % 400]).all()
    assert (pairs[~is_self, 0] != pairs[~is_self, 1]).all()
    # 200 pairs: 50 expected, standard deviation 6.1
    assert abs(is_self.sum() - 50) < 19
    every = np.concatenate(class_batches(labels, self_pairs=1.0, **options)).reshape(-1, 2)
    assert (every[:, 1] == 400 + every[:, 0]).all()


MIXED_SIZES = tuple(np.random.default_rng(6).integers(1, 30, 40).tolist())


@pytest.mark.parametrize(
    ("options", "digest"),
    [
        ({}, "933d000cc4748c1e"),
        ({"by_size": False}, "1e6fd1dc3cba081d"),
        ({"singletons": True}, "b7d82a3c48d2c9f8"),
        ({"replacement": True}, "e7a9f7d1ecd6dacb"),
    ],
)
def test_batches_are_what_they_were(options: dict[str, Any], digest: str) -> None:
    # Hashes of batches for which `class_batches` called `rng.choice(..., p=...)`.
    labels, hashed = labels_of(*MIXED_SIZES), hashlib.sha256()
    for epoch in (1, 2):
        for batch in class_batches(labels, batch_size=32, images_per_class=4, seed=3, epoch=epoch, **options):
            hashed.update(batch.astype("<i8").tobytes())
    assert hashed.hexdigest()[:16] == digest


LABELS = [
    labels_of(*MIXED_SIZES), labels_of(*[4] * 10), labels_of(1, 1, 1, 5, 5, 5, 20), labels_of(*[1] * 30, *[2] * 9),
    labels_of(3, 40, 40, 200), 7 * labels_of(*[12] * 8),
]  # fmt: skip


@pytest.mark.parametrize("labels", LABELS, ids=lambda labels: f"{len(labels)}")
@pytest.mark.parametrize(("m", "k"), [(6, 2), (7, 3), (8, 4), (3, 3)])
@pytest.mark.parametrize("options", [{}, {"by_size": False}, {"singletons": True}, {"replacement": True}])
def test_batches_are_drawn_as_numpys_choice_draws(
    labels: NDArray[np.int64], m: int, k: int, options: dict[str, bool]
) -> None:
    sizes = dict(zip(*(array.tolist() for array in np.unique(labels, return_counts=True)), strict=True))
    eligible = [label for label, size in sizes.items() if size >= 2 - options.get("singletons", False)]
    chances = np.array([sizes[label] for label in eligible]) / sum(sizes[label] for label in eligible)
    rng = np.random.default_rng([1, 2])
    for batch in class_batches(labels, batch_size=m, images_per_class=k, seed=1, epoch=2, **options):
        p, expected = chances if options.get("by_size", True) else None, list[int]()
        for place in rng.choice(len(eligible), m // k, replace=False, p=p):
            members = np.flatnonzero(labels == eligible[place])
            repeats = options.get("replacement", False) or len(members) < k
            expected += rng.choice(members, k, replace=repeats).tolist()
        assert batch.tolist() == expected


@pytest.mark.parametrize("labels", LABELS, ids=lambda labels: f"{len(labels)}")
@pytest.mark.parametrize(("m", "k"), [(6, 2), (7, 3), (8, 4), (3, 3)])
@pytest.mark.parametrize("singletons", [True, False])
def test_batches_are_counted_as_they_are_made(labels: NDArray[np.int64], m: int, k: int, singletons: bool) -> None:
    options: dict[str, Any] = {"batch_size": m, "images_per_class": k, "singletons": singletons}
    count, images = count_class_batches(labels, **options)
    for epoch in (1, 2):
        assert [len(batch) for batch in class_batches(labels, seed=0, epoch=epoch, **options)] == [images] * count


@pytest.mark.parametrize("m", [1, 6, 7, 40])
def test_shuffled_batches_are_counted_as_they_are_made(m: int) -> None:
    labels = labels_of(1, 1, 18, 20)
    count, images = count_shuffled_batches(labels, batch_size=m)
    assert [len(batch) for batch in shuffled_batches(labels, batch_size=m, seed=0, epoch=1)] == [images] * count
