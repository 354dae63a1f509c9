from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from layerprobe.data.splits import Dataset, Image, Split, manifest_sha256, require_retrieval
from layerprobe.data.subsets import meta_classes, numeric_order_note, with_share, with_validation, with_validation_fold
from layerprobe.system.errors import RecipeError


def number(index: int) -> Image:
    return np.full((1, 1, 3), index, np.uint8)


def split(name: str, labels: list[int]) -> Split:
    ids = tuple(f"{name}/{i}" for i in range(len(labels)))
    return Split(name, np.array(labels, np.int64), ids, number)


def dataset(classes: int = 10, images: int = 20) -> Dataset:
    train = [label for label in range(classes) for _ in range(images)]
    test = [label for label in range(classes, 2 * classes) for _ in range(images)]
    names = tuple(f"class{i}" for i in range(2 * classes))
    return Dataset({"train": split("train", train), "test": split("test", test)}, names)


def test_held_out_classes_leave_training_and_stay_whole() -> None:
    found = with_validation(dataset(), 0.2)
    assert list(found.splits) == ["train", "validation", "test"]
    train, validation = found.splits["train"], found.splits["validation"]
    assert (train.num_classes, validation.num_classes) == (8, 2)
    assert not set(train.labels) & set(validation.labels)
    assert len(validation) == 2 * 20
    require_retrieval(found, source="")


def test_an_image_keeps_its_id_and_its_label() -> None:
    whole = dataset()
    found = with_validation(whole, 0.3).splits["validation"]
    place = {name: i for i, name in enumerate(whole.splits["train"].ids)}
    for i in (0, 7, len(found) - 1):
        original = place[found.ids[i]]
        assert found.image(i)[0, 0, 0] == original % 256
        assert found.labels[i] == whole.splits["train"].labels[original]


def test_an_image_keeps_the_texts_of_its_columns() -> None:
    whole = dataset()
    train = whole.splits["train"]
    named = replace(whole, splits={**whole.splits, "train": replace(train, columns={"twin": train.ids})})
    found = with_share(with_validation(named, 0.3), 0.5, seed=0)
    assert {name: len(found.splits[name]) for name in ("train", "validation")} == {"train": 70, "validation": 60}
    for name in ("train", "validation"):
        assert found.splits[name].columns["twin"] == found.splits[name].ids


def test_the_same_classes_are_held_out_each_time() -> None:
    first, second = (with_validation(dataset(), 0.2).splits["validation"] for _ in range(2))
    assert first.ids == second.ids


def test_no_fraction_changes_nothing() -> None:
    whole = dataset()
    assert with_validation(whole, 0) is whole
    assert with_share(whole, 1, seed=0) is whole


def test_each_training_class_is_held_out_in_one_fold() -> None:
    found = [with_validation_fold(dataset(), 3, fold) for fold in range(3)]
    held = [set(fold.splits["validation"].labels.tolist()) for fold in found]
    assert sorted(map(len, held)) == [3, 3, 4]
    assert set.union(*held) == set(range(10))
    assert all(held[i] | set(fold.splits["train"].labels.tolist()) == set(range(10)) for i, fold in enumerate(found))


def test_no_folds_change_nothing() -> None:
    whole = dataset()
    assert with_validation_fold(whole, 0, 0) is whole


def test_a_fold_of_one_class_is_refused() -> None:
    with pytest.raises(RecipeError, match="data.validation_folds = 6 holds out 1 of 10 training classes"):
        with_validation_fold(dataset(), 6, 5)


@pytest.mark.parametrize("fraction", [0.05, 0.95])
def test_two_classes_must_be_on_each_side(fraction: float) -> None:
    with pytest.raises(RecipeError, match="at least 2 must be held out and 2 be left"):
        with_validation(dataset(), fraction)


def test_a_validation_split_of_its_own_stays() -> None:
    with pytest.raises(RecipeError, match="has a validation split of its own"):
        with_validation(with_validation(dataset(), 0.2), 0.2)


@pytest.mark.parametrize(("share", "each"), [(0.05, 2), (0.2, 4), (0.5, 10)])
def test_a_share_of_every_class_is_kept(share: float, each: int) -> None:
    found = with_share(dataset(), share, seed=0)
    assert np.unique(found.splits["train"].labels, return_counts=True)[1].tolist() == [each] * 10
    assert len(found.splits["test"]) == 200


def test_a_class_of_one_image_keeps_it() -> None:
    whole = Dataset({"train": split("train", [0, 1, 1, 1])}, ("a", "b"))
    assert with_share(whole, 0.1, seed=0).splits["train"].labels.tolist() == [0, 1, 1]


def test_the_seed_decides_which_images() -> None:
    ids = [with_share(dataset(), 0.2, seed=seed).splits["train"].ids for seed in (0, 0, 1)]
    assert ids[0] == ids[1] != ids[2]


def test_results_say_what_was_left_out() -> None:
    found = with_share(with_validation(dataset(), 0.2), 0.5, seed=0)
    assert found.notes == (
        "2 of 10 training classes held out for validation",
        "50% of each training class: 80 of 160 images",
    )


def test_parts_have_manifests_of_their_own_and_go_to_workers() -> None:
    found = with_share(dataset(), 0.2, seed=0)
    part = found.splits["train"]
    assert manifest_sha256(part, found.class_names) != manifest_sha256(dataset().splits["train"], found.class_names)
    assert (pickle.loads(pickle.dumps(part)).image(3) == part.image(3)).all()


def test_meta_classes_merge_equally_many_classes() -> None:
    labels = np.repeat([3, 5, 8, 9, 12], [4, 3, 2, 5, 1])
    merged = meta_classes(labels, 2, seed=0)
    of_class = {int(label): set(merged[labels == label].tolist()) for label in labels}
    assert all(len(found) == 1 for found in of_class.values())
    sizes = [sum(found == {meta} for found in of_class.values()) for meta in (0, 1)]
    assert sorted(sizes) == [2, 3]


def test_another_seed_merges_others() -> None:
    labels = np.arange(20)
    first, second = (meta_classes(labels, 4, seed=seed) for seed in (0, 1))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, meta_classes(labels, 4, seed=0))


def test_more_meta_classes_than_classes_are_refused() -> None:
    with pytest.raises(RecipeError, match="train.meta_classes = 4: there are 3 training classes"):
        meta_classes(np.array([0, 1, 2, 2]), 4, seed=0)


def test_classes_cannot_be_held_out_where_all_are_tested() -> None:
    with pytest.raises(RecipeError, match="every class is in the test split, also those held out"):
        with_validation(replace(dataset(), classification=True), 0.5)


@pytest.mark.parametrize(
    ("names", "train", "sides"),
    [
        ([str(n) for n in range(1, 13)], 6, ("1 to 3, 10 to 12", "4 to 9")),
        (["7", "8", "9", "10"], 2, ("7, 10", "8 to 9")),
        (["cat1", "cat2", "cat10", "cat20"], 2, ("cat1, cat10", "cat2, cat20")),
        (["a/8", "a/9", "a/10", "b/1"], 2, ("a/8, a/10", "a/9, b/1")),
        (["1.Auk", "2.Bee", "9.Cow", "10.Dog", "11.Elk"], 2, ("1.Auk, 10.Dog", "2.Bee to 9.Cow, 11.Elk")),
    ],
)
def test_numbers_that_are_sorted_as_text_say_which_classes_train(
    names: list[str], train: int, sides: tuple[str, str]
) -> None:
    note = numeric_order_note(sorted(names), train)
    assert note is not None
    assert note.startswith(f"class names are sorted as text: train has {sides[0]}, test has {sides[1]};")
    assert "data.class_seed" in note


@pytest.mark.parametrize(
    ("names", "train"),
    [
        ([str(n) for n in range(1, 10)], 4),  # the same in both orders
        ([f"{n:02}" for n in range(1, 13)], 6),
        ([str(n) for n in range(1, 13)], 0),
        (["1", "10", "2", "a"], 3),  # other orders, the same halves
        (["cat", "dog", "Emu", "fox"], 2),
        (["0f3a2", "0f12b", "9ab1c", "a1b2c"], 1),  # hashes
    ],
)
def test_no_word_is_lost_on_numbers_that_change_nothing(names: list[str], train: int) -> None:
    assert numeric_order_note(sorted(names), train) is None
