from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from layerprobe.data.digits import SPEC, load
from layerprobe.data.splits import require_retrieval
from layerprobe.system.errors import RecipeError


def test_the_digits_0_to_4_train_and_5_to_9_test() -> None:
    dataset = load()
    train, test = dataset.splits["train"], dataset.splits["test"]
    assert (np.unique(train.labels).tolist(), np.unique(test.labels).tolist()) == ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])
    assert require_retrieval(dataset, source="digits") is dataset
    for name, split in dataset.splits.items():
        assert (len(split), split.num_classes) == (SPEC.counts[name].images, SPEC.counts[name].classes)


def test_an_image_is_scikit_learns_with_its_highest_level_white() -> None:
    test, found = load().splits["test"], load_digits()
    place = int(test.ids[7].partition("/")[2])
    assert found.target[place] == test.labels[7] == 5
    image = test.image(7)
    assert image.shape == (8, 8, 3)
    # levels 0 ... 16 are 0, 16, 32, 48, 64, 80, 96, 112, 128 (127.5, to even), 143 ... 255
    assert {(16, 255), (0, 0)} <= {
        *zip(found.images[place].ravel().tolist(), image[:, :, 1].ravel().tolist(), strict=True)
    }
    np.testing.assert_allclose(image[:, :, 0], found.images[place] * 255 / 16, atol=0.5)


def test_classification_divides_each_class_in_halves() -> None:
    dataset = load(protocol="classification")
    train, test = dataset.splits["train"], dataset.splits["test"]
    assert dataset.classification
    # of 178 zeros, 182 ones ... 180 nines; the odd ones are 177, 183, 181, 181 and 179
    assert np.bincount(train.labels).tolist() == [89, 91, 89, 92, 91, 91, 91, 90, 87, 90]
    assert np.bincount(test.labels).tolist() == [89, 91, 88, 91, 90, 91, 90, 89, 87, 90]
    assert not {*train.ids} & {*test.ids}
    require_retrieval(dataset, source="digits")


def test_a_class_seed_and_a_number_of_classes_choose_those_for_training() -> None:
    order = np.random.default_rng(3).permutation(10)
    assert np.unique(load(train_classes=6, class_seed=3).splits["train"].labels).tolist() == sorted(order[:6])
    assert list(load(train_classes=0).splits) == ["test"]
    with pytest.raises(RecipeError, match="data.train_classes = 9: of digits's 10 classes, at least 2 must train"):
        load(train_classes=9)


@pytest.mark.parametrize("options", [{"train_classes": 5}, {"class_seed": 0}])
def test_classification_leaves_no_class_to_choose(options: dict[str, int]) -> None:
    with pytest.raises(
        RecipeError, match=r"data\.\w+ = \d: with data.protocol = classification every class is on both"
    ):
        load(protocol="classification", **options)
