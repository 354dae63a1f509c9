from __future__ import annotations

import pytest

from layerprobe.data.label_sets import label_sets_of, separator_note, split_labels


@pytest.mark.parametrize(
    ("text", "separator", "labels"),
    [
        ("dog|cat", "|", {"dog", "cat"}),
        (" red car ;;bus ; ", ";", {"red car", "bus"}),
        ("a, b, a", ",", {"a", "b"}),
        ("a||b", "||", {"a", "b"}),
        ("a|b", ";", {"a|b"}),
        (" | ", "|", set()),
    ],
)
def test_a_text_is_split_at_each_separator(text: str, separator: str, labels: set[str]) -> None:
    assert split_labels(text, separator) == labels


def test_equal_sets_are_one_class_whatever_their_order() -> None:
    found = label_sets_of([frozenset(labels) for labels in ("b", "ab", "c", "ba", "bca")], "|")
    assert found.class_names == ("a|b", "a|b|c", "b", "c")
    assert found.classes.tolist() == [2, 0, 3, 0, 1]
    # a, b and c are 0, 1 and 2
    assert found.pairs.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2], [2, 1], [3, 2]]


@pytest.mark.parametrize(
    ("names", "separator", "example"),
    [
        (("cat", "cat|dog"), "|", "cat|dog"),
        (("bird;cat", "cat;dog"), ";", "bird;cat"),
        (("sofa, red", "bed, red"), ",", "bed, red"),
        (("x|y", "bird;cat", "cat"), ";", "bird;cat"),
    ],
)
def test_labels_that_share_a_part_are_noted(names: tuple[str, ...], separator: str, example: str) -> None:
    note = separator_note(names)
    assert note.startswith(f"labels such as '{example}' hold a separator and are taken as classes of their own")
    assert f"data.label_separator='{separator}'" in note


@pytest.mark.parametrize("names", [("cat", "dog"), ("cat|dog", "bird"), ("a, b", "c, d"), ("cats", "cat-dog")])
def test_labels_that_share_no_part_are_not(names: tuple[str, ...]) -> None:
    assert separator_note(names) == ""
