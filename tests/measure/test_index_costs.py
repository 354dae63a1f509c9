from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from layerprobe import recall_at_k
from layerprobe.measure.analysis import Features
from layerprobe.measure.index_costs import Searched, index_costs
from layerprobe.values.costs import KINDS
from layerprobe.values.retrieval import SearchRules

pytestmark = pytest.mark.usefixtures("faiss")


def drawn(classes: int, seed: int) -> Features:
    """Eight images of each class, around its mean."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), 8)
    values = rng.normal(size=(classes, 12))[labels] + rng.normal(size=(len(labels), 12))
    return Features(values.astype(np.float32), labels, [str(row) for row in range(len(labels))])


QUERIES, OTHERS = drawn(25, 1), drawn(25, 2)


@pytest.mark.parametrize("k", [1, 5])
def test_the_exact_row_is_the_engines_and_an_exhaustive_index_equals_it(k: int) -> None:
    found = index_costs(Searched(QUERIES, None, "cosine", OTHERS.values), KINDS, layer="a", k=k)
    exact, flat, ivfpq, hnsw = found.rows
    assert [row.kind for row in found.rows] == ["exact", "flat", "ivfpq", "hnsw"]
    assert exact.recall == recall_at_k(np.asarray(QUERIES.values), QUERIES.labels, [k])[k]
    assert (flat.recall, flat.difference, flat.nearest) == (exact.recall, 0, 1)
    assert hnsw.nearest == 1  # of 200 vectors, where 128 are visited
    assert ivfpq.nearest < 1
    assert ivfpq.difference == ivfpq.recall - exact.recall
    assert (found.metric, found.neighbours, found.items, found.trained_on) == (f"R@{k}", k + 1, 200, 200)


def test_recall_of_the_nearest_is_counted_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # at 0, 1, 3 and 7 the nearest are 1, 0, 1 and 3; the index says 1, 2, 1 and nothing
    values, labels = np.array([[0.0], [1], [3], [7]]), np.array([0, 1, 1, 1])
    rows = np.array([[0, 1], [1, 2], [2, 1], [3, -1]])
    monkeypatch.setattr("layerprobe.measure.index_costs._time_searches", lambda *_: (0.1, 0.2, rows))
    _, flat = index_costs(Searched(Features(values, labels, list("abcd")), None, "euclidean"), ["flat"], layer="a").rows
    assert flat.nearest == 2 / 4
    assert flat.recall == 2 / 4  # 1 finds 3 and 3 finds 1; 7 finds nothing
    assert flat.difference == 0  # of the exact neighbours of 0, 1, 3 and 7, those of 3 and 7 are right


@pytest.mark.parametrize(("further", "nearest"), [(1e-13, 1), (1e-9, 3 / 4)])
def test_a_tie_with_the_nearest_counts_as_the_nearest(
    further: float, nearest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 0 is as far from 0.3 as from -0.3, up to rounding or not; the index finds the second
    values = np.array([[0.0], [0.3], [-0.3 - further], [5]])
    monkeypatch.setattr(
        "layerprobe.measure.index_costs._time_searches",
        lambda *_: (0.1, 0.2, np.array([[0, 2], [1, 0], [2, 0], [3, 1]])),
    )
    _, flat = index_costs(
        Searched(Features(values, np.array([0, 0, 1, 1]), list("abcd")), None, "euclidean"), ["flat"], layer="a"
    ).rows
    assert flat.nearest == nearest


def test_a_gallery_of_its_own_is_indexed_without_the_query() -> None:
    gallery = drawn(25, 1)
    queries = Features(np.asarray(gallery.values)[::10] + 0.01, gallery.labels[::10], gallery.ids[::10])
    exact, flat = index_costs(Searched(queries, gallery, "cosine"), ["flat"], layer="a").rows
    values = np.asarray(gallery.values)
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    asked = np.asarray(queries.values)
    asked = asked / np.linalg.norm(asked, axis=1, keepdims=True)
    # each query is nearest to its own image, which is no result
    rows = NearestNeighbors(n_neighbors=2).fit(unit).kneighbors(asked, return_distance=False)[:, 1]
    assert exact.recall == flat.recall == (gallery.labels[rows] == queries.labels).mean()


def test_images_of_the_querys_group_are_no_results() -> None:
    values = np.array([[0.0], [1], [10], [12]])
    searched = Searched(
        Features(values, np.array([0, 0, 0, 1]), list("abcd")),
        None,
        "euclidean",
        rules=SearchRules(groups=np.array([0, 0, 1, 2])),
    )
    exact, flat = index_costs(searched, ["flat"], layer="a").rows
    # 0 and 1 are of one group and find 10, which is right; 10 finds 12, and 12 finds 10
    assert exact.recall == flat.recall == 2 / 4
    assert flat.nearest == 1


def test_an_image_that_shares_a_label_is_right_in_an_index() -> None:
    values = np.array([[0.0], [1], [10], [12]])
    rules = SearchRules(label_sets=np.array([[0, 0], [1, 0], [1, 1], [2, 2]]))
    searched = Searched(Features(values, np.array([0, 1, 1, 2]), list("abcd")), None, "euclidean", rules=rules)
    exact, flat = index_costs(searched, ["flat"], layer="a").rows
    # 0 and 1 find one another, of the labels 0 and 0, 1; 10 and 12 share none
    assert exact.recall == flat.recall == 2 / 4


def test_bytes_are_those_of_the_file(tmp_path: Any) -> None:
    from layerprobe.ranking import write_index

    found = index_costs(Searched(QUERIES, None, "cosine", OTHERS.values), KINDS, layer="a")
    for kind, row in zip(KINDS, found.rows[1:], strict=True):
        path, _ = write_index(
            tmp_path, np.asarray(QUERIES.values), QUERIES.ids, kind=kind, training=np.asarray(OTHERS.values)
        )  # fmt: skip
        assert row.bytes_per_image == path.stat().st_size / 200
    assert found.rows[0].bytes_per_image == found.rows[1].bytes_per_image


def packed(rows: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (rows, 2), np.uint8)


def test_of_bits_the_other_kinds_are_left_out_with_the_reason() -> None:
    bits = Features(packed(40), np.arange(40) // 4, [str(row) for row in range(40)])
    found = index_costs(Searched(bits, None, "hamming", packed(80)), KINDS, layer="a")
    assert [row.kind for row in found.rows] == ["exact", "flat"]
    assert found.rows[1].nearest == 1
    assert found.notes == tuple(
        f"left out: an index {kind} holds float vectors, and binary codes are bits" for kind in ("ivfpq", "hnsw")
    )
