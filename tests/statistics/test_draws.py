from __future__ import annotations

import numpy as np
import pytest

from layerprobe.statistics.draws import common_terms, draws, times_drawn, too_small
from layerprobe.values.metric_names import Terms

# class 3 has a single image
LABELS = np.array([5, 0, 0, 5, 2, 0, 2, 2, 5, 5, 0, 3])


def test_terms_have_the_contracts_name() -> None:
    assert Terms(14, 20).name() == "R@1(14x20)"


def test_terms_are_the_smallest_numbers_among_the_splits() -> None:
    # 3 classes of 4, 3 and 4 images, beside one of 1; 4 classes of 2
    assert common_terms({"train": LABELS, "test": np.repeat(np.arange(4), 2)}) == Terms(3, 2)
    assert common_terms({"test": LABELS}) == Terms(3, 3)
    assert too_small(LABELS) == 1


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [0, 0, 1], []])
def test_there_are_no_terms_without_two_classes_of_two_images(labels: list[int]) -> None:
    assert common_terms({"train": LABELS, "test": np.array(labels, np.int64)}) is None


def test_a_draw_has_so_many_classes_and_images_of_each() -> None:
    found = draws(LABELS, Terms(2, 3), seed=1, split="test")
    assert len(found) == 20
    for rows in found:
        classes, counts = np.unique(LABELS[rows], return_counts=True)
        assert len(classes) == 2
        assert counts.tolist() == [3, 3]
        assert (np.diff(rows) > 0).all()
        assert 3 not in classes


def test_every_image_of_a_class_is_drawn_equally_often() -> None:
    # 4,000 draws of 2 of 3 classes: an image of a class of m is in 2/3 * 2/m of them; four standard errors are 0.032.
    often = times_drawn(draws(LABELS, Terms(2, 2), seed=0, split="test", count=4000), len(LABELS)) / 4000
    for label, size in ((0, 4), (2, 3), (5, 4), (3, None)):
        wanted = 0.0 if size is None else 4 / 3 / size
        assert often[label == LABELS] == pytest.approx(wanted, abs=0.032)


def test_draws_follow_from_seed_split_and_number() -> None:
    def drawn(seed: int, split: str, count: int = 20) -> list[list[int]]:
        return [rows.tolist() for rows in draws(LABELS, Terms(2, 2), seed=seed, split=split, count=count)]

    assert drawn(0, "test") == drawn(0, "test")
    assert drawn(0, "test", 5) == drawn(0, "test")[:5]
    assert drawn(0, "test") != drawn(1, "test")
    assert drawn(0, "test") != drawn(0, "train")
    # Written down once: stored values are read back with these rows for ever.
    assert drawn(0, "test", 2) == [[1, 2, 4, 6], [2, 3, 8, 10]]


def test_a_split_of_exactly_these_terms_is_drawn_once_and_whole() -> None:
    labels = np.array([1, 0, 7, 1, 0])
    (rows,) = draws(labels, Terms(2, 2), seed=0, split="test")
    assert rows.tolist() == [0, 1, 3, 4]
    assert times_drawn([rows], 5).tolist() == [1, 1, 0, 1, 1]


@pytest.mark.parametrize("terms", [Terms(4, 2), Terms(2, 4)])
def test_terms_that_a_split_does_not_have_are_refused(terms: Terms) -> None:
    with pytest.raises(ValueError, match=r"of 3 classes, the smallest of 3"):
        draws(LABELS, terms, seed=0, split="test")
