from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.data.splits import IN_GALLERY, Dataset, Split
from layerprobe.values.retrieval import SearchRules
from layerprobe.workflow.probe import identical_images as module
from layerprobe.workflow.probe.identical_images import identical_images, identical_rows, row_contents


def no_image(_: int) -> np.ndarray:
    raise AssertionError("no image is read")


def by_loops(
    contents: list[int],
    searched: list[int],
    labels: list[int],
    gallery_labels: list[int],
    own: list[int],
    rules: SearchRules,
) -> list[bool]:
    """A query has an identical image if any item of its content is neither itself nor taken out."""
    groups = rules.groups.tolist() if rules.groups is not None else None
    theirs = rules.gallery_groups.tolist() if rules.gallery_groups is not None else groups
    ignored = {tuple(pair) for pair in rules.ignored.tolist()} if rules.ignored is not None else set()

    def stays(query: int, item: int) -> bool:
        of_group = groups is not None and theirs is not None and groups[query] == theirs[item]
        taken = labels[query] == gallery_labels[item] and of_group
        return item != own[query] and not taken and (query, item) not in ignored

    return [
        any(searched[item] == content and stays(query, item) for item in range(len(searched)))
        for query, content in enumerate(contents)
    ]


def digests(contents: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.stack([contents, contents % 2], axis=1)


@pytest.mark.parametrize("pairs", [2**22, 3])  # all at once, or in many steps
@pytest.mark.parametrize("seed", range(8))
def test_queries_among_themselves_and_in_a_gallery_as_by_loops(
    seed: int, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAIRS", pairs)
    rng = np.random.default_rng(seed)
    contents, labels, groups = (rng.integers(0, high, 40) for high in (25, 4, 3))
    ignored = np.unique(rng.integers(0, 40, (30, 2)), axis=0)
    rules = SearchRules(groups=groups, ignored=ignored) if seed % 2 else SearchRules(groups=groups)
    alone = by_loops(contents.tolist(), contents.tolist(), labels.tolist(), labels.tolist(), list(range(40)), rules)
    assert identical_rows(digests(contents), labels, rules).tolist() == alone
    assert 0 < sum(alone) < 40
    searched, theirs = rng.integers(0, 25, 30), rng.integers(0, 4, 30)
    ids = [f"q{i}" for i in range(40)]
    gallery_ids = [*ids[:5], *(f"g{i}" for i in range(25))]  # five queries are in the gallery
    searched[:5], theirs[:5] = contents[:5], labels[:5]
    splits = {
        "test": Split("test", labels, tuple(ids), no_image, digests=digests(contents)),
        "gallery": Split("gallery", theirs, tuple(gallery_ids), no_image, digests=digests(searched)),
    }
    within = SearchRules(groups=groups, gallery_groups=rng.integers(0, 3, 30))
    dataset = Dataset(splits, tuple("abcd"), IN_GALLERY, search_rules={"test": within})
    own = [*range(5), *[-1] * 35]
    expected = by_loops(contents.tolist(), searched.tolist(), labels.tolist(), theirs.tolist(), own, within)
    found = identical_images(dataset, "test")
    assert found is not None
    assert found.tolist() == expected


def test_images_that_are_not_hashed_are_not_compared() -> None:
    split = Split("test", np.array([0, 0]), ("a", "b"), no_image)
    assert identical_images(Dataset({"test": split}, ("one",)), "test") is None


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.uint8, np.float16])
def test_rows_have_equal_hashes_where_their_bytes_are_equal_in_all_arrays(kind: type[np.generic]) -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 200, (150, 3, 5)).astype(kind)
    rows[[7, 100]] = rows[3]
    other = rng.normal(size=(150, 9))
    other[7] = other[3]
    _, alone = np.unique(row_contents(rows), axis=0, return_inverse=True)
    assert [np.flatnonzero(alone == alone[3]).tolist(), len(np.unique(alone))] == [[3, 7, 100], 148]
    _, both = np.unique(row_contents(rows, other), axis=0, return_inverse=True)
    assert [np.flatnonzero(both == both[3]).tolist(), len(np.unique(both))] == [[3, 7], 149]


def test_opposite_signs_and_swapped_places_are_other_contents() -> None:
    row = np.arange(1, 9, dtype=np.float64)
    flipped, swapped = row.copy(), row[::-1].copy()
    flipped[[2, 5]] *= -1
    assert len(np.unique(row_contents(np.stack([row, flipped, swapped, -row])), axis=0)) == 4
