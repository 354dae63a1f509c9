from __future__ import annotations

from layerprobe.data.counts import Count, count, differences, partial_notes

WHOLE = {"train": Count(12, 4, (3, 3)), "test": Count(12, 4)}


def test_a_split_is_counted_by_its_classes() -> None:
    assert count([7, 9, 7, 7]) == Count(4, 2, (1, 3))
    assert count([]) == Count(0, 0)
    assert str(count([7, 9, 7, 7])) == "4 images of 2 classes (1-3 each)"


def test_where_all_splits_are_as_published_there_is_nothing_to_say() -> None:
    found = {"train": Count(12, 4, (3, 3)), "test": Count(12, 4, (1, 9))}
    assert differences(found, WHOLE) == []
    assert partial_notes(found, WHOLE) == ()


def test_where_one_split_differs_both_sizes_of_every_split_are_named() -> None:
    found = {"train": Count(12, 4, (2, 4)), "test": Count(12, 4, (3, 3))}
    assert differences(found, WHOLE) == [
        "train has 12 images of 4 classes (2-4 each), expected 12 images of 4 classes (3-3 each)",
        "test has 12 images of 4 classes (3-3 each), expected 12 images of 4 classes",
    ]


def test_a_note_names_the_classes_only_where_some_are_missing() -> None:
    found = {"train": Count(1100, 4, (3, 3)), "test": Count(9, 3, (3, 3))}
    published = {"train": Count(1200, 4), "test": Count(12, 4)}
    assert partial_notes(found, published) == (
        "partial: 1,100 of 1,200 train images",
        "partial: 9 of 12 test images of 3 of 4 classes",
    )
