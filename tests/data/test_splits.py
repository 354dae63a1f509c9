from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from layerprobe.data import splits
from layerprobe.data.splits import (
    Dataset,
    Image,
    Split,
    contents_sha256,
    manifest_sha256,
    overlaps,
    require_retrieval,
    separator_note,
    shared_labels,
    split_labels,
)
from layerprobe.system.errors import DataError


def black(index: int) -> Image:
    return np.zeros((2, 2, 3), np.uint8)


def split(name: str, *labels: int) -> Split:
    return Split(name, np.array(labels, np.int64), tuple(f"{name}/{i}" for i in range(len(labels))), black)


def dataset(*splits: Split, **search_in: str) -> Dataset:
    return Dataset({s.name: s for s in splits}, ("ant", "bee", "cat", "dog"), search_in)


def test_a_split_counts_its_images_and_classes() -> None:
    some = split("test", 2, 3, 2)
    assert (len(some), some.num_classes) == (3, 2)


def test_labels_and_ids_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"split train: \(2,\) labels for 1 ids"):
        Split("train", np.array([0, 1]), ("a",), black)


def test_an_id_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="split train: an id occurs twice"):
        Split("train", np.array([0, 1]), ("a", "a"), black)


def test_a_column_needs_a_text_for_each_image() -> None:
    with pytest.raises(ValueError, match="split train: 1 texts in column camera for 2 ids"):
        Split("train", np.array([0, 1]), ("a", "b"), black, columns={"camera": ("c1",)})


def test_a_zero_shot_data_set_passes() -> None:
    good = dataset(split("train", 0, 1), split("test", 2, 3))
    assert require_retrieval(good, source="x") is good


def test_a_class_in_two_splits_is_named() -> None:
    with pytest.raises(DataError, match="x.csv: class bee is in train and test, but no class may be in two splits"):
        require_retrieval(dataset(split("train", 0, 1), split("test", 1, 2)), source="x.csv")


def test_queries_and_their_gallery_share_classes() -> None:
    shared = dataset(split("train", 0, 1), split("test", 2, 3), split("gallery", 3, 2), test="gallery")
    assert require_retrieval(shared, source="x") is shared


def test_the_gallery_shares_no_class_with_training() -> None:
    shared = dataset(split("train", 0, 1), split("test", 2, 3), split("gallery", 1, 2), test="gallery")
    with pytest.raises(DataError, match="class bee is in train and gallery"):
        require_retrieval(shared, source="x")


@pytest.mark.parametrize(("labels", "counts"), [((), "0 images of 0 classes"), ((2, 2), "2 images of 1 class")])
def test_a_split_with_fewer_than_two_classes_is_refused(labels: tuple[int, ...], counts: str) -> None:
    with pytest.raises(DataError, match=f"test split has {counts}; Recall@K needs 2 classes"):
        require_retrieval(dataset(split("train", 0, 1), split("test", *labels)), source="x")


def test_the_manifest_tells_ids_labels_class_names_and_files_apart() -> None:
    some, names = split("test", 0, 1), ("ant", "bee")
    manifests = {
        manifest_sha256(some, names),
        manifest_sha256(some, ("ant", "cow")),
        manifest_sha256(split("test", 1, 0), names),
        manifest_sha256(replace(some, ids=("test/0", "test/2")), names),
        manifest_sha256(replace(some, ids=("test/1", "test/0")), names),
        manifest_sha256(replace(some, fingerprint="other sizes"), names),
    }
    assert len(manifests) == 6


def test_the_manifest_is_the_same_for_the_same_split() -> None:
    assert manifest_sha256(split("test", 0, 1), ("ant", "bee")) == manifest_sha256(split("test", 0, 1), ("ant", "bee"))


def hashed(name: str, *digests: int) -> Split:
    """A split of images that have the same content where they have the same number."""
    return replace(split(name, *range(len(digests))), digests=np.array([[d, 0] for d in digests], np.int64))


def test_images_of_the_same_content_in_two_splits_are_counted() -> None:
    some = dataset(hashed("train", 1, 2, 3), hashed("validation", 4, 1), hashed("test", 5, 2, 2, 6))
    notes = ("validation images that are in train too: 1 of 2", "test images that are in train too: 2 of 4")
    assert overlaps(some) == notes


def test_an_image_may_be_query_and_gallery_and_occur_twice_in_a_split() -> None:
    some = dataset(hashed("train", 1, 2), hashed("test", 3, 3), hashed("gallery", 3, 2), test="gallery")
    assert overlaps(some) == ("gallery images that are in train too: 1 of 2",)


def test_images_that_are_not_hashed_are_not_compared() -> None:
    assert overlaps(dataset(split("train", 0), split("test", 1))) == ()


def test_images_that_are_not_hashed_have_no_hash_of_their_contents() -> None:
    with pytest.raises(ValueError, match="split test: its images are not hashed"):
        contents_sha256(split("test", 2, 3), ("ant", "bee", "cat", "dog"))


def test_a_data_set_hashes_the_contents_of_a_split_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = dataset(hashed("train", 1, 2), hashed("test", 3, 4))
    expected = contents_sha256(made.splits["test"], made.class_names)
    assert made.contents_sha256("test") == expected
    monkeypatch.setattr(splits, "contents_sha256", None)
    assert made.contents_sha256("test") == expected


def test_labels_that_train_and_test_share_are_counted() -> None:
    # classes a, b|c, c and b|d: train has a, b and c, test has c, b and d
    pairs = np.array([[0, 0], [1, 1], [1, 2], [2, 2], [3, 1], [3, 3]])
    made = replace(dataset(split("train", 0, 1), split("test", 2, 3)), label_sets=pairs)
    assert shared_labels(made) == ("labels of test images that training images have too: 2 of 3",)
    assert shared_labels(replace(made, label_sets=None)) == ()
    assert shared_labels(replace(made, label_sets=np.array([[0, 0], [1, 1], [2, 2], [3, 3]]))) == ()
    assert shared_labels(replace(made, splits={"test": made.splits["test"]})) == ()


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
