from __future__ import annotations

import pickle

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.data import glyphs
from layerprobe.data.glyphs import SPEC, draw, load
from layerprobe.data.splits import Dataset, Split, manifest_sha256, require_retrieval
from layerprobe.system.errors import RecipeError


@pytest.fixture(scope="module")
def default() -> Dataset:
    return load()


def pixels(split: Split) -> NDArray[np.float64]:
    return np.stack([split.image(i)[:, :, 0] for i in range(len(split))]) / 255


def nearest_has_the_class(features: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """R@1 by cosine, each item searched among the others."""
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    similarity = unit @ unit.T
    np.fill_diagonal(similarity, -np.inf)
    return float((labels[similarity.argmax(axis=1)] == labels).mean())


def test_the_first_classes_train_and_the_next_test() -> None:
    dataset = load(train_classes=2, test_classes=3, images_per_class=4)
    assert dataset.class_names == ("class-0000", "class-0001", "class-0002", "class-0003", "class-0004")
    assert dataset.splits["train"].labels.tolist() == [0] * 4 + [1] * 4
    assert dataset.splits["test"].labels.tolist() == [2] * 4 + [3] * 4 + [4] * 4
    assert dataset.splits["test"].ids[5] == "class-0003/0001"
    assert require_retrieval(dataset, source="glyphs") is dataset


def test_a_class_seed_shuffles_the_classes_before_they_are_divided() -> None:
    splits = load(train_classes=3, test_classes=5, images_per_class=2, class_seed=4).splits
    order = np.random.default_rng(4).permutation(8)
    assert np.unique(splits["train"].labels).tolist() == sorted(order[:3])
    assert np.unique(splits["test"].labels).tolist() == sorted(order[3:])


def test_no_training_classes_leave_the_test_split_alone() -> None:
    dataset = load(train_classes=0, test_classes=3, images_per_class=2)
    assert list(dataset.splits) == ["test"]
    assert dataset.splits["test"].labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_an_image_is_the_same_however_many_there_are(default: Dataset) -> None:
    small = load(train_classes=2, test_classes=4, images_per_class=3).splits["test"]
    large = default.splits["train"]
    for name in ("class-0002/0000", "class-0005/0002"):
        one, other = small.image(small.ids.index(name)), large.image(large.ids.index(name))
        np.testing.assert_array_equal(one, other)


def test_an_image_is_drawn_the_same_again() -> None:
    np.testing.assert_array_equal(draw(3, 7, 1, image_size=24), draw(3, 7, 1, image_size=24))


@pytest.mark.parametrize("other", [(4, 7, 1), (3, 8, 1), (3, 7, 2)])
def test_seed_class_and_instance_change_the_image(other: tuple[int, int, int]) -> None:
    assert not np.array_equal(draw(3, 7, 1, image_size=24), draw(*other, image_size=24))


@pytest.mark.parametrize("other", [(4, 7, 1), (3, 8, 1), (3, 7, 2)])
def test_every_image_has_a_hand_of_its_own(other: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyphs, "_class_strokes", lambda seed, class_index: [np.array([[0.1, 0.2], [0.9, 0.8]])])
    assert not np.array_equal(draw(3, 7, 1, image_size=24), draw(*other, image_size=24))


def test_no_two_images_are_equal(default: Dataset) -> None:
    images = [split.image(i).tobytes() for split in default.splits.values() for i in range(len(split))]
    assert len(set(images)) == len(images) == 2400


@pytest.mark.parametrize("size", [8, 33, 100])
def test_any_size_shows_the_same_character(size: int) -> None:
    image = load(train_classes=2, test_classes=2, images_per_class=2, image_size=size).splits["train"].image(1)
    assert image.shape == (size, size, 3)
    assert image.dtype == np.uint8
    # Where the ink lies does not depend on the size it is drawn at.
    rows, columns = np.mgrid[:size, :size] / (size - 1)
    reference = draw(0, 0, 1, image_size=200)
    reference_rows, reference_columns = np.mgrid[:200, :200] / 199
    for here, there in ((rows, reference_rows), (columns, reference_columns)):
        assert np.average(here, weights=image[:, :, 0]) == pytest.approx(np.average(there, weights=reference), abs=0.03)


def test_strokes_are_white_on_black_and_antialiased(default: Dataset) -> None:
    image = default.splits["train"].image(0)
    assert np.array_equal(image[:, :, 0], image[:, :, 2])
    assert image.min() == 0
    assert image.max() == 255
    between = np.mean((image > 0) & (image < 255))
    assert 0.02 < between < 0.3


def test_characters_lie_inside_the_image(default: Dataset) -> None:
    images = pixels(default.splits["train"])
    border = np.concatenate([images[:, 0], images[:, -1], images[:, :, 0], images[:, :, -1]], axis=1)
    assert (border.max(axis=1) > 0.5).mean() < 0.25
    assert border.mean() < 0.02
    assert images.mean(axis=(1, 2)).min() > 0.02


def test_the_recipes_mean_and_std_are_those_of_the_training_images(default: Dataset) -> None:
    images = pixels(default.splits["train"])
    assert SPEC.defaults["mean"] == pytest.approx(images.mean(), abs=0.003)
    assert SPEC.defaults["std"] == pytest.approx(images.std(), abs=0.005)


def test_the_classes_are_neither_alike_nor_easy(default: Dataset) -> None:
    # By pixels alone: chance is 19 / 1199 = 1.6 %; independent stroke programmes would give 90 % and more.
    test = default.splits["test"]
    recall = nearest_has_the_class(pixels(test).reshape(len(test), -1), test.labels)
    assert 0.3 < recall < 0.5


def test_classes_of_one_programme_are_the_ones_that_are_mistaken(default: Dataset) -> None:
    # Twelve programmes in turn: the class modulo 12 is found far more often than the class.
    test = default.splits["test"]
    flat = pixels(test).reshape(len(test), -1)
    assert nearest_has_the_class(flat, test.labels % 12) > nearest_has_the_class(flat, test.labels) + 0.2


def test_the_manifest_tells_seeds_and_sizes_apart() -> None:
    def manifest(**options: int) -> str:
        dataset = load(**({"train_classes": 2, "test_classes": 2, "images_per_class": 2} | options))
        return manifest_sha256(dataset.splits["test"], dataset.class_names)

    assert manifest() == manifest()
    assert len({manifest(), manifest(seed=1), manifest(image_size=40), manifest(images_per_class=3)}) == 4


def test_a_split_can_be_sent_to_a_worker() -> None:
    split = load(train_classes=2, test_classes=2, images_per_class=2).splits["test"]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(split)).image(3), split.image(3))


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("train_classes", 1, 2),
        ("test_classes", 0, 2),
        ("images_per_class", 1, 2),
        ("image_size", 7, 8),
        ("seed", -1, 0),
        ("class_seed", -1, 0),
    ],
)
def test_an_option_below_its_range_is_refused(name: str, value: int, least: int) -> None:
    with pytest.raises(RecipeError, match=f"data.{name} = {value}: must be at least {least}"):
        load(**{name: value})
